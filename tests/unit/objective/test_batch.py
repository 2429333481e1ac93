"""TokenBatch: cutting a step into micro-batches loses nothing, and the gradient does not depend on the cut."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import Step, checked, per_completion, per_token, steps

from gtpo_cli.objective import TokenBatch, conflict_mask, conflict_weights, group_advantages, policy_loss
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


def test_split_by_hand():
    step = Step([[[1], [1, 2], []], [[3, 3, 3], [4], [5]]], [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], 9, 4)
    batch = token_batch(step, prompt_lengths=[1, 2])
    assert batch.shape == (2, 3)
    assert batch.lengths_BG.tolist() == [[1, 2, 0], [3, 1, 1]]

    slices = list(batch.split(2))  # a group of three does not fit into two rows: slices of one group
    assert [micro.batch.rewards_BG.tolist() for micro in slices] == [[[1.0, 2.0]], [[3.0]], [[4.0, 5.0]], [[6.0]]]
    # Trimmed to its own longest: two tokens, one place for the empty completion, three, one.
    assert [micro.batch.completion_ids_BGT.tolist() for micro in slices] == [
        [[[1, 9], [1, 2]]],
        [[[9]]],
        [[[3, 3, 3], [4, 9, 9]]],
        [[[5]]],
    ]
    assert [micro.batch.prompt_ids_BP.tolist() for micro in slices] == [[[10]], [[10]], [[10, 11]], [[10, 11]]]

    (whole,) = batch.split(7)  # two groups of three fit into seven rows
    assert torch.equal(whole.batch.rewards_BG, batch.rewards_BG)
    assert whole.batch.completion_ids_BGT.shape == (2, 3, 3)
    assert [micro.batch.shape for micro in batch.split(5)] == [(1, 3), (1, 3)]


@checked
@given(steps(max_groups=3), st.integers(1, 20))
def test_split_covers_every_completion_once(step, rows):
    batch = token_batch(step, prompt_lengths=list(range(1, step.shape[0] + 1)))
    B, G = batch.shape
    seen = torch.zeros(B, G)
    for micro in batch.split(rows):
        b, g = micro.batch.shape
        assert b * g <= max(rows, 1)
        assert b == 1 or g == G  # whole groups, or slices of one
        seen[micro.index] += 1
        assert torch.equal(micro.batch.rewards_BG, batch.rewards_BG[micro.index])
        assert torch.equal(micro.batch.truncated_BG, batch.truncated_BG[micro.index])
        assert micro.batch.completion_mask_BGT.sum() == batch.completion_mask_BGT[micro.index].sum()
        assert micro.batch.prompt_mask_BP.sum() == batch.prompt_mask_BP[micro.index[0]].sum()
        for name in ("completion_ids_BGT", "completion_mask_BGT", "sampled_logprobs_BGT"):
            assert torch.equal(getattr(micro.batch, name), micro.take(getattr(batch, name)))
    assert seen.eq(1).all()


@pytest.mark.parametrize("compat", ["paper", "released_code"])
@checked
@given(st.data(), steps(max_groups=3), st.integers(1, 20), st.booleans())
def test_the_gradient_does_not_depend_on_the_cut(compat, data, step, rows, several_iterations):
    batch = token_batch(step)
    B, G = batch.shape
    value = st.floats(-3, 0)
    logps = step.padded(data.draw(per_token(step, value)), value=0.0)
    advantages_BG = group_advantages(batch.rewards_BG).double()
    conflict_BGT = conflict_mask(batch.completion_ids_BGT, batch.completion_mask_BGT, advantages_BG)
    weights_BGT = conflict_weights(conflict_BGT, advantages_BG).double()
    entropy_BG = torch.tensor(data.draw(per_completion(step, st.floats(0, 2))), dtype=torch.float64)
    keep_BG = torch.tensor(data.draw(per_completion(step, st.booleans())))
    divisor_BG = torch.tensor(data.draw(per_completion(step, st.integers(1, 5))))
    old_BGT = logps + 0.3 * torch.sin(logps * 7) if several_iterations else None

    def backward(micros):
        leaf = logps.clone().requires_grad_()
        total = 0.0
        for b, g, cut, take in micros:
            result = policy_loss(
                take(leaf),
                old_logprobs_BGT=None if old_BGT is None else take(old_BGT),
                ref_logprobs_BGT=take(logps - 0.1),
                advantages_BG=advantages_BG[cut],
                mean_entropy_BG=entropy_BG[cut],
                keep_BG=keep_BG[cut],
                weights_BGT=take(weights_BGT),
                completion_mask_BGT=take(batch.completion_mask_BGT),
                entropy_coef=0.1,
                kl_coef=0.04,
                compat=compat,
                divisor_BG=divisor_BG[cut] if compat == "released_code" else None,
            )
            # Share of the step: of its completions where they are averaged, of its groups where they are summed.
            scaled = result.loss * (b * g / (B * G) if compat == "paper" else b / B)
            scaled.backward()
            total += scaled.item()
        return total, leaf.grad

    whole_loss, whole_gradient = backward([(B, G, (slice(None), slice(None)), lambda values: values)])
    loss, gradient = backward([(*micro.batch.shape, micro.index, micro.take) for micro in batch.split(rows)])
    assert loss == pytest.approx(whole_loss, rel=1e-12, abs=1e-12)
    torch.testing.assert_close(gradient, whole_gradient, rtol=1e-12, atol=1e-14)
    assert gradient[~batch.completion_mask_BGT].eq(0).all()


def test_pad_rows():
    padded = pad_rows([[1, 2], [], [3]], value=7, dtype=torch.long)
    assert padded.tolist() == [[1, 2], [7, 7], [3, 7]]
    assert pad_rows([[]], value=0, dtype=torch.long).shape == (1, 1)
    assert pad_rows([[0.5], [0.25, 1.0]], value=0.0, dtype=torch.float32).tolist() == [[0.5, 0.0], [0.25, 1.0]]
