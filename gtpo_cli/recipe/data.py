"""The section `data` of a recipe: the problems, their source, their columns, and mixtures of several sources."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Field, JsonValue, model_validator
from pydantic_core import PydanticKnownError

from gtpo_cli.recipe.section import Count, NonEmpty, Section
from gtpo_cli.types import CodeName

PAPER_SYSTEM_PROMPT = """\
You are a helpful assistant for solving math problems.
Given a question, first think step by step between <reasoning> and </reasoning>.
Then, give the final answer between <answer> and </answer>.
"""

# System prompts by name, with who uses them. `none` is no system prompt.
PRESETS: dict[str, str | None] = {
    "none": None,
    "gtpo": PAPER_SYSTEM_PROMPT,  # arXiv 2508.03772
    # the model cards of Qwen2.5-Math, QwQ and DeepSeek-R1
    "qwen_boxed": "Please reason step by step, and put your final answer within \\boxed{}.",
    # the data set of DAPO (arXiv 2503.14476), after OpenAI's simple-evals
    "dapo": "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.",
    # verl's GSM8K example
    "verl_hashes": 'Let\'s think step by step and output the final answer after "####".',
}
Preset = Literal["none", "gtpo", "qwen_boxed", "dapo", "verl_hashes"]

BUILT_IN = {  # tasks that gtpo makes from a seed, without file or hub
    "arithmetic": "chains of three additions and subtractions of one-digit numbers",
    "word_problems": "word problems of one operation",
}
GYM = "reasoning_gym/"  # and the name of one of its tasks
KNOWN = ("gsm8k", "math", "math500", "aime24", "aime25", "amc23", *BUILT_IN, "local", "hub", "mixture")
_GYM_TASK = re.compile(rf"{GYM}\w+")
OWN = ("local", "hub")  # whose columns and gold answers the recipe describes
OWN_KEYS = ("columns", "gold", "where", "held_out")  # that are for those alone
DEFAULT_SPLIT = "train"
GOLD = ("auto", "column", "hashes", "boxed")
FILES = (".jsonl", ".json", ".parquet", ".csv", ".tsv")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?:[:@]|$)")
_DATASET = re.compile(r"([^:@]+)(?::([^:@]+))?(?:@(.+))?")
_FUNCTION = re.compile(r"(?:[A-Za-z_][\w.]*|[^:\0]+\.py):[A-Za-z_]\w*")


def is_function(name: str) -> bool:
    """Return whether it names a function of the user's own: file.py:function or pkg.module:function."""
    return _FUNCTION.fullmatch(name) is not None


def is_task(name: str) -> bool:
    """Return whether a benchmark is a task, which makes its problems: built in, of reasoning-gym, or a class of the
    user's own (file.py:Class, pkg.module:Class)."""
    return name in BUILT_IN or _GYM_TASK.fullmatch(name) is not None or is_function(name)


def _benchmark(name: str) -> str:
    if name not in KNOWN and not is_task(name):
        known = ", ".join(map(repr, KNOWN))
        raise PydanticKnownError("literal_error", {"expected": f"{known}, {GYM}NAME (gtpo tasks) or FILE.py:CLASS"})
    return CodeName(name) if ":" in name else name


Benchmark = Annotated[NonEmpty, AfterValidator(_benchmark)]


def _source_name(name: str) -> str:
    return CodeName(name) if is_function(name) else name


def _known_gold(gold: str) -> str:
    if gold in GOLD:
        return gold
    if not is_function(gold):
        raise ValueError(f"is neither one of {', '.join(GOLD)} nor a function (file.py:function, pkg.module:function)")
    return CodeName(gold)


class DatasetParts(NamedTuple):
    """A data set of the hub: owner/name (or a folder laid out as there), its configuration and its revision."""

    id: str
    config: str | None
    revision: str | None


def dataset_parts(written: str) -> DatasetParts:
    """Read `owner/name:config@revision`. Raises ValueError for anything else."""
    if (found := _DATASET.fullmatch(written)) is None:
        raise ValueError("is no data set; expected owner/name, or owner/name:config@revision")
    return DatasetParts(*found.groups())


def is_hub_id(text: str) -> bool:
    """Return whether a text is a data set's id on the hub, perhaps with its configuration and revision."""
    return _HUB_ID.match(text) is not None and _DATASET.fullmatch(text) is not None and not text.endswith(FILES)


def _dataset(written: str | None) -> str | None:
    if written is not None:
        dataset_parts(written)
    return written


