"""Translate a training file of another tool into a recipe. `recipe/synonyms.py` has the words.

Settings that the file omits get the other tool's defaults, not gtpo's, so that the recipe describes the same run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gtpo_cli.data.benchmarks import BENCHMARKS, hub_source
from gtpo_cli.data.guess import guessed_data
from gtpo_cli.errors import DataError, RecipeError
from gtpo_cli.machine.first_recipe import recipe_lines
from gtpo_cli.recipe import Recipe, build_recipe
from gtpo_cli.recipe.data import OWN, SourceRecipe
from gtpo_cli.recipe.section import Section, fields_of, kinds_of
from gtpo_cli.recipe.synonyms import LOSS_TYPES, SCALES, keys_for
from gtpo_cli.rewards.extract import ANSWER_TAGS
from gtpo_cli.text import counted, one_line
from gtpo_cli.tools.translate.foreign import Foreign, Setting, read_foreign

_HUGGING_FACE = {
    "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "learning_rate": 5e-5, "num_train_epochs": 3,
    "lr_scheduler_type": "linear", "warmup_ratio": 0.0, "optim": "adamw_torch", "weight_decay": 0.0,
    "max_grad_norm": 1.0, "adam_beta1": 0.9, "adam_beta2": 0.999,
}  # fmt: skip
_GRPO = {"num_generations": 8, "max_completion_length": 512, "loss_type": "dapo"}
# The defaults of each tool (TRL 1.16; Unsloth as of 2025).
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "TRL": _HUGGING_FACE | _GRPO | {"learning_rate": 1e-6, "r": 8, "lora_alpha": 8},
    "Unsloth": _HUGGING_FACE
    | _GRPO
    | {
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "weight_decay": 0.01, "warmup_ratio": 0.1,
        "optim": "adamw_8bit", "r": 16, "lora_alpha": 16, "load_in_4bit": True, "max_seq_length": 2048,
    },
}  # fmt: skip
# One name for words with the same meaning if several settings form one key.
ALIKE = {
    "optimizer": "optim", "lora_r": "r", "lora_rank": "r", "max_length": "max_seq_length",
    "vllm_max_model_length": "max_seq_length", "torch_dtype": "dtype",
}  # fmt: skip
_OPTIMIZERS = dict.fromkeys(("adamw", "adamw_torch", "adamw_torch_fused", "adamw_hf", "paged_adamw_32bit"), "adamw")
_OPTIMIZERS |= dict.fromkeys(("adamw_8bit", "adamw_bnb_8bit"), "adamw_8bit") | {"paged_adamw_8bit": "paged_adamw_8bit"}
AVERAGES = {loss: average for average, loss in LOSS_TYPES.items()} | {"bnpo": "token"}
# Words that look like a key of gtpo but have another meaning.
FALSE_FRIENDS = {
    "entropy_coef": "it is a bonus in the loss there; here objective.entropy_coef is subtracted from the advantage",
    "steps_per_generation": "it counts forward passes there; rollout.steps_per_generation counts updates",
    "generation_batch_size": "it counts completions there; rollout.steps_per_generation counts updates",
    "trust_remote_code": "it runs code that comes with the model; write model.trust_remote_code: true if you want that",
    "log_completions": "sample completions are always kept (tracking.log_completions_every)",
    "load_in_8bit": "there are 4 bits or none",
    "top_p": "training samples from the policy itself, at rollout.temperature; evaluation.top_p is for gtpo eval",
    "max_lora_rank": "vLLM is told the adapter's own rank, model.lora.rank",
}  # fmt: skip
# Keys that need more than the other tool's value; they are reported with their meaning in gtpo.
BY_HAND = (
    "training.eval_every", "training.keep_best", "training.micro_batch_size", "objective.clip", "model.lora",
    "rewards.", "evaluation.", "data.",
)  # fmt: skip


class NoCounterpartError(Exception):
    """The reason why a value has no counterpart."""


def _choice(known: Mapping[Any, Any]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if not isinstance(value, (str, bool)) or value not in known:
            raise NoCounterpartError(f"there are {', '.join(dict.fromkeys(map(str, known.values())))}")
        return known[value]

    return read


def _whole(value: Any) -> int | None:
    """Read a positive whole number; -1 and 0 mean `not set` in other tools."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or (value > 0 and value != int(value)):
        raise NoCounterpartError("a whole number is needed here")
    return int(value) if value > 0 else None


