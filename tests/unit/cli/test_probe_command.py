"""What gtpo probe-entropy and gtpo try-reward sample with."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from gtpo_cli.cli.probe_entropy import probe_entropy
from gtpo_cli.cli.try_reward import try_reward
from gtpo_cli.machine import resolve
from gtpo_cli.recipe import Recipe


class AskedError(Exception):
    """The recipe was put into measuring's terms; nothing is loaded."""


@pytest.mark.parametrize("command", [probe_entropy, try_reward])
def test_the_engine_gets_the_share_for_measuring_unless_that_is_set(
    monkeypatch: pytest.MonkeyPatch, command: object
) -> None:
    kept: list[Collection[str]] = []

    def for_measuring(recipe: Recipe, machine: object, shape: object, engines: object, keep: Collection[str]) -> Recipe:
        assert recipe.rollout.gpu_memory_utilization == 0.7
        kept.append(keep)
        raise AskedError

    monkeypatch.setattr(resolve, "for_measuring", for_measuring)
    with pytest.raises(AskedError):
        command(recipe="tiny_arithmetic", set_=["rollout.gpu_memory_utilization=0.7"])  # type: ignore[operator]
    assert kept == [["rollout.gpu_memory_utilization"]]
