"""GTPO in verl's Ray engine: a trainer registered as `gtpo`, which differs from verl's own in its advantage step.

verl imports this module where VERL_USE_EXTERNAL_MODULES names it, in every process it starts, and looks the trainer up
under `trainer.v1.trainer_mode=gtpo`; examples/verl has a whole configuration (docs/verl.md). An estimator of verl's
`register_adv_est` sees neither token ids nor entropies; the trainer's step can read both from verl's TransferQueue,
where `_compute_old_log_prob` has put the entropies before.

Everything else is verl's synchronous trainer: its GRPO step still runs first, for what it does beside advantages
(importance weights of the sampler, KL metrics), and what it writes into `advantages` is overwritten.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gtpo_cli.data import PromptEncoder, training_prompts
from gtpo_cli.errors import ModelError, RecipeError, install
from gtpo_cli.integrations.verl_advantages import set_token_advantages
from gtpo_cli.recipe import Recipe, load_recipe

try:
    import datasets
    import transfer_queue as tq
    from omegaconf import OmegaConf, open_dict
    from tensordict import TensorDict
    from verl import DataProto
    from verl.trainer.ppo.v1 import PPOTrainerSync, register_trainer
    from verl.utils.dataset.rl_dataset import RLHFDataset
    from verl.workers.utils.padding import response_to_nested
except ImportError as error:
    raise ModelError(f"gtpo_cli.integrations.verl: verl cannot be imported ({error}); {install('verl')}") from error

_FIELDS = ("uid", "responses", "response_mask", "rm_scores", "entropy")


@register_trainer("gtpo")
class GtpoTrainer(PPOTrainerSync):  # type: ignore[misc]  # verl ships no types that mypy can follow here
    """verl's synchronous trainer with the advantages of Eq. 11. The recipe is the file that `gtpo.recipe` names.

    Raises RecipeError, with all problems at once, where verl's configuration would make another objective of them.
    """

    def __init__(self, config: Any) -> None:
        self.recipe = recipe_of(config)
        check_config(config, self.recipe)
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
    """The recipe that verl's configuration names in `gtpo.recipe`. Raises RecipeError where verl cannot do it."""
    path = OmegaConf.select(config, "gtpo.recipe")
    if path is None:
        raise RecipeError("gtpo.recipe is not set: name a recipe's file there, as examples/verl/trainer.yaml does")
    recipe = load_recipe(path)
    objective, problems = recipe.objective, []
    if objective.name not in ("gtpo", "grpo"):
        problems.append(f"objective.name: {objective.name}: under verl there are gtpo and grpo; use gtpo train")
    others = (objective.ratio, objective.clip.of, objective.average, objective.resample)
    if others != ("token", "objective", "completion", 0):
        problems.append("objective: ratio, clip.of, average and resample are gtpo's under verl; use gtpo train")
    if objective.compat != "paper":
        problems.append(f"objective.compat: {objective.compat}: there in gtpo's own loop only; use paper")
    if objective.filter.enabled == "auto" and objective.initial_entropy is None:
        problems.append("objective.initial_entropy: null: verl does not measure it; set what gtpo probe-entropy says")
    if recipe.rollout.mask_truncated:
        problems.append("rollout.mask_truncated: true: verl does not say which were truncated; use false")
    if problems:
        raise RecipeError([f"{path}: {problem}" for problem in problems])
    return recipe


