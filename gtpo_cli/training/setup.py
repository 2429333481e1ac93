"""The setup of a run: prompts, policy, facts about them, and <H>_ini (docs/objective.md, section 5).

Both trainers and the entropy probe use it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from functools import partial, wraps
from pathlib import Path
from statistics import fmean
from typing import Any, get_type_hints

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from gtpo_cli.errors import CheckpointError, GtpoError, RecipeError, translated
from gtpo_cli.evaluation.probe import probe_entropy, right_at_first, undecided
from gtpo_cli.job import TrainingJob
from gtpo_cli.kernels.logprobs import factor_dtype
from gtpo_cli.objective import Method, Rewards, Tokens, conflict_spans, covariance_ranks, policy_loss
from gtpo_cli.objective.advantages import RULES as ADVANTAGES
from gtpo_cli.objective.loss import RULES as LOSSES
from gtpo_cli.objective.loss import Ratio
from gtpo_cli.objective.token_rules import RULES as TOKEN_WEIGHTS
from gtpo_cli.policy import Policy, load_policy
from gtpo_cli.policy.engines import about_compiling
from gtpo_cli.policy.loading import dtype_name, set_threads
from gtpo_cli.policy.sampler import Sampler
from gtpo_cli.recipe.schema import AdvantagesRecipe, LossRecipe, ObjectiveRecipe, TokenWeightsRecipe
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.runs.user_code import import_function, running
from gtpo_cli.terminal.signals import Waiting
from gtpo_cli.text import counted, describe, shown
from gtpo_cli.types import CodeName


@dataclass(frozen=True, slots=True)
class Setup:
    """A loaded policy, and facts for environment.json."""

    policy: Policy
    facts: dict[str, Any]


def set_up(
    job: TrainingJob,
    *,
    say: Callable[[str], None],
    samples: bool = True,
    with_reference: bool = True,
    trains: bool = True,
    start: Path | None = None,
) -> Setup:
    """Load the model of a job; `say` gets the lines that a user should read.

    `samples`: whether the run samples; otherwise no engine starts. `with_reference`, `trains`,
    `start`: as in `load_policy`. Raises ModelError.
    """
    recipe, engines, data = job.recipe, job.engines, job.data
    for note in data.notes:
        say(note)
    say(f"{counted(len(data.prompts), 'problem')}; loading {recipe.model.before_training} ({engines})")
    if samples and (compiling := about_compiling(recipe.rollout, engines)):
        say(compiling)
    sft = recipe.objective.name == "sft"
    with Waiting(say, f"loading {recipe.model.before_training}"):
        # SFT samples nothing that it trains on: its cross-entropy is that of the model's own distribution.
        at = 1.0 if sft else None
        policy = load_policy(
            job, temperature=at, with_engine=samples, with_reference=with_reference, trains=trains, start=start
        )
    set_threads(policy)
    if not sft and (dropout := policy.switch_off_dropout()):
        say(f"the model's own dropout (up to {dropout:g}) is off, since only SFT trains with it (docs/objective.md)")
    if policy.max_seq_length < recipe.model.max_seq_length:
        say(f"model.max_seq_length is lowered to the model's context, {policy.max_seq_length} tokens")
    facts = {
        "model": recipe.model.name,
        "model_commit": job.commit,
        "trainable_parameters": sum(parameter.numel() for parameter in policy.trainable_parameters()),
        "backend": engines.backend,
        "engine": engines.engine if samples else None,
        "device": str(policy.device),
        "products": dtype_name(factor_dtype(policy.dtype, policy.device)),
        "threads": torch.get_num_threads(),
        "total_steps": data.order.total_steps,
        "problems": len(data.prompts),
        "problems_dropped": data.dropped,
        "decided": dict(job.decided),
    }
    return Setup(policy, facts)


def find_initial_entropy(
    job: TrainingJob, run: RunFolder, policy: Policy, sampler: Sampler, say: Callable[[str], None]
) -> float:
    """Return <H>_ini: the recipe's value, else what this run measured before, else a new measurement."""
    if (recorded := run.initial_entropy()) is not None:
        return recorded
    recipe, prompts = job.recipe, job.data.prompts
    if (given := recipe.objective.initial_entropy) is not None:
        run.write_initial_entropy({"initial_entropy": given, "source": "recipe"})
        return given
    if run.metrics_file.exists() and run.metrics_file.stat().st_size:
        raise CheckpointError(
            f"{run.path}: initial_entropy.json is missing, and a trained policy cannot be probed again"
        )
    number = min(recipe.objective.probe.num_prompts, len(prompts))
    say(f"measuring the initial entropy <H>_ini on {counted(number, 'problem')}")
    with Waiting(say, "<H>_ini") as waiting:
        probe = probe_entropy(policy, sampler, prompts[:number], recipe.rollout, recipe.seed, progress=waiting.count)
        verdicts, words = right_at_first(recipe.rewards, probe)
    measured, *ends = probe.interval
    run.write_initial_entropy(
        {
            "initial_entropy": measured,
            "source": "probe",
            "interval_95": ends if probe.interval.is_bounded else None,
            "prompts": len(probe.by_prompt),
            "accuracy": fmean(verdict.correct for verdict in verdicts),
            "format": fmean(verdict.complete_format for verdict in verdicts),
        }
    )
    say(
        f"initial entropy <H>_ini = {measured:.4f} nats "
        f"({probe.interval_words}, {counted(len(probe.by_prompt), 'prompt')})"
    )
    if doubt := undecided(probe, recipe.objective.filter.enabled):
        say(doubt)
    say(words)
    return measured


