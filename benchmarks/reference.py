"""What a reference model costs: the training half of a step with and without it.

Run: `python benchmarks/run.py reference`.

GTPO needs none; GRPO with beta > 0 runs the untrained model over every completion once more. With an adapter the
reference is the same weights with the adapter off, so it costs time and no memory.
"""

from __future__ import annotations

import torch
from gpu import Case, full_rows
from measure import Figure, interleaved, median_ratio
from transformers import AutoTokenizer

from gtpo_cli.objective import Rows
from gtpo_cli.policy.tiny import resolve_name
from gtpo_cli.policy.transformers_policy import TransformersPolicy

TITLE = "Reference model"
_SHAPE = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6, "num_attention_heads": 4}


def run(*, rounds: int = 5) -> list[Figure]:
    """Forward, backward (and the reference's forward) of 8 completions of 200 tokens: CPU time on one thread."""
    torch.set_num_threads(1)
    policy = _policy()
    batch = full_rows(policy, Case("reference", 8, 200, 100))

    def without() -> None:
        _train(policy, batch)

    def with_reference() -> None:
        policy.reference_logprobs(batch)
        _train(policy, batch)

    seconds = interleaved({"without": without, "with": with_reference}, rounds=rounds)
    ratio = median_ratio(seconds, "with", "without")
    note = f"{rounds} rounds; a LLaMA of {policy.num_parameters / 1e6:.1f} million weights with an adapter, float32"
    return [Figure("training half of a step with a reference over without: CPU time", ratio, "", note=note)]


def _policy() -> TransformersPolicy:
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(resolve_name("builtin:tiny"))
    model = LlamaForCausalLM(LlamaConfig(vocab_size=32_000, max_position_embeddings=512, **_SHAPE))
    config = LoraConfig(r=16, lora_alpha=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return TransformersPolicy(get_peft_model(model, config), tokenizer, temperature=1.0, max_seq_length=512)


def _train(policy: TransformersPolicy, rows: Rows) -> None:
    logp, _ = policy.token_logprobs(rows)
    logp.sum().backward()  # type: ignore[no-untyped-call]  # torch ships it untyped
    for parameter in policy.trainable_parameters():
        parameter.grad = None
