"""The trainer in verl's own places: found by its lookup, in a process of Ray's, and at work on its TransferQueue."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from small_steps import INITIAL_ENTROPY
from verl_batches import batch_of, by_row, shuffled_rows

from gtpo_cli.errors import RecipeError
from gtpo_cli.integrations.verl_advantages import set_token_advantages

PLUGIN_MODULE = "gtpo_cli.integrations.verl"
LOOKUP = """
import verl, sys
assert "gtpo_cli.integrations.verl" in sys.modules, "the external module was not loaded"
from verl.trainer.ppo.v1 import get_trainer_cls
print(get_trainer_cls("gtpo").__module__)
"""


def test_verl_finds_the_trainer_where_the_variable_names_the_module() -> None:
    variables = os.environ | {"VERL_USE_EXTERNAL_MODULES": PLUGIN_MODULE}
    done = subprocess.run([sys.executable, "-c", LOOKUP], env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [PLUGIN_MODULE]


@pytest.fixture(scope="module")
def ray_and_queue() -> Iterator[None]:
    """A local Ray with verl's runtime environment, and verl's TransferQueue in it."""
    import ray
    import transfer_queue as tq
    from omegaconf import OmegaConf

    # as many as the queue's actors and a worker ask for, whatever the machine has
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
    settings = {
        "enable": True,
        "backend": {
            "storage_backend": "SimpleStorage",
            "SimpleStorage": {"total_storage_size": 1000, "num_data_storage_units": 1},
        },
    }
    tq.init(OmegaConf.create(settings))
    yield
    tq.close()
    ray.shutdown()


@pytest.mark.usefixtures("ray_and_queue")
def test_a_process_of_ray_finds_it_by_the_example_s_configuration(configuration: Any) -> None:
    import ray
    from omegaconf import OmegaConf

    variables = OmegaConf.to_container(configuration().ray_kwargs.ray_init.runtime_env.env_vars)

    @ray.remote(runtime_env={"env_vars": variables})
    def lookup() -> str:
        from verl.trainer.ppo.v1 import get_trainer_cls

        return str(get_trainer_cls("gtpo").__module__)

    assert ray.get(lookup.remote(), timeout=120) == PLUGIN_MODULE


def trainer_of(config: Any) -> Any:
    from verl.trainer.ppo.v1 import get_trainer_cls

    import gtpo_cli.integrations.verl  # noqa: F401  # registers

    return get_trainer_cls(config.trainer.v1.trainer_mode)(config)


def in_queue(data: Any) -> Any:
    """A batch in verl's TransferQueue, as its agent loop and `_compute_old_log_prob` leave it there."""
    import transfer_queue as tq
    from transfer_queue import KVBatchMeta
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    keys, rows, counts = [], [], dict[str, int]()
    for i in range(len(data)):
        uid, length = data.non_tensor_batch["uid"][i], int(data.batch["response_mask"][i].sum())
        keys.append(f"{uid}_{counts.setdefault(uid, 0)}_0")
        counts[uid] += 1
        row = {name: data.batch[name][i, :length] for name in ("responses", "response_mask", "entropy")}
        logprobs = torch.full((length,), -1.0)
        row |= {"rm_scores": data.batch["token_level_rewards"][i, :length], "uid": uid}
        row |= {"old_log_probs": logprobs, "rollout_log_probs": logprobs - 0.5}
        rows.append(row)
    tags = [{"status": "success"} for _ in keys]
    tq.kv_batch_put(keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(rows), tags=tags)
    return KVBatchMeta(keys=keys, tags=tags, partition_id="train")


@pytest.mark.usefixtures("ray_and_queue")
@pytest.mark.parametrize("correction", ["none", "truncated"])
def test_the_trainer_s_step_writes_our_advantages(steps: Any, configuration: Any, correction: str) -> None:
    import transfer_queue as tq

    _, result = steps("objective.filter.threshold=2.2")
    rows = shuffled_rows(result)
    data = batch_of(result, rows)
    trainer = trainer_of(configuration("objective.filter.threshold=2.2", f"rollout.importance_correction={correction}"))
    objective = trainer.recipe.objective
    assert objective.initial_entropy == INITIAL_ENTROPY
    meta, metrics = in_queue(data), dict[str, Any]()
    try:
        meta = trainer._compute_advantage(meta, metrics)
        found = tq.kv_batch_get(keys=meta.keys, partition_id="train")
    finally:
        tq.kv_clear(keys=meta.keys, partition_id="train")
    set_token_advantages(data, objective, initial_entropy=INITIAL_ENTROPY)
    lengths = by_row(result.batch.lengths_BG, rows)
    for name in ("advantages", "returns"):
        assert found[name].offsets().diff().tolist() == lengths.tolist()
        padded = found[name].to_padded_tensor(0.0)
        assert torch.equal(padded, data.batch["advantages"][:, : padded.shape[1]])
    assert metrics["entropy/filtered_share"] == pytest.approx(float(result.filtered_BG.float().mean()))
    assert ("rollout_is_weights" in found) == (correction == "truncated")
    if correction == "truncated":
        torch.testing.assert_close(found["rollout_is_weights"].values(), torch.full((int(lengths.sum()),), 0.5).exp())


