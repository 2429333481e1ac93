"""Forward and backward of one group: packed rows against padded ones. Run: `python benchmarks/run.py training_half`."""

from __future__ import annotations

import statistics
from functools import partial

import torch
from measure import Figure, interleaved, median_ratio
from transformers import AutoTokenizer

from gtpo_cli.objective import Rows
from gtpo_cli.policy.packing import rows_without_gaps
from gtpo_cli.policy.tiny import resolve_name
from gtpo_cli.policy.transformers_policy import TransformersPolicy

TITLE = "Training half of a step"
GROUP, PROMPT, SHORTEST, LONGEST = 8, 200, 100, 300
_SHAPE = {"vocab_size": 32_000, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 4,
          "num_attention_heads": 8, "max_position_embeddings": 1024}  # fmt: skip


def run(*, rounds: int = 5) -> list[Figure]:
    """One group on a model of 4 layers; about two minutes on one core."""
    torch.set_num_threads(1)
    figures = []
    for adapter in (False, True):
        packed, padded = policy(adapter), policy(adapter)
        padded.packs = False
        batch = one_group()
        paths = {
            "packed": partial(own_path, packed, batch),
            "padded": partial(own_path, padded, batch),
            "full logits": partial(full_logits_path, padded, batch),
        }
        error = gradient_error(packed, padded, batch)
        seconds = interleaved(paths, rounds=rounds)
        medians = ", ".join(f"{name} {statistics.median(taken):.2f} s" for name, taken in seconds.items())
        kind = "adapter" if adapter else "all weights"
        what = f"{kind}, prompt {PROMPT}, completions {SHORTEST} to {LONGEST}, G {GROUP}"
        figures += [
            Figure(f"training half, {what}: CPU time over padded rows with full logits",
                   median_ratio(seconds, "packed", "full logits"), "", medians),
            Figure(f"training half, {what}: CPU time over padded rows with our logits path",
                   median_ratio(seconds, "packed", "padded"), ""),
            Figure(f"training half, {what}: gradient against padded rows", error, ""),
        ]  # fmt: skip
    return figures


def policy(adapter: bool) -> TransformersPolicy:
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(tie_word_embeddings=True, **_SHAPE))
    if adapter:
        kinds = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        config = LoraConfig(r=16, lora_alpha=16, target_modules=kinds, init_lora_weights=False, task_type="CAUSAL_LM")
        model = get_peft_model(model, config)
    return TransformersPolicy(
        model, AutoTokenizer.from_pretrained(resolve_name("builtin:tiny")), temperature=1.0, max_seq_length=1024
    )


def one_group() -> Rows:
    """Random tokens; lengths spread evenly."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(LONGEST) < torch.linspace(SHORTEST, LONGEST, GROUP).long()[:, None]
    ids = torch.randint(3, 32_000, (GROUP, LONGEST), generator=generator)
    return Rows(
        prompt_ids_BP=torch.randint(3, 32_000, (1, PROMPT), generator=generator),
        prompt_mask_BP=torch.ones(1, PROMPT, dtype=torch.bool),
        prompt_N=torch.zeros(GROUP, dtype=torch.long),
        ids_NT=ids * mask,
        mask_NT=mask,
    )


def own_path(policy: TransformersPolicy, rows: Rows) -> None:
    logp, _ = policy.token_logprobs(rows)
    _backward(policy, logp.sum())


def full_logits_path(policy: TransformersPolicy, rows: Rows) -> None:
    """What the usual trainers do: padded rows, logits of every place, log-softmax, autograd."""
    ids_RW, places_M = rows_without_gaps(rows)
    logp = torch.log_softmax(policy.model(input_ids=ids_RW, use_cache=False).logits.float(), dim=-1).flatten(0, 1)
    with torch.no_grad():
        _ = -(logp.exp() * logp).sum(dim=-1)
    tokens_M1 = rows.ids_NT[rows.mask_NT][:, None]
    _backward(policy, logp[places_M].gather(1, tokens_M1).sum())


def _backward(policy: TransformersPolicy, loss: torch.Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]  # torch ships it untyped
    for parameter in policy.trainable_parameters():
        parameter.grad = None


def gradient_error(packed: TransformersPolicy, padded: TransformersPolicy, rows: Rows) -> float:
    """Norm of the difference over the norm, all weights together."""
    gradients = [
        torch.cat([g.flatten() for g in torch.autograd.grad(
            policy.token_logprobs(rows)[0].sum(), list(policy.trainable_parameters()))])
        for policy in (packed, padded)
    ]  # fmt: skip
    return float((gradients[0] - gradients[1]).norm() / gradients[1].norm())
