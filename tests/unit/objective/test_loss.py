"""Eq. 11, Eq. 1 and 2, and the switches between them."""

import math

import oracles
import pytest
import torch
from eq11 import gtpo_loss
from hypothesis import given
from hypothesis import strategies as st
from strategies import Step, checked, per_completion, per_token, steps
from torch import Tensor

from gtpo_cli.errors import RecipeError
from gtpo_cli.objective import (
    coefficients,
    conflict_weights,
    loss,
    policy_loss,
    token_shares,
)


def loss_of(logps, **changes):
    """One group of two completions, `o_1` of two tokens and `o_2` of one (a pad behind it), all parts off."""
    options = {
        "advantages_BG": torch.tensor([[1.5, -0.5]], dtype=torch.float64),
        "mean_entropy_BG": torch.tensor([[0.4, 0.2]], dtype=torch.float64),
        "keep_BG": torch.tensor([[True, True]]),
        "weights_BGT": torch.ones(1, 2, 2, dtype=torch.float64),
        "completion_mask_BGT": torch.tensor([[[True, True], [True, False]]]),
    }
    return gtpo_loss(logps, **(options | changes))


def some_logps() -> Tensor:
    return torch.tensor([[[-0.3, -1.2], [-0.7, 0.0]]], dtype=torch.float64, requires_grad=True)


def gradient_of(result, leaf: Tensor) -> Tensor:
    return torch.autograd.grad(result.loss, leaf)[0]


# -- by hand ----------------------------------------------------------------------------------------------------------


def test_grpo_by_hand():
    # ratio 1: J = 1/2 [ 1.5 (2/2) - 0.5 (1/1) ] = 0.5
    logps = some_logps()
    result = loss_of(logps)
    assert result.loss.item() == pytest.approx(-0.5, rel=1e-15)
    # d loss / d logp = -A / (|o| G): -1.5/4 twice, 0.5/2 once, nothing in the padding
    expected = torch.tensor([[[-0.375, -0.375], [0.25, 0.0]]], dtype=torch.float64)
    torch.testing.assert_close(gradient_of(result, logps), expected, rtol=1e-15, atol=0)
    assert result.metrics == {"clipped_share": 0.0}


def test_gtpo_by_hand():
    # c = (1.5 - 0.1*0.4, -0.5 - 0.1*0.2) = (1.46, -0.52); lambda (2, 1) and (0)
    logps = some_logps()
    weights = torch.tensor([[[2.0, 1.0], [0.0, 1.0]]], dtype=torch.float64)
    result = loss_of(logps, entropy_coef=0.1, weights_BGT=weights)
    assert result.loss.item() == pytest.approx(-(1.46 * 3 / 2 + 0.0) / 2, rel=1e-15)
    expected = torch.tensor([[[-1.46 * 2 / 4, -1.46 / 4], [0.0, 0.0]]], dtype=torch.float64)
    torch.testing.assert_close(gradient_of(result, logps), expected, rtol=1e-15, atol=0)


def test_a_filtered_completion_leaves_but_still_counts_in_g():
    result = loss_of(some_logps(), keep_BG=torch.tensor([[False, True]]))
    assert result.loss.item() == pytest.approx(-(0.0 - 0.5) / 2, rel=1e-15)


def test_lambda_comes_from_the_sign_before_the_entropy_term():
    # A = +0.05 with gamma <H> = 0.2: the coefficient is negative, lambda is still that of a good completion.
    advantages = torch.tensor([[0.05, -1.0]])
    weights = conflict_weights(torch.tensor([[[True], [True]]]), advantages)
    assert weights.tolist() == [[[2.0], [0.0]]]
    result = gtpo_loss(
        torch.zeros(1, 2, 1),
        advantages_BG=advantages,
        mean_entropy_BG=torch.tensor([[2.0, 2.0]]),
        keep_BG=torch.tensor([[True, True]]),
        weights_BGT=weights,
        completion_mask_BGT=torch.ones(1, 2, 1),
        entropy_coef=0.1,
    )
    assert result.loss.item() == pytest.approx(-2 * (0.05 - 0.2) / 2, rel=1e-6)


