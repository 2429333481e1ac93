"""train_step against the specification written out naively: full logits, Python loops, autograd, float64.

Nothing is mocked: a real (small, random) model samples with the real sampler, the real scorer grades, and the step's
gradient is compared with that of the loss computed one token at a time from objective.md.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any, NamedTuple

import pytest
import torch
from small_models import random_model
from small_steps import recorded_gradients, whole_step

from gtpo_cli.objective.loss import Ratio
from gtpo_cli.policy.packing import training_budget
from gtpo_cli.policy.transformers_policy import TransformersPolicy
from gtpo_cli.policy.transformers_sampler import TransformersSampler
from gtpo_cli.recipe import Recipe, build_recipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.tracking import find_metric
from gtpo_cli.training.optimizers import Updater
from gtpo_cli.training.step import Outcome, StepParts, StepRows
from gtpo_cli.training.step_metrics import audit_metrics, sample_rows, step_metrics
from gtpo_cli.training.stopwatch import Stopwatch
from gtpo_cli.types import Completion, Problem

PROMPTS = [
    (Problem("a", "1+1", "2"), (1, 4, 9, 80, 9, 5)),
    (Problem("b", "12-4", "8"), (1, 4, 9, 10, 82, 12, 5)),
    (Problem("c", "7", "7"), (1, 4, 15, 5)),
]
DOCUMENT = {
    "model": {"name": "builtin:tiny"},
    "data": {"benchmark": "arithmetic", "max_prompt_tokens": 64},
    "rollout": {"group_size": 6, "prompts_per_step": 3, "max_completion_tokens": 14},
    # varied rewards from random text: how many letters a completion has
    "rewards": {"plugins": [{"name": "test_step:letters", "weight": 1.0}]},
    "optimizer": {"max_grad_norm": 1e6, "warmup_ratio": 0.0, "learning_rate": 1e-3, "betas": [0.9, 0.95]},
    "training": {"max_steps": 10},
}


def letters(problem: Problem, completion: Completion) -> float:
    """A user reward: how many of the first four characters are letters; so groups have ties, and shared tokens."""
    return float(sum(character.isalpha() for character in completion.text[:4]) // 2)


def only_of_the_first_problem(problem: Problem, completion: Completion) -> float:
    """A user reward without spread in the groups of the other problems."""
    return letters(problem, completion) if problem.id == PROMPTS[0][0].id else 1.0


def nothing(problem: Problem, completion: Completion) -> float:
    return 0.0


def whole(ratio: Ratio) -> torch.Tensor:
    """A user's rule for the loss: the ratio of the completion, with the gradient of all of its tokens."""
    return torch.exp(ratio.mean(ratio.logprobs - ratio.old_logprobs)) * ratio.coefficients


def recipe(*overrides: str) -> Recipe:
    return build_recipe(DOCUMENT, overrides, where="test")


@pytest.fixture
def parts_for() -> Iterator[Any]:
    scorers = []

    def make(recipe: Recipe, *, initial_entropy: float = 0.5, micro: int = 4) -> StepParts:
        # weights small enough for entropies on both sides of the thresholds used below, vocabulary of 103
        model, tokenizer = random_model(initializer_range=0.35)
        policy = TransformersPolicy(
            model, tokenizer, temperature=recipe.rollout.temperature, max_seq_length=256, reference=perturbed(model)
        )
        policy.eos_token_ids = frozenset({2, *range(60, 80)})  # so that completions end at different lengths
        updater = Updater(policy.trainable_parameters(), recipe.optimizer, total_steps=10)
        scorer = Scorer(recipe.rewards, longest=recipe.rollout.max_completion_tokens)
        scorers.append(scorer)
        size = training_budget(micro, longest_row=64, warn=print)
        return StepParts(
            recipe.objective,
            recipe.rollout,
            policy,
            TransformersSampler(policy),
            scorer,
            updater,
            initial_entropy,
            size,
        )

    yield make
    for scorer in scorers:
        scorer.close()


def perturbed(model: Any) -> Any:
    """A reference that is not the policy, so that the KL term has a gradient."""
    reference = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return reference


