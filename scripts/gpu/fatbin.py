"""Cuts the CUDA code in a library to what one card runs; the rest becomes zeros, which compress to nothing.

A library holds fat binaries: for each unit of CUDA code a header and then entries, one for each kind of card, either
machine code (ELF) or PTX, which the driver compiles. CUDA takes the machine code of the card's major version, and the
PTX where there is none. The entries that stay move to the front of their fat binary, whose header counts them alone;
nothing else moves, so that the library loads as before. The header is that of `fatbinary_section.h` in the CUDA
toolkit; the entries are as `cuobjdump --list-elf --list-ptx` lists them (a test compares).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

_MAGIC_NUMBER = 0xBA55ED50
_MAGIC = struct.pack("<I", _MAGIC_NUMBER)
_HEADER = struct.Struct("<IHHQ")  # magic, version, size of the header, size of all entries
_ENTRY = struct.Struct("<HHIQ12xI")  # kind, version, size of the header, size of the code; architecture
PTX, ELF = 1, 2


class Entry(NamedTuple):
    """Code for one architecture (90 for 9.0), header and all, in the library's bytes `start` to `end`."""

    kind: int
    architecture: int
    start: int
    end: int


class FatBinary(NamedTuple):
    """One unit of code: its header is at `start`, its entries end at `end`."""

    start: int
    end: int
    entries: list[Entry]


def fat_binaries(library: bytes | bytearray) -> Iterator[FatBinary]:
    """Raises ValueError where one does not fit its own sizes."""
    start = library.find(_MAGIC)
    while start >= 0:
        _, version, header, size = _HEADER.unpack_from(library, start)
        if version != 1 or header != _HEADER.size:
            start = library.find(_MAGIC, start + 4)  # these four bytes stand for something else
            continue
        place, end, entries = start + header, start + header + size, []
        while place < end:
            kind, _, header, size, architecture = _ENTRY.unpack_from(library, place)
            if kind not in (PTX, ELF) or place + header + size > end:
                raise ValueError(f"the fat binary at byte {start} is not laid out as known here")
            entries.append(Entry(kind, architecture, place, place + header + size))
            place += header + size
        yield FatBinary(start, end, entries)
        start = library.find(_MAGIC, end)


def cut(library: bytes, architecture: int) -> bytes:
    """The library with what a card of this architecture runs; as long as before."""
    cut = bytearray(library)
    for start, end, entries in fat_binaries(library):
        kept = b"".join(library[entry.start : entry.end] for entry in _run_by(architecture, entries))
        cut[start:end] = (_HEADER.pack(_MAGIC_NUMBER, 1, _HEADER.size, len(kept)) + kept).ljust(end - start, b"\0")
    return bytes(cut)


def _run_by(architecture: int, entries: list[Entry]) -> list[Entry]:
    major = architecture // 10
    fit = [entry for entry in entries if entry.architecture <= architecture]
    machine_code = [entry for entry in fit if entry.kind == ELF and entry.architecture // 10 == major]
    chosen = machine_code or [entry for entry in fit if entry.kind == PTX]
    newest = max((entry.architecture for entry in chosen), default=0)
    return [entry for entry in chosen if entry.architecture == newest]
