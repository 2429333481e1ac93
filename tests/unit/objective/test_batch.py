"""Rows: cutting a step into micro-batches loses nothing, and the gradient does not depend on the cut."""

from dataclasses import dataclass, fields

import pytest
import torch
from eq11 import gtpo_loss
from hypothesis import given
from hypothesis import strategies as st
from strategies import Step, checked, per_completion, per_token, steps

from gtpo_cli.objective import (
    SampledRows,
    conflict_mask,
    conflict_weights,
    group_advantages,
    token_shares,
)
from gtpo_cli.objective.batch import pad_rows


def rows_of(step: Step, prompt_lengths: list[int] | None = None) -> SampledRows:
    B, G, T = step.shape
    lengths = prompt_lengths or [1] * B
    prompts = pad_rows([list(range(10, 10 + n)) for n in lengths], value=step.padding, dtype=torch.long)
    return SampledRows(
        prompt_ids_BP=prompts,
        prompt_mask_BP=torch.arange(prompts.shape[1]) < torch.tensor(lengths)[:, None],
        prompt_N=torch.arange(B).repeat_interleave(G),
        ids_NT=step.ids.flatten(0, 1),
        mask_NT=step.mask.flatten(0, 1),
        sampled_NT=-torch.rand(B * G, T),
        rewards_N=torch.tensor(step.rewards).flatten(),
        truncated_N=torch.tensor([bool((b + i) % 2) for b in range(B) for i in range(G)]),
    )


def by_hand() -> SampledRows:
    """Prompts of 1 and 2 tokens; completions of 1, 2 and 0 tokens, and of 3, 1 and 1."""
    step = Step([[[1], [1, 2], []], [[3, 3, 3], [4], [5]]], [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], 9, 4)
    return rows_of(step, prompt_lengths=[1, 2])


def test_split_by_hand():
    rows = by_hand()
    assert rows.by_group(rows.mask_NT.sum(dim=1)).tolist() == [[1, 2, 0], [3, 1, 1]]
    assert rows.by_group(rows.ids_NT)[1, :, :3].tolist() == [[3, 3, 3], [4, 9, 9], [5, 9, 9]]
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
class Measured(SampledRows):
    """Rows with fields of a step's: also one that no row has a value of, and one of the step as a whole."""

    reference_NT: torch.Tensor | None = None
    whole: str = "the step"


def measured(rows: SampledRows) -> Measured:
    return Measured(**{field.name: getattr(rows, field.name) for field in fields(rows)})


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
    assert part.rewards_N.tolist() == [2.0, 6.0]
    assert torch.equal(part.sampled_NT, rows.sampled_NT[second, :2])
    assert part.reference_NT is None
    assert part.whole == "the step"
    # a prompt that no row has is left out, and the others' width follows
    assert rows[torch.tensor([0])].prompt_ids_BP.tolist() == [[10]]

    rows.write(second, rewards_N=torch.tensor([-2.0, -6.0]), sampled_NT=torch.tensor([[0.5, 0.25], [0.125, 0.0]]))
    assert rows.rewards_N.tolist() == [1, -2, 3, 4, 5, -6]
    assert rows.sampled_NT[second].tolist()[0][:2] == [0.5, 0.25]
    assert rows.sampled_NT[second].tolist()[1][:2] == [0.125, 0.0]


