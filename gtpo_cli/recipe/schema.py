"""The recipe: every key a user can write, its type, its bounds and its meaning. Torch-free and immutable.

Defaults are the paper's settings (arXiv 2508.03772, Listing 1 and Section 6). `objective.name` changes some of them
(`methods.py`). The keys in OPEN depend on the machine, and `machine/open_keys.py` resolves them. `load.py` reads
files and overrides and writes the error messages.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, JsonValue, Strict, model_validator
from pydantic_core import PydanticKnownError
from typing_extensions import TypedDict

from gtpo_cli.entropy_filter import LN_2, FilterMode
from gtpo_cli.recipe.data import PAPER_SYSTEM_PROMPT as PAPER_SYSTEM_PROMPT
from gtpo_cli.recipe.data import Benchmark as Benchmark
from gtpo_cli.recipe.data import DataRecipe as DataRecipe
from gtpo_cli.recipe.data import is_function
from gtpo_cli.recipe.rewards import RewardsRecipe as RewardsRecipe
from gtpo_cli.recipe.section import Beta, Count, NonEmpty, Section, flatten
from gtpo_cli.text import did_you_mean, one_line
from gtpo_cli.types import CodeName, Tags

LEAST_TEMPERATURE = 1e-6
PAPER_SHARE = 0.4  # vLLM's share of GPU memory in the paper
LARGEST_RANK = 512  # largest adapter rank that vLLM accepts
LONGEST_ROW = 2**20  # tokens, for model.max_seq_length
BFLOAT16 = (8, 0)  # lowest compute capability with bfloat16, for model.dtype: auto
_STRICT = ConfigDict(extra="forbid")
# Keys whose `auto` depends on the machine and the model's size. The recipe in a run's folder has the resolved values of
# those that change its numbers.
OPEN = (
    "model.load_in_4bit", "model.dtype", "model.gradient_checkpointing", "optimizer.name",
    "rollout.gpu_memory_utilization", "rollout.max_num_seqs", "rollout.standby",
)  # fmt: skip

# Keys that change the steps of a run by no more than rounding, so that they may change when it is resumed.
CHANGES_NO_STEP = (
    "training.save_every", "training.keep_last", "training.guard.action",
    "training.micro_batch_size", "model.gradient_checkpointing",
    "rollout.gpu_memory_utilization", "rollout.max_num_seqs", "rollout.standby", "rollout.vllm.enforce_eager",
    "rollout.vllm.max_num_batched_tokens", "rollout.vllm.enable_prefix_caching", "tracking.log_completions_every",
)  # fmt: skip

# Defaults for built-in models, which are small enough to train all weights in float32 on a CPU.
BUILTIN_DEFAULTS: dict[str, Any] = {
    "model.load_in_4bit": False,
    "model.lora": None,
    "model.gradient_checkpointing": False,
    "data.system_prompt": None,
    "optimizer.name": "adamw",
}


# Keys of these sections on which no score of an evaluation depends: how a model computes, what digests of weights and
# problems cover, and what is computed from the same completions. A key that is missing here only costs a new sampling.
_NO_SCORE: dict[str, Any] = {
    "model": {"name", "start", "backend", "gradient_checkpointing", "trust_remote_code", "lora"},
    "rewards": {
        "format": {"weight"},
        "accuracy": {"weight", "partial_credit", "pays_nonsense"},
        "plugins": {"__all__": {"weight"}},
    },
    "evaluation": {"benchmarks", "limit", "pass_k", "majority_k"},
}


class LoraRecipe(Section):
    rank: int = Field(128, ge=1, le=4096, description="rank r of the adapter")
    alpha: float = Field(128, gt=0, le=65536, description="the adapter is multiplied by alpha / rank")
    target_modules: Literal["all-linear"] | Annotated[tuple[NonEmpty, ...], Field(min_length=1)] = Field(
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        description="linear layers with an adapter; all-linear = all but the output layer",
    )

    def __str__(self) -> str:
        """Format the adapter as YAML on one line."""
        names = self.target_modules if isinstance(self.target_modules, str) else f"[{', '.join(self.target_modules)}]"
        return f"{{rank: {self.rank}, alpha: {self.alpha:g}, target_modules: {names}}}"


class ModelRecipe(Section):
    name: NonEmpty = Field(description="hub id, local folder, run folder with all weights, or builtin:tiny")
    start: NonEmpty | None = Field(
        None,
        description="weights to start from: another run (RUN, RUN:last, RUN:STEP) or an adapter's folder",
    )
    revision: str | None = Field(None, description="hub branch, tag or commit")
    backend: Literal["auto", "unsloth", "transformers"] = Field("auto", description="library that holds the policy")
    load_in_4bit: Literal["auto"] | bool = Field(
        "auto",
        description="4-bit NF4 base weights (extra bnb)",
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "auto",
        description="computation type; trained weights are float32",
    )
    max_seq_length: int = Field(5500, ge=2, le=LONGEST_ROW, description="most tokens of prompt and completion together")
    gradient_checkpointing: Literal["auto"] | bool = Field(
        "auto",
        description="recompute activations in the backward pass: less memory, more time",
    )
    trust_remote_code: bool = Field(False, description="run code that comes with the model; leave off")
    lora: LoraRecipe | None = Field(default_factory=LoraRecipe, description="adapter; null = train all weights")

    @property
    def before_training(self) -> str:
        """Describe the untrained policy in words."""
        return self.name if self.start is None else f"{self.name} from {self.start}"


class Speculation(TypedDict):
    """vLLM's `speculative_config`."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    method: Literal["ngram", "suffix"]
    num_speculative_tokens: Annotated[int, Field(ge=1, le=64)]
    prompt_lookup_min: NotRequired[Annotated[int, Field(ge=1, le=64)]]
    prompt_lookup_max: NotRequired[Annotated[int, Field(ge=1, le=64)]]


