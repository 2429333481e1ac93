"""The dimensions of a model, which determine its memory. They are read from its configuration, without weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gtpo_cli.errors import ModelError
from gtpo_cli.recipe.schema import LoraRecipe


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The shape of a LLaMA-like decoder (Qwen2 and others are LLaMA-like)."""

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

    @property
    def linear_layers(self) -> dict[str, tuple[int, int]]:
        """(inputs, outputs) of the linear layers of one block."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "q_proj": (self.hidden, queries),
            "k_proj": (self.hidden, keys),
            "v_proj": (self.hidden, keys),
            "o_proj": (queries, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }

    @property
    def linear_parameters(self) -> int:
        """Weights of all blocks' linear layers: what 4-bit loading quantises."""
        return self.layers * sum(inputs * outputs for inputs, outputs in self.linear_layers.values())

    @property
    def other_parameters(self) -> int:
        """Embeddings, output layer and norms: never quantised. (Biases are left out: below a thousandth.)"""
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return embeddings + (2 * self.layers + 1) * self.hidden

    @property
    def parameters(self) -> int:
        return self.linear_parameters + self.other_parameters

    def adapter_parameters(self, lora: LoraRecipe) -> int:
        """r (inputs + outputs) for each layer that gets an adapter."""
        names = self.linear_layers if lora.target_modules == "all-linear" else lora.target_modules
        sizes = (sum(self.linear_layers.get(name, (0, 0))) for name in names)
        return self.layers * lora.rank * sum(sizes)


# The shapes in the config.json of the paper's models, for machines that cannot reach the hub.
PUBLISHED = {
    "meta-llama/Llama-3.1-8B-Instruct": ModelShape(32, 4096, 14336, 32, 8, 128, 128256, tied=False),
    "Qwen/Qwen2.5-3B-Instruct": ModelShape(36, 2048, 11008, 16, 2, 128, 151936, tied=True),
}
# Counts of their training data by `gtpo plan` with their own tokenizers: (longest prompt in tokens, problems).
PUBLISHED_PROMPTS = {
    ("meta-llama/Llama-3.1-8B-Instruct", "gsm8k"): (287, 7473),
    ("meta-llama/Llama-3.1-8B-Instruct", "math"): (1632, 7497),
    ("Qwen/Qwen2.5-3B-Instruct", "gsm8k"): (268, 7473),
    ("Qwen/Qwen2.5-3B-Instruct", "math"): (1710, 7497),
}


def shape_of(config: Any, name: str) -> ModelShape:
    """Return the shape in a model's configuration. Raises ModelError if it does not name all dimensions."""
    quantized = getattr(config, "quantization_config", None) is not None
    config = getattr(config, "text_config", None) or config
    try:
        return ModelShape(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            heads=config.num_attention_heads,
            kv_heads=getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            vocabulary=config.vocab_size,
            tied=bool(config.tie_word_embeddings),
            quantized=quantized,
            positions=getattr(config, "max_position_embeddings", None),
        )
    except AttributeError as error:
        raise ModelError(
            f"model.name: the configuration of {name} names no {error.name}; gtpo plan knows models of the LLaMA kind"
        ) from error
