"""Model folders of every wrong kind, and names that the hub does not have or that cannot be asked for."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import random_model
from transformers import LlamaConfig

from gtpo_cli.data import PromptEncoder
from gtpo_cli.errors import CheckpointError, ModelError
from gtpo_cli.policy.adapter_config import check_adapter_config
from gtpo_cli.policy.loading import check_complete, choose_dtype, load_config, load_failure, load_tokenizer, read_model
from gtpo_cli.policy.transformers_policy import TransformersPolicy, load_transformers_policy
from gtpo_cli.recipe.schema import LoraRecipe, ModelRecipe

Change = Callable[[Path], object]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that loads, to be spoiled in copies."""
    folder = tmp_path_factory.mktemp("models") / "sound"
    model, tokenizer = random_model()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def load(path: Path | str, **changes: Any) -> TransformersPolicy:
    settings: dict[str, Any] = {
        "load_in_4bit": False,
        "gradient_checkpointing": False,
        "dtype": "float32",
        "lora": None,
    }
    recipe = ModelRecipe(name=str(path), max_seq_length=128, **(settings | changes))
    return load_transformers_policy(
        recipe, files=read_model(recipe, str(path)), temperature=1.0, with_reference=False, seed=1
    )


def without(*patterns: str) -> Change:
    return lambda folder: [file.unlink() for pattern in patterns for file in folder.glob(pattern)]


def holding(name: str, content: bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(content)


def cut(name: str, part: float) -> Change:
    return lambda folder: os.truncate(folder / name, int((folder / name).stat().st_size * part))


def doubling(rules: int, part: str = "normalizer") -> Change:
    """Rules that each turn one e into two."""
    many = {"normalizer": "normalizers", "decoder": "decoders"}[part]
    one = {"type": "Replace", "pattern": {"String": "e"}, "content": "ee"}

    def change(folder: Path) -> None:
        file = folder / "tokenizer.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {part: {"type": "Sequence", many: [one] * rules}}))

    return change


def configured(**changes: Any) -> Change:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


def replaced(model: str, **settings: int) -> Change:
    """The folder's weights and configuration are those of a small model of another class."""

    def change(folder: Path) -> None:
        import transformers

        configuration = getattr(transformers, model).config_class(vocab_size=110, **settings)
        getattr(transformers, model)(configuration).save_pretrained(folder)

    return change


def narrower(folder: Path) -> None:
    configuration = (folder / "config.json").read_text()
    random_model(hidden_size=32)[0].save_pretrained(folder)
    (folder / "config.json").write_text(configuration)


def smaller_vocabulary(folder: Path) -> None:
    random_model(vocab_size=50)[0].save_pretrained(folder)


def only_an_adapter(folder: Path) -> None:
    without("config.json", "*.safetensors")(folder)
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "some/base"}')