def _run_name(value: Any) -> str:
    if not re.fullmatch(r"\w[\w.\-]{0,120}", str(value)):
        raise NoCounterpartError("a run's name has only letters, digits, _ . and -")
    return str(value)


VALUES: Mapping[str, Callable[[Any], Any]] = {
    "model.gradient_checkpointing": lambda value: bool(value),
    "rollout.engine": lambda value: "auto" if value else "transformers",
    "rollout.importance_correction": _choice({True: "truncated", False: "none", "token_truncate": "truncated"}),
    "optimizer.name": _choice(_OPTIMIZERS),
    "optimizer.schedule": _choice(
        {name: name for name in ("cosine", "linear", "constant")} | {"constant_with_warmup": "constant"}
    ),
    "optimizer.max_grad_norm": lambda value: value or 1e6,  # 0 clips nothing
    "training.epochs": _whole,
    "training.max_steps": _whole,
    "training.save_every": _whole,
    "training.keep_last": _whole,
    "data.shuffle": lambda value: bool(value),
    "data.template_arguments": lambda value: value if isinstance(value, dict) else {"enable_thinking": value},
    "data.system_prompt": lambda value: str(value),
    "run_name": _run_name,
}


def as_kind(key: str, value: Any) -> Any:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) and _is_float(key) else value


def _is_float(key: str) -> bool:
    kinds = kinds_of(fields_of(Recipe)[key].annotation)
    return float in kinds and int not in kinds


def as_number(value: Any) -> Any:
    """Convert text such as 1e-5 to a number, since YAML reads it, without a dot, as text."""
    try:
        return (
            float(value) if isinstance(value, str) and re.fullmatch(r"[\d.]+e[+-]?\d+", value, re.IGNORECASE) else value
        )
    except ValueError:
        return value


@dataclass(slots=True)
class Translation:
    """A translated training file.

    `document`: the recipe without `data`; `origins`: the words that each key comes from; `lacking`: a line for each
    setting without a counterpart, with the reason; `unknown`: unknown settings; `remarks`: values with another meaning
    in gtpo. `limit`: of the data, if the file sets it.
    """

    document: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    lacking: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    limit: int | None = None

    def set(self, key: str, value: Any, origin: str) -> None:
        """Set a key unless it is set already."""
        section, _, name = key.rpartition(".")
        values = self.document
        for part in section.split(".") if section else ():
            values = values.setdefault(part, {})
        values.setdefault(name, value)
        self.origins.setdefault(key, origin)


class _Words:
    """The settings of a file by word, with the tool's defaults. Words that are taken are not translated again."""

    def __init__(self, foreign: Foreign, lacking: list[str]) -> None:
        self.tool, self.lacking = foreign.tool, lacking
        self.left: dict[str, Setting] = {}
        for setting in foreign.settings:
            if setting.value in (None, ""):  # not set
                continue
            word = ALIKE.get(setting.word, setting.word)
            first = self.left.setdefault(word, setting)
            if setting.value != first.value:
                lacking.append(f"{setting}: {_shown(setting.value)}: {first} is read, which says {_shown(first.value)}")
        self.defaults = dict(DEFAULTS[foreign.tool])

    def take(self, word: str, default: Any = None) -> Any:
        setting = self.left.pop(word, None)
        return self.defaults.get(word, default) if setting is None else as_number(setting.value)

    def number(self, word: str, *, least: float = 0) -> Any:
        """Take a word if it is a number of at least `least`."""
        value = self.take(word)
        if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and value >= least):
            return value
        self.lacking.append(f"{word}: {_shown(value)}: is no number of {least} or more")
        return self.defaults.get(word)

    def count(self, word: str) -> Any:
        """Take a word if it is a whole number."""
        value = self.number(word, least=1)
        return value if value is None else int(value)

    def called(self, word: str) -> str:
        """Return the file's name for a word; call it before the word is taken."""
        return self.left[word].word if word in self.left else word


