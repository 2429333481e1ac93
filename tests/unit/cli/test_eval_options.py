"""Options and overrides that would change nothing are refused, not taken in silence."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gtpo_cli.cli.app import app
from gtpo_cli.cli.eval_options import NOT_READ, check_read, with_options
from gtpo_cli.errors import GtpoError, RecipeError
from gtpo_cli.recipe import load_recipe, overridden_keys
from gtpo_cli.recipe.schema import Recipe
from gtpo_cli.recipe.section import fields_of

TINY = ["eval", "builtin:tiny"]


def test_the_keys_inside_a_mapping_are_found() -> None:
    assert overridden_keys(["a.b=1", "data={split: x, columns: {question: q}}", "evaluation={}", "broken=[", "=1"]) == [
        "a.b", "data.split", "data.columns.question", "evaluation", "",
    ]  # fmt: skip
    assert NOT_READ.keys() <= fields_of(Recipe).keys()


@pytest.mark.parametrize("key", NOT_READ)
def test_a_key_that_an_evaluation_does_not_read_is_refused(key: str) -> None:
    section, _, name = key.rpartition(".")
    for override in (f"{key}=1", f"{section}={{{name}: 1}}"):
        with pytest.raises(RecipeError, match=f"--set {key}: gtpo eval does not read it; "):
            check_read(overridden_keys([override]), {})


@pytest.mark.parametrize(
    ("option", "value", "override"),
    [
        ("--benchmark", "arithmetic", "evaluation.benchmarks=[gsm8k]"),
        ("--pass-k", "2", "evaluation.pass_k=[1]"),
        ("--maj-k", "4", "evaluation={majority_k: [4]}"),
        ("--limit", "3", "evaluation.limit=4"),
        ("--temperature", "0", "evaluation.temperature=1"),
    ],
)
def test_what_is_said_twice_is_refused(option: str, value: str, override: str) -> None:
    result = CliRunner().invoke(app, [*TINY, option, value, "--set", override])
    assert isinstance(result.exception, RecipeError)
    assert "an option sets it too; leave one of them out" in str(result.exception)


def test_samples_that_are_asked_for_are_sampled() -> None:
    """pass@2 of 8 completions has less spread than of 2."""
    recipe = load_recipe("tiny_arithmetic", ["evaluation.samples=8"])
    asked = with_options(recipe, None, "2", None, None, samples_given=True).evaluation
    assert (asked.samples, asked.pass_k, asked.majority_k) == (8, (1, 2), (4, 8))
    assert with_options(recipe, None, "2", None, None).evaluation.samples == 2
    with pytest.raises(RecipeError, match=r"k = 16 needs 16 completions of each problem, but evaluation\.samples is 8"):
        with_options(recipe, None, "16", None, None, samples_given=True)


@pytest.mark.parametrize("asked", ["recipe", "option"])
def test_temperature_0_is_greedy_with_one_completion(asked: str) -> None:
    many = ["evaluation={samples: 16, pass_k: [1, 16], majority_k: [4, 16]}"]
    if asked == "recipe":
        settings = load_recipe("tiny_arithmetic", [*many, "evaluation.temperature=0"]).evaluation
    else:
        settings = with_options(load_recipe("tiny_arithmetic", many), None, None, None, None, 0.0).evaluation
    assert (settings.temperature, settings.samples, settings.pass_k, settings.majority_k) == (0.0, 1, (1,), ())


@pytest.mark.parametrize(
    ("override", "why"),
    [
        ("rollout.temperature=0", "the completions of a group would all be the same"),
        ("evaluation.temperature=1e-9", r"should be at least 1e-06, or 0 for greedy sampling"),
        ("evaluation.temperature=-1", "greater than or equal to 0"),
    ],
)
def test_other_temperatures_are_refused_with_the_reason(override: str, why: str) -> None:
    with pytest.raises(RecipeError, match=f"{override.partition('=')[0]}: .*{why}"):
        load_recipe("tiny_arithmetic", [override])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*TINY, "-b", "arithmetic", "--data-path", "mine.jsonl"], "arithmetic: is generated, so mine.jsonl would not"),
        ([*TINY, "-b", "gsm8k", "-b", "math", "--data-path", "mine.jsonl"], "would be read as gsm8k and as math"),
        ([*TINY, "-b", "gsm8k", "-b", "math", "--data-path", "."], "would be read as gsm8k and as math"),
        ([*TINY, "--data-path", "mine.jsonl", "--split", "dev"], "mine.jsonl is not a folder, so it has no splits"),
        ([*TINY, "--set", "data.columns.question=q"], "data.columns: arithmetic has its own columns"),
        ([*TINY, "--set", "data.path=mine.jsonl"], "arithmetic is generated; remove data.path"),
        ([*TINY, "--checkpoint", "5"], "only a run has checkpoints"),
        (["generate", "builtin:tiny", "1+1", "--greedy", "--temperature", "0.5"], "--greedy takes the likeliest token"),
        (["generate", "builtin:tiny", "1+1", "--greedy", "--top-p", "0.5"], "--greedy takes the likeliest token"),
        (["generate", "builtin:tiny", "1+1", "--base", "--checkpoint", "5"], "--base asks the untrained model"),
        (["train", "--resume", "runs/x", "--dry-run"], "--dry-run is for a new run"),
        (["train", "--resume", "runs/x", "--name", "y"], "a resumed run keeps its name"),
        (["train", "--dry-run", "--set", "data.columns.answer=a"], "data.columns: arithmetic has its own columns"),
        (["train", "--dry-run", "--set", "data={benchmark: local, path: mine.jsonl, split: dev}"], "data.split: dev"),
    ],
)  # fmt: skip
def test_what_would_be_ignored_is_refused(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.jsonl").write_text('{"question": "1+1", "answer": "2"}\n')
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code != 0
    said = str(result.exception) if isinstance(result.exception, GtpoError) else result.output
    assert words in " ".join(said.replace("│", " ").split())
