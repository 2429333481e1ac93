"""Every setting of TRL's GRPOConfig in GTPOTrainer: refused by name, or honoured as TRL's own trainer honours it.

A setting of a new TRL is in neither class: the first test fails until somebody has looked at it.
"""

from __future__ import annotations

import copy
import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import environment

from gtpo_cli import ObjectiveRecipe, arithmetic_problems, resolve_name
from gtpo_cli.errors import RecipeError

trl = pytest.importorskip("trl", reason="TRL is not installed")

from datasets import Dataset  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

from gtpo_cli.tools.trl.config import MAY_BE_ADDED, RECIPE_DECIDES  # noqa: E402
from gtpo_cli.tools.trl.trainer import GTPOTrainer, check_settings  # noqa: E402

GRPO = ObjectiveRecipe(token_weights={"rule": "none"}, filter={"enabled": "never"}, entropy_coef=0.0)
SEVERAL = {"num_iterations": 3, "learning_rate": 5e-3}  # a ratio far enough from 1 to be clipped

# Refused: another value than the one that a trainer starts with.
REFUSED: dict[str, Any] = {
    "loss_type": "dapo", "importance_sampling_level": "sequence", "multi_objective_aggregation": "normalize_then_sum",
    "mask_truncated_completions": True, "top_entropy_quantile": 0.2, "entropy_coef": 0.1, "use_adaptive_entropy": True,
    "delta": 2.0, "off_policy_mask_threshold": 0.5, "sync_ref_model": True, "min_p": 0.1,
    "repetition_penalty": 1.1, "generation_kwargs": {"min_p": 0.1}, "vllm_structured_outputs_regex": "a",
    "neftune_noise_alpha": 0.1, "label_smoothing_factor": 0.1, "data_seed": 1,
    "train_sampling_strategy": "group_by_length", "max_tool_calling_iterations": 3, "sapo_temperature_neg": 2.0,
    "sapo_temperature_pos": 2.0, "vespo_k_pos": 1.0, "vespo_lambda_pos": 1.0, "vespo_k_neg": 1.0,
    "vespo_lambda_neg": 1.0, "entropy_coef_min": 0.1, "entropy_coef_max": 0.5, "entropy_coef_delta": 0.1,
    "entropy_target": 0.3, "ref_model_mixup_alpha": 0.5, "ref_model_sync_steps": 10, "scale_rewards": "batch",
    "use_bias_correction_kl": True,
}  # fmt: skip

