"""Every method of `objective.name` beside TRL's own: the same completions, the same loss, the same gradient.

TRL's own `_compute_loss` runs on a real trainer and model; ours gets log-probabilities of the same model. Old
log-probabilities are moved so far that ratios lie inside the clip range and beyond it on both sides.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

trl = pytest.importorskip("trl")  # before what it brings
import torch  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer  # noqa: E402

from gtpo_cli.objective import Rewards, group_terms, policy_loss  # noqa: E402
from gtpo_cli.policy.tiny import resolve_name  # noqa: E402
from gtpo_cli.recipe.load import build_recipe  # noqa: E402
from gtpo_cli.training.setup import method_of  # noqa: E402

B, G, P, T = 2, 4, 6, 9
BUDGET = 12
# how TRL says what the method's switches say
IN_TRL: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo"},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
}


def reward(completions: Any, **_: Any) -> list[float]:
    return [0.0] * len(completions)


def trainer_of(kind: type, config: type, folder: Path, **settings: Any) -> Any:
    """TRL's trainer of the built-in model in one process."""
    model = AutoModelForCausalLM.from_pretrained(resolve_name("builtin:tiny"))
    tokenizer = AutoTokenizer.from_pretrained(resolve_name("builtin:tiny"))
    arguments = config(
        output_dir=str(folder), report_to="none", use_cpu=True, bf16=False, disable_tqdm=True,
        gradient_checkpointing=False, num_generations=G, per_device_train_batch_size=B * G,
        max_completion_length=BUDGET, **settings,
    )  # fmt: skip
    data = Dataset.from_list([{"prompt": "1+1"}])
    return kind(model, reward, arguments, train_dataset=data, processing_class=tokenizer)


def batch() -> dict[str, torch.Tensor]:
    """Random completions of unequal lengths, with rewards that differ."""
    generator = torch.Generator().manual_seed(8)
    lengths = torch.randint(1, T + 1, (B * G, 1), generator=generator)
    return {
        "prompt_ids": torch.randint(3, 60, (B, 1, P), generator=generator).expand(B, G, P).reshape(B * G, P),
        "prompt_mask": torch.ones(B * G, P, dtype=torch.long),
        "completion_ids": torch.randint(3, 60, (B * G, T), generator=generator),
        "completion_mask": (torch.arange(T) < lengths).long(),
        "rewards": torch.randint(0, 5, (B, G), generator=generator).float(),
        "away": torch.tensor([-0.9, -0.002, 0.001, 0.6])[torch.randint(0, 4, (B * G, T), generator=generator)],
    }


def logprobs(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    logits = model(input_ids=ids, attention_mask=mask).logits[:, P - 1 : -1]
    chosen: torch.Tensor = torch.log_softmax(logits, dim=-1).gather(-1, inputs["completion_ids"][..., None])[..., 0]
    return chosen


def gradient(loss: torch.Tensor, model: Any) -> torch.Tensor:
    model.zero_grad()
    loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def ours(model: Any, name: str, inputs: dict[str, torch.Tensor], old: torch.Tensor | None) -> torch.Tensor:
    """Our loss of the method as its recipe sets it."""
    document = {"model": {"name": "builtin:tiny"}, "data": {"benchmark": "arithmetic"}, "objective": {"name": name}}
    recipe = build_recipe(document, ["rollout.max_completion_tokens=12"], where="test")
    objective, mask = recipe.objective, inputs["completion_mask"].view(B, G, T).bool()
    method = method_of(objective, max_completion_tokens=recipe.rollout.max_completion_tokens)
    terms = group_terms(
        method,
        completion_ids_BGT=inputs["completion_ids"].view(B, G, T),
        completion_mask_BGT=mask,
        rewards=Rewards.of_total(inputs["rewards"]),
    )
    loss, _ = policy_loss(
        logprobs(model, inputs).view(B, G, T),
        terms.advantages_BG[..., None] * terms.weights_BGT,
        mask,
        old_logprobs_BGT=None if old is None else old.view(B, G, T),
        shares_BG=terms.shares_BG,
        **method.loss_arguments(),
    )
    return loss


@pytest.mark.parametrize("name", IN_TRL)
def test_loss_and_gradient_are_those_of_trl(name: str, tmp_path: Path) -> None:
    inputs = batch()
    trainer = trainer_of(GRPOTrainer, GRPOConfig, tmp_path, beta=0.0, **IN_TRL[name])
    trainer.current_gradient_accumulation_steps = 1
    model = trainer.model.eval().double()  # so that what is left is the definition
    old = logprobs(model, inputs).detach() - inputs["away"]
    A = inputs["rewards"] - inputs["rewards"].mean(dim=1, keepdim=True)
    if trainer.scale_rewards == "group":
        A = A / (inputs["rewards"].std(dim=1, keepdim=True) + 1e-4)
    given = inputs | {
        "advantages": A.flatten(),
        "old_per_token_logps": old,
        "num_items_in_batch": inputs["completion_mask"].sum(),
    }
    theirs = trainer._compute_loss(model, given)
    our = ours(model, name, inputs, old)
    assert float(our.detach()) == pytest.approx(float(theirs.detach()), rel=1e-6, abs=1e-7)
    expected, found = gradient(theirs, model), gradient(our, model)
    assert float(expected.norm()) > 1e-3
    assert float((found - expected).norm() / expected.norm()) < 1e-6


def test_the_gradient_of_rloo_is_that_of_trl(tmp_path: Path) -> None:
    """TRL's ratio is that of the whole completion: 1 at its first update, where the gradients are the same."""
    inputs = batch()
    trainer = trainer_of(RLOOTrainer, RLOOConfig, tmp_path, beta=0.0, normalize_advantages=False)
    model = trainer.model.eval().double()  # so that what is left is the definition
    rewards = inputs["rewards"]
    A = rewards - (rewards.sum(dim=1, keepdim=True) - rewards) / (G - 1)
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    by_trl = trainer._get_per_token_logps_and_entropies(model, ids, attention, T)[0].detach()
    old = (by_trl * inputs["completion_mask"]).sum(dim=1)
    theirs = trainer._compute_loss(model, inputs | {"advantages": A.flatten(), "old_logps": old})
    expected, found = gradient(theirs, model), gradient(ours(model, "rloo", inputs, None), model)
    assert float((found - expected).norm() / expected.norm()) < 1e-6
