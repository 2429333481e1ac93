"""GTPO inside TRL's GRPOTrainer, for training on more than one GPU: DDP, FSDP, DeepSpeed, a vLLM server.

Only the advantages are gtpo's. Each token gets its own, `delta (A - gamma <H>) lambda` (see equation.py). They are
computed before TRL shuffles the rows, from whole groups, which may span several processes. With `loss_type="grpo"`
TRL's loss is then Eq. 11. `trl_run.py` trains a recipe with this trainer. Needs the extra `trl`.

Unlike gtpo's own loop, this needs entropies before the loss, and so one more forward pass without gradient for each
batch of completions.
"""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gtpo_cli.errors import ModelError, RecipeError, RewardError, install
from gtpo_cli.objective import Rewards, RowTerms, Tokens, group_terms, row_terms
from gtpo_cli.policy.policy import active_dropout
from gtpo_cli.recipe.schema import ObjectiveRecipe
from gtpo_cli.seeds import derive_seed
from gtpo_cli.tools.trl.config import loss_settings
from gtpo_cli.training.setup import method_of

try:
    from accelerate import PartialState
    from accelerate.utils import DistributedType
    from trl import GRPOConfig, GRPOTrainer
except ImportError as error:
    raise ModelError(f"TRL cannot be imported ({error}): {install('trl')}") from error

__all__ = ["GRPOConfig", "GTPOTrainer", "StepSeen", "check_settings"]

_SAMPLING = "entropies and ratios would belong to another distribution than the samples; use temperature, top_p, top_k"
_TOOLS = "conflict tokens are not defined for completions with tokens of tools"
# Settings of GRPOConfig under which its loss is Eq. 11 with gtpo's advantages, and the reason.
_REQUIRED: dict[str, tuple[Any, str]] = {
    "multi_objective_aggregation": ("sum_then_normalize", "the reward is the weighted sum"),
    "mask_truncated_completions": (
        False,
        "it hides them from the conflict mask: GTPOTrainer(mask_truncated=True)",
    ),
    "top_entropy_quantile": (1.0, "Eq. 11 trains on all tokens"),
    "entropy_coef": (0.0, "gamma is objective.entropy_coef"),
    "use_adaptive_entropy": (False, "gamma is objective.entropy_coef"),
    "delta": (None, "Eq. 11 clips the ratio by epsilon alone"),
    "off_policy_mask_threshold": (None, "delta_i of Eq. 10 is the only filter; it would judge tokens by their weights"),
    "sync_ref_model": (False, "the reference of Eq. 1 is the untrained policy"),
    "min_p": (None, _SAMPLING),
    "repetition_penalty": (1.0, _SAMPLING),
    "generation_kwargs": (None, _SAMPLING),
    "vllm_structured_outputs_regex": (None, _SAMPLING),
    "neftune_noise_alpha": (None, "entropies are measured without noise"),
    "label_smoothing_factor": (0.0, "the loss has no labels"),
    "data_seed": (None, "GRPOTrainer shuffles by seed"),
    "train_sampling_strategy": ("random", "GRPOTrainer distributes the prompts; use shuffle_dataset"),
    "max_tool_calling_iterations": (None, _TOOLS),
}
# Settings of features that the above switch off. A user's value would be ignored.
_SWITCHED_OFF = {
    "sapo_temperature_neg": "loss_type sapo", "sapo_temperature_pos": "loss_type sapo",
    "vespo_k_pos": "loss_type vespo", "vespo_lambda_pos": "loss_type vespo", "vespo_k_neg": "loss_type vespo",
    "vespo_lambda_neg": "loss_type vespo", "entropy_coef_min": "use_adaptive_entropy",
    "entropy_coef_max": "use_adaptive_entropy", "entropy_coef_delta": "use_adaptive_entropy",
    "entropy_target": "use_adaptive_entropy", "ref_model_mixup_alpha": "sync_ref_model",
    "ref_model_sync_steps": "sync_ref_model",
}  # fmt: skip
# Of what `loss_settings` says, keys of the objective that are GRPOConfig's to say where the objective does not.
_SAID_TWICE = {"num_iterations": "num_iterations", "epsilon": "clip", "epsilon_high": "clip", "beta": "kl_coef"}


@dataclass(frozen=True, slots=True)
class StepSeen:
    """A batch of completions of all processes before rows are shuffled.

    B prompts, G completions of one prompt, N = B G rows, T tokens.
    """

    ids_NT: Tensor
    mask_NT: Tensor  # bool
    rewards_BG: Tensor
    logprobs_NT: Tensor  # nats; like the entropy, of the policy before the update
    entropy_NT: Tensor
    weights_NT: Tensor  # lambda
    of_rows: RowTerms