class VllmArguments(TypedDict, total=False):
    """The supported arguments of vLLM's engine, by vLLM's names. What is not given is vLLM's default."""

    __pydantic_config__ = _STRICT  # type: ignore[misc]
    enforce_eager: Annotated[bool, Strict()]
    kv_cache_dtype: Literal["auto", "fp8"]
    max_num_batched_tokens: Annotated[int, Field(ge=1), Strict()]
    enable_prefix_caching: Annotated[bool, Strict()]
    speculative_config: Speculation | None


def _known_arguments(written: Any) -> Any:
    if isinstance(written, dict) and (unknown := [key for key in written if key not in VllmArguments.__annotations__]):
        known = f"there are {', '.join(VllmArguments.__annotations__)}"
        hint = did_you_mean(str(unknown[0]), VllmArguments.__annotations__, known)
        raise ValueError(f"{one_line(str(unknown[0]), most=60)} is no argument that can be set here; {hint}")
    return written


Engine = Literal["vllm", "transformers"]


def _not_greedy(temperature: Any) -> Any:
    if temperature == 0:
        raise ValueError(
            "0 is greedy: the completions of a group would all be the same, with nothing to learn from their "
            "differences; only evaluation.temperature may be 0"
        )
    return temperature


class RolloutRecipe(Section):
    engine: Literal["auto", Engine] = Field("auto", description="library that samples")
    group_size: int = Field(8, ge=1, le=1024, description="G: completions sampled for each prompt")
    prompts_per_step: int = Field(1, ge=1, le=65536, description="B: prompts in one optimiser step")
    temperature: Annotated[float, BeforeValidator(_not_greedy)] = Field(
        1.0, ge=LEAST_TEMPERATURE, le=100.0, description="softmax temperature of sampling and policy"
    )
    max_completion_tokens: int = Field(1500, ge=1, description="a completion is cut (truncated) here")
    mask_truncated: bool = Field(False, description="do not train on truncated completions")
    steps_per_generation: int = Field(
        1, ge=1, le=1000, description="K: sample for K steps at once, then update K times; 1 = the paper"
    )
    gpu_memory_utilization: Literal["auto"] | Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        "auto",
        description="vLLM's share of GPU memory",
    )
    max_num_seqs: Literal["auto"] | Annotated[int, Field(ge=1, le=65536)] = Field(
        "auto",
        description="completions that vLLM decodes at once",
    )
    standby: Literal["auto", "always", "never"] = Field(
        "auto",
        description="vLLM on the policy's weights sleeps during training, which frees its cache",
    )
    vllm: Annotated[VllmArguments, BeforeValidator(_known_arguments)] = Field(
        default_factory=VllmArguments,
        description=f"more arguments of vLLM's engine: {', '.join(VllmArguments.__annotations__)} (docs/engines.md)",
    )
    importance_correction: Literal["none", "truncated"] = Field(
        "none",
        description="truncated: weigh tokens by min(pi/q, 2), policy over sampler (docs/engines.md)",
    )

    @property
    def speculation(self) -> dict[str, Any] | None:
        """vLLM's `speculative_config`; None at temperatures other than 1, where it gives wrong log-probabilities."""
        speculative = self.vllm.get("speculative_config")
        return None if speculative is None or self.temperature != 1.0 else dict(speculative)

    @property
    def engine_share(self) -> float:
        """The value of gpu_memory_utilization; the paper's if it is auto."""
        return PAPER_SHARE if self.gpu_memory_utilization == "auto" else self.gpu_memory_utilization

    @property
    def completions_at_once(self) -> int:
        """The completions of one generation: K steps of B prompts with G completions each."""
        return self.group_size * self.prompts_per_step * self.steps_per_generation