# Honoured, and shown below to be: what the setting is tried beside, its value.
BATCHES = {"per_device_train_batch_size": 4}
HONOURED: dict[str, tuple[dict[str, Any], Any]] = {
    "steps_per_generation": (BATCHES, 2),
    "generation_batch_size": (BATCHES, 16),
    "gradient_accumulation_steps": (BATCHES, 2),
    "epsilon": (SEVERAL, 1e-3),
    "epsilon_high": (SEVERAL | {"epsilon": 1e-3}, 0.5),
    "num_iterations": ({}, 2),
    "beta": ({"use_bias_correction_kl": False, "num_iterations": 2, "learning_rate": 5e-4}, 0.5),
    "temperature": ({}, 0.7),
    "top_p": ({}, 0.5),
    "top_k": ({}, 3),
    "max_completion_length": ({}, 6),
    "num_generations": ({}, 8),
    "reward_weights": ({}, [1.0, -1.0]),
    "shuffle_dataset": ({}, False),
    "learning_rate": ({}, 1e-3),
    "seed": ({}, 7),
}
# Honoured in the same lines of TRL or of transformers whatever the advantages are: how the update is made, with what
# arithmetic, on which machines, from which model, and where completions are sampled.
TRL_S_OWN = {
    "output_dir", "per_device_train_batch_size", "num_train_epochs", "max_steps", "lr_scheduler_type",
    "lr_scheduler_kwargs", "warmup_steps", "optim", "optim_args", "weight_decay", "adam_beta1", "adam_beta2",
    "adam_epsilon", "optim_target_modules", "max_grad_norm", "bf16", "fp16", "tf32", "gradient_checkpointing",
    "gradient_checkpointing_kwargs", "torch_compile", "torch_compile_backend", "torch_compile_mode",
    "use_liger_kernel", "liger_kernel_config", "use_cache", "torch_empty_cache_steps", "auto_find_batch_size",
    "full_determinism", "use_cpu", "accelerator_config", "parallelism_config", "dataloader_drop_last",
    "dataloader_num_workers", "dataloader_pin_memory", "dataloader_persistent_workers", "dataloader_prefetch_factor",
    "dataloader_multiprocessing_context", "dataloader_in_order", "remove_unused_columns",
    "ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_static_graph", "ddp_backend",
    "ddp_timeout", "fsdp", "fsdp_config", "deepspeed", "local_rank", "model_init_kwargs", "trust_remote_code",
    "router_aux_loss_coef", "disable_dropout", "cast_lm_head_to_fp32", "ds3_gather_for_generation",
    "pad_to_multiple_of", "chat_template_kwargs", "cache_implementation", "use_vllm", "vllm_mode", "vllm_model_impl",
    "vllm_enable_sleep_mode", "vllm_server_base_url", "vllm_server_host", "vllm_server_port", "vllm_server_timeout",
    "vllm_group_port", "vllm_gpu_memory_utilization", "vllm_max_model_length", "vllm_tensor_parallel_size",
    "vllm_importance_sampling_correction", "vllm_importance_sampling_mode", "vllm_importance_sampling_clip_max",
    "vllm_importance_sampling_clip_min", "vllm_importance_sampling_cap", "use_transformers_continuous_batching",
    "transformers_continuous_batching_config", "use_transformers_paged", "average_tokens_across_devices",
}  # fmt: skip
# Without effect on what is trained: logs, checkpoints, evaluation, the hub, and words for scripts.
NOT_OF_TRAINING = {
    "logging_strategy", "logging_steps", "logging_first_step", "log_on_each_node", "logging_nan_inf_filter",
    "include_num_input_tokens_seen", "log_level", "log_level_replica", "disable_tqdm", "report_to", "run_name",
    "project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id", "eval_strategy", "eval_steps",
    "eval_delay", "per_device_eval_batch_size", "prediction_loss_only", "eval_on_start", "eval_do_concat_batches",
    "eval_use_gather_object", "eval_accumulation_steps", "include_for_metrics", "batch_eval_metrics",
    "bf16_full_eval", "fp16_full_eval", "num_generations_eval", "save_only_model", "save_strategy", "save_steps",
    "save_on_each_node", "save_total_limit", "enable_jit_checkpoint", "push_to_hub", "hub_token", "hub_private_repo",
    "hub_model_id", "hub_strategy", "hub_always_push", "hub_revision", "load_best_model_at_end",
    "metric_for_best_model", "greater_is_better", "ignore_data_skip", "restore_callback_states_from_checkpoint",
    "label_names", "length_column_name", "debug", "skip_memory_metrics", "do_train", "do_eval", "do_predict",
    "resume_from_checkpoint", "log_completions", "log_multimodal", "num_completions_to_print", "log_unique_prompts",
    "log_completions_hub_repo",
}  # fmt: skip
CLASSES = (set(REFUSED), set(HONOURED), TRL_S_OWN, NOT_OF_TRAINING)


def config(folder: Path, **settings: Any) -> GRPOConfig:
    fixed: dict[str, Any] = {
        "output_dir": str(folder), "loss_type": "grpo", "num_generations": 4, "per_device_train_batch_size": 8,
        "max_completion_length": 16, "max_steps": 4, "learning_rate": 2e-3, "max_grad_norm": 0.5, "logging_steps": 1,
        "lr_scheduler_type": "constant", "use_cpu": True, "bf16": False, "report_to": "none", "save_strategy": "no",
        "disable_tqdm": True, "gradient_checkpointing": False, "use_bias_correction_kl": False,
    }  # fmt: skip
    return GRPOConfig(**fixed | settings)


def test_every_setting_of_this_trl_is_in_one_class() -> None:
    fields = {field.name for field in dataclasses.fields(GRPOConfig)}
    assert fields - set().union(*CLASSES) == set(), "settings nobody has looked at: does GTPOTrainer honour them?"
    assert sum(len(names) for names in CLASSES) == len(set().union(*CLASSES))
    if trl.__version__ == "1.16.0":
        assert set().union(*CLASSES) == fields
    assert fields >= MAY_BE_ADDED
    assert not MAY_BE_ADDED & (REFUSED.keys() | HONOURED.keys() | NOT_OF_TRAINING)
    assert RECIPE_DECIDES - fields == set()


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_setting_is_named_with_why(name: str, tmp_path: Path) -> None:
    args = config(tmp_path)
    if not hasattr(args, name):
        pytest.skip(f"TRL {trl.__version__} has no {name}")
    args.beta = 0.1
    check_settings(args, ObjectiveRecipe(), 0.3)
    setattr(args, name, REFUSED[name])
    with pytest.raises(RecipeError, match=rf"^GTPOTrainer: {name}: must be .* is ") as caught:
        check_settings(args, ObjectiveRecipe(), 0.3)
    assert len(caught.value.problems) == 1