def translate(foreign: Foreign) -> Translation:
    """Translate a file. It never raises: settings without a counterpart are in `lacking` and `unknown`."""
    made = Translation(lacking=list(foreign.unread))
    words = _Words(foreign, made.lacking)
    for rule in (_model, _adapter, _prompt, _method, _batch, _lengths, _schedule, _tracking):
        rule(words, made)
    for word in ("learning_rate", "weight_decay", "max_grad_norm", "num_train_epochs", "optim", "lr_scheduler_type"):
        words.left.setdefault(word, Setting(word, words.defaults[word], -1))
    for setting in words.left.values():
        _one(setting, foreign.tool, made)
    if "max_steps" in made.document["training"]:  # ends the run in both tools
        made.document["training"].pop("epochs", None)
    return made


def _one(setting: Setting, tool: str, made: Translation) -> None:
    """Translate a setting that corresponds to one key."""
    word, value = setting.word, as_number(setting.value)
    key = next(iter(keys_for(word)), None)
    if word in FALSE_FRIENDS or key is None:
        if value in (False, 0, [], {}):  # switched off in the other tool, absent in gtpo
            return
        reason = FALSE_FRIENDS.get(word)
        if reason:
            made.lacking.append(f"{setting}: {_shown(value)}: {reason}")
        else:
            made.unknown.append(str(setting))
    elif key.key is None or (key.key.startswith(BY_HAND) and key.key not in VALUES):
        if value is not False:
            made.lacking.append(f"{setting}: {_shown(value)}: {key}")
    else:
        try:
            read = VALUES[key.key](value) if key.key in VALUES else value
            if read is not None:
                origin = f"{tool}'s default" if setting.line == -1 else "; ".join(filter(None, (word, key.note)))
                if said := made.origins.get(key.key):
                    if _at(made.document, key.key) != read:
                        raise NoCounterpartError(f"{key.key} is {_at(made.document, key.key)} by {said}")
                    made.origins[key.key] = f"{said}, {origin}"
                made.set(key.key, as_kind(key.key, read), origin)
        except NoCounterpartError as error:
            made.lacking.append(f"{setting}: {_shown(value)}: {error or key}")


def _model(words: _Words, made: Translation) -> None:
    name = words.take("model_name") or words.take("model_name_or_path") or words.take("model")
    made.set("model.name", name, "")
    kinds = {word: words.take(word) for word in ("dtype", "bf16", "fp16", "bfloat16", "float16")}
    dtype = kinds.pop("dtype")
    chosen = next((word for word, value in kinds.items() if value in (True, "auto", "full", "true")), None)
    if dtype in ("auto", "bfloat16", "float16", "float32"):
        made.set("model.dtype", dtype, "dtype")
    elif chosen is not None:
        made.set("model.dtype", "bfloat16" if chosen in ("bf16", "bfloat16") else "float16", chosen)


def _prompt(words: _Words, made: Translation) -> None:
    """Translate the system prompt, and take from it where it asks for the answer."""
    prompt = words.take("system_prompt")
    if not isinstance(prompt, str):
        return
    made.set("data.system_prompt", prompt, "system_prompt")
    tags = list(dict.fromkeys(re.findall(r"<(\w+)>(?=.*</\1>)", prompt, re.DOTALL)))
    named, said = [tag for tag in tags if tag.lower() in ANSWER_TAGS], "in the system prompt"
    boxed = "\\boxed" in prompt and not named  # a box within the answer's tags is peeled
    answers = [] if boxed else named or tags[1:2]
    others = [tag for tag in tags if tag not in answers]
    if len(answers) + boxed == 1 and len(others) < 2:
        made.set("rewards.format.tags.reasoning", others[0] if others else None, said)
        if boxed:
            made.set("rewards.answer", "boxed", said)
        else:
            made.set("rewards.format.tags.answer", answers[0], said)
    elif tags:
        made.lacking.append(f"system_prompt: asks for {', '.join(tags)}; write into rewards what counts as the answer")


def _adapter(words: _Words, made: Translation) -> None:
    """Translate LoRA or all weights, and 4 bits."""
    wanted, four = bool(words.take("use_peft")), bool(words.take("load_in_4bit"))
    rank, alpha, dropout = words.count("r"), words.number("lora_alpha"), words.number("lora_dropout")
    targets = [words.take(word) for word in ("target_modules", "lora_target_modules")]
    modules = next((value for value in targets if value not in (None, False)), None)
    if not wanted:
        made.set("model.load_in_4bit", False, "all weights train")
        made.set("model.lora", None, "all weights train")
        return
    made.set("model.load_in_4bit", four, "")
    lora: dict[str, Any] = {"rank": rank, "alpha": alpha}
    if dropout:
        made.lacking.append(f"lora_dropout: {dropout}: adapters have no dropout here (docs/objective.md)")
    if isinstance(modules, str) and modules != "all-linear":
        modules = [part.strip() for part in modules.split(",")]
    if modules:
        lora["target_modules"] = modules
    made.set("model.lora", lora, "the adapter")