def full_logprobs(model: Any, prompt: tuple[int, ...], completion: Completion, temperature: float) -> torch.Tensor:
    """(tokens, V) log-softmax of one row, without padding, in float64."""
    ids = torch.tensor([[*prompt, *completion.token_ids]])
    logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].double() / temperature
    return torch.log_softmax(logits, dim=-1)


def naive_loss(
    recipe: Recipe, result: StepRows, model: Any, reference: Any, initial_entropy: float, *, sampled_by: Any = None
) -> torch.Tensor:
    """-J of objective.md, sections 3 to 7 and 13, one completion and one token at a time. `sampled_by`: the model
    whose pi_old is, where that is not `model`."""
    o = recipe.objective
    total = torch.zeros((), dtype=torch.float64)
    advantages = naive_advantages(recipe, result)
    tokens = naive_tokens(recipe, result, model, advantages)
    for b, (group, A) in enumerate(zip(result.samples.groups, advantages, strict=True)):
        G = len(A)
        ids = [completion.token_ids for completion in group.completions]
        for i, completion in enumerate(group.completions):
            full = full_logprobs(model, group.prompt_ids, completion, recipe.rollout.temperature)
            p = full.exp()
            H = float((-(p * full).sum(-1)).mean().detach())
            theta = o.filter.threshold
            on = o.filter.enabled == "always" or (o.filter.enabled == "auto" and initial_entropy < math.log(2))
            delta = 0.0 if on and H > theta and not (o.filter.only_negative and A[i] >= 0) else 1.0
            if recipe.rollout.mask_truncated and completion.truncated:
                delta = 0.0
            forward, backward = naive_spans(ids, A, i, o.conflict.alignment)
            own_tokens = [token for token in tokens if token.row == b * G + i]
            lam = naive_control(recipe, naive_lambda(recipe, forward, backward, A[i], own_tokens, tokens), own_tokens)
            own = full.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
            old = own.detach()
            if sampled_by is not None:
                then = full_logprobs(sampled_by, group.prompt_ids, completion, recipe.rollout.temperature).detach()
                old = then.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
            c = delta * (A[i] - o.entropy_coef * H)
            weights = torch.tensor(lam, dtype=torch.float64)
            if recipe.rollout.importance_correction == "truncated":
                sampled = torch.tensor(completion.logprobs, dtype=torch.float64)
                weights = weights * torch.exp(old - sampled).clamp(max=2.0)
            r = torch.exp(own - old)
            if o.loss.rule == "test_step:whole":
                r = torch.exp((own - old).mean()) * torch.ones_like(own)
            if o.loss.rule == "sequence":
                r = torch.exp((own - old).mean()).detach() * torch.exp(own - own.detach())
            if o.loss.rule == "kl_cov":
                assert sampled_by is not None
                term = (r * c * weights).sum() - 0.5 * (
                    (own - old).abs() * naive_held(recipe, result, sampled_by, i + b * G)
                ).sum()
            elif o.loss.rule == "weight":
                term = (r.clamp(max=o.clip.high).detach() * own * c * weights).sum()
            else:
                term = (torch.minimum(r * c, r.clamp(1 - o.clip.low, 1 + o.clip.high) * c) * weights).sum()
            if o.kl_coef > 0:
                ref = full_logprobs(reference, group.prompt_ids, completion, recipe.rollout.temperature)
                ref = ref.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0].detach()
                kl = torch.exp(ref - own) - (ref - own) - 1
                term = term - o.kl_coef * kl.sum()
            completions = len(result.samples.groups) * G
            total = (
                total
                - term
                / {
                    "completion": completions * len(own),
                    "token": sum(len(each.token_ids) for whole in result.samples.groups for each in whole.completions),
                    "budget": completions * recipe.rollout.max_completion_tokens,
                    "sum": completions,
                }[o.average]
            )
    return total


def naive_held(recipe: Recipe, result: StepRows, sampled_by: Any, row: int) -> torch.Tensor:
    """Which tokens of a row are in the fifth with the largest covariance of ln pi_old and A, of the tokens with A."""
    A = naive_advantages(recipe, result)
    tokens = [token for token in naive_tokens(recipe, result, sampled_by, A) if token.A != 0]
    logp, mean = fmean(token.logp for token in tokens), fmean(token.A for token in tokens)
    held = sorted(tokens, key=lambda token: -(token.logp - logp) * (token.A - mean))[: int(0.2 * len(tokens))]
    every = naive_tokens(recipe, result, sampled_by, A)
    return torch.tensor([float(token in held) for token in every if token.row == row])