def test_a_key_of_the_objective_that_says_otherwise_is_refused(tmp_path: Path) -> None:
    objective = ObjectiveRecipe(
        num_iterations=2, clip_epsilon=0.1, kl_coef=0.5, advantages={"config": {"scale": "none"}}
    )
    with pytest.raises(RecipeError) as caught:
        check_settings(config(tmp_path), objective, 0.3)
    assert [problem.split()[1] for problem in caught.value.problems] == [
        "scale_rewards:", "epsilon:", "epsilon_high:", "num_iterations:", "beta:",
    ]  # fmt: skip
    args = config(tmp_path, num_iterations=2, epsilon=0.1, beta=0.5, scale_rewards="none")
    check_settings(args, objective, 0.3)
    args.epsilon_high = 0.1  # the same on both sides
    check_settings(args, objective, 0.3)


# -- against TRL's own trainer: with GRPO as the objective both must do the same ---------------------------------------


@pytest.fixture(scope="module")
def model_and_data() -> tuple[Any, Any, Dataset]:
    torch.set_num_threads(1)
    folder = resolve_name("builtin:tiny")
    problems = arithmetic_problems(48, split="train", seed=0)
    rows = [{"prompt": [{"role": "user", "content": problem.question}], "gold": problem.gold} for problem in problems]
    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder), Dataset.from_list(rows)


def of_length(completions: Any, **_: Any) -> list[float]:
    return [float(len(messages[0]["content"]) % 7) for messages in completions]


def of_letters(completions: Any, **_: Any) -> list[float]:
    return [float(messages[0]["content"].count("1")) for messages in completions]


@dataclasses.dataclass
class Trained:
    weights: torch.Tensor
    trainer: Any

    def logged(self, name: str) -> list[float]:
        return [row[name] for row in self.trainer.state.log_history if name in row]


@pytest.fixture(scope="module")
def trained(
    model_and_data: tuple[Any, Any, Dataset], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Trained]:
    """trained(GTPOTrainer, epsilon=0.1): four updates; a repetition is remembered."""
    model, tokenizer, data = model_and_data
    folder, known = tmp_path_factory.mktemp("trl"), dict[str, Trained]()

    def train(kind: type, *, objective: ObjectiveRecipe = GRPO, **settings: Any) -> Trained:
        key = f"{kind} {objective} {sorted(settings.items())}"
        if key not in known:
            ours = {"objective": objective} if kind is GTPOTrainer else {}
            trainer = kind(
                copy.deepcopy(model), [of_length, of_letters], config(folder, **settings), train_dataset=data,
                processing_class=tokenizer, **ours,
            )  # fmt: skip
            trainer.train()
            weights = torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])
            known[key] = Trained(weights, trainer)
        return known[key]

    return train


@pytest.mark.parametrize("name", HONOURED)
def test_an_honoured_setting_changes_what_it_changes_in_trl(name: str, trained: Callable[..., Trained]) -> None:
    beside, value = HONOURED[name]
    ours, theirs = trained(GTPOTrainer, **beside | {name: value}), trained(GRPOTrainer, **beside | {name: value})
    without = trained(GTPOTrainer, **beside)
    moved = float((theirs.weights - without.weights).norm())
    assert moved > 1e-2 * float((theirs.weights - trained_from(trained)).norm()), "the setting changes nothing here"
    share = 3e-3 if name == "epsilon_high" else 1e-3  # few ratios are so high: what it moves is near the rounding
    assert float((ours.weights - theirs.weights).norm()) < share * moved
    for metric in ("loss", "reward_std", "frac_reward_zero_std", "entropy", "clip_ratio/region_mean"):
        assert ours.logged(metric) == pytest.approx(theirs.logged(metric), rel=1e-4, abs=1e-5), metric


