"""Try the rules of a tokenizer.json once in a process with limits (`runs/limited.py`). `tokenizes` starts this file.

A file of a few kilobytes can hold forty rules that each double the text.
"""

import json
import string
import sys
from functools import cache
from pathlib import Path
from typing import Any

from gtpo_cli.runs.limited import ends, set_limits

_TEXT = string.printable + "Ärger naïve 東京 😀 \ufdfa <|im_start|> ▁Ġ"
_MOST = 100  # times as long as the text; the longest expansion of Unicode is 18


@cache
def tokenizes(file: Path, _changed: float) -> bool:
    """Whether the rules of a file turn a text into tokens and back within the limits. `_changed`: when it was."""
    return ends(__file__, {"file": str(file)})


def main() -> None:
    """Normalise, split and decode a text. Exits with 0 on success; otherwise exits with 1 or is killed by a limit."""
    from tokenizers import Tokenizer

    try:
        written = json.loads(Path(json.load(sys.stdin)["file"]).read_bytes())
    except (ValueError, RecursionError):  # loading it reports that
        return
    set_limits()
    kept = {name: written.get(name) for name in ("normalizer", "pre_tokenizer", "decoder")}
    model = {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}
    absent: dict[str, object] = {"truncation": None, "padding": None, "added_tokens": [], "post_processor": None}
    try:
        rules = Tokenizer.from_str(json.dumps({"version": "1.0", **absent, **kept, "model": model}))
    except Exception:  # noqa: BLE001 - as above
        return
    added = " ".join(token["content"] for token in written.get("added_tokens") or ())
    for text in (_TEXT, *_TEXT, added):
        try:
            longest = _longest(rules, text)
        except MemoryError:
            sys.exit(1)
        except Exception:  # noqa: BLE001 - a decoder may refuse such pieces
            continue
        if longest > _MOST * (len(text) + 1):
            sys.exit(1)


def _longest(rules: Any, text: str) -> int:
    """Return the characters of the longest text on the way to tokens and back."""
    normal = text if rules.normalizer is None else rules.normalizer.normalize_str(text)
    pieces = [normal]
    if rules.pre_tokenizer is not None:
        pieces = [piece for piece, _ in rules.pre_tokenizer.pre_tokenize_str(normal)]
    decoded = "" if rules.decoder is None else rules.decoder.decode(pieces)
    return max(len(normal), sum(map(len, pieces)), len(decoded))


if __name__ == "__main__":
    main()
