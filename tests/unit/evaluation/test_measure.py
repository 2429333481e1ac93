"""An evaluation of the built-in model: interrupted anywhere it ends as if it were not; finished, it is only read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from jobs import policy_of, sampler_of, subject_of

from gtpo_cli.data.prompts import PromptEncoder
from gtpo_cli.data.unseen import Benchmark, load_benchmark
from gtpo_cli.errors import DataError
from gtpo_cli.evaluation import measure
from gtpo_cli.evaluation.loading import PolicyAndSampler
from gtpo_cli.evaluation.measure import evaluate, find_evaluation, measured_entropies
from gtpo_cli.evaluation.store import Results, StoredEvaluation
from gtpo_cli.policy.loading import read_model
from gtpo_cli.policy.transformers_policy import TransformersPolicy
from gtpo_cli.recipe import Recipe, load_recipe
from gtpo_cli.recipe.schema import EvaluationRecipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.runs.checkpoints import Checkpoint
from gtpo_cli.runs.folder import RunFolder

# 64 completions a problem: four problems are sampled at once, so ten problems are three blocks
SETTINGS = "evaluation={samples: 64, limit: 10, max_completion_tokens: 48}"
RECIPE = load_recipe("tiny_arithmetic", [SETTINGS])


def encoder_of(tokenizer: Any) -> PromptEncoder:
    return PromptEncoder(tokenizer, RECIPE.data.system_prompt)


@pytest.fixture(scope="module")
def subject() -> PolicyAndSampler:
    policy = policy_of(RECIPE)
    return PolicyAndSampler(policy, sampler_of(policy, RECIPE))


@pytest.fixture(scope="module")
def benchmark_(subject: PolicyAndSampler) -> Benchmark:
    return load_benchmark(RECIPE, "arithmetic", encoder_of(subject.policy.tokenizer), max_seq_length=512)


@pytest.fixture(scope="module")
def scorer() -> Iterator[Scorer]:
    with Scorer(RECIPE.rewards) as scorer:
        yield scorer


@pytest.fixture(scope="module")
def whole(
    subject: PolicyAndSampler, benchmark_: Benchmark, scorer: Scorer, tmp_path_factory: pytest.TempPathFactory
) -> tuple[StoredEvaluation, Results]:
    """An evaluation that nothing interrupted."""
    stored = find_evaluation(RunFolder(tmp_path_factory.mktemp("whole")), benchmark_, subject_of(RECIPE))
    return stored, evaluated(RECIPE, lambda: subject, benchmark_, stored, scorer)


def evaluated(recipe: Recipe, *arguments: Any, **options: Any) -> Results:
    return evaluate(recipe.evaluation, *arguments, seed=recipe.seed, **options)


def nothing_to_load() -> PolicyAndSampler:
    raise AssertionError("a finished evaluation was about to be sampled")


def test_scores_are_those_of_the_stored_completions(whole: tuple[StoredEvaluation, Results]) -> None:
    stored, results = whole
    rows = [json.loads(line) for line in stored.samples_file.read_text().splitlines()]
    assert [row["id"] for row in rows] == list(results.problem_ids)
    assert all(len(row["completions"]) == 64 for row in rows)
    for row, accuracy in zip(rows, results.scores["pass@1"].values, strict=True):
        right = 0
        for completion in row["completions"]:
            sums = completion["text"].partition("<answer>")[2].partition("</answer>")[0]
            well_formed = all(completion["text"].count(tag) == 1 for tag in ("<answer>", "</answer>", "<reasoning>"))
            right += well_formed and completion["text"].count("</reasoning>") == 1 and sums == row["gold"]
        assert accuracy == pytest.approx(right / 64)
    assert 0.2 < results.scores["accuracy"].interval.estimate < 0.8  # the built-in model is half right
    assert results.scores["pass@64"].interval.estimate > results.scores["pass@1"].interval.estimate
    assert stored.results() == results


def test_a_sample_of_entropies_changes_no_other_score(
    whole: tuple[StoredEvaluation, Results], subject: PolicyAndSampler, benchmark_: Benchmark, scorer: Scorer,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Of the first completions of each problem, also where the evaluation was killed."""
    monkeypatch.setattr(measure, "_ENTROPIES", 19)  # of ten problems: two each
    stored = find_evaluation(RunFolder(tmp_path), benchmark_, subject_of(RECIPE))
    results = evaluated(RECIPE, lambda: subject, benchmark_, stored, scorer)
    all_entropies = {problem.id: problem.entropies for problem in whole[0].problems()}
    for problem in stored.problems():
        assert [c.mean_entropy is None for c in problem.completions] == [False] * 2 + [True] * 62
        assert problem.entropies == pytest.approx(all_entropies[problem.id][:2], rel=1e-5)
    ours, theirs = results.scores.pop("mean_entropy"), dict(whole[1].scores)
    assert ours.values == pytest.approx([fmean(all_entropies[name][:2]) for name in results.problem_ids], rel=1e-5)
    del theirs["mean_entropy"]
    assert results.scores == theirs


