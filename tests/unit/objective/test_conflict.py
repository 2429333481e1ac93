"""Section 5.1 and Eq. 9, by hand and against a loop."""

import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import Step, checked, steps
from watch import LargestTensor

from gtpo_cli.objective import conflict, conflict_mask, conflict_spans, conflict_weights, group_advantages

ALIGNMENTS = ["position", "prefix"]


def spans_of(completions, signs, *, padding=0, extra_width=0, alignment="position", span="ends"):
    """Forward and backward mask of one group, as ragged 0/1 lists."""
    step = Step([completions], [[0.0] * len(signs)], padding, extra_width)
    signs_BG = torch.tensor([signs], dtype=torch.float32)
    spans = conflict_spans(step.ids, step.mask, signs_BG, alignment=alignment, span=span)
    for mask in spans:
        assert mask.dtype == torch.bool
        assert not mask[~step.mask].any()
    return tuple([[int(x) for x in row] for row in step.ragged(mask)[0]] for mask in spans)


# -- by hand ----------------------------------------------------------------------------------------------------------


def test_shared_beginning_and_shared_end():
    forward, backward = spans_of([[1, 2, 3, 9], [1, 2, 4, 5, 9]], [+1, -1])
    assert forward == [[1, 1, 0, 0], [1, 1, 0, 0, 0]]
    assert backward == [[0, 0, 0, 1], [0, 0, 0, 0, 1]]


def test_the_run_is_anchored_at_the_first_and_at_the_last_token():
    # All but the first token agree (forward), all but the last agree (backward): no run starts where it must.
    forward, _ = spans_of([[1, 5, 5], [2, 5, 5]], [+1, -1])
    assert forward == [[0, 0, 0], [0, 0, 0]]
    _, backward = spans_of([[5, 5, 1], [5, 5, 2]], [+1, -1])
    assert backward == [[0, 0, 0], [0, 0, 0]]


def test_padding_is_no_token_even_if_its_id_is():
    # Behind [5] stands 7, where the other has a real 7; behind both stand equal pads.
    forward, backward = spans_of([[5], [5, 7]], [+1, -1], padding=7, extra_width=2)
    assert forward == [[1], [1, 0]]
    assert backward == [[0], [0, 0]]


def test_agreement_within_one_camp_is_no_conflict():
    assert spans_of([[1, 2], [1, 2], [3, 4]], [+1, +1, -1]) == ([[0, 0]] * 3, [[0, 0]] * 3)
    assert spans_of([[1, 2], [1, 2]], [-1, -1]) == ([[0, 0]] * 2, [[0, 0]] * 2)


def test_zero_advantage_makes_no_conflict_but_can_stand_in_one():
    nobody = spans_of([[1, 2], [1, 2]], [+1, 0])
    assert nobody == ([[0, 0], [0, 0]], [[0, 0], [0, 0]])
    forward, _ = spans_of([[1, 2], [1, 3], [1, 3]], [+1, -1, 0])
    assert forward == [[1, 0], [1, 0], [1, 0]]  # its lambda is 1 all the same: see below


def test_position_asks_for_no_common_prefix_and_prefix_does():
    # Position 1 is shared by 1 and 4 although position 0 joins 1 with 3 and 4 with 2.
    completions, signs = [[1, 9], [2, 9], [1, 5], [2, 9]], [+1, +1, -1, -1]
    forward, _ = spans_of(completions, signs)
    assert forward == [[1, 1], [1, 1], [1, 0], [1, 1]]
    forward, _ = spans_of(completions, signs, alignment="prefix")
    assert forward == [[1, 0], [1, 1], [1, 0], [1, 1]]


def test_all_positions_take_in_what_is_shared_behind_a_gap():
    completions, signs = [[7, 1, 7, 7, 9], [7, 2, 7, 3, 9]], [+1, -1]
    assert spans_of(completions, signs, span="all") == ([[1, 0, 1, 0, 1]] * 2, [[1, 0, 1, 0, 1]] * 2)
    assert spans_of(completions, signs) == ([[1, 0, 0, 0, 0]] * 2, [[0, 0, 0, 0, 1]] * 2)
    # of different length: forward counts from the start, backward from the end
    forward, backward = spans_of([[1, 5, 6], [2, 5, 8, 6]], [+1, -1], span="all")
    assert forward == [[0, 1, 0], [0, 1, 0, 0]]
    assert backward == [[0, 0, 1], [0, 0, 0, 1]]


def test_empty_and_one_token_completions():
    assert spans_of([[], [4], [4]], [+1, +1, -1]) == ([[], [1], [1]], [[], [1], [1]])
    assert spans_of([[], []], [+1, -1]) == ([[], []], [[], []])
    assert spans_of([[4]], [+1]) == ([[0]], [[0]])