ADVANTAGE_RULES = ("group", "quantile", "maximum_likelihood", "reinforce", "each_reward")
TOKEN_RULES = (
    "none",
    "conflict",
    "top_entropy",
    "clip_cov",
    "entropy_advantage",
    "entropy_credit",
    "sequence_entropy_credit",
)
LOSS_RULES = ("token", "sequence", "weight", "geometric", "soft", "kl_cov")


def _rule(names: tuple[str, ...]) -> Any:
    """The type of a rule's name: one of these, or a function of the user's own."""

    def known(name: str) -> str:
        if name in names:
            return name
        if not is_function(name):
            known = ", ".join(map(repr, names))
            raise PydanticKnownError("literal_error", {"expected": f"{known} or FILE.py:FUNCTION"})
        return CodeName(name)

    return Annotated[NonEmpty, AfterValidator(known)]


class AdvantagesRecipe(Section):
    rule: _rule(ADVANTAGE_RULES) = Field(  # type: ignore[valid-type]
        "group", description=f"{', '.join(ADVANTAGE_RULES)} (docs/objective.md), or FILE.py:FUNCTION"
    )
    config: dict[str, JsonValue] = Field(default_factory=dict, description="keywords of the rule")


class TokenWeightsRecipe(Section):
    rule: _rule(TOKEN_RULES) = Field(  # type: ignore[valid-type]
        "conflict", description=f"lambda: {', '.join(TOKEN_RULES)} (docs/objective.md), or FILE.py:FUNCTION"
    )
    config: dict[str, JsonValue] = Field(default_factory=dict, description="keywords of the rule")
    control: Literal["none", "even", "random"] = Field(
        "none", description="even: each token of a completion gets its mean weight; random: they swap their weights"
    )


class LossRecipe(Section):
    rule: _rule(LOSS_RULES) = Field(  # type: ignore[valid-type]
        "token", description=f"of each token: {', '.join(LOSS_RULES)} (docs/objective.md), or FILE.py:FUNCTION"
    )
    config: dict[str, JsonValue] = Field(default_factory=dict, description="keywords of the rule")


class ConflictRecipe(Section):
    alignment: Literal["position", "prefix", "anywhere"] = Field(
        "position",
        description="position: shared runs at start and end (the paper); prefix: all tokens before must agree too; "
        "anywhere: shared tokens in the middle count as well",
    )


class FilterRecipe(Section):
    enabled: FilterMode = Field(
        "auto", description="auto: on if the untrained policy's mean entropy is below ln 2 (Eq. 10)"
    )
    threshold: float = Field(LN_2, gt=0.0, le=100.0, description="theta, nats: completions above are filtered")
    only_negative: bool = Field(False, description="filter only where A < 0 (Figure 4c)")


