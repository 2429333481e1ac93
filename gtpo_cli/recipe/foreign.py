"""Read training files of other tools: the tool, the settings and the data.

These are scripts for TRL and Unsloth, and YAML files for TRL, axolotl and LLaMA-Factory. `translation.py` makes a
recipe of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gtpo_cli.errors import RecipeError
from gtpo_cli.recipe.foreign_script import Setting, read_script
from gtpo_cli.recipe.load import MAX_BYTES, read_mapping
from gtpo_cli.text import one_line

_LLAMA_FACTORY = {"stage", "finetuning_type", "dataset_dir", "cutoff_len"}
_FILES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")
_FORMATS = ("json", "csv", "parquet", "text")  # take the place of a data set's name if data_files are files


@dataclass(slots=True)
class Foreign:
    """The content of another tool's training file.

    `method`: grpo or sft. `sources`: each set of data as keys of a recipe's `data` (path, dataset, split, columns).
    `unread`: a line for each part that cannot be read, with the reason.
    """

    path: Path
    tool: str
    method: str = "grpo"
    settings: list[Setting] = field(default_factory=list)
    sources: list[dict[str, Any]] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


def read_foreign(path: Path) -> Foreign:
    """Read a file without running it. Raises RecipeError for files of other tools and for unsupported methods."""
    if path.suffix == ".py":
        return _script(path)
    if path.suffix not in (".yaml", ".yml", ".json"):
        notebook = path.suffix == ".ipynb"
        remedy = "save it as a script (jupyter nbconvert --to script)" if notebook else "name such a file"
        kinds = "a training script (.py), or a YAML of axolotl, LLaMA-Factory or TRL"
        raise RecipeError(f"{path}: --from-config reads {kinds}; {remedy}")
    document = read_mapping(path)
    if isinstance(document.get("model"), Mapping) and isinstance(document.get("data"), Mapping):
        raise RecipeError(f"{path}: is already a recipe; copy it, or name it in the extends of another")
    if "base_model" in document:
        return _axolotl(path, document)
    if "model_name_or_path" in document and _LLAMA_FACTORY & document.keys():
        return _llama_factory(path, document)
    if "model_name_or_path" in document:
        return _trl(path, document)
    raise RecipeError(
        f"{path}: names no model as axolotl (base_model), LLaMA-Factory and TRL (model_name_or_path) do; name such a "
        "file, or a training script"
    )


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
        if foreign.sources or str(call.value.get("split", "train")).partition("[")[0] != "train":
            foreign.unread.append(f"{call}: {call.value['path']} is not read; the first data set to train on is")
        else:
            foreign.sources.append(_loaded(call.value))
            foreign.unread.append(
                f"{call}: what the script makes of its rows is not translated; data.columns says which are read"
            )
    return foreign


def _loaded(call: Mapping[str, Any]) -> dict[str, Any]:
    """Translate the arguments of `load_dataset(...)`, or a data set of axolotl."""
    path, files = str(call["path"]), call.get("data_files")
    files = files.get("train") if isinstance(files, Mapping) else files
    files = files[0] if isinstance(files, list) and len(files) == 1 else files
    if path in _FORMATS and isinstance(files, str):
        return {"path": files}
    if path.endswith(_FILES) or Path(path).expanduser().exists():
        return {"path": path}
    details = {"id": path, "config": call.get("name"), "revision": call.get("revision")}
    split = str(call.get("split") or "train").partition("[")[0]
    return {"dataset": {key: value for key, value in details.items() if value}, "split": split}


def _axolotl(path: Path, document: dict[str, Any]) -> Foreign:
    method = {None: "sft", "grpo": "grpo"}.get(document.pop("rl", None))
    if method is None:
        raise RecipeError(
            f"{path}: rl: only grpo, and fine-tuning without rl, are here: gtpo trains on problems with answers"
        )
    foreign = Foreign(path, "axolotl", method)
    for data in _each(document.pop("datasets", None)):
        if not isinstance(data, Mapping) or not data.get("path"):
            foreign.unread.append(f"datasets: {one_line(str(data), most=60)} names no path")
            continue
        source = _loaded({**data, "path": data.get("ds_type") if data.get("data_files") else data["path"]})
        kind = data.get("type")
        if columns := _axolotl_columns(data, kind):
            source["columns"] = columns
        elif kind is not None:
            foreign.unread.append(
                f"datasets.type: {one_line(str(kind), most=60)}: the first rows say which columns are read instead"
            )
        foreign.sources.append(source)
    for section in ("trl", "vllm"):
        if isinstance(document.get(section), Mapping):
            foreign.settings += [Setting(str(word), value) for word, value in document.pop(section).items()]
    foreign.settings += [Setting(word, value) for word, value in document.items()]
    return foreign


def _axolotl_columns(data: Mapping[str, Any], kind: Any) -> dict[str, str] | None:
    if isinstance(kind, Mapping):
        return {
            "question": str(kind.get("field_instruction", "instruction")),
            "answer": str(kind.get("field_output", "output")),
        }
    if kind in ("alpaca", "alpaca:chat"):
        return {"question": "instruction", "answer": "output"}
    if kind in ("chat_template", "sharegpt"):
        column = str(data.get("field_messages") or data.get("conversation") or "messages")
        return {"question": column, "answer": column}
    return None


def _llama_factory(path: Path, document: dict[str, Any]) -> Foreign:
    stage = document.pop("stage", "sft")
    if stage != "sft":
        raise RecipeError(
            f"{path}: stage: {stage}: gtpo trains on problems with answers; of LLaMA-Factory's stages that is sft alone"
        )
    foreign = Foreign(path, "LLaMA-Factory", "sft")
    names = document.pop("dataset", None) or ()
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    folder = Path(str(document.pop("dataset_dir", "data")))
    known, folder = _dataset_info(folder, path.parent / folder)
    for name in names:
        entry = known.get(name)
        if isinstance(entry, Mapping) and (source := _listed_set(entry, folder)):
            foreign.sources.append(source)
        else:
            foreign.unread.append(
                f"dataset: {name}: {folder}/dataset_info.json, which says where that is, does not say so here"
            )
    foreign.settings += [Setting(word, value) for word, value in document.items()]
    return foreign


def _dataset_info(*folders: Path) -> tuple[Mapping[str, Any], Path]:
    """Return the content of `dataset_info.json` and the folder that has it."""
    for folder in folders:
        file = folder / "dataset_info.json"
        if not file.is_file():  # also excludes devices and FIFOs
            continue
        try:
            with file.open("rb") as stream:
                found = json.loads(stream.read(MAX_BYTES))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(found, Mapping):
            return found, folder
    return {}, folders[0]


def _listed_set(entry: Mapping[str, Any], folder: Path) -> dict[str, Any] | None:
    """Translate an entry of `dataset_info.json`."""
    if isinstance(name := entry.get("file_name"), str):
        source: dict[str, Any] = {"path": str(folder / name)}
    elif isinstance(name := entry.get("hf_hub_url"), str):
        source = _loaded({"path": name, "name": entry.get("subset"), "split": entry.get("split")})
    else:
        return None
    columns = entry["columns"] if isinstance(entry.get("columns"), Mapping) else {}
    if entry.get("formatting") == "sharegpt":
        chat = str(columns.get("messages", "conversations"))
        return source | {"columns": {"question": chat, "answer": chat}}
    named = {"question": columns.get("prompt", "instruction"), "answer": columns.get("response", "output")}
    return source | {"columns": {meaning: str(column) for meaning, column in named.items()}}


def _trl(path: Path, document: dict[str, Any]) -> Foreign:
    """Read a YAML file for `trl grpo --config`."""
    foreign = Foreign(path, "TRL")
    if name := document.pop("dataset_name", None):
        call = {
            "path": name,
            "name": document.pop("dataset_config", None),
            "split": document.pop("dataset_train_split", None),
        }
        foreign.sources.append(_loaded(call))
    foreign.settings += [Setting(word, value) for word, value in document.items()]
    return foreign


def _each(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list) else ()
