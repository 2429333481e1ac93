"""`gtpo train --recipe qwen3b_gsm8k` at the full shape of Qwen2.5-3B, on a CPU: few tokens, two steps, random weights.

python benchmarks/full_shape.py --tokenizer FOLDER --data FOLDER [--out build/full_shape]

Writes a model of that shape once (6 GB), runs the command, and prints the memory of its process beside the parts of the
plan that exist on a CPU. A quarter of an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from gtpo_cli.job import Engines
from gtpo_cli.machine.installed import GIB
from gtpo_cli.machine.memory import memory_of
from gtpo_cli.machine.shapes import PUBLISHED, ModelShape
from gtpo_cli.recipe import load_recipe

NAME, RECIPE = "Qwen/Qwen2.5-3B-Instruct", "qwen3b_gsm8k"
PROMPT, COMPLETION = 120, 8


def write_model(shape: ModelShape, tokenizer: Path, folder: Path) -> None:
    """Random weights in bfloat16, every block with the same ones, and the family's tokenizer."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoTokenizer, GenerationConfig, Qwen2Config

    loaded = AutoTokenizer.from_pretrained(tokenizer)
    settings = {
        "vocab_size": shape.vocabulary, "hidden_size": shape.hidden, "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": 32768, "tie_word_embeddings": shape.tied, "dtype": "bfloat16",
        "architectures": ["Qwen2ForCausalLM"],
    }  # fmt: skip
    loaded.save_pretrained(folder)
    Qwen2Config(**settings).save_pretrained(folder)
    GenerationConfig(eos_token_id=loaded.eos_token_id, pad_token_id=loaded.pad_token_id).save_pretrained(folder)
    torch.manual_seed(0)

    def drawn(*size: int) -> torch.Tensor:
        return (0.02 * torch.randn(size)).to(torch.bfloat16)

    block = {}
    for name, (inputs, outputs) in shape.linear_layers.items():
        room = "self_attn" if name in ("q_proj", "k_proj", "v_proj", "o_proj") else "mlp"
        block[f"{room}.{name}.weight"] = drawn(outputs, inputs)
        if name in ("q_proj", "k_proj", "v_proj"):
            block[f"{room}.{name}.bias"] = drawn(outputs)
    for norm in ("input_layernorm", "post_attention_layernorm"):
        block[f"{norm}.weight"] = torch.ones(shape.hidden, dtype=torch.bfloat16)
    files = {"ends.safetensors": {"model.embed_tokens.weight": drawn(shape.vocabulary, shape.hidden)}}
    files["ends.safetensors"]["model.norm.weight"] = torch.ones(shape.hidden, dtype=torch.bfloat16)
    for layer in range(shape.layers):
        files[f"layer-{layer:02d}.safetensors"] = {f"model.layers.{layer}.{name}": w for name, w in block.items()}
    for file, tensors in files.items():
        save_file(tensors, folder / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {name: file for file, tensors in files.items() for name in tensors}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("build/full_shape"))
    options = parser.parse_args()
    shape, model = PUBLISHED[NAME], (options.out / "model").resolve()
    if not (model / "model.safetensors.index.json").exists():
        model.mkdir(parents=True, exist_ok=True)
        write_model(shape, options.tokenizer, model)
    changes = [
        f"model.name={model}", "model.dtype=bfloat16", f"data.path={options.data.resolve()}", "data.limit=40",
        f"data.max_prompt_tokens={PROMPT}", f"rollout.max_completion_tokens={COMPLETION}", "training.max_steps=2",
        "objective.probe.num_prompts=1", "tracking.wandb.mode=off", f"output_dir={options.out}",
    ]  # fmt: skip
    command = [sys.executable, "-m", "gtpo_cli", "train", "--force", "--recipe", RECIPE]
    started, most = time.time(), {"RssAnon": 0, "RssFile": 0}
    with subprocess.Popen([*command, *(part for change in changes for part in ("--set", change))]) as process:
        while process.poll() is None:
            for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
                name, _, value = line.partition(":")
                if name in most:
                    most[name] = max(most[name], int(value.split()[0]) * 1024)
            time.sleep(0.05)
    recipe = load_recipe(RECIPE, changes)
    engines = Engines("transformers", "transformers", shared=False)
    plan = memory_of(recipe, shape, engines, prompt_tokens=PROMPT, completion_tokens=COMPLETION, gpu=24 * GIB)
    here = [part for part in plan.parts if part.name != "CUDA itself"]
    print(f"\nexit code {process.returncode} after {(time.time() - started) / 60:.1f} minutes")
    for part in here:
        print(f"  {part.name:<34}{part.sampling / GIB:>8.2f}{part.forward / GIB:>8.2f} GiB by the plan")
    planned = max(sum(part.sampling for part in here), sum(part.forward for part in here))
    print(f"  {'the larger sum':<34}{planned / GIB:>16.2f} GiB")
    print(f"  {'memory of the process at its most':<34}{most['RssAnon'] / GIB:>16.2f} GiB")
    print(f"  {'beside it, mapped files':<34}{most['RssFile'] / GIB:>16.2f} GiB, mostly the 16-bit weights' own")


if __name__ == "__main__":
    main()