def naive_spans(ids: list[tuple[int, ...]], A: list[float], i: int, alignment: str) -> tuple[list[bool], list[bool]]:
    def run(rows: list[tuple[int, ...]]) -> list[bool]:
        mask = []
        for p, token in enumerate(rows[i]):

            def shares(j: int, p: int = p, token: int = token) -> bool:
                if alignment == "prefix":
                    return rows[j][: p + 1] == rows[i][: p + 1]
                return len(rows[j]) > p and rows[j][p] == token

            positive = any(A[j] > 0 and shares(j) for j in range(len(rows)))
            negative = any(A[j] < 0 and shares(j) for j in range(len(rows)))
            mask.append(positive and negative and (alignment == "anywhere" or all(mask)))
        return mask

    return run(ids), run([row[::-1] for row in ids])[::-1]


def naive_advantages(recipe: Recipe, result: StepRows) -> list[list[float]]:
    """A of each group, by the rule of the recipe."""
    rule, how, found = recipe.objective.advantages.rule, recipe.objective.advantages.config, []
    for group in result.samples.groups:
        R = [verdict.reward for verdict in group.verdicts]
        mean, std = fmean(R), stdev(R)
        if rule == "group":
            others = how.get("baseline") == "leave_one_out"
            centred = [r - ((sum(R) - r) / (len(R) - 1) if others else mean) for r in R]
            found.append([r if how.get("scale") == "none" else r / (std + 1e-4) for r in centred])
        elif rule == "quantile":
            low = min(r for r in R if sum(other <= r for other in R) >= 0.4 * len(R))
            found.append([(r - low) / (std + 1e-4) for r in R])
        elif rule == "maximum_likelihood":
            found.append([(r - mean) / mean if mean else 0.0 for r in R])
        elif rule == "reinforce":
            found.append([0.1 if verdict.correct else -1.0 for verdict in group.verdicts])
        else:
            parts = []
            for verdict in group.verdicts:
                part = 0.0
                for name, weight in recipe.rewards.weights.items():
                    column = [other.scores[name] for other in group.verdicts]
                    part += weight * (verdict.scores[name] - fmean(column)) / (stdev(column) + 1e-4)
                parts.append(part)
            found.append(parts)
    if rule == "each_reward":
        every = [a for row in found for a in row]
        found = [[(a - fmean(every)) / (stdev(every) + 1e-4) for a in row] for row in found]
    return found


class NaiveToken(NamedTuple):
    row: int
    logp: float
    H: float
    A: float
    noise: float


def naive_tokens(recipe: Recipe, result: StepRows, model: Any, A: list[list[float]]) -> list[NaiveToken]:
    """All tokens of the step, in order."""
    found = []
    rows = [(group, one) for group in result.samples.groups for one in group.completions]
    for row, (group, completion) in enumerate(rows):
        full = full_logprobs(model, group.prompt_ids, completion, recipe.rollout.temperature).detach()
        for place, (token, logps) in enumerate(zip(completion.token_ids, full, strict=True)):
            a, noise = [one for of in A for one in of][row], float(result.noise_NT[row, place])
            found.append(NaiveToken(row, float(logps[token]), float(-(logps.exp() * logps).sum()), a, noise))
    return found


def naive_control(recipe: Recipe, lam: list[float], own: list[NaiveToken]) -> list[float]:
    control = recipe.objective.token_weights.control
    if control == "even":
        return [fmean(lam)] * len(lam)
    if control == "random":
        return [lam[place] for place in sorted(range(len(own)), key=lambda place: 4096 * own[place].noise % 1)]
    return lam


