"""TensorBoard event files in `<run>/tensorboard` (`tracking.tensorboard: true`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gtpo_cli.errors import RecipeError, install
from gtpo_cli.text import markdown_table, markdown_text
from gtpo_cli.tracking.tracker import TableRow


class TensorBoardTracker:
    """Writes a scalar for each metric, under the declared names, and tables as text.

    `start_step`: the last step that a resumed run keeps. Raises RecipeError if the package tensorboard is missing.
    """

    def __init__(self, folder: Path, *, start_step: int = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise RecipeError(
                f"tracking.tensorboard: true needs the package tensorboard ({error}); "
                f"{install('tensorboard')}, or set tracking.tensorboard: false"
            ) from error
        # purge_step lets steps that are made again after a resume replace the old ones.
        self._writer = SummaryWriter(str(folder), purge_step=start_step + 1)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def log_table(self, step: int, name: str, rows: Sequence[TableRow]) -> None:
        """Write a table as text, which TensorBoard draws as Markdown."""
        cells = ([_cell(value) for value in row.values()] for row in rows)
        self._writer.add_text(name, markdown_table(list(rows[0]), cells), step)

    def close(self) -> None:
        self._writer.close()


def _cell(value: str | float | None) -> str:
    return "" if value is None else markdown_text(value) if isinstance(value, str) else f"{value:g}"
