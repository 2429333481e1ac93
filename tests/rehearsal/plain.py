"""Log-probabilities by transformers alone, in a process in which Unsloth has replaced nothing.

python plain.py SAMPLES BASE ADAPTER MERGED    prints a JSON object: for each way to the model the
log-probabilities of all tokens of the completions in SAMPLES (samples/step-*.jsonl), one after the other, float32
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from bitsandbytes.functional import dequantize_4bit
from bitsandbytes.nn import Linear4bit
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

NF4 = BitsAndBytesConfig(
    load_in_4bit=True,
    bnb_4bit_quant_type="nf4",
    bnb_4bit_use_double_quant=True,
    bnb_4bit_compute_dtype=torch.float32,
)


@torch.no_grad()
def logprobs(model: Any, rows: list[tuple[list[int], list[int]]]) -> Iterator[float]:
    for prompt, completion in rows:
        logits = model(input_ids=torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        yield from logits.float().log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0].tolist()


def linear(weight: torch.Tensor) -> torch.nn.Linear:
    layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight.data = weight
    return layer


def main(samples: str, base: str, adapter: str, merged: str) -> None:
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(base)
    rows = []
    for line in map(json.loads, Path(samples).read_text().splitlines()):
        chat = [{"role": "user", "content": line["question"]}]
        text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        rows.append((tokenizer.encode(text, add_special_tokens=False), line["token_ids"]))

    def load(folder: str, **options: Any) -> Any:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options).eval()

    quantized, plain = load(base, quantization_config=NF4), load(base)
    found = {"base": list(logprobs(plain, rows))}
    for name, module in quantized.named_modules():  # in float32: bitsandbytes' own products on a CPU round to 16 bits
        if isinstance(module, Linear4bit):
            weight = dequantize_4bit(module.weight.data, module.weight.quant_state).float()
            quantized.set_submodule(name, linear(weight))
    found["nf4"] = list(logprobs(quantized, rows))
    found["base and adapter"] = list(logprobs(PeftModel.from_pretrained(plain, adapter), rows))
    found["merged"] = list(logprobs(load(merged), rows))
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
