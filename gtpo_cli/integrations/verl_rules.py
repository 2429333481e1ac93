"""What becomes of every key of a recipe under verl 0.9: the table behind the command, the refusals and docs/verl.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

from gtpo_cli.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Plan:
    """What a command is made from. `folder` holds the files that verl reads; paths are absolute."""

    recipe: Recipe
    model_path: str
    folder: Path
    context: int  # most tokens of prompt and completion together: model.max_seq_length, or the model's own
    gpus: int

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def data_file(self) -> Path:
        return self.folder / "train.parquet"

    @property
    def recipe_file(self) -> Path:
        return self.folder / "gtpo.yaml"  # not recipe.yaml: this is no run of gtpo's own loop

    @property
    def max_prompt_tokens(self) -> int:
        """verl reserves the whole completion, so a prompt has what is left of the context."""
        return min(self.recipe.data.max_prompt_tokens, self.context - self.recipe.rollout.max_completion_tokens)


OMIT = object()  # a value that leaves its key as verl has it
Value = Callable[[Plan], Any]


@dataclass(frozen=True, slots=True)
class Rule:
    """One key of a recipe, or a section with all its keys."""

    key: str
    sets: Mapping[str, Value] = field(default_factory=dict)  # verl's keys; + where verl's configuration has none
    refuses: Callable[[Recipe], str | None] | None = None  # what is wrong with its value, and the remedy
    note: str = ""  # for the table: what else there is to know


def value(key: str) -> Value:
    """The recipe's value itself."""
    return lambda plan: get(plan.recipe, key)


def get(recipe: Recipe, key: str) -> Any:
    return reduce(getattr, key.split("."), recipe)


def only(key: str, allowed: Any, remedy: str) -> Callable[[Recipe], str | None]:
    """Refuse every other value."""
    return lambda recipe: None if get(recipe, key) == allowed else f"{key}: {get(recipe, key)}: {remedy}"


ACTOR, MODEL, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.model", "actor_rollout_ref.rollout"
REF, OPTIM = "actor_rollout_ref.ref", "actor_rollout_ref.actor.optim"
PLUGIN = "read by the plug-in from `gtpo.recipe`"
PARQUET = "decides what is in the Parquet file"


def _dtype(plan: Plan) -> str:
    return "bfloat16" if plan.recipe.model.dtype == "auto" else plan.recipe.model.dtype


def _lora(name: str, without: Any) -> Value:
    return lambda plan: without if plan.recipe.model.lora is None else getattr(plan.recipe.model.lora, name)


def _alpha(plan: Plan) -> Any:
    return OMIT if plan.recipe.model.lora is None else int(plan.recipe.model.lora.alpha)


def _odd_alpha(recipe: Recipe) -> str | None:
    lora = recipe.model.lora
    if lora is None or lora.alpha == int(lora.alpha):
        return None
    return f"model.lora.alpha: {lora.alpha}: verl takes whole numbers; round it"


def _dropout(recipe: Recipe) -> str | None:
    if recipe.model.lora is None or recipe.model.lora.dropout == 0:
        return None
    return f"model.lora.dropout: {recipe.model.lora.dropout}: verl's adapters have none; --set model.lora.dropout=0"


def _schedule(recipe: Recipe) -> str | None:
    if recipe.optimizer.schedule != "linear":
        return None
    return "optimizer.schedule: linear: verl has cosine and constant; --set optimizer.schedule=cosine"


def _engine(recipe: Recipe) -> str | None:
    if recipe.rollout.engine != "transformers":
        return None
    return "rollout.engine: transformers: verl samples with vLLM; --set rollout.engine=auto"


def _guard(recipe: Recipe) -> str | None:
    action = recipe.training.guard.action
    if action == "warn":
        return None
    return f"training.guard.action: {action}: verl has no guard; watch its metrics, --set training.guard.action=warn"