class GTPOTrainer(GRPOTrainer):  # type: ignore[misc]  # TRL ships no types that mypy follows
    """TRL's GRPOTrainer with GTPO's objective.

    Args:
        objective: the recipe's section. Iterations, clipping and KL that it does not set come from GRPOConfig
            (`num_iterations`, `epsilon`, `epsilon_high`, `beta`). GRPO is `ObjectiveRecipe(token_weights={"rule":
            "none"}, filter={"enabled": "never"}, entropy_coef=0)`; its `name` is not read.
        initial_entropy: <H>_ini in nats (`gtpo probe-entropy`); needed if `objective.filter.enabled` is auto.
        mask_truncated: leave completions without an end-of-sequence token out of the loss.
        All others: GRPOTrainer's. `args` needs the settings of `trl_config.loss_settings(objective)`: for GTPO
            `loss_type="grpo"`, `scale_rewards="group"`, and with a KL term `use_bias_correction_kl=False`.
    Raises:
        RecipeError: all settings under which the loss would not be Eq. 11; a model with dropout.
    """

    def __init__(
        self,
        model: Any,
        reward_funcs: Any,
        args: GRPOConfig,
        *rest: Any,
        objective: ObjectiveRecipe | None = None,
        initial_entropy: float | None = None,
        mask_truncated: bool = False,
        **keywords: Any,
    ) -> None:
        self.objective = objective or ObjectiveRecipe()
        self.initial_entropy = 0.0 if initial_entropy is None else initial_entropy  # read if the filter is auto
        self.mask_truncated = mask_truncated
        self.seen: StepSeen | None = None  # the newest batch of completions
        self._rewards_N: Tensor | None = None  # rewards of that batch, from all processes
        self.generated_at = 0  # updates made before that batch was sampled
        check_settings(args, self.objective, initial_entropy)
        self.method = method_of(self.objective, max_completion_tokens=args.max_completion_length)
        _shard_on_cpus_too()
        super().__init__(model, reward_funcs, _with_revision(args, model), *rest, **keywords)
        check_no_dropout(self.model)
        # before TRL 1.15 only the tokenizer's own token ends a completion
        self._ends: list[int] = getattr(self, "eos_token_ids", None) or [self._tokenizer.eos_token_id]

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Tensor:
        per_function: Tensor = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        if bool(per_function.isnan().all(dim=1).any()):
            raise RewardError("every reward function returned None for a completion; one must return a number")
        self._rewards_N = (per_function.double() * self.reward_weights.to(per_function.device)).nansum(dim=1)
        return per_function

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if "tool_mask" in output:
            raise RecipeError(f"GTPOTrainer: {_TOOLS}")
        self.seen, self.generated_at = self._gather_step(output), self.state.global_step
        rows, T = output["completion_ids"].shape
        first = self.accelerator.process_index * rows
        output["advantages"] = self.seen.of_rows.coefficients_NT[first : first + rows, :T]
        return output

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        """Compute TRL's loss. Until the first update after sampling the policy is pi_old, so r is exactly 1.

        TRL measures ln pi_old in other micro-batches, and in 16 bits these differ by more than GSPO's clip range.
        """
        if self.state.global_step == self.generated_at:
            inputs = inputs | {"old_per_token_logps": None}
        return super()._compute_loss(model, inputs)

    def _gather_step(self, output: dict[str, Any]) -> StepSeen:
        """Gather the completions of all processes and compute the objective's factors."""
        ids, mask = output["completion_ids"], output["completion_mask"]
        logprobs, entropy = self._measure(output)
        ids, logprobs, entropy = (self._gather(rows) for rows in (ids, logprobs, entropy))
        mask = self._gather(mask).bool()
        G = self.num_generations if self.model.training else self.num_generations_eval
        assert self._rewards_N is not None
        rewards_BG = self._rewards_N.view(-1, G)
        ends = torch.isin(ids, torch.tensor(self._ends, device=ids.device)) & mask
        truncated_BG = ~ends.any(dim=1).view(-1, G)
        method, seed = self.method, derive_seed(self.args.seed, "weigh", self.state.global_step)
        noise = torch.rand(ids.shape, generator=torch.Generator().manual_seed(seed)).to(ids.device)
        ids_BGT, mask_BGT, noise_BGT = (rows.view(-1, G, ids.shape[1]) for rows in (ids, mask, noise))
        of_groups = group_terms(
            method,
            completion_ids_BGT=ids_BGT,
            completion_mask_BGT=mask_BGT,
            rewards=Rewards.of_total(rewards_BG),
            noise_BGT=noise_BGT,
            left_out_BG=truncated_BG if self.mask_truncated else None,
        )
        weights_BGT = of_groups.weights_BGT
        if method.needs != "group":  # here all rows are measured at once
            measured = (values.view_as(mask_BGT) for values in (logprobs, entropy))
            A_BG, spans = of_groups.advantages_BG, of_groups.spans
            weights_BGT = method.weigh(Tokens(ids_BGT, mask_BGT, A_BG, *spans, noise_BGT, *measured))
        of_rows = row_terms(
            method,
            advantages_N=of_groups.advantages_BG.flatten(),
            weights_NT=weights_BGT.flatten(0, 1),
            included_N=of_groups.included_BG.flatten(),
            completion_mask_NT=mask,
            entropy_NT=entropy,
            initial_entropy=self.initial_entropy,
        )
        return StepSeen(ids, mask, rewards_BG, logprobs.float(), entropy.float(), weights_BGT.flatten(0, 1), of_rows)

    @torch.no_grad()
    def _measure(self, output: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Measure (log-probability, entropy) of this process's completion tokens, (rows, T), nats, without dropout."""
        was_training = self.model.training
        self.model.eval()
        measured = self._get_per_token_logps_and_entropies(
            self.model,
            torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1),
            torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1),
            output["completion_ids"].shape[1],
            batch_size=self.args.per_device_train_batch_size,
            compute_entropy=True,
        )
        self.model.train(was_training)
        return measured[0], measured[1]

    def _gather(self, rows_NT: Tensor) -> Tensor:
        """Gather the rows of all processes in order, padded to the widest."""
        wide: Tensor = self.accelerator.gather(self.accelerator.pad_across_processes(rows_NT.contiguous(), dim=1))
        return wide


