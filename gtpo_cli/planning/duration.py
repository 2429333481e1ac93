"""Estimate how long a run takes on a GPU, as a range.

A generation ends with the longest completion in flight; waiting completions start when others end. One pass through the
model computes one token of every sequence in flight. Its time is an overhead (kernel launches, the engine's
bookkeeping) plus the larger of memory traffic and arithmetic. Then come K updates. Each multiplies each token by each
weight in the forward pass, in the backward pass (twice if the weights themselves train), once more with checkpointing,
and once more for ln pi_old if K > 1.

Only one run was timed, on one card (MEASURED; docs/benchmarks.md). It gives the time of a pass, but not the overhead in
it. So there are two readings, both of which reproduce that time, and the range goes from the faster to the slower. Not
included: attention's arithmetic, slow rewards, evaluation, checkpoints, loading, compilation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

from gtpo_cli.models import Engines
from gtpo_cli.planning.cards import CARDS, Card
from gtpo_cli.planning.memory import Memory, cache_bytes, kv_bytes, number_bytes
from gtpo_cli.planning.shapes import PUBLISHED, ModelShape
from gtpo_cli.recipe import Recipe
from gtpo_cli.recipe.schema import LoraRecipe, ModelRecipe


@dataclass(frozen=True, slots=True)
class Reading:
    """One interpretation of the measured run.

    `read`, `multiply`: shares of the data sheet's bandwidth and arithmetic that a card reaches. `grows`: whether a
    fused 4-bit product takes longer with each row, up to the time of the two-kernel product that replaces it.
    `generation`: extra seconds if the engine sleeps between generations (it wakes, loads the adapter, sleeps).
    """

    read: float
    multiply: float
    grows: bool
    generation: float


READINGS = (Reading(0.5, 0.3, grows=True, generation=0.2), Reading(0.85, 0.5, grows=False, generation=1.0))
# Weibull shapes of the lengths. At 1, the exponential distribution, the deviation equals the mean; at 2.1 it is half of
# the mean. For the worked solutions of the training splits it is 0.87 (MATH) and 0.50 (GSM8K) of the mean.
SPREADS = (1.0, 2.1)


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A measured run. `seconds`: sampling time of a step whose completions all had the greatest length."""

    card: str
    shape: ModelShape
    model: ModelRecipe
    completions: int
    prompt_tokens: int
    completion_tokens: int
    seconds: float


_LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
MEASURED = MeasuredRun(
    "h100", PUBLISHED[_LLAMA], ModelRecipe(name=_LLAMA, load_in_4bit=True, lora=LoraRecipe(rank=128, alpha=128)),
    completions=8, prompt_tokens=287, completion_tokens=1500, seconds=25.7,
)  # fmt: skip
# Kernels of a block in vLLM with an adapter: seven 4-bit products, five of them in two kernels, and seven copies of
# their results, or four products; three for each of four adapters' products; seven more (norms, rotation, attention).
KERNELS = {True: 38, False: 23}  # with 4-bit weights, without
# Assumed seconds of a block's kernel launches without CUDA graphs (transformers, rollout.vllm.enforce_eager)
LAUNCH = 1e-3

NF4_READ = 0.5 + 4 / 64  # bytes a weight; vLLM keeps a block's scale in 32 bits
# bitsandbytes 0.50.2 multiplies few rows with 4-bit weights in one kernel. For more rows it writes the weights in 16
# bits and reads them again. (least of the outputs by 64 and by the card's multiprocessors, most rows) approximates
# its own rule (_gemm_4bit_use_custom_cuda in backends/cuda/ops.py), which has 27 cases.
_FUSED = {
    "HBM": ((2.0, 64), (1.0, 32), (0.0, 7)),
    "GDDR7": ((0.8, 96), (0.0, 8)),
    "GDDR6": ((0.8, 96), (0.5, 32), (0.0, 12)),
}
_OFTEN = 40  # time points while the last completions end


@dataclass(frozen=True, slots=True)
class Hours:
    """The hours of a whole run, from the fastest reading on the fastest card to the slowest on the slowest."""

    fastest: float
    slowest: float
    cards: tuple[str, ...]  # fastest first

    @property
    def middle(self) -> float:
        """The geometric mean, for comparing settings."""
        return math.sqrt(self.fastest * self.slowest)

    def __str__(self) -> str:
        low, high = _round(self.fastest), _round(self.slowest)
        return low if low == high else f"{low} to {high}"


def estimate(
    recipe: Recipe, shape: ModelShape, engines: Engines, memory: Memory, *,
    cards: Sequence[Card], steps: int, completions: int, prompt_tokens: int, completion_tokens: int,
) -> Hours:  # fmt: skip
    """Estimate the hours on these cards for so many steps and completions of this mean length; steps as in `memory`."""
    return _of_cards(cards, lambda card, reading, spread: steps * step_seconds(
        recipe, shape, engines, memory, card, completions=completions / steps, prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens, reading=reading, spread=spread,
    ))  # fmt: skip


