"""TRL's trainer and gtpo's own loop on the same completions: the same coefficient for every token, the same gradient,
the same weights; in one process and in two, with groups that lie on both."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import forks
import pytest
import torch
from commands import ROOT, environment
from jobs import policy_of, sampler_of
from small_steps import whole_step

from gtpo_cli.machine.resolve import Parts
from gtpo_cli.policy.packing import training_budget
from gtpo_cli.recipe import Recipe
from gtpo_cli.recipe.load import build_recipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.training.optimizers import Updater
from gtpo_cli.training.step import StepParts, StepRows
from gtpo_cli.training.stopwatch import Stopwatch

B, G = 3, 4
DOCUMENT = {
    "model": {"name": "builtin:tiny"},
    "data": {"benchmark": "arithmetic", "limit": 12},
    "rollout": {"group_size": G, "prompts_per_step": B, "max_completion_tokens": 28, "temperature": 1.3},
    "optimizer": {"max_grad_norm": 1e6, "warmup_ratio": 0.0, "learning_rate": 1e-3, "schedule": "constant"},
    "training": {"max_steps": 2, "micro_batch_size": 3},
    "tracking": {"wandb": {"mode": "off"}},
}
INITIAL_ENTROPY = 0.3
# The filter's threshold lies within the entropies of these completions, the length limit within their lengths.
VARIANTS = {
    "gtpo": {"filter": {"threshold": 0.15}},
    "gtpo, all that departs from it": {
        "filter": {"threshold": 0.12, "only_negative": True},
        "conflict": {"alignment": "prefix"}, "token_weights": {"config": {"negative": 0.5}},
        "advantages": {"config": {"scale": "none"}}, "entropy_coef": 2.0,
    },
    "gtpo, three iterations": {"filter": {"threshold": 0.2}, "num_iterations": 3, "clip_epsilon": 0.02},
    "gtpo's corrections on dapo": {
        "name": "dapo", "token_weights": {"rule": "conflict"}, "filter": {"enabled": "auto", "threshold": 0.15},
        "entropy_coef": 0.1, "num_iterations": 2,
    },
    "cispo": {"name": "cispo", "num_iterations": 2},
    "rloo": {"name": "rloo"},
    "filter on gspo": {
        "name": "gspo", "filter": {"enabled": "auto", "threshold": 0.15}, "num_iterations": 2,
        "clip": {"low": 0.02, "high": 0.03},  # with its own every completion is beyond after an update
    },
    "dr_grpo": {"name": "dr_grpo"},
    # not top_entropy: equal tokens have equal entropies, and rounding decides which of them reach the quantile
    "entropies of a step": {"name": "grpo", "token_weights": {"rule": "rules_here:by_entropy"}},
    "entropies of a row": {
        "name": "grpo", "token_weights": {"rule": "entropy_advantage"}, "advantages": {"rule": "quantile"},
    },
    "grpo with KL": {"name": "grpo", "kl_coef": 0.5, "num_iterations": 2},
}  # fmt: skip


class Own:
    """Two batches in gtpo's own loop: what it sampled, weighed, and did to the weights."""

    def __init__(self, objective: dict[str, Any], mask_truncated: bool) -> None:
        self.document: dict[str, Any] = DOCUMENT | {"objective": objective}
        self.document["rollout"] = DOCUMENT["rollout"] | {"mask_truncated": mask_truncated}
        self.recipe: Recipe = build_recipe(self.document, where="test")
        torch.set_num_threads(1)
        job = Parts(self.recipe).training_job()
        policy = policy_of(self.recipe)
        updater = Updater(policy.trainable_parameters(), self.recipe.optimizer, total_steps=2)
        micro = training_budget(3, longest_row=64, warn=print)
        self.results: list[StepRows] = []
        self.gradients: list[torch.Tensor] = []

        def note(*_: object) -> None:  # far below max_grad_norm: the gradients are as they were
            self.gradients.append(torch.cat([p.grad.flatten() for p in policy.trainable_parameters()]))

        updater.optimizer.register_step_pre_hook(note)
        with Scorer(self.recipe.rewards, longest=self.recipe.rollout.max_completion_tokens) as scorer:
            sampler = sampler_of(policy, self.recipe)
            parts = StepParts(
                self.recipe.objective, self.recipe.rollout, policy, sampler, scorer, updater, INITIAL_ENTROPY, micro
            )
            self.prompts = job.data.prompts[: 2 * B]
            for step in range(2):
                prompts = self.prompts[step * B : (step + 1) * B]
                self.results.append(whole_step(parts, prompts, seed=40 + step, clock=Stopwatch()))
        self.weights = torch.cat([parameter.detach().flatten() for parameter in policy.trainable_parameters()])

    def coefficients(self, step: int) -> torch.Tensor:
        """delta (A - gamma <H>) lambda of each token, (B * G, T): the definition, from the parts the loop used."""
        result = self.results[step]
        c_N = result.advantages_N - self.recipe.objective.entropy_coef * result.mean_entropy_N
        return ((c_N * result.keep_N)[:, None] * result.weights_NT * result.mask_NT).float()

    def record(self, file: Path) -> None:
        batches = [
            [
                {
                    "problem": step * B + b,
                    "prompt_ids": list(group.prompt_ids),
                    "completion_ids": list(completion.token_ids),
                    "reward": verdict.reward,
                }
                for b, group in enumerate(result.samples.groups)
                for completion, verdict in zip(group.completions, group.verdicts, strict=True)
            ]
            for step, result in enumerate(self.results)
        ]
        torch.save({"recipe": self.document, "batches": batches, "initial_entropy": INITIAL_ENTROPY}, file)


