"""Read training files of other tools: the tool, the settings and the data.

These are scripts for TRL and Unsloth, and YAML files for TRL. `translation.py` makes a recipe of them.

Scripts are read from their text, without running them. Readable values are numbers, text, lists, dicts, names that the
file assigns such a value once, and sums of these. Everything else (`args.lr`, a call, a condition) is reported as not
read, with its line.
"""

from __future__ import annotations

import ast
import operator
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gtpo_cli.errors import RecipeError
from gtpo_cli.recipe.data import FILES
from gtpo_cli.recipe.load import MAX_BYTES, read_mapping
from gtpo_cli.text import one_line

MAX_DEPTH = 50  # of names that refer to names, and of nested values
_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}  # fmt: skip
_DTYPES = ("bfloat16", "float16", "float32")
# The calls to read, in order of precedence, and words that only connect objects.
_CALLS = ("GRPOConfig", "LoraConfig", "get_peft_model", "BitsAndBytesConfig", "from_pretrained", "GRPOTrainer")
_FIRST = {"from_pretrained": "model_name", "GRPOTrainer": "model", "GRPOConfig": "output_dir"}  # positional arguments
_MODEL_CLASSES = ("Model", "ForCausalLM")
_WIRING = {"args", "train_dataset", "processing_class", "tokenizer", "peft_config", "quantization_config", "device_map"}

_REMEDIES = {
    "reward_funcs": "move them into a module without the training, and name each in rewards.plugins (docs/rewards.md)"
}


class Setting(NamedTuple):
    """A word of another tool and its value; `line`: its line in the file, None if unknown."""

    word: str
    value: Any
    line: int | None = None

    def __str__(self) -> str:
        return self.word if self.line is None else f"{self.word} (line {self.line})"


class Script(NamedTuple):
    """The settings of a script.

    `unread`: a line for each setting whose value cannot be read; `datasets`: the arguments of the `load_dataset` calls;
    `unsloth`: whether the script imports Unsloth.
    """

    settings: list[Setting]
    unread: list[str]
    datasets: list[Setting]
    unsloth: bool


class _NotPlainError(Exception):
    """A value that is known only by running the script."""


def read_script(text: str) -> Script:
    """Read a script. Raises ValueError for text that is not Python, or has no `GRPOConfig(...)`."""
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ValueError(f"line {error.lineno}: is not Python ({error.msg})") from error
    except (RecursionError, MemoryError) as error:
        raise ValueError("is nested too deep to be read") from error
    names = _names(tree)
    calls = sorted((call for call in ast.walk(tree) if isinstance(call, ast.Call)), key=lambda call: call.lineno)
    script = Script([], [], [], unsloth="unsloth" in _imported(tree))
    for name in _CALLS:
        found = [call for call in calls if _called(call) == name]
        for call in found[1:]:
            script.unread.append(
                f"{name}(...) (line {call.lineno}): only the first one, of line {found[0].lineno}, is read"
            )
        if not found and name == "GRPOConfig":
            raise ValueError("has no GRPOConfig(...) call; name the script that trains")
        for word, node in _keywords(found[0]) if found else ():
            _read(script, word, node, names)
        if found and name in ("LoraConfig", "get_peft_model"):
            script.settings.append(Setting("use_peft", True, found[0].lineno))
    for call in calls:
        if _called(call) == "load_dataset":
            _read_dataset(script, call, names)
    for part in ast.walk(tree):
        if isinstance(part, ast.Dict) and (content := _system_message(part)) is not None:
            _read(script, "system_prompt", content, names)
            break
    return script


def _system_message(node: ast.Dict) -> ast.expr | None:
    """Return the content of a system message that is written in the script."""
    message = {
        key.value: value for key, value in zip(node.keys, node.values, strict=True) if isinstance(key, ast.Constant)
    }
    role = message.get("role")
    return message.get("content") if isinstance(role, ast.Constant) and role.value == "system" else None