def _shard_on_cpus_too() -> None:
    """Use FSDP if accelerate launch was asked for it. On CPUs accelerate silently uses DDP."""
    state = PartialState()
    fsdp = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    if fsdp and state.distributed_type == DistributedType.MULTI_CPU:
        state.distributed_type = DistributedType.MULTI_GPU  # accelerate turns this into FSDP; the device stays the same


def check_settings(args: GRPOConfig, objective: ObjectiveRecipe, initial_entropy: float | None) -> None:
    """Raise RecipeError, naming every setting of TRL or of the objective under which the loss would not be Eq. 11."""
    defaults = {name: field.default for name, field in GRPOConfig.__dataclass_fields__.items()}
    required = _REQUIRED | {
        name: (defaults[name], f"it belongs to {of}, which is off")
        for name, of in _SWITCHED_OFF.items()
        if name in defaults
    }
    problems = [
        f"{name}: must be {wanted!r} ({why}), is {getattr(args, name)!r}"
        for name, (wanted, why) in required.items()
        if hasattr(args, name) and getattr(args, name) != wanted
    ]
    for name, wanted in loss_settings(objective).items():
        found = args.epsilon if name == "epsilon_high" and args.epsilon_high is None else getattr(args, name)
        settled = _SAID_TWICE.get(name) in {None, *objective.model_fields_set}
        if name == "use_bias_correction_kl":
            settled = args.beta != 0.0
        if settled and found != wanted:
            problems.append(f"{name}: must be {wanted!r} as the objective has it, is {found!r}")
    if objective.filter.enabled == "auto" and initial_entropy is None:
        problems.append("initial_entropy: the filter needs it; measure it with gtpo probe-entropy")
    if problems:
        raise RecipeError([f"GTPOTrainer: {problem}" for problem in problems])


def check_no_dropout(model: Any) -> None:
    """Raise RecipeError for a model with dropout, whose ratio would compare two random sub-networks."""
    if found := active_dropout(model):
        names = ", ".join(sorted({f"{type(module).__name__}.{name} = {value:g}" for module, name, value in found}))
        raise RecipeError(
            f"GTPOTrainer: the model has dropout ({names}), with which the ratio and <H> would be wrong; use "
            "GRPOConfig(disable_dropout=True), lora_dropout=0, and set any other dropout to 0 in the model's "
            "configuration"
        )


def _with_revision(args: GRPOConfig, model: Any) -> GRPOConfig:
    """Make TRL load the reference of a KL term from the model's commit. By default it loads the newest."""
    commit = None if isinstance(model, str) else getattr(model.config, "_commit_hash", None)
    if args.beta == 0.0 or commit is None:
        return args
    changed = copy.copy(args)
    changed.model_init_kwargs = {"revision": commit} | (args.model_init_kwargs or {})
    return changed
