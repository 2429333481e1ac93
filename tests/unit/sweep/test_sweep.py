"""A sweep's file, its figures by hand, its table and its page. Runs are folders with metrics, written by the tests."""

from __future__ import annotations

import csv
import datetime
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from gtpo_cli.errors import EvaluationError, RecipeError
from gtpo_cli.recipe import dump_recipe, load_recipe
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.runs.user_code import code_digest
from gtpo_cli.tools.sweep.estimates import estimate, markdown, runs_csv
from gtpo_cli.tools.sweep.execute import check
from gtpo_cli.tools.sweep.figures import parse_figure, values_of
from gtpo_cli.tools.sweep.page import write_results
from gtpo_cli.tools.sweep.spec import Sweep, load_sweep
from gtpo_cli.types import CodeName

FILE = {
    "recipe": "tiny_arithmetic",
    "set": {"training.max_steps": 4},
    "variants": {"gtpo": {}, "grpo": {"objective.name": "grpo"}},
    "seeds": [1, 2, 3],
    "figures": {"accuracy": "last train/accuracy_rate", "collapsed": "ever entropy/mean > 0.69"},
    "window": 0.5,
}
TUNE = {"values": [1.0e-4, 2.0e-4], "seeds": [8, 9]}
ROWS = [{"step": float(n + 1), "entropy/mean": value} for n, value in enumerate([0.2, 0.9, 0.6, 0.4])]


def written(folder: Path, **changes: Any) -> Path:
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump(FILE | changes, sort_keys=False), encoding="utf-8")
    return file


def sweep_of(folder: Path, **changes: Any) -> Sweep:
    return load_sweep(str(written(folder, **changes)), folder=folder / "sweep")


def finish(sweep: Sweep, key: str, accuracies: list[float], *, entropy: float = 0.1) -> None:
    """A finished run with these accuracies, one a step."""
    (run,) = [run for run in sweep.known if run.key == key]
    folder = RunFolder(run.path)
    folder.create(run.recipe)
    rows = [
        {"step": step, "train/accuracy_rate": value, "entropy/mean": entropy}
        for step, value in enumerate(accuracies, start=1)
    ]
    folder.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    run.done_file.parent.mkdir(parents=True, exist_ok=True)
    run.done_file.write_text('{"seconds": 10.0, "exit": 0}\n', encoding="utf-8")


# -- the file ---------------------------------------------------------------------------------------------------------