def _read(script: Script, word: str | None, node: ast.expr, names: dict[str, ast.expr]) -> None:
    try:
        value = _value(node, names)
    except _NotPlainError:
        wired = word in _WIRING or (word == "model" and isinstance(node, ast.Name))
        if not wired:
            said = one_line(ast.unparse(node), most=300 if word == "reward_funcs" else 60)
            shown = f"**{said}" if word is None else f"{word} = {said}"
            remedy = _REMEDIES.get(word or "", "no plain value, and nothing of the script is run")
            script.unread.append(f"{shown} (line {node.lineno}): {remedy}")
        return
    if word is not None:
        script.settings.append(Setting(word, value, node.lineno))
    elif isinstance(value, dict):  # **settings
        script.settings.extend(Setting(str(key), item, node.lineno) for key, item in value.items())


def _read_dataset(script: Script, call: ast.Call, names: dict[str, ast.expr]) -> None:
    keywords = dict(zip(("path", "name"), call.args, strict=False)) | {
        keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None
    }
    values = {}
    for word, node in keywords.items():
        try:
            values[word] = _value(node, names)
        except _NotPlainError:
            if word in ("path", "data_files"):
                script.unread.append(f"{one_line(ast.unparse(call), most=60)} (line {call.lineno}): is no plain value")
                return
    if isinstance(values.get("path"), str):
        script.datasets.append(Setting("load_dataset", values, call.lineno))


def _called(call: ast.Call) -> str | None:
    """Return the last part of a called name. `from_pretrained` counts only for a model's class."""
    if isinstance(call.func, ast.Name):
        return call.func.id
    if not isinstance(call.func, ast.Attribute):
        return None
    if call.func.attr == "from_pretrained" and not ast.unparse(call.func.value).endswith(_MODEL_CLASSES):
        return None
    return call.func.attr


def _keywords(call: ast.Call) -> Iterator[tuple[str | None, ast.expr]]:
    if (word := _FIRST.get(_called(call) or "")) is not None and call.args:
        yield word, call.args[0]
    for keyword in call.keywords:
        yield keyword.arg, keyword.value


