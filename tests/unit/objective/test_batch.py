"""TokenBatch: cutting a step into micro-batches loses nothing, and the gradient does not depend on the cut."""

import pytest
import torch
from eq11 import gtpo_loss
from hypothesis import given
from hypothesis import strategies as st
from strategies import Step, checked, per_completion, per_token, steps

from gtpo_cli.objective import TokenBatch, conflict_mask, conflict_weights, group_advantages, token_shares
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


def rows_of(batch: TokenBatch, limit: int, **options) -> list[list[tuple[int, int]]]:
    """(group, member) of each micro-batch's completions."""
    return [
        [(int(micro.groups[b]), int(g)) for b, g in micro.rows_BG.nonzero()] for micro in batch.split(limit, **options)
    ]


def by_hand() -> TokenBatch:
    """Prompts of 1 and 2 tokens; completions of 1, 2 and 0 tokens, and of 3, 1 and 1."""
    step = Step([[[1], [1, 2], []], [[3, 3, 3], [4], [5]]], [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], 9, 4)
    return token_batch(step, prompt_lengths=[1, 2])


def test_split_by_hand():
    batch = by_hand()
    assert batch.shape == (2, 3)
    assert batch.lengths_BG.tolist() == [[1, 2, 0], [3, 1, 1]]

    # Groups with the longest completion first, the longest of a group first; the empty completion is in none.
    assert rows_of(batch, 2) == [[(1, 0), (1, 1)], [(0, 1), (1, 2)], [(0, 0)]]
    assert rows_of(batch, 5) == [[(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]]
    # In tokens, a prompt counted once: 2 + 3 + 1 + 1 = 7 for group 1, then 1 + 2 + 1 = 4 for group 0.
    assert rows_of(batch, 10, unit="tokens") == [[(0, 1), (1, 0), (1, 1), (1, 2)], [(0, 0)]]
    assert rows_of(batch, 11, unit="tokens") == [[(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]]
    assert rows_of(batch, 1, unit="tokens") == [[(1, 0)], [(1, 1)], [(1, 2)], [(0, 1)], [(0, 0)]]
    # As padded rows, widest first: 2 + 3, then 1 + 2 and 2 + 1 and 2 + 1, then 1 + 1.
    padded = {"unit": "tokens", "packed": False}
    assert rows_of(batch, 10, **padded) == [[(0, 1), (1, 0)], [(0, 0), (1, 1), (1, 2)]]
    assert rows_of(batch, 9, **padded) == [[(1, 0)], [(0, 1), (1, 1), (1, 2)], [(0, 0)]]
    only_BG = torch.tensor([[True, True, True], [False, True, False]])
    assert rows_of(batch, 9, only_BG=only_BG) == [[(0, 0), (0, 1), (1, 1)]]
    assert rows_of(batch, 9, only_BG=torch.zeros(2, 3, dtype=torch.bool)) == []


def test_a_micro_batch_holds_its_groups_with_the_other_completions_emptied():
    batch = by_hand()
    first, second, _ = batch.split(2)
    assert first.batch.shape == (1, 3)
    assert first.batch.prompt_ids_BP.tolist() == [[10, 11]]
    assert first.batch.completion_ids_BGT.tolist() == [[[3, 3, 3], [4, 9, 9], [5, 9, 9]]]
    assert first.batch.lengths_BG.tolist() == [[3, 1, 0]]
    # Of two groups; trimmed to the longest of its own completions, not of its groups'.
    assert second.batch.shape == (2, 3)
    assert second.batch.prompt_ids_BP.tolist() == [[10, 9], [10, 11]]
    assert second.batch.completion_ids_BGT.tolist() == [[[1, 9], [1, 2], [9, 9]], [[3, 3], [4, 9], [5, 9]]]
    assert second.batch.lengths_BG.tolist() == [[0, 2, 0], [0, 0, 1]]
    assert second.take(batch.rewards_BG).tolist() == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]

    into_BG, into_BGT = torch.full((2, 3), -1.0), torch.full((2, 3, 3), -1.0)
    second.put(torch.arange(6.0).view(2, 3), into=into_BG)
    second.put(torch.arange(12.0).view(2, 3, 2), into=into_BGT)
    assert into_BG.tolist() == [[-1, 1, -1], [-1, -1, 5]]
    assert into_BGT[0].tolist() == [[-1, -1, -1], [2, 3, -1], [-1, -1, -1]]
    assert into_BGT[1].tolist() == [[-1, -1, -1], [-1, -1, -1], [10, -1, -1]]


@checked
@given(st.data(), steps(max_groups=3), st.integers(1, 40), st.sampled_from(["completions", "tokens"]), st.booleans())
def test_split_covers_every_completion_once_within_the_limit(data, step, limit, unit, packed):
    lengths = list(range(1, step.shape[0] + 1))
    batch = token_batch(step, prompt_lengths=lengths)
    only_BG = torch.tensor(data.draw(per_completion(step, st.booleans())))
    seen_BG = torch.zeros(batch.shape)
    copied = {name: torch.zeros_like(getattr(batch, name)) for name in ("completion_ids_BGT", "sampled_logprobs_BGT")}
    for micro in batch.split(limit, unit=unit, packed=packed, only_BG=only_BG):
        length_BG = micro.batch.lengths_BG
        rows = [(int(micro.groups[b]), int(length_BG[b, g])) for b, g in micro.rows_BG.nonzero().tolist()]
        tokens = sum(length for _, length in rows) + sum(lengths[b] for b in {b for b, _ in rows})
        if not packed:
            tokens = len(rows) * max(length + lengths[b] for b, length in rows)
        assert len(rows) == 1 or (len(rows) if unit == "completions" else tokens) <= limit
        assert ((length_BG > 0) == micro.rows_BG).all()
        assert {b for b, _ in rows} == set(micro.groups.tolist())
        micro.put(micro.take(seen_BG) + 1, into=seen_BG)
        for name, into in copied.items():
            micro.put(getattr(micro.batch, name), into=into)
        assert torch.equal(micro.batch.rewards_BG, micro.take(batch.rewards_BG))
        assert torch.equal(micro.batch.truncated_BG, micro.take(batch.truncated_BG))
        assert micro.batch.prompt_mask_BP.sum(dim=1).tolist() == [lengths[b] for b in micro.groups.tolist()]
    chosen_BG = only_BG & (batch.lengths_BG > 0)
    assert torch.equal(seen_BG, chosen_BG.float())
    chosen_BGT = batch.completion_mask_BGT & chosen_BG[..., None]
    for name, into in copied.items():
        assert torch.equal(into, torch.where(chosen_BGT, getattr(batch, name), 0))


def test_a_group_of_empty_completions_is_in_no_micro_batch():
    batch = token_batch(Step(completions=[[[5]], [[]]], rewards=[[0.0], [0.0]], padding=0, extra_width=0))
    (micro,) = batch.split(8)
    assert micro.groups.tolist() == [0]
    assert micro.batch.completion_ids_BGT.tolist() == [[[5]]]


@pytest.mark.parametrize("average", ["completion", "token", "sum", 30])
@checked
@given(st.data(), steps(max_groups=3), st.integers(1, 20), st.booleans())
def test_the_gradient_does_not_depend_on_the_cut(average, data, step, rows, several_iterations):
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

    whole_loss, whole_gradient = backward([(lambda values: values, batch.completion_mask_BGT)])
    micros = [(micro.take, micro.batch.completion_mask_BGT) for micro in batch.split(rows)]
    loss, gradient = backward(micros)
    assert loss == pytest.approx(whole_loss, rel=1e-12, abs=1e-12)
    torch.testing.assert_close(gradient, whole_gradient, rtol=1e-12, atol=1e-14)
    assert gradient[~batch.completion_mask_BGT].eq(0).all()


def test_pad_rows():
    padded = pad_rows([[1, 2], [], [3]], value=7, dtype=torch.long)
    assert padded.tolist() == [[1, 2], [7, 7], [3, 7]]
    assert pad_rows([[]], value=0, dtype=torch.long).shape == (1, 1)
    assert pad_rows([[0.5], [0.25, 1.0]], value=0.0, dtype=torch.float32).tolist() == [[0.5, 0.0], [0.25, 1.0]]
