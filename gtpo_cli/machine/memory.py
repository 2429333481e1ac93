"""The GPU memory of a run by part. docs/memory.md explains the arithmetic and how it was checked.

All sizes are in bytes. This module neither queries a GPU nor loads weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from gtpo_cli.job import Engines
from gtpo_cli.kernels.row_kernel import CHUNK_BYTES
from gtpo_cli.machine.installed import GIB
from gtpo_cli.machine.shapes import ModelShape
from gtpo_cli.policy.packing import AUTO_TOKENS
from gtpo_cli.policy.policy import STATE_BYTES
from gtpo_cli.recipe import Recipe
from gtpo_cli.recipe.schema import ModelRecipe

NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)  # a weight; its block's scale in 8 bits; that scale's own scale
EXPORT_TOKENS = 128  # of an answer that an export is checked with
STATE_NUMBER = 4  # bytes of a number of a recurrent state
USABLE = 0.95  # of a GPU's memory; the rest is lost between allocations
CONTEXT = 0.8 * GIB  # assumed for CUDA, its libraries and their kernels
ENGINE_WORK = 1.0 * GIB  # assumed part of vLLM's share beside weights, adapter and cache; it stays while vLLM sleeps
# Bytes that vLLM's sampler takes for each sequence and entry of the vocabulary: the slope of Unsloth's measurements of
# an 8B model (load_vllm in unsloth_zoo/vllm_utils.py: 1.45 GiB for 256 sequences, 11.11 for 2,048; 128,256 entries)
SAMPLER_BYTES = 45.1

# Bytes for each token of one block, as (factor of the width, factor of the intermediate width): the most in its
# backward pass, and those that its forward pass keeps without recomputation. Fitted to allocation traces of thirteen
# shapes; a test repeats such traces.
_BLOCK_BYTES = {
    # (adapter, bytes of a number): backward, kept
    (True, 2): ((51.6, 15.8), (35.6, 11.5)),
    (True, 4): ((34.3, 26.8), (26.4, 18.4)),
    (False, 2): ((26.9, 11.7), (21.3, 9.1)),
    (False, 4): ((41.6, 23.1), (34.6, 18.2)),
}


# The same for the most in a forward pass without gradient, by (bytes of a number of the adapter, of another number).
_MEASURING_BYTES = {
    (4, 2): (18.0, 11.1),
    (2, 2): (14.0, 7.1),
    (4, 4): (26.7, 13.9),
    (0, 2): (16.2, 4.5),
    (0, 4): (30.7, 9.0),
}


@dataclass(frozen=True, slots=True)
class Part:
    """One line of the table: memory of a part while sampling, and in a forward pass (training, or measuring)."""

    name: str
    sampling: float
    forward: float


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of training, or of measuring, on one GPU.

    `rows`: completions in one forward; `limit`: the same in the unit of the recipe's micro_batch_size (completions, or
    tokens if it is auto, and in measuring).
    """

    parts: tuple[Part, ...]
    rows: int
    limit: int
    sequences: int | None  # sampled at the same time, while more wait; None without sampling

    @property
    def sampling(self) -> float:
        return sum(part.sampling for part in self.parts)

    @property
    def forward(self) -> float:
        return sum(part.forward for part in self.parts)

    @property
    def peak(self) -> float:
        return max(self.sampling, self.forward)