def trained_from(trained: Callable[..., Trained]) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(resolve_name("builtin:tiny"))
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_several_updates_on_one_batch_of_completions(trained: Callable[..., Trained]) -> None:
    """GTPO itself: with steps_per_generation 2, 16 completions are sampled for two updates of 8 each, and clipped
    against the policy that sampled them."""
    gtpo = ObjectiveRecipe(filter={"enabled": "never"})
    run = trained(GTPOTrainer, objective=gtpo, steps_per_generation=2, epsilon=1e-3, learning_rate=5e-3)
    assert run.trainer.seen.rewards_BG.shape == (4, 4)
    assert run.trainer.state.global_step == 4
    clipped = run.logged("clip_ratio/region_mean")
    assert clipped[0] == clipped[2] == 0.0  # straight after sampling
    assert min(clipped[1], clipped[3]) > 0.0


def test_a_model_with_dropout_is_refused(model_and_data: tuple[Any, Any, Dataset], tmp_path: Path) -> None:
    """In an adapter, in a layer, and in what the model gives to a function, which TRL's switch does not reach."""
    from peft import LoraConfig

    model, tokenizer, data = model_and_data

    def make(model: Any, adapter: Any = None, **settings: Any) -> GTPOTrainer:
        return GTPOTrainer(
            model, [of_length, of_letters], config(tmp_path, **settings), train_dataset=data, objective=GRPO,
            processing_class=tokenizer, peft_config=adapter,
        )  # fmt: skip

    adapter = LoraConfig(r=4, target_modules=["q_proj"], lora_dropout=0.1)
    with pytest.raises(RecipeError, match=r"has dropout \(Dropout\.p = 0\.1\), with which the ratio and <H> would be"):
        make(copy.deepcopy(model), adapter)
    make(copy.deepcopy(model), adapter, disable_dropout=True)
    attention = copy.deepcopy(model)
    attention.model.layers[1].self_attn.attention_dropout = 0.2
    for switched in (False, True):
        with pytest.raises(RecipeError, match=r"dropout \(LlamaAttention\.attention_dropout = 0\.2\)"):
            make(attention, disable_dropout=switched)


# -- the reference of a KL term ----------------------------------------------------------------------------------------

REFERENCE = """
import sys
import torch
from gtpo_cli.policy import load_policy
from gtpo_cli.machine.resolve import Parts
from pathlib import Path
from gtpo_cli.tools.trl.config import grpo_arguments
from gtpo_cli.tools.trl.run import make_trainer
from gtpo_cli.tools.trl.keeper import RunKeeper
from gtpo_cli.recipe.load import build_recipe

recipe = build_recipe({
    "model": {"name": "who/tiny", "revision": "old", "load_in_4bit": False, "lora": None},
    "data": {"benchmark": "arithmetic"}, "objective": {"name": "grpo", "kl_coef": 0.5},
    "rollout": {"group_size": 2, "prompts_per_step": 2, "max_completion_tokens": 8}, "optimizer": {"name": "adamw"},
}, where="test")
policy = load_policy(Parts(recipe).job(), with_reference=False)
arguments = grpo_arguments(
    recipe, Path(sys.argv[1]), "transformers", processes=1, prompts_per_step=2, longest_prompt=32,
    max_seq_length=policy.max_seq_length, steps=1, dtype="float32", extra={},
)
def reward(**_): raise AssertionError
reward.completions = reward.groups = None
trainer = make_trainer(recipe, policy, [], None, reward, RunKeeper(1, policy), arguments, 0.3)
reference = dict(trainer.ref_model.named_parameters())
assert all(torch.equal(weight, reference[name]) for name, weight in policy.model.named_parameters())
print(float(reference["model.norm.weight"].max()))
"""


def test_the_reference_is_of_the_revision_of_the_recipe(tmp_path: Path) -> None:
    """A cache with two revisions of a model: the newest has other weights than the one the recipe names."""
    hub, source = tmp_path / "hf" / "hub" / "models--who--tiny", Path(resolve_name("builtin:tiny"))
    for revision, commit, factor in (("old", "a" * 40, 1.0), ("main", "b" * 40, 3.0)):
        snapshot = hub / "snapshots" / commit
        shutil.copytree(source, snapshot)
        model = AutoModelForCausalLM.from_pretrained(source)
        model.model.norm.weight.data.fill_(factor)
        model.save_pretrained(snapshot)
        (hub / "refs").mkdir(exist_ok=True)
        (hub / "refs" / revision).write_text(commit)
    done = subprocess.run(
        [sys.executable, "-c", REFERENCE, tmp_path / "out"], cwd=tmp_path, capture_output=True, text=True,
        env=environment() | {"HF_HOME": str(tmp_path / "hf"), "CI": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert float(done.stdout) == 1.0
