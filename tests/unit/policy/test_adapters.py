"""An adapter is computed exactly, or refused by every way in: real adapters, made and saved by PEFT itself."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from exported_runs import export, recipe_on
from families import family_model
from jobs import policy_of, subject_of
from policy_contract import LORA, PROMPTS, plain_logprobs, ragged_rows, recipe_for, save_model, train_a_little
from safetensors.torch import load_file, save_file
from small_models import adapted, random_model

from gtpo_cli.errors import CheckpointError, ModelError
from gtpo_cli.evaluation.loading import PolicyLoader, load_frozen
from gtpo_cli.machine.resolve import Parts
from gtpo_cli.policy.adapter_config import check_adapted
from gtpo_cli.policy.decoder import LeanDecoder, ModelDecoder, can_decode
from gtpo_cli.policy.transformers_policy import TransformersPolicy
from gtpo_cli.recipe import Recipe
from gtpo_cli.runs.checkpoints import CheckpointState, CheckpointStore, choose_checkpoint
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.training.loop import train
from gtpo_cli.training.start import find_start

# What LoraConfig can say and `model.lora` cannot, and what of it the message names.
BEYOND: dict[str, dict[str, Any]] = {
    "modules_to_save: ['lm_head']": {"modules_to_save": ["lm_head"]},
    "modules_to_save: ['embed_tokens']": {"modules_to_save": ["embed_tokens"]},
    "modules_to_save: ['norm']": {"modules_to_save": ["norm"]},
    "target_modules: .*_proj": {"target_modules": r".*_proj"},
    "target_modules: ": {"target_modules": ["model.layers.0.self_attn.q_proj"]},
    "target_modules: all-linear": {"target_modules": "all-linear"},
    "rank_pattern: ": {"rank_pattern": {"q_proj": 2}},
    "alpha_pattern: ": {"alpha_pattern": {"q_proj": 2}},
    "use_dora: True": {"use_dora": True},
    "use_rslora: True": {"use_rslora": True},
    "bias: lora_only": {"bias": "lora_only"},
    "bias: all": {"bias": "all"},
    "lora_bias: True": {"lora_bias": True},
    "layer_replication: ": {"layer_replication": [(0, 2), (1, 2)]},
    "trainable_token_indices: ": {"trainable_token_indices": [3, 4]},
    "exclude_modules: ": {"exclude_modules": ["layers.0.self_attn.q_proj"]},
    "layers_to_transform: ": {"layers_to_transform": [0]},
    "target_parameters: ": {"target_modules": ["q_proj"], "target_parameters": ["self_attn.v_proj.weight"]},
    "init_lora_weights: pissa": {"init_lora_weights": "pissa"},
    "alora_invocation_tokens: ": {"alora_invocation_tokens": [3]},
}


@pytest.mark.parametrize("said", BEYOND)
def test_what_a_recipe_cannot_say_is_refused_loaded_and_saved(said: str, tmp_path: Path) -> None:
    model, tokenizer = random_model()
    model = adapted(model, **BEYOND[said])
    with pytest.raises(ModelError) as live:
        TransformersPolicy(model, tokenizer, temperature=1.0, max_seq_length=64)
    model.save_pretrained(tmp_path)
    if said.endswith("all-linear"):  # PEFT resolves it to the full names of the layers; others may write the word
        file = tmp_path / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | BEYOND[said]))
        assert "target_modules: {" in str(live.value)
    else:
        assert said in str(live.value).replace('"', "'")
    with pytest.raises(ModelError) as saved:
        find_start(str(tmp_path))
    assert said in str(saved.value).replace('"', "'")
    for caught in (live, saved):
        assert "is more than plain LoRA, which is all that gtpo computes exactly; merge it in" in str(caught.value)


@torch.no_grad()
def assert_exact(policy: Any) -> None:
    """Log-probabilities, reference and what is sampled from are the plain forward's."""
    policy.model.eval()
    batch = ragged_rows()
    expected, entropy = plain_logprobs(policy.model, batch, policy.temperature)
    found = policy.token_logprobs(batch)
    torch.testing.assert_close(found[0].double(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found[1].double(), entropy, rtol=1e-4, atol=1e-5)
    last = policy.model(input_ids=torch.tensor([PROMPTS[0]])).logits[:, -1]
    for decoder in (ModelDecoder, LeanDecoder) if can_decode(policy) else (ModelDecoder,):
        torch.testing.assert_close(decoder(policy, PROMPTS[:1], 1).logits(), last, rtol=1e-4, atol=1e-4)


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=104, n_embd=64, n_layer=2, n_head=4, n_positions=128, bos_token_id=1, eos_token_id=2,
                   initializer_range=0.2)
    )  # fmt: skip


