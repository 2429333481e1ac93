"""Which signals are noted, said, and left alone."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from gtpo_cli.errors import CheckpointError, Terminated
from gtpo_cli.policy.loading import explained
from gtpo_cli.rewards.user_reward import call_plugin, load_plugin
from gtpo_cli.runs.files import guarded
from gtpo_cli.terminal.signals import ending_signals, interrupt_flag
from gtpo_cli.types import CodeName, Completion, Problem


def test_a_hangup_is_noted_and_the_first_signal_answered(capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGHUP)
    with interrupt_flag() as flag:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        assert flag == [signal.SIGHUP, signal.SIGTERM]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGHUP) is before
    said = capfd.readouterr().err
    assert said.count("\n") == 2
    assert "hung up: finishing and saving the current step; a second Ctrl-C or SIGTERM ends at once" in said


def test_a_signal_that_was_ignored_stays_so() -> None:
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert ending_signals() == [signal.SIGTERM]
        with interrupt_flag() as flag:
            os.kill(os.getpid(), signal.SIGHUP)
        assert flag == []
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("end", [Terminated(signal.SIGTERM), Terminated(signal.SIGHUP), KeyboardInterrupt()])
def test_no_wall_around_foreign_code_takes_a_signal_for_a_failure_of_it(
    end: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(type(end)), guarded(CheckpointError):
        raise end
    with pytest.raises(type(end)), explained(str(tmp_path)):
        raise end

    def reward(problem: Problem, completion: Completion) -> float:
        raise end

    with pytest.raises(type(end)):
        call_plugin("mine:reward", reward, Problem("a", "1+1", "2"), Completion((1,), (0.0,), "stop", "2"))
    (tmp_path / "signalled.py").write_text("raise ENDED")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("builtins.ENDED", end, raising=False)
    with pytest.raises(type(end)):
        load_plugin(CodeName("signalled:reward"))
