"""The recipe: every key a user can write, its type, its bounds and its meaning. Torch-free and immutable.

Defaults are the paper's settings (arXiv 2508.03772, Listing 1 and Section 6). `objective.name` changes some of them:
see `methods.py`. Reading files, overrides and error messages are in `load.py`.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from gtpo_cli.recipe.data import PAPER_SYSTEM_PROMPT as PAPER_SYSTEM_PROMPT
from gtpo_cli.recipe.data import Benchmark as Benchmark
from gtpo_cli.recipe.data import DataRecipe as DataRecipe
from gtpo_cli.recipe.rewards import RewardsRecipe as RewardsRecipe
from gtpo_cli.recipe.rewards import TagsRecipe
from gtpo_cli.recipe.section import Beta, Count, NonEmpty, Section, Threads

LN_2 = math.log(2.0)
BFLOAT16 = (8, 0)  # the compute capability from which on GPUs have it, which model.dtype: auto asks
FilterMode = Literal["auto", "always", "never"]

# What `objective.compat: released_code` changes where a recipe is silent (docs/objective.md, section 9).
RELEASED_CODE_DEFAULTS: dict[str, Any] = {
    "objective.advantage_scale": "none",
    "objective.filter.enabled": "always",
    "objective.filter.threshold": 0.7,
}

# What a built-in model needs no more than a CPU for, where a recipe is silent: all weights train, in float32.
BUILTIN_DEFAULTS: dict[str, Any] = {
    "model.load_in_4bit": False,
    "model.lora": None,
    "model.gradient_checkpointing": False,
    "data.system_prompt": None,
    "optimizer.name": "adamw",
}


class LoraRecipe(Section):
    rank: int = Field(128, ge=1, le=4096, description="rank r of the adapter matrices")
    alpha: float = Field(128, gt=0, le=65536, description="scale: the adapter's product is multiplied by alpha / rank")
    dropout: float = Field(0.0, ge=0.0, lt=1.0, description="dropout on the adapter's input; for SFT alone")
    target_modules: tuple[NonEmpty, ...] = Field(
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        min_length=1,
        description="names of the linear layers that get an adapter; not the output layer",
    )


class ModelRecipe(Section):
    name: NonEmpty = Field(description="hub id, local folder, run folder with full weights, or builtin:tiny")
    start: NonEmpty | None = Field(
        None,
        description="weights to start from: another run's checkpoint (RUN, RUN:last, RUN:STEP) or an adapter's folder; "
        "null = the model as it is",
    )
    revision: str | None = Field(None, description="hub revision: branch, tag or commit")
    backend: Literal["auto", "unsloth", "transformers"] = Field("auto", description="which library holds the policy")
    load_in_4bit: bool = Field(True, description="4-bit NF4 base weights through bitsandbytes (needs the extra bnb)")
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "auto",
        description="computation type; auto = bfloat16 on a GPU that has it, else float32. What is trained is float32",
    )
    max_seq_length: int = Field(5500, ge=2, le=1_048_576, description="most tokens of prompt and completion together")
    gradient_checkpointing: bool = Field(True, description="recompute activations in the backward pass (less memory)")
    trust_remote_code: bool = Field(False, description="run code that comes with the model; leave off")
    lora: LoraRecipe | None = Field(default_factory=LoraRecipe, description="adapter; null = train all weights")

    @property
    def before_training(self) -> str:
        """What the untrained policy is, in words."""
        return self.name if self.start is None else f"{self.name} from {self.start}"


class RolloutRecipe(Section):
    engine: Literal["auto", "vllm", "transformers"] = Field("auto", description="which library samples")
    group_size: int = Field(8, ge=1, le=1024, description="G: completions sampled for each prompt")
    prompts_per_step: int = Field(1, ge=1, le=65536, description="B: prompts in one optimiser step")
    temperature: float = Field(1.0, ge=1e-6, le=100.0, description="softmax temperature of sampling and of the policy")
    top_p: float = Field(1.0, gt=0.0, le=1.0, description="nucleus sampling; 1 = off")
    top_k: int = Field(0, ge=0, description="sample among the k likeliest tokens; 0 = off")
    max_completion_tokens: int = Field(1500, ge=1, description="a completion is cut (truncated) at this length")
    mask_truncated: bool = Field(False, description="do not train on truncated completions (their keep mask is 0)")
    gpu_memory_utilization: float = Field(0.4, gt=0.0, le=1.0, description="share of GPU memory for the vLLM engine")
    importance_correction: Literal["none", "truncated"] = Field(
        "none", description="reweigh tokens where the sampler's probabilities differ from the policy's (cap 2.0)"
    )


class ConflictRecipe(Section):
    enabled: bool = Field(True, description="weigh conflict tokens (lambda, Eq. 9)")
    alignment: Literal["position", "prefix"] = Field(
        "position", description="position: the paper; prefix: all tokens before must agree too"
    )
    span: Literal["ends", "all"] = Field(
        "ends", description="ends: shared runs at start and end (the paper); all: shared tokens in the middle too"
    )
    positive_weight: float = Field(2.0, ge=0.0, le=100.0, description="lambda of a conflict token where A > 0")
    negative_weight: float = Field(0.0, ge=0.0, le=100.0, description="lambda of a conflict token where A < 0")


def filter_is_on(initial_entropy: float, enabled: FilterMode = "auto") -> bool:
    """Whether completions can be filtered at all in a run (objective.filter.enabled).

    `auto` is the paper's rule: on if the untrained policy's mean entropy <H>_ini (nats) is below ln 2, always ln 2
    whatever the threshold of the filter itself. Equality keeps all completions. (Eq. 10; docs/objective.md, section 5)
    """
    if enabled not in ("auto", "always", "never"):
        raise ValueError(f"enabled must be 'auto', 'always' or 'never', got {enabled!r}")
    return enabled == "always" or (enabled == "auto" and initial_entropy < LN_2)


class FilterRecipe(Section):
    enabled: FilterMode = Field(
        "auto", description="auto: on when the untrained policy's mean entropy is below ln 2 (Eq. 10)"
    )
    threshold: float = Field(LN_2, gt=0.0, le=100.0, description="theta, nats: completions above are filtered")
    only_negative: bool = Field(False, description="filter only completions with A < 0 (Figure 4c)")


class ProbeRecipe(Section):
    num_prompts: Count = Field(100, description="first so many training problems")
    completions_per_prompt: Count = Field(1, description="completions sampled for each")


class ClipRecipe(Section):
    low: float = Field(0.2, ge=0.0, lt=1.0, description="the ratio is clipped at 1 - low (Eq. 2)")
    high: float = Field(0.2, gt=0.0, le=1e6, description="and at 1 + high; of: weight: at high itself")
    of: Literal["objective", "weight"] = Field(
        "objective", description="weight: bounds the weight of ln pi, and no token loses its gradient (CISPO)"
    )


class ObjectiveRecipe(Section):
    name: Literal["gtpo", "grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "sft"] = Field(
        "gtpo", description="the method: sets the defaults of the switches below"
    )
    advantage_scale: Literal["std", "none"] = Field("std", description="divide centred rewards by their deviation")
    baseline: Literal["mean", "leave_one_out"] = Field("mean", description="of the group, or of the other completions")
    ratio: Literal["token", "sequence"] = Field("token", description="whose probability ratio is clipped")
    clip: ClipRecipe = Field(default_factory=ClipRecipe, description="clip range; clip_epsilon: x for both ends")
    average: Literal["completion", "token", "budget", "sum"] = Field(
        "completion",
        description="over tokens, then completions; over all tokens; over max_completion_tokens; no length at all",
    )
    compat: Literal["paper", "released_code"] = Field("paper", description="released_code: the authors' trainer")
    conflict: ConflictRecipe = Field(default_factory=ConflictRecipe, description="conflict-aware token weights")
    filter: FilterRecipe = Field(default_factory=FilterRecipe, description="entropy filter of completions (delta)")
    entropy_coef: float = Field(0.1, ge=0.0, le=1000.0, description="gamma: mean entropy taken off the advantage")
    kl_coef: float = Field(0.0, ge=0.0, le=1000.0, description="beta; 0 runs no reference forward at all")
    num_iterations: int = Field(1, ge=1, le=1000, description="optimiser steps on one batch of completions")
    resample: int = Field(
        0,
        ge=0,
        le=100,
        description="sample groups without reward spread again, with new prompts, so often at most",
    )
    skip_uninformative_groups: bool = Field(False, description="do not train on groups whose rewards are all equal")
    initial_entropy: float | None = Field(
        None, ge=0.0, le=100.0, description="<H>_ini of the untrained policy, nats; null = probe before step 1"
    )
    probe: ProbeRecipe = Field(default_factory=ProbeRecipe, description="how <H>_ini is measured")
    audit: bool = Field(False, description="log where the policy gradient falls: shared start, shared end, middle")

    @model_validator(mode="before")
    @classmethod
    def _clip_epsilon(cls, written: Any) -> Any:
        """`clip_epsilon: x` is short for `clip: {low: x, high: x}`."""
        if not isinstance(written, dict) or "clip_epsilon" not in written:
            return written
        clip = written.get("clip") or {}
        if not isinstance(clip, dict) or {"low", "high"} & clip.keys():
            raise ValueError("clip_epsilon is short for clip.low and clip.high; write one or the other")
        if clip.get("of") == "weight":
            raise ValueError("clip_epsilon is a range around 1; with clip.of: weight write clip.high (CISPO: 5)")
        epsilon = written["clip_epsilon"]
        others = {key: value for key, value in written.items() if key != "clip_epsilon"}
        return others | {"clip": clip | {"low": epsilon, "high": epsilon}}


class OptimizerRecipe(Section):
    name: Literal["adamw", "adamw_8bit", "paged_adamw_8bit"] = Field(
        "paged_adamw_8bit", description="the 8-bit ones need the extra bnb"
    )
    learning_rate: float = Field(1e-6, gt=0.0, le=10.0, description="peak learning rate")
    betas: tuple[Beta, Beta] = Field((0.999999, 0.999999), description="Adam's decay rates of the two moments")
    weight_decay: float = Field(0.1, ge=0.0, le=10.0, description="decoupled weight decay")
    max_grad_norm: float = Field(0.1, gt=0.0, le=1e6, description="the gradient is scaled down to this norm")
    schedule: Literal["cosine", "linear", "constant"] = Field("cosine", description="cosine and linear end at 0")
    warmup_ratio: float = Field(0.005, ge=0.0, le=1.0, description="share of the steps in which the rate rises from 0")


class GuardRecipe(Section):
    action: Literal["warn", "stop", "rollback"] = Field(
        "warn", description="on collapse; rollback = to the best checkpoint, with a lower learning rate"
    )
    window: int = Field(50, ge=2, le=100_000, description="steps whose means are compared with the run's earlier ones")
    format_drop: float = Field(0.2, gt=0.0, le=1.0, description="fall of the strict format rate that counts")
    accuracy_drop: float = Field(
        0.1, gt=0.0, le=1.0, description="fall of the accuracy rate that counts, if it halves as well"
    )
    entropy_factor: float = Field(
        3.0, gt=1.0, le=1e6, description="entropy above so many times its start counts as one above ln 2 does"
    )
    length_factor: float = Field(
        2.0, gt=1.0, le=1e6, description="growth of the completions that counts while format or accuracy falls"
    )
    truncated_rise: float = Field(0.3, gt=0.0, le=1.0, description="rise of the truncated share that counts")
    uninformative_share: float = Field(
        0.98, gt=0.0, le=1.0, description="share of groups with equal rewards that counts while accuracy is below 0.5"
    )
    max_rollbacks: int = Field(2, ge=0, le=1000, description="then the run stops")
    rollback_rate: float = Field(0.5, gt=0.0, lt=1.0, description="factor of the learning rate at each rollback")


class TrainingRecipe(Section):
    epochs: int = Field(1, ge=1, le=100_000, description="passes over the data")
    max_steps: Count | None = Field(None, description="this many optimiser steps instead, whatever the epochs")
    micro_batch_size: Literal["auto"] | Count = Field(
        "auto", description="completions in one forward; auto = by tokens, fewer after an out-of-memory"
    )
    stress_step: Literal["auto"] | bool = Field(
        "auto", description="try the longest prompt at the longest completion before step 1; auto = on a GPU"
    )
    threads: Literal["auto"] | Threads = Field(
        "auto", description="CPU threads; auto = 1 for models under 20 million parameters, else torch's own choice"
    )
    save_every: int = Field(500, ge=1, description="steps between checkpoints; the last step is always saved")
    keep_last: int = Field(3, ge=1, description="newest checkpoints kept")
    keep_best: str | None = Field(
        "train/accuracy_rate", description="metric whose best checkpoint is kept; null = none"
    )
    eval_every: Count | None = Field(None, description="steps between evaluations on the test split; null = none")
    max_bad_steps: Count = Field(10, description="steps in a row without a finite gradient after which the run stops")
    guard: GuardRecipe = Field(default_factory=GuardRecipe, description="watches for policy collapse")


def default_ks(samples: int) -> dict[str, tuple[int, ...]]:
    """What `pass_k` and `majority_k` are where a recipe is silent: 64 completions have all of these k."""
    ks = {"pass_k": (1, 2, 4, 8, 16, 32, 64), "majority_k": (4, 8, 16, 32, 64)}
    return {key: tuple(k for k in default if k <= samples) for key, default in ks.items()}


class EvaluationRecipe(Section):
    benchmarks: tuple[Benchmark, ...] = Field(
        ("gsm8k",), min_length=1, description="what gtpo eval asks; by default the benchmark that is trained on"
    )
    samples: int = Field(64, ge=1, le=100_000, description="completions for each problem")
    pass_k: tuple[Count, ...] = Field(default_ks(64)["pass_k"], description="k of pass@k; by default up to samples")
    majority_k: tuple[Count, ...] = Field(
        default_ks(64)["majority_k"], description="k of maj@k; by default up to samples"
    )
    temperature: float = Field(1.0, ge=1e-6, le=100.0, description="softmax temperature")
    top_p: float = Field(1.0, gt=0.0, le=1.0, description="nucleus sampling; 1 = off")
    max_completion_tokens: int = Field(
        1500, ge=1, description="a completion is cut at this length; by default as in rollout"
    )
    limit: Count | None = Field(None, description="only the first so many problems of each benchmark")

    @model_validator(mode="before")
    @classmethod
    def _ks_within_samples(cls, written: Any) -> Any:
        """The default k end at `samples`, also where a recipe that was resolved by an earlier gtpo has them all."""
        if not isinstance(written, dict) or not isinstance(samples := written.get("samples"), int):
            return written
        default, within = default_ks(64), default_ks(samples)
        fit = {key: within[key] for key in default if written.get(key, default[key]) in (default[key], [*default[key]])}
        return written | fit

    def problems(self) -> list[str]:
        """What is wrong between its keys, each with its key."""
        return [
            f"evaluation.{key}: k = {max(ks)} needs as many completions of each problem, and evaluation.samples is "
            f"{self.samples}; raise it, or leave that k out"
            for key, ks in (("pass_k", self.pass_k), ("majority_k", self.majority_k))
            if ks and max(ks) > self.samples
        ]


class WandbRecipe(Section):
    mode: Annotated[
        Literal["auto", "online", "offline", "off"],
        BeforeValidator(lambda value: "off" if value is False else value),  # YAML reads a bare `off` as false
    ] = Field(
        "auto",
        description="auto = online with a key, else offline, nothing without the extra wandb; off = no wandb at all",
    )
    project: NonEmpty = Field("gtpo", description="project on wandb")
    entity: str | None = Field(None, description="user or team on wandb")
    tags: tuple[str, ...] = Field((), description="tags of the run")


class TrackingRecipe(Section):
    wandb: WandbRecipe = Field(default_factory=WandbRecipe, description="Weights & Biases")
    tensorboard: bool = Field(False, description="also write TensorBoard events (needs the extra tensorboard)")
    log_completions_every: int = Field(
        50, ge=1, description="steps between stored sample completions, which wandb and TensorBoard get as a table"
    )


class Recipe(Section):
    """One training run, whole. Loaded by `gtpo_cli.recipe.load_recipe`; saved resolved in the run folder."""

    run_name: Annotated[str, StringConstraints(pattern=r"^[\w][\w.\-]{0,120}$")] | None = Field(
        None, description="folder of the run inside output_dir; null = recipe name and time"
    )
    output_dir: NonEmpty = Field("runs", description="folder of all runs")
    seed: int = Field(3407, ge=0, lt=2**31, description="seed of everything random")
    model: ModelRecipe = Field(description="what is trained")
    data: DataRecipe = Field(description="on which problems")
    rollout: RolloutRecipe = Field(default_factory=RolloutRecipe, description="how completions are sampled")
    rewards: RewardsRecipe = Field(default_factory=RewardsRecipe, description="how completions are scored")
    objective: ObjectiveRecipe = Field(default_factory=ObjectiveRecipe, description="the loss")
    optimizer: OptimizerRecipe = Field(default_factory=OptimizerRecipe, description="the update")
    training: TrainingRecipe = Field(default_factory=TrainingRecipe, description="the loop")
    evaluation: EvaluationRecipe = Field(default_factory=EvaluationRecipe, description="what gtpo eval does")
    tracking: TrackingRecipe = Field(default_factory=TrackingRecipe, description="where metrics go")

    @property
    def samples(self) -> bool:
        """Whether training samples anything: SFT only where it is evaluated between its steps."""
        return self.objective.name != "sft" or self.training.eval_every is not None

    @property
    def completions_per_prompt(self) -> int:
        """In a training step: a group; for SFT the one reference."""
        return 1 if self.objective.name == "sft" else self.rollout.group_size

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        problems = self.data.problems()
        if self.rollout.group_size == 1 and self.objective.name != "sft":
            problems.append("rollout.group_size: a group of 1 has no advantage; use 2 or more (the paper: 8 or 12)")
        if self.data.max_prompt_tokens >= self.model.max_seq_length:
            problems.append(
                f"data.max_prompt_tokens: {self.data.max_prompt_tokens} leaves no room for a completion; "
                f"set it below model.max_seq_length ({self.model.max_seq_length})"
            )
        objective = self.objective
        if objective.compat == "released_code" and objective.kl_coef > 0:
            problems.append(
                "objective.kl_coef: the released code has no KL term in its loss; set it to 0, or use compat: paper"
            )
        switches = (objective.average, objective.ratio, objective.clip.of)
        if objective.compat == "released_code" and switches != ("completion", "token", "objective"):
            problems.append(
                "objective.compat: the released code has its own average and ratio; leave average, ratio and clip.of "
                "as name: gtpo has them, or use compat: paper"
            )
        if objective.clip.of == "weight" and objective.clip.high < 1:
            problems.append(
                f"objective.clip.high: {objective.clip.high:g} would shrink every weight, which is 1 at first; with "
                "clip.of: weight it is the bound itself, 1 or more (CISPO: 5)"
            )
        rewards = self.rewards
        problems += rewards.problems()
        problems += self.evaluation.problems()
        if self.rewards.format.tags != TagsRecipe() and self.data.system_prompt == PAPER_SYSTEM_PROMPT:
            problems.append(
                "data.system_prompt: the default asks for <reasoning> and <answer>, not for the tags of "
                "rewards.format.tags; write one that names them, or set it to null"
            )
        if not (rewards.format.weight or rewards.accuracy.weight or rewards.length.weight or rewards.plugins):
            problems.append("rewards: all weights are 0, so nothing can be learned; give one of them a weight")
        if self.training.eval_every is not None and self.evaluation.limit is None:
            problems.append("training.eval_every: bound these evaluations, e.g. with evaluation.limit: 100 (problems)")
        if self.training.eval_every is None and (self.training.keep_best or "").startswith("eval/"):
            problems.append(f"training.keep_best: {self.training.keep_best} is only measured with training.eval_every")
        if self.rollout.engine == "vllm" and self.model.lora is None:
            problems.append(
                "rollout.engine: vllm gets the policy's weights as an adapter; set model.lora, or engine: transformers"
            )
        if self.model.load_in_4bit and self.model.lora is None:
            problems.append("model.load_in_4bit: 4-bit weights cannot train; set model.lora, or load_in_4bit: false")
        if problems:
            raise ValueError("\n".join(problems))
        return self