def memory_of(
    recipe: Recipe,
    shape: ModelShape,
    engines: Engines,
    *,
    prompt_tokens: int,
    completion_tokens: int,
    gpu: float,
    limit: int | None = None,
    measures: bool = False,
) -> Memory:
    """Compute the memory of training, or of measuring alone (`gtpo eval`, `gtpo probe-entropy`), at the longest row.

    `gpu`: the GPU's memory; `limit`: completions in a forward, or tokens if micro_batch_size is auto and in measuring;
    default: the recipe's. `measures`: nothing trains, and a shared engine stays awake during the forward passes.
    """
    row = prompt_tokens + completion_tokens
    if measures:  # each completion with its prompt
        rows = max(1, (limit or AUTO_TOKENS) // row)
        tokens = rows * row
    else:
        rows, tokens = rows_and_tokens(recipe, prompt_tokens, completion_tokens, limit)
    number = number_bytes(recipe.model)
    weights = weight_bytes(recipe.model, shape, trains=not measures)
    trained, trained_bytes = trained_weights(recipe.model, shape)
    adapter = 0 if recipe.model.lora is None else number if measures and engines.shared else 4  # bytes of a number
    parts = [Part("base weights" + (", 4-bit" if recipe.model.load_in_4bit else ""), weights, weights)]
    if adapter:
        parts.append(Part("adapter", float(adapter * trained), float(adapter * trained)))
    if not measures:
        optimizer = STATE_BYTES[recipe.optimizer.name] * trained
        parts += [Part("gradients", 0.0, trained_bytes), Part("optimiser state", optimizer, optimizer)]
    cache_of_a_row = cache_bytes(recipe, shape, engines) * row + STATE_NUMBER * shape.states
    sequences: int | None = None
    if not (recipe.generates or measures):
        pass  # nothing is sampled, and no engine is started
    elif engines.engine == "vllm":
        slot = 0.5 * trained_bytes  # the engine's place for one adapter, in 16 bits
        if engines.shared:  # the base weights are counted above
            share = recipe.rollout.engine_share * (gpu - CONTEXT)  # Unsloth's: of what was free
            awake = max(0.0, share - weights)
            sleeps = not measures and recipe.rollout.standby != "never"
            parts.append(Part("vLLM engine", awake, ENGINE_WORK + slot if sleeps else awake))
            if not measures:
                parts.append(Part("adapter handed to the engine", slot, 0.0))  # a copy in 16 bits
        else:
            share = recipe.rollout.engine_share * gpu
            parts.append(Part("vLLM engine, with its own weights", share, share))
        most = recipe.rollout.max_num_seqs
        work = ENGINE_WORK if most == "auto" else max(ENGINE_WORK, SAMPLER_BYTES * shape.vocabulary * most)
        sequences = int(max(0.0, share - weights - slot - work) // cache_of_a_row)
        sequences = sequences if most == "auto" else min(most, sequences)
    else:
        sequences = recipe.rollout.completions_at_once
        parts.append(Part("key-value cache", cache_of_a_row * sequences, 0.0))
    completion_tokens *= rows
    if measures:
        block = measuring_bytes(shape, tokens, adapter, number) + _dequantised(recipe.model, shape)
        work = max(block, logits_bytes(shape, number, completion_tokens, gradient=False))
    else:
        kept, work = activation_bytes(recipe.model, shape, tokens=tokens, completion_tokens=completion_tokens)
        parts.append(Part("activations kept", 0.0, kept))
    parts.append(Part("work of one block or the logits", 0.0, work))
    parts.append(Part("CUDA itself", CONTEXT, CONTEXT))
    in_tokens = measures or recipe.training.micro_batch_size == "auto"
    return Memory(tuple(parts), rows, tokens if in_tokens else rows, sequences)


@dataclass(frozen=True, slots=True)
class ExportMemory:
    """Bytes that `gtpo export --format merged` takes: of the GPU for the policy's answers, of the main memory for the
    merge, and of the GPU for the check of the merged weights, which the CPU computes if they do not fit."""

    answers: float
    merge: float
    check: float


def export_memory(recipe: Recipe, shape: ModelShape, *, prompt_tokens: int) -> ExportMemory:
    """Compute the memory of an export at the longest prompt. The policy is on transformers, its adapter in 32 bits."""
    model, number = recipe.model, number_bytes(recipe.model)
    weights = weight_bytes(model, shape, trains=False)
    adapter = trained_weights(model, shape)[1] if model.lora is not None else 0.0
    row = prompt_tokens + EXPORT_TOKENS
    logits = shape.vocabulary * (row * number + 2 * 4 * EXPORT_TOKENS)  # those of the answer twice in 32 bits
    answers = weights + adapter + row * kv_bytes(shape, number) + logits + CONTEXT
    whole = shape.parameters * (4 if model.lora is None or shape.quantized else 2)  # as they are stored, or dequantised
    return ExportMemory(answers, float(whole), 2 * shape.parameters + logits + CONTEXT)


def fits(memory: Memory, gpu: float) -> bool:
    """Return whether sampling and forward passes fit, with room to sample at least one sequence, if any."""
    return memory.peak <= USABLE * gpu and memory.sequences != 0


def best_memory(need: Callable[..., Memory], completion: int, gpu: float) -> Memory | None:
    """Return the memory with the most completions in a forward that fit, halving the recipe's as training does."""
    limit: int | None = None
    while True:
        memory = need(completion_tokens=completion, gpu=gpu, limit=limit)
        if fits(memory, gpu):
            return memory
        if memory.rows == 1:
            return None
        limit = memory.limit // 2


def rows_and_tokens(recipe: Recipe, prompt_tokens: int, completion_tokens: int, limit: int | None) -> tuple[int, int]:
    """Return completions and tokens of the largest training forward, as `Rows.split` forms it from longest rows.

    A group's prompt counts once.
    """
    setting = recipe.training.micro_batch_size
    group = recipe.completions_per_prompt
    limit = limit or (AUTO_TOKENS if setting == "auto" else setting)

    def tokens(rows: int) -> int:
        return rows * completion_tokens + math.ceil(rows / group) * prompt_tokens

    most = group * recipe.rollout.prompts_per_step
    if setting != "auto":
        most = min(limit, most)
    else:
        most = max((rows for rows in range(1, most + 1) if tokens(rows) <= limit), default=1)
    return most, tokens(most)


def number_bytes(model: ModelRecipe) -> int:
    """Return the bytes of a number in the model's arithmetic; auto is 16 bits, as on all recent GPUs."""
    return 4 if model.dtype == "float32" else 2


def weight_bytes(model: ModelRecipe, shape: ModelShape, *, trains: bool = True) -> float:
    """Return the bytes of the weights. Trained weights have 32 bits, plus a copy if the arithmetic has 16 bits."""
    number = number_bytes(model)
    if model.lora is None:
        return float(shape.parameters * (4 + number if trains and number < 4 else number))
    each = NF4_BYTES if model.load_in_4bit else number
    return shape.linear_parameters * each + shape.other_parameters * number


def trained_weights(model: ModelRecipe, shape: ModelShape) -> tuple[int, float]:
    """Return the number of trained weights and their bytes in 32 bits. Gradients take as much."""
    lora = model.lora
    count = shape.parameters if lora is None else shape.adapter_parameters(lora)
    return count, 4.0 * count


def cache_bytes(recipe: Recipe, shape: ModelShape, engines: Engines) -> int:
    """Return the bytes of one token's keys and values in all blocks."""
    fp8 = engines.engine == "vllm" and recipe.rollout.vllm.get("kv_cache_dtype") == "fp8"
    return kv_bytes(shape, 1 if fp8 else number_bytes(recipe.model))


def kv_bytes(shape: ModelShape, number: int) -> int:
    """Return the same for a given number of bytes a number."""
    return shape.cached * number


def activation_bytes(
    model: ModelRecipe, shape: ModelShape, *, tokens: int, completion_tokens: int
) -> tuple[float, float]:
    """Return (bytes kept from forward to backward, most further work memory) of one forward of so many tokens.

    With checkpointing each block keeps its input, otherwise everything that its backward needs.
    """
    number, adapter = number_bytes(model), model.lora is not None
    backward, kept = (tokens * (h * shape.hidden + i * shape.intermediate) for h, i in _BLOCK_BYTES[adapter, number])
    in_all = shape.layers * (tokens * number * shape.hidden if model.gradient_checkpointing else kept)
    if not model.gradient_checkpointing:
        backward -= kept  # the last block's share is already in `kept`
    backward += _dequantised(model, shape)
    return in_all, max(backward, logits_bytes(shape, number, completion_tokens))


def measuring_bytes(shape: ModelShape, tokens: int, adapter: int, number: int) -> float:
    """Return the most bytes in the blocks of a forward pass without gradient.

    `adapter`, `number`: the bytes of a number of the adapter (0 without one) and of another one.
    """
    h, i = _MEASURING_BYTES[adapter, number]
    return tokens * (h * shape.hidden + i * shape.intermediate)


def _dequantised(model: ModelRecipe, shape: ModelShape) -> float:
    """Return the bytes of the largest 4-bit weight in the type of the arithmetic."""
    largest = max((layer.largest for layer in shape.linear.values()), default=0)
    return float(number_bytes(model) * largest) if model.load_in_4bit else 0.0


def logits_bytes(shape: ModelShape, number: int, completion_tokens: int, *, gradient: bool = True) -> float:
    """Return the bytes from hidden states to log-probabilities on a GPU, which holds the logits of a chunk of tokens.

    Every token has its hidden state and, with `gradient`, its gradient direction in 32 bits. A chunk has the logits in
    32 bits and, if the model's numbers are smaller, the residuals in the model's type.
    """
    rows = min(completion_tokens, max(16, CHUNK_BYTES // (4 * shape.vocabulary)))
    logits = rows * shape.vocabulary * (4 if number == 4 else 4 + number)
    return completion_tokens * shape.hidden * (number + 4.0 * gradient) + logits
