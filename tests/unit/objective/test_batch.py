"""Rows: cutting a step into micro-batches loses nothing, and the gradient does not depend on the cut."""

from dataclasses import dataclass, fields

import pytest
import torch
from eq11 import gtpo_loss
from hypothesis import given
from hypothesis import strategies as st
from strategies import Step, checked, per_completion, per_token, steps

from gtpo_cli.objective import (
    Rows,
    TokenBatch,
    conflict_mask,
    conflict_weights,
    group_advantages,
    token_shares,
)
from gtpo_cli.objective.batch import pad_rows


def token_batch(step: Step, prompt_lengths: list[int] | None = None) -> TokenBatch:
    B, G, T = step.shape
    lengths = prompt_lengths or [1] * B
    prompts = pad_rows([list(range(10, 10 + n)) for n in lengths], value=step.padding, dtype=torch.long)
    return TokenBatch(
        prompt_ids_BP=prompts,
        prompt_mask_BP=torch.arange(prompts.shape[1]) < torch.tensor(lengths)[:, None],
        completion_ids_BGT=step.ids,
        completion_mask_BGT=step.mask,
        sampled_logprobs_BGT=-torch.rand(B, G, T),
        rewards_BG=torch.tensor(step.rewards),
        truncated_BG=torch.tensor([[bool((b + i) % 2) for i in range(G)] for b in range(B)]),
    )


def by_hand() -> TokenBatch:
    """Prompts of 1 and 2 tokens; completions of 1, 2 and 0 tokens, and of 3, 1 and 1."""
    step = Step([[[1], [1, 2], []], [[3, 3, 3], [4], [5]]], [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], 9, 4)
    return token_batch(step, prompt_lengths=[1, 2])


def test_split_by_hand():
    batch = by_hand()
    assert batch.shape == (2, 3)
    assert batch.lengths_BG.tolist() == [[1, 2, 0], [3, 1, 1]]
    rows = batch.rows()
    assert len(rows) == 6
    assert rows.prompt_N.tolist() == [0, 0, 0, 1, 1, 1]
    assert (rows.size("completions"), rows.size("tokens")) == (6, 3 * 1 + 3 * 2 + 8)

    def split(limit, **options):
        return [index.tolist() for index in rows.split(limit, **options)]

    # Prompts with the longest completion first, the longest of a prompt first; the empty completion is in none.
    assert split(2) == [[3, 4], [1, 5], [0]]
    assert split(5) == [[0, 1, 3, 4, 5]]
    # In tokens, a prompt counted once: 2 + 3 + 1 + 1 = 7 for the second, then 1 + 2 + 1 = 4 for the first.
    assert split(10, unit="tokens") == [[1, 3, 4, 5], [0]]
    assert split(11, unit="tokens") == [[0, 1, 3, 4, 5]]
    assert split(1, unit="tokens") == [[3], [4], [5], [1], [0]]
    # As padded rows, widest first: 2 + 3, then 1 + 2 and 2 + 1 and 2 + 1, then 1 + 1.
    padded = {"unit": "tokens", "packed": False}
    assert split(10, **padded) == [[1, 3], [0, 4, 5]]
    assert split(9, **padded) == [[3], [1, 4, 5], [0]]
    assert split(9, chosen_N=torch.tensor([True, True, True, False, True, False])) == [[0, 1, 4]]
    assert split(9, chosen_N=torch.zeros(6, dtype=torch.bool)) == []


@dataclass(eq=False)
class Measured(Rows):
    """Rows with fields of a step's."""

    reward_N: torch.Tensor
    logp_NT: torch.Tensor | None
    reference_NT: torch.Tensor | None = None


def measured(batch: TokenBatch) -> Measured:
    rows = batch.rows()
    own = {field.name: getattr(rows, field.name) for field in fields(rows)}
    return Measured(**own, reward_N=batch.rewards_BG.flatten(), logp_NT=batch.sampled_logprobs_BGT.flatten(0, 1))


def test_a_micro_batch_holds_its_rows_trimmed_and_their_prompts():
    rows = measured(by_hand())
    first, second, _ = rows.split(2)
    part = rows[first]
    assert part.prompt_ids_BP.tolist() == [[10, 11]]
    assert part.prompt_N.tolist() == [0, 0]
    assert part.ids_NT.tolist() == [[3, 3, 3], [4, 9, 9]]
    # Of two prompts; trimmed to the longest of its own completions and prompts.
    part = rows[second]
    assert part.prompt_ids_BP.tolist() == [[10, 9], [10, 11]]
    assert part.prompt_mask_BP.tolist() == [[True, False], [True, True]]
    assert part.prompt_N.tolist() == [0, 1]
    assert part.ids_NT.tolist() == [[1, 2], [5, 9]]
    assert part.mask_NT.tolist() == [[True, True], [True, False]]
    assert part.reward_N.tolist() == [2.0, 6.0]
    assert torch.equal(part.logp_NT, rows.logp_NT[second, :2])
    assert part.reference_NT is None
    # a prompt that no row has is left out, and the others' width follows
    assert rows[torch.tensor([0])].prompt_ids_BP.tolist() == [[10]]

    rows.write(second, reward_N=torch.tensor([-2.0, -6.0]), logp_NT=torch.tensor([[0.5, 0.25], [0.125, 0.0]]))
    assert rows.reward_N.tolist() == [1, -2, 3, 4, 5, -6]
    assert rows.logp_NT[second].tolist()[0][:2] == [0.5, 0.25]
    assert rows.logp_NT[second].tolist()[1][:2] == [0.125, 0.0]


