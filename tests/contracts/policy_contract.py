"""What holds for every policy, whatever library holds the model. A tier subclasses `PolicyContract`."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import policy_of
from small_models import random_model

from gtpo_cli.objective import Rows
from gtpo_cli.policy.sampler import collate
from gtpo_cli.recipe import Recipe, build_recipe
from gtpo_cli.types import Completion, Group, Problem

PROMPTS = ((1, 4, 20, 21, 5), (1, 4, 30, 31, 32, 33, 34, 5))
LORA = {"rank": 4, "alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"]}


def ragged_rows(device: Any = None) -> Rows:
    """Two prompts of different length, three completions each: long, one-token, and empty."""
    groups = []
    for prompt, row in zip(PROMPTS, ((9, 1, 4), (2, 0, 7)), strict=True):
        completions = []
        for number, length in enumerate(row):
            ids = tuple((7 * k + 3 * number + length) % 90 + 8 for k in range(length))
            completions.append(Completion(ids, (0.0,) * length, "stop", ""))
        groups.append(Group(Problem("p", "q", "1"), prompt, tuple(completions)))
    return collate(groups, device=device)


def plain_logprobs(model: Any, rows: Rows, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """One row at a time, no padding, full logits, float64 softmax."""
    device = rows.ids_NT.device
    logp, entropy = (torch.zeros(rows.ids_NT.shape, dtype=torch.float64, device=device) for _ in range(2))
    for n in range(len(rows)):
        ids, prompt = rows.ids_NT[n][rows.mask_NT[n]], PROMPTS[int(rows.prompt_N[n])]
        if len(ids) == 0:
            continue
        row = torch.cat([torch.tensor(prompt, device=device), ids])[None]
        logits = model(input_ids=row).logits[0, len(prompt) - 1 : -1].double() / temperature
        full = torch.log_softmax(logits, dim=-1)
        logp[n, : len(ids)] = full.gather(1, ids[:, None])[:, 0]
        entropy[n, : len(ids)] = -(full.exp() * full).sum(-1)
    return logp, entropy


def save_model(folder: Path, architecture: str = "llama", **changes: Any) -> Path:
    model, tokenizer = random_model(architecture, **changes)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def recipe_for(folder: Path, *, rollout: dict[str, Any] | None = None, **model: Any) -> Recipe:
    """A recipe for a small model in float32."""
    settings = {"name": str(folder), "load_in_4bit": False, "lora": LORA, "max_seq_length": 128, "dtype": "float32",
                "gradient_checkpointing": False} | model  # fmt: skip
    data = {"benchmark": "arithmetic", "max_prompt_tokens": 32}
    return build_recipe({"model": settings, "data": data, "rollout": rollout or {}}, where="test")


def train_a_little(policy: Any, steps: int = 2) -> None:
    optimizer = torch.optim.SGD(list(policy.trainable_parameters()), lr=0.05)
    for _ in range(steps):
        policy.token_logprobs(ragged_rows(policy.device))[0].sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def move(policy: Any) -> None:
    """A new adapter changes nothing; this one does."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in policy.trainable_parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))


adapter_and_all_weights = pytest.mark.parametrize("lora", [LORA, None], ids=["adapter", "all weights"])