def step_seconds(
    recipe: Recipe, shape: ModelShape, engines: Engines, memory: Memory, card: Card, *,
    completions: float, prompt_tokens: int, completion_tokens: int, reading: Reading, spread: float,
) -> float:  # fmt: skip
    """Estimate the seconds of a step with so many completions: its share of a generation, and its update."""
    prompts = completions / recipe.completions_per_prompt
    tokens = completions * completion_tokens + prompts * prompt_tokens
    rate = reading.multiply * _operations(recipe.model, card)
    training = tokens * training_operations(recipe, shape) / rate
    if memory.sequences is None:
        return training
    steps = recipe.rollout.steps_per_generation
    generation = generation_seconds(
        recipe, shape, engines, memory, card, completions=completions * steps, prompts=prompts * steps,
        prompt_tokens=prompt_tokens, completion_tokens=completion_tokens, limit=recipe.rollout.max_completion_tokens,
        reading=reading, spread=spread,
    )  # fmt: skip
    return generation / steps + training


def generation_seconds(
    recipe: Recipe, shape: ModelShape, engines: Engines, memory: Memory, card: Card, *,
    completions: float, prompts: float, prompt_tokens: int, completion_tokens: int, limit: int, reading: Reading,
    spread: float,
) -> float:  # fmt: skip
    """Estimate the seconds to sample so many completions of so many prompts, each of at most `limit` tokens."""
    assert memory.sequences is not None
    room = min(limit, recipe.model.max_seq_length - prompt_tokens)
    cached = max(1, memory.sequences) * (prompt_tokens + room)  # tokens in the cache
    at_once = min(completions, max(1.0, cached / (prompt_tokens + completion_tokens)))
    if recipe.rollout.max_num_seqs != "auto":
        at_once = min(at_once, recipe.rollout.max_num_seqs)
    sleeps = engines.shared and recipe.rollout.standby != "never"
    seconds = reading.generation if sleeps else 0.0
    rate = reading.multiply * _operations(recipe.model, card)
    seconds += prompts * prompt_tokens * 2 * shape.parameters / rate
    for passes, rows, length in passes_of(completions, at_once, completion_tokens, room, spread):
        held = rows * (prompt_tokens + length) * cache_bytes(recipe, shape, engines)
        work = pass_seconds(recipe.model, shape, card, rows=rows, cached=held, reading=reading)
        seconds += passes * (work + overhead(recipe, shape, engines, reading))
    return seconds


def evaluation_hours(
    recipe: Recipe, shape: ModelShape, engines: Engines, memory: Memory, *,
    cards: Sequence[Card], problems: int, prompt_tokens: int, completion_tokens: int,
) -> Hours:  # fmt: skip
    """Estimate the hours of `gtpo eval`: one generation of all completions, then a forward of each for its entropy.

    `recipe`, `memory`: as from `for_measuring`; `completion_tokens`: mean.
    """
    settings = recipe.evaluation
    completions = problems * settings.samples
    operations = 2.0 * shape.parameters * (completions * completion_tokens + problems * prompt_tokens)
    return _of_cards(cards, lambda card, reading, spread: generation_seconds(
        recipe, shape, engines, memory, card, completions=completions, prompts=problems, prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens, limit=settings.max_completion_tokens, reading=reading, spread=spread,
    ) + operations / (reading.multiply * _operations(recipe.model, card)))  # fmt: skip


def _of_cards(cards: Sequence[Card], seconds: Callable[[Card, Reading, float], float]) -> Hours:
    """Collect the hours on these cards over all readings and spreads."""
    of = []
    for card in cards:
        hours = [seconds(card, reading, spread) / 3600 for reading, spread in product(READINGS, SPREADS)]
        of.append((min(hours), max(hours), card.name))
    of.sort()
    return Hours(of[0][0], max(slowest for _, slowest, _ in of), tuple(name for _, _, name in of))


def passes_of(
    completions: float, at_once: float, mean: float, limit: float, spread: float
) -> Iterator[tuple[float, float, float]]:
    """Yield (passes, sequences in them, their mean length by then) of a generation.

    First all slots are full, for (completions - at_once) mean / at_once passes. Then the last `at_once` end one by one.
    With S(t) the share longer than t, at least one of n continues at t with probability 1 - (1 - S(t))^n, and n S(t)
    continue on average. S is Weibull's with this shape, cut at `limit`.
    """
    if completions > at_once:
        yield (completions - at_once) * mean / at_once, at_once, mean / 2
    scale = _scale(mean, limit, spread)
    width = limit / _OFTEN
    for middle in (width * (i + 0.5) for i in range(_OFTEN)):
        longer = math.exp(-((middle / scale) ** spread))
        some = 1 - (1 - longer) ** at_once
        if some > 1e-6:
            yield width * some, max(1.0, at_once * longer / some), middle


