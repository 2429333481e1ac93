"""Read training files of other tools: the tool, the settings and the data.

These are scripts for TRL and Unsloth, and YAML files for TRL. `translation.py` makes a recipe of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gtpo_cli.errors import RecipeError
from gtpo_cli.recipe.data import FILES
from gtpo_cli.recipe.load import MAX_BYTES, read_mapping
from gtpo_cli.text import one_line
from gtpo_cli.tools.translate.script import Setting, read_script

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
        else:
            foreign.source = _loaded(call.value)
            foreign.unread.append(
                f"{call}: what the script makes of its rows is not translated; data.columns says which are read"
            )
    return foreign


def _loaded(call: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the arguments of `load_dataset(...)`."""
    path, files = str(call["path"]), call.get("data_files")
    files = files.get("train") if isinstance(files, Mapping) else files
    files = files[0] if isinstance(files, list) and len(files) == 1 else files
    if path in _FORMATS and isinstance(files, str):
        return {"path": files}
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
