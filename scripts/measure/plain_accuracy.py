"""Accuracy of an exported model by plain transformers, where gtpo need not be installed.

    python scripts/measure/plain_accuracy.py FOLDER PROBLEMS.jsonl [--samples N] [--seed S]

PROBLEMS.jsonl has `question` and `gold` on each line, as runs/<run>/evaluation/<benchmark>/<subject>/samples.jsonl has.
Greedy, or with --samples so many completions at temperature 1. An answer is right when the four tags stand in order and
the answer is the gold one letter by letter, which is enough for the built-in task. docs/export.md has the figures.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ANSWER = re.compile(r"\s*<reasoning>.*</reasoning>\s*<answer>\s*(.*?)\s*</answer>\s*", re.DOTALL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("problems", type=Path)
    parser.add_argument("--samples", type=int, default=0, help="0 = greedy")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(options.folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(options.folder)
    how = {"do_sample": False} if options.samples == 0 else {"do_sample": True, "temperature": 1.0, "top_k": 0}
    count = max(1, options.samples)
    right = total = 0
    for line in options.problems.read_text(encoding="utf-8").splitlines():
        problem = json.loads(line)
        messages = [{"role": "user", "content": problem["question"]}]
        prompt = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        with torch.no_grad():
            rows = model.generate(
                **prompt, **how, num_return_sequences=count, max_new_tokens=options.max_tokens
            )[:, prompt["input_ids"].shape[1] :]  # fmt: skip
        for text in tokenizer.batch_decode(rows, skip_special_tokens=True):
            found = ANSWER.fullmatch(text)
            right += found is not None and found.group(1) == problem["gold"]
            total += 1
    assert "gtpo_cli" not in sys.modules
    mode = "greedy" if options.samples == 0 else f"{count} completions each at temperature 1"
    print(f"{options.folder}: {right} of {total} right, {100 * right / total:.1f} % ({mode}, {model.dtype})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
