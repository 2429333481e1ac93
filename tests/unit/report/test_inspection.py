"""Inspection of a real stored step: the reasons it gives are those of the objective's own masks."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from gtpo_cli.errors import EvaluationError
from gtpo_cli.machine.resolve import Parts
from gtpo_cli.objective import conflict_spans
from gtpo_cli.recipe import load_recipe
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.tools.report.inspection import InspectedGroup, InspectedStep, read_step
from gtpo_cli.tools.report.inspection_views import (
    headline,
    print_step,
    render,
    rules,
    summary,
    token_lines,
    visible,
)
from gtpo_cli.training.loop import train


def trained(folder: Path, *overrides: str) -> RunFolder:
    fixed = ["training.max_steps=1", "objective.initial_entropy=0.16", "rollout.prompts_per_step=6"]
    recipe = load_recipe("tiny_arithmetic", [*fixed, *overrides])
    run = RunFolder(folder)
    run.create(recipe)
    train(Parts(recipe).training_job(), run, quiet=True)
    return run


@pytest.fixture(scope="module")
def position(tmp_path_factory: pytest.TempPathFactory) -> InspectedStep:
    return read_step(trained(tmp_path_factory.mktemp("runs") / "position"))


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> InspectedStep:
    return read_step(trained(tmp_path_factory.mktemp("runs") / "prefix", "objective.conflict.alignment=prefix"))


def spans(group: InspectedGroup, alignment: str) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(len(completion.tokens) for completion in group.completions)
    ids = torch.zeros(1, len(group.completions), longest, dtype=torch.long)
    mask = torch.zeros_like(ids, dtype=torch.bool)
    for row, completion in enumerate(group.completions):
        ids[0, row, : len(completion.tokens)] = torch.tensor([token.id for token in completion.tokens])
        mask[0, row, : len(completion.tokens)] = True
    advantages = torch.tensor([[completion.advantage for completion in group.completions]])
    found = conflict_spans(ids, mask, advantages, alignment=alignment)  # type: ignore[arg-type]
    return found.forward_BGT[0], found.backward_BGT[0]


@pytest.mark.parametrize("alignment", ["position", "prefix"])
def test_a_token_is_in_a_span_exactly_where_all_tokens_up_to_it_have_partners(
    alignment: str, request: pytest.FixtureRequest
) -> None:
    step: InspectedStep = request.getfixturevalue(alignment)
    marked = 0
    for group in step.groups:
        forward, backward = spans(group, alignment)
        for row, completion in enumerate(group.completions):
            length = len(completion.tokens)
            ahead = [bool(group.partners(completion, p, alignment, backward=False)) for p in range(length)]
            behind = [bool(group.partners(completion, p, alignment, backward=True)) for p in range(length)]
            for place, token in enumerate(completion.tokens):
                assert token.forward == bool(forward[row, place]) == all(ahead[: place + 1])
                assert token.backward == bool(backward[row, place]) == all(behind[place:])
                marked += token.forward + token.backward
    assert marked > 50


def test_the_reasons_say_who_shares_it_and_where(position: InspectedStep) -> None:
    seen = set()
    for group in position.groups:
        for completion in group.completions:
            reasons = group.reasons(completion, position.objective)
            for place, (token, why) in enumerate(zip(completion.tokens, reasons, strict=True)):
                if completion.advantage == 0:
                    assert why.startswith("A = 0")
                elif token.weight == 1:
                    assert "is not" in why or re.fullmatch(r"no (punished|rewarded) completion has it here", why)
                else:
                    numbers = [int(n) for n in re.findall(r"\d+", why.split("with ")[1].split(" from")[0])][:-1]
                    assert numbers, why
                    assert all(group.completions[n - 1].advantage * completion.advantage < 0 for n in numbers)
                    distance = place if "from the start" in why else len(completion.tokens) - 1 - place
                    assert f"{distance} from the" in why
                seen.add((token.weight, why.split()[0]))
    assert {weight for weight, _ in seen} == {0.0, 1.0, 2.0}


def test_coefficients_are_those_that_training_stored(position: InspectedStep) -> None:
    """c = delta (A - gamma <H>) lambda, against the row's own figures; and it is what the views show."""
    rows = [json.loads(line) for line in (position.run.samples / "step-000001.jsonl").read_text().splitlines()]
    completions = [completion for group in position.groups for completion in group.completions]
    seen = set()
    for row, completion in zip(rows, completions, strict=True):
        of_completion = row["kept"] * (row["advantage"] - 0.1 * row["mean_entropy"])
        expected = [of_completion * weight for weight in row["lambda"]]
        assert [token.coefficient for token in completion.tokens] == row["coefficient"]
        assert row["coefficient"] == pytest.approx(expected, abs=2e-6)
        assert f"c {min(expected):+z.3f} to {max(expected):+z.3f}; {len(expected)} tokens" in headline(completion)
        seen |= {weight for weight, c in zip(row["lambda"], expected, strict=True) if c}
    assert seen == {1.0, 2.0}
    assert 0 in {row["kept"] for row in rows} or len(seen) == 2
    group = position.choose(None)[0]
    assert group.informative
    rewards = torch.tensor([completion.reward for completion in group.completions])
    assert group.reward_mean == pytest.approx(float(rewards.mean()))
    assert group.reward_std == pytest.approx(float(rewards.std()), rel=1e-6)
    for completion in group.completions:
        expected = (completion.reward - rewards.mean()) / (rewards.std() + 1e-4)
        assert completion.advantage == pytest.approx(float(expected), rel=1e-5)