def _names(tree: ast.Module) -> dict[str, ast.expr]:
    """Return the value assigned to each name that is bound only once in the file."""
    bound = Counter(
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    bound.update(node.arg for node in ast.walk(tree) if isinstance(node, ast.arg))
    assigned: dict[str, ast.expr] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            assigned[node.targets[0].id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            assigned[node.target.id] = node.value
    return {name: value for name, value in assigned.items() if bound[name] == 1}


def _imported(tree: ast.Module) -> set[str]:
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def _value(node: ast.expr, names: dict[str, ast.expr], depth: int = 0) -> Any:
    if depth > MAX_DEPTH:
        raise _NotPlainError
    match node:
        case ast.Constant():
            return node.value
        case ast.Name() if node.id in names:
            return _value(names[node.id], names, depth + 1)
        case ast.Attribute(value=ast.Name(id="torch")) if node.attr in _DTYPES:
            return node.attr
        case ast.List() | ast.Tuple() | ast.Set():
            return [_value(item, names, depth + 1) for item in node.elts]
        case ast.Dict() if None not in node.keys:
            keys = [_value(key, names, depth + 1) for key in node.keys if key is not None]
            return {str(key): _value(item, names, depth + 1) for key, item in zip(keys, node.values, strict=True)}
        case ast.UnaryOp(op=ast.USub()):
            return -_number(_value(node.operand, names, depth + 1))
        case ast.BinOp() if type(node.op) in _OPERATORS:
            left, right = (_number(_value(side, names, depth + 1)) for side in (node.left, node.right))
            try:
                return _OPERATORS[type(node.op)](left, right)
            except ArithmeticError as error:
                raise _NotPlainError from error
    raise _NotPlainError


def _number(value: Any) -> Any:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise _NotPlainError
    return value


_FORMATS = ("json", "csv", "parquet", "text")  # take the place of a data set's name if data_files are files


@dataclass(slots=True)
class Foreign:
    """The content of another tool's training file.

    `source`: the data as keys of a recipe's `data` (path, dataset, split), empty if there are none that can be read.
    `unread`: a line for each part that cannot be read, with the reason.
    """

    path: Path
    tool: str
    settings: list[Setting] = field(default_factory=list)
    source: dict[str, Any] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)


def read_foreign(path: Path) -> Foreign:
    """Read a file without running it. Raises RecipeError for files of other tools."""
    if path.suffix == ".py":
        return _script(path)
    if path.suffix not in (".yaml", ".yml", ".json"):
        notebook = path.suffix == ".ipynb"
        remedy = "save it as a script (jupyter nbconvert --to script)" if notebook else "name such a file"
        kinds = "a training script (.py), or a YAML of TRL"
        raise RecipeError(f"{path}: --from-config reads {kinds}; {remedy}")
    document = read_mapping(path)
    if isinstance(document.get("model"), Mapping) and isinstance(document.get("data"), Mapping):
        raise RecipeError(f"{path}: is already a recipe; copy it, or name it in the extends of another")
    if "model_name_or_path" not in document:
        raise RecipeError(
            f"{path}: names no model as TRL does (model_name_or_path); name such a file, or a training script, or "
            "let gtpo init ask (without --from-config)"
        )
    return _trl(path, document)


def _script(path: Path) -> Foreign:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise ValueError(f"is larger than {MAX_BYTES // 2**20} MiB, too large for a script")
        script = read_script(text.decode("utf-8-sig"))
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise RecipeError(
            f"{path}: is not UTF-8 text ({error.reason} at byte {error.start}); name a training script"
        ) from error
    except ValueError as error:
        raise RecipeError(f"{path}: {one_line(str(error))}") from error
    tool = "Unsloth" if script.unsloth else "TRL"
    foreign = Foreign(path, tool, settings=script.settings, unread=script.unread)
    for call in script.datasets:
        if foreign.source or str(call.value.get("split", "train")).partition("[")[0] != "train":
            foreign.unread.append(f"{call}: {call.value['path']} is not read; the first data set to train on is")
        elif not (source := _loaded(call.value)):
            foreign.unread.append(
                f"{call}: data.path takes one file, a folder or a pattern, and here are several files"
            )
        else:
            foreign.source = source
            foreign.unread += [
                f"{call}: {word} is left out: the whole set is read"
                for word in ("data_files", "data_dir")
                if word in call.value and "dataset" in source
            ]
            if part := str(call.value.get("split", "")).partition("[")[2]:
                foreign.unread.append(f"{call}: the part [{part} of the split: all is read, or a sample of data.limit")
            foreign.unread.append(
                f"{call}: what the script makes of its rows is not translated; data.columns says which are read"
            )
    return foreign


def _loaded(call: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the arguments of `load_dataset(...)`; nothing for several files, which a recipe cannot list."""
    path, files = str(call["path"]), call.get("data_files")
    files = files.get("train") if isinstance(files, Mapping) else files
    files = files[0] if isinstance(files, list) and len(files) == 1 else files
    if path in _FORMATS and files is not None:
        return {"path": files} if isinstance(files, str) else {}
    if path.endswith(FILES) or Path(path).expanduser().exists():
        return {"path": path}
    marked = [f"{mark}{call[key]}" for mark, key in ((":", "name"), ("@", "revision")) if call.get(key)]
    return {"dataset": "".join([path, *marked]), "split": str(call.get("split") or "train").partition("[")[0]}


def _trl(path: Path, document: dict[str, Any]) -> Foreign:
    """Read a YAML file for `trl grpo --config`."""
    foreign = Foreign(path, "TRL")
    if name := document.pop("dataset_name", None):
        call = {
            "path": name,
            "name": document.pop("dataset_config", None),
            "split": document.pop("dataset_train_split", None),
        }
        foreign.source = _loaded(call)
    foreign.settings += [Setting(word, value) for word, value in document.items()]
    return foreign