class ProbeRecipe(Section):
    num_prompts: Count = Field(100, description="training problems, from the first, with one completion each")


class ClipRecipe(Section):
    low: float = Field(0.2, ge=0.0, lt=1.0, description="the ratio is clipped at 1 - low (Eq. 2)")
    high: float = Field(
        0.2, gt=0.0, le=1e6, description="the ratio is clipped at 1 + high; with loss.rule: weight, at high"
    )


class ObjectiveRecipe(Section):
    name: Literal["gtpo", "grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "sft"] = Field(
        "gtpo", description="method; sets the defaults of the switches below"
    )
    advantages: AdvantagesRecipe = Field(default_factory=AdvantagesRecipe, description="A of each completion")
    loss: LossRecipe = Field(default_factory=LossRecipe, description="of a token, given its ratio and coefficient")
    clip: ClipRecipe = Field(default_factory=ClipRecipe, description="clip range; clip_epsilon: x sets both ends")
    average: Literal["completion", "token", "budget", "sum"] = Field(
        "completion",
        description="over tokens, then completions; over all tokens; over max_completion_tokens; none",
    )
    conflict: ConflictRecipe = Field(default_factory=ConflictRecipe, description="which tokens conflict")
    token_weights: TokenWeightsRecipe = Field(default_factory=TokenWeightsRecipe, description="weight of each token")
    filter: FilterRecipe = Field(default_factory=FilterRecipe, description="entropy filter (delta)")
    entropy_coef: float = Field(
        0.1, ge=0.0, le=1000.0, description="gamma, times the mean entropy, is subtracted from the advantage"
    )
    kl_coef: float = Field(0.0, ge=0.0, le=1000.0, description="beta; 0 needs no reference model")
    num_iterations: int = Field(1, ge=1, le=1000, description="optimiser steps on one batch of completions")
    resample: int = Field(
        0,
        ge=0,
        le=100,
        description="replace a group with equal rewards by a new prompt, at most this often",
    )
    initial_entropy: float | None = Field(
        None, ge=0.0, le=100.0, description="<H>_ini of the untrained policy, nats; null = probe before step 1"
    )
    probe: ProbeRecipe = Field(default_factory=ProbeRecipe, description="how <H>_ini is measured")
    audit: bool = Field(False, description="log where the policy gradient acts: shared start, shared end, middle")

    @model_validator(mode="before")
    @classmethod
    def _clip_epsilon(cls, written: Any) -> Any:
        """`clip_epsilon: x` is short for `clip: {low: x, high: x}`."""
        if not isinstance(written, dict) or "clip_epsilon" not in written:
            return written
        clip = written.get("clip") or {}
        if not isinstance(clip, dict) or {"low", "high"} & clip.keys():
            raise ValueError("clip_epsilon sets both clip.low and clip.high; write either clip_epsilon or these two")
        loss = written.get("loss") or {}
        if isinstance(loss, dict) and loss.get("rule") == "weight":
            raise ValueError("clip_epsilon is a range around 1; with loss.rule: weight write clip.high (CISPO: 5)")
        epsilon = written["clip_epsilon"]
        others = {key: value for key, value in written.items() if key != "clip_epsilon"}
        return others | {"clip": clip | {"low": epsilon, "high": epsilon}}


class OptimizerRecipe(Section):
    name: Literal["auto", "adamw", "adamw_8bit", "paged_adamw_8bit"] = Field(
        "auto",
        description="8 bits need the extra bnb",
    )
    learning_rate: float = Field(1e-6, gt=0.0, le=10.0, description="peak learning rate")
    betas: tuple[Beta, Beta] = Field((0.999999, 0.999999), description="Adam's decay rates")
    weight_decay: float = Field(0.1, ge=0.0, le=10.0, description="decoupled weight decay")
    max_grad_norm: float = Field(0.1, gt=0.0, le=1e6, description="a larger gradient is scaled down to this norm")
    schedule: Literal["cosine", "linear", "constant"] = Field("cosine", description="cosine and linear end at 0")
    warmup_ratio: float = Field(0.005, ge=0.0, le=1.0, description="share of steps in which the rate rises from 0")


