"""The keys that `gtpo train --resume RUN --set KEY=...` takes."""

from gtpo_cli.cli.train import ENDS
from gtpo_cli.recipe import Recipe
from gtpo_cli.recipe.schema import CHANGES_NO_STEP, VllmArguments
from gtpo_cli.recipe.section import fields_of


def test_they_are_keys_of_a_recipe() -> None:
    arguments = {f"rollout.vllm.{name}" for name in VllmArguments.__annotations__}
    assert {*ENDS, *CHANGES_NO_STEP} <= set(fields_of(Recipe)) | arguments
