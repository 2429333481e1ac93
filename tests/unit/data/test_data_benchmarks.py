from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gtpo_cli.data import gold_check, load_problems, summarise_dropped
from gtpo_cli.data.benchmarks import BENCHMARKS, hub_table
from gtpo_cli.data.local import SourcedRow, Table
from gtpo_cli.data.reading import read_table
from gtpo_cli.errors import DataError
from gtpo_cli.recipe.schema import DataRecipe, RewardsRecipe


def all_usable(golds: Sequence[str]) -> list[bool]:
    return [True] * len(golds)


def numbers_only(golds: Sequence[str]) -> list[bool]:
    return [gold.lstrip("-").isdecimal() for gold in golds]


def write_json_lines(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def local(path: Path, **changes: Any) -> DataRecipe:
    return DataRecipe.model_validate({"benchmark": "local", "path": str(path), **changes})


def test_bad_rows_are_dropped_counted_and_named_with_file_and_line(tmp_path: Path) -> None:
    path = write_json_lines(
        tmp_path / "train.jsonl",
        [
            {"question": "1+1?", "answer": 2},
            {"question": " ", "answer": "2"},
            {"question": "gold?", "answer": ""},
            "{broken",
            {"question": "words?", "answer": "banana"},
            "",
            {"question": "a\0b", "answer": "1"},
            '{"question": "\\ud83d", "answer": "1"}',
            {"questoin": "typo", "answer": "1"},
            {"question": ["a"], "answer": "1"},
            {"question": "2+2?", "answer": "4", "more": "is ignored"},
        ],
    )
    loaded = load_problems(local(path), seed=0, is_usable=numbers_only)
    assert [(p.id, p.question, p.gold, p.solution, p.source) for p in loaded.problems] == [
        ("local/train/1", "1+1?", "2", None, f"{path}:1"),
        ("local/train/10", "2+2?", "4", None, f"{path}:11"),
    ]
    reasons = {row.source.rpartition(":")[2]: row.reason for row in loaded.dropped}
    assert reasons.pop("4").startswith("not JSON: ")
    assert reasons == {
        "2": "no question",
        "3": "empty gold answer",
        "5": "unusable gold answer: 'banana'",
        "7": "NUL character in question",
        "8": "not UTF-8: question",
        "9": "no column question: found questoin, answer; did you mean questoin?",
        "10": "question is not text: list ['a']",
    }
    warning = summarise_dropped(loaded.dropped)
    assert warning is not None
    assert warning.startswith("dropped 8 rows (1 no question, ")
    assert f"{path}:2 no question; {path}:3 empty gold answer; " in warning


def test_by_default_the_rewards_say_which_gold_answers_are_usable(tmp_path: Path) -> None:
    golds = ["1,319", r"\frac{1}{", "Tuesday", r"x^2 + 1"]
    path = write_json_lines(tmp_path / "a.jsonl", [{"question": "q", "answer": gold} for gold in golds])
    loaded = load_problems(local(path), seed=0)
    assert [problem.gold for problem in loaded.problems] == ["1,319", "Tuesday", r"x^2 + 1"]
    assert [(row.source, row.reason) for row in loaded.dropped] == [
        (f"{path}:2", r"unusable gold answer: '\\frac{1}{'")
    ]


@pytest.mark.parametrize(
    ("accuracy", "kept"),
    [({"equality": "text"}, 3), ({"weight": 0.0}, 3), ({}, 1), ({"weight": 2.0}, 1)],
)
def test_a_gold_answer_may_be_any_text_where_it_is_not_compared_as_mathematics(
    tmp_path: Path, accuracy: dict[str, Any], kept: int
) -> None:
    golds = ["18", r"\frac{1}{", "A summary, with some_thing in it: $5, {braces} and 7 dwarfs. " * 40]
    path = write_json_lines(tmp_path / "a.jsonl", [{"question": "q", "answer": gold} for gold in golds])
    rewards = RewardsRecipe.model_validate({"accuracy": accuracy})
    loaded = load_problems(local(path), seed=0, is_usable=gold_check(rewards))
    assert [problem.gold for problem in loaded.problems] == [gold.strip() for gold in golds][:kept]


def test_a_limit_is_a_sample_of_usable_problems_that_depends_on_the_questions_only() -> None:
    """A table sorted by kind gives every kind. A smaller limit gives some of the same problems, in their order."""
    kinds = ("algebra", "geometry", "number theory")
    sorted_rows: list[SourcedRow] = [
        (
            f"t:{number}",
            {"question": f"{kinds[number // 100]} {number}", "answer": "x" if number % 10 == 0 else str(number)},
        )
        for number in range(300)
    ]

    def golds(rows: list[SourcedRow], limit: int) -> list[str]:
        loaded = read_table(Table("t", None, iter(rows)), BENCHMARKS["amc23"], "t", limit, numbers_only)
        return [problem.gold for problem in loaded.problems]

    sixty = golds(sorted_rows, 60)
    assert len(sixty) == 60
    assert sixty == sorted(sixty, key=int)
    counts = [sum(int(gold) // 100 == kind for gold in sixty) for kind in range(3)]
    assert min(counts) >= 12, counts  # 20 expected, with a standard deviation of 3.3
    assert set(golds(sorted_rows, 20)) < set(sixty)
    assert golds(sorted_rows[::-1], 60) == sixty[::-1]
    assert len(golds(sorted_rows, 1000)) == 270


def test_the_same_rows_load_alike_from_all_formats(tmp_path: Path) -> None:
    rows = [{"frage": 'say "hi",\nplease', "gold": "-3", "weg": "steps"}, {"frage": "é?", "gold": "1,000", "weg": ""}]
    write_json_lines(tmp_path / "test.jsonl", rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "p.parquet")
    (tmp_path / "c.csv").write_bytes(
        '\ufefffrage,gold,weg\r\n"say ""hi"",\nplease",-3,steps\r\né?,"1,000",\r\n'.encode()
    )
    columns = {"question": "frage", "answer": "gold", "solution": "weg"}
    for path in (tmp_path / "test.jsonl", tmp_path / "p.parquet", tmp_path / "c.csv"):
        loaded = load_problems(local(path, columns=columns), seed=0, is_usable=all_usable)
        assert [(p.question, p.gold, p.solution) for p in loaded.problems] == [
            ('say "hi",\nplease', "-3", "steps"),
            ("é?", "1,000", None),
        ]


def test_a_parquet_column_that_is_not_used_is_not_read(tmp_path: Path) -> None:
    """Here one is damaged; it may also be too large for the memory. A gold answer by a function gets the whole row."""
    file = tmp_path / "p.parquet"
    table = pa.table({"q": ["1+1"] * 5, "meta": [{"gold": "2"}] * 5, "noise": ["x" * 1000 + str(n) for n in range(5)]})
    pq.write_table(table, file, compression=None, use_dictionary=False)
    group = pq.read_metadata(file).row_group(0)
    (noise,) = (group.column(n) for n in range(group.num_columns) if group.column(n).path_in_schema == "noise")
    content = bytearray(file.read_bytes())
    start, size = noise.data_page_offset, noise.total_compressed_size
    content[start : start + size] = b"\xff" * size
    file.write_bytes(content)
    columns = {"question": "q", "answer": "meta.gold"}
    loaded = load_problems(local(file, columns=columns), seed=0, is_usable=all_usable)
    assert [problem.gold for problem in loaded.problems] == ["2"] * 5
    for whole in (
        lambda: load_problems(local(file, columns=columns), seed=0, is_usable=all_usable, with_columns=True),
        lambda: load_problems(local(file, columns={"question": "noise", "answer": "q"}), seed=0, is_usable=all_usable),
    ):
        with pytest.raises(DataError, match="is damaged after row 0"):
            whole()


HUB_ROWS: dict[str, list[dict[str, Any]]] = {  # the columns that each data set has on the hub
    "gsm8k": [{"question": "q", "answer": "1+1=<<1+1=2>>2\n#### 2"}],
    "math": [{"problem": "q", "level": "Level 1", "solution": r"so $\boxed{2}$", "type": "Algebra"}],
    "math500": [
        {"problem": "q", "solution": r"$\boxed{2}$", "answer": "2", "subject": "A", "level": 1, "unique_id": "x"}
    ],
    "aime24": [{"id": 60, "problem": "q", "solution": "so 2", "answer": "2", "url": "u", "year": "2024"}],
    "aime25": [{"problem": "q", "answer": "2", "id": "0"}],
    "amc23": [{"id": 0, "question": "q", "answer": "2", "url": "u"}],
}
SOLUTIONS = {"gsm8k": "1+1=2", "math": r"so $\boxed{2}$", "math500": r"$\boxed{2}$", "aime24": "so 2"}


@pytest.mark.parametrize("name", HUB_ROWS)
def test_hub_rows_through_the_datasets_library(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A local folder laid out as the hub's repository, read by the real `datasets`."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    hub = BENCHMARKS[name].hub
    assert hub is not None
    repository = tmp_path / "repository"
    repository.mkdir()
    for split in hub.splits.values():
        write_json_lines(repository / f"{split}.jsonl", HUB_ROWS[name] * 2)
    files = "".join(f"  - split: {split}\n    path: {split}.jsonl\n" for split in hub.splits.values())
    head = f"---\nconfigs:\n- config_name: {hub.config or 'default'}\n  data_files:\n{files}---\n"
    (repository / "README.md").write_text(head)
    table = hub_table(name, replace(hub, id=str(repository)), "test")
    loaded = read_table(table, BENCHMARKS[name], f"{name}/test", None, all_usable)
    assert loaded.dropped == ()
    assert [(p.id, p.question, p.gold, p.solution, p.source) for p in loaded.problems] == [
        (f"{name}/test/{n}", "q", "2", SOLUTIONS.get(name), f"{repository}[test]:{n}") for n in (1, 2)
    ]


def test_an_unreachable_hub_says_what_to_do_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    import huggingface_hub.constants

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")  # where nobody listens
    for is_set, remedy in ((True, "bring it here, or unset HF_HUB_OFFLINE"), (False, "set HF_HUB_OFFLINE=1 here")):
        monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", is_set)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", is_set)
        with pytest.raises(DataError, match=r"openai/gsm8k: the hub cannot be reached .*set data\.path ") as caught:
            load_problems(DataRecipe(benchmark="gsm8k"), seed=0, is_usable=all_usable)
        assert "for gtpo eval: --data-path" in str(caught.value)
        assert str(caught.value).endswith(f"(hf download NAME) and {remedy}")