def plain(step: InspectedStep, *, width: int = 100) -> str:
    stream = StringIO()
    print_step(Console(file=stream, width=width, color_system=None), step, step.choose("all"))
    return stream.getvalue()


def test_without_colour_the_marks_carry_the_spans(position: InspectedStep) -> None:
    text = plain(position)
    assert "lambda in conflict spans: 0 where A < 0, 2 where A > 0 (position alignment); 1 elsewhere" in text
    assert "filter on: <H>_ini = 0.1600" in text
    completion = next(c for c in position.choose(None)[0].completions if any(c.forward) and any(c.backward))
    tokens, marks = (str(line) for line in list(token_lines(completion, 500)))
    cells = [token.mark * len(visible(token.text)) for token in completion.tokens]
    assert marks == ("  " + "".join(cells)).rstrip()
    assert tokens == "  " + "".join(visible(token.text) for token in completion.tokens)
    assert tokens in text.replace("\r", "") or len(tokens) > 98


def test_control_characters_are_signs() -> None:
    assert visible("a\nb\tc") == "a⏎b⇥c"
    assert visible("\x1b[31m") == "␛[31m"
    assert visible("") == "∅"


def test_it_begins_in_words_with_the_problem_whose_rewards_differ_most(position: InspectedStep) -> None:
    rewards = [[0, 0, 0, 11], [5, 5, 5, 5], [0, 11, 11, 0]]  # deviations 5.5, 0, 6.35
    groups = [
        InspectedGroup(
            number,
            [
                replace(position.groups[0].first, completion=place, reward=float(reward), correct=reward > 5,
                        advantage=reward - sum(row) / 4)
                for place, reward in enumerate(row)
            ],
        )
        for number, row in enumerate(rewards, start=1)
    ]  # fmt: skip
    step = replace(position, groups=groups)
    assert step.choose(None) == [groups[2]]
    said = f"In step 1 of {step.run.path}, 3 of 12 answers to 3 problems were right. "
    assert summary(step) == (
        f"{said}Rewards differed in 2 of the problems, most in problem 3; the others preferred no answer."
    )
    assert plain(step, width=500).startswith(summary(step))
    assert f"<p>{summary(step)}</p>" in render(step)
    equal = replace(step, groups=[groups[1]])
    assert summary(equal).endswith(" no answer was preferred to another.")
    assert summary(replace(step, groups=[groups[0]])).startswith(f"In step 1 of {step.run.path}, 1 of 4 answers to")
    assert "1 problem was right. Within each problem the rewards differed" in summary(replace(step, groups=[groups[0]]))


def test_what_a_group_taught_follows_its_advantages(position: InspectedStep) -> None:
    first = position.groups[0].first

    def remark(*pairs: tuple[float, float]) -> str:
        return InspectedGroup(1, [replace(first, reward=reward, advantage=A) for reward, A in pairs]).remark

    assert remark((5, 0), (5, 0)) == "all rewards are equal, so every A is 0 and nothing conflicts"
    assert remark((5, 0), (9, 0)) == "every A is 0 and nothing conflicts"  # two right answers, with positive: 0
    assert remark((5, -1), (5, -1)) == ""  # two wrong ones, without a baseline


def test_rules_that_are_not_grpos_are_named(position: InspectedStep) -> None:
    changes = ["objective.advantages={rule: quantile, config: {k: 0.5}}", "objective.loss.rule=sequence"]
    objective = load_recipe("tiny_arithmetic", changes).objective
    lines = rules(replace(position, objective=objective))
    assert lines[:3] == ["objective gtpo", "A of the rule quantile with k 0.5", "loss of the rule sequence"]