def _from_low_to_high(span: tuple[float, float]) -> tuple[float, float]:
    low, high = span
    if low > high:
        raise ValueError(f"expected [lowest, highest], not [{low:g}, {high:g}]")
    return span


class ColumnsRecipe(Section):
    question: NonEmpty | Annotated[tuple[NonEmpty, ...], Field(min_length=1)] = Field(
        "question",
        description="question, as text or chat messages; a.b: b within a; several columns are joined: "
        "[instruction, input]",
    )
    answer: NonEmpty = Field("answer", description="gold answer; in chat messages the assistant's last")
    solution: NonEmpty | None = Field(None, description="worked solution, for SFT; null = the answer's column")
    choices: NonEmpty | None = Field(
        None,
        description="answers to choose from; they follow the question with letters, and the gold answer is a letter",
    )


class SourceRecipe(Section):
    """One set of problems."""

    benchmark: Benchmark = Field(
        description=f"which problems: {', '.join(KNOWN)}; a task of reasoning-gym ({GYM}chain_sum; gtpo tasks); or "
        "your own (file.py:Class, pkg.module:Class; docs/tasks.md)"
    )
    config: dict[NonEmpty, JsonValue] = Field(
        default_factory=dict,
        description=f"a task's own keys, such as {{max_terms: 4}} for {GYM}chain_sum; in a mixture by its name",
    )
    split: NonEmpty = Field(DEFAULT_SPLIT, description="split of the data set; leave it out for a single file")
    path: NonEmpty | None = Field(
        None,
        description="local file, pattern, or folder with the files of each split, instead of the hub (jsonl, json, "
        "parquet, csv, tsv)",
    )
    dataset: Annotated[NonEmpty | None, AfterValidator(_dataset)] = Field(
        None,
        description="for benchmark: hub: owner/name, or a folder laid out as there; owner/name:config@revision names a "
        "configuration (subset) and a branch, tag or commit",
    )
    columns: ColumnsRecipe = Field(
        default_factory=ColumnsRecipe, description="column names, for benchmark: local and hub"
    )
    gold: Annotated[NonEmpty, AfterValidator(_known_gold)] = Field(
        "auto",
        description=(
            "gold answer of local and hub: column (as it stands), hashes (after ####), boxed (the last \\boxed{}), "
            "auto (hashes in the last line, else boxed, else column), or your own function from a row to text "
            "(file.py:function, pkg.module:function)"
        ),
    )
    where: dict[NonEmpty, Annotated[tuple[float, float], AfterValidator(_from_low_to_high)]] = Field(
        default_factory=dict,
        description="rows of local and hub to train on, by a column of numbers: {solve_rate: [0.1, 0.8]}, both ends "
        "included",
    )
    held_out: float = Field(
        0.0, ge=0.0, lt=1.0, description="share of questions kept as the test split of local and hub"
    )
    limit: Count | None = Field(None, description="a sample of this many problems of the split")

    @model_validator(mode="before")
    @classmethod
    def _implied(cls, written: Any) -> Any:
        if isinstance(written, Mapping) and "benchmark" not in written and (name := implied_benchmark(written)):
            return {**written, "benchmark": name}
        return written

    @property
    def name(self) -> str:
        """The displayed name: a file, a data set's id with its configuration, or a benchmark."""
        return self.path or ((self.dataset or "").partition("@")[0] or self.benchmark)

    def problems(self, key: str = "data") -> list[str]:
        """List contradictions between keys, one line each that begins with the key; `key`: the section's own key."""
        name, found = self.benchmark, []
        if name == "local" and self.path is None:
            found.append(f"{key}.path: benchmark: local needs a file or folder")
        if name == "hub" and self.dataset is None and self.path is None:
            found.append(f"{key}.dataset: benchmark: hub needs a data set's id, e.g. dataset: owner/name")
        if is_task(name) and self.path is not None:
            found.append(f"{key}.path: {name} is generated; remove {key}.path, or use benchmark: local")
        if self.config and not is_task(name) and name != "mixture":
            found.append(f"{key}.config: is for tasks, and {name} is none; remove the key")
        if name != "hub" and self.dataset is not None:
            found.append(f"{key}.dataset: is for benchmark: hub, not {name}; set {key}.benchmark: hub, or remove it")
        if name not in (*OWN, "mixture"):
            if self.gold != "auto":
                found.append(f"{key}.gold: {name} has its own rule; remove the key, or use benchmark: local or hub")
            if self.held_out:
                found.append(f"{key}.held_out: {name} has its own test split; remove the key")
            if self.where:
                found.append(f"{key}.where: is for benchmark: local and hub, not {name}; remove the key")
        return found


