"""How long a run takes on a GPU: an estimate, as a range.

A generation lasts until the longest of the completions in flight ends; one that waits for its turn starts where another
ends. Each token of all sequences in flight is one pass through the model, and a pass takes an overhead (kernels that
start, the engine's bookkeeping) and the larger of what it moves to and from memory and what it multiplies. Then come
K updates: each token times each weight in the forward pass, in the backward pass (twice where the weights themselves
train), with checkpointing once more, and once more for ln pi_old where K > 1.

One run was timed, on one card (MEASURED; docs/benchmarks.md). It gives the time of a pass, not what of it is overhead:
so there are two readings, each of which repeats that time, and the range is from the faster to the slower of them. Left
out: attention's arithmetic, rewards that take long, evaluation, checkpoints, loading, compilation.
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
    """One way to read the measured run. `read`, `multiply`: shares of the bandwidth and of the arithmetic of its data
    sheet that a card reaches. `grows`: whether a fused 4-bit product takes longer with each row, up to the time of the
    two-kernel one where that takes its place. `generation`: seconds beside its passes where the engine sleeps between
    generations (it wakes, takes the adapter, sleeps)."""

    read: float
    multiply: float
    grows: bool
    generation: float


READINGS = (Reading(0.5, 0.3, grows=True, generation=0.2), Reading(0.85, 0.5, grows=False, generation=1.0))
# Weibull shapes of the lengths: 1 is the exponential distribution, whose deviation is its mean; at 2.1 it is half of
# that. The worked solutions of the training splits have 0.87 (MATH) and 0.50 (GSM8K) of it.
SPREADS = (1.0, 2.1)


@dataclass(frozen=True, slots=True)
class Measured:
    """`seconds`: of sampling in a step, of which each completion was as long as it may be."""

    card: str
    shape: ModelShape
    model: ModelRecipe
    completions: int
    prompt_tokens: int
    completion_tokens: int
    seconds: float


_LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
MEASURED = Measured(
    "h100", PUBLISHED[_LLAMA], ModelRecipe(name=_LLAMA, load_in_4bit=True, lora=LoraRecipe(rank=128, alpha=128)),
    completions=8, prompt_tokens=287, completion_tokens=1500, seconds=25.7,
)  # fmt: skip
# Kernels of a block in vLLM with an adapter: seven 4-bit products, five of them in two kernels, and seven copies of
# their results, or four products; three for each of four adapters' products; seven more (norms, rotation, attention).
KERNELS = {True: 38, False: 23}  # with 4-bit weights, without
# Seconds a block where no CUDA graph spares the launches (transformers, rollout.vllm.enforce_eager): an assumption
LAUNCH = 1e-3

NF4_READ = 0.5 + 4 / 64  # bytes a weight; vLLM keeps a block's scale in 32 bits
# bitsandbytes 0.50.2 multiplies few rows with 4-bit weights in one kernel; above it writes the weights in 16 bits and
# reads them again. (least of the outputs by 64 and by the card's multiprocessors, most rows) in the place of
# its own rule (_gemm_4bit_use_custom_cuda in backends/cuda/ops.py), which has 27 cases.
_FUSED = {
    "HBM": ((2.0, 64), (1.0, 32), (0.0, 7)),
    "GDDR7": ((0.8, 96), (0.0, 8)),
    "GDDR6": ((0.8, 96), (0.5, 32), (0.0, 12)),
}
_OFTEN = 40  # points in time of the last completions' end


@dataclass(frozen=True, slots=True)
class Hours:
    """Of a whole run: the fastest reading on the fastest of the cards, and the slowest on the slowest."""

    fastest: float
    slowest: float
    cards: tuple[str, ...]  # fastest first

    @property
    def middle(self) -> float:
        """Geometric, to compare settings by."""
        return math.sqrt(self.fastest * self.slowest)

    def __str__(self) -> str:
        low, high = _round(self.fastest), _round(self.slowest)
        return low if low == high else f"{low} to {high}"


def estimate(
    recipe: Recipe, shape: ModelShape, engines: Engines, memory: Memory, *,
    cards: Sequence[Card], steps: int, completions: int, prompt_tokens: int, completion_tokens: int,
) -> Hours:  # fmt: skip
    """Hours on these cards for so many steps and completions of this mean length, each step as in `memory`."""
    return _of_cards(cards, lambda card, reading, spread: steps * step_seconds(
        recipe, shape, engines, memory, card, completions=completions / steps, prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens, reading=reading, spread=spread,
    ))  # fmt: skip


def step_seconds(
    recipe: Recipe, shape: ModelShape, engines: Engines, memory: Memory, card: Card, *,
    completions: float, prompt_tokens: int, completion_tokens: int, reading: Reading, spread: float,
) -> float:  # fmt: skip
    """Of one step with so many completions: its share of a generation, and its update."""
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
    """Of sampling so many completions of so many prompts, each of at most `limit` tokens."""
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
    """Of `gtpo eval`: all completions are one generation, and one forward of each measures its entropy while nothing is
    sampled. `recipe`, `memory`: as `for_measuring` has them; `completion_tokens`: mean."""
    settings = recipe.evaluation
    completions = problems * settings.samples
    operations = 2.0 * shape.parameters * (completions * completion_tokens + problems * prompt_tokens)
    return _of_cards(cards, lambda card, reading, spread: generation_seconds(
        recipe, shape, engines, memory, card, completions=completions, prompts=problems, prompt_tokens=prompt_tokens,
        completion_tokens=completion_tokens, limit=settings.max_completion_tokens, reading=reading, spread=spread,
    ) + operations / (reading.multiply * _operations(recipe.model, card)))  # fmt: skip


def _of_cards(cards: Sequence[Card], seconds: Callable[[Card, Reading, float], float]) -> Hours:
    """Of these cards, by all readings and spreads."""
    of = []
    for card in cards:
        hours = [seconds(card, reading, spread) / 3600 for reading, spread in product(READINGS, SPREADS)]
        of.append((min(hours), max(hours), card.name))
    of.sort()
    return Hours(of[0][0], max(slowest for _, slowest, _ in of), tuple(name for _, _, name in of))


def passes_of(
    completions: float, at_once: float, mean: float, limit: float, spread: float
) -> Iterator[tuple[float, float, float]]:
    """(passes, sequences in them, their mean length by then) of a generation.

    First all places are taken: (completions - at_once) mean / at_once passes. Then the last `at_once` end one by one:
    with S(t) the share longer than t, at least one of n goes on at t with probability 1 - (1 - S(t))^n, and n S(t) do
    in the mean. S is Weibull's with this shape, cut at `limit`.
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
    """Weibull's scale with which min(length, limit) has this mean: by bisection, of the integral of S up to `limit`."""
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
    """A token for each of `rows` sequences, whose caches are so many bytes together; without overhead."""
    moved = weight_traffic(model, shape, card, rows, grows=reading.grows) + cached
    multiplied = 2 * shape.parameters * rows
    return max(moved / (reading.read * card.bandwidth), multiplied / (reading.multiply * _operations(model, card)))