def test_how_many_entropies_are_measured() -> None:
    def of(problems: int, **settings: Any) -> int:
        return measured_entropies(EvaluationRecipe(**settings), problems)

    assert [of(30), of(1319), of(500), of(1)] == [35, 1, 3, 64]  # of 64: about a thousand in all
    assert of(1319, entropy="all") == 64
    assert of(30, samples=4) == 4


@torch.no_grad()
def test_mean_entropy_equals_full_logits(whole: tuple[StoredEvaluation, Results], subject: PolicyAndSampler) -> None:
    policy = subject.policy
    assert isinstance(policy, TransformersPolicy)
    stored, _ = whole
    checked = 0
    for problem in stored.problems()[:3]:
        prompt = policy.tokenizer.apply_chat_template(
            [{"role": "user", "content": problem.question}], add_generation_prompt=True
        )["input_ids"]
        for completion in problem.completions[:5]:
            if completion.truncated:
                continue
            ids = policy.tokenizer(completion.text, add_special_tokens=False)["input_ids"] + [2]
            assert len(ids) == completion.tokens
            logits = policy.model(input_ids=torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1].double()
            logp = torch.log_softmax(logits, dim=-1)
            assert completion.mean_entropy == pytest.approx(float(-(logp.exp() * logp).sum(-1).mean()), rel=1e-5)
            checked += 1
    assert checked > 5


class Killed(BaseException):
    """Not an Exception, as a signal is none."""


@pytest.mark.parametrize(("blocks", "cut"), [(1, 0), (2, 0), (1, 7), (2, 5000), (3, 30_000)])
def test_an_interrupted_evaluation_continues_to_the_same_bytes(
    whole: tuple[StoredEvaluation, Results],
    subject: PolicyAndSampler,
    benchmark_: Benchmark,
    scorer: Scorer,
    tmp_path: Path,
    blocks: int,
    cut: int,
) -> None:
    """Killed after some blocks of problems; `cut` bytes of the last one never reached the disk."""
    stored = find_evaluation(RunFolder(tmp_path), benchmark_, subject_of(RECIPE))

    def kill(done: int, total: int) -> None:
        if stored.samples_file.exists() and stored.samples_file.read_bytes().count(b"\n") >= min(4 * blocks, total):
            raise Killed

    with pytest.raises(Killed):
        evaluated(RECIPE, lambda: subject, benchmark_, stored, scorer, progress=kill)
    os.truncate(stored.samples_file, stored.samples_file.stat().st_size - cut)
    assert not stored.finished
    results = evaluated(RECIPE, lambda: subject, benchmark_, stored, scorer)
    assert results == whole[1]
    assert stored.samples_file.read_bytes() == whole[0].samples_file.read_bytes()
    assert stored.results_file.read_bytes() == whole[0].results_file.read_bytes()