def test_every_variant_is_the_recipe_with_its_overrides_and_a_seed(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path)
    assert [run.key for run in sweep.runs] == ["gtpo-1", "grpo-1", "gtpo-2", "grpo-2", "gtpo-3", "grpo-3"]
    for run in sweep.runs:
        expected = load_recipe(
            "tiny_arithmetic",
            ["training.max_steps=4", f"seed={run.seed}", f"objective.name={run.variant}",
             f"run_name={run.key}", f"output_dir={tmp_path}/sweep/runs"],
        )  # fmt: skip
        assert run.recipe == expected
        assert run.path == tmp_path / "sweep" / "runs" / run.key
    assert sweep.baseline == "gtpo"
    some = load_sweep(str(tmp_path / "mine.yaml"), only=("grpo",))
    assert ([run.key for run in some.runs], some.baseline) == (["grpo-1", "grpo-2", "grpo-3"], "grpo")
    with pytest.raises(RecipeError, match="no variant ppo; choose from gtpo, grpo"):
        load_sweep(str(tmp_path / "mine.yaml"), only=("ppo",))
    assert [run.key for run in load_sweep(str(tmp_path / "mine.yaml"), seeds=(9,)).runs] == ["gtpo-9", "grpo-9"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"baseline": "ppo"}, "baseline: ppo is not a variant; choose from gtpo, grpo"),
        ({"seeds": [1, 1]}, "seeds: a seed is named twice"),
        ({"tune": TUNE | {"seeds": [7, 2]}}, "tune.seeds: 2 is one of seeds"),
        ({"tune": TUNE | {"key": "optimizer.rate"}}, "optimizer.rate: unknown key"),
        ({"tune": {"values": [1.0]}}, "tune.values"),
        ({"figures": {"a": "final optim/loss"}}, "> 0.69, got 'final optim/loss'"),
        ({"figures": {"a": "last accuracy"}}, "figures.a: accuracy is not a declared metric"),
        ({"figures": {"a": 3}}, "figures.a: is not a figure"),
        ({"figures": {"a": "ever entropy/mean > 1.2.3"}}, "figures.a: compares with 1.2.3, which is no finite number"),
        ({"figures": {"a": "ever entropy/mean > high"}}, "figures.a: is not a figure; write e.g. last train/"),
        ({"tune": TUNE | {"seeds": [8, 8]}}, "tune.seeds: one is named twice"),
        ({"tune": TUNE | {"values": [1.0e-4, 0.0001]}}, "tune.values: one is named twice"),
        ({"tune": TUNE | {"key": "seed"}}, "tune.key: seed is set by the sweep; write seeds into its file"),
        ({"tune": TUNE | {"by": "ever entropy/mean > 1"}}, "tune.by: 'ever entropy/mean > 1' is 1 or 0"),
        ({"tune": TUNE | {"by": "last entropy/mean"}}, "tune.by: neither more nor less of entropy/mean is better"),
        ({"tune": TUNE | {"by": "last eval/gsm8k/accuracy_rate"}}, "is only measured with training.eval_every"),
        ({"tune": TUNE, "set": {"optimizer": {"learning_rate": 1}}}, "set: optimizer.learning_rate is set by the swe"),
        ({"tune": TUNE, "variants": {"a": {"optimizer.learning_rate": 1}}}, "variant a: optimizer.learning_rate is"),
        ({"figures": {"a": "last eval/arithmetic/accuracy_rate"}}, "figures.a: eval/arithmetic/accuracy_rate is only"),
        (
            {"figures": {"a": "last eval/gsm8k/accuracy_rate"}, "set": {"training.eval_every": 2}},
            "figures.a: eval/gsm8k/accuracy_rate is not measured; evaluation.benchmarks has only arithmetic",
        ),
        ({"figures": {"a": "last rewards/brevity_mean"}}, "rewards/brevity_mean is not measured; the recipe has the"),
        ({"variants": {"a": {}, "b": {"objective.name": "gtpo"}}}, "variants a and b are the same recipe; leave one"),
        ({"variant": {}}, "variant: unknown key; did you mean variants?"),
        ({"variants": {"a b": {}}}, "variants.a b"),
        ({"variants": {"a+b": {}}}, "variants.a+b"),  # no name of a run
        ({"set": {"seed": 7}}, "mine.yaml: set: seed is set by the sweep; write seeds into its file, or --seeds 1,2,3"),
        ({"variants": {"x": {"run_name": "y"}}}, "variant x: run_name is set by the sweep; a run is named by variant"),
        ({"variants": {"x": {"objective.nam": "grpo"}}}, "variant x: --set: objective.nam: unknown key; did you mean"),
        ({"variants": {"x": {"training.max_steps": datetime.date(2001, 1, 1)}}}, "training.max_steps: input should be"),
        ({"recipe": "tiny_arithmetics"}, "did you mean tiny_arithmetic"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeError) as caught:
        sweep_of(tmp_path, **changes)
    assert words in str(caught.value)


def test_a_mistyped_name_is_guessed(tmp_path: Path) -> None:
    with pytest.raises(
        RecipeError, match=r"fig5a_k: no such file and no shipped sweep of that name; did you mean fig5a"
    ):
        load_sweep("fig5a_k")
    with pytest.raises(RecipeError, match=r"is a folder; name the sweep's file, or a shipped sweep \(gtpo sweep lists"):
        load_sweep(str(tmp_path))


