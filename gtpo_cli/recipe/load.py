"""Make a `Recipe` from a file and `--set` overrides, or raise one `RecipeError` with every problem.

Precedence, later wins: schema defaults, defaults that depend on the model or the objective, the recipe that the file
`extends`, the file, the overrides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from gtpo_cli.errors import RecipeError
from gtpo_cli.recipe.data import KNOWN, PRESETS, implied_benchmark, is_task
from gtpo_cli.recipe.methods import ANSWERS, CLIPS, METHODS
from gtpo_cli.recipe.schema import BUILTIN_DEFAULTS, LONGEST_ROW, Recipe, default_ks
from gtpo_cli.recipe.section import LARGEST, fields_of
from gtpo_cli.recipe.yaml_text import parse_yaml
from gtpo_cli.text import did_you_mean, nearest_of, shown

MAX_BYTES = 2**20  # of a recipe's file, so that a model's weights named by mistake are not read
MAX_DOTS = 20  # in the key of an override
LENGTHS = ("model.max_seq_length", "data.max_prompt_tokens", "rollout.max_completion_tokens")
_RULES = ("advantages", "token_weights", "loss")  # sections of the objective that name one
_LISTS = {"tuple_type": "expected a list, as [a, b]", "too_short": "expected a list of one or more"}


def load_recipe(name_or_path: str | Path, *layers: Iterable[str]) -> Recipe:
    """Read a recipe, apply overrides, validate.

    `name_or_path`: a file, or the name of a shipped recipe, with or without `.yaml`.
    `layers`: overrides, a later layer over an earlier one: strings `dotted.key=value`, with the value in YAML. A
    mapping is merged into the existing section. A layer that names another rule drops the keywords of the one below.
    Raises RecipeError with all problems at once, each with file, key, problem and the nearest valid key or value.
    Imports no torch.
    """
    path = find_recipe(name_or_path)
    return build_recipe(_extended(read_mapping(path), path), *layers, where=str(path))


def _extended(document: dict[str, Any], path: Path) -> dict[str, Any]:
    """Merge the document into the recipe that it names in `extends`: a file beside it, or a shipped recipe."""
    named = document.pop("extends", None)
    if named is None:
        return document
    if not isinstance(named, str) or not named:
        raise RecipeError(f"{path}: extends: expected the name of a recipe, got {shown(named)}")
    try:
        base = find_recipe(named, beside=path.parent)
    except RecipeError as error:
        raise RecipeError(f"{path}: extends: {error}") from error
    if base.resolve() == path.resolve():
        raise RecipeError(f"{path}: extends: the recipe extends itself; name another one, or remove the key")
    below = read_mapping(base)
    if "extends" in below:
        raise RecipeError(f"{path}: extends: {base} extends another recipe itself; name one without extends")
    return _over(_unresolved(below), document)


def build_recipe(document: Mapping[str, Any], *layers: Iterable[str], where: str) -> Recipe:
    """Validate a recipe that is already a mapping; `layers` as in `load_recipe`; `where` names it in messages.

    Raises RecipeError.
    """
    problems: list[str] = []
    overridden: set[str] = set()
    merged = _unresolved(document)
    for overrides in layers:
        merged = _over(merged, _layer(overrides, problems, overridden))
    recipe = None
    try:
        recipe = Recipe.model_validate(_merge(_conditional_defaults(merged), merged))
    except ValidationError as error:
        problems.extend(describe_problems(error, where, overridden))
    if problems:
        raise RecipeError(problems)
    assert recipe is not None
    return recipe


def overridden_keys(overrides: Iterable[str]) -> list[str]:
    """List the dotted keys that overrides set, including those inside a mapping."""
    keys: list[str] = []
    for override in overrides:
        key, _, text = override.partition("=")
        with suppress(ValueError):  # loading the recipe reports it
            keys += _dotted(key.strip(), parse_yaml(text))
    return keys


def _dotted(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from _dotted(f"{key}.{name}", inner)
    else:
        yield key


def _layer(overrides: Iterable[str], problems: list[str], overridden: set[str]) -> dict[str, Any]:
    """Return overrides as a mapping, and add their keys to `overridden` and what is wrong with them to `problems`."""
    layer: dict[str, Any] = {}
    for override in overrides:
        key, separator, text = override.partition("=")
        key = key.strip()
        if not separator or not key:
            problems.append(
                f"--set {_printable(override)}: expected dotted.key=value, e.g. --set objective.entropy_coef=0.01"
            )
            continue
        if key.count(".") > MAX_DOTS:
            problems.append(f"--set {_printable(override)}: the key has too many parts; docs/recipe.md lists all keys")
            continue
        try:
            value = parse_yaml(text)
        except ValueError as error:
            problems.append(f"--set {_printable(override)}: the value cannot be read ({error}); quote it if it is text")
            continue
        layer = _merge(layer, _nest(key, value))
        overridden.add(key)
    return layer


def dump_recipe(recipe: Recipe) -> str:
    """Write the resolved recipe as YAML text, which `load_recipe` reads back to an equal recipe."""
    text: str = yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=110)
    return text


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file with one mapping. Raises RecipeError. The safe loader never runs code from the file."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read ({error.strerror or error})") from error
    if len(content) > MAX_BYTES:
        raise RecipeError(f"{path}: is larger than {MAX_BYTES // 2**20} MiB, too large for a recipe; name a YAML file")
    try:
        document = parse_yaml(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RecipeError(
            f"{path}: is not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8"
        ) from error
    except ValueError as error:
        raise RecipeError(f"{path}: {error}") from error
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise RecipeError(f"{path}: a recipe is a mapping of keys (model:, data:, ...), not {type(document).__name__}")
    for key in document:
        if not isinstance(key, str):
            raise RecipeError(f"{path}: the key {shown(key)} is not text; the keys of a recipe are model:, data:, ...")
    return document


def shipped_recipes() -> dict[str, Path]:
    """Map the names of the recipes that come with gtpo to their files."""
    return _shipped("*.yaml")


def shipped_sweeps() -> dict[str, Path]:
    """Map the names of the sweeps that come with gtpo to their files."""
    return _shipped("sweeps/*.yaml")


def _shipped(pattern: str) -> dict[str, Path]:
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_recipes", package.parent / "recipes"):  # in a wheel, in a checkout
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob(pattern))}
    return {}


def find_recipe(name_or_path: str | Path, *, beside: Path | None = None) -> Path:
    """Find a file as given or with `.yaml` added, or a shipped recipe of that name. Raises RecipeError.

    `beside`: a folder to look in first.
    """
    return _find(str(name_or_path), shipped_recipes(), "recipe", "gtpo recipes list shows the shipped ones", beside)


def find_sweep(name_or_path: str) -> Path:
    """Find a file as given or with `.yaml` added, or a shipped sweep of that name. Raises RecipeError."""
    return _find(name_or_path, shipped_sweeps(), "sweep", "gtpo sweep lists the shipped ones")


def _find(given: str, shipped: Mapping[str, Path], what: str, otherwise: str, beside: Path | None = None) -> Path:
    for place in (*([] if beside is None else [beside / given]), Path(given)):
        for candidate in (place, Path(f"{place}.yaml")):
            if _is_file(candidate):
                return candidate
    name = given.removesuffix(".yaml")
    if name in shipped:
        return shipped[name]
    if Path(given).is_dir():
        raise RecipeError(f"{given}: is a folder; name the {what}'s file, or a shipped {what} ({otherwise})")
    hint = did_you_mean(name, shipped, otherwise)
    raise RecipeError(f"{_printable(given)}: no such file and no shipped {what} of that name; {hint}")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:  # the name is too long, or a folder is not accessible
        raise RecipeError(f"{_printable(str(path))}: cannot be looked up ({error.strerror or error})") from error


def _conditional_defaults(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults that depend on `model.name`, `objective.name`, `rewards.answer` and the data."""
    model, objective, data, rewards = (_section(written, name) for name in ("model", "objective", "data", "rewards"))
    chosen: dict[str, Any] = dict(ANSWERS.get(str(rewards.get("answer", "tags")), {}))
    if str(model.get("name", "")).startswith("builtin:"):
        chosen |= BUILTIN_DEFAULTS
    if (preset := str(data.get("system_prompt_preset"))) in PRESETS:
        chosen["data.system_prompt"] = PRESETS[preset]
    chosen |= _of_method(written)
    if data.get("curriculum") is not None or data.get("rest_after") is not None:
        chosen["training.keep_best"] = None  # accuracy in training is then of other problems at each step
    if "clip_epsilon" in objective:  # sets both
        ends = ("objective.clip.low", "objective.clip.high")
        chosen = {key: value for key, value in chosen.items() if key not in ends}
    lengths = _nested(_lengths(written))
    return _merge(lengths, _nested(chosen | _following(_merge(lengths, written))))