def test_kl_by_hand():
    # ref - logp = ln 2 in o_1's first token, 0 elsewhere: kl = 2 - ln 2 - 1 there.
    logps = some_logps()
    reference = logps.detach().clone()
    reference[0, 0, 0] += math.log(2)
    result = loss_of(logps, ref_logprobs_BGT=reference, kl_coef=0.04)
    kl = 1 - math.log(2)
    assert result.loss.item() == pytest.approx(-(1.5 - 0.04 * kl / 2 - 0.5) / 2, rel=1e-14)
    assert result.metrics["kl"] == pytest.approx(kl / 3, rel=1e-14)  # mean over the three tokens of the step
    # d kl / d logp = 1 - exp(ref - logp) = -1
    assert gradient_of(result, logps)[0, 0, 0].item() == pytest.approx(-0.375 - 0.04 / 4, rel=1e-14)


@pytest.mark.parametrize(
    ("ratio", "coefficient", "value", "slope"),
    [
        # min(r c, clip(r) c) with epsilon 0.2, and its derivative with respect to logp (r c where it is not clipped)
        (1.1, 2.0, 2.2, 2.2),
        (1.5, 2.0, 2.4, 0.0),  # enough was gained: cut at 1.2
        (0.5, 2.0, 1.0, 1.0),  # a loss is never cut
        (1.5, -2.0, -3.0, -3.0),
        (0.5, -2.0, -1.6, 0.0),  # punished enough: cut at 0.8
        (0.9, -2.0, -1.8, -1.8),
        (1.5, 0.0, 0.0, 0.0),
    ],
)
@pytest.mark.parametrize("weight", [0.0, 1.0, 2.0])
def test_clip_by_hand(ratio, coefficient, value, slope, weight):
    old = torch.tensor([[[-1.0]]], dtype=torch.float64)
    logps = (old + math.log(ratio)).requires_grad_()
    result = gtpo_loss(
        logps,
        old_logprobs_BGT=old,
        advantages_BG=torch.tensor([[coefficient + 0.05]], dtype=torch.float64),
        mean_entropy_BG=torch.tensor([[0.5]], dtype=torch.float64),
        keep_BG=torch.tensor([[True]]),
        weights_BGT=torch.full((1, 1, 1), weight, dtype=torch.float64),
        completion_mask_BGT=torch.ones(1, 1, 1),
        entropy_coef=0.1,  # so that c = A - 0.05
    )
    assert result.loss.item() == pytest.approx(-weight * value, rel=1e-13, abs=1e-13)
    assert gradient_of(result, logps).item() == pytest.approx(-weight * slope, rel=1e-13, abs=1e-13)
    trained = weight * coefficient != 0
    assert result.metrics["clipped_share"] == float(trained and abs(ratio - 1) > 0.2)
    assert result.metrics["ratio_mean"] == pytest.approx(ratio * trained, rel=1e-13)
    assert result.metrics["ratio_max"] == pytest.approx(ratio * trained, rel=1e-13)


# -- against the loop -------------------------------------------------------------------------------------------------

logprob = st.floats(-5, 0)


def draw_arguments(data, step: Step) -> dict:
    """Ragged arguments of a step, as plain lists."""
    olds = data.draw(st.none() | per_token(step, logprob))
    refs = data.draw(st.none() | per_token(step, logprob))
    return {
        "logps": data.draw(per_token(step, logprob)),
        "olds": olds,
        "refs": refs,
        "weights": data.draw(per_token(step, st.sampled_from([0.0, 0.5, 1.0, 2.0, 4.0]))),
        "advantages": data.draw(per_completion(step, st.sampled_from([0.0, -1.25, 0.75]) | st.floats(-3, 3))),
        "entropies": data.draw(per_completion(step, st.floats(0, 3))),
        "keep": data.draw(per_completion(step, st.booleans())),
        "gamma": data.draw(st.sampled_from([0.0, 0.1, 1.0])),
        "beta": data.draw(st.sampled_from([1e-6, 0.04])) if refs is not None else 0.0,
        "epsilon": data.draw(st.sampled_from([0.1, 0.2])),
    }