@checked
@given(st.data(), steps(max_groups=3), st.integers(1, 40), st.sampled_from(["completions", "tokens"]), st.booleans())
def test_split_covers_every_completion_once_within_the_limit(data, step, limit, unit, packed):
    lengths = list(range(1, step.shape[0] + 1))
    rows = measured(rows_of(step, prompt_lengths=lengths))
    chosen_N = torch.tensor(data.draw(per_completion(step, st.booleans()))).flatten()
    seen_N = torch.zeros(len(rows))
    copied = measured(rows)
    copied.ids_NT, copied.sampled_NT = torch.zeros_like(rows.ids_NT), torch.zeros_like(rows.sampled_NT)
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
        copied.write(index, ids_NT=part.ids_NT, sampled_NT=part.sampled_NT)
        assert torch.equal(part.rewards_N, rows.rewards_N[index])
        assert part.prompt_mask_BP.sum(dim=1).tolist() == [lengths[b] for b in sorted(set(prompt_N))]
        assert part.prompt_mask_BP.sum(dim=1)[part.prompt_N].tolist() == [lengths[b] for b in prompt_N]
    taken_N = chosen_N & rows.mask_NT.any(dim=1)
    assert torch.equal(seen_N, taken_N.float())
    chosen_NT = rows.mask_NT & taken_N[:, None]
    assert torch.equal(copied.ids_NT[chosen_NT], rows.ids_NT[chosen_NT])
    assert torch.equal(copied.sampled_NT[chosen_NT], rows.sampled_NT[chosen_NT])
    assert not copied.ids_NT[~taken_N].any()


@pytest.mark.parametrize("average", ["completion", "token", "sum", 30])
@checked
@given(st.data(), steps(max_groups=3), st.integers(1, 20), st.booleans())
def test_the_gradient_does_not_depend_on_the_cut(average, data, step, limit, several_iterations):
    rows = rows_of(step)
    mask_BGT = rows.by_group(rows.mask_NT)
    value = st.floats(-3, 0)
    logps = step.padded(data.draw(per_token(step, value)), value=0.0)
    advantages_BG = group_advantages(rows.by_group(rows.rewards_N)).double()
    conflict_BGT = conflict_mask(rows.by_group(rows.ids_NT), mask_BGT, advantages_BG)
    weights_BGT = conflict_weights(conflict_BGT, advantages_BG).double()
    entropy_BG = torch.tensor(data.draw(per_completion(step, st.floats(0, 2))), dtype=torch.float64)
    keep_BG = torch.tensor(data.draw(per_completion(step, st.booleans())))
    shares_BG = token_shares(mask_BGT, average)
    old_BGT = logps + 0.3 * torch.sin(logps * 7) if several_iterations else None

    def backward(micros):
        leaf = logps.clone().requires_grad_()
        total = 0.0
        for take, mask in micros:
            result = gtpo_loss(
                take(leaf),
                old_logprobs_BGT=None if old_BGT is None else take(old_BGT),
                ref_logprobs_BGT=take(logps - 0.1),
                advantages_BG=take(advantages_BG),
                mean_entropy_BG=take(entropy_BG),
                keep_BG=take(keep_BG),
                weights_BGT=take(weights_BGT),
                completion_mask_BGT=mask,
                entropy_coef=0.1,
                kl_coef=0.04,
                shares_BG=take(shares_BG),
            )
            result.loss.backward()
            total += result.loss.item()
        return total, torch.zeros_like(leaf) if leaf.grad is None else leaf.grad

    def taking(index):
        T = int(rows.mask_NT[index].sum(dim=1).max())
        return lambda values: values.flatten()[index] if values.ndim == 2 else values.flatten(0, 1)[index, :T]

    whole_loss, whole_gradient = backward([(lambda values: values, mask_BGT)])
    cut = [taking(index) for index in rows.split(limit)]
    loss, gradient = backward([(take, take(mask_BGT)) for take in cut])
    assert loss == pytest.approx(whole_loss, rel=1e-12, abs=1e-12)
    torch.testing.assert_close(gradient, whole_gradient, rtol=1e-12, atol=1e-14)
    assert gradient[~mask_BGT].eq(0).all()


def test_pad_rows():
    padded = pad_rows([[1, 2], [], [3]], value=7, dtype=torch.long)
    assert padded.tolist() == [[1, 2], [7, 7], [3, 7]]
    assert pad_rows([[]], value=0, dtype=torch.long).shape == (1, 1)
    assert pad_rows([[0.5], [0.25, 1.0]], value=0.0, dtype=torch.float32).tolist() == [[0.5, 0.0], [0.25, 1.0]]
