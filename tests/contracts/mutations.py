"""What can become of a file on its way from a stranger: damaged, replaced, or written to do harm. Deterministic."""

from __future__ import annotations

import copy
import json
import math
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file, save_file

Mutation = Callable[[Path, random.Random], None]
HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**400, -(10**18), 0.5, math.nan, math.inf, -math.inf, 1e308, "", "a",
    "²", "1", "nan", "\x00", "\x1b]0;x\x07", "\n\n", "../../../x", "/x", "x" * 100_000, "<script>", [], [[]], {},
    {"a": 1}, [None], ["a", 1], [0.0] * 1000,
)  # fmt: skip


def mutate(file: Path, rng: random.Random) -> str:
    """Change a file in one way that fits its kind; the way's name."""
    ways = [*_ANY]
    if file.suffix in _STRUCTURED:
        ways += 3 * [_STRUCTURED[file.suffix]]  # mostly what a careful stranger would do
    way = rng.choice(ways)
    way(file, rng)
    return way.__name__.strip("_")


# -- bytes and kinds of files -----------------------------------------------------------------------------------------


def _flip(file: Path, rng: random.Random) -> None:
    content = bytearray(file.read_bytes())
    for _ in range(rng.randint(1, 8) if content else 0):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


def _cut(file: Path, rng: random.Random) -> None:
    os.truncate(file, rng.randrange(file.stat().st_size + 1))


def _insert(file: Path, rng: random.Random) -> None:
    content = file.read_bytes()
    place = rng.randrange(len(content) + 1)
    new = rng.choice(
        (b"\xff\xfe\x00", b"\x00" * 100, b"[" * 100_000, b"{", b'"', b"\n", b"NaN", b"9" * 5000, b"\xc3\x28")
    )
    file.write_bytes(content[:place] + new + content[place:])


def _replace(file: Path, rng: random.Random) -> None:
    new = rng.choice((b"", b"\xff\xfe", b"null", b"[]", b"0", b'"a"', b"{", b"[" * 100_000, b"{}\n{}\n", b"9" * 10_000))
    file.write_bytes(new)


def _no_file(file: Path, rng: random.Random) -> None:
    file.unlink()
    kind = rng.choice(("nothing", "folder", "fifo", "loop", "endless", "dangling"))
    if kind == "folder":
        file.mkdir()
    elif kind == "fifo":
        os.mkfifo(file)
    elif kind != "nothing":
        file.symlink_to({"loop": file.name, "endless": "/dev/zero", "dangling": "nowhere"}[kind])


_ANY: tuple[Mutation, ...] = (_flip, _cut, _insert, _replace, _no_file)


# -- what stands in them ----------------------------------------------------------------------------------------------


def places(document: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of everything in a document, at any depth."""
    keys = list(document) if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ()
    for key in keys:
        yield document, key
        yield from places(document[key])


def _change(document: Any, rng: random.Random) -> Any:
    document = copy.deepcopy(document)
    found = list(places(document))
    if not found:
        return rng.choice(HOSTILE)
    container, key = rng.choice(found)
    what = rng.randrange(8)
    if what == 0:
        del container[key]
    elif what == 1 and isinstance(container, dict):
        container[rng.choice(("", "x" * 1000, "²", "\x1b[31m", "pass@²"))] = container.pop(key)
    elif what == 2:
        container[key] = [container[key]]
    elif what == 3 and isinstance(container, list):
        container.append(container[key])
    else:
        container[key] = rng.choice(HOSTILE)
    return document


def _json_value(file: Path, rng: random.Random) -> None:
    file.write_text(json.dumps(_change(json.loads(file.read_text()), rng)))


def _json_line(file: Path, rng: random.Random) -> None:
    lines = file.read_text().splitlines()
    index = rng.randrange(len(lines))
    lines[index] = json.dumps(_change(json.loads(lines[index]), rng))
    file.write_text("\n".join(lines) + "\n")


def _yaml_value(file: Path, rng: random.Random) -> None:
    file.write_text(yaml.safe_dump(_change(yaml.safe_load(file.read_text()), rng)))


def _other_tensor(tensor: torch.Tensor, rng: random.Random) -> torch.Tensor:
    what = rng.randrange(6)
    if what == 0:
        return torch.full_like(tensor, math.nan) if tensor.is_floating_point() else tensor + 1
    if what == 1:
        return tensor.reshape(-1)[: tensor.numel() // 2].clone()
    if what == 2:
        return tensor.to(torch.int64)
    if what == 3:
        return torch.zeros(0)
    if what == 4:
        return (tensor.float() * 1e38).to(torch.float32)
    return tensor.reshape(-1).clone()


def _tensor_file(file: Path, rng: random.Random) -> None:
    tensors = load_file(file)
    name = rng.choice(sorted(tensors))
    if rng.random() < 0.3:
        del tensors[name]
    elif rng.random() < 0.2:
        tensors["x"] = tensors.pop(name)
    else:
        tensors[name] = _other_tensor(tensors[name], rng)
    save_file(tensors, file, metadata={"format": "pt"})


def _pickled(file: Path, rng: random.Random) -> None:
    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value

    document = plain(torch.load(file, weights_only=True))
    container, key = rng.choice(list(places(document)))
    if isinstance(container[key], torch.Tensor) and rng.random() < 0.7:
        container[key] = _other_tensor(container[key], rng)
    elif rng.random() < 0.3:
        del container[key]
    else:
        container[key] = rng.choice(HOSTILE)
    torch.save(document, file)


_STRUCTURED: dict[str, Mutation] = {
    ".json": _json_value, ".jsonl": _json_line, ".yaml": _yaml_value, ".safetensors": _tensor_file, ".pt": _pickled,
}  # fmt: skip


def restore(copy_of: Path, original: Path) -> None:
    """The folder as it was, whatever stands in its place now."""
    if copy_of.is_symlink() or copy_of.is_file():
        copy_of.unlink()
    shutil.rmtree(copy_of, ignore_errors=True)
    shutil.copytree(original, copy_of)