def test_a_finished_evaluation_is_not_sampled_again_unless_asked(
    whole: tuple[StoredEvaluation, Results], subject: PolicyAndSampler, benchmark_: Benchmark, scorer: Scorer
) -> None:
    stored, results = whole
    before = stored.samples_file.read_bytes()
    assert evaluated(RECIPE, nothing_to_load, benchmark_, stored, scorer) == results
    stored.results_file.unlink()  # killed before the scores were written
    assert evaluated(RECIPE, nothing_to_load, benchmark_, stored, scorer) == results
    with pytest.raises(AssertionError, match="about to be sampled"):
        evaluated(RECIPE, nothing_to_load, benchmark_, stored, scorer, again=True)
    assert evaluated(RECIPE, lambda: subject, benchmark_, stored, scorer, again=True) == results
    assert stored.samples_file.read_bytes() == before


def test_what_is_sampled_for_a_block_does_not_depend_on_the_limit(
    whole: tuple[StoredEvaluation, Results], subject: PolicyAndSampler, scorer: Scorer, tmp_path: Path
) -> None:
    settings = RECIPE.evaluation.model_copy(update={"limit": 4})
    recipe = RECIPE.model_copy(update={"evaluation": settings})
    first = load_benchmark(recipe, "arithmetic", encoder_of(subject.policy.tokenizer), max_seq_length=512)
    stored = find_evaluation(RunFolder(tmp_path), first, subject_of(recipe))
    assert stored.path.name != whole[0].path.name
    evaluated(recipe, lambda: subject, first, stored, scorer)
    assert stored.problems() == whole[0].problems()[:4]


@pytest.mark.parametrize(
    ("change", "decisive"),
    [
        ("model.revision=v2", True),
        ("model.dtype=bfloat16", True),
        ("model.max_seq_length=100", True),
        ("rewards.length.weight=1", True),
        ("rewards.format.mode=presence", True),
        ("rewards.accuracy.equality=text", True),
        ("data.system_prompt=Think.", True),
        ("evaluation.top_p=0.9", True),
        ("seed=5", True),
        ("rewards.accuracy.weight=3", False),
        ("evaluation.pass_k=[1]", False),
        ("model.gradient_checkpointing=true", False),
        ("training.epochs=9", False),
    ],
)
def test_what_changes_scores_has_an_evaluation_of_its_own(
    benchmark_: Benchmark, tmp_path: Path, change: str, decisive: bool
) -> None:
    run = RunFolder(tmp_path)
    before = find_evaluation(run, benchmark_, subject_of(RECIPE))
    after = find_evaluation(run, benchmark_, subject_of(load_recipe("tiny_arithmetic", [SETTINGS, change])))
    key = change.partition("=")[0].removeprefix("evaluation.")
    differ = [name for name, *_ in before.conditions.differences(after.conditions, "grader")]
    assert [name.startswith(key) or name == "rollout.max_completion_tokens" for name in differ] == [True] * len(differ)
    assert bool(differ) is (after.path != before.path) is decisive


