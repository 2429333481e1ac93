"""Several steps from one generation: what is sampled when, ln pi_old, the loss, and what a checkpoint holds of it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from small_steps import recorded_gradients
from test_step import CASES, NEVER, PROMPTS, ForeignSampler, full_logprobs, matrices_first, naive_loss, recipe
from test_step import parts_for as parts_for  # the fixture

from gtpo_cli.data import PromptOrder
from gtpo_cli.policy.sampler import SamplingParams
from gtpo_cli.tracking import find_metric
from gtpo_cli.training.generations import Generations, StepPrompts, sample_steps
from gtpo_cli.training.step import Ratios, StepParts, StepRows, StepSamples, train_step
from gtpo_cli.training.step_metrics import step_metrics
from gtpo_cli.training.stopwatch import Stopwatch

TWO = "rollout.steps_per_generation=2"
FOUR = "rollout.steps_per_generation=4"
FAST = "optimizer.learning_rate=0.01"  # far enough for the clip
ASKED = [StepPrompts(PROMPTS, seed=15), StepPrompts(PROMPTS[:2], seed=16)]
CLIPPING = [StepPrompts(PROMPTS, seed=14), ASKED[1]]  # its second step clips some tokens, with every method


def old_logprobs(model: Any, samples: StepSamples) -> list[list[torch.Tensor]]:
    """ln pi of each completion's tokens by full logits in float64."""
    return [
        [
            full_logprobs(model, group.prompt_ids, completion, 1.0)
            .detach()
            .gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
            for completion in group.completions
        ]
        for group in samples.groups
    ]


def test_one_call_samples_for_all_steps_and_fixes_ln_pi_old(parts_for: Any) -> None:
    parts = parts_for(recipe(NEVER, FAST, TWO))
    calls: list[tuple[int, SamplingParams]] = []
    sample, untrained = parts.sampler.sample, copy.deepcopy(parts.policy.model)

    def noted(prompts: Any, n: int, params: SamplingParams, **rest: Any) -> Any:
        calls.append((len(prompts), params))
        return sample(prompts, n, params, **rest)

    parts.sampler.sample = noted
    generation = sample_steps(parts, ASKED, clock=Stopwatch())
    assert [(count, params.seed) for count, params in calls] == [(5, 15)]
    assert [[group.problem.id for group in samples.groups] for samples in generation] == [["a", "b", "c"], ["a", "b"]]
    assert [samples.age for samples in generation] == [0, 1]
    first, second = generation
    assert first.old_NT is None  # its own first forward pass gives it
    assert second.old_NT is not None
    for b, group in enumerate(old_logprobs(untrained, second)):
        for g, expected in enumerate(group):
            measured = second.old_NT[b * len(group) + g]
            torch.testing.assert_close(measured[: len(expected)].double(), expected, rtol=1e-5, atol=1e-5)
            assert not measured[len(expected) :].any()