def overhead(recipe: Recipe, shape: ModelShape, engines: Engines, reading: Reading) -> float:
    """Of a pass, in seconds: by its kernels in vLLM's CUDA graphs."""
    if engines.engine == "transformers" or recipe.rollout.vllm.enforce_eager:
        return shape.layers * LAUNCH
    return shape.layers * KERNELS[bool(recipe.model.load_in_4bit)] * _seconds_a_kernel(reading)


@cache
def _seconds_a_kernel(reading: Reading) -> float:
    """What is left of the measured pass beside what it moves."""
    card = next(card for card in CARDS if card.short == MEASURED.card)
    cached = MEASURED.completions * (MEASURED.prompt_tokens + MEASURED.completion_tokens / 2)
    cached *= kv_bytes(MEASURED.shape, 2)
    work = pass_seconds(MEASURED.model, MEASURED.shape, card, rows=MEASURED.completions, cached=cached, reading=reading)
    prefill = MEASURED.prompt_tokens * 2 * MEASURED.shape.parameters / (reading.multiply * card.operations)
    seconds = (MEASURED.seconds - reading.generation - prefill) / MEASURED.completion_tokens
    return (seconds - work) / (MEASURED.shape.layers * KERNELS[True])


def training_operations(recipe: Recipe, shape: ModelShape) -> float:
    """For each token of a step: 2 a weight and pass."""
    passes = 2.0 + (recipe.model.lora is None) + bool(recipe.model.gradient_checkpointing)
    without_gradient = (recipe.objective.kl_coef > 0) + (recipe.samples and recipe.rollout.steps_per_generation > 1)
    return 2.0 * shape.parameters * (passes * recipe.objective.num_iterations + without_gradient)


def weight_traffic(model: ModelRecipe, shape: ModelShape, card: Card, rows: float, *, grows: bool) -> float:
    """Bytes to and from memory for a pass of so many rows (what else `grows` counts as bytes); of the embeddings only
    the output layer; an adapter in 16 bits."""
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
    """The most rows that bitsandbytes multiplies with 4-bit weights without writing those in more bits."""
    if number == 4:
        return 7
    memory = "HBM" if card.capability in ((8, 0), (9, 0)) else "GDDR7" if card.capability[0] == 12 else "GDDR6"
    waves = outputs / 64 / card.multiprocessors
    return next(most for least, most in _FUSED[memory] if waves >= least)


def _operations(model: ModelRecipe, card: Card) -> float:
    return card.operations_32 if number_bytes(model) == 4 else card.operations


def _round(hours: float) -> str:
    """Two figures: more would promise what an estimate cannot hold."""
    if hours >= 10:
        return f"{float(f'{hours:.2g}'):,.0f}"
    return f"{hours:.2g}"