@pytest.fixture(scope="module")
def own_runs() -> dict[str, Own]:
    return {name: Own(objective, mask_truncated="departs" in name) for name, objective in VARIANTS.items()}


@pytest.fixture(scope="module", params=[1, 2], ids="{} processes".format)
def replayed(
    request: pytest.FixtureRequest, own_runs: dict[str, Own], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[dict[str, Any]]]:
    """What TRL made of each variant, on one process or two: a list with the results of each process."""
    processes, folder = request.param, tmp_path_factory.mktemp("replay")
    records = {name: folder / f"variant{number}.pt" for number, name in enumerate(own_runs)}
    for name, record in records.items():
        own_runs[name].record(record)
    command = [str(ROOT / "tests/trl/replay.py"), str(folder), *map(str, records.values())]
    known = environment() | forks.WITH_TRL
    for done in forks.run_distributed(command, processes, cwd=folder, env=known):
        assert done.returncode == 0, done.stderr[-4000:]
    return {
        name: [torch.load(folder / f"{record.stem}-{rank}.pt", weights_only=True) for rank in range(processes)]
        for name, record in records.items()
    }


def relative(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """0 where both are 0: every completion beyond the clip range, or filtered."""
    return 0.0 if torch.equal(actual, expected) else float((actual - expected).norm() / expected.norm())


@pytest.mark.parametrize("variant", VARIANTS)
def test_trl_gives_every_token_the_weight_of_our_own_loop(
    variant: str, own_runs: dict[str, Own], replayed: dict[str, list[dict[str, Any]]]
) -> None:
    own, of_process = own_runs[variant], replayed[variant]
    for step in range(2):
        expected = own.coefficients(step)
        rows = [process["advantages"][step] for process in of_process]
        assert all(len(part) == B * G // len(of_process) for part in rows)  # by 2, group 2 lies on both
        width = expected.shape[1]
        padded = torch.cat([torch.nn.functional.pad(part, (0, width - part.shape[1])) for part in rows])
        tolerance = {"rtol": 1e-6, "atol": 1e-6} if step == 0 else {"rtol": 1e-4, "atol": 1e-5}  # after an update
        torch.testing.assert_close(padded, expected, **tolerance)
    updates = own.recipe.objective.num_iterations
    for process in of_process:
        assert len(process["gradients"]) == len(own.gradients) == 2 * updates
        # In float32; both are as far from the exact gradient (below), which is small beside the terms it is the sum of.
        assert relative(process["gradients"][0], own.gradients[0]) < 3e-6
        size = max(1.0, float(own.gradients[0].abs().max()))  # RLOO's rewards and lengths are divided by nothing
        assert float((process["gradients"][0] - own.gradients[0]).abs().max()) < 1e-6 * size
        print(variant, [f"{relative(process['gradients'][u], own.gradients[u]):.1e}" for u in range(2 * updates)])
        for update in range(1, 2 * updates):
            assert relative(process["gradients"][update], own.gradients[update]) < 2e-4
        assert relative(process["weights"], own.weights) < 1e-5


@pytest.mark.parametrize(
    ("config", "sharding"),
    [("fsdp2", ["DistributedType.FSDP", "DTensor", None]), ("zero2", ["DistributedType.DEEPSPEED", "Tensor", 2])],
)
def test_sharded_over_two_processes_it_is_the_same(
    config: str, sharding: list[Any], own_runs: dict[str, Own], tmp_path: Path
) -> None:
    """By `accelerate launch` with the configuration that is shipped."""
    if config == "zero2":
        pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
    own, record = own_runs["gtpo, three iterations"], tmp_path / "record.pt"
    own.record(record)
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file"]
    done = subprocess.run(
        [*launcher, ROOT / f"examples/accelerate/{config}.yaml", ROOT / "tests/trl/replay.py", tmp_path, record],
        env=os.environ | {"CI": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "DS_ACCELERATOR": "cpu"},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    processes = [torch.load(tmp_path / f"record-{rank}.pt", weights_only=True) for rank in range(2)]
    for step, tolerance in enumerate((1e-6, 1e-5)):
        expected = own.coefficients(step)
        rows = [process["advantages"][step] for process in processes]
        padded = [torch.nn.functional.pad(part, (0, expected.shape[1] - part.shape[1])) for part in rows]
        torch.testing.assert_close(torch.cat(padded), expected, rtol=10 * tolerance, atol=tolerance)
    for process in processes:
        assert process["sharding"] == sharding
        assert relative(process["weights"], own.weights) < 1e-5


@pytest.mark.parametrize("variant", ["gtpo", "gtpo, all that departs from it"])
def test_both_gradients_are_those_of_full_logits_in_float64(
    variant: str, own_runs: dict[str, Own], replayed: dict[str, list[dict[str, Any]]]
) -> None:
    """Of the first update, from the coefficients: -sum c ln pi / (B G |o|), row by row, no padding. `-s` prints."""
    own = own_runs[variant]
    exact = full_logits_gradient(own, torch.float64)
    errors = {
        "gtpo": relative(own.gradients[0].double(), exact),
        "TRL": relative(replayed[variant][0]["gradients"][0].double(), exact),
        "full logits in float32": relative(full_logits_gradient(own, torch.float32).double(), exact),
    }
    print(variant, {name: f"{error:.1e}" for name, error in errors.items()})
    assert max(errors.values()) < 5e-6


def full_logits_gradient(own: Own, dtype: torch.dtype) -> torch.Tensor:
    model = policy_of(own.recipe).model
    model.set_attn_implementation("sdpa")
    for parent in list(model.modules()):  # transformers' norms compute in float32 whatever the model's type
        for name, child in parent.named_children():
            if type(child).__name__ == "LlamaRMSNorm":
                norm = torch.nn.RMSNorm(len(child.weight), eps=child.variance_epsilon)
                norm.weight = child.weight
                setattr(parent, name, norm)
    model.to(dtype)
    result, loss = own.results[0], torch.zeros((), dtype=dtype)
    rows = [(group, completion) for group in result.samples.groups for completion in group.completions]
    for (group, completion), c_T in zip(rows, own.coefficients(0), strict=True):
        ids, length = completion.token_ids, len(completion.token_ids)
        logits = model(input_ids=torch.tensor([[*group.prompt_ids, *ids]])).logits[0, len(group.prompt_ids) - 1 : -1]
        logp = torch.log_softmax(logits / own.recipe.rollout.temperature, dim=-1).gather(1, torch.tensor(ids)[:, None])
        loss = loss - (logp[:, 0] * c_T[:length]).sum() / (length * len(rows))
    return torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, list(model.parameters()))])


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_recorded_steps_have_what_the_comparison_is_about(variant: str, own_runs: dict[str, Own]) -> None:
    """Filtered and kept completions, conflict tokens of both signs, ends and truncations."""
    own = own_runs[variant]
    keep = torch.cat([result.keep_N for result in own.results])
    weights = torch.cat([result.weights_NT[result.mask_NT] for result in own.results])
    truncated = torch.cat([result.truncated_N for result in own.results])
    assert 0 < int(truncated.sum()) < len(truncated)
    token_weights = own.recipe.objective.token_weights
    if token_weights.rule == "conflict":
        assert 0 < int(keep.sum()) < len(keep)
        assert {token_weights.config.get("negative", 0.0), 1.0, 2.0} == set(weights.unique().tolist())
    assert all(bool((result.advantages_N != 0).any()) for result in own.results)