def _initial_entropy(recipe: Recipe) -> str | None:
    objective = recipe.objective
    if objective.filter.enabled != "auto" or objective.initial_entropy is not None:
        return None
    return (
        "objective.initial_entropy: null: verl's engine does not probe; measure it with gtpo probe-entropy, "
        "and give it: --set objective.initial_entropy=<nats>"
    )


def _correction(recipe: Recipe) -> str | None:
    rollout = recipe.rollout
    if rollout.importance_correction == "none" or (rollout.top_p == 1.0 and rollout.top_k == 0):
        return None
    return (
        "rollout.importance_correction: truncated: verl's sampler reports probabilities after top-p and top-k; "
        "--set rollout.top_p=1 --set rollout.top_k=0, or --set rollout.importance_correction=none"
    )


def _loggers(plan: Plan) -> list[str]:
    tracking = plan.recipe.tracking
    chosen = {"wandb": tracking.wandb.mode != "off", "tensorboard": tracking.tensorboard}
    return ["console", *(name for name, on in chosen.items() if on)]


def _fixed_micro_batch(plan: Plan) -> Any:
    size = plan.recipe.training.micro_batch_size
    return OMIT if size == "auto" else size


def _corrected(chosen: Any) -> Value:
    return lambda plan: chosen if plan.recipe.rollout.importance_correction == "truncated" else OMIT


def _with_kl(chosen: Value) -> Value:
    return lambda plan: chosen(plan) if plan.recipe.objective.kl_coef > 0 else OMIT


