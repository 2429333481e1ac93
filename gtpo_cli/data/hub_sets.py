"""Load data sets from the hub with the `datasets` library and its cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gtpo_cli.data.local import SourcedRow, Table, nearest
from gtpo_cli.errors import DataError
from gtpo_cli.hub import offline_remedy, only_the_cache_if_unreachable
from gtpo_cli.text import one_line


@dataclass(frozen=True, slots=True)
class HubSource:
    """The place of a data set on the hub. `splits` maps our names of splits to the hub's; None: the names are equal."""

    id: str
    config: str | None
    splits: Mapping[str, str] | None = None
    revision: str | None = None


def hub_table(name: str, hub: HubSource, split: str) -> Table:
    """Load a split of a data set. `name` is the recipe's name for the set. Raises DataError that says what to do."""
    if hub.splits is not None and split not in hub.splits:
        known = " and ".join(hub.splits)
        raise DataError(f"data.split: {name} has no split {split}; it has {known}{nearest(split, hub.splits)}")
    import httpx
    from datasets import load_dataset
    from datasets.exceptions import DatasetNotFoundError, DatasetsError

    hub_split = split if hub.splits is None else hub.splits[split]
    try:
        with only_the_cache_if_unreachable():
            dataset = load_dataset(hub.id, hub.config, split=hub_split, revision=hub.revision)
    except (OSError, ValueError, RuntimeError, KeyError, DatasetsError, httpx.HTTPError) as error:
        detail = one_line(str(error)) or type(error).__name__
        why = f"cannot be loaded ({detail})"
        if isinstance(error, DatasetNotFoundError):
            why = "the hub has no such data set, or this machine's login may not read it"
            if hub.revision is not None and detail.startswith("Revision"):
                why = f"the hub has no revision {hub.revision} of it (data.dataset: {hub.id}@REVISION)"
        elif isinstance(error, (ConnectionError, httpx.HTTPError)):
            why = f"the hub cannot be reached ({detail})"
        raise DataError(f"{hub.id}: {why}; {_remedy(hub, detail, split)}") from error
    where = f"{hub.id}[{split}]"

    def rows(names: Sequence[str]) -> Iterator[SourcedRow]:
        return ((f"{where}:{number}", row) for number, row in enumerate(dataset.select_columns(list(names)), start=1))

    return Table(where, tuple(dataset.column_names), rows(dataset.column_names), rows)


def _remedy(hub: HubSource, detail: str, split: str) -> str:
    if hub.splits is None and ("onfig" in detail and "vailable" in detail):
        return f"name one of them: data.dataset: {hub.id}:CONFIGURATION"
    if hub.splits is None and "plit" in detail and "hould be one of" in detail:
        return (
            f"there is no split {split}: set data.split (for gtpo eval: --split) to one of them; without a test split, "
            "data.held_out keeps a share of the questions from training"
        )
    if "scripts are no longer supported" in detail:
        return f"its rows come from a script, which is not run; try data.dataset: {hub.id}@refs/convert/parquet"
    if hub.splits is None:
        return (
            f"download a copy with a network (hf download --repo-type dataset {hub.id} --local-dir FOLDER) and set "
            "data.dataset to the folder, or data.path to a file"
        )
    return (
        f"set data.path to a local copy (for gtpo eval: --data-path), a file or a folder with {split}.jsonl, .parquet "
        f"or .csv, or {offline_remedy()}"
    )