def method_of(objective: ObjectiveRecipe, *, max_completion_tokens: int) -> Method:
    """Return the arguments of the objective's functions. `max_completion_tokens`: the divisor of `average: budget`.

    Raises RecipeError for a rule that is missing or does not take the keywords of its `config`.
    """
    conflict, clip, weights = objective.conflict, objective.clip, objective.token_weights
    return Method(
        advantages=find_rule("advantages", objective.advantages, ADVANTAGES),
        alignment="prefix" if conflict.alignment == "prefix" else "position",
        span="all" if conflict.alignment == "anywhere" else "ends",
        token_rule=None if weights.rule == "none" else find_rule("token_weights", weights, TOKEN_WEIGHTS),
        control=weights.control,
        filter=objective.filter.enabled,
        threshold=objective.filter.threshold,
        only_negative=objective.filter.only_negative,
        entropy_coef=objective.entropy_coef,
        kl_coef=objective.kl_coef,
        loss=find_rule("loss", objective.loss, LOSSES),
        clip=(clip.low, clip.high),
        average=max_completion_tokens if objective.average == "budget" else objective.average,
    )


def find_rule(
    key: str,
    recipe: AdvantagesRecipe | TokenWeightsRecipe | LossRecipe,
    built_in: Mapping[str, Callable[..., Any]],
) -> Callable[..., Any]:
    """Return the rule that a section of the objective names, with its `config` as keywords. Raises RecipeError.

    What a user's own function raises is a RecipeError too.
    """
    where, name = f"objective.{key}", recipe.rule
    rule = _own_rule(name, where) if isinstance(name, CodeName) else built_in[name]
    try:
        signature = inspect.signature(rule)
    except ValueError as error:  # a function that is not Python's
        raise RecipeError(f"{where}.rule: {name}: {error}; write a function of Python that calls it") from error
    try:
        signature.bind(None, **recipe.config)
    except TypeError as error:
        taken = ", ".join([*signature.parameters][1:]) or "none"
        raise RecipeError(f"{where}.config: {name}: {error}; its keywords: {taken}") from error
    if not isinstance(name, CodeName):
        types = get_type_hints(rule, include_extras=True)
        for keyword, value in recipe.config.items():
            try:
                TypeAdapter(types[keyword]).validate_python(value, strict=True)
            except ValidationError as error:
                said = error.errors()[0]["msg"]
                said = f"{said[0].lower()}{said[1:]}, got {shown(value)}"
                raise RecipeError(f"{where}.config: {name}: {keyword}: {said}") from error
    return partial(rule, **recipe.config)


def _own_rule(name: CodeName, where: str) -> Callable[..., Any]:
    def wrong(said: str) -> RecipeError:
        return RecipeError(f"{where}.rule: {name}: {said}")

    rule = import_function(name, wrong)

    @wraps(rule)  # also what it declares with `needs`
    def guarded(given: Rewards | Tokens | Ratio, **keywords: Any) -> Any:
        with running(wrong):
            return rule(_copied(given), **keywords)

    return guarded


def _copied(given: Any) -> Any:
    """Return Rewards, Tokens or a Ratio with its tensors copied: a rule that writes into them changes nothing else."""
    names = given._fields if isinstance(given, Ratio) else [each.name for each in fields(given)]
    values = (getattr(given, name) for name in names)
    return type(given)(*(value.clone() if isinstance(value, Tensor) else value for value in values))