def phi3() -> Any:
    from transformers import Phi3Config, Phi3ForCausalLM

    torch.manual_seed(0)
    return Phi3ForCausalLM(
        Phi3Config(vocab_size=104, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                   num_key_value_heads=2, max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    )  # fmt: skip


def test_plain_adapters_are_exact_also_on_layers_stored_the_other_way_round(tmp_path: Path) -> None:
    tokenizer = random_model()[1]
    for name, model, modules in (
        ("llama", random_model()[0], ["q_proj", "gate_proj"]),
        ("tied", random_model(tie_word_embeddings=True)[0], ["q_proj", "gate_proj"]),
        ("gpt2", gpt2(), ["c_attn", "c_proj"]),
    ):
        policy = TransformersPolicy(
            adapted(model, target_modules=modules), tokenizer, temperature=0.8, max_seq_length=64
        )
        assert_exact(policy)
        policy.save(tmp_path / name)
        lora = find_start(str(tmp_path / name)).lora
        assert lora is not None
        assert (lora.rank, lora.alpha, list(lora.target_modules)) == (4, 8, sorted(modules))


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: random_model()[0], ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]),
        (gpt2, ["c_attn", "c_fc", "c_proj"]),
        (phi3, ["down_proj", "gate_up_proj", "o_proj", "qkv_proj"]),
    ],
)
def test_all_linear_is_every_linear_layer_but_the_output_layer(
    make: Callable[[], Any], names: list[str], tmp_path: Path
) -> None:
    from peft import LoraConfig, get_peft_model

    for part in (make(), random_model()[1]):
        part.save_pretrained(tmp_path)
    policy: Any = policy_of(recipe_for(tmp_path, lora={"rank": 4, "alpha": 8, "target_modules": "all-linear"}))
    assert sorted(policy.model.active_peft_config.target_modules) == names
    of_peft = get_peft_model(make(), LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    adapted_by = [{n for n, m in model.named_modules() if hasattr(m, "lora_A")} for model in (policy.model, of_peft)]
    assert adapted_by[0] == adapted_by[1]
    policy.save(tmp_path / "saved")
    policy.load(tmp_path / "saved")
    assert_exact(policy)


ENDS = [
    (["q_proj", "lm_head"], "lm_head is the output layer", False),
    (["embed_tokens", "q_proj"], "embed_tokens is the embedding", True),
    (["norm"], "cannot take an adapter", False),
    (["self_attn"], "cannot take an adapter", False),
]


@pytest.mark.parametrize(("modules", "said", "tied"), ENDS)
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings:UserWarning")
def test_an_adapter_on_either_end_of_the_model_is_refused(
    modules: list[str], said: str, tied: bool, tmp_path: Path
) -> None:
    base = save_model(tmp_path / "base", tie_word_embeddings=tied)
    with pytest.raises(ModelError, match=rf"^model\.lora\.target_modules: .*{said}"):
        policy_of(recipe_for(base, lora=LORA | {"target_modules": modules}))


def foreign_run(folder: Path, recipe: Recipe, base: Path, **changes: Any) -> RunFolder:
    """A run as an earlier gtpo, or another program, may have left it: one checkpoint, an adapter of PEFT's own."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run = RunFolder(folder)
    run.create(recipe)
    model = adapted(AutoModelForCausalLM.from_pretrained(base), **changes)

    def save(to: Path) -> None:
        model.save_pretrained(to)
        AutoTokenizer.from_pretrained(base).save_pretrained(to)

    trained = (parameter for parameter in model.parameters() if parameter.requires_grad)
    state, store = CheckpointState(step=3, metrics_bytes=0), CheckpointStore(run.checkpoints, keep_last=1)
    store.save(state, save, trained, {})
    return run


def ways_in(run: RunFolder, tmp_path: Path) -> dict[str, Callable[[], object]]:
    """Every way by which a run's adapter is put on its base."""
    recipe, checkpoint = Parts(run.recipe()).recipe, choose_checkpoint(run)

    def start(name: str) -> None:
        further = RunFolder(tmp_path / name.replace("/", " "))
        further.create(recipe.model_copy(update={"model": recipe.model.model_copy(update={"start": name})}))
        train(Parts(further.recipe()).training_job(), further, quiet=True)

    return {
        "eval": lambda: PolicyLoader().load(subject_of(recipe, checkpoint)),
        "generate": lambda: load_frozen(subject_of(recipe, checkpoint, streaming=True)),
        "export": lambda: export(run),
        "export adapter": lambda: export(run, "adapter"),
        "resume": lambda: train(Parts(recipe).training_job(), run, resume=True, quiet=True),
        "from a run": lambda: start(str(run.path)),
        "from an adapter": lambda: start(str(checkpoint.model)),
    }


@pytest.mark.parametrize(
    ("changes", "recipe_says", "said"),
    [
        ({"modules_to_save": ["lm_head"]}, LORA["target_modules"], "modules_to_save: "),
        ({"use_rslora": True}, LORA["target_modules"], "use_rslora: True"),
    ],
)
def test_a_foreign_run_is_refused_by_every_way_in(
    changes: dict[str, Any], recipe_says: list[str], said: str, tmp_path: Path
) -> None:
    base = save_model(tmp_path / "base")
    run = foreign_run(tmp_path / "run", recipe_on(base, lora=LORA | {"target_modules": recipe_says}), base, **changes)
    for way, enter in ways_in(run, tmp_path).items():
        with pytest.raises((ModelError, CheckpointError)) as caught:
            enter()
        differs = way == "from an adapter" and "fit" in said  # found before anything is loaded
        expected = "differs from model.lora and can only be trained as it is" if differs else said
        assert expected in str(caught.value), way
    assert not run.export.exists() or not list(run.export.iterdir())


def test_tensors_that_are_no_adapter_change_no_base(tmp_path: Path) -> None:
    """PEFT saves the embedding and the output layer beside an adapter where they changed, and puts them into the base
    that the adapter is loaded on."""
    base = save_model(tmp_path / "base")
    run = foreign_run(tmp_path / "run", recipe_on(base), base)
    file = choose_checkpoint(run).model / "adapter_model.safetensors"
    tensors = load_file(file)
    policy: Any = policy_of(run.recipe())
    head = policy.lm_head[0].clone()
    policy.load(file.parent)  # as it is, it is taken
    save_file(tensors | {"base_model.model.lm_head.weight": torch.zeros_like(head)}, file)
    with pytest.raises(CheckpointError, match=r"has more than an adapter \(base_model.model.lm_head.weight\)"):
        policy.load(file.parent)
    assert torch.equal(policy.lm_head[0], head)


def test_a_policy_that_loads_its_own_adapter_is_exact(tmp_path: Path) -> None:
    base = save_model(tmp_path / "base")
    policy: Any = policy_of(recipe_for(base))
    train_a_little(policy)
    policy.save(tmp_path / "saved")
    fresh: Any = policy_of(recipe_for(base))
    fresh.load(tmp_path / "saved")
    check_adapted(fresh.model)
    assert_exact(fresh)
    ids = (9, 16, 23, 30)
    plain = fresh.plain_logprobs(PROMPTS[0], ids)
    logits = fresh.model(input_ids=torch.tensor([[*PROMPTS[0], *ids]])).logits[0].detach().double()
    by_hand = [float(logits[4 + n].log_softmax(0)[token]) for n, token in enumerate(ids)]
    assert plain.tolist() == pytest.approx(by_hand, abs=1e-5)
    assert math.isfinite(sum(by_hand))


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("Gemma 3, text and images", ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]),
        ("Phi-3", ["down_proj", "gate_up_proj", "o_proj", "qkv_proj"]),
        ("Qwen3 MoE", ["k_proj", "o_proj", "q_proj", "v_proj"]),  # the experts are no layers
        ("Qwen3-Next", ["in_proj_ba", "in_proj_qkvz", "k_proj", "o_proj", "out_proj", "q_proj", "shared_expert_gate",
                        "v_proj"]),  # PEFT takes the shared expert's names for the experts
        ("Qwen3.5", ["down_proj", "gate_proj", "in_proj_a", "in_proj_b", "in_proj_qkv", "in_proj_z", "k_proj", "o_proj",
                     "out_proj", "q_proj", "up_proj", "v_proj"]),
        ("LFM2", ["in_proj", "k_proj", "out_proj", "q_proj", "v_proj", "w1", "w2", "w3"]),
        ("Falcon-H1", ["down_proj", "gate_proj", "in_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]),
        ("Mamba-2", ["in_proj"]),  # kernels read the weight of out_proj without its adapter
    ],
)  # fmt: skip
def test_all_linear_is_what_peft_can_adapt_in_the_decoder_of_text(
    family: str, names: list[str], tmp_path: Path
) -> None:
    model, tokenizer = family_model(family)
    model.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    recipe = recipe_for(tmp_path / "base", lora={"rank": 4, "alpha": 8, "target_modules": "all-linear"})
    policy = policy_of(recipe)
    train_a_little(policy)
    adapted = {name for name, module in policy.model.get_base_model().named_modules() if hasattr(module, "lora_A")}
    assert sorted({name.rpartition(".")[2] for name in adapted}) == names
    decoder = next(n for n, m in policy.model.get_base_model().named_modules() if m is policy.backbone)
    assert all(name.startswith(f"{decoder}.") for name in adapted)
    assert all(float(p.detach().abs().max()) > 0 for p in policy.trainable_parameters())  # lora_B began at 0
    policy.save(tmp_path / "saved")
    again = policy_of(recipe)
    again.load(tmp_path / "saved")
    for a, b in zip(policy.trainable_parameters(), again.trainable_parameters(), strict=True):
        assert torch.equal(a, b)
    found, expected = (p.plain_logprobs(PROMPTS[0], [7, 8, 9]) for p in (again, policy))
    assert torch.equal(found, expected)
