"""gtpo: fine-tune a language model by reinforcement learning with verifiable rewards (GTPO, arXiv 2508.03772).

For loops of one's own (docs/library.md) the names in `__all__` can be imported from here. They are looked up when they
are asked for, so `import gtpo_cli` imports nothing else.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gtpo_cli.data import LoadedProblems as LoadedProblems
    from gtpo_cli.data import PromptEncoder as PromptEncoder
    from gtpo_cli.data import arithmetic_problems as arithmetic_problems
    from gtpo_cli.data import load_problems as load_problems
    from gtpo_cli.data import wrap_solution as wrap_solution
    from gtpo_cli.errors import GtpoError as GtpoError
    from gtpo_cli.estimators import Interval as Interval
    from gtpo_cli.estimators import McNemar as McNemar
    from gtpo_cli.estimators import bootstrap_mean as bootstrap_mean
    from gtpo_cli.estimators import bootstrap_means as bootstrap_means
    from gtpo_cli.estimators import first_k_pass as first_k_pass
    from gtpo_cli.estimators import majority_at_k as majority_at_k
    from gtpo_cli.estimators import mcnemar as mcnemar
    from gtpo_cli.estimators import paired_bootstrap_means as paired_bootstrap_means
    from gtpo_cli.estimators import pass_at_k as pass_at_k
    from gtpo_cli.estimators import sign_flip_test as sign_flip_test
    from gtpo_cli.kernels import token_logprobs_and_entropy as token_logprobs_and_entropy
    from gtpo_cli.models.tiny import resolve_name as resolve_name
    from gtpo_cli.objective import LN_2 as LN_2
    from gtpo_cli.objective import ConflictSpans as ConflictSpans
    from gtpo_cli.objective import LossResult as LossResult
    from gtpo_cli.objective import TokenBatch as TokenBatch
    from gtpo_cli.objective import conflict_mask as conflict_mask
    from gtpo_cli.objective import conflict_spans as conflict_spans
    from gtpo_cli.objective import conflict_weights as conflict_weights
    from gtpo_cli.objective import group_advantages as group_advantages
    from gtpo_cli.objective import importance_weights as importance_weights
    from gtpo_cli.objective import keep_mask as keep_mask
    from gtpo_cli.objective import mean_entropy as mean_entropy
    from gtpo_cli.objective import policy_loss as policy_loss
    from gtpo_cli.recipe import Recipe as Recipe
    from gtpo_cli.recipe import load_recipe as load_recipe
    from gtpo_cli.recipe.schema import ObjectiveRecipe as ObjectiveRecipe
    from gtpo_cli.rewards import Scorer as Scorer
    from gtpo_cli.rewards import Tags as Tags
    from gtpo_cli.rewards import accuracy_reward as accuracy_reward
    from gtpo_cli.rewards import answers_equal as answers_equal
    from gtpo_cli.rewards import extract_answer as extract_answer
    from gtpo_cli.rewards import format_reward as format_reward
    from gtpo_cli.rewards import gold_is_usable as gold_is_usable
    from gtpo_cli.rewards import is_strict_format as is_strict_format
    from gtpo_cli.types import Completion as Completion
    from gtpo_cli.types import Group as Group
    from gtpo_cli.types import Problem as Problem
    from gtpo_cli.types import Verdict as Verdict

__version__ = "0.1.0"

_NAMES_OF = {
    "data": "LoadedProblems PromptEncoder arithmetic_problems load_problems wrap_solution",
    "errors": "GtpoError",
    "estimators": (
        "Interval McNemar bootstrap_mean bootstrap_means first_k_pass majority_at_k mcnemar paired_bootstrap_means "
        "pass_at_k sign_flip_test"
    ),
    "kernels": "token_logprobs_and_entropy",
    "models.tiny": "resolve_name",
    "objective": (
        "LN_2 ConflictSpans LossResult TokenBatch conflict_mask conflict_spans conflict_weights group_advantages "
        "importance_weights keep_mask mean_entropy policy_loss"
    ),
    "recipe": "Recipe load_recipe",
    "recipe.schema": "ObjectiveRecipe",
    "rewards": (
        "Scorer Tags accuracy_reward answers_equal extract_answer format_reward gold_is_usable is_strict_format"
    ),
    "types": "Completion Group Problem Verdict",
}
_HOME_OF = {name: f"gtpo_cli.{room}" for room, names in _NAMES_OF.items() for name in names.split()}

__all__ = ["__version__", *sorted(_HOME_OF)]


def __getattr__(name: str) -> object:
    """The name from where it lives (PEP 562), once; from then on it stands here."""
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