@pytest.mark.usefixtures("ray_and_queue")
def test_several_outputs_of_one_completion_are_an_error(steps: Any, configuration: Any) -> None:
    from transfer_queue import KVBatchMeta

    batch = KVBatchMeta(keys=["a_0_0", "a_0_1"], tags=[{}, {}], partition_id="train")
    with pytest.raises(RecipeError, match="1 rows are further outputs"):
        trainer_of(configuration())._compute_advantage(batch, {})


def test_it_is_verl_s_synchronous_trainer(configuration: Any) -> None:
    """verl chooses its replay buffer and more by the name of the mode; under ours it would choose as for async."""
    from verl.trainer.ppo.v1 import PPOTrainerSync
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

    trainer = trainer_of(configuration())
    assert isinstance(trainer, PPOTrainerSync)
    assert trainer.trainer_mode == "sync"
    assert type(trainer.replay_buffer) is ReplayBuffer
    assert not trainer.use_critic


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("actor_rollout_ref.actor.loss_agg_mode", "token-mean"),
        ("actor_rollout_ref.actor.clip_ratio_high", 0.28),
        ("actor_rollout_ref.actor.clip_ratio_c", 3.0),
        ("actor_rollout_ref.actor.ppo_mini_batch_size", 4),
        ("actor_rollout_ref.actor.use_kl_loss", True),
        ("actor_rollout_ref.actor.entropy_coeff", 0.01),
        ("actor_rollout_ref.actor.policy_loss.loss_mode", "gspo"),
        ("actor_rollout_ref.rollout.n", 4),
        ("actor_rollout_ref.rollout.temperature", 0.7),
        ("algorithm.rollout_correction.rollout_is", "token"),
        ("algorithm.rollout_correction.rollout_rs", "token_k1"),
        ("algorithm.rollout_correction.bypass_mode", True),
        ("distillation.enabled", True),
    ],
)
def test_a_setting_that_would_not_be_eq_11_is_refused_by_name(configuration: Any, key: str, value: Any) -> None:
    from omegaconf import OmegaConf

    config = configuration()
    OmegaConf.update(config, key, value)
    with pytest.raises(RecipeError) as caught:
        trainer_of(config)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{key}={value}: ")


def test_all_such_settings_are_named_at_once(configuration: Any) -> None:
    config = configuration()
    config.actor_rollout_ref.actor.loss_agg_mode = "token-mean"
    config.algorithm.rollout_correction.bypass_mode = True
    with pytest.raises(RecipeError) as caught:
        trainer_of(config)
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("objective.name=sft", "objective.name: sft"),
        ("objective.compat=released_code", "objective.compat: released_code"),
        ("objective.initial_entropy=null", "objective.initial_entropy: null.*gtpo probe-entropy"),
        ("rollout.mask_truncated=true", "rollout.mask_truncated: true"),
    ],
)
def test_a_recipe_that_verl_cannot_do_is_refused_by_name(configuration: Any, override: str, said: str) -> None:
    with pytest.raises(RecipeError, match=rf"recipe\.yaml: {said}"):
        trainer_of(configuration(override))


def test_the_initial_entropy_is_asked_for_only_where_the_filter_reads_it(configuration: Any) -> None:
    trainer = trainer_of(configuration("objective.initial_entropy=null", "objective.filter.enabled=always"))
    assert trainer.recipe.objective.initial_entropy is None


def test_a_correction_of_probabilities_that_verl_does_not_report_is_refused(configuration: Any) -> None:
    config = configuration("rollout.importance_correction=truncated")
    trainer_of(config.copy())
    config.actor_rollout_ref.rollout.top_p = 0.9
    with pytest.raises(RecipeError, match=r"rollout\.top_p=0\.9.*only with .*top_p=1\.0"):
        trainer_of(config)


def test_without_a_recipe_it_says_how_to_get_one(configuration: Any) -> None:
    from omegaconf import open_dict

    config = configuration()
    with open_dict(config):
        config.data.train_files = config.gtpo.recipe
        del config.gtpo
    with pytest.raises(RecipeError, match=r"gtpo\.recipe is not set.*examples/verl"):
        trainer_of(config)
