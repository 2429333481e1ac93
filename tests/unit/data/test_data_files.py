"""Which files data.path means: a split's file or shards in a folder, one shard for all, a pattern."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gtpo_cli.data import load_problems
from gtpo_cli.data.benchmarks import open_source
from gtpo_cli.data.local import find_files, open_files
from gtpo_cli.errors import DataError
from gtpo_cli.recipe.data import SourceRecipe


def shard(folder: Path, name: str, *sums: int) -> Path:
    """A Parquet file of the questions 1+n, in columns of its own."""
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table({"query": [f"1+{n}" for n in sums], "reply": [1 + n for n in sums]}), folder / name)
    return folder / name


def test_a_split_is_found_in_a_folder_and_not_looked_at_for_a_file(tmp_path: Path) -> None:
    train, test = tmp_path / "train.jsonl", tmp_path / "test.CSV"
    train.write_text("{}\n")
    test.write_text("a\n")
    (tmp_path / "README.md").write_text("no data")
    assert find_files(tmp_path, "train") == ("train", (train,))
    assert find_files(tmp_path, "test") == ("test", (test,))
    assert find_files(train, "whatever") == ("train", (train,))


@pytest.mark.parametrize(
    "named", ["", "train-00000-of-00003.parquet", "train-00002-of-00003.parquet", "train-*.parquet"]
)
def test_shards_are_read_as_one_split_in_their_order(tmp_path: Path, named: str) -> None:
    folder = tmp_path / "my_set"
    shard(folder, "train-00001-of-00003.parquet", 3)
    shard(folder, "train-00000-of-00003.parquet", 1, 2)
    shard(folder, "train-00002-of-00003.parquet", 4, 5)
    shard(folder, "test-00000-of-00001.parquet", 9)
    columns = {"question": "query", "answer": "reply"}
    source = SourceRecipe.model_validate({"path": str(folder / named), "columns": columns})
    problems = load_problems(source, seed=0).problems
    assert [problem.question for problem in problems] == ["1+1", "1+2", "1+3", "1+4", "1+5"]
    assert [problem.gold for problem in problems] == ["2", "3", "4", "5", "6"]
    assert problems[3].source == f"{folder / 'train-00002-of-00003.parquet'}:1"
    assert problems[3].id == ("local/train-*/4" if "*" in named else "local/train/4")
    if not named:
        test = load_problems(source.model_copy(update={"split": "test"}), seed=0).problems
        assert [problem.question for problem in test] == ["1+9"]


def test_a_pattern_names_files_of_any_kind_and_a_file_may_look_like_one(tmp_path: Path) -> None:
    for name in ("part-1.jsonl", "part-0.jsonl", "other.jsonl", "odd[1].jsonl"):
        (tmp_path / name).write_text(f'{{"name": "{name}"}}\n')
    (tmp_path / "part-2.jsonl").mkdir()
    table, name = open_source(SourceRecipe(benchmark="local", path=str(tmp_path / "part-*.jsonl")))
    assert [row for _, row in table.rows] == [{"name": "part-0.jsonl"}, {"name": "part-1.jsonl"}]
    assert name == "part-*"
    assert len(find_files(tmp_path / "part**.jsonl", "train")[1]) == 2
    assert find_files(tmp_path / "odd[1].jsonl", "train")[1] == (tmp_path / "odd[1].jsonl",)


def test_a_part_is_never_read_for_the_whole(tmp_path: Path) -> None:
    first = shard(tmp_path, "train-00000-of-00003.parquet", 1)
    shard(tmp_path, "train-00002-of-00003.parquet", 2)
    for path in (tmp_path, first):
        with pytest.raises(DataError, match=r"split train has 2 of 3 files \(shard 00001 is missing\)"):
            find_files(path, "train")
    assert find_files(tmp_path / "train-00000-*.parquet", "train")[1] == (first,)  # which says that it is meant
    shard(tmp_path, "train-00000-of-00001.parquet", 3)
    with pytest.raises(DataError, match="shards of different sets"):
        find_files(tmp_path, "train")


def test_a_file_with_a_hash_is_a_shard_too_as_older_copies_of_the_hub_have_it(tmp_path: Path) -> None:
    file = shard(tmp_path, "train-00000-of-00001-0a1b2c3d4e5f6071.parquet", 1)
    assert find_files(tmp_path, "train") == ("train", (file,))


def test_what_cannot_be_found_says_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file or folder"):
        find_files(tmp_path / "absent", "train")
    with pytest.raises(DataError, match=r"absent-\*\.jsonl: no file matches this pattern"):
        find_files(tmp_path / "absent-*.jsonl", "train")
    with pytest.raises(DataError, match=r"contains no data file; expected train\.jsonl"):
        find_files(tmp_path, "train")
    (tmp_path / "train.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match=r"no file for split trian .*found train\.jsonl; did you mean train\?"):
        find_files(tmp_path, "trian")
    shard(tmp_path, "validation-00000-of-00001.parquet", 1)
    with pytest.raises(DataError, match=r"no file for split valid .*did you mean validation\?"):
        find_files(tmp_path, "valid")
    (tmp_path / "train.csv").write_text("a\n")
    with pytest.raises(DataError, match=r"train\.csv and train\.jsonl are both split train"):
        find_files(tmp_path, "train")
    (tmp_path / "train.csv").unlink()
    shard(tmp_path, "train-00000-of-00001.parquet", 1)
    with pytest.raises(DataError, match=r"train\.jsonl and train-00000-of-00001\.parquet are both split train"):
        find_files(tmp_path, "train")


def test_files_with_other_columns_are_not_read_as_one(tmp_path: Path) -> None:
    one, two = tmp_path / "a.csv", tmp_path / "b.csv"
    one.write_text("question,answer\n1+1,2\n")
    two.write_text("answer,question\n2,1+1\n")
    with pytest.raises(
        DataError, match=r"b\.csv: has other columns than .*a\.csv \(answer, question; question, answer\)"
    ):
        open_files("both", [one, two])
