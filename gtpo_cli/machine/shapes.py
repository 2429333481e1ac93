"""The dimensions of a model, which determine its memory. They are counted in the model, built from its configuration
without weights."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from gtpo_cli.errors import ModelError, translated
from gtpo_cli.policy.loading import quiet
from gtpo_cli.recipe.schema import LoraRecipe, ModelRecipe
from gtpo_cli.text import describe


class Linear(NamedTuple):
    """All linear layers of one name: their weights, their inputs and outputs together, the weights of the largest."""

    weights: int
    ends: int
    largest: int


@dataclass(frozen=True, slots=True)
class Counts:
    """What a model has, counted in the model itself without its weights.

    `linear`: the layers in the decoder of text by the last part of their name. `targets`: the names that `all-linear`
    stands for, if the recipe has it. `cached`: numbers that the cache keeps for each token; `states`: for each row.
    """

    linear: Mapping[str, Linear]
    targets: tuple[str, ...]
    parameters: int
    cached: int
    states: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The shape of a decoder. Without `counts` it is LLaMA-like, as Qwen2 and others are."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool  # one matrix is both input and output embedding
    quantized: bool = False  # the weights are stored in fewer bits than 16
    positions: int | None = None  # most tokens of a row
    counts: Counts | None = None

    @property
    def linear(self) -> Mapping[str, Linear]:
        """The linear layers by name: those of the counted model, or of blocks like LLaMA's."""
        if self.counts is not None:
            return self.counts.linear
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        inputs_outputs = {
            "q_proj": (self.hidden, queries),
            "k_proj": (self.hidden, keys),
            "v_proj": (self.hidden, keys),
            "o_proj": (queries, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }
        return {
            name: Linear(self.layers * inputs * outputs, self.layers * (inputs + outputs), inputs * outputs)
            for name, (inputs, outputs) in inputs_outputs.items()
        }

    @property
    def cached(self) -> int:
        """Numbers that the cache keeps for each token."""
        return 2 * self.layers * self.kv_heads * self.head_dim if self.counts is None else self.counts.cached

    @property
    def states(self) -> int:
        """Numbers that the cache keeps for each row, whatever its length: recurrent states."""
        return 0 if self.counts is None else self.counts.states

    @property
    def linear_parameters(self) -> int:
        """Weights of all linear layers but the output: what 4-bit loading quantises."""
        return sum(layer.weights for layer in self.linear.values())

    @property
    def other_parameters(self) -> int:
        """Embeddings, output layer, norms, fused experts: never quantised. (Of a LLaMA-like model without biases, below
        a thousandth.)"""
        if self.counts is not None:
            return self.counts.parameters - self.linear_parameters
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return embeddings + (2 * self.layers + 1) * self.hidden

    @property
    def parameters(self) -> int:
        return self.linear_parameters + self.other_parameters

    def adapter_parameters(self, lora: LoraRecipe) -> int:
        """r (inputs + outputs) for each layer that gets an adapter."""
        names: Collection[str] = lora.target_modules
        if lora.target_modules == "all-linear":
            names = self.linear if self.counts is None else self.counts.targets
        return lora.rank * sum(self.linear[name].ends for name in names if name in self.linear)


# The shapes in the config.json of the shipped recipes' models, for machines that cannot reach the hub.
PUBLISHED = {
    "meta-llama/Llama-3.1-8B-Instruct": ModelShape(32, 4096, 14336, 32, 8, 128, 128256, tied=False),
    "Qwen/Qwen2.5-3B-Instruct": ModelShape(36, 2048, 11008, 16, 2, 128, 151936, tied=True),
    "Qwen/Qwen3-0.6B": ModelShape(28, 1024, 3072, 16, 8, 128, 151936, tied=True),
    "Qwen/Qwen3-1.7B": ModelShape(28, 2048, 6144, 16, 8, 128, 151936, tied=True),
}
# Counts of their training data by `gtpo plan`, with the recipes' prompts and their own tokenizers: (longest prompt in
# tokens, problems). Qwen3's were counted with Qwen2.5's tokenizer, the tags that Qwen3 adds to it, and thinking off.
PUBLISHED_PROMPTS = {
    ("meta-llama/Llama-3.1-8B-Instruct", "gsm8k"): (287, 7473),
    ("meta-llama/Llama-3.1-8B-Instruct", "math"): (1632, 7497),
    ("Qwen/Qwen2.5-3B-Instruct", "gsm8k"): (268, 7473),
    ("Qwen/Qwen2.5-3B-Instruct", "math"): (1710, 7497),
    ("Qwen/Qwen3-0.6B", "gsm8k"): (244, 7473),
    ("Qwen/Qwen3-1.7B", "gsm8k"): (244, 7473),
}


def shape_of(config: Any, model: ModelRecipe) -> ModelShape:
    """Return the shape of the recipe's model, which has this configuration. Raises ModelError if it cannot be built."""
    text = config.get_text_config()
    heads = getattr(text, "num_attention_heads", None) or 0
    experts = (getattr(text, "num_experts_per_tok", None) or 0) * (getattr(text, "moe_intermediate_size", None) or 0)

    def wrong(error: BaseException) -> ModelError:
        return ModelError(f"model.name: the memory of {model.name} cannot be planned ({describe(error)})")

    with translated(Exception, wrong), quiet():
        return ModelShape(
            layers=text.num_hidden_layers,
            hidden=text.hidden_size,
            intermediate=max(getattr(text, "intermediate_size", None) or 2 * text.hidden_size, experts),
            heads=heads,
            kv_heads=getattr(text, "num_key_value_heads", None) or heads,
            head_dim=getattr(text, "head_dim", None) or text.hidden_size // (heads or 1),
            vocabulary=text.vocab_size,
            tied=bool(text.tie_word_embeddings),
            quantized=getattr(config, "quantization_config", None) is not None,
            positions=getattr(text, "max_position_embeddings", None),
            counts=count(config, adapts_all=model.lora is not None and model.lora.target_modules == "all-linear"),
        )


def count(config: Any, *, adapts_all: bool = False) -> Counts:
    """Build the model on torch's meta device, where tensors have no numbers, and count what it has.

    Its cache is counted after 8 tokens and after 9. `adapts_all`: find the targets of `all-linear`, which takes PEFT.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from gtpo_cli.policy.decoder import cache_of
    from gtpo_cli.policy.transformers_policy import all_linear, is_linear

    config = copy.deepcopy(config)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    decoder = model.get_decoder()
    layers: dict[str, list[tuple[int, int]]] = {}
    for name, module in decoder.named_modules():
        if is_linear(module):
            rows, columns = module.weight.shape
            layers.setdefault(name.rpartition(".")[2], []).append((rows, columns))
        elif any(weight.dim() == 3 for weight in module.parameters(recurse=False)) and not _is_convolution(module):
            module.forward = lambda hidden, *_, **__: hidden  # fused experts, which need the numbers of their router
    held = []
    for tokens in (8, 9):
        with torch.no_grad(), torch.device("meta"):
            output = decoder(input_ids=torch.zeros(1, tokens, dtype=torch.long), use_cache=True)
        _, cache = cache_of(output, config.model_type)
        held.append(sum(tensor.numel() for tensor in _tensors(cache.layers)))
    cached = held[1] - held[0]
    return Counts(
        {
            name: Linear(sum(a * b for a, b in shapes), sum(a + b for a, b in shapes), max(a * b for a, b in shapes))
            for name, shapes in layers.items()
        },
        tuple(all_linear(model)) if adapts_all else (),
        sum(parameter.numel() for parameter in model.parameters()),
        cached,
        held[0] - 8 * cached,
    )


def _is_convolution(module: Any) -> bool:
    import torch

    return isinstance(module, torch.nn.Conv1d)


def _tensors(layers: Sequence[Any]) -> Iterator[Any]:
    """Yield the tensors of a cache's layers with more than one number."""
    import torch

    for value in (value for layer in layers for value in vars(layer).values()):
        for tensor in value.values() if isinstance(value, dict) else [value]:
            if isinstance(tensor, torch.Tensor) and tensor.dim():
                yield tensor