# -- figures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("first entropy/mean", (0.2 + 0.9) / 2),
        ("last entropy/mean", (0.6 + 0.4) / 2),
        ("mean entropy/mean", 0.525),
        ("min entropy/mean", 0.2),
        ("max entropy/mean", 0.9),
        ("peak entropy/mean", 0.75),  # of (0.55, 0.75, 0.5)
        ("trough entropy/mean", 0.5),
        ("ever entropy/mean > 0.7", 1.0),
        ("ever entropy/mean > 0.8", 0.0),  # one step is no running mean
        ("ever entropy/mean < 0.55", 1.0),
        ("ever entropy/mean < 0.4", 0.0),
    ],
)
def test_a_figure_by_hand(text: str, value: float) -> None:
    assert values_of(ROWS, {"it": parse_figure(text)}, 0.5) == {"it": pytest.approx(value)}
    assert values_of(ROWS, {"kl": parse_figure("last policy/kl")}, 0.5) == {}


def test_means_differences_and_p_values_by_hand(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path)
    for seed, (ours, theirs) in enumerate([(0.9, 0.5), (0.8, 0.6), (0.7, 0.6)], start=1):
        finish(sweep, f"gtpo-{seed}", [0.0, 0.0, ours, ours])
        finish(sweep, f"grpo-{seed}", [0.0, 0.0, theirs, theirs], entropy=0.8 if seed > 1 else 0.1)
    cells = {(cell.figure, cell.variant): cell for cell in estimate(sweep).cells}
    gtpo, grpo = cells["accuracy", "gtpo"], cells["accuracy", "grpo"]
    assert gtpo.mean.estimate == pytest.approx(0.8)
    assert (gtpo.difference, gtpo.p_value, gtpo.seeds) == (None, None, 3)
    assert grpo.difference is not None
    assert grpo.difference.estimate == pytest.approx(-(0.4 + 0.2 + 0.1) / 3)
    half = 4.30265 * 0.152753 / 3**0.5  # t(2) s / sqrt(3)
    assert grpo.difference.low == pytest.approx(-0.7 / 3 - half, abs=1e-5)
    assert grpo.difference.high == pytest.approx(-0.7 / 3 + half, abs=1e-5)
    assert grpo.p_value == 0.25  # all three of one sign: 2 of 8 patterns
    assert cells["collapsed", "grpo"].mean.estimate == pytest.approx(2 / 3)
    assert cells["collapsed", "grpo"].p_value == 0.5
    text = markdown(estimate(sweep))
    assert "| difference to gtpo (95 % interval) |" in text
    assert "| accuracy | grpo | 3 | 0.567 (0.423 to 0.710) | -0.233 (-0.613 to +0.146) | 0.250 | 0.250 |" in text


def test_a_value_is_chosen_for_each_variant_by_seeds_of_its_own(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, tune=TUNE)
    assert [run.key for run in sweep.choosing] == [
        f"{variant}-value{place}-{seed}" for seed in (8, 9) for place in (1, 2) for variant in ("gtpo", "grpo")
    ]
    assert (sweep.runs, sweep.chosen, sweep.number) == ((), {}, 8 + 6)
    means = {("gtpo", 1): (0.2, 0.6), ("gtpo", 2): (0.3, 0.4), ("grpo", 1): (0.1, 0.1), ("grpo", 2): (0.0, 0.3)}
    for (variant, place), accuracies in means.items():
        for seed, accuracy in zip((8, 9), accuracies, strict=True):
            assert sweep_of(tmp_path, tune=TUNE).runs == ()
            finish(sweep, f"{variant}-value{place}-{seed}", [0.0, 0.0, accuracy, accuracy])
    sweep = sweep_of(tmp_path, tune=TUNE)
    assert sweep.chosen == {"gtpo": (1.0e-4, pytest.approx(0.4)), "grpo": (2.0e-4, pytest.approx(0.15))}
    assert [run.key for run in sweep.runs] == [f"{v}-{seed}" for seed in (1, 2, 3) for v in ("gtpo", "grpo")]
    assert {(run.variant, run.recipe.optimizer.learning_rate) for run in sweep.runs} == {
        ("gtpo", 1.0e-4), ("grpo", 2.0e-4),
    }  # fmt: skip
    with pytest.raises(EvaluationError, match="no run of the sweep is finished"):
        estimate(sweep)  # what chose does not count
    for run in sweep.runs:
        finish(sweep, run.key, [0.5] * 4)
    assert {cell.seeds for cell in estimate(sweep).cells} == {3}
    html = write_results(sweep, estimate(sweep)).read_text(encoding="utf-8")
    assert "optimizer.learning_rate is the best of 0.0001, 0.0002 for each variant, by last train/accuracy_rate" in html
    assert "14 of 14 runs done" in html
    assert json.loads((sweep.folder / "results.json").read_text())["chosen"] == {"gtpo": 1.0e-4, "grpo": 2.0e-4}