def naive_lambda(
    recipe: Recipe,
    forward: list[bool],
    backward: list[bool],
    A: float,
    own: list[NaiveToken],
    every: list[NaiveToken],
) -> list[float]:
    weights = recipe.objective.token_weights
    if weights.rule == "top_entropy":
        at = sorted(token.H for token in every)
        place = 0.8 * (len(at) - 1)
        tau = at[int(place)] + (place - int(place)) * (at[int(place) + 1] - at[int(place)])
        return [float(token.H >= tau - 1e-6) for token in own]
    if weights.rule == "entropy_advantage":
        return [1 + min(0.4 * token.H, abs(A) / 2) / A if A else 1.0 for token in own]
    if weights.rule == "clip_cov":
        logp, mean = fmean(token.logp for token in every), fmean(token.A for token in every)
        within = [token for token in every if 0 < (token.logp - logp) * (token.A - mean) < 100]
        drawn = sorted(within, key=lambda token: token.noise)[: int(0.2 * len(every))]
        return [float(token not in drawn) for token in own]
    weight = weights.config.get("positive", 2.0) if A > 0 else weights.config.get("negative", 0.0) if A < 0 else 1.0
    if weights.rule == "none":
        return [1.0] * len(forward)
    return [weight if f or b else 1.0 for f, b in zip(forward, backward, strict=True)]


