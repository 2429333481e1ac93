"""Whatever of torch's modes a user's reward or its module switches, training goes on as without it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gtpo_cli.data.reading import _function_gold
from gtpo_cli.recipe.rewards import RewardsRecipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.runs.user_code import _modes_of_process, _modes_of_thread, _read
from gtpo_cli.types import CodeName, Completion, Group, Problem

SWITCHES = [
    "torch.set_grad_enabled(False)",
    "torch.inference_mode().__enter__()",
    "globals().setdefault('kept', torch.inference_mode()).__enter__()",
    "torch.no_grad().__enter__()",
    "torch.autocast('cpu').__enter__()",
    "torch.set_default_device('meta')",
    "torch.set_default_dtype(torch.float64)",
    "torch.autograd.set_detect_anomaly(True)",
    "torch.set_num_threads(torch.get_num_threads() + 1)",
    "torch.set_float32_matmul_precision('medium')",
    "torch.use_deterministic_algorithms(True)",
]
FORMS = {
    "plain": "def reward(problem, completion):\n    {switch}\n    return 1.0",
    "async": "async def reward(problem, completion):\n    {switch}\n    return 1.0",
    "batch": "def reward(problems, completions):\n    {switch}\n    return [1.0] * len(problems)",
    "module": "{switch}\ndef reward(problem, completion):\n    return 1.0",
    "raises": "def reward(problem, completion):\n    {switch}\n    raise ValueError",
}


def modes() -> dict[str, object]:
    return _read(_modes_of_thread()) | _read(_modes_of_process())


@pytest.mark.parametrize("form", FORMS)
def test_no_form_of_a_reward_leaves_a_mode_behind(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = modes()
    groups = [Group(Problem(str(n), "q", "1"), (), (Completion((1,), (0.0,), "stop", "1"),) * 2) for n in range(3)]
    for number, switch in enumerate(SWITCHES):
        name = f"switches_{form}_{number}"
        (tmp_path / f"{name}.py").write_text("import torch\n" + FORMS[form].format(switch=switch) + "\n")
        recipe = RewardsRecipe.model_validate({"plugins": [{"name": f"{name}:reward"}]})
        with Scorer(recipe, num_workers=1) as scorer:
            try:
                scorer.score_groups(groups)
            except Exception:  # noqa: BLE001 - its own error
                assert form == "raises"
        assert modes() == before, switch


def test_a_gold_function_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = modes()
    for number, switch in enumerate(SWITCHES):
        code = f"import torch\ndef gold(row):\n    {switch}\n    return '1'\n"
        (tmp_path / f"switching_gold_{number}.py").write_text(code)
        assert _function_gold(CodeName(f"switching_gold_{number}:gold"), None)({"a": "1"}) == ("1", None)
        assert modes() == before, switch


def test_overlapping_blocks_end_with_the_modes_from_before_the_first() -> None:
    from gtpo_cli.runs.user_code import torch_modes_kept

    before = torch.get_default_dtype()
    first, second = torch_modes_kept(), torch_modes_kept()
    first.__enter__()
    torch.set_default_dtype(torch.float64)
    second.__enter__()  # sees what the first has changed
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert torch.get_default_dtype() == before