def test_less_is_better_where_the_metric_says_so_and_the_first_of_equals_is_taken(tmp_path: Path) -> None:
    tune = TUNE | {"by": "last completions/truncated_share", "seeds": [8]}
    sweep = sweep_of(tmp_path, tune=tune, variants={"gtpo": {}, "grpo": {"objective.name": "grpo"}})
    for run, share in zip(sweep.choosing, (0.4, 0.2, 0.1, 0.2), strict=True):
        finish(sweep, run.key, [0.5])
        row = {"step": 1, "completions/truncated_share": share}
        RunFolder(run.path).metrics_file.write_text(json.dumps(row) + "\n", encoding="utf-8")
    assert {name: value for name, (value, _) in sweep_of(tmp_path, tune=tune).chosen.items()} == {
        "gtpo": 2.0e-4, "grpo": 1.0e-4,
    }  # fmt: skip
    with pytest.raises(RecipeError, match=r"tune\.by: no value has policy/kl in all runs of gtpo; name a metric that"):
        sweep_of(tmp_path, tune=tune | {"by": "last policy/kl"})


def test_a_value_loses_if_a_run_has_no_number_for_it(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, tune=TUNE, variants={"gtpo": {}})
    for run, accuracies in zip(sweep.choosing, ([0.9], [0.1], [math.nan], [0.1, math.nan]), strict=True):
        finish(sweep, run.key, accuracies)
    # value 1 has (0.9, none), value 2 (0.1, 0.1): a step without a number does not count
    assert sweep_of(tmp_path, tune=TUNE, variants={"gtpo": {}}).chosen == {"gtpo": (2.0e-4, pytest.approx(0.1))}


def test_a_loss_is_better_the_less_it_is(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "tune": TUNE | {"by": "last optim/loss", "seeds": [8]}, "variants": {"sft": {"objective.name": "sft"}},
        "figures": {},
    }  # fmt: skip
    sweep = sweep_of(tmp_path, **changes)
    for run, value in zip(sweep.choosing, (2.0, 0.5), strict=True):
        finish(sweep, run.key, [])
        RunFolder(run.path).metrics_file.write_text(json.dumps({"step": 1, "optim/loss": value}) + "\n")
    assert sweep_of(tmp_path, **changes).chosen == {"sft": (2.0e-4, 0.5)}


def test_code_of_the_users_own_stays_the_same_in_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rules = tmp_path / "rules.py"
    rules.write_text("def rule(tokens):\n    return tokens.mask.float()\n")
    variants = {"own": {"objective.token_weights.rule": "rules.py:rule"}, "grpo": {"objective.name": "grpo"}}
    sweep = sweep_of(tmp_path, variants=variants)
    finish(sweep, "own-1", [0.5])
    RunFolder(sweep.runs[0].path).keep_beginning([], {"rules.py:rule": code_digest(CodeName("rules.py:rule"))})
    check(sweep)
    rules.write_text("def rule(tokens):\n    return 2.0 * tokens.mask.float()\n")
    with pytest.raises(RecipeError, match=r"own-1: was run with another rules\.py:rule; name another folder"):
        check(sweep)


def test_a_variant_with_a_rule_of_its_own_leaves_the_keywords_of_the_shared_one(tmp_path: Path) -> None:
    shared = {"objective.token_weights": {"rule": "top_entropy", "config": {"share": 0.1}}}
    variants = {"top": {}, "cov": {"objective.token_weights.rule": "clip_cov"}}
    top, cov = (
        run.recipe.objective.token_weights for run in sweep_of(tmp_path, set=shared, variants=variants).runs[:2]
    )
    assert (top.rule, top.config, cov.rule, cov.config) == ("top_entropy", {"share": 0.1}, "clip_cov", {})


