"""Sample from the policy's own transformers model in batches with a key-value cache.

The prompt of a group is encoded once, and its cache (keys and values, recurrent states, or both) is repeated for the
group's members. Prompts of different length are left-padded. Finished rows leave the batch once they are about one in
seven, so that one long completion does not carry all others along. If memory runs out, a call starts over with half the
rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gtpo_cli.data.prompts import completion_text
from gtpo_cli.errors import PASSING, GenerationError, ModelError, NotFiniteError, translated
from gtpo_cli.policy.decoder import OTHER_SAMPLER, Decoder, LeanDecoder, ModelDecoder, can_decode
from gtpo_cli.policy.loading import SAMPLER_GAP, dtype_name
from gtpo_cli.policy.packing import Budget
from gtpo_cli.policy.policy import Policy
from gtpo_cli.policy.sampler import OnCompletion, SamplingParams, check_prompts
from gtpo_cli.policy.transformers_policy import TransformersPolicy
from gtpo_cli.text import describe
from gtpo_cli.types import Completion

Choose = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
OpenDecoder = Callable[[TransformersPolicy, Sequence[Sequence[int]], int], Decoder]
_REHEARSED = ("Yes?", "Name three things that are red.")
_SHRINK_AT = 0.85  # share of unfinished rows at which the finished ones are dropped
_MAX_ROWS = 256  # completions sampled at once; bounds the cache's memory in large evaluations


def open_decoder(policy: TransformersPolicy, prompts: Sequence[Sequence[int]], n: int) -> Decoder:
    """Open the fastest decoder for the model, with n rows per prompt, ready for their first token."""
    return LeanDecoder(policy, prompts, n) if can_decode(policy) else ModelDecoder(policy, prompts, n)


class TransformersSampler:
    """Implements `gtpo_cli.policy.sampler.Sampler` on the model of a TransformersPolicy."""

    def __init__(
        self,
        policy: TransformersPolicy,
        *,
        warn: Callable[[str], None] | None = None,
        decoder: OpenDecoder = open_decoder,
    ) -> None:
        """`warn` is called if memory allows fewer completions at once than _MAX_ROWS."""
        self._policy, self._open_decoder = policy, decoder
        self._budget = Budget(
            _MAX_ROWS,
            words="in sampling",
            failure=GenerationError(
                "out of memory while sampling a single completion: lower rollout.max_completion_tokens, or turn on "
                "model.load_in_4bit; gtpo plan says what fits"
            ),
            warn=warn,
        )

    def sync(self, policy: Policy) -> None:
        """Do nothing, because the weights are the policy's own."""
        assert policy is self._policy, "this sampler shares the weights of the policy it was built with"

    @torch.no_grad()  # tensors of inference_mode would break the backward pass of shared buffers
    def sample(
        self, prompts: Sequence[Sequence[int]], n: int, params: SamplingParams, *, ended: OnCompletion | None = None
    ) -> list[list[Completion]]:
        check_prompts(prompts, self._policy.max_seq_length)
        self._policy.model.eval()
        results: list[list[Completion]] = []
        notify = ended or (lambda number, completion: None)

        def work(max_rows: int) -> None:
            results[:] = self._sample_in_blocks(prompts, n, params, max_rows, notify)

        with self._policy.computing():
            self._budget.run(work, at_most=len(prompts) * n)
        return results

    def sample_blocks(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        *,
        size: int,
        seeds: Sequence[int],
        wanted: Collection[int],
        ended: OnCompletion | None = None,
    ) -> Generator[tuple[int, list[Completion]], None, None]:
        """Sample each block with one call, because its rows share a random generator and padding."""
        for block in sorted({number // size for number in wanted}):
            first = block * size

            def notify(number: int, completion: Completion, first: int = first) -> None:
                if ended is not None:
                    ended(first + number, completion)

            rows = self.sample(prompts[first : first + size], n, replace(params, seed=seeds[block]), ended=notify)
            yield from enumerate(rows, start=first)

    @torch.no_grad()
    def check(self) -> None:
        """Raise ModelError if the model cannot continue two prompts of unequal length side by side.

        Decodes two likely continuations of each, drops a row on the way, and compares the log-probabilities with those
        of a plain forward pass of each row alone. The mean |difference| in nats must stay within `SAMPLER_GAP`.
        """
        policy, kind = self._policy, self._policy.backbone.config.model_type
        bound = SAMPLER_GAP[dtype_name(policy.dtype)] / min(1.0, policy.temperature)
        policy.model.eval()

        def wrong(error: BaseException) -> ModelError:
            return ModelError(f"gtpo cannot sample from models of type {kind} ({describe(error)}); {OTHER_SAMPLER}")

        with translated(Exception, wrong, passing=(*PASSING, MemoryError, torch.OutOfMemoryError)), policy.computing():
            gap = self._rehearsed_gap()
        if not gap <= bound:
            raise ModelError(
                "two prompts of unequal length, continued side by side, get log-probabilities that differ by "
                f"{gap:.2g} nats on average from the model's plain forward pass, more than rounding explains "
                f"({bound:g}): gtpo cannot sample from models of type {kind} rightly; {OTHER_SAMPLER}"
            )

    def _rehearsed_gap(self) -> float:
        policy = self._policy
        prompts = [policy.tokenizer(text, add_special_tokens=False)["input_ids"][:16] or [0] for text in _REHEARSED]
        decoder = self._open_decoder(policy, prompts, 2)
        rows: list[int] = [0, 1, 2, 3]  # two for each prompt
        continuations: list[list[int]] = [[] for _ in rows]
        sampled: list[list[Tensor]] = [[] for _ in rows]
        for step in range(4):
            if step == 2:
                decoder.select(torch.tensor([False, True, True, True], device=policy.device))
                rows.remove(0)
            logp_RV = (decoder.logits() / policy.temperature).log_softmax(dim=-1)
            likely_R2 = logp_RV.topk(2).indices
            second = torch.tensor([step == 0 and row % 2 == 1 for row in rows], device=policy.device)
            token_R = torch.where(second, likely_R2[:, 1], likely_R2[:, 0])
            for place, row in enumerate(rows):
                continuations[row].append(int(token_R[place]))
                sampled[row].append(logp_RV[place, token_R[place]])
            decoder.advance(token_R)
        plain = [policy.plain_logprobs(prompts[row // 2], tokens) for row, tokens in enumerate(continuations)]
        return float((torch.cat(plain) - torch.stack([logp for logps in sampled for logp in logps])).abs().mean())

    @torch.no_grad()
    def rehearse(self, prompt_tokens: int, n: int, params: SamplingParams) -> None:
        width = min(prompt_tokens + params.max_completion_tokens, self._policy.max_seq_length)
        self._policy.model.eval()

        def work(max_rows: int) -> None:
            decoder = self._open_decoder(self._policy, [[0] * max(1, width - 1)], min(n, max_rows))
            decoder.advance(decoder.logits().argmax(dim=-1))

        with self._policy.computing():
            self._budget.run(work, at_most=n)

    def _sample_in_blocks(
        self, prompts: Sequence[Sequence[int]], n: int, params: SamplingParams, max_rows: int, ended: OnCompletion
    ) -> list[list[Completion]]:
        generator = torch.Generator(device=self._policy.device).manual_seed(params.seed)
        results: list[list[Completion]] = [[] for _ in prompts]
        members = min(n, max_rows)
        at_once = max(1, max_rows // members)
        for first in range(0, len(prompts), at_once):
            block = prompts[first : first + at_once]
            for done in range(0, n, members):
                count = min(members, n - done)

                def notify(number: int, completion: Completion, first: int = first) -> None:
                    ended(first + number, completion)

                rows = self._sample_block(block, count, params, generator, notify)
                for k in range(len(block)):
                    results[first + k].extend(rows[k * count : (k + 1) * count])
        return results

    def _sample_block(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        generator: torch.Generator,
        ended: OnCompletion,
    ) -> list[Completion]:
        """Sample one batch of len(prompts) * n rows, from prefill to the last token."""
        room = torch.tensor([self._policy.max_seq_length - len(prompt) for prompt in prompts]).repeat_interleave(n)
        limits = room.clamp(max=params.max_completion_tokens).to(self._policy.device)
        decoder = self._open_decoder(self._policy, prompts, n)
        choose = chooser(params)
        eos = torch.tensor(sorted(self._policy.eos_token_ids), device=self._policy.device)
        steps = int(limits.max())
        count = len(limits)
        ids = torch.zeros(count, steps, dtype=torch.long, device=limits.device)
        logps = torch.zeros(count, steps, device=limits.device)
        lengths = torch.zeros_like(limits)
        done: dict[int, Completion] = {}

        def collect(rows: Tensor, *columns: Tensor) -> None:
            parts = (column.tolist() for column in columns)
            for row, completion in zip(rows.tolist(), self._completions(*parts), strict=True):
                done[row] = completion
                ended(row // n, completion)

        rows = torch.arange(count, device=limits.device)  # the completion of each batch row
        alive = torch.ones_like(rows, dtype=torch.bool)
        for step in range(steps):
            # Every completion gets a number, even a finished one, so that none depends on when others end.
            token, logp = choose(decoder.logits(), uniform(count, generator).index_select(0, rows))
            ids[:, step], logps[:, step] = token, logp  # not read after the end of a row
            lengths += alive
            alive = alive & (step + 1 < limits) & (token[:, None] != eos).all(dim=1)
            living = int(alive.sum())
            if living == 0:
                break
            if living <= _SHRINK_AT * len(rows):
                collect(*(column[~alive] for column in (rows, ids, logps, lengths)))
                decoder.select(alive)
                columns = (rows, limits, token, ids, logps, lengths, alive)
                rows, limits, token, ids, logps, lengths, alive = (column[alive] for column in columns)
            decoder.advance(token)
        collect(rows, ids, logps, lengths)
        return [done[row] for row in range(count)]

    def _completions(self, ids: list[list[int]], logps: list[list[float]], lengths: list[int]) -> list[Completion]:
        ids = [row[:length] for row, length in zip(ids, lengths, strict=True)]
        tokenizer, ends = self._policy.tokenizer, self._policy.eos_token_ids
        return [
            Completion(
                tuple(row),
                tuple(logp[: len(row)]),
                "stop" if row[-1] in ends else "length",
                completion_text(tokenizer, row, ends),
            )
            for row, logp in zip(ids, logps, strict=True)
        ]


def uniform(rows: int, generator: torch.Generator) -> Tensor:
    """Return a number in [0, 1) for each row, for `draw`."""
    return torch.rand(rows, dtype=torch.float64, device=generator.device, generator=generator)


def draw(weights_RV: Tensor, uniform_R: Tensor) -> Tensor:
    """Draw an index for each row in proportion to the weights, by inverting their cumulative sums.

    float64 keeps the chance of rare tokens. torch.multinomial would need a random number for every token.
    """
    sums_RV = weights_RV.cumsum(dim=-1, dtype=torch.float64)
    return torch.searchsorted(sums_RV, uniform_R[:, None] * sums_RV[:, -1:], right=True)[:, 0]


def chooser(params: SamplingParams) -> Choose:
    """Return a function (logits (R, V), uniform numbers (R)) -> (ids, their log-probabilities before top-k and top-p).
    Temperature 0 takes the likeliest id and ignores the numbers; its log-probabilities are at temperature 1."""
    greedy, temperature = params.temperature == 0.0, params.temperature or 1.0
    from transformers import TopPLogitsWarper

    warp: Any = TopPLogitsWarper(params.top_p) if params.top_p < 1.0 else None

    def choose(logits: Tensor, uniform_R: Tensor) -> tuple[Tensor, Tensor]:
        logp = torch.log_softmax(logits if temperature == 1.0 else logits / temperature, dim=-1)
        if bool(logp.sum().isnan()):  # -inf is valid: a bias may exclude a token
            raise NotFiniteError("the model's log-probabilities are not finite; was the learning rate too high?")
        if greedy:
            best = logp.max(dim=-1)
            return best.indices, best.values
        scores = logp if warp is None else warp(None, logp)
        token = draw(scores.exp(), uniform_R)
        return token, logp.gather(1, token[:, None])[:, 0]

    return choose