def test_other_rewards_and_another_grader_have_an_evaluation_of_their_own(
    benchmark_: Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's reward, its file after a change, another math-verify, other code of gtpo's."""
    own = tmp_path / "mine.py"
    own.write_text("import functools\ngood = functools.partial(lambda x, problem, completion: x, 1.0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    recipe = load_recipe("tiny_arithmetic", [SETTINGS, "rewards.plugins=[{name: 'mine:good'}]"])
    found = [find_evaluation(RunFolder(tmp_path), benchmark_, subject_of(one)) for one in (RECIPE, recipe)]
    own.write_text("import functools\ngood = functools.partial(lambda x, problem, completion: x, 2.0)\n")
    found.append(find_evaluation(RunFolder(tmp_path), benchmark_, subject_of(recipe)))
    monkeypatch.setattr(measure, "version", lambda name: "0.0")
    found.append(find_evaluation(RunFolder(tmp_path), benchmark_, subject_of(recipe)))
    monkeypatch.setattr(measure.grader, "__file__", str(tmp_path / "__init__.py"))
    found.append(find_evaluation(RunFolder(tmp_path), benchmark_, subject_of(recipe)))
    assert len({each.path for each in found}) == 5
    without, before, after, *graded = (each.conditions for each in found)
    assert before.differences(without) == []
    assert [name for name, *_ in before.differences(after)] == ["rewards.plugins.mine:good"]
    assert [[name for name, *_ in after.differences(each)] for each in graded] == [["grader"], ["grader"]]


@pytest.mark.parametrize("adapter", [False, True])
def test_local_weights_are_told_apart_by_their_content(tmp_path: Path, adapter: bool) -> None:
    base = subject_of(RECIPE)
    for name in ("one", "copy", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_text("weights 2" if name == "other" else "weights 1")
        (tmp_path / name / "README.md").write_text(name)

    def digest(name: str) -> str:
        recipe = RECIPE if adapter else RECIPE.with_values({"model.name": str(tmp_path / name)})
        model = base.job.model if adapter else replace(base.job.model, path=str(tmp_path / name))
        checkpoint = Checkpoint(3, tmp_path, name) if adapter else None
        return replace(base, job=replace(base.job, recipe=recipe, model=model), checkpoint=checkpoint).weights

    assert digest("one") == digest("copy")
    assert digest("one") != digest("other")
    assert len(digest("one")) == 16
    assert base.weights == ""


def test_a_model_on_the_hub_is_known_by_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its main branch may move between two evaluations."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    base, found = subject_of(RECIPE), []
    for commit in ("a" * 40, "b" * 40):
        there = tmp_path / "models--owner--name"
        (there / "snapshots" / commit).mkdir(parents=True)
        (there / "snapshots" / commit / "config.json").write_text("{}")
        (there / "refs").mkdir(exist_ok=True)
        (there / "refs" / "main").write_text(commit)
        job = replace(base.job, model=replace(base.job.model, path="owner/name"))
        assert job.commit == commit
        recipe = RECIPE.with_values({"model.name": "owner/name"})
        found.append(replace(base, job=replace(job, recipe=recipe)).weights)
    assert len({*found, ""}) == 3


def test_a_checkpoint_of_a_run_is_known_by_its_manifest(tmp_path: Path) -> None:
    checkpoint = Checkpoint(3, tmp_path)
    subject = replace(subject_of(RECIPE), checkpoint=checkpoint, kept=True)
    checkpoint.model.mkdir(exist_ok=True)
    (checkpoint.model / "config.json").write_text("{}")  # it holds all weights
    checkpoint.manifest.write_text("one")
    first = subject.weights
    checkpoint.manifest.write_text("two")
    assert len(first) == 16
    assert replace(subject).weights not in ("", first)


def test_an_adapter_of_a_run_is_known_with_its_base(tmp_path: Path) -> None:
    base, folder = subject_of(RECIPE), tmp_path / "base"
    folder.mkdir()
    (folder / "model.safetensors").write_text("weights 1")
    checkpoint = Checkpoint(3, tmp_path)
    checkpoint.model.mkdir(exist_ok=True)
    (checkpoint.model / "adapter_model.safetensors").write_text("adapter")
    job = replace(
        base.job,
        recipe=RECIPE.with_values({"model.name": str(folder)}),
        model=replace(base.job.model, path=str(folder)),
    )
    subject = replace(base, job=job, checkpoint=checkpoint, kept=True)
    first = subject.weights
    (folder / "model.safetensors").write_text("weights 2")
    assert replace(subject).weights not in ("", first)


# -- which problems ---------------------------------------------------------------------------------------------------


def rows(file: Path, *questions: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps({"question": q, "answer": "1"}) + "\n" for q in questions))


def local_recipe(path: Path | None) -> Recipe:
    return load_recipe("tiny_arithmetic", ["data.benchmark=local", f"data.path={path}"])


def questions(recipe: Recipe, name: str = "local", data_path: Path | None = None, split: str = "test") -> list[str]:
    encoder, longest = encoder_of(read_model(RECIPE.model).tokenizer), RECIPE.model.max_seq_length
    loaded = load_benchmark(recipe, name, encoder, max_seq_length=longest, split=split, data_path=data_path)
    assert loaded.split == split
    return [problem.question for problem, _ in loaded.prompts]


def test_the_most_frequent_answer_of_all_problems_and_of_some(tmp_path: Path) -> None:
    golds = {"1+1": "2", "1+2": "3", "2+1": "3", "4-1": "3", "4+0": "4"}
    lines = (json.dumps({"question": question, "answer": gold}) for question, gold in golds.items())
    (tmp_path / "mine.jsonl").write_text("\n".join(lines))
    encoder = encoder_of(read_model(RECIPE.model).tokenizer)
    path = tmp_path / "mine.jsonl"
    loaded = load_benchmark(local_recipe(None), "local", encoder, max_seq_length=512, data_path=path)
    assert loaded.most_frequent() == ("3", 3 / 5)
    assert loaded.most_frequent([problem.id for problem, _ in loaded.prompts if problem.gold != "3"]) == ("2", 1 / 2)


def test_the_one_file_that_was_trained_on_is_no_test(tmp_path: Path) -> None:
    rows(tmp_path / "mine.jsonl", "1+0")
    rows(tmp_path / "other.jsonl", "2-1")
    recipe = local_recipe(tmp_path / "mine.jsonl")
    with pytest.raises(DataError, match=r"all of .*mine\.jsonl was trained on.* --data-path"):
        questions(recipe)
    assert questions(recipe, data_path=tmp_path / "other.jsonl") == ["2-1"]


def test_columns_and_gold_of_own_data_are_not_those_of_a_benchmark(tmp_path: Path) -> None:
    """A run on data of its own is evaluated on gsm8k, and one on arithmetic on data with other columns."""
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k" / "test.jsonl").write_text(json.dumps({"question": "1+1", "answer": "#### 2"}) + "\n")
    (tmp_path / "mine.jsonl").write_text(json.dumps({"q": "2+1", "a": "3"}) + "\n")
    columns = "data.columns={question: q, answer: a}"
    own = load_recipe("tiny_arithmetic", [f"data={{benchmark: local, path: {tmp_path}, gold: column}}", columns])
    assert questions(own, "gsm8k", data_path=tmp_path) == ["1+1"]
    assert questions(load_recipe("tiny_arithmetic", [columns]), data_path=tmp_path / "mine.jsonl") == ["2+1"]
    for name in ("gsm8k", "arithmetic"):
        recipe = load_recipe("tiny_arithmetic", [f"data.benchmark={name}", columns])
        with pytest.raises(DataError, match=f"data.columns: {name} has its own columns, so this key has no effect"):
            questions(recipe, name)


def test_what_selects_training_problems_leaves_a_test_split_whole_and_that_is_said(tmp_path: Path) -> None:
    for split in ("train", "test"):
        lines = (json.dumps({"question": f"{n}+1", "answer": n + 1, "rate": n}) for n in range(4))
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines))
    recipe = load_recipe("tiny_arithmetic", [f"data={{benchmark: local, path: {tmp_path}, where: {{rate: [1, 2]}}}}"])
    encoder, longest = encoder_of(read_model(RECIPE.model).tokenizer), RECIPE.model.max_seq_length
    said = f"{tmp_path}: split test is used whole; data.where chooses among problems of training"
    for split, asked in (("test", 4), ("train", 2)):
        loaded = load_benchmark(recipe, "local", encoder, max_seq_length=longest, split=split)
        assert len(loaded.prompts) == asked
        assert (said in loaded.notes) == (split == "test")


def test_a_source_of_a_mixture_has_the_ids_of_other_runs_unless_sources_share_a_benchmark(tmp_path: Path) -> None:
    for name in ("one", "two"):
        rows(tmp_path / name / "test.jsonl", "1+1")
    encoder, longest = encoder_of(read_model(RECIPE.model).tokenizer), RECIPE.model.max_seq_length

    def ids(*sources: Path, data_path: Path | None = None) -> list[str]:
        mixture = {"arithmetic": 1, **{str(source): 1 for source in sources}}
        recipe = load_recipe("tiny_arithmetic", ["data={benchmark: mixture, limit: null}", f"data.mixture={mixture}"])
        loaded = load_benchmark(recipe, "local", encoder, max_seq_length=longest, data_path=data_path)
        return [problem.id for problem, _ in loaded.prompts]

    assert ids(tmp_path / "one") == ["local/test/1"]
    assert ids(tmp_path / "one", tmp_path / "two") == ["2/local/test/1", "3/local/test/1"]
    assert ids(tmp_path / "one", tmp_path / "two", data_path=tmp_path / "one") == ["local/test/1"]