def test_identical_completions_are_shown_once_with_their_number(position: InspectedStep) -> None:
    first = position.groups[0].first
    other = replace(first, completion=1, token_ids=[*first.token_ids[:-1], first.token_ids[-1] + 1])
    rows = [first, other, replace(first, completion=2), replace(first, completion=3, reward=first.reward + 1),
            replace(first, completion=4)]  # fmt: skip
    group = InspectedGroup(1, rows)
    assert [[one.number for one in same] for same in group.folded()] == [[1, 3, 5], [2], [4]]
    step = replace(position, groups=[group])
    shown = re.findall(r"^#\d.*?  reward", plain(step, width=500), re.MULTILINE)
    assert shown == ["#1 (x 3, with #3, #5)  reward", "#2  reward", "#4  reward"]
    assert re.findall(r"<p>(#\d.*?)  reward", render(step)) == ["#1 (x 3, with #3, #5)", "#2", "#4"]


class Titles(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tokens: list[tuple[str, str, str]] = []
        self.tags: set[str] = set()
        self._open: tuple[str, str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        attributes = dict(attrs)
        if tag == "span" and "title" in attributes:
            self._open = (attributes.get("class") or "", attributes["title"] or "")

    def handle_data(self, data: str) -> None:
        if self._open is not None:
            self.tokens.append((*self._open, data))
            self._open = None


def test_the_page_holds_every_token_with_its_figures(position: InspectedStep) -> None:
    reader = Titles()
    page = render(position)
    reader.feed(page)
    tokens = [token for group in position.groups for same in group.folded() for token in same[0].tokens]
    assert [text for *_, text in reader.tokens] == [visible(token.text) for token in tokens]
    for (classes, title, _), token in zip(reader.tokens, tokens, strict=True):
        names = set(classes.split())
        assert ("less" in names, "more" in names) == (token.weight < 1, token.weight > 1)
        assert ("f" in names, "b" in names) == (token.forward, token.backward)
        assert f"lambda {token.weight:g}, ln p {token.logprob:z.4f}, entropy {token.entropy:.4f} nats" in title
        assert f", c {token.coefficient:+z.4f}\n" in title
    assert "script" not in reader.tags
    assert not re.search(r'(src|href)="(?!#)', page)


def test_switches_are_said_truly(tmp_path: Path) -> None:
    grpo = read_step(trained(tmp_path / "grpo", "objective.name=grpo"))
    assert {token.weight for g in grpo.groups for c in g.completions for token in c.tokens} == {1.0}
    assert "no rule for token weights: lambda is 1 everywhere" in plain(grpo)
    reasons = grpo.groups[0].reasons(grpo.groups[0].completions[0], grpo.objective)
    assert set(reasons) == {"no rule for token weights: every lambda is 1"}
    gentle = read_step(trained(tmp_path / "gentle", "objective.token_weights.config={positive: 1.5, negative: 0.5}"))
    assert "lambda in conflict spans: 0.5 where A < 0, 1.5 where A > 0" in plain(gentle)
    rule = "objective.token_weights={rule: top_entropy, config: {share: 0.5}, control: even}"
    other = read_step(trained(tmp_path / "other", rule))
    said = "the rule top_entropy{}, its weights spread evenly over each completion"
    assert f"lambda of {said.format(' with share 0.5')}" in plain(other)
    assert set(other.groups[0].reasons(other.groups[0].completions[0], other.objective)) == {said.format("")}


def test_what_is_not_there(position: InspectedStep, tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="step 2 was not stored; choose from 1"):
        read_step(position.run, 2)
    with pytest.raises(EvaluationError, match="has no problem 99; choose 1 to 6: arithmetic/train/"):
        position.choose("99")
    assert position.choose(position.groups[3].first.problem) == [position.groups[3]] == position.choose("4")
    sft = RunFolder(tmp_path / "sft")
    sft.create(load_recipe("tiny_gsm8k_sft"))
    with pytest.raises(EvaluationError, match="SFT samples nothing"):
        read_step(sft)
    (sft.samples).mkdir()
    whole = (position.run.samples / "step-000001.jsonl").read_text().splitlines()[0]
    (sft.samples / "step-000001.jsonl").write_text(f"{whole}\nnot json\n")
    with pytest.raises(EvaluationError, match=r"step-000001\.jsonl:2: is not a stored completion"):
        read_step(sft)
    (sft.samples / "step-000001.jsonl").write_text('{"completion": 0, "problem": "a"}\n')
    with pytest.raises(EvaluationError, match=r"jsonl:1: is not a stored completion \(question: Field required\)"):
        read_step(sft)