def by_the_loop(arguments: dict) -> float:
    groups = []
    for b, group in enumerate(arguments["logps"]):
        values = []
        for i, logps in enumerate(group):
            coefficient = arguments["advantages"][b][i] - arguments["gamma"] * arguments["entropies"][b][i]
            value = oracles.objective_of_completion(
                logps,
                logps if arguments["olds"] is None else arguments["olds"][b][i],
                None if arguments["refs"] is None else arguments["refs"][b][i],
                arguments["weights"][b][i],
                coefficient=coefficient if arguments["keep"][b][i] else 0.0,
                kl_coef=arguments["beta"],
                clip_epsilon=arguments["epsilon"],
            )
            values.append(value)
        groups.append(values)
    return oracles.step_loss(groups)


def by_the_library(step: Step, arguments: dict, *, padding: float, logps: Tensor | None = None):
    def padded(name: str) -> Tensor | None:
        return None if arguments[name] is None else step.padded(arguments[name], value=padding)

    def row(name: str, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.tensor(arguments[name], dtype=dtype)

    return gtpo_loss(
        padded("logps") if logps is None else logps,
        old_logprobs_BGT=padded("olds"),
        ref_logprobs_BGT=padded("refs"),
        advantages_BG=row("advantages"),
        mean_entropy_BG=row("entropies"),
        keep_BG=row("keep", torch.bool),
        weights_BGT=padded("weights"),
        completion_mask_BGT=step.mask,
        entropy_coef=arguments["gamma"],
        kl_coef=arguments["beta"],
        clip=(arguments["epsilon"], arguments["epsilon"]),
    )


@checked
@given(st.data(), steps())
def test_equals_the_loop(data, step):
    arguments = draw_arguments(data, step)
    result = by_the_library(step, arguments, padding=math.nan)  # padding is never read
    assert result.loss.item() == pytest.approx(by_the_loop(arguments), rel=1e-12, abs=1e-12)


@checked
@given(st.data(), steps())
def test_padding_gets_no_gradient_and_gives_no_nan(data, step):
    arguments = draw_arguments(data, step)
    logps = step.padded(arguments["logps"], value=math.nan).requires_grad_()
    gradient = gradient_of(by_the_library(step, arguments, padding=math.nan, logps=logps), logps)
    assert gradient[~step.mask].eq(0).all()
    assert gradient.isfinite().all()


@checked
@given(st.data(), steps())
def test_the_gradient_of_one_iteration_is_the_printed_one(data, step):
    # d loss / d logp_t = - delta (A - gamma <H>) lambda_t / (|o_i| G B)
    arguments = draw_arguments(data, step) | {"olds": None, "refs": None, "beta": 0.0}
    logps = step.padded(arguments["logps"], value=0.0).requires_grad_()
    gradient = step.ragged(gradient_of(by_the_library(step, arguments, padding=0.0, logps=logps), logps))
    B, G, _ = step.shape
    for b, group in enumerate(step.completions):
        for i, tokens in enumerate(group):
            c = arguments["advantages"][b][i] - arguments["gamma"] * arguments["entropies"][b][i]
            c = c if arguments["keep"][b][i] else 0.0
            expected = [-c * weight / (len(tokens) * G * B) for weight in arguments["weights"][b][i]]
            assert gradient[b][i] == pytest.approx(expected, rel=1e-12, abs=1e-15)


# -- gradcheck --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kl_coef", [0.0, 0.3])
def test_gradcheck(kl_coef):
    # Old log-probabilities near, above and below: ratios inside the clip and beyond it on both sides, none at its edge.
    generator = torch.Generator().manual_seed(11)
    mask = torch.tensor([[[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]], [[1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 0]]]).bool()
    logps = -3 * torch.rand(2, 3, 4, generator=generator, dtype=torch.float64) - 0.5
    steps_away = torch.tensor([-0.9, -0.1, 0.05, 0.6], dtype=torch.float64)
    old = logps + steps_away[torch.randint(0, 4, logps.shape, generator=generator)]
    reference = logps + torch.randn(logps.shape, generator=generator, dtype=torch.float64)
    options = {
        "ref_logprobs_BGT": reference if kl_coef else None,
        "advantages_BG": torch.tensor([[1.2, -0.7, 0.3], [-1.0, 0.9, 0.0]], dtype=torch.float64),
        "mean_entropy_BG": torch.rand(2, 3, generator=generator, dtype=torch.float64),
        "keep_BG": torch.tensor([[True, True, True], [True, True, False]]),
        "weights_BGT": torch.randint(0, 3, (2, 3, 4), generator=generator).double(),
        "completion_mask_BGT": mask,
        "entropy_coef": 0.1,
        "kl_coef": kl_coef,
    }

    def loss(leaf: Tensor) -> Tensor:
        result = gtpo_loss(leaf, old_logprobs_BGT=old, **options)
        assert 0.2 < result.metrics["clipped_share"] < 0.8
        return result.loss

    assert torch.autograd.gradcheck(loss, [logps.requires_grad_()], atol=1e-9, rtol=1e-7)


# -- switches ---------------------------------------------------------------------------------------------------------


def test_no_gradient_flows_into_what_is_measured():
    measured = {
        "old_logprobs_BGT": some_logps(),
        "ref_logprobs_BGT": some_logps(),
        "mean_entropy_BG": torch.tensor([[0.4, 0.2]], dtype=torch.float64, requires_grad=True),
    }
    logps = some_logps()
    loss_of(logps, **measured, kl_coef=0.1, entropy_coef=0.1).loss.backward()
    assert logps.grad is not None
    assert all(value.grad is None for value in measured.values())


# -- the other methods ------------------------------------------------------------------------------------------------


def in_c(c, logps=None, mask=None, **options):
    """policy_loss of the group above with these coefficients."""
    mask = torch.tensor([[[True, True], [True, False]]]) if mask is None else mask
    return policy_loss(some_logps() if logps is None else logps, torch.tensor(c, dtype=torch.float64), mask, **options)


@pytest.mark.parametrize(
    ("average", "shares"),
    [("completion", [1 / 4, 1 / 2]), ("token", [1 / 3, 1 / 3]), ("sum", [1 / 2, 1 / 2]), (10, [1 / 20, 1 / 20])],
)
def test_averages_by_hand(average, shares):
    # two completions of 2 and 1 tokens; J = s_1 (3 + 5) + s_2 (-2)
    mask = torch.tensor([[[True, True], [True, False]]])
    assert token_shares(mask, average).tolist() == [shares]
    result = in_c([[[3.0, 5.0], [-2.0, 7.0]]], average=average)
    assert result.loss.item() == pytest.approx(-(shares[0] * 8 - shares[1] * 2), rel=1e-15)


def test_the_shares_of_a_step_make_its_parts_add_up():
    mask = torch.tensor([[[True, True], [True, False]]])
    for average in ("completion", "token", "sum", 7):
        whole = in_c([[[3.0, 5.0], [-2.0, 0.0]]], average=average).loss
        shares = token_shares(mask, average)
        parts = [
            in_c([[[3.0, 5.0], [-2.0, 0.0]]], mask=mask & only, shares_BG=shares).loss
            for only in (torch.tensor([[[True], [False]]]), torch.tensor([[[False], [True]]]))
        ]
        assert sum(parts).item() == pytest.approx(whole.item(), rel=1e-15)


def test_a_sequence_ratio_by_hand():
    # ln r = 0.3 and -0.1 in o_1, whose mean is 0.1; ln r = 0.5 in o_2. c the same in a completion: GSPO
    logps = some_logps()
    old = logps.detach() - torch.tensor([[[0.3, -0.1], [0.5, 0.0]]], dtype=torch.float64)
    c = [[[1.5, 1.5], [-0.5, -0.5]]]
    result = in_c(c, logps, old_logprobs_BGT=old, rule=loss.sequence, clip=(0.2, 0.2))
    s_1, s_2 = math.exp(0.1), math.exp(0.5)
    assert result.loss.item() == pytest.approx(-(s_1 * 1.5 + s_2 * -0.5) / 2, rel=1e-14)  # a loss is never cut
    # d s_i / d logp_t = s_i / |o_i|
    expected = torch.tensor([[[-s_1 * 1.5 / 4, -s_1 * 1.5 / 4], [s_2 * 0.5 / 2, 0.0]]], dtype=torch.float64)
    torch.testing.assert_close(gradient_of(result, logps), expected, rtol=1e-13, atol=0)
    assert result.metrics["clipped_share"] == pytest.approx(1 / 3)
    cut = in_c(c, logps, old_logprobs_BGT=old, rule=loss.sequence, clip=(3e-4, 4e-4))
    assert cut.loss.item() == pytest.approx(-(1.0004 * 1.5 + s_2 * -0.5) / 2, rel=1e-14)
    assert gradient_of(cut, logps)[0, 0].eq(0).all()


def test_a_clipped_weight_by_hand():
    # CISPO: sg(min(r, 1.2)) c ln pi; ratios e^0.5 and 1 in o_1, e^-0.7 in o_2: only the first is above
    logps = some_logps()
    old = logps.detach() - torch.tensor([[[0.5, 0.0], [-0.7, 0.0]]], dtype=torch.float64)
    result = in_c([[[2.0, 1.0], [-3.0, 0.0]]], logps, old_logprobs_BGT=old, rule=loss.weight, clip=(0.2, 1.2))
    w = [[1.2 * 2.0, 1.0], [math.exp(-0.7) * -3.0, 0.0]]
    value = (w[0][0] * -0.3 + w[0][1] * -1.2) / 2 + w[1][0] * -0.7
    assert result.loss.item() == pytest.approx(-value / 2, rel=1e-14)
    # no token loses its gradient: it is the weight
    expected = torch.tensor([[[-w[0][0] / 4, -w[0][1] / 4], [-w[1][0] / 2, 0.0]]], dtype=torch.float64)
    torch.testing.assert_close(gradient_of(result, logps), expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("rule", loss.RULES)
def test_at_the_old_policy_every_rule_pulls_with_c_times_its_share(rule):
    generator = torch.Generator().manual_seed(5)
    mask = torch.arange(6) < torch.randint(1, 7, (3, 4, 1), generator=generator)
    c = torch.randn(3, 4, 6, generator=generator, dtype=torch.float64)
    logps = (-torch.rand(3, 4, 6, generator=generator, dtype=torch.float64)).requires_grad_()
    for average in ("completion", "token", "sum", 9):
        high = 5.0 if rule == "weight" else 0.2
        result = policy_loss(logps, c, mask, rule=loss.RULES[rule], clip=(0.2, high), average=average)
        pull = (c * token_shares(mask, average)[..., None]).masked_fill(~mask, 0.0)
        torch.testing.assert_close(gradient_of(result, logps), -pull, rtol=1e-13, atol=0)


def test_coefficients_by_hand():
    mask = torch.tensor([[[True, True], [True, False]]])
    weights = torch.tensor([[[2.0, 1.0], [0.0, 1.0]]])
    A, H = torch.tensor([[1.5, -0.5]]), torch.tensor([[0.4, 0.2]])
    keep = torch.tensor([[True, True]])
    c = coefficients(A, H, keep, weights, mask, entropy_coef=0.1)
    torch.testing.assert_close(c, torch.tensor([[[2.92, 1.46], [0.0, 0.0]]]), rtol=1e-6, atol=0)
    assert coefficients(A, H, ~keep, weights, mask, entropy_coef=0.1).eq(0).all()


def test_a_rule_with_a_term_of_its_own_trains_no_more_tokens():
    logps = some_logps()
    c = torch.tensor([[[2.0, 0.0], [0.0, -1.0]]], dtype=logps.dtype)
    result = policy_loss(
        logps,
        c,
        torch.ones(1, 2, 2, dtype=torch.bool),
        rule=lambda ratio: ratio.value * ratio.coefficients - ratio.logprobs,
    )
    # 1 / (B G |o|) = 1 / 4; d/d ln pi of r c - ln pi is c - 1 where r = 1
    torch.testing.assert_close(gradient_of(result, logps), -0.25 * torch.tensor([[[1.0, 0.0], [0.0, -2.0]]]).to(logps))


def test_errors_name_the_argument():
    with pytest.raises(ValueError, match="kl_coef > 0 needs ref_logprobs_BGT"):
        loss_of(some_logps(), kl_coef=0.04)
    with pytest.raises(RecipeError, match=r"rule: gave the shape \(1, 2, 1\); expected .* shape \(1, 2, 2\)"):
        loss_of(some_logps(), rule=lambda ratio: ratio.mean(ratio.value))
    for average in ("group", 0):
        with pytest.raises(ValueError, match="average must be 'completion', 'token', 'sum' or a number of tokens"):
            loss_of(some_logps(), average=average)
