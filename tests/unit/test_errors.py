"""Commands in messages, as they can be typed where they are printed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gtpo_cli.cli import app
from gtpo_cli.errors import GtpoError, gtpo, install, pip_install, program


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a virtual environment's programs, `my project/.venv/bin`, which the shell does not search."""
    programs = tmp_path / "my project" / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    (programs / "gtpo").write_text("#!/bin/sh\n")
    (programs / "gtpo").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    monkeypatch.setattr(sys, "argv", [str(programs / "gtpo"), "train"])
    monkeypatch.setenv("PATH", str(Path(sys.base_exec_prefix, "bin")))  # another environment with the same Python
    monkeypatch.chdir(programs.parent.parent)
    return programs


def test_from_an_environment_that_is_not_activated(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pip_install() == ".venv/bin/python -m pip install"
    assert gtpo() == ".venv/bin/gtpo"
    monkeypatch.chdir("/usr/bin")
    assert pip_install() == f"'{environment}/python' -m pip install"
    assert gtpo() == f"'{environment}/gtpo'"


def test_a_librarys_command_is_that_of_this_environment(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = environment.parent / "elsewhere"
    elsewhere.mkdir()
    for folder in (environment, elsewhere):
        (folder / "wandb").write_text("#!/bin/sh\n")
        (folder / "wandb").chmod(0o755)
    monkeypatch.setenv("PATH", str(elsewhere))
    assert program("wandb") == ".venv/bin/wandb"
    monkeypatch.setenv("PATH", str(environment))
    assert program("wandb") == "wandb"
    (environment / "wandb").unlink()
    assert program("wandb") == "wandb"


def test_an_extra_is_installed_in_the_checkout(environment: Path) -> None:
    """A path from the working folder would be wrong there, unless it is the checkout."""
    assert install("trl") == f"'{environment}/python' -m pip install '.[trl]' in gtpo's checkout"
    Path("gtpo_cli").mkdir()
    assert install("trl") == ".venv/bin/python -m pip install '.[trl]' in gtpo's checkout"


def test_errors_say_commands_as_they_can_be_typed(
    environment: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise GtpoError("x: gtpo eval x, or `gtpo recipes list`; gtpo cannot; .venv/bin/gtpo eval; in gtpo's checkout")

    monkeypatch.setattr(app, "app", fail)
    with pytest.raises(SystemExit):
        app.main()
    assert capsys.readouterr().err == (
        "error: x: .venv/bin/gtpo eval x, or `.venv/bin/gtpo recipes list`; gtpo cannot; .venv/bin/gtpo eval; in "
        "gtpo's checkout\n"
    )