@pytest.mark.parametrize("name", ["gspo", "gtpo", "cispo"])
def test_in_16_bits_too_the_ratio_is_1_until_the_first_update(parts_for: Any, name: str) -> None:
    """GSPO's clip range, 3e-4, is smaller than the rounding between two micro-batches of 16 bits."""
    ahead = parts_for(recipe(*CASES[name], FAST, TWO))
    ahead.policy.dtype = torch.bfloat16
    first, _ = sample_steps(ahead, ASKED, clock=Stopwatch())
    alone = parts_for(recipe(*CASES[name], FAST))
    alone.policy.dtype = torch.bfloat16
    gradients = []
    for parts in (ahead, alone):
        gradients.append(recorded_gradients(parts.updater))
        assert train_step(parts, StepSamples(first.groups), clock=Stopwatch()).iterations[0].ratios is None
    assert first.old_NT is None
    for ours, theirs in zip(gradients[0][0], gradients[1][0], strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    "name", ["gtpo", "grpo with kl", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "gtpo's corrections on gspo",
             "gtpo's corrections on cispo", "mask truncated", "importance correction", "kl-cov"],
)  # fmt: skip
def test_the_second_step_has_the_loss_and_gradient_of_the_naive_specification(parts_for: Any, name: str) -> None:
    """pi_old is the policy that sampled; H, delta and c are the present one's. Whatever the micro-batch."""
    corrected = name == "importance correction"
    kl_cov = ["objective.name=grpo", "objective.loss={rule: kl_cov, config: {share: 0.2, coef: 0.5}}"]
    wide = ["objective.clip={low: 0.5, high: 0.5}"] if "gspo" in name else []  # its own range leaves nothing
    others = {"importance correction": [NEVER, "rollout.importance_correction=truncated"], "kl-cov": kl_cov}
    chosen = recipe(*(CASES | others)[name], *wide, FAST, TWO)
    for micro in (64, 4):
        parts = parts_for(chosen, micro=micro)
        if corrected:
            parts.sampler = ForeignSampler(parts.policy)
        sampled_by = copy.deepcopy(parts.policy.model)
        first, second = sample_steps(parts, CLIPPING, clock=Stopwatch())
        assert train_step(parts, first, clock=Stopwatch()).iterations[0].ratios is None  # r is exactly 1
        now = copy.deepcopy(parts.policy.model)
        gradients = recorded_gradients(parts.updater)
        result = train_step(parts, second, clock=Stopwatch())
        expected = naive_loss(
            chosen, result, now, parts.policy._reference, parts.initial_entropy, sampled_by=sampled_by
        )
        expected.backward()
        (update,) = result.iterations
        assert update.loss == pytest.approx(float(expected.detach()), rel=1e-4, abs=1e-5)
        scale = max(float(p.grad.abs().max()) for p in now.parameters() if p.grad is not None)
        (ours,) = gradients
        for gradient, theirs in zip(ours, matrices_first(now), strict=True):
            torch.testing.assert_close(gradient, theirs.grad, rtol=1e-3, atol=2e-5 * max(scale, 1e-3))
        if chosen.objective.loss.rule not in ("weight", "kl_cov"):
            assert 0 < ratios_of(result)[0].clipped_share <= (1 if chosen.objective.loss.rule == "sequence" else 0.99)


def test_metrics_of_age_and_ratio(parts_for: Any) -> None:
    parts = parts_for(recipe(NEVER, FAST, TWO))
    sampled_by = copy.deepcopy(parts.policy.model)
    first, second = sample_steps(parts, ASKED, clock=Stopwatch())
    train_step(parts, first, clock=Stopwatch())
    now = copy.deepcopy(parts.policy.model)
    clock = Stopwatch()
    metrics = step_metrics(train_step(parts, second, clock=clock), clock)
    groups = zip(old_logprobs(now, second), old_logprobs(sampled_by, second), strict=True)
    pairs = [pair for news, olds in groups for pair in zip(news, olds, strict=True)]
    ratios = torch.cat([torch.exp(new - old) for new, old in pairs])
    assert metrics["ratio/mean"] == pytest.approx(float(ratios.mean()), rel=1e-4)
    assert metrics["ratio/max"] == pytest.approx(float(ratios.max()), rel=1e-4)
    outside = float(((ratios - 1).abs() > 0.2).double().mean())
    assert 0 < outside < 1
    assert metrics["ratio/clipped_share"] == pytest.approx(outside, abs=1.5 / len(ratios))
    assert metrics["sampler/gap_max"] < 1e-4  # of the policy that sampled, not of the present one
    assert metrics["time/sample"] == metrics["time/reward"] == 0.0
    assert [find_metric(name).name for name in metrics] == list(metrics)


def test_every_iteration_compares_with_the_policy_that_sampled(parts_for: Any) -> None:
    parts = parts_for(recipe(NEVER, FAST, TWO, "objective.num_iterations=3"))
    first, second = sample_steps(parts, ASKED, clock=Stopwatch())
    train_step(parts, first, clock=Stopwatch())
    result = train_step(parts, second, clock=Stopwatch())
    assert len({ratios.mean for ratios in ratios_of(result)}) == 3
    assert second.old_NT is not None
    assert torch.equal(result.old_NT, second.old_NT)
    assert not torch.equal(result.logprobs_NT, second.old_NT)
    alone = parts_for(recipe(NEVER, FAST, "objective.num_iterations=3"))
    (samples,) = sample_steps(alone, ASKED[:1], clock=Stopwatch())
    assert len(ratios_of(train_step(alone, samples, clock=Stopwatch()))) == 2  # in the first iteration it is 1