class GuardRecipe(Section):
    action: Literal["warn", "stop", "rollback"] = Field(
        "warn", description="response to collapse; rollback: best checkpoint, lower learning rate"
    )
    window: int = Field(50, ge=2, le=100_000, description="steps in each mean that the guard compares")
    format_drop: float = Field(0.2, gt=0.0, le=1.0, description="drop of the strict format rate that counts")


class TrainingRecipe(Section):
    epochs: int = Field(1, ge=1, le=100_000, description="passes over the data")
    max_steps: Count | None = Field(None, description="optimiser steps of the run; overrides epochs")
    micro_batch_size: Literal["auto"] | Count = Field(
        "auto", description="completions in one forward pass; auto = by tokens, fewer if memory runs out"
    )
    save_every: int = Field(500, ge=1, description="steps between checkpoints; the last step is always saved")
    keep_last: int = Field(3, ge=1, description="newest checkpoints kept")
    keep_best: str | None = Field(
        "train/accuracy_rate", description="metric whose best checkpoint is kept; null = none"
    )
    eval_every: Count | None = Field(None, description="steps between evaluations on the test split; null = none")
    guard: GuardRecipe = Field(default_factory=GuardRecipe, description="watches for policy collapse")


def default_ks(samples: int) -> dict[str, tuple[int, ...]]:
    """Return the defaults of `pass_k` and `majority_k` up to k = `samples`."""
    ks = {"pass_k": (1, 2, 4, 8, 16, 32, 64), "majority_k": (4, 8, 16, 32, 64)}
    return {key: tuple(k for k in default if k <= samples) for key, default in ks.items()}


def _greedy_or_not(temperature: float) -> float:
    if 0.0 < temperature < LEAST_TEMPERATURE:
        raise ValueError(f"should be at least {LEAST_TEMPERATURE:g}, or 0 for greedy sampling")
    return temperature


class EvaluationRecipe(Section):
    benchmarks: tuple[Benchmark, ...] = Field(
        ("gsm8k",), min_length=1, description="default: the benchmark of training"
    )
    samples: int = Field(64, ge=1, le=100_000, description="completions for each problem")
    pass_k: tuple[Count, ...] = Field(default_ks(64)["pass_k"], description="k of pass@k, up to samples")
    majority_k: tuple[Count, ...] = Field(default_ks(64)["majority_k"], description="k of maj@k, up to samples")
    temperature: Annotated[float, AfterValidator(_greedy_or_not)] = Field(
        1.0, ge=0.0, le=100.0, description="softmax temperature; 0 = greedy, with one completion for each problem"
    )
    top_p: float = Field(1.0, gt=0.0, le=1.0, description="nucleus sampling; 1 = off")
    max_completion_tokens: int = Field(1500, ge=1, description="a completion is cut here; default: as in rollout")
    limit: Count | None = Field(None, description="a sample of this many problems of each benchmark")
    entropy: Literal["sample", "all"] = Field(
        "sample", description="whose entropy is measured: a sample of the completions, or all (docs/evaluation.md)"
    )

    @model_validator(mode="before")
    @classmethod
    def _ks_within_samples(cls, written: Any) -> Any:
        """Cut the default k at `samples`, also in a recipe that an earlier gtpo resolved with all of them."""
        if isinstance(written, dict) and written.get("temperature") == 0:  # further completions would be the same
            return written | {"samples": 1, "pass_k": (1,), "majority_k": ()}
        if not isinstance(written, dict) or not isinstance(samples := written.get("samples"), int):
            return written
        default, within = default_ks(64), default_ks(samples)
        fit = {key: within[key] for key in default if written.get(key, default[key]) in (default[key], [*default[key]])}
        return written | fit

    def problems(self) -> list[str]:
        """List contradictions between keys, one line each that begins with the key."""
        return [
            f"evaluation.{key}: k = {max(ks)} needs {max(ks)} completions of each problem, but evaluation.samples is "
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
        description="auto = online with a key, else offline; off = no wandb",
    )
    project: NonEmpty = Field("gtpo", description="project")


