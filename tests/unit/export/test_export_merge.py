"""What is written is the base plus the adapter, in full precision, whatever the run trained on."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from exported_runs import export, moved_run, recipe_on
from peft.tuners.lora import LoraLayer
from policy_contract import LORA, save_model
from safetensors.torch import load_file, save_file
from torch import Tensor

from gtpo_cli.errors import ExportError
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.tools.export.weights import adapter_changes, holds, in_words, share_held

needs_bnb = pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not here")
RUN_SCALE = LORA["alpha"] / LORA["rank"]


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def expected(base: dict[str, Tensor], run: RunFolder) -> dict[str, Tensor]:
    """W + alpha/rank * B A in float64, by the names in the files."""
    (model,) = run.checkpoints.glob("step-*/model")
    adapter = load_file(model / "adapter_model.safetensors")
    result = {name: weight.double() for name, weight in base.items()}
    adapted = 0
    for name in base:
        prefix = f"base_model.model.{name.removesuffix('.weight')}.lora_"
        if f"{prefix}A.weight" in adapter:
            a, b = (adapter[f"{prefix}{half}.weight"].double() for half in "AB")
            result[name] = result[name] + RUN_SCALE * b @ a
            adapted += 1
    assert adapted == 2 * len(LORA["target_modules"])  # two layers
    return result


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def run(base: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return moved_run(tmp_path_factory.mktemp("run") / "one", recipe_on(base))


def test_merged_is_the_sum_computed_by_hand(base: Path, run: RunFolder, tmp_path: Path) -> None:
    done = export(run, dtype="float32", out=tmp_path / "out")
    before, found = weights(base), weights(done.path)
    wanted = expected(before, run)
    assert found.keys() == before.keys()
    changed = 0
    for name, weight in found.items():
        assert weight.dtype == torch.float32
        torch.testing.assert_close(weight.double(), wanted[name], rtol=1e-6, atol=1e-7)
        changed += not torch.equal(weight, before[name])
        assert torch.equal(weight, before[name]) == torch.equal(wanted[name], before[name].double())
    assert changed == 6
    assert done.difference.mean < 1e-5
    assert done.difference.effect is not None
    assert done.difference.effect > 0.01
    assert done.difference.kept == pytest.approx(1.0, abs=1e-3)
    assert done.difference.same_likeliest == done.difference.tokens
    assert done.rounding is None


def test_auto_is_bfloat16_rounded_once(base: Path, run: RunFolder, tmp_path: Path) -> None:
    done = export(run, out=tmp_path / "out")
    assert done.dtype == "bfloat16"
    wanted = expected(weights(base), run)
    for name, weight in weights(done.path).items():
        assert weight.dtype == torch.bfloat16
        assert (
            weight == wanted[name].to(torch.bfloat16)
        ).double().mean() > 0.999  # float64 may fall on a tie's other side
    assert 1e-5 < done.difference.mean < 0.1
    assert json.loads((done.path / "config.json").read_text())["dtype"] == "bfloat16"


def base_of(dtype: torch.dtype, folder: Path) -> Path:
    base = save_model(folder)
    config = base / "config.json"
    config.write_text(config.read_text().replace('"float32"', f'"{str(dtype).removeprefix("torch.")}"'))
    lower = {name: weight.to(dtype) for name, weight in weights(base).items()}
    save_file(lower, base / "model.safetensors", metadata={"format": "pt"})
    return base


@pytest.mark.parametrize(
    ("stored", "scale", "written"),
    [(torch.bfloat16, 0.03, "bfloat16"), (torch.bfloat16, 1e-3, "float16"), (torch.float16, 1e-5, "float32")],
)  # fmt: skip
def test_auto_is_the_first_type_that_holds_what_was_trained(
    stored: torch.dtype, scale: float, written: str, tmp_path: Path
) -> None:
    base = base_of(stored, tmp_path / "base")
    run = moved_run(tmp_path / "run", recipe_on(base), scale=scale)
    wanted = expected(weights(base), run)
    change = {name: wanted[name] - weight.double() for name, weight in weights(base).items()}
    own = str(stored).removeprefix("torch.")

    def held(dtype: str) -> float:
        rounding = {name: wanted[name].to(getattr(torch, dtype)).double() - wanted[name] for name in wanted}
        kept = sum((change[name] * (change[name] + rounding[name])).sum() for name in wanted)
        return float(kept / sum((part**2).sum() for part in change.values()))

    done = export(run)
    assert done.dtype == written
    assert held(written) > 0.9
    if written == own:
        assert done.notes == ()
        return
    assert all(held(coarser) < 0.9 for coarser in {own, "float16"} - {written})
    lost = f"{own} would hold {100 * held(own):.0f} % of training's changes of the weights"
    assert done.notes == (f"The weights are {written}, because {lost}. Load them as {written} too.",)
    assert ("--dtype float32" in (done.path / "README.md").read_text()) == (written == "float32")
    with pytest.raises(ExportError, match=f"^--dtype: {lost}, because .*; use --dtype auto"):
        export(run, dtype=own, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@needs_bnb
def test_a_run_in_4_bits_is_merged_into_the_full_precision_base(base: Path, tmp_path: Path) -> None:
    run = moved_run(tmp_path / "run", recipe_on(base, load_in_4bit=True))
    done = export(run, dtype="float32")
    wanted = expected(weights(base), run)
    for name, weight in weights(done.path).items():
        torch.testing.assert_close(weight.double(), wanted[name], rtol=1e-6, atol=1e-7)
    assert "quantization_config" not in json.loads((done.path / "config.json").read_text())
    assert done.rounding is not None
    assert done.rounding.mean < 1e-5  # what was written is what should have been
    assert done.rounding.kept == pytest.approx(1.0, abs=1e-3)
    assert done.difference.mean > 1e-3  # the rounding to 4 bits, which the policy had and the export has not
    assert "4 bits (NF4)" in " ".join(done.notes)


@pytest.mark.slow
@needs_bnb
def test_a_base_that_is_only_there_in_4_bits_is_dequantised(base: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from gtpo_cli.policy.loading import nf4_config

    model: Any = AutoModelForCausalLM.from_pretrained(base, quantization_config=nf4_config(torch.float32))
    model.save_pretrained(tmp_path / "base-4bit")
    AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "base-4bit")
    run = moved_run(tmp_path / "run", recipe_on(tmp_path / "base-4bit", load_in_4bit=True))
    done = export(run, dtype="float32")
    assert "has only quantised weights" in " ".join(done.notes)
    assert "quantization_config" not in json.loads((done.path / "config.json").read_text())
    wanted = expected({k: v.float() for k, v in model.dequantize(dtype=torch.float32).state_dict().items()}, run)
    for name, weight in weights(done.path).items():
        torch.testing.assert_close(weight.double(), wanted[name], rtol=1e-6, atol=1e-6)
    # with the base in full precision the rounding is gone
    full = export(run, dtype="float32", base=str(base), out=tmp_path / "full")
    assert full.rounding is not None
    torch.testing.assert_close(
        weights(full.path)["model.layers.0.self_attn.q_proj.weight"].double(),
        expected(weights(base), run)["model.layers.0.self_attn.q_proj.weight"],
        rtol=1e-6,
        atol=1e-7,
    )
    assert f"merged into {base.name}, named with --base" in " ".join(full.notes)


def test_another_base_is_found_out_and_nothing_is_left(run: RunFolder, tmp_path: Path) -> None:
    other = save_model(tmp_path / "other", seed=5)
    with pytest.raises(ExportError, match=r"not exported.*is this the base that the run trained on"):
        export(run, base=str(other), out=tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


@pytest.mark.parametrize("scale", [1e-12, 0.0], ids=["below every type", "untrained"])
def test_what_no_type_holds_is_not_written_and_what_nobody_trained_is_its_base(scale: float, tmp_path: Path) -> None:
    """At 1e-12 the adapter changes weights of 0.2 by some 1e-13: a step of float32 there is 1.5e-8."""
    base = save_model(tmp_path / "base")
    run = moved_run(tmp_path / "run", recipe_on(base), scale=scale)
    if scale:
        for dtype in ("auto", "float32"):
            with pytest.raises(ExportError, match=r"^not exported: \w+ would hold nothing of training's changes"):
                export(run, dtype=dtype)
            assert not run.export.exists() or not list(run.export.iterdir())
    else:
        done = export(run, dtype="float32")
        assert done.notes == ("Training changed nothing: these are the weights of the base.",)
        assert (done.difference.mean, done.difference.effect, done.difference.kept) == (0.0, 0.0, None)
        assert str(done.difference).endswith("; training changed none of them")
        found, before = weights(done.path), weights(base)
        assert all(torch.equal(found[name], before[name]) for name in before)
    done = export(run, "adapter", out=tmp_path / "adapter")  # byte for byte whatever is in it
    assert "%" not in str(done.difference)


@pytest.mark.parametrize(
    ("scale", "written", "auto"),
    [(0.05, "bfloat16", None), (1e-7, "float32", "would hold nothing of")],
)  # fmt: skip
def test_where_all_weights_trained_too_a_type_is_written_only_where_it_holds_that(
    scale: float, written: str, auto: str | None, tmp_path: Path
) -> None:
    """A base in bfloat16 stands on its steps: what is smaller would be gone without a word."""
    base = base_of(torch.bfloat16, tmp_path / "base")
    run = moved_run(tmp_path / "run", recipe_on(base, lora=None), scale=scale)
    done = export(run)
    assert done.dtype == written
    assert auto is None or auto in done.notes[0]
    assert (done.notes == ()) == (auto is None)
    if written != "bfloat16":
        with pytest.raises(ExportError, match=r"^--dtype: bfloat16 would hold .*; use --dtype auto"):
            export(run, dtype="bfloat16", out=tmp_path / "out")
    if written == "float32":
        (model,) = run.checkpoints.glob("step-*/model")
        found, wanted = weights(done.path), weights(model)
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    shutil.rmtree(base)
    done = export(run, dtype="bfloat16", out=tmp_path / "gone")
    assert done.notes == ("The model that training started from is missing, so the losses of bfloat16 are unknown.",)


@pytest.mark.parametrize(("step", "held"), [(0.6, None), (0.4, None), (0.0, None), (1.0, 1.0)])
def test_the_share_that_a_type_holds_by_hand(step: float, held: float | None) -> None:
    """Weights of 1 and changes of a part of bfloat16's step there, 2^-7: 0.6 rounds to one step, 0.4 to none."""
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(
        torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False)), LoraConfig(r=1, lora_alpha=1, target_modules=["0"])
    )
    (layer,) = (module for module in model.modules() if isinstance(module, LoraLayer))
    with torch.no_grad():
        layer.get_base_layer().weight.fill_(1.0)
        layer.lora_A["default"].weight.fill_(1.0)
        layer.lora_B["default"].weight.fill_(step / 128)
    share = share_held(adapter_changes(model), torch.bfloat16)
    if step == 0.0:
        assert share is None
    else:
        assert share == pytest.approx({0.6: 1 / 0.6, 0.4: 0.0, 1.0: 1.0}[step], abs=1e-6)
        assert holds(share) == (held is not None)
    assert [in_words(value) for value in (-0.2, 0.004, 0.37, 1.0, 1 / 0.6)] == [
        "nothing of", "nothing of", "37 % of", "100 % of", "1.67 times"
    ]  # fmt: skip


@pytest.mark.slow
def test_an_adapter_is_exported_byte_for_byte_and_names_its_base(base: Path, run: RunFolder, tmp_path: Path) -> None:
    done = export(run, "adapter", out=tmp_path / "out")
    (model,) = run.checkpoints.glob("step-*/model")
    file = "adapter_model.safetensors"
    assert (done.path / file).read_bytes() == (model / file).read_bytes()
    config = json.loads((done.path / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(base)
    public = export(run, "adapter", out=tmp_path / "public", hub_name="me/demo").path / "adapter_config.json"
    assert json.loads(public.read_text())["base_model_name_or_path"] == base.name
    assert config["lora_alpha"] == LORA["alpha"]
    assert done.difference.largest < 1e-5