def required(recipe: Recipe) -> dict[str, Any]:
    """The settings under which verl's loss is Eq. 11 with this recipe's numbers: key of verl -> value."""
    objective, actor, rollout = recipe.objective, "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    corrected, with_kl = recipe.rollout.importance_correction == "truncated", objective.kl_coef > 0
    settings = {
        "algorithm.adv_estimator": "grpo",
        "algorithm.use_kl_in_reward": False,
        "algorithm.rollout_correction.bypass_mode": False,
        "algorithm.rollout_correction.rollout_is": "token" if corrected else None,
        "algorithm.rollout_correction.rollout_is_batch_normalize": False,
        "algorithm.rollout_correction.rollout_rs": None,  # leaves tokens out
        "distillation.enabled": False,
        f"{actor}.loss_agg_mode": "seq-mean-token-mean",
        f"{actor}.policy_loss.loss_mode": "vanilla",
        f"{actor}.clip_ratio_low": objective.clip.low,
        f"{actor}.clip_ratio_high": objective.clip.high,
        f"{actor}.clip_ratio_c": 1e9,  # Eq. 2 has no second clip; verl's ratio is at most e^20
        f"{actor}.ppo_epochs": objective.num_iterations,
        f"{actor}.entropy_coeff": 0,
        f"{actor}.use_kl_loss": with_kl,
        f"{rollout}.n": recipe.rollout.group_size,
        f"{rollout}.temperature": recipe.rollout.temperature,
        f"{rollout}.multi_turn.enable": False,
    }
    if corrected:  # verl's sampler reports probabilities after top-p and top-k
        settings |= {"algorithm.rollout_correction.rollout_is_threshold": 2.0}
        settings |= {f"{rollout}.top_p": 1.0, f"{rollout}.top_k": -1}
    if with_kl:
        settings |= {f"{actor}.kl_loss_coef": objective.kl_coef, f"{actor}.kl_loss_type": "low_var_kl"}
    return settings


def check_config(config: Any, recipe: Recipe) -> None:
    """Raise RecipeError, naming all, where verl's configuration would make its loss another than Eq. 11."""
    # one mini-batch is the step, so that its denominators are the step's
    one_batch = {"actor_rollout_ref.actor.ppo_mini_batch_size": OmegaConf.select(config, "data.train_batch_size")}
    wanted = required(recipe) | one_batch
    found = {key: OmegaConf.select(config, key) for key in wanted}
    problems = [
        f"{key}={found[key]}: verl's loss is Eq. 11 with this recipe only with {key}={value}"
        for key, value in wanted.items()
        if found[key] != value
    ]
    if problems:
        raise RecipeError(problems)


class Problems(RLHFDataset):  # type: ignore[misc]
    """The problems of the recipe that `data.train_files` names, for `data.custom_cls`; without a Parquet file.

    Prompts longer than `data.max_prompt_length`, or than the recipe's `data.max_prompt_tokens`, are left out. Raises
    DataError; ModelError where the tokenizer has no chat template, or where verl would give the model other tokens.
    """

    def _download(self, use_origin_parquet: bool = False) -> None:
        """Nothing: a recipe is no Parquet file."""

    def _read_files_and_tokenize(self) -> None:
        recipe = load_recipe(self.data_files[0])
        encoder = PromptEncoder(self.tokenizer, recipe.data.system_prompt)
        if encoder.uses_plain_format:
            raise ModelError(
                "actor_rollout_ref.model.path: the tokenizer has no chat template, and verl prompts through one; use "
                "an instruct model, or give the tokenizer a chat_template"
            )
        usable = training_prompts(recipe, self.tokenizer, self.max_prompt_length + 1)
        for note in usable.notes:
            print(note)  # noqa: T201  # as verl tells what it reads
        rows = []
        for index, (problem, ids) in enumerate(usable.prompts):
            messages = encoder.messages(problem.question, problem.turns)
            self._check_same_tokens(messages, ids, problem.source or problem.id)
            about = {"id": problem.id, "question": problem.question, "source": problem.source}
            rows.append(
                {
                    "data_source": recipe.data.benchmark,
                    "prompt": messages,
                    "reward_model": {"style": "rule", "ground_truth": problem.gold},
                    "extra_info": about | {"index": index, "solution": problem.solution or ""},
                }
            )
        self.dataframe = datasets.Dataset.from_list(rows[: self.max_samples] if self.max_samples > 0 else rows)

    def _check_same_tokens(self, messages: list[dict[str, str]], ids: tuple[int, ...], where: str) -> None:
        rendered = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False, **self.apply_chat_template_kwargs
        )
        if tuple(rendered) != ids:
            raise ModelError(
                f"{where}: verl would give the model {len(rendered)} prompt tokens where gtpo gives {len(ids)}, or "
                "others: leave data.apply_chat_template_kwargs as in examples/verl/trainer.yaml, or use a tokenizer "
                "that adds no special tokens to what its chat template has written"
            )