class CurriculumRecipe(Section):
    raise_at: float = Field(0.8, gt=0.0, le=1.0, description="accuracy from which a task's level rises")
    lower_at: float = Field(0.2, ge=0.0, lt=1.0, description="accuracy down to which it falls")
    over: Count = Field(200, description="last completions at the level that the accuracy is of")
    column: NonEmpty | None = Field(None, description="for files and hub sets: a column of numbers, low ones first")


class DataRecipe(SourceRecipe):
    mixture: dict[Annotated[NonEmpty, AfterValidator(_source_name)], Annotated[float, Field(gt=0.0, le=1000.0)]] = (
        Field(
            default_factory=dict,
            description="several sources with weights, {gsm8k: 2, mine.jsonl: 1}: benchmarks, tasks, files, and ids on "
            "the hub; each problem comes at least once an epoch",
        )
    )
    curriculum: CurriculumRecipe | None = Field(
        None, description="levels of tasks that follow the model's accuracy, {raise_at: 0.8, lower_at: 0.2, over: 200}"
    )
    rest_after: Count | None = Field(
        None, description="a prompt whose groups were all right or all wrong so often in a row rests; null = never"
    )
    shuffle: bool = Field(True, description="new order each epoch")
    max_prompt_tokens: int = Field(4000, ge=1, description="longer prompts are dropped and counted")
    system_prompt: str | None = Field(
        PAPER_SYSTEM_PROMPT, description="system message, if a row's chat messages have none; null = none"
    )
    system_prompt_preset: Preset | None = Field(
        None, description="a known prompt in its place; null = the one that asks for rewards.answer"
    )
    template_arguments: dict[NonEmpty, JsonValue] = Field(
        default_factory=dict, description="given to the tokenizer's chat template, such as {enable_thinking: false}"
    )

    @property
    def sources(self) -> tuple[SourceRecipe, ...]:
        """The sources of the mixture, or this section itself."""
        return tuple(map(self._source, self.mixture)) or (self,)

    def _source(self, name: str) -> SourceRecipe:
        """Return a source of the mixture. OWN_KEYS are those of files and hub sets."""
        where = _where(name)
        if "benchmark" in where:
            own = {"config": self.config.get(name, {})}
        else:
            own = {key: getattr(self, key) for key in OWN_KEYS}
        return SourceRecipe(split=self.split, limit=self.limit, **where, **own)

    def problems(self, key: str = "data") -> list[str]:
        found = super().problems(key)
        if (curriculum := self.curriculum) is not None and curriculum.lower_at >= curriculum.raise_at:
            found.append(f"{key}.curriculum.lower_at: is not below raise_at; levels would move for ever")
        if self.system_prompt_preset is not None and self.system_prompt != PRESETS[self.system_prompt_preset]:
            found.append(f"{key}.system_prompt_preset: {key}.system_prompt has a text of its own; remove one of them")
        if not self.mixture:
            if self.benchmark == "mixture":
                found.append(f"{key}.mixture: benchmark: mixture needs sources, e.g. {{gsm8k: 2, mine.jsonl: 1}}")
            return found
        if self.benchmark != "mixture":
            found.append(f"{key}.mixture: is for benchmark: mixture, not {self.benchmark}; name that in the mixture")
        for name in ("path", "dataset"):
            if getattr(self, name) is not None:
                found.append(f"{key}.{name}: is for one source; name it in data.mixture")
        found += [
            f"{key}.config.{name}: is no task of this mixture; write each task's keys under its name there"
            for name in self.config
            if name not in self.mixture or not is_task(name)
        ]
        if all("benchmark" in _where(source) for source in self.mixture):
            for name in OWN_KEYS:
                if getattr(self, name) != SourceRecipe.model_fields[name].get_default(call_default_factory=True):
                    found.append(f"{key}.{name}: is for files and hub sets, and this mixture has none; remove the key")
        if "mixture" in self.mixture:
            found.append(f"{key}.mixture: mixture is no source; list its sources instead")
        return sorted(found)


def _where(source: str) -> dict[str, Any]:
    """Return the keys that say where a source of a mixture is: a benchmark, a file or folder, or an id on the hub."""
    if source in KNOWN or is_task(source):
        return {"benchmark": source}
    return {"dataset": source} if is_hub_id(source) else {"path": source}


def implied_benchmark(written: Mapping[str, Any]) -> str | None:
    """Return the implied `benchmark` of a section without that key."""
    names = {"mixture": "mixture", "dataset": "hub", "path": "local"}
    return next((name for key, name in names.items() if written.get(key)), None)
