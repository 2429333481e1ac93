"""GTPO in verl's Ray engine: a trainer registered as `gtpo`, which differs from verl's own in its advantage step.

verl imports this module where VERL_USE_EXTERNAL_MODULES names it, in every process it starts, and looks the trainer up
under `trainer.v1.trainer_mode=gtpo`. `scripts/verl_command.py` prints the whole command of a recipe (docs/verl.md).
An estimator of `register_adv_est` sees neither token ids nor entropies; the trainer's step can read both from verl's
TransferQueue, where `_compute_old_log_prob` has put the entropies before.

Everything else is verl's synchronous trainer: its GRPO step still runs first, for what it does beside advantages
(importance weights of the sampler, KL metrics), and what it writes into `advantages` is overwritten.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gtpo_cli.errors import ModelError, RecipeError
from gtpo_cli.integrations.verl_advantages import set_token_advantages
from gtpo_cli.recipe import Recipe, load_recipe

try:
    import transfer_queue as tq
    from omegaconf import OmegaConf, open_dict
    from tensordict import TensorDict
    from verl import DataProto
    from verl.trainer.ppo.v1 import PPOTrainerSync, register_trainer
    from verl.workers.utils.padding import response_to_nested
except ImportError as error:
    raise ModelError(
        f"gtpo_cli.integrations.verl: verl cannot be imported ({error}); pip install 'gtpo_cli[verl]'"
    ) from error

TRAINER = "gtpo"
_FIELDS = ("uid", "responses", "response_mask", "rm_scores", "entropy")

# What the advantages mean to verl depends on these. Key of verl's configuration -> the value that makes it Eq. 11.
REQUIRED: dict[str, Any] = {
    "algorithm.adv_estimator": "grpo",
    "algorithm.use_kl_in_reward": False,
    "algorithm.rollout_correction.bypass_mode": False,
    "actor_rollout_ref.actor.loss_agg_mode": "seq-mean-token-mean",
    "actor_rollout_ref.actor.policy_loss.loss_mode": "vanilla",
    "actor_rollout_ref.actor.entropy_coeff": 0,
    "actor_rollout_ref.rollout.multi_turn.enable": False,
}


@register_trainer(TRAINER)
class GtpoTrainer(PPOTrainerSync):  # type: ignore[misc]  # verl ships no types that mypy can follow here
    """verl's synchronous trainer with the advantages of Eq. 11. The recipe is the file that `gtpo.recipe` names.

    Raises RecipeError, with all problems at once, where verl's configuration would make another objective of them.
    """

    def __init__(self, config: Any) -> None:
        self.recipe = recipe_of(config)
        check_config(config)
        with open_dict(config):  # found under our name; verl asks for its own names where sync and async differ
            config.trainer.v1.trainer_mode = "sync"
        super().__init__(config)

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """verl's own step, then advantages and returns of every token from `set_token_advantages`."""
        if several := [key for key in batch.keys if not key.endswith("_0")]:  # {uid}_{session}_{number of the output}
            raise RecipeError(
                f"{len(several)} rows are further outputs of one completion (an agent loop with several); use verl's "
                "single_turn_agent"
            )
        # Read before verl's step: its rejection sampling may take tokens out of response_mask.
        fields = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(_FIELDS))
        batch = super()._compute_advantage(batch, metrics)
        nested_mask = fields["response_mask"]
        uid = np.array(fields.pop("uid").tolist(), dtype=object)
        data = DataProto(batch=fields.to_padded_tensor(), non_tensor_batch={"uid": uid})
        data.batch["token_level_rewards"] = data.batch["rm_scores"]
        objective = self.recipe.objective
        metrics.update(set_token_advantages(data, objective, initial_entropy=objective.initial_entropy or 0.0))
        nested = {name: response_to_nested(data.batch[name], nested_mask) for name in ("advantages", "returns")}
        written = TensorDict(nested, batch_size=len(batch))
        return tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=written)


def recipe_of(config: Any) -> Recipe:
    """The recipe that verl's configuration names in `gtpo.recipe`. Raises RecipeError."""
    path = OmegaConf.select(config, "gtpo.recipe")
    if path is None:
        raise RecipeError("gtpo.recipe is not set; start verl with the command that scripts/verl_command.py prints")
    recipe = load_recipe(path)
    if recipe.objective.filter.enabled == "auto" and recipe.objective.initial_entropy is None:
        raise RecipeError(f"{path}: objective.initial_entropy is null, and verl's engine does not probe; set it")
    return recipe


def check_config(config: Any) -> None:
    """Raise RecipeError, naming all, where verl's configuration differs from REQUIRED."""
    found = {key: OmegaConf.select(config, key) for key in REQUIRED}
    problems = [
        f"{key}={found[key]}: GTPO's advantages are Eq. 11 only with {key}={wanted}"
        for key, wanted in REQUIRED.items()
        if found[key] != wanted
    ]
    if problems:
        raise RecipeError(problems)