RULES: tuple[Rule, ...] = (
    Rule("run_name", {"trainer.experiment_name": lambda plan: plan.name}, note="null: the recipe's name and `-verl`"),
    Rule("output_dir", {"trainer.default_local_dir": lambda plan: str(plan.folder / "checkpoints")}),
    Rule(
        "seed",
        {
            "data.seed": value("seed"),
            f"{ROLLOUT}.seed": value("seed"),
            f"{ACTOR}.data_loader_seed": value("seed"),
            f"{ACTOR}.fsdp_config.seed": value("seed"),
        },
    ),
    Rule("model.name", {f"{MODEL}.path": lambda plan: plan.model_path}),
    Rule("model.revision", refuses=only(
        "model.revision", None, "download that revision, and give its folder as model.name"
    ), note="refused but null"),
    Rule("model.backend", refuses=lambda recipe: (
        "model.backend: unsloth: verl holds the policy itself (FSDP); --set model.backend=auto"
        if recipe.model.backend == "unsloth" else None
    ), note="`unsloth` is refused"),
    Rule("model.load_in_4bit", refuses=only(
        "model.load_in_4bit", False, "verl's base weights are not quantised; --set model.load_in_4bit=false"
    ), note="true is refused"),
    Rule(
        "model.dtype",
        {f"{ACTOR}.fsdp_config.dtype": _dtype, f"{REF}.fsdp_config.dtype": _dtype, f"{ROLLOUT}.dtype": _dtype},
        note="auto: bfloat16",
    ),
    Rule("model.max_seq_length", {
        f"{ROLLOUT}.max_model_len": lambda plan: plan.max_prompt_tokens + plan.recipe.rollout.max_completion_tokens
    }, note="verl cuts no completion short for a long prompt: a prompt has what the longest completion leaves"),
    Rule("model.gradient_checkpointing", {
        f"{MODEL}.enable_gradient_checkpointing": value("model.gradient_checkpointing")
    }),
    Rule("model.trust_remote_code", {
        f"{MODEL}.trust_remote_code": value("model.trust_remote_code"),
        "data.trust_remote_code": value("model.trust_remote_code"),
    }, note="verl loads a tokenizer with the code that comes with it whatever this says: only models that you trust"),
    Rule("model.lora", note="null: `lora_rank=0`"),
    Rule("model.lora.rank", {
        f"{MODEL}.lora_rank": _lora("rank", 0),
        f"{ROLLOUT}.load_format": lambda plan: OMIT if plan.recipe.model.lora is None else "safetensors",
    }, note="vLLM reads the base weights from the files, because verl sends it the adapter only"),
    Rule("model.lora.alpha", {f"{MODEL}.lora_alpha": _alpha}, _odd_alpha, note="fractions are refused"),
    Rule("model.lora.dropout", refuses=_dropout, note="refused but 0"),
    Rule("model.lora.target_modules", {f"{MODEL}.target_modules": _lora("target_modules", OMIT)}),
    Rule("data", note=PARQUET),
    Rule("data.shuffle", {"data.shuffle": value("data.shuffle")},
         note="verl leaves the last, smaller step of an epoch out"),
    Rule("data.max_prompt_tokens", {"data.max_prompt_length": lambda plan: plan.max_prompt_tokens}),
    Rule("rollout.engine", {f"{ROLLOUT}.name": lambda plan: "vllm"}, _engine, note="`transformers` is refused"),
    Rule("rollout.group_size", {f"{ROLLOUT}.n": value("rollout.group_size")}),
    Rule("rollout.prompts_per_step", {
        "data.train_batch_size": value("rollout.prompts_per_step"),
        f"{ACTOR}.ppo_mini_batch_size": value("rollout.prompts_per_step"),
    }, note="one mini-batch is the step, so that its denominators are the step's"),
    Rule("rollout.temperature", {f"{ROLLOUT}.temperature": value("rollout.temperature")}),
    Rule("rollout.top_p", {f"{ROLLOUT}.top_p": value("rollout.top_p")}),
    Rule("rollout.top_k", {f"{ROLLOUT}.top_k": lambda plan: plan.recipe.rollout.top_k or -1}),
    Rule("rollout.max_completion_tokens", {"data.max_response_length": value("rollout.max_completion_tokens")}),
    Rule("rollout.mask_truncated", refuses=only(
        "rollout.mask_truncated", False, "verl does not say which were cut; --set rollout.mask_truncated=false"
    ), note="true is refused"),
    Rule("rollout.gpu_memory_utilization", {
        f"{ROLLOUT}.gpu_memory_utilization": value("rollout.gpu_memory_utilization")
    }),
    Rule("rollout.importance_correction", {
        "algorithm.rollout_correction.rollout_is": _corrected("token"),
        "algorithm.rollout_correction.rollout_is_threshold": _corrected(2.0),
    }, _correction, note="`truncated` is refused beside top-p or top-k"),
    Rule("rewards", {
        "reward.custom_reward_function.path": lambda plan: "pkg://gtpo_cli.integrations.verl_reward",
        "reward.custom_reward_function.name": lambda plan: "compute_score",
        "+reward.custom_reward_function.reward_kwargs.recipe": lambda plan: str(plan.recipe_file),
    }, note="gtpo's own scorer; a plug-in sees the text of a completion and nothing else of it"),
    Rule("objective", note=PLUGIN),
    Rule("objective.name", refuses=lambda recipe: (
        "objective.name: sft: verl's SFT is another program; use gtpo train, or objective.name=gtpo"
        if recipe.objective.name == "sft" else None
    ), note="`sft` is refused"),
    Rule("objective.compat", refuses=only(
        "objective.compat", "paper", "there in gtpo's own loop only; --set objective.compat=paper"
    ), note="`released_code` is refused"),
    Rule("objective.kl_coef", {
        f"{ACTOR}.use_kl_loss": lambda plan: plan.recipe.objective.kl_coef > 0,
        f"{ACTOR}.kl_loss_coef": _with_kl(value("objective.kl_coef")),
        f"{ACTOR}.kl_loss_type": _with_kl(lambda plan: "low_var_kl"),
    }, note="the same estimator; verl clamps it to 10 nats a token"),
    Rule("objective.clip_epsilon", {
        f"{ACTOR}.clip_ratio{side}": value("objective.clip_epsilon") for side in ("", "_low", "_high")
    }),
    Rule("objective.num_iterations", {f"{ACTOR}.ppo_epochs": value("objective.num_iterations")}),
    Rule("objective.initial_entropy", refuses=_initial_entropy,
         note=f"{PLUGIN}; null is refused where the filter is auto"),
    Rule("objective.probe", note="not read: verl does not probe"),
    Rule("objective.audit", refuses=only(
        "objective.audit", False, "there in gtpo's own loop only; --set objective.audit=false"
    ), note="true is refused"),
    Rule("optimizer.name", {f"{OPTIM}.optimizer": lambda plan: "AdamW"}, only(
        "optimizer.name", "adamw", "not mapped; --set optimizer.name=adamw"
    ), note="the 8-bit ones are refused"),
    Rule("optimizer.learning_rate", {f"{OPTIM}.lr": value("optimizer.learning_rate")}),
    Rule("optimizer.betas", {f"{OPTIM}.betas": value("optimizer.betas")}),
    Rule("optimizer.weight_decay", {f"{OPTIM}.weight_decay": value("optimizer.weight_decay")},
         note="verl decays vectors (norms, biases) too, where all weights train"),
    Rule("optimizer.max_grad_norm", {f"{OPTIM}.clip_grad": value("optimizer.max_grad_norm")}),
    Rule("optimizer.schedule", {f"{OPTIM}.lr_scheduler_type": value("optimizer.schedule")}, _schedule,
         note="`linear` is refused"),
    Rule("optimizer.warmup_ratio", {f"{OPTIM}.lr_warmup_steps_ratio": value("optimizer.warmup_ratio")},
         note="verl rounds the number of steps down, gtpo up"),
    Rule("training.epochs", {
        "trainer.total_epochs": lambda plan: plan.recipe.training.max_steps or plan.recipe.training.epochs
    }),
    Rule("training.max_steps", {
        "trainer.total_training_steps": lambda plan: plan.recipe.training.max_steps or OMIT
    }),
    Rule("training.micro_batch_size", {
        f"{ACTOR}.use_dynamic_bsz": lambda plan: plan.recipe.training.micro_batch_size == "auto",
        f"{ACTOR}.ppo_max_token_len_per_gpu": lambda plan: max(16384, plan.context),
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": _fixed_micro_batch,
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": _fixed_micro_batch,
        f"{REF}.log_prob_micro_batch_size_per_gpu": _fixed_micro_batch,
    }),
    Rule("training.stress_step", note="not read"),
    Rule("training.threads", note="not read"),
    Rule("training.save_every", {"trainer.save_freq": value("training.save_every")}),
    Rule("training.keep_last", {"trainer.max_actor_ckpt_to_keep": value("training.keep_last")}),
    Rule("training.keep_best", note="not read: verl keeps the newest"),
    Rule("training.eval_every", refuses=only(
        "training.eval_every", None, "verl's validation is not gtpo's; --set training.eval_every=null"
    ), note="refused but null"),
    Rule("training.max_bad_steps", note="not read: verl leaves out updates that are not finite, and goes on"),
    Rule("training.guard", refuses=_guard, note="`warn` is not read, `stop` and `rollback` are refused"),
    Rule("evaluation",
         note="not read: `gtpo eval` afterwards, on what `python -m verl.model_merger` makes of a checkpoint"),
    Rule("tracking.wandb", {
        "trainer.logger": _loggers,
        "trainer.project_name": value("tracking.wandb.project"),
    }, note="WANDB_MODE, WANDB_ENTITY and WANDB_TAGS are set; auto: offline"),
    Rule("tracking.tensorboard", note="in `trainer.logger`"),
    Rule("tracking.log_completions_every", note="not read; verl: `trainer.rollout_data_dir`"),
)  # fmt: skip
