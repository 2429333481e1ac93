"""<H>_ini against full logits, one completion at a time, on the built-in model."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from jobs import policy_of

from gtpo_cli.cli.probe_entropy import _of_the_right
from gtpo_cli.data import Prompt, PromptEncoder
from gtpo_cli.estimators import Interval
from gtpo_cli.evaluation.probe import EntropyProbe, mean_entropies, probe_entropy, undecided
from gtpo_cli.objective import Rows
from gtpo_cli.policy.packing import measuring_budget
from gtpo_cli.policy.sampler import SamplingParams, sample
from gtpo_cli.policy.transformers_policy import TransformersPolicy
from gtpo_cli.policy.transformers_sampler import TransformersSampler
from gtpo_cli.recipe import Recipe, load_recipe
from gtpo_cli.seeds import derive_seed
from gtpo_cli.tasks.making import arithmetic_problems

RECIPE = load_recipe("tiny_arithmetic", ["objective.probe.num_prompts=20", "rollout.temperature=0.9"])


@pytest.fixture(scope="module")
def policy() -> TransformersPolicy:
    loaded = policy_of(RECIPE)
    assert isinstance(loaded, TransformersPolicy)
    return loaded


def prompts_for(policy: TransformersPolicy, recipe: Recipe = RECIPE, count: int = 30) -> list[Prompt]:
    encoder = PromptEncoder(policy.tokenizer, recipe.data.system_prompt)
    return [(p, encoder.encode(p.question)) for p in arithmetic_problems(count, split="train", seed=recipe.seed)]


@torch.no_grad()
def test_mean_entropies_equal_full_logits_on_the_first_problems(policy: TransformersPolicy) -> None:
    prompts = prompts_for(policy)
    sampler = TransformersSampler(policy)
    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))

    probe = probe_entropy(policy, sampler, prompts[:20], RECIPE.rollout, RECIPE.seed, n=2, progress=progress)
    assert seen == [(done, 20) for done in range(21)]
    assert [group.problem for group in probe.groups] == [problem for problem, _ in prompts[:20]]
    assert {len(group.completions) for group in probe.groups} == {2}
    expected = []
    for start in (0, 16):  # sixteen prompts share a seed
        block = prompts[:20][start : start + 16]
        params = SamplingParams(0.9, max_completion_tokens=64, seed=derive_seed(RECIPE.seed, "probe", start))
        for (_, ids), row in zip(block, sampler.sample([ids for _, ids in block], 2, params), strict=True):
            for completion in row:
                logits = policy.model(input_ids=torch.tensor([[*ids, *completion.token_ids]])).logits[0]
                logp = torch.log_softmax(logits[len(ids) - 1 : -1].double() / 0.9, dim=-1)
                expected.append(float((-(logp.exp() * logp).sum(-1)).mean()))
    values = [value for group in probe.by_prompt for value in group]
    assert values == pytest.approx(expected, rel=1e-5)
    assert probe.initial_entropy == pytest.approx(sum(expected) / 40, rel=1e-6)
    assert probe.interval.low < probe.initial_entropy < probe.interval.high


def test_a_probe_changes_nothing_that_training_draws_from(policy: TransformersPolicy) -> None:
    state = torch.get_rng_state()
    before = [parameter.clone() for parameter in policy.trainable_parameters()]
    prompts = prompts_for(policy)
    first = probe_entropy(policy, TransformersSampler(policy), prompts[:20], RECIPE.rollout, RECIPE.seed, n=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(before, policy.trainable_parameters(), strict=True))
    assert probe_entropy(policy, TransformersSampler(policy), prompts[:20], RECIPE.rollout, RECIPE.seed, n=2) == first


def test_what_was_learned_about_memory_outlives_a_call(
    policy: TransformersPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only forwards that ran out of memory are computed twice, whatever was measured before and comes after them."""
    monkeypatch.setattr(policy, "measuring", measuring_budget())
    policy.measuring.limit = 1000
    problems = prompts_for(policy)[:12]
    groups = sample(TransformersSampler(policy), problems, 4, SamplingParams(max_completion_tokens=40, seed=1))
    room, failed = 300, []
    computed: Counter[tuple[int, ...]] = Counter()
    forward = policy.token_logprobs

    def little_room(rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        if int(rows.mask_NT.sum()) > room:
            failed.append(int(rows.mask_NT.sum()))
            raise torch.OutOfMemoryError("as on a GPU")
        computed.update(tuple(ids[mask].tolist()) for ids, mask in zip(rows.ids_NT, rows.mask_NT, strict=True))
        return forward(rows)

    monkeypatch.setattr(policy, "token_logprobs", little_room)
    with pytest.warns(RuntimeWarning, match="out of memory"):
        found = [row for start in (0, 4, 8) for row in mean_entropies(policy, groups[start : start + 4])]
    assert len(failed) == 1  # not once a call
    assert computed == Counter(completion.token_ids for group in groups for completion in group.completions)
    monkeypatch.undo()
    assert found == [pytest.approx(row, rel=1e-5) for row in mean_entropies(policy, groups)]


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.0, "nothing to learn from"),
        (0.01, "the seed mattered more than the method"),
        (0.09, "the seed mattered more than the method"),
        (0.1, "GTPO taught nothing that GRPO did not"),
        (0.5, "GTPO taught nothing that GRPO did not"),
    ],
)
def test_what_the_command_says_of_the_share_that_is_right(share: float, words: str) -> None:
    assert words in _of_the_right(share)


def measured(estimate: float, half: float, prompts: int = 20) -> EntropyProbe:
    return EntropyProbe(((estimate,),) * prompts, Interval(estimate, estimate - half, estimate + half), 0.0, 9.0, ())


@pytest.mark.parametrize(
    ("estimate", "half", "words"),
    [
        (0.65, 0.25, "20 prompts cannot tell whether the entropy filter should be on; about 680 would tell"),
        (0.593, 0.11, "about 25 would tell"),  # 20 (0.11 / 0.1)^2 = 24.2
        (0.69, 0.05, "more would hardly tell"),
    ],
)
def test_an_interval_that_holds_ln_2_says_how_many_prompts_would_tell(estimate: float, half: float, words: str) -> None:
    said = undecided(measured(estimate, half), "auto")
    assert said is not None
    assert "ln 2 = 0.693 lies inside the interval" in said
    assert words in said
    assert undecided(measured(estimate, half), "never") is None


def test_an_interval_beside_ln_2_decides() -> None:
    assert undecided(measured(0.5, 0.19), "auto") is None
    assert undecided(measured(0.9, 0.2), "auto") is None
