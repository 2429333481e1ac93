"""Rules that TRL has, too: the same loss and gradient, the same tokens, the same advantages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

trl = pytest.importorskip("trl")  # before what it brings
import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from test_trl_methods import B, G, T, batch, gradient, logprobs, trainer_of  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

from gtpo_cli.objective import Method, Rewards, Tokens, loss, policy_loss  # noqa: E402
from gtpo_cli.objective.advantages import each_reward  # noqa: E402
from gtpo_cli.objective.token_rules import top_entropy  # noqa: E402
from gtpo_cli.policy.tiny import resolve_name  # noqa: E402


@pytest.mark.parametrize("name", ["soft", "geometric"])
def test_loss_and_gradient_are_those_of_trl(name: str, tmp_path: Path) -> None:
    kind, config, settings = GRPOTrainer, GRPOConfig, {"loss_type": "sapo"}
    if name == "geometric":
        gmpo = pytest.importorskip("trl.experimental.gmpo")  # from TRL 1.16 on
        kind, config, settings = gmpo.GMPOTrainer, gmpo.GMPOConfig, {"epsilon": 0.4, "epsilon_high": 0.3}
    trainer = trainer_of(kind, config, tmp_path, beta=0.0, **settings)
    trainer.current_gradient_accumulation_steps = 1
    model = trainer.model.eval().double()  # so that what is left is the definition
    inputs = batch()
    old = logprobs(model, inputs).detach() - inputs["away"]
    A = torch.randn(B, G, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    given = inputs | {"advantages": A.flatten(), "old_per_token_logps": old}
    theirs = trainer._compute_loss(model, given)
    our, _ = policy_loss(
        logprobs(model, inputs).view(B, G, T), A[..., None].expand(B, G, T),
        inputs["completion_mask"].view(B, G, T).bool(), old_logprobs_BGT=old.view(B, G, T),
        rule=loss.RULES[name], clip=(0.4, 0.3),
    )  # fmt: skip
    assert float(our.detach()) == pytest.approx(float(theirs.detach()), abs=1e-6)  # TRL computes in float32
    expected, found = gradient(theirs, model), gradient(our, model)
    assert float(expected.norm()) > 1e-3
    assert float((found - expected).norm() / expected.norm()) < 1e-6


@pytest.mark.parametrize("share", [0.05, 0.2, 0.7])
def test_the_tokens_of_high_entropy_are_those_of_trl(share: float, tmp_path: Path) -> None:
    trainer = trainer_of(GRPOTrainer, GRPOConfig, tmp_path)
    inputs = batch()
    mask = inputs["completion_mask"].view(B, G, T).bool()
    entropy = torch.rand(B, G, T, generator=torch.Generator().manual_seed(4)) * 3
    theirs = trainer.get_high_entropy_mask(entropy.flatten(0, 1), mask.flatten(0, 1), 1 - share)
    A, nothing = torch.ones(B, G), torch.zeros(B, G, T)
    method = Method(token_rule=lambda tokens: top_entropy(tokens, share=share))
    ours = method.weigh(Tokens(mask.long(), mask, A, mask, mask, nothing, nothing, entropy))
    assert torch.equal(ours.flatten(0, 1), theirs.float())
    assert 0 < int(ours.sum()) < int(mask.sum())


def of_digits(completions: list[str], **_: Any) -> list[float]:
    return [float(sum(character.isdigit() for character in text)) for text in completions]


def of_length(completions: list[str], **_: Any) -> list[float]:
    return [-0.1 * len(text) for text in completions]


class Watched(GRPOTrainer):  # type: ignore[misc]
    """Keeps the rewards and advantages of its batch."""

    def _calculate_rewards(self, *arguments: Any) -> torch.Tensor:
        self.rewards_NR: torch.Tensor = super()._calculate_rewards(*arguments)
        return self.rewards_NR

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        self.advantages_N = output["advantages"]
        return output


def test_advantages_of_each_reward_are_those_of_trl(tmp_path: Path) -> None:
    name = resolve_name("builtin:tiny")
    arguments = GRPOConfig(
        output_dir=str(tmp_path), report_to="none", use_cpu=True, bf16=False, disable_tqdm=True, num_generations=G,
        per_device_train_batch_size=B * G, max_completion_length=10, max_steps=1, temperature=2.0,
        gradient_checkpointing=False, reward_weights=[1.0, 0.5], multi_objective_aggregation="normalize_then_sum",
    )  # fmt: skip
    trainer = Watched(
        AutoModelForCausalLM.from_pretrained(name), [of_digits, of_length], arguments,
        train_dataset=Dataset.from_list([{"prompt": f"{number}+1"} for number in range(B)]),
        processing_class=AutoTokenizer.from_pretrained(name),
    )  # fmt: skip
    trainer.train()
    scores_RBG = trainer.rewards_NR.double().T.view(2, B, G)
    assert float(scores_RBG.std(dim=-1).min()) > 0
    weights_R = torch.tensor([1.0, 0.5], dtype=torch.float64)
    total_BG = (weights_R[:, None, None] * scores_RBG).sum(dim=0)
    ours = each_reward(Rewards(total_BG, total_BG > 0, scores_RBG, weights_R, ("digits", "length")))
    torch.testing.assert_close(ours.flatten().float(), trainer.advantages_N, rtol=1e-4, atol=1e-5)
