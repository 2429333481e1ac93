"""Random weights of LLaMA-3.1-8B's shape, in bfloat16: python large_model.py FOLDER TOKENIZER"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("tokenizer", type=Path)
    arguments = parser.parse_args()
    write(arguments.folder, arguments.tokenizer)


def write(folder: Path, tokenizer: Path) -> None:
    """A file a layer, the index last: a folder that has it is whole."""
    config = LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=131072, rms_norm_eps=1e-5,
        rope_theta=500000.0, bos_token_id=128000, eos_token_id=[128001, 128008, 128009], tie_word_embeddings=False,
        dtype=torch.bfloat16,
    )  # fmt: skip
    with torch.device("meta"):
        shapes = {name: weight.shape for name, weight in LlamaForCausalLM(config).state_dict().items()}
    shutil.copytree(tokenizer, folder, dirs_exist_ok=True)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(0)
    files: dict[str, dict[str, torch.Tensor]] = {}
    index: dict[str, str] = {}
    for name, shape in shapes.items():
        layer = name.split(".")[2] if ".layers." in name else "rest"
        index[name] = f"model-{layer}.safetensors"
        weight = (
            torch.ones(shape, device=device)
            if len(shape) == 1
            else torch.randn(shape, device=device, generator=generator) * 0.02
        )
        files.setdefault(index[name], {})[name] = weight.to(torch.bfloat16).cpu()
    for file, weights in files.items():
        save_file(weights, folder / file, metadata={"format": "pt"})
    document = {"metadata": {}, "weight_map": index}
    (folder / "model.safetensors.index.json").write_text(json.dumps(document))


if __name__ == "__main__":
    main()