def _method(words: _Words, made: Translation) -> None:
    """Translate the loss: its average over tokens and its clip range."""
    loss, low, high = words.take("loss_type"), words.number("epsilon"), words.number("epsilon_high")
    scale = words.take("scale_rewards")
    made.set("objective.name", "cispo" if loss == "cispo" else "grpo", "or gtpo: the same with its three corrections")
    if isinstance(loss, str) and loss in AVERAGES:
        made.set("objective.average", AVERAGES[loss], f"loss_type: {loss}")
    elif loss != "cispo":
        made.lacking.append(f"loss_type: {_shown(loss)}: no such loss here; GRPO's stands (docs/objective.md)")
    clip = {"low": low, "high": high if high is not None else low if loss != "cispo" else None}
    if clip := {end: value for end, value in clip.items() if value is not None}:
        made.set("objective.clip", clip, "epsilon, epsilon_high")
    scales = {value: ours for ours, value in SCALES.items()} | {True: "std", False: "none"}
    if isinstance(scale, (str, bool)) and scale in scales:
        made.set("objective.advantages.config", {"scale": scales[scale]}, "scale_rewards")
    elif scale is not None:
        made.lacking.append(f"scale_rewards: {_shown(scale)}: rewards are scaled within a group, or not at all")


def _batch(words: _Words, made: Translation) -> None:
    """Translate completions on a device to prompts with a group each."""
    group = words.count("num_generations")
    called = words.called("per_device_train_batch_size")
    size, pieces = words.count("per_device_train_batch_size"), words.count("gradient_accumulation_steps")
    said = f"{called} {size} x gradient_accumulation_steps {pieces}"
    if size * pieces % group and words.tool == "Unsloth":
        said = f"num_generations {group} (so Unsloth sets the batch size) x gradient_accumulation_steps {pieces}"
        size = group
    elif size * pieces % group:
        made.lacking.append(f"{said}: is no multiple of num_generations, {group}, which {words.tool} refuses")
    prompts = max(1, size * pieces // group)
    made.set("rollout.group_size", group, "num_generations")
    made.set("rollout.prompts_per_step", prompts, f"{said} / {group}, on one device")
    made.set("training.micro_batch_size", size, f"{called}: in one forward; the step does not depend on it")
    step = f"{counted(prompts, 'prompt')} x {counted(group, 'completion')}"
    made.remarks.append(f"a step is {step}: {said}, on one device; for more devices raise rollout.prompts_per_step")


def _lengths(words: _Words, made: Translation) -> None:
    row, prompt, completion = (words.count(f"max_{part}_length") for part in ("seq", "prompt", "completion"))
    if row is not None and row <= completion:
        made.remarks.append(f"model.max_seq_length: {row} would leave a prompt no room, so it is {row + completion}")
        row = row + completion
    prompt = prompt or (row - completion if row else 4000)
    row = max(row or 0, prompt + 1) if row else prompt + completion
    made.set("model.max_seq_length", row, "prompt and completion together")
    made.set("data.max_prompt_tokens", prompt, "longer prompts are dropped, none is cut")
    made.set("rollout.max_completion_tokens", completion, "max_completion_length")


def _schedule(words: _Words, made: Translation) -> None:
    """Translate Adam's betas, the warm-up and the checkpoints."""
    betas = [words.number("adam_beta1"), words.number("adam_beta2")]
    made.set("optimizer.betas", betas, "adam_beta1, adam_beta2")
    steps, warmup, ratio = words.left.get("max_steps"), words.number("warmup_steps"), words.number("warmup_ratio")
    total = steps.value if steps is not None else None
    if warmup and warmup >= 1 and isinstance(total, int) and total > 0:
        ratio = round(min(1.0, warmup / total), 6)
    elif warmup and warmup >= 1:
        why = "optimizer.warmup_ratio is a share of all steps, and how many there are the file does not say"
        made.lacking.append(f"warmup_steps: {warmup}: {why}")
    elif warmup:
        ratio = warmup
    made.set("optimizer.warmup_ratio", float(ratio), "a share of all steps")
    made.limit = words.count("max_train_samples")


def _tracking(words: _Words, made: Translation) -> None:
    report = words.take("report_to")
    names = report if isinstance(report, list) else [report]
    if report is not None:
        made.set("tracking.wandb.mode", "auto" if "wandb" in names or "all" in names else "off", "report_to")
        if "tensorboard" in names:
            made.set("tracking.tensorboard", True, "report_to")
        made.lacking += [f"report_to: {_shown(name)}: there are wandb and TensorBoard"
                         for name in names if name not in ("wandb", "tensorboard", "none", "all")]  # fmt: skip


def _at(document: Mapping[str, Any], key: str) -> Any:
    for part in key.split("."):
        document = document[part]
    return document


def _shown(value: Any) -> str:
    return one_line(str(value), most=60)


# -- the written recipe ------------------------------------------------------------------------------------------------


class TranslatedRecipe(NamedTuple):
    """A recipe's `text`. `remarks`: lines for the user, such as settings without counterpart; `text` has them too."""

    text: str
    tool: str
    remarks: list[str]


def translated_recipe(path: Path, *, model: str | None, data: Mapping[str, str] | None) -> TranslatedRecipe:
    """Translate a file without running it. `model`, `data` (benchmark, and path or dataset) override the file's.

    Raises RecipeError for a file of no known tool, one that names no model or data, and values out of range.
    """
    foreign = read_foreign(path)
    made = translate(foreign)
    name = model or made.document["model"]["name"]
    if not isinstance(name, str):
        raise RecipeError(f"{path}: names no model that can be read; name it: --model MODEL")
    source = dict(data) if data is not None else foreign.source
    if not source:
        raise RecipeError(_no_data(foreign))
    made.document["model"]["name"] = name
    made.document["data"] = _source(source, made) | made.document.get("data", {})
    build_recipe(made.document, where=f"{path}, in gtpo's words")
    remarks = [*made.remarks, *(f"left out: {line}" for line in made.lacking)]
    if made.unknown:
        remarks.append(f"left out, without a counterpart: {', '.join(made.unknown)}")
    notes = {key: words for key, words in made.origins.items() if words not in ("", key.rpartition(".")[2])}
    heading = (
        f"# Translated from {one_line(str(path))} ({foreign.tool}) by gtpo init; behind a key what it is called there."
    )
    end = ["", *(f"# {one_line(line, most=1000)}" for line in remarks)] if remarks else []
    text = "\n".join([heading, *recipe_lines(_in_order(made.document, Recipe), notes), *end]) + "\n"
    return TranslatedRecipe(text, foreign.tool, remarks)


def _no_data(foreign: Foreign) -> str:
    found = [line for line in foreign.unread if line.startswith(("dataset", "load_dataset"))]
    why = f" ({'; '.join(found)})" if found else ""
    return (
        f"{foreign.path}: names no data that can be read{why}; name them: --data FILE or a hub id, or --benchmark gsm8k"
    )


def _source(source: dict[str, Any], made: Translation) -> dict[str, Any]:
    """Write a set of data as in a recipe: by name if it is a known benchmark, else with its columns."""
    section = SourceRecipe.model_validate(source)
    hub = hub_source(section) if section.dataset is not None else None
    known = [
        name
        for name, spec in BENCHMARKS.items()
        if hub and spec.hub and "train" in (spec.hub.splits or ())
        if spec.hub.id == hub.id and hub.config in (None, spec.hub.config) and hub.revision is None
    ]
    if known:
        source = {"benchmark": known[0]}
    elif section.benchmark in OWN:
        try:
            source = guessed_data(section) | source
        except DataError as error:
            made.remarks.append(f"data.columns: {section.name} is not here to be looked at: {error}")
    if made.limit is not None:
        source["limit"] = made.limit
    if source.get("split") == "train":
        del source["split"]
    return _in_order(source, SourceRecipe)


def _in_order(values: Mapping[str, Any], section: type[Section]) -> dict[str, Any]:
    """Sort keys as in the recipe's section."""
    inner = {key: info.annotation for key, info in section.model_fields.items()}
    sections = {key: kind for key, kind in inner.items() if isinstance(kind, type) and issubclass(kind, Section)}
    return {
        key: _in_order(values[key], sections[key]) if key in sections else values[key] for key in inner if key in values
    }