def check_rules(objective: ObjectiveRecipe) -> None:
    """Run the rules on a made-up step. Raises RecipeError for one that is missing, fails, or gives something else.

    One group has equal rewards, and one completion is empty. A rule that sees a micro-batch, for a row's weights or for
    the loss, must give a completion the same whatever is beside it.
    """
    method = method_of(objective, max_completion_tokens=8)
    draw, shape = torch.Generator().manual_seed(0), (3, 4, 6)
    noise_BGT = torch.rand(shape, generator=draw)
    ids_BGT = torch.randint(9, shape, generator=draw)
    mask_BGT = torch.arange(6) < torch.tensor([[6, 5, 4, 1], [2, 6, 3, 5], [4, 0, 6, 2]])[..., None]
    right_BG = torch.tensor([[True, False, False, True], [False, True, False, False], [False] * 4])
    scores_RBG = 10.0 * torch.stack([right_BG.double(), torch.ones(3, 4, dtype=torch.float64)])
    weights_R = torch.ones(2, dtype=torch.float64)
    rewards = Rewards(scores_RBG.sum(dim=0), right_BG, scores_RBG, weights_R, ("accuracy", "format"))
    with _trying("advantages", objective.advantages):
        A_BG = method.advantages_of(rewards)
    with _trying("token_weights", objective.token_weights):
        spans = conflict_spans(ids_BGT, mask_BGT, A_BG)
        tokens = Tokens(ids_BGT, mask_BGT, A_BG, *spans, noise_BGT)
        if method.needs != "group":
            tokens = replace(tokens, logprobs=-3.0 * noise_BGT, entropy=2.0 * noise_BGT)
        if method.needs == "row":
            rows = [getattr(tokens, each.name).flatten(0, 1) for each in fields(Tokens)]
            alone = [method.weigh(Tokens(*(values[row : row + 1] for values in rows))) for row in range(len(rows[0]))]
            _check_alike("token_weights", method.weigh(Tokens(*rows)), torch.cat(alone))
        else:
            method.weigh(tokens)
    with _trying("loss", objective.loss):
        c_BGT = torch.where(right_BG, 1.0, -0.5)[..., None].expand(shape)
        at_first = [-noise_BGT, c_BGT, mask_BGT]
        later = [*at_first, -1.1 * noise_BGT]  # with ln pi_old
        if method.ranks:
            later.append(covariance_ranks(later[-1], c_BGT[..., 0], mask_BGT))
        gradients = []
        for given in (at_first, later):
            gradients.append(_gradient(method, *given))
            alone = [_gradient(method, *(values[group : group + 1] for values in given)) for group in range(3)]
            _check_alike("loss", 3 * gradients[-1], torch.cat(alone))  # a loss is a mean over its groups
        if not any(map(torch.any, gradients)):
            raise RecipeError("objective.loss.rule: gave a gradient of 0 for every token, so nothing would learn")


def _check_alike(key: str, together: Tensor, alone: Tensor) -> None:
    if not torch.allclose(together, alone, rtol=1e-4, atol=1e-6):
        raise RecipeError(
            f"objective.{key}.rule: gives a completion other values beside other completions than alone, and a step is "
            "computed in micro-batches; use only what belongs to the completion, and nothing random"
        )


def _gradient(
    method: Method, logprobs: Tensor, c: Tensor, mask: Tensor, old: Tensor | None = None, ranks: Tensor | None = None
) -> Tensor:
    """Return the gradient of the loss with respect to ln pi. `old`: ln pi_old; None before the first update."""
    logprobs = logprobs.clone().requires_grad_()
    loss, _ = policy_loss(logprobs, c, mask, old_logprobs_BGT=old, ranks_BGT=ranks, **method.loss_arguments())
    (gradient,) = torch.autograd.grad(loss, logprobs)
    if not bool(torch.isfinite(loss) and torch.isfinite(gradient).all()):
        raise RecipeError(
            "objective.loss.rule: gave a loss or a gradient that is infinite or not a number; in torch.where the "
            "gradients of both branches count"
        )
    return gradient


def _trying(key: str, recipe: AdvantagesRecipe | TokenWeightsRecipe | LossRecipe) -> AbstractContextManager[None]:
    """Turn what a rule raises, built in or not, into a RecipeError that names it."""
    where = f"objective.{key}: {recipe.rule}" + (f" with {recipe.config}" if recipe.config else "")
    return translated(Exception, lambda error: RecipeError(f"{where}: {describe(error)}"), passing=GtpoError)