def matrices_first(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """In the order of the optimiser's groups: vectors are spared weight decay."""
    return sorted(model.parameters(), key=lambda parameter: parameter.ndim < 2)


NEVER = "objective.filter.enabled=never"
CORRECTIONS = [
    "objective.token_weights.rule=conflict", "objective.filter={enabled: always, threshold: 2.2}",
    "objective.entropy_coef=0.1",
]  # fmt: skip
CASES = {
    "gtpo": ["objective.filter.threshold=2.2"],
    "prefix alignment": [NEVER, "objective.conflict.alignment=prefix"],
    "all positions": [NEVER, "objective.conflict.alignment=anywhere"],
    "other weights": [NEVER, "objective.token_weights.config={positive: 1.5, negative: 0.5}"],
    "filter only negative": ["objective.filter={threshold: 2.2, only_negative: true, enabled: always}"],
    "no filter, large gamma": [NEVER, "objective.entropy_coef=1.0"],
    "no filter, no gamma": [NEVER, "objective.entropy_coef=0"],
    "no std": [NEVER, "objective.advantages.config={scale: none}"],
    "mask truncated": [NEVER, "rollout.mask_truncated=true"],
    "grpo": ["objective.name=grpo"],
    "grpo with kl": ["objective.name=grpo", "objective.kl_coef=0.04"],
    "gtpo with kl and filter": ["objective.filter.threshold=2.2", "objective.kl_coef=0.5"],
    "temperature": [NEVER, "rollout.temperature=0.8"],
    "dr_grpo": ["objective.name=dr_grpo"],
    "dapo": ["objective.name=dapo"],
    "gspo": ["objective.name=gspo"],
    "cispo": ["objective.name=cispo"],
    "rloo": ["objective.name=rloo"],
    "quantile": [NEVER, "objective.advantages.rule=quantile"],
    "maximum likelihood": ["objective.name=grpo", "objective.advantages.rule=maximum_likelihood"],
    "reinforce": ["objective.name=grpo", "objective.advantages.rule=reinforce"],
    "each reward": ["objective.name=dapo", "objective.advantages.rule=each_reward"],
    "top entropy": ["objective.name=grpo", "objective.token_weights.rule=top_entropy"],
    "entropy advantage": ["objective.name=dapo", "objective.token_weights.rule=entropy_advantage"],
    "clip-cov": [
        "objective.name=grpo",
        "objective.token_weights={rule: clip_cov, config: {share: 0.2, low: 0, high: 100}}",
    ],
    "even weights": [NEVER, "objective.token_weights.control=even"],
    "random weights of the top entropies": [
        "objective.name=grpo",
        "objective.token_weights={rule: top_entropy, control: random}",
    ],
    "a loss of whole completions": [NEVER, "objective.loss.rule=test_step:whole"],  # beside tokens with lambda 0
    "gtpo's corrections on dapo": [*CORRECTIONS, "objective.name=dapo"],
    "gtpo's corrections on gspo": [*CORRECTIONS, "objective.name=gspo"],
    "gtpo's corrections on cispo": [*CORRECTIONS, "objective.name=cispo", "objective.kl_coef=0.1"],
}


@pytest.mark.parametrize("name", CASES)
def test_gradient_and_loss_equal_the_naive_specification(parts_for: Any, name: str) -> None:
    """Also whatever the micro-batch: whole groups at once, or slices of a group."""
    chosen = recipe(*CASES[name])
    before: Any = None
    for micro in (64, 4):
        parts = parts_for(chosen, micro=micro)
        untrained = copy.deepcopy(parts.policy.model)
        gradients = recorded_gradients(parts.updater)
        result = whole_step(parts, PROMPTS, seed=15, clock=Stopwatch())
        if before is None:
            before = untrained
            expected = naive_loss(chosen, result, before, parts.policy._reference, parts.initial_entropy)
            expected.backward()
            scale = max(float(p.grad.abs().max()) for p in before.parameters() if p.grad is not None)
            assert scale > 1e-4
        (update,) = result.iterations
        assert update.loss == pytest.approx(float(expected.detach()), rel=1e-5, abs=1e-6)
        (ours,) = gradients
        for gradient, theirs in zip(ours, matrices_first(before), strict=True):
            torch.testing.assert_close(gradient, theirs.grad, rtol=1e-4, atol=1e-5 * max(scale, 1e-3))
        assert all(parameter.grad is None for parameter in parts.policy.trainable_parameters())


class ForeignSampler(TransformersSampler):
    """Samples as the policy does, and says it did so with other probabilities: up to a factor of e either way."""

    def sample(self, prompts: Any, n: int, params: Any, **_: Any) -> list[list[Completion]]:
        def shifted(completion: Completion) -> Completion:
            logprobs = [
                logp + math.sin(7 * place + len(completion.token_ids)) for place, logp in enumerate(completion.logprobs)
            ]
            return replace(completion, logprobs=tuple(logprobs))

        return [[shifted(completion) for completion in row] for row in super().sample(prompts, n, params)]


@pytest.mark.parametrize("kl_coef", [0.0, 0.3])
def test_importance_correction_weighs_tokens_by_the_gap_to_the_sampler(parts_for: Any, kl_coef: float) -> None:
    chosen = recipe(NEVER, "rollout.importance_correction=truncated", f"objective.kl_coef={kl_coef}")
    for micro in (64, 4):
        parts = parts_for(chosen, micro=micro)
        parts.sampler = ForeignSampler(parts.policy)
        untrained = copy.deepcopy(parts.policy.model)
        gradients = recorded_gradients(parts.updater)
        result = whole_step(parts, PROMPTS, seed=15, clock=Stopwatch())
        expected = naive_loss(chosen, result, untrained, parts.policy._reference, parts.initial_entropy)
        expected.backward()
        (update,) = result.iterations
        assert update.loss == pytest.approx(float(expected.detach()), rel=1e-5, abs=1e-6)
        (ours,) = gradients
        for gradient, theirs in zip(ours, matrices_first(untrained), strict=True):
            torch.testing.assert_close(gradient, theirs.grad, rtol=1e-4, atol=1e-5)
        metrics = step_metrics(result, Stopwatch())
        assert 0.5 < metrics["sampler/gap_mean"] < metrics["sampler/gap_max"] < 1.01


def test_the_audit_of_a_step_adds_up_and_grpo_pulls_shared_prefixes_down(parts_for: Any) -> None:
    chosen = recipe("objective.name=grpo", "objective.audit=true")
    parts = parts_for(chosen)
    result = whole_step(parts, PROMPTS, seed=15, clock=Stopwatch())
    audit = audit_metrics(result, parts.policy.eos_token_ids)
    assert [find_metric(name).name for name in audit] == list(audit)
    shares = [value for name, value in audit.items() if name.endswith("_share")]
    assert len(shares) == 8
    assert sum(shares) == pytest.approx(1.0)
    assert audit["audit/prefix_negative_share"] > 0  # GRPO punishes what right and wrong completions share
    gtpo = parts_for(recipe(NEVER, "objective.entropy_coef=0"))
    corrected = audit_metrics(whole_step(gtpo, PROMPTS, seed=15, clock=Stopwatch()), gtpo.policy.eos_token_ids)
    assert corrected["audit/prefix_negative_share"] == corrected["audit/suffix_negative_share"] == 0.0
    assert corrected["audit/prefix_positive_share"] > audit["audit/prefix_positive_share"]


def watched(parts: StepParts) -> list[tuple[bool, list[int]]]:
    """From now on, each forward of the policy: with gradient or not, and the lengths of its completions."""
    calls: list[tuple[bool, list[int]]] = []
    original = parts.policy.token_logprobs

    def forward(rows: Any, **options: Any) -> Any:
        calls.append((torch.is_grad_enabled(), rows.mask_NT.sum(dim=1).tolist()))
        return original(rows, **options)

    parts.policy.token_logprobs = forward  # type: ignore[method-assign]
    return calls


def test_each_completion_is_measured_once_and_a_filtered_one_has_no_coefficient(parts_for: Any) -> None:
    parts = parts_for(recipe("objective.filter.threshold=2.2"), micro=1)
    calls = watched(parts)
    result = whole_step(parts, PROMPTS, seed=15, clock=Stopwatch())
    assert 0 < result.keep_N.float().mean() < 1
    assert torch.equal(result.keep_N, result.mean_entropy_N <= 2.2)
    assert result.coefficients_NT[~result.keep_N].eq(0).all()
    assert sorted(n for _, row in calls for n in row) == sorted(result.mask_NT.sum(dim=1).tolist())  # once each


@pytest.mark.parametrize(("changes", "trained_on"), [
    (["objective.entropy_coef=0"], "informative"), (["objective.entropy_coef=0.1"], "all"),
    (["objective.entropy_coef=0", "objective.kl_coef=0.1"], "all"),
])  # fmt: skip
def test_groups_without_reward_spread_train_only_where_entropy_or_kl_asks(
    parts_for: Any, changes: list[str], trained_on: str
) -> None:
    parts = parts_for(recipe(NEVER, "rewards.plugins=[{name: 'test_step:only_of_the_first_problem'}]", *changes))
    calls = watched(parts)
    result = whole_step(parts, PROMPTS, seed=15, clock=Stopwatch())
    lengths = result.by_group(result.mask_NT.sum(dim=1))
    even = (result.by_group(result.advantages_N) == 0).all(dim=1)
    assert even.tolist() == [False, True, True]
    assert result.mean_entropy_N.min() > 0  # measured all the same
    trained = sorted(n for grad, row in calls if grad for n in row)
    assert trained == sorted(
        lengths[~even].flatten().tolist() if trained_on == "informative" else lengths.flatten().tolist()
    )
    measured = sorted(n for grad, row in calls if not grad for n in row)
    assert measured == (sorted(lengths[even].flatten().tolist()) if trained_on == "informative" else [])


def test_several_iterations_keep_what_the_first_fixed_and_clip(parts_for: Any) -> None:
    chosen = recipe("objective.num_iterations=3", "optimizer.learning_rate=0.05", "objective.filter.enabled=never")
    parts = parts_for(chosen)
    before = copy.deepcopy(parts.policy.model)
    rate = parts.updater.learning_rate
    result = whole_step(parts, PROMPTS, seed=15, clock=Stopwatch())
    assert len({each.loss for each in result.iterations}) == len({each.grad_norm for each in result.iterations}) == 3
    assert {each.learning_rate for each in result.iterations} == {rate}
    assert parts.updater.learning_rate != rate  # the schedule moves once a step
    for b, group in enumerate(result.samples.groups):  # logp_old and <H> are those of the untrained weights
        for g, completion in enumerate(group.completions):
            full = full_logprobs(before, group.prompt_ids, completion, 1.0).detach()
            own = full.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0]
            measured = result.by_group(result.logprobs_NT)[b, g, : len(own)]
            torch.testing.assert_close(measured.double(), own, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("gamma", [0.0, 0.1])
def test_kl_cov_ranks_the_tokens_that_learn_alone(parts_for: Any, gamma: float) -> None:
    """Not those of filtered completions or of groups without a difference; with gamma these learn too."""
    rule = "objective.loss={rule: kl_cov, config: {share: 0.2}}"
    parts = parts_for(recipe(*CASES["gtpo"], rule, f"objective.entropy_coef={gamma}", "objective.num_iterations=2"))
    result = whole_step(parts, PROMPTS, seed=15, clock=Stopwatch())
    assert result.filtered_N.any()
    assert result.ranks_NT is not None
    assert torch.equal(result.ranks_NT <= 1, result.coefficients_NT != 0)
    assert (result.ranks_NT <= 0.2).any()


def test_groups_without_spread_are_sampled_again_with_new_prompts(parts_for: Any) -> None:
    """Only completions of problem a have rewards that differ, so groups of the others are replaced."""
    plugin = "rewards.plugins=[{name: 'test_step:only_of_the_first_problem'}]"
    chosen = recipe(NEVER, plugin, "objective.resample=3", "rewards.format.weight=0", "rewards.accuracy.weight=0")
    parts = parts_for(chosen)
    asked: list[tuple[int, int]] = []

    def more(attempt: int, count: int) -> list[Any]:
        asked.append((attempt, count))
        return [PROMPTS[0 if attempt == 1 and place == 0 else 1] for place in range(count)]

    clock = Stopwatch()
    result = whole_step(parts, PROMPTS, seed=15, clock=clock, more=more)
    assert asked == [(0, 2), (1, 2), (2, 1)]  # one of the two is problem a at the second attempt
    assert [group.problem.id for group in result.samples.groups] == ["a", "a", "b"]
    assert result.samples.discarded is not None
    assert [(problem.id, len(correct)) for problem, correct in result.samples.discarded] == [
        ("b", 6), ("c", 6), ("b", 6), ("b", 6), ("b", 6)
    ]  # fmt: skip
    assert step_metrics(result, clock)["groups/resampled_share"] == pytest.approx(5 / 8)
    kept = [verdict.correct for group in result.samples.groups for verdict in group.verdicts]
    right = [True, False, False, True, True, True]
    result.samples = replace(result.samples, discarded=[Outcome(PROMPTS[1][0], right)] * 5)
    assert step_metrics(result, clock)["train/accuracy_rate"] == pytest.approx((sum(kept) + 5 * 4) / (8 * 6))
    first, again = (group.completions for group in result.samples.groups[:2])
    assert first != again  # the second group of problem a has a seed of its own
    repeated = whole_step(parts_for(chosen), PROMPTS, seed=15, clock=Stopwatch(), more=more)
    assert repeated.samples.groups == result.samples.groups
    assert whole_step(parts, PROMPTS, seed=15, clock=Stopwatch()).samples.discarded is None


def test_metrics_are_what_their_names_say(parts_for: Any) -> None:
    parts = parts_for(recipe("objective.filter.threshold=2.2", "objective.kl_coef=0.01"))
    clock = Stopwatch()
    result = whole_step(parts, PROMPTS, seed=15, clock=clock)
    metrics = step_metrics(result, clock)
    assert [find_metric(name).name for name in metrics] == list(metrics)
    rewards = [verdict.reward for group in result.samples.groups for verdict in group.verdicts]
    tokens = [len(completion.token_ids) for group in result.samples.groups for completion in group.completions]
    mean = sum(rewards) / len(rewards)
    assert metrics["train/reward_mean"] == pytest.approx(mean)
    assert metrics["train/reward_std"] == pytest.approx(math.sqrt(sum((r - mean) ** 2 for r in rewards) / 17))
    assert metrics["completions/length_mean"] == pytest.approx(sum(tokens) / 18)
    assert metrics["rewards/test_step:letters_mean"] == pytest.approx(mean)  # format and accuracy are 0 here
    assert metrics["entropy/filtered_share"] == pytest.approx(float((result.mean_entropy_N > 2.2).float().mean()))
    assert metrics["conflict/forward_share"] == pytest.approx(int(result.forward_NT.sum()) / sum(tokens))
    written = sample_rows(result)
    for name, moved in (
        ("tokens/weighted_share", [weight != 1 for row in written for weight in row["lambda"]]),
        ("tokens/learning_share", [c != 0 for row in written for c in row["coefficient"]]),
    ):
        assert metrics[name] == pytest.approx(fmean(moved))
        assert 0 < metrics[name] < 1
    assert metrics["entropy/max"] == pytest.approx(float(result.mean_entropy_N.max()))
    assert metrics["policy/kl"] > 0
    assert 0 < metrics["sampler/gap_mean"] <= metrics["sampler/gap_max"] < 1e-4
    assert metrics["time/step"] >= metrics["time/sample"] + metrics["time/reward"] + metrics["time/train"]
    assert metrics["speed/tokens_per_second"] == pytest.approx(sum(tokens) / metrics["time/step"])


def test_samples_hold_every_token_as_the_step_saw_it(parts_for: Any) -> None:
    parts = parts_for(recipe("objective.filter.enabled=never"))
    result = whole_step(parts, PROMPTS, seed=15, clock=Stopwatch())
    rows = sample_rows(result)
    assert len(rows) == 18
    for row in rows:
        b, g = [p.id for p, _ in PROMPTS].index(row["problem"]), row["completion"]
        n = len(row["token_ids"])
        columns = ("logprobs", "entropy", "forward", "backward", "lambda", "coefficient")
        assert [len(row[key]) for key in columns] == [n] * 6
        assert row["advantage"] == float(result.by_group(result.advantages_N)[b, g])
        assert row["lambda"] == result.by_group(result.weights_NT)[b, g, :n].tolist()
        assert row["forward"] == result.spans.forward_BGT[b, g, :n].int().tolist()
        assert row["entropy"] == pytest.approx(result.by_group(result.entropy_NT)[b, g, :n].tolist(), abs=1e-6)
        c = row["advantage"] - parts.objective.entropy_coef * row["mean_entropy"]
        assert row["coefficient"] == pytest.approx([c * weight for weight in row["lambda"]], abs=1e-6)
    assert any(row["coefficient"] for row in rows)


def test_out_of_memory_in_the_middle_gives_the_same_gradient(parts_for: Any) -> None:
    """The second forward runs out of memory: the step starts over with smaller micro-batches, nothing counted twice."""
    gradients = []
    for fail in (False, True):
        parts = parts_for(recipe("objective.filter.enabled=never"), micro=12)
        original, calls = parts.policy.token_logprobs, [0]

        def limited(batch: Any, *, fail: bool = fail, calls: list[int] = calls, original: Any = original,
                    **options: Any) -> Any:  # fmt: skip
            calls[0] += 1
            if fail and calls[0] == 2:
                raise torch.OutOfMemoryError("no room")
            return original(batch, **options)

        parts.policy.token_logprobs = limited
        recorded = recorded_gradients(parts.updater)
        whole_step(parts, PROMPTS, seed=15, clock=Stopwatch())
        gradients += recorded
        assert parts.budget.limit == (6 if fail else 12)
    for plain, halved in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, halved, rtol=1e-4, atol=1e-6)