class TrackingRecipe(Section):
    wandb: WandbRecipe = Field(
        default_factory=WandbRecipe, description="Weights & Biases; it reads WANDB_ENTITY and WANDB_TAGS"
    )
    tensorboard: bool = Field(False, description="also write TensorBoard events (extra tensorboard)")
    log_completions_every: int = Field(
        50, ge=1, description="steps between stored samples, also a table in wandb and TensorBoard"
    )


def _folder_name(name: str) -> str:
    if not re.fullmatch(r"\w[\w.-]{0,120}", name):
        raise ValueError("expected at most 121 letters, digits, _, - and dots, not beginning with - or a dot")
    return name


class Recipe(Section):
    """The complete description of a training run. `load_recipe` loads it; the run folder keeps it with all values."""

    run_name: Annotated[str, AfterValidator(_folder_name)] | None = Field(
        None, description="folder inside output_dir (--name); null = model, data, method and time"
    )
    output_dir: NonEmpty = Field("runs", description="folder of all runs")
    seed: int = Field(3407, ge=0, lt=2**31, description="seed of all randomness")
    model: ModelRecipe = Field(description="what is trained")
    data: DataRecipe = Field(description="the problems")
    rollout: RolloutRecipe = Field(default_factory=RolloutRecipe, description="how completions are sampled")
    rewards: RewardsRecipe = Field(default_factory=RewardsRecipe, description="how completions are scored")
    objective: ObjectiveRecipe = Field(default_factory=ObjectiveRecipe, description="the loss")
    optimizer: OptimizerRecipe = Field(default_factory=OptimizerRecipe, description="the update")
    training: TrainingRecipe = Field(default_factory=TrainingRecipe, description="the loop")
    evaluation: EvaluationRecipe = Field(default_factory=EvaluationRecipe, description="what gtpo eval does")
    tracking: TrackingRecipe = Field(default_factory=TrackingRecipe, description="where metrics go")

    @property
    def generates(self) -> bool:
        """Whether training samples completions at all. SFT samples only if it is evaluated between its steps."""
        return self.objective.name != "sft" or self.training.eval_every is not None

    @property
    def completions_per_prompt(self) -> int:
        """The completions of a prompt in a training step: a group, or the one reference for SFT."""
        return 1 if self.objective.name == "sft" else self.rollout.group_size

    @property
    def completions_per_step(self) -> int:
        return self.completions_per_prompt * self.rollout.prompts_per_step

    @property
    def decisive(self) -> dict[str, Any]:
        """The values, by dotted key, on which the scores of an evaluation depend, besides weights and problems."""
        sections = self.model_dump(mode="json", include={"model", "rewards", "evaluation"}, exclude=_NO_SCORE)
        keys = dict(flatten(sections))
        keys |= {f"data.{name}": getattr(self.data, name) for name in ("system_prompt", "template_arguments")}
        if self.rewards.length.weight:
            keys["rollout.max_completion_tokens"] = self.rollout.max_completion_tokens
        return keys

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        problems = self.data.problems()
        if self.rollout.group_size == 1 and self.objective.name != "sft":
            problems.append("rollout.group_size: a group of 1 has no advantage; use 2 or more (the paper: 8 or 12)")
        if self.rollout.steps_per_generation > 1 and self.objective.name == "sft":
            problems.append("rollout.steps_per_generation: SFT samples nothing to share between steps; set it to 1")
        if self.data.curriculum is not None and self.training.max_steps is None:
            problems.append("data.curriculum: needs training.max_steps, since levels that move have no epochs")
        moves = self.data.curriculum is not None or self.data.rest_after is not None
        if moves and self.objective.name == "sft":
            problems.append("data.curriculum, data.rest_after: SFT scores no answers; remove them")
        if self.data.max_prompt_tokens >= self.model.max_seq_length:
            problems.append(
                f"data.max_prompt_tokens: {self.data.max_prompt_tokens} leaves no room for a completion; "
                f"set it below model.max_seq_length ({self.model.max_seq_length})"
            )
        objective = self.objective
        if objective.loss.rule == "weight" and objective.clip.high < 1:
            problems.append(
                f"objective.clip.high: {objective.clip.high:g} would shrink every weight, since weights start at 1; "
                "with loss.rule: weight it is the bound itself, so use 1 or more (CISPO: 5)"
            )
        weights = objective.token_weights
        if objective.name == "sft":
            plain = {
                "advantages": AdvantagesRecipe(),
                "token_weights": TokenWeightsRecipe(rule="none"),
                "loss": LossRecipe(),
            }
            problems += [
                f"objective.{key}: SFT imitates, so it has no advantages, weights of tokens or ratios; remove the key"
                for key, section in plain.items()
                if getattr(objective, key) != section
            ]
        elif weights.rule == "none" and (weights.config or weights.control != "none"):
            problems.append(
                "objective.token_weights: config and control belong to a rule, and the rule is none; name a rule, or "
                "remove them"
            )
        once = objective.num_iterations == self.rollout.steps_per_generation == 1
        if objective.loss.rule in ("geometric", "soft", "kl_cov") and once:
            problems.append(
                f"objective.loss.rule: {objective.loss.rule} does what token does as long as the ratio is 1, and with "
                "one update of each batch it always is; set objective.num_iterations or rollout.steps_per_generation "
                "above 1"
            )
        rewards = self.rewards
        if objective.advantages.rule == "reinforce" and objective.resample:
            problems.append(
                "objective.resample: discards groups with equal rewards, from which objective.advantages.rule: "
                "reinforce learns too; set one of the two otherwise"
            )
        if objective.advantages.rule == "reinforce" and not rewards.accuracy.weight:
            problems.append(
                "objective.advantages.rule: reinforce reads right and wrong alone, and rewards.accuracy.weight is 0; "
                "give it a weight, or choose another rule"
            )
        problems += rewards.problems()
        problems += self.evaluation.problems()
        if self.rewards.tags != Tags() and self.data.system_prompt == PAPER_SYSTEM_PROMPT:
            problems.append(
                "data.system_prompt: the default asks for <reasoning> and <answer>, but the rewards look for something "
                "else (rewards.answer, rewards.format.tags); write a prompt that asks for it, or set it to null"
            )
        if not any(rewards.weights.values()):
            problems.append("rewards: all weights are 0, so nothing can be learned; give one of them a weight")
        if self.training.eval_every is not None and self.evaluation.limit is None:
            problems.append("training.eval_every: limit these evaluations, e.g. with evaluation.limit: 100 (problems)")
        if self.training.eval_every is None and (self.training.keep_best or "").startswith("eval/"):
            problems.append(f"training.keep_best: {self.training.keep_best} is only measured with training.eval_every")
        if self.rollout.engine == "vllm" and self.model.lora is None:
            problems.append(
                "rollout.engine: vllm takes the policy's weights as an adapter; set model.lora, or engine: transformers"
            )
        if self.rollout.vllm.get("speculative_config") is not None and self.rollout.temperature != 1.0:
            problems.append(
                "rollout.vllm.speculative_config: it makes vLLM's log-probabilities wrong at temperatures other than "
                "1; set it to null, or rollout.temperature to 1"
            )
        if self.rollout.engine == "vllm" and self.model.lora is not None and self.model.lora.rank > LARGEST_RANK:
            problems.append(
                f"model.lora.rank: vLLM takes adapters up to rank {LARGEST_RANK}, and this one has rank "
                f"{self.model.lora.rank}; lower it, or use rollout.engine: transformers"
            )
        if self.model.load_in_4bit is True and self.model.lora is None:
            problems.append("model.load_in_4bit: 4-bit weights cannot train; set model.lora, or load_in_4bit: false")
        if problems:
            raise ValueError("\n".join(problems))
        return self