def test_a_sweep_on_the_recipe_of_a_run_compares_whole_methods(tmp_path: Path) -> None:
    resolved = tmp_path / "run.yaml"
    resolved.write_text(dump_recipe(load_recipe("tiny_arithmetic")))
    sweep = load_sweep(str(written(tmp_path)), recipe=str(resolved), folder=tmp_path / "sweep")
    for run, objective in zip(sweep.runs, ("gtpo", "grpo"), strict=False):
        assert run.recipe.objective == load_recipe("tiny_arithmetic", [f"objective.name={objective}"]).objective


def test_what_a_variant_leaves_open_is_decided_alike_for_its_runs(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path)
    for key, dtype in (("grpo-1", "float32"), ("gtpo-1", "bfloat16"), ("grpo-2", "float32"), ("grpo-3", "bfloat16")):
        (run,) = [run for run in sweep.runs if run.key == key]
        RunFolder(run.path).create(run.recipe.with_values({"model.dtype": dtype}))
        if key == "grpo-3":
            with pytest.raises(RecipeError, match=r"grpo-3: was run with another model\.dtype; name another folder"):
                check(sweep)
        else:
            check(sweep)


def test_files_of_data_stay_the_same_in_all_runs(tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text('{"question": "1+1", "answer": "2"}\n')
    changes = {"set": {"training.max_steps": 4, "data.benchmark": "local", "data.path": str(tmp_path / "own.jsonl")}}
    for digests, tasks in ((("a", "b"), changes), (("ab", "ba"), changes), (("a", "b"), {})):
        shutil.rmtree(tmp_path / "sweep", ignore_errors=True)
        sweep = sweep_of(tmp_path, **tasks)
        for key, digest in zip(("gtpo-1", "grpo-2"), digests, strict=True):
            finish(sweep, key, [0.5])
            (run,) = [run for run in sweep.runs if run.key == key]
            RunFolder(run.path).keep_beginning([letter * 8 for letter in digest], {})
        if digests == ("a", "b") and tasks:  # problems of a task depend on the seed
            with pytest.raises(RecipeError, match=r"grpo-2: was run with another data \(its files have changed\)"):
                check(sweep)
        else:
            check(sweep)


def test_a_difference_says_over_how_many_seeds_it_is(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path)
    for key in ("gtpo-1", "gtpo-3", "grpo-1", "grpo-2", "grpo-3"):
        finish(sweep, key, [0.5] * 4)
    rows = [line.split(" | ")[2] for line in markdown(estimate(sweep)).splitlines()[2:4]]
    assert rows == ["2", "3 (2 paired)"]


def test_the_key_that_is_tuned_is_refused_in_set_however_it_is_written(tmp_path: Path) -> None:
    file = str(written(tmp_path, tune=TUNE))
    for override in ("optimizer.learning_rate=1", "optimizer={learning_rate: 1}"):
        with pytest.raises(RecipeError, match=r"--set: optimizer\.learning_rate is set by the sweep; leave it out"):
            load_sweep(file, overrides=[override])


def test_every_variant_is_checked_before_the_first_run(tmp_path: Path) -> None:
    variants = {"gtpo": {}, "off": {"objective.token_weights.config": {"positiv": 1}}}
    with pytest.raises(RecipeError, match=r"variant off: objective\.token_weights\.config: conflict: .*'positiv'"):
        check(sweep_of(tmp_path, variants=variants))


def test_runs_that_stopped_themselves_are_named(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path)
    for key in ("gtpo-1", "grpo-1"):
        finish(sweep, key, [0.5])
    sweep.runs[1].done_file.write_text('{"seconds": 10.0, "exit": 3}\n')
    words = "Stopped before the last step, by the guard or for want of a finite gradient: grpo-1"
    assert words in markdown(estimate(sweep))
    assert words in write_results(sweep, estimate(sweep)).read_text()
    assert json.loads((sweep.folder / "results.json").read_text())["stopped"] == ["grpo-1"]


def test_a_run_that_chose_and_stopped_itself_is_named(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"tune": TUNE | {"seeds": [8]}, "variants": {"gtpo": {}}, "seeds": [1]}
    for key in ("gtpo-value1-8", "gtpo-value2-8"):
        finish(sweep_of(tmp_path, **changes), key, [0.5])
    sweep = sweep_of(tmp_path, **changes)
    finish(sweep, "gtpo-1", [0.5])
    sweep.choosing[1].done_file.write_text('{"seconds": 10.0, "exit": 3}\n')
    assert estimate(sweep).stopped == ("gtpo-value2-8",)


def test_p_values_are_corrected_for_the_variants_of_a_figure(tmp_path: Path) -> None:
    variants = {name: {"objective.entropy_coef": 0.1 * n} for n, name in enumerate(("gtpo", "a", "b", "c"))}
    sweep = sweep_of(tmp_path, variants=variants, seeds=[1, 2, 3, 4])
    moves = {"gtpo": [0, 0, 0, 0], "a": [1, 1, 1, 1], "b": [1, -1, 1, 1], "c": [1, -1, 1, -1]}
    for variant, signs in moves.items():
        for seed, sign in enumerate(signs, start=1):
            finish(sweep, f"{variant}-{seed}", [0.5 + 0.1 * sign])
    cells = {cell.variant: cell for cell in estimate(sweep).cells if cell.figure == "accuracy"}
    assert [cells[name].p_value for name in "abc"] == [0.125, 0.625, 1.0]
    assert [cells[name].corrected for name in "abc"] == [0.375, 1.0, 1.0]
    assert cells["gtpo"].corrected is None


def test_a_run_that_was_deleted_is_not_done(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path)
    finish(sweep, "gtpo-1", [0.5] * 4)
    finish(sweep, "gtpo-2", [0.5] * 4)
    shutil.rmtree(sweep.runs[0].path)
    assert [run.key for run in sweep.runs if run.is_done] == ["gtpo-2"]
    assert list(estimate(sweep).values) == ["gtpo-2"]


def test_a_run_of_another_recipe_is_not_taken_for_this_sweeps(tmp_path: Path) -> None:
    finish(sweep_of(tmp_path), "gtpo-1", [0.5] * 4)
    check(sweep_of(tmp_path))
    with pytest.raises(RecipeError, match=r"gtpo-1: was run with another training\.max_steps; name another folder"):
        check(sweep_of(tmp_path, set={"training.max_steps": 5}))


def test_results_are_files_and_a_page_without_a_network(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, about="is <b>it</b> better", variants={"gtpo": {}, "grpo": {"objective.name": "grpo"}})
    for key in ("gtpo-1", "grpo-1"):
        finish(sweep, key, [0.1, 0.2, 0.3, 0.4])
    estimates = estimate(sweep)
    page = write_results(sweep, estimates)
    html = page.read_text(encoding="utf-8")
    assert "is &lt;b&gt;it&lt;/b&gt; better" in html
    assert "2 of 6 runs done" in html
    assert "src=" not in html
    assert "http" not in html.replace("http://www.w3.org", "").replace('<meta http-equiv="Content-Sec', "")
    assert html.count("<figure id=") == 2  # accuracy and entropy were logged
    rows = list(csv.DictReader((sweep.folder / "runs.csv").read_text().splitlines()))
    assert [(row["variant"], row["seed"], float(row["accuracy"])) for row in rows] == [
        ("gtpo", "1", 0.35), ("grpo", "1", 0.35),
    ]  # fmt: skip
    assert runs_csv(sweep, estimates) == (sweep.folder / "runs.csv").read_text()
    document = json.loads((sweep.folder / "results.json").read_text())
    assert document["runs"]["gtpo-1"]["accuracy"] == pytest.approx(0.35)
    assert (sweep.folder / "charts" / "accuracy.png").stat().st_size > 1000