def weights(parts: StepParts) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in parts.policy.trainable_parameters()]


def spoiled_gradient(parts: StepParts) -> None:
    next(parts.policy.trainable_parameters()).register_hook(lambda gradient: gradient * math.nan)


def spoiled_forward(parts: StepParts) -> None:
    """Infinite hidden states in training only: sampling is in evaluation mode."""

    def spoil(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return output * math.inf if module.training else output

    parts.policy.model.model.norm.register_forward_hook(spoil)


@pytest.mark.parametrize("rule", ["conflict", "entropy_advantage", "top_entropy", "clip_cov"])
@pytest.mark.parametrize(
    ("spoil", "what"), [(spoiled_gradient, "the gradient"), (spoiled_forward, "a log-probability")]
)
def test_a_step_that_is_not_finite_changes_nothing(parts_for: Any, spoil: Any, what: str, rule: str) -> None:
    rules = f"objective.token_weights.rule={rule}"
    parts = parts_for(recipe("objective.num_iterations=2", "objective.filter.enabled=never", rules))
    before, rate = weights(parts), parts.updater.learning_rate
    spoil(parts)
    clock = Stopwatch()
    result = whole_step(parts, PROMPTS, seed=15, clock=clock)
    assert result.not_finite == what
    assert len(result.iterations) == 1  # the second iteration was not tried
    assert all(torch.equal(old, new) for old, new in zip(before, weights(parts), strict=True))
    assert parts.updater.optimizer.state_dict()["state"] == {}  # Adam's moments have not seen it
    assert parts.updater.learning_rate != rate  # the schedule goes on
    metrics = step_metrics(result, clock)
    assert metrics["optim/skipped"] == 1.0
    assert math.isnan(metrics["optim/grad_norm"])
    assert metrics["train/reward_mean"] > 0  # what was sampled is reported as ever
