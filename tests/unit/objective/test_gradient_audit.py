"""The gradient audit by hand, and as a partition of any step."""

import pytest
import torch
from hypothesis import given
from strategies import checked, steps

from gtpo_cli.objective import conflict_spans, group_advantages
from gtpo_cli.objective.gradient_audit import gradient_audit, token_places

EOS = 2


def test_two_completions_by_hand():
    """Right: 7 1 9 2, wrong: 7 3 9 2; A = +1, -2, no correction: c = A / 4 on every token."""
    ids = torch.tensor([[[7, 1, 9, EOS], [7, 3, 9, EOS]]])
    mask = torch.ones_like(ids, dtype=torch.bool)
    advantages = torch.tensor([[1.0, -2.0]])
    spans = conflict_spans(ids, mask, advantages)
    c = (advantages[..., None] / 4).expand(1, 2, 4)
    audit = gradient_audit(c, spans, mask, ids == EOS)
    one, two = 0.25 / 3, 0.5 / 3  # a token's share: 1/4 or 2/4 of 3 in all
    assert audit == pytest.approx(
        {
            "prefix_positive_share": one, "prefix_negative_share": two,
            "suffix_positive_share": one, "suffix_negative_share": two,
            "eos_positive_share": one, "eos_negative_share": two,
            "middle_positive_share": one, "middle_negative_share": two,
            "prefix_negative_groups": 1.0, "eos_negative_groups": 1.0,
        }
    )  # fmt: skip
    no_pull = gradient_audit(torch.zeros_like(c), spans, mask, ids == EOS)
    assert set(no_pull.values()) == {0.0}
    assert not any(name.endswith("groups") for name in no_pull)


def test_groups_are_counted_by_the_sign_of_their_sum():
    """Group 1 pulls its shared 7 up (2 - 1), group 2 down (1 - 2), group 3 shares nothing."""
    ids = torch.tensor([[[7], [7]], [[7], [7]], [[5], [6]]])
    mask = torch.ones_like(ids, dtype=torch.bool)
    advantages = torch.tensor([[2.0, -1.0], [1.0, -2.0], [1.0, -1.0]])
    spans = conflict_spans(ids, mask, advantages)
    audit = gradient_audit(advantages[..., None], spans, mask, ids == EOS)
    assert audit["prefix_negative_groups"] == 0.5
    assert "eos_negative_groups" not in audit


def test_what_cancels_has_no_direction_and_what_is_not_shared_does_not_count():
    """Group 1: equal lengths, so its shared 7 and end cancel up to rounding. Group 2: the longer one weighs less a
    token. Group 3: nobody is wrong; its ends are pulled down (an entropy term), but shared with no wrong one."""
    ids = torch.tensor([[[7, 1, EOS, 0], [7, 3, EOS, 0]], [[7, 1, 4, EOS], [7, 3, EOS, 0]], [[7, 1, EOS, 0]] * 2])
    mask = torch.tensor([[[1, 1, 1, 0]] * 2, [[1, 1, 1, 1], [1, 1, 1, 0]], [[1, 1, 1, 0]] * 2], dtype=torch.bool)
    advantages = torch.tensor([[0.1 + 0.2, -0.3], [0.7, -0.7], [0.0, 0.0]])
    spans = conflict_spans(ids, mask, advantages)
    c = (advantages - torch.tensor([[0.0], [0.0], [0.01]]))[..., None] / mask.sum(dim=-1, keepdim=True)
    audit = gradient_audit(c, spans, mask, ids == EOS)
    assert audit["prefix_negative_groups"] == 1.0  # group 2 alone: 0.7 / 4 - 0.7 / 3
    assert audit["eos_negative_groups"] == 1.0


@checked
@given(steps())
def test_places_are_a_partition_and_shares_add_up(step):
    advantages = group_advantages(torch.tensor(step.rewards))
    spans = conflict_spans(step.ids, step.mask, advantages)
    places = token_places(spans, step.mask, step.ids == EOS)
    assert torch.equal(sum(place.int() for place in places.values()), step.mask.int())
    assert not (places["eos"] & (step.ids != EOS)).any()
    c = advantages[..., None].expand(step.ids.shape)
    audit = gradient_audit(c, spans, step.mask, step.ids == EOS)
    total = sum(value for name, value in audit.items() if name.endswith("_share"))
    pulled = bool((c * step.mask != 0).any())
    assert total == pytest.approx(1.0 if pulled else 0.0)
    for place, there in places.items():
        positive = float((c.clamp(min=0) * there).sum()) / float((c.abs() * step.mask).sum()) if pulled else 0.0
        assert audit[f"{place}_positive_share"] == pytest.approx(positive, abs=1e-6)