@cache
def _scale(mean: float, limit: float, spread: float) -> float:
    """Find Weibull's scale for which min(length, limit) has this mean, bisecting the integral of S up to `limit`."""
    low, high = 0.0, 1e6 * limit
    for _ in range(60):
        scale = math.sqrt(max(low, 1e-9 * limit) * high)
        width = limit / _OFTEN
        found = sum(width * math.exp(-((width * (i + 0.5) / scale) ** spread)) for i in range(_OFTEN))
        low, high = (scale, high) if found < mean else (low, scale)
    return high


def pass_seconds(
    model: ModelRecipe, shape: ModelShape, card: Card, *, rows: float, cached: float, reading: Reading
) -> float:
    """Estimate a pass, without overhead: a token for each of `rows` sequences, with so many bytes of caches."""
    moved = weight_traffic(model, shape, card, rows, grows=reading.grows) + cached
    multiplied = 2 * shape.parameters * rows
    return max(moved / (reading.read * card.bandwidth), multiplied / (reading.multiply * _operations(model, card)))


def overhead(recipe: Recipe, shape: ModelShape, engines: Engines, reading: Reading) -> float:
    """Estimate the overhead of a pass in seconds from its kernels in vLLM's CUDA graphs."""
    if engines.engine == "transformers" or recipe.rollout.vllm.enforce_eager:
        return shape.layers * LAUNCH
    return shape.layers * KERNELS[bool(recipe.model.load_in_4bit)] * _seconds_a_kernel(reading)


@cache
def _seconds_a_kernel(reading: Reading) -> float:
    """Return the time of the measured pass beyond its memory traffic, for each kernel."""
    card = next(card for card in CARDS if card.short == MEASURED.card)
    cached = MEASURED.completions * (MEASURED.prompt_tokens + MEASURED.completion_tokens / 2)
    cached *= kv_bytes(MEASURED.shape, 2)
    work = pass_seconds(MEASURED.model, MEASURED.shape, card, rows=MEASURED.completions, cached=cached, reading=reading)
    prefill = MEASURED.prompt_tokens * 2 * MEASURED.shape.parameters / (reading.multiply * card.operations)
    seconds = (MEASURED.seconds - reading.generation - prefill) / MEASURED.completion_tokens
    return (seconds - work) / (MEASURED.shape.layers * KERNELS[True])


def training_operations(recipe: Recipe, shape: ModelShape) -> float:
    """Count the operations for each token of a step: 2 for each weight and pass."""
    passes = 2.0 + (recipe.model.lora is None) + bool(recipe.model.gradient_checkpointing)
    without_gradient = (recipe.objective.kl_coef > 0) + (recipe.samples and recipe.rollout.steps_per_generation > 1)
    return 2.0 * shape.parameters * (passes * recipe.objective.num_iterations + without_gradient)


def weight_traffic(model: ModelRecipe, shape: ModelShape, card: Card, rows: float, *, grows: bool) -> float:
    """Count the bytes to and from memory of a pass of so many rows, with the growth by `grows` expressed in bytes.

    Of the embeddings only the output layer counts. An adapter has 16 bits.
    """
    number = number_bytes(model)
    moved = float(shape.vocabulary * shape.hidden * number)
    if model.lora is not None:
        moved += 2 * shape.adapter_parameters(model.lora)
    for inputs, outputs in shape.linear_layers.values():
        each: float = number
        if model.load_in_4bit:
            most = most_fused(card, outputs, number)
            each = NF4_READ + 2 * number * (1.0 if rows > most else rows / most if grows else 0.0)
        moved += shape.layers * inputs * outputs * each
    return moved


def most_fused(card: Card, outputs: int, number: int) -> int:
    """Return the most rows that bitsandbytes multiplies directly with 4-bit weights."""
    if number == 4:
        return 7
    memory = "HBM" if card.capability in ((8, 0), (9, 0)) else "GDDR7" if card.capability[0] == 12 else "GDDR6"
    waves = outputs / 64 / card.multiprocessors
    return next(most for least, most in _FUSED[memory] if waves >= least)


def _operations(model: ModelRecipe, card: Card) -> float:
    return card.operations_32 if number_bytes(model) == 4 else card.operations


def _round(hours: float) -> str:
    """Round to two digits, since an estimate is not more precise."""
    if hours >= 10:
        return f"{float(f'{hours:.2g}'):,.0f}"
    return f"{hours:.2g}"