def _lengths(written: Mapping[str, Any]) -> dict[str, int]:
    """Return defaults for the lengths that a recipe does not set but that depend on lengths it sets.

    Prompt and completion share a short row, with at least half of it for the prompt. A long prompt or completion makes
    the row longer, up to LONGEST_ROW.
    """
    parts = (key.partition(".") for key in LENGTHS)
    row, prompt, completion = (_length(_section(written, section).get(name)) for section, _, name in parts)
    longest_row, longest_prompt, longest_completion = (fields_of(Recipe)[key].default for key in LENGTHS)
    if not {"model", "data"} <= written.keys():
        return {}  # validation reports the missing section
    if row is None:
        both = (prompt or longest_prompt) + (completion or longest_completion)
        return {LENGTHS[0]: min(max(longest_row, both), LONGEST_ROW)}
    half = max(row // 2, 1)
    completion = completion or min(longest_completion, half if prompt is None else max(row - prompt, 1))
    return {LENGTHS[1]: min(longest_prompt, max(row - completion, half)), LENGTHS[2]: completion}


def _length(written: Any) -> int | None:
    return written if type(written) is int and 0 < written <= LARGEST else None  # not bool


def _following(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults that follow from values of other keys. Validation reports wrong values of those."""
    data, rollout, evaluation = (_section(written, name) for name in ("data", "rollout", "evaluation"))
    follow: dict[str, Any] = {}
    benchmark = data.get("benchmark", implied_benchmark(data))
    if isinstance(benchmark, str) and (benchmark in KNOWN or is_task(benchmark)):
        follow["evaluation.benchmarks"] = [benchmark]
    if (longest := _length(rollout.get("max_completion_tokens"))) is not None:
        follow["evaluation.max_completion_tokens"] = longest
    if isinstance(samples := evaluation.get("samples"), int):
        follow |= {f"evaluation.{key}": list(ks) for key, ks in default_ks(samples).items()}
    return follow


def _of_method(written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults that follow from the method and from the rules that a recipe names."""
    name = _method(written)
    own, meant = _rules({"objective": {"name": name}}), _rules(written)
    chosen = {**METHODS.get(name, {}), **CLIPS.get(str(meant["loss"]), {})}
    others = [f"objective.{key}.config" for key in _RULES if meant[key] != own[key]]
    return {key: value for key, value in chosen.items() if key not in others}  # its keywords are for its own rule


def _unresolved(document: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the keys of a resolved recipe whose values follow from others, so that they follow an override again."""
    if not Recipe.model_fields.keys() <= document.keys():
        return dict(document)
    keys = dict.fromkeys(key for switches in (*METHODS.values(), *CLIPS.values()) for key in switches)
    of_method = {key: _default(key) for key in keys} | _of_method(document)
    for key, value in (of_method | _following(document)).items():
        document = _without(document, key, value)
    return dict(document)


def _default(key: str) -> Any:
    """Return the schema's default of a key as it is written in a file."""
    value = fields_of(Recipe)[key].get_default(call_default_factory=True)
    return list(value) if isinstance(value, tuple) else value


def _without(document: Mapping[str, Any], dotted: str, value: Any) -> dict[str, Any]:
    """Return the document without a key if that has this value."""
    first, _, rest = dotted.partition(".")
    if rest and isinstance(inner := document.get(first), Mapping):
        return {**document, first: _without(inner, rest, value)}
    return {key: found for key, found in document.items() if key != dotted or found != value}


def _section(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return section if isinstance(section := document.get(name), Mapping) else {}


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn values by dotted key into sections."""
    nested: dict[str, Any] = {}
    for key, value in values.items():
        nested = _merge(nested, _nest(key, value))
    return nested


def _nest(dotted: str, value: Any) -> dict[str, Any]:
    for part in reversed(dotted.split(".")):
        value = {part: value}
    assert isinstance(value, dict)
    return value


def _over(below: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a layer over the one below. Where that changes a rule, the keywords of the rule below go with it."""
    before, after = _rules(below), _rules(_merge(below, top))
    objective = dict(_section(below, "objective"))
    for key in (key for key in _RULES if key in objective and before[key] != after[key]):
        objective[key] = {name: value for name, value in _section(objective, key).items() if name != "config"}
    return _merge({**below, "objective": objective} if objective else below, top)


def _rules(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rules of the objective that a document means."""
    objective, method = _section(document, "objective"), METHODS.get(_method(document), {})
    names = {key: f"objective.{key}.rule" for key in _RULES}
    return {key: _section(objective, key).get("rule", method.get(name, _default(name))) for key, name in names.items()}


def _method(document: Mapping[str, Any]) -> str:
    return str(_section(document, "objective").get("name", "gtpo"))


def _merge(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def describe_problems(
    error: ValidationError, where: str, overridden: Iterable[str] = (), *, model: type[BaseModel] = Recipe
) -> Iterator[str]:
    """Yield a line for each problem of a document that is not a valid `model`: file, key, problem, suggestion."""
    found = error.errors(include_url=False)
    out_of_range = {_key_of(item) for item in found if item["type"].startswith(("greater_than", "less_than"))}
    for item in found:
        if item["type"] == "too_short" and any(other["loc"][:-1] == item["loc"] for other in found if other["loc"]):
            continue  # pydantic counts the rest, but each wrong item is reported
        key = _key_of(item)
        if item["type"] == "literal_error" and key in out_of_range:
            continue  # the other branch of `auto` or a number fits better
        source = _source(key, where, overridden)
        if item["type"] == "extra_forbidden":
            for unknown in _unknown_keys(key, item["input"], model):
                source = "--set" if any(f"{o}.".startswith(f"{unknown}.") for o in overridden) else source
                yield f"{source}: {unknown}: unknown key; {nearest_key(unknown, model=model)}"
        elif item["type"] == "model_type" and (within := _first_key(key, model)) is not None:
            yield f"{source}: {key}: is a section of keys, got {shown(item['input'])}; did you mean {within}?"
        elif item["type"] == "missing":
            yield f"{source}: {key}: is missing; add it, e.g. {_example(key)}"
        elif item["type"] == "value_error" and not item["loc"]:
            for line in str(item["ctx"]["error"]).splitlines():  # each begins with a key
                yield f"{_source(line.partition(':')[0], where, overridden)}: {line}"
        elif item["type"] == "literal_error":
            yield f"{source}: {key}: {shown(item['input'])} is not one of {item['ctx']['expected']}" + _nearest_value(
                item
            )
        else:
            said = _LISTS.get(item["type"]) or item["msg"].removeprefix("Value error, ")
            yield f"{source}: {key}: {said[0].lower()}{said[1:]}, got {shown(item['input'])}"


def _source(key: str, where: str, overridden: Iterable[str]) -> str:
    """Return where a key was written: the file, or an override of it or of its section."""
    return "--set" if any(key == o or key.startswith(o + ".") for o in overridden) else where


def _key_of(item: Any) -> str:
    """Return the dotted key without pydantic's names of union branches (`literal['auto']`, `constrained-int`)."""
    added = ("literal[", "constrained-", "function-", "nullable[")
    parts = [_printable(str(part)) for part in item["loc"]]
    return ".".join(part for part in parts if not part.startswith(added) and part not in ("bool", "int", "nullable"))


def nearest_key(key: str, *, model: type[BaseModel] = Recipe) -> str:
    """Suggest a replacement for an unknown key: another tool's word, the same name elsewhere, or a similar one."""
    from gtpo_cli.recipe.synonyms import find_synonym

    if model is Recipe and (synonym := find_synonym(key)) is not None:
        return str(synonym)
    keys = fields_of(model)
    parent, _, name = key.lower().replace("-", "_").rpartition(".")
    siblings = {k.rpartition(".")[2]: k for k in keys if k.rpartition(".")[0] == parent}
    everywhere = {k.rpartition(".")[2]: k for k in keys}
    near = [k for k in keys if k.rpartition(".")[2] == name]
    if not near and (alike := nearest_of(name, siblings, cutoff=0.6)):
        near = [siblings[alike]]
    elif not near and (alike := nearest_of(name, everywhere, cutoff=0.75)):
        near = [everywhere[alike]]
    elif not near and not siblings and (alike := nearest_of(key, keys, cutoff=0.6)):
        near = [alike]
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"known keys here: {', '.join(siblings)}" if siblings else "docs/recipe.md lists all keys"


def _unknown_keys(key: str, value: Any, model: type[BaseModel]) -> Iterator[str]:
    """Yield an unknown key, or the keys within another tool's section (`trl: {beta: 0.1}`) that have names here."""
    from gtpo_cli.recipe.synonyms import find_synonym

    sections = [part for k in fields_of(model) for part in k.split(".")[:-1]]
    misspelt = find_synonym(key) is None and nearest_of(key, sections, cutoff=0.75)
    if isinstance(value, Mapping) and value and not misspelt:
        for name, inner in value.items():
            yield from _unknown_keys(f"{key}.{_printable(str(name))}", inner, model)
    else:
        yield key


def _first_key(section: str, model: type[BaseModel]) -> str | None:
    """Return the first key of a section, which names its subject."""
    return next((key for key in fields_of(model) if key.startswith(f"{section}.")), None)


def _nearest_value(item: Any) -> str:
    choices = [choice.strip("' ") for choice in item["ctx"]["expected"].replace(" or ", ", ").split(",")]
    hint = did_you_mean(str(item["input"]), choices, "")
    return f"; {hint}" if hint else ""


def _example(key: str) -> str:
    examples = {"model": "model: {name: builtin:tiny}", "data": "data: {benchmark: arithmetic}"}
    examples |= {"model.name": "name: builtin:tiny", "data.benchmark": "benchmark: gsm8k"}
    return examples.get(key, f"{key.rpartition('.')[2]}: ...")


def _printable(text: str) -> str:
    """Format a key, override or path for a message, with terminal control characters escaped."""
    text = text if text.isprintable() else repr(text)[1:-1]
    return text if len(text) <= 200 else text[:197] + "..."