# -- against the loop -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alignment", "span"), [("position", "ends"), ("position", "all"), ("prefix", "ends")])
@pytest.mark.parametrize("block_pairs", [1, 40, conflict._BLOCK_PAIRS])
@checked
@given(steps())
def test_equals_the_loop(alignment, span, block_pairs, step):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conflict, "_BLOCK_PAIRS", block_pairs)
        advantages_BG = group_advantages(torch.tensor(step.rewards))
        spans = conflict_spans(step.ids, step.mask, advantages_BG, alignment=alignment, span=span)
    for b, group in enumerate(step.completions):
        signs = oracles.advantages(step.rewards[b])
        kind = {"alignment": alignment, "span": span}
        assert step.ragged(spans.forward_BGT)[b] == oracles.forward_masks(group, signs, **kind)
        assert step.ragged(spans.backward_BGT)[b] == oracles.backward_masks(group, signs, **kind)
    assert not (spans.forward_BGT | spans.backward_BGT)[~step.mask].any()


@checked
@given(steps(max_groups=1, max_group_size=5))
def test_prefix_is_stricter_than_position(step):
    signs = group_advantages(torch.tensor(step.rewards))
    by_position = conflict_spans(step.ids, step.mask, signs)
    by_prefix = conflict_spans(step.ids, step.mask, signs, alignment="prefix")
    for strict, loose in zip(by_prefix, by_position, strict=True):
        assert not (strict & ~loose).any()


# -- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alignment", ALIGNMENTS)
def test_memory_is_a_few_pairs_and_nothing_of_vocabulary_size(alignment, monkeypatch):
    B, G, T, V = 2, 12, 40, 128256
    ids = torch.randint(V - 3, V, (B, G, T), generator=torch.Generator().manual_seed(0))
    mask, signs = torch.ones_like(ids, dtype=torch.bool), torch.tensor([[1.0, -1.0] * 6] * B)
    with LargestTensor() as seen:
        whole = conflict_spans(ids, mask, signs, alignment=alignment)
    assert seen.bytes <= B * G * G * T  # one byte a pair
    monkeypatch.setattr(conflict, "_BLOCK_PAIRS", 3 * B * G * T)
    with LargestTensor() as seen:
        blocked = conflict_spans(ids, mask, signs, alignment=alignment)
    assert seen.bytes <= max(3 * B * G * T, 8 * B * G * T)  # three rows of pairs, or one int64 index
    assert all(torch.equal(a, b) for a, b in zip(whole, blocked, strict=True))


# -- lambda -----------------------------------------------------------------------------------------------------------


def test_weights_by_hand():
    conflict_BGT = torch.tensor([[[True, False]] * 3])
    weights = conflict_weights(conflict_BGT, torch.tensor([[0.2, -0.2, 0.0]]))
    assert weights.dtype == torch.float32
    assert weights.tolist() == [[[2.0, 1.0], [0.0, 1.0], [1.0, 1.0]]]


def test_a_token_in_both_masks_weighs_2_not_4():
    ids, signs = torch.tensor([[[3], [3]]]), torch.tensor([[1.0, -1.0]])
    mask = conflict_mask(ids, torch.ones_like(ids), signs)
    assert conflict_weights(mask, signs).tolist() == [[[2.0], [0.0]]]


@checked
@given(steps(), st.floats(0, 8, width=32), st.floats(0, 8, width=32))
def test_weights_equal_the_loop(step, positive, negative):
    advantages_BG = group_advantages(torch.tensor(step.rewards))
    mask_BGT = conflict_mask(step.ids, step.mask, advantages_BG)
    weights = step.ragged(conflict_weights(mask_BGT, advantages_BG, positive_weight=positive, negative_weight=negative))
    for b, group in enumerate(step.completions):
        signs = oracles.advantages(step.rewards[b])
        ahead, behind = oracles.forward_masks(group, signs), oracles.backward_masks(group, signs)
        for i, sign in enumerate(signs):
            expected = [
                oracles.weight(f or r, sign, positive=positive, negative=negative)
                for f, r in zip(ahead[i], behind[i], strict=True)
            ]
            assert weights[b][i] == expected


# -- errors -----------------------------------------------------------------------------------------------------------


def test_errors_name_the_argument():
    ids = torch.zeros(1, 2, 3, dtype=torch.long)
    with pytest.raises(ValueError, match="alignment must be 'position' or 'prefix', got 'suffix'"):
        conflict_spans(ids, ids, torch.zeros(1, 2), alignment="suffix")
    with pytest.raises(ValueError, match="span must be 'ends' or 'all', got 'middle'"):
        conflict_spans(ids, ids, torch.zeros(1, 2), span="middle")
    by_prefix = (conflict_spans(ids, ids, torch.zeros(1, 2), alignment="prefix", span=span) for span in ("ends", "all"))
    assert all(map(torch.equal, *by_prefix))
    with pytest.raises(ValueError, match="shapes do not fit"):
        conflict_spans(ids, ids[..., :2], torch.zeros(1, 2))
    with pytest.raises(ValueError, match="shapes do not fit"):
        conflict_mask(ids, ids, torch.zeros(1, 3))