def without_a_shard(folder: Path) -> None:
    without("*.safetensors")(folder)
    index = {"metadata": {}, "weight_map": {"model.norm.weight": "model-1.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def weights(name: str, value: float) -> Change:
    """One number of a tensor becomes this."""

    def change(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        tensors[name].view(-1)[7] = value
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    return change


def instead(name: str, make: Callable[[Path], object]) -> Change:
    """Something else stands in the place of a file."""

    def change(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return change


def indexed(shard: str, *, of: str = "model.safetensors.index.json") -> Change:
    """An index in the place of the weights, all of which stand in this file."""

    def change(folder: Path) -> None:
        (folder / "model.safetensors").unlink()
        (folder / of).write_text(json.dumps({"metadata": {}, "weight_map": {"lm_head.weight": shard}}))

    return change


def biased(folder: Path) -> None:
    """Weights of a model with attention_bias, which config.json does not say."""
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.self_attn.q_proj.bias"] = torch.ones(32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


BERT = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
WRONG: dict[str, tuple[Change, str]] = {
    "no tokenizer": (without("tokenizer*"), "has no tokenizer (tokenizer.json is missing); copy"),
    "tokenizer no JSON": (holding("tokenizer.json", b"{"), "tokenizer.json cannot be read (Expecting property name"),
    "no weights": (without("*.safetensors"), "no file named model.safetensors"),
    "weights cut": (cut("model.safetensors", 0.5), "model.safetensors cannot be read (Error while deserializing"),
    "weights a pointer": (
        holding("model.safetensors", b"version https://git-lfs.github.com/spec/v1\nsize 123\n"),
        "model.safetensors is a pointer of Git LFS, not the weights; fetch them with git lfs pull",
    ),
    "a shard missing": (without_a_shard, "model-1.safetensors"),
    "layers missing": (configured(num_hidden_layers=3), "lack 9 tensors that its config.json needs (model.layers"),
    "a bias too many": (biased, "1 tensors for which its config.json has no place (model.layers.0.self_attn.q_proj.b"),
    "other shapes": (narrower, "the shapes of its weights differ from its config.json"),
    "other tokenizer": (smaller_vocabulary, "has 104 tokens, but the model 50, so they do not belong together"),
    "no config": (without("config.json"), "is a folder without config.json"),
    "config no JSON": (holding("config.json", b"{"), "config.json cannot be read (Expecting property name"),
    "config of an unknown type": (configured(model_type="nonesuch"), "model type `nonesuch`"),
    "config with a wrong kind": (configured(hidden_size="x"), "Field 'hidden_size' expected int, got str"),
    "config that divides by zero": (configured(num_attention_heads=0), "ZeroDivisionError"),
    "classifier": (replaced("LlamaForSequenceClassification", hidden_size=32, intermediate_size=32, num_hidden_layers=1,
                            num_attention_heads=2), "lack 1 tensors that its config.json needs (lm_head.weight)"),
    "encoder": (replaced("BertForMaskedLM", **BERT), "sees later tokens, as encoders do"),
    "encoder-decoder": (
        replaced("T5ForConditionalGeneration", d_model=32, d_kv=16, d_ff=32, num_layers=1, num_heads=2),
        "is not a causal language model like Llama or Qwen",
    ),
    "weights NaN": (weights("lm_head.weight", math.nan), "are not finite (lm_head.weight has NaN or infinity)"),
    "weights too large": (weights("model.layers.0.mlp.up_proj.weight", 3e38), "computes infinite or NaN values"),
    "a billion layers": (configured(num_hidden_layers=10**9), "has num_hidden_layers = 1e+09, but no model has more"),
    "a tokenizer that doubles": (doubling(40), "model does not tokenise a text within 3 s and 1024 MiB"),
    "a size of 400 digits": (configured(vocab_size=10**400), "has vocab_size = 1.8e+308, but no model has more"),
    "config a FIFO": (instead("config.json", os.mkfifo), "config.json is no regular file; fetch the model again"),
    "template a device": (
        instead("chat_template.jinja", lambda file: file.symlink_to("/dev/zero")), "template.jinja is no regular file"
    ),
    "template behind a folder a FIFO": (
        lambda folder: ((folder / "additional_chat_templates").mkdir(),
                        os.mkfifo(folder / "additional_chat_templates/tool.jinja")), "tool.jinja is no regular file"
    ),
    "index a FIFO": (lambda folder: os.mkfifo(folder / "model.safetensors.index.json"), "index.json is no regular"),
    "shard elsewhere": (indexed("../model/model.safetensors"), "names '../model/model.safetensors', which is no file"),
    "shard by its path": (indexed("/dev/zero"), "names '/dev/zero', which is no file of this folder"),
    "shard of bin files elsewhere": (
        indexed("../x.bin", of="pytorch_model.bin.index.json"), "names '../x.bin', which is no file of this folder"
    ),
    "shard a device": (
        lambda folder: (indexed("zero.safetensors")(folder), (folder / "zero.safetensors").symlink_to("/dev/zero")),
        "zero.safetensors is no regular file",
    ),
    "config nested": (holding("config.json", b'{"a":' * 100_000), "config.json cannot be read"),
    "adapter": (only_an_adapter, "is an adapter, not a complete model; name its base model (some/base)"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_folder_is_named_with_the_remedy(
    sound: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, words = WRONG[kind]
    folder = tmp_path / "model"
    shutil.copytree(sound, folder)
    change(folder)
    hosts: list[object] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *_, **__: hosts.append(host) or [])
    with pytest.raises(ModelError) as caught:
        load(folder)
    message = str(caught.value)
    assert words in message
    assert "\n" not in message
    assert len(message) < 600 + len(str(folder))
    assert not hosts  # no hub was asked for what the folder lacks


def test_a_sound_folder_loads_and_one_without_a_template_gets_plain_prompts(sound: Path, tmp_path: Path) -> None:
    assert not PromptEncoder(load(sound).tokenizer, None).uses_plain_format
    shutil.copytree(sound, tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").unlink()
    encoder = PromptEncoder(load(tmp_path / "model").tokenizer, "Be brief.")
    assert encoder.uses_plain_format
    assert encoder.render("1+1?") == "Be brief.\n\nQuestion: 1+1?\nAnswer:"


@pytest.mark.parametrize(
    "changes", [{"peft_type": "VERA"}, {"megatron_config": {}, "megatron_core": "evil"}, {"peft_type": 1}]
)
def test_an_adapter_that_has_peft_import_a_module_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    file = tmp_path / "adapter_config.json"
    plain = {"peft_type": "LORA", "megatron_config": None, "r": 8, "target_modules": ["q_proj"]}
    file.write_text(json.dumps(plain))
    check_adapter_config(tmp_path)
    file.write_text(json.dumps(plain | changes))
    with pytest.raises(ModelError, match=r"adapter_config\.json: (is not a plain LoRA adapter|cannot be read)"):
        check_adapter_config(tmp_path)


@pytest.mark.parametrize("lora", [None, LoraRecipe(rank=4, alpha=8)], ids=["all weights", "adapter"])
def test_damaged_weights_of_a_checkpoint_are_a_checkpoint_error(
    sound: Path, tmp_path: Path, lora: LoraRecipe | None
) -> None:
    policy = load(sound, lora=lora)
    policy.save(tmp_path)
    policy.load(tmp_path)
    (weights,) = tmp_path.glob("*.safetensors")
    os.truncate(weights, 100)
    with pytest.raises(CheckpointError, match="the weights cannot be read"):
        policy.load(tmp_path)


# -- the hub ----------------------------------------------------------------------------------------------------------

PROGRAM = """
import sys, time
from gtpo_cli.errors import GtpoError
from gtpo_cli.policy.loading import load_config, load_tokenizer
from gtpo_cli.recipe.schema import ModelRecipe
import transformers
started = time.perf_counter()
for load in (load_tokenizer, load_config):
    try: load(ModelRecipe(name="nobody/nothing"), "nobody/nothing")
    except GtpoError as error: print(error)
if "data" in sys.argv:
    from gtpo_cli.data.benchmarks import BENCHMARKS
    from gtpo_cli.data.benchmarks import hub_table
    started = time.perf_counter()
    try: hub_table("gsm8k", BENCHMARKS["gsm8k"].hub, "train")
    except GtpoError as error: print(error)
print(time.perf_counter() - started)
"""


def asked(
    endpoint: str, home: Path, *arguments: str, offline: str = "0", program: str = PROGRAM
) -> tuple[list[str], float]:
    """What a process prints that asks this hub, and its seconds. The endpoint is read once, from the environment."""
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_OFFLINE": offline}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    *lines, seconds = done.stdout.splitlines()
    return lines, float(seconds)


class NoSuchRepository(BaseHTTPRequestHandler):
    """The hub's answers, by the name asked for: gated to those who are not logged in, forbidden to a limited token."""

    def do_HEAD(self) -> None:
        status, code = 200, "RepoNotFound"
        if "nobody" in self.path or "openai" in self.path:
            status = 404
        elif "meta-llama" in self.path or "owner/gated" in self.path:
            status, code = 401, "GatedRepo"
        elif "owner/limited" in self.path:
            status, code = 403, ""
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), NoSuchRepository)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def nobody_listens() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


@pytest.mark.slow
def test_a_hub_that_cannot_be_reached_is_asked_once_and_the_remedy_is_told(tmp_path: Path) -> None:
    """Each of these took 24 seconds of retries."""
    endpoint = nobody_listens()
    lines, seconds = asked(endpoint, tmp_path, "data")
    assert len(lines) == 3
    for line in lines[:2]:
        assert "nobody/nothing is no local folder, not in the cache, and the hub was not asked" in line
        assert f"({endpoint}: [Errno " in line
        assert "Connection refused" in line
        assert "give a folder, or fill the cache on a machine with network (hf download NAME) and set HF_HUB" in line
    assert "openai/gsm8k: the hub cannot be reached" in lines[2]
    assert "set data.path to a local copy" in lines[2]
    assert seconds < 60  # with the retries it would be 72, on a quiet machine


def test_a_stored_mask_that_is_called_bias_is_no_weight_without_a_place() -> None:
    """Older files of GPT-Neo and GPT-J hold their causal masks."""
    from transformers import GPTNeoConfig, GPTNeoForCausalLM

    sizes = {"vocab_size": 32, "hidden_size": 8, "num_layers": 1, "num_heads": 2, "attention_types": [[["global"], 1]]}
    model = GPTNeoForCausalLM(GPTNeoConfig(**sizes))
    mask, bias = "transformer.h.0.attn.attention.bias", "transformer.h.0.attn.attention.q_proj.bias"
    check_complete("there", model, {"missing_keys": [], "unexpected_keys": [mask]})
    with pytest.raises(ModelError, match="have 1 tensors"):
        check_complete("there", model, {"missing_keys": [], "unexpected_keys": [mask, bias]})


def test_a_model_in_the_cache_loads_without_a_hub(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    from gtpo_cli import hub

    snapshot = tmp_path / "models--some--model" / "snapshots" / ("0" * 40)
    shutil.copytree(sound, snapshot)
    (tmp_path / "models--some--model" / "refs").mkdir()
    (tmp_path / "models--some--model" / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", nobody_listens())
    assert "Connection refused" in str(hub.why_unreachable())
    policy = load("some/model")
    assert torch.equal(policy.lm_head[0], load(sound).lm_head[0])
    assert huggingface_hub.constants.HF_HUB_OFFLINE is False or os.environ.get("HF_HUB_OFFLINE")  # as it was


# -- the remedy fits the failure --------------------------------------------------------------------------------------


def raised(fail: Callable[[], object]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011  (of several kinds)
        fail()
    return caught.value


def test_memory_that_runs_out_is_told_as_such_with_what_to_lower() -> None:
    host = load_failure("some/model", raised(lambda: torch.empty(1 << 50)))
    assert "some/model does not fit this machine's main memory: stop other programs" in host
    assert "DefaultCPUAllocator: can't allocate memory" in host
    assert "main memory" in load_failure("some/model", raised(lambda: bytearray(1 << 62)))
    said = "CUDA out of memory. Tried to allocate 2.00 GiB"
    gpu = load_failure("some/model", torch.OutOfMemoryError(said))
    assert gpu.startswith("model.name: some/model does not fit the GPU's memory: set model.load_in_4bit: true, lower")
    assert gpu.endswith(f"gtpo plan shows what fits ({said})")
    unsloth = load_failure("some/model", MemoryError("Unsloth: Your GPU ran out of memory loading vLLM"))
    assert "lower rollout.gpu_memory_utilization" in unsloth
    for message in (host, gpu, unsloth):
        assert "hub" not in message
        assert "fetch" not in message


def test_failed_downloads_speak_of_the_hub_and_a_full_disk_of_the_disk() -> None:
    refused = raised(lambda: httpx.get(nobody_listens(), trust_env=False))
    nowhere = raised(lambda: LlamaConfig.from_pretrained("a b/c"))
    for error in (refused, nowhere, OSError("We couldn't connect")):
        assert "some/model is no local folder and cannot be had from the hub: " in load_failure("some/model", error)
    full = load_failure("some/model", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert "No space left on device; free some space, or name another disk with HF_HOME" in full
    unknown = load_failure("some/model", ValueError("The checkpoint has model type `nonesuch`"))
    assert (
        unknown
        == "model.name: some/model cannot be loaded: The checkpoint has model type `nonesuch`; choose another model"
    )


def test_a_gpu_that_only_emulates_bfloat16_computes_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch answers on a T4: with emulation yes, in hardware no."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    assert choose_dtype("auto", torch.device("cuda")) == torch.float32
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    assert choose_dtype("auto", torch.device("cuda")) == torch.bfloat16
    assert choose_dtype("float16", torch.device("cuda")) == torch.float16


# -- what is not installed --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["./nofolder", "../x", "/x/y", "~/x", "models/", "a/b/c", "..", "."])
def test_what_has_the_form_of_a_path_is_not_asked_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gtpo_cli.policy.loading.only_the_cache_if_unreachable", None)
    said = "is a folder without config.json" if name in ("..", ".") else f"there is no folder {name}"
    for load in (load_config, load_tokenizer):
        with pytest.raises(ModelError, match=re.escape(said)):
            load(ModelRecipe(name=name), name)
