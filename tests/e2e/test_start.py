"""A run that starts from another run's checkpoint, or from an adapter: its weights, and nothing else of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from commands import Run, comparable, contents, metrics
from safetensors.torch import load_file

from gtpo_cli.policy.tiny import resolve_name
from gtpo_cli.recipe import load_recipe
from gtpo_cli.recipe.section import recipe_differences

SMALL = [
    "rollout.prompts_per_step=2", "rollout.group_size=4", "rollout.max_completion_tokens=48", "training.save_every=2",
    "objective.probe.num_prompts=4", "data.system_prompt=null",
    "data.limit=64", "evaluation={limit: 4, samples: 2, pass_k: [1], majority_k: [2]}",
]  # fmt: skip
ADAPTER = ["model.name=model", "model.load_in_4bit=false", "model.gradient_checkpointing=false",
           "model.lora={rank: 4, alpha: 12, target_modules: [q_proj, down_proj]}"]  # fmt: skip


def train(name: str, *changes: str, start: str | None = None, recipe: str | None = "tiny_arithmetic") -> list[str]:
    sources = [*(["--recipe", recipe] if recipe else []), *(["--from", start] if start else [])]
    overrides = [f"run_name={name}", *(SMALL if recipe else []), *changes]
    return ["train", "--quiet", *sources, *(part for o in overrides for part in ("--set", o))]


def sft(*changes: str) -> list[str]:
    rate = ["optimizer.learning_rate=3e-3", "optimizer.schedule=constant", "optimizer.warmup_ratio=0"]
    return train("sft", "objective.name=sft", "training.max_steps=4", *rate, *changes)


# With rate 0 at step 1 (warm-up) the policy of step 1 is that of the start, and so is its checkpoint.
NEXT = ["training.max_steps=4", "training.save_every=1", "training.keep_last=4", "objective.kl_coef=0.01",
        "objective.num_iterations=2", "tracking.log_completions_every=1"]  # fmt: skip


def weights(checkpoint: Path) -> dict[str, bytes]:
    (file,) = (checkpoint / "model").glob("*.safetensors")
    return {name: tensor.numpy().tobytes() for name, tensor in load_file(file).items()}


@pytest.fixture(autouse=True)
def _a_model_folder(tmp_path: Path) -> None:
    shutil.copytree(resolve_name("builtin:tiny"), tmp_path / "model")


@pytest.mark.parametrize(("name", "extra"), [("model", ADAPTER), ("builtin:tiny", [])], ids=["adapter", "all weights"])
def test_gtpo_from_sft(gtpo: Run, tmp_path: Path, name: str, extra: list[str]) -> None:
    gtpo(*sft(*extra))
    source, run = tmp_path / "runs/sft", tmp_path / "runs/rl"
    said = gtpo(*train("rl", *NEXT, start="runs/sft:last")).stdout
    assert f"loading {name} from runs/sft:4 (transformers)" in said
    overridden = "model.lora: {rank: 4, alpha: 12, target_modules: [q_proj, down_proj]}, as runs/sft:4 was trained, "
    assert (f"{overridden}instead of the recipe's null" in said) == bool(extra)

    # It starts as the other ended: the same weights, from which the KL is 0 at first.
    assert metrics(run)[0]["optim/learning_rate"] == 0.0
    assert weights(run / "checkpoints/step-000001") == weights(source / "checkpoints/step-000004")
    assert weights(run / "checkpoints/step-000004") != weights(source / "checkpoints/step-000004")
    kl = [row["policy/kl"] for row in metrics(run)]
    assert kl[0] == 0.0
    assert all(value > 0.0 for value in kl[1:])
    model, lora = load_recipe(run / "recipe.yaml").model, load_recipe(source / "recipe.yaml").model.lora
    assert (model.start, model.name) == ("runs/sft:4", name)
    assert (model.lora and (model.lora.rank, model.lora.alpha)) == (lora and (lora.rank, lora.alpha))
    assert json.loads((run / "environment.json").read_text())["start"] == "runs/sft:4"

    # The initial entropy is that of what it starts from.
    entropy = json.loads((run / "initial_entropy.json").read_text())["initial_entropy"]
    for change, same in (((), True), (("--set", "model.start=null"), False)) if extra else ():
        probed = json.loads(gtpo("probe-entropy", "--recipe", "runs/rl/recipe.yaml", *change, "--json").stdout)
        assert (probed["initial_entropy"] == entropy) == same
    gtpo("eval", "runs/sft", "--checkpoint", "last")
    (of_source,) = (source / "evaluation/arithmetic").glob("step-000004-*/samples.jsonl")
    expected = of_source.read_bytes()

    # The other run is not needed any more: to resume bit for bit, to evaluate the base, to ask, to export.
    shutil.copytree(run, tmp_path / "cut")
    shutil.rmtree(source)
    for step in (3, 4):
        shutil.rmtree(tmp_path / f"cut/checkpoints/step-{step:06d}")
    gtpo("train", "--quiet", "--resume", "cut")
    assert comparable(tmp_path / "cut") == comparable(run)
    assert contents(tmp_path / "cut") == contents(run)
    said = gtpo("eval", "runs/rl", "--base", "--checkpoint", "last").stdout
    assert f"base is {name} from runs/sft:4, as the run began, with the trained one's prompts" in said
    (of_base,) = (run / "evaluation/arithmetic").glob("base-*/samples.jsonl")
    assert of_base.read_bytes() == expected
    if not extra:
        return
    assert "model from runs/sft:4, as the run began" in gtpo("generate", "runs/rl", "1+2=?", "--base").stdout
    assert "runs/rl/export/merged: merged" in gtpo("export", "runs/rl", "--format", "merged").stdout
    gtpo("report", "runs/rl")
    assert "model from runs/sft:4 on arithmetic" in (run / "report/report.html").read_text()
    shutil.rmtree(run / "start")
    missing = gtpo("eval", "runs/rl", "--base", "--again", code=2).stderr
    assert "runs/rl/start: is missing; it had the weights of runs/sft:4, from which this run started" in missing


def test_a_branch_and_an_adapter_of_another_tool(gtpo: Run, tmp_path: Path) -> None:
    gtpo(*sft(*ADAPTER))
    source = tmp_path / "runs/sft"

    # A branch: the other run's recipe, the weights of one of its steps, and a schedule and moments of its own.
    gtpo(*train("branch", "optimizer.learning_rate=1e-9", "training.max_steps=1", start="runs/sft:2", recipe=None))
    branch, own = load_recipe(tmp_path / "runs/branch/recipe.yaml"), load_recipe(source / "recipe.yaml")
    assert [key for key, _ in recipe_differences([own, branch])] == [
        "model.start", "optimizer.learning_rate", "training.max_steps"
    ]  # fmt: skip
    first = comparable(tmp_path / "runs/branch")[0]
    assert first["optim/loss"] < comparable(source)[0]["optim/loss"]  # the same references, now known better
    kept, start = tmp_path / "runs/branch/start", source / "checkpoints/step-000002/model"
    assert (kept / "adapter_model.safetensors").stat().st_ino == (start / "adapter_model.safetensors").stat().st_ino

    # An adapter's folder: a copy of its two files is kept.
    adapter = tmp_path / "adapter"
    shutil.copytree(start, adapter)
    named = json.loads((adapter / "adapter_config.json").read_text()) | {"base_model_name_or_path": "model"}
    (adapter / "adapter_config.json").write_text(json.dumps(named))
    (adapter / "optimizer.bin").write_bytes(b"of the other tool")
    plain = ["model.load_in_4bit=false", "model.gradient_checkpointing=false", "training.max_steps=1"]
    gtpo(*train("further", *plain, start="adapter"))
    kept = tmp_path / "runs/further/start"
    names = ["adapter_config.json", "adapter_model.safetensors", "start.json"]
    assert sorted(file.name for file in kept.iterdir()) == names
    trained = tmp_path / "runs/further/checkpoints/step-000001"
    assert weights(trained) == weights(source / "checkpoints/step-000002")  # at rate 0

    (adapter / "adapter_config.json").write_text(json.dumps(named | {"use_rslora": True}))
    gtpo(*sft("run_name=whole", "training.max_steps=1"))
    lora = "--set model.lora='{rank: 4, alpha: 12, target_modules: [q_proj, down_proj]}'"
    for arguments, said in (
        (
            train("other", start="adapter"),
            "use_rslora: True is more than plain LoRA, which is all that gtpo computes exactly; merge it into its base",
        ),
        (train("other", start="runs/sft:3"), "there is no checkpoint 3; choose best, last or one of the steps 2, 4"),
        (train("other", start="runs/none:3"), "model.start: runs/none does not exist; name a run's folder (RUN, "),
        (train("other", start="model"), "model.start: model is a whole model; train it with --set model.name=model"),
        (train("other", "model.lora={rank: 8}", start="runs/sft"), f"can only be trained as it is: {lora}"),
        (train("other", "model.lora=null", start="runs/sft"), f"train the adapter further ({lora}), or merge it"),
        (
            train("other", "model.lora={}", start="runs/whole"),
            "has all weights trained, but this recipe trains an adap",
        ),
        (
            train("other", "model.name=runs/sft"),
            "further with model.start (gtpo train --from runs/sft)",
        ),
        (["train", "--resume", "runs/sft", "--from", "runs/sft"], "leave one of them out"),
    ):
        assert said in " ".join(gtpo(*arguments, code=2).stderr.split())
    other = yaml.safe_load(
        gtpo(*train("other", "objective.name=gtpo", start="runs/sft", recipe=None), "--dry-run").stdout
    )
    assert (other["objective"]["token_weights"]["rule"], other["training"]["keep_best"]) == (
        "conflict", "train/accuracy_rate"
    )  # fmt: skip
    assert not (tmp_path / "runs/other").exists()