class PolicyContract:
    """Tests of the policies that `backend` gives; `folder` is a model in both architectures."""

    backend: str

    @pytest.fixture(scope="class", params=["llama", "qwen2"])
    def folder(self, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return save_model(tmp_path_factory.mktemp(request.param), request.param)

    def load(self, folder: Path, lora: Any = LORA, **changes: Any) -> Any:
        return policy_of(recipe_for(folder, backend=self.backend, lora=lora, **changes))

    @adapter_and_all_weights
    @pytest.mark.parametrize(("temperature", "checkpointing"), [(1.0, False), (0.7, True)])
    def test_logprobs_entropies_and_gradients_equal_full_logits(
        self, folder: Path, lora: Any, temperature: float, checkpointing: bool
    ) -> None:
        rollout = {"temperature": temperature}
        policy = self.load(folder, lora, rollout=rollout, gradient_checkpointing=checkpointing)
        if lora is not None:
            train_a_little(policy)  # a new adapter's gradient is zero in one half
        batch = ragged_rows(policy.device)
        logp, entropy = policy.token_logprobs(batch)
        weights = torch.linspace(-1, 1, logp.numel(), device=logp.device).view(logp.shape)
        (logp * weights).sum().backward()
        exact = copy.deepcopy(policy.model).double()
        exact.zero_grad()
        expected, expected_entropy = plain_logprobs(exact, batch, temperature)
        (expected * weights).sum().backward()
        torch.testing.assert_close(logp.double(), expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(entropy.double(), expected_entropy, rtol=1e-5, atol=1e-6)
        assert not entropy.requires_grad
        trained = [parameter for parameter in exact.parameters() if parameter.requires_grad]
        assert trained
        for ours, parameter in zip(policy.trainable_parameters(), trained, strict=True):
            assert (ours.grad - parameter.grad).norm() <= 1e-5 * parameter.grad.norm()

    @adapter_and_all_weights
    def test_tokens_that_do_not_train_have_their_logprobs_and_no_gradient(self, folder: Path, lora: Any) -> None:
        policy = self.load(folder, lora)
        batch = ragged_rows(policy.device)
        trained = (torch.arange(batch.mask_NT.numel(), device=policy.device) % 3 == 0).view_as(batch.mask_NT)
        gradients = []
        for cut in (None, trained):
            logp, entropy = policy.token_logprobs(batch, trained_NT=cut)
            (logp * trained).sum().backward()
            gradients.append([parameter.grad.clone() for parameter in policy.trainable_parameters()])
            policy.model.zero_grad()
        whole, whole_entropy = policy.token_logprobs(batch)
        torch.testing.assert_close(logp, whole, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(entropy, whole_entropy, rtol=1e-5, atol=1e-6)
        assert any(gradient.norm() > 0 for gradient in gradients[0])
        for expected, actual in zip(*gradients, strict=True):
            assert (actual - expected).norm() <= 1e-5 * expected.norm()
        logp, _ = policy.token_logprobs(batch, trained_NT=trained)
        logp[batch.mask_NT & ~trained].sum().backward()
        assert all(parameter.grad.abs().max() == 0 for parameter in policy.trainable_parameters())

    @adapter_and_all_weights
    def test_micro_batches_give_what_the_whole_batch_gives(self, folder: Path, lora: Any) -> None:
        policy = self.load(folder, lora)
        batch = ragged_rows(policy.device)
        with torch.no_grad():
            whole, _ = policy.token_logprobs(batch)
            for rows in (1, 2, 3):
                parts = torch.zeros_like(whole)
                for index in batch.split(rows, packed=policy.packs):
                    logp, _ = policy.token_logprobs(batch[index])
                    parts[index, : logp.shape[1]] = logp
                torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-5)

    def test_the_reference_is_the_model_without_its_adapter(self, folder: Path) -> None:
        policy = self.load(folder)
        batch = ragged_rows(policy.device)
        before = policy.token_logprobs(batch)[0].detach()
        torch.testing.assert_close(policy.reference_logprobs(batch), before, rtol=0, atol=0)
        train_a_little(policy)
        assert (policy.token_logprobs(batch)[0].detach() - before).abs().max() > 1e-3
        torch.testing.assert_close(policy.reference_logprobs(batch), before, rtol=0, atol=0)
        assert not policy.reference_logprobs(batch).requires_grad

    @adapter_and_all_weights
    def test_save_and_load_give_the_same_weights_bit_for_bit(self, folder: Path, lora: Any, tmp_path: Path) -> None:
        policy = self.load(folder, lora)
        train_a_little(policy)
        policy.save(tmp_path / "saved")
        assert not [file for file in (tmp_path / "saved").rglob("*") if file.suffix in (".bin", ".pt", ".pkl")]
        if lora is not None:  # the same bytes whatever process writes them
            config = json.loads((tmp_path / "saved" / "adapter_config.json").read_text())
            assert config["target_modules"] == sorted(lora["target_modules"])
        fresh = self.load(folder, lora)
        fresh.load(tmp_path / "saved")
        for ours, theirs in zip(policy.trainable_parameters(), fresh.trainable_parameters(), strict=True):
            assert torch.equal(ours, theirs)
        batch = ragged_rows(policy.device)
        assert torch.equal(policy.token_logprobs(batch)[0], fresh.token_logprobs(batch)[0])

    @adapter_and_all_weights
    def test_an_adapter_is_seeded_and_only_it_trains(self, folder: Path, lora: Any) -> None:
        first, second = self.load(folder, lora), self.load(folder, lora)
        names = [name for name, p in first.model.named_parameters() if p.requires_grad]
        assert names
        assert all("lora_" in name for name in names) == (lora is not None)
        for ours, theirs in zip(first.trainable_parameters(), second.trainable_parameters(), strict=True):
            assert torch.equal(ours, theirs)