def ratios_of(rows: StepRows) -> list[Ratios]:
    return [each.ratios for each in rows.iterations if each.ratios is not None]


def generations_of(parts: StepParts) -> Generations:
    order = PromptOrder(recipe("training.max_steps=8", "rollout.prompts_per_step=2"), PROMPTS)
    return Generations(parts, PROMPTS, order, seed=3)


def left_over(parts: StepParts) -> tuple[Generations, list[StepSamples]]:
    """Of a generation for steps 5 to 8, of which step 5 was made."""
    ahead = generations_of(parts)
    ahead.take(5, clock=Stopwatch())
    again = copy.copy(ahead)
    return ahead, [again.take(number, clock=Stopwatch()) for number in (6, 7, 8)]


def test_a_checkpoint_holds_what_is_left_exactly_and_in_few_bytes(parts_for: Any, tmp_path: Any) -> None:
    only_a = "rewards.plugins=[{name: 'test_step:only_of_the_first_problem'}]"
    no_others = ("rewards.format.weight=0", "rewards.accuracy.weight=0")
    parts = parts_for(recipe(NEVER, FAST, FOUR, only_a, *no_others, "objective.resample=1"))
    ahead, left = left_over(parts)
    assert any(samples.discarded for samples in left)
    torch.save(ahead.state_dict(after=5), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    restored = generations_of(parts)
    restored.load_state_dict(state, after=5)
    tokens = completions = 0
    for number, expected in zip((6, 7, 8), left, strict=True):
        found = restored.take(number, clock=Stopwatch())
        assert found.old_NT is not None
        assert expected.old_NT is not None
        assert found.groups == expected.groups  # texts, log-probabilities and verdicts too
        assert torch.equal(found.old_NT, expected.old_NT)
        assert (found.age, found.discarded) == (expected.age, expected.discarded)
        completions += sum(len(group.completions) for group in found.groups)
        tokens += sum(len(completion.token_ids) for group in found.groups for completion in group.completions)
    tensors = [value for value in state.values() if isinstance(value, torch.Tensor)]
    assert sum(tensor.nbytes for tensor in tensors) == 12 * tokens
    assert (tmp_path / "state.pt").stat().st_size < 12 * tokens + 400 * completions + 4096
    assert not restored.state_dict(after=8)


@pytest.mark.parametrize(
    ("change", "after", "why"),
    [
        (lambda state: state, 6, "are not for the steps after step 6"),
        (lambda state: state | {"steps": "[]"}, 5, "have 0 tokens"),
        (lambda state: state | {"steps": "{"}, 5, "JSON"),
        (lambda state: state | {"steps": state["steps"].replace("false", "2")}, 5, "bool"),
        (lambda state: state | {"steps": state["steps"].replace('"a"', '"z"')}, 5, "that the data no longer has there"),
        (lambda state: state | {"token_ids": state["token_ids"] + 103}, 5, "outside the model's vocabulary"),
        (lambda state: state | {"token_ids": state["token_ids"] - 200}, 5, "outside the model's vocabulary"),
        (lambda state: state | {"token_ids": state["token_ids"][1:]}, 5, "token_ids has another number"),
        (lambda state: state | {"logprobs": state["logprobs"].double()}, 5, "logprobs has another number or type"),
    ],
)  # fmt: skip
def test_what_does_not_fit_the_run_is_refused(parts_for: Any, change: Any, after: int, why: str) -> None:
    parts = parts_for(recipe(NEVER, FOUR))
    ahead, _ = left_over(parts)
    restored = generations_of(parts)
    with pytest.raises(ValueError, match=why):
        restored.load_state_dict(change(ahead.state_dict(after=5)), after=after)