@checked
@given(st.data(), steps(max_groups=3), st.integers(1, 40), st.sampled_from(["completions", "tokens"]), st.booleans())
def test_split_covers_every_completion_once_within_the_limit(data, step, limit, unit, packed):
    lengths = list(range(1, step.shape[0] + 1))
    batch = token_batch(step, prompt_lengths=lengths)
    rows = measured(batch)
    chosen_N = torch.tensor(data.draw(per_completion(step, st.booleans()))).flatten()
    seen_N = torch.zeros(len(rows))
    copied = measured(batch)
    copied.ids_NT, copied.logp_NT = torch.zeros_like(rows.ids_NT), torch.zeros_like(rows.logp_NT)
    for index in rows.split(limit, unit=unit, packed=packed, chosen_N=chosen_N):
        part = rows[index]
        length_N, prompt_N = part.mask_NT.sum(dim=1), rows.prompt_N[index].tolist()
        tokens = int(length_N.sum()) + sum(lengths[b] for b in set(prompt_N))
        if not packed:
            tokens = len(index) * max(n + lengths[b] for n, b in zip(length_N.tolist(), prompt_N, strict=True))
        assert len(index) == 1 or (len(index) if unit == "completions" else tokens) <= limit
        assert (length_N > 0).all()
        assert part.ids_NT.shape[1] == int(length_N.max())
        assert index.tolist() == sorted(index.tolist())
        seen_N[index] += 1
        copied.write(index, ids_NT=part.ids_NT, logp_NT=part.logp_NT)
        assert torch.equal(part.reward_N, rows.reward_N[index])
        assert part.prompt_mask_BP.sum(dim=1).tolist() == [lengths[b] for b in sorted(set(prompt_N))]
        assert part.prompt_mask_BP.sum(dim=1)[part.prompt_N].tolist() == [lengths[b] for b in prompt_N]
    taken_N = chosen_N & rows.mask_NT.any(dim=1)
    assert torch.equal(seen_N, taken_N.float())
    chosen_NT = rows.mask_NT & taken_N[:, None]
    assert torch.equal(copied.ids_NT[chosen_NT], rows.ids_NT[chosen_NT])
    assert torch.equal(copied.logp_NT[chosen_NT], rows.logp_NT[chosen_NT])
    assert not copied.ids_NT[~taken_N].any()


@pytest.mark.parametrize("average", ["completion", "token", "sum", 30])
@checked
@given(st.data(), steps(max_groups=3), st.integers(1, 20), st.booleans())
def test_the_gradient_does_not_depend_on_the_cut(average, data, step, limit, several_iterations):
    batch = token_batch(step)
    value = st.floats(-3, 0)
    logps = step.padded(data.draw(per_token(step, value)), value=0.0)
    advantages_BG = group_advantages(batch.rewards_BG).double()
    conflict_BGT = conflict_mask(batch.completion_ids_BGT, batch.completion_mask_BGT, advantages_BG)
    weights_BGT = conflict_weights(conflict_BGT, advantages_BG).double()
    entropy_BG = torch.tensor(data.draw(per_completion(step, st.floats(0, 2))), dtype=torch.float64)
    keep_BG = torch.tensor(data.draw(per_completion(step, st.booleans())))
    shares_BG = token_shares(batch.completion_mask_BGT, average)
    old_BGT = logps + 0.3 * torch.sin(logps * 7) if several_iterations else None

    def backward(micros):
        leaf = logps.clone().requires_grad_()
        total = 0.0
        for take, mask_BGT in micros:
            result = gtpo_loss(
                take(leaf),
                old_logprobs_BGT=None if old_BGT is None else take(old_BGT),
                ref_logprobs_BGT=take(logps - 0.1),
                advantages_BG=take(advantages_BG),
                mean_entropy_BG=take(entropy_BG),
                keep_BG=take(keep_BG),
                weights_BGT=take(weights_BGT),
                completion_mask_BGT=mask_BGT,
                entropy_coef=0.1,
                kl_coef=0.04,
                shares_BG=take(shares_BG),
            )
            result.loss.backward()
            total += result.loss.item()
        return total, torch.zeros_like(leaf) if leaf.grad is None else leaf.grad

    def rows_of(index):
        T = int(batch.lengths_BG.flatten()[index].max())
        return lambda values: values.flatten()[index] if values.ndim == 2 else values.flatten(0, 1)[index, :T]

    whole_loss, whole_gradient = backward([(lambda values: values, batch.completion_mask_BGT)])
    cut = [rows_of(index) for index in batch.rows().split(limit)]
    loss, gradient = backward([(take, take(batch.completion_mask_BGT)) for take in cut])
    assert loss == pytest.approx(whole_loss, rel=1e-12, abs=1e-12)
    torch.testing.assert_close(gradient, whole_gradient, rtol=1e-12, atol=1e-14)
    assert gradient[~batch.completion_mask_BGT].eq(0).all()


def test_pad_rows():
    padded = pad_rows([[1, 2], [], [3]], value=7, dtype=torch.long)
    assert padded.tolist() == [[1, 2], [7, 7], [3, 7]]
    assert pad_rows([[]], value=0, dtype=torch.long).shape == (1, 1)
    assert pad_rows([[0.5], [0.25, 1.0]], value=0.0, dtype=torch.float32).tolist() == [[0.5, 0.0], [0.25, 1.0]]
