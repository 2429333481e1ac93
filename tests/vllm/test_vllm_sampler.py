"""The sampler on a real vLLM engine (the third-party CPU build): beside a transformers policy, and inside Unsloth's.

`make test-vllm` runs this in an environment of its own; elsewhere it is skipped.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import policy_of, sampler_of, subject_of
from policy_contract import recipe_for, save_model
from sampler_contract import CONTEXT, PROMPTS, SamplerContract, gap

from gtpo_cli.data.prompts import PromptEncoder
from gtpo_cli.data.unseen import load_benchmark
from gtpo_cli.evaluation.loading import PolicyAndSampler
from gtpo_cli.evaluation.measure import evaluate, find_evaluation
from gtpo_cli.policy.sampler import SamplingParams
from gtpo_cli.policy.vllm_sampler import PlainEngine, SharedEngine, VllmSampler
from gtpo_cli.recipe import load_recipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.runs.folder import RunFolder

pytestmark = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not here: make test-vllm")


HEADS: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random LLaMA; vLLM's attention on a CPU takes heads of 32 and more."""
    return save_model(tmp_path_factory.mktemp("model"), "llama", initializer_range=0.1, **HEADS)


def move(policy: Any, *, seed: int = 0) -> None:
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.trainable_parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))


class TestPlainEngine(SamplerContract):
    @pytest.fixture(scope="class")
    def pair(self, folder: Path) -> tuple[Any, Any]:
        recipe = recipe_for(folder, rollout={"engine": "vllm"}, backend="transformers", max_seq_length=CONTEXT)
        policy = policy_of(recipe)
        move(policy)
        return policy, sampler_of(policy, recipe)

    def test_more_prompts_than_go_through_at_once(self, pair: tuple[Any, Any]) -> None:
        """On a CPU vLLM fails where it takes a prompt in pieces and a completion has a seed."""
        _, sampler = pair
        at_once = sampler._engine._engine.llm_engine.vllm_config.scheduler_config.max_num_batched_tokens
        prompts = [[5 + (row + place) % 90 for place in range(CONTEXT - 2)] for row in range(at_once // CONTEXT + 40)]
        rows = sampler.sample(prompts, 2, SamplingParams(max_completion_tokens=1))
        assert [len(row) for row in rows] == [2] * len(prompts)

    def test_one_adapter_folder_is_kept(self, pair: tuple[Any, Any]) -> None:
        policy, sampler = pair
        kept = Path(sampler._engine._folder.name)
        for _ in range(3):
            sampler.sync(policy)
            sampler.sample(PROMPTS, 1, SamplingParams(max_completion_tokens=1))
        assert len(list(kept.iterdir())) == 1


class TestSharedEngine(SamplerContract):
    """Unsloth's model, Unsloth's `load_lora` and vLLM's engine, all real.

    On a CPU Unsloth starts no engine by itself, so the test puts one into the model as Unsloth does on a GPU
    (`FastLlamaModel.from_pretrained`, `patch_peft_fast_inference`). What this cannot show: the shared base weights,
    and sleeping.
    """

    @pytest.fixture(scope="class")
    def pair(self, folder: Path) -> tuple[Any, Any]:
        policy = policy_of(recipe_for(folder, backend="unsloth", max_seq_length=CONTEXT))
        from unsloth_zoo import vllm_utils

        vllm_utils.patch_vllm(debug=False)
        import vllm

        engine = vllm.LLM(
            model=str(folder), dtype="float32", max_model_len=CONTEXT, enable_lora=True, max_loras=1, max_lora_rank=8,
            enforce_eager=True, max_logprobs=0, logprobs_mode="processed_logprobs",
        )  # fmt: skip
        model: Any = policy.model
        model.vllm_engine = engine
        model.load_lora = functools.partial(vllm_utils.load_lora, model)
        move(policy)
        assert policy.shares_engine
        return policy, VllmSampler(SharedEngine(model), policy)

    def test_the_adapter_is_scaled_once(self, pair: tuple[Any, Any]) -> None:
        """alpha / rank is 2: vLLM would multiply it into the policy's own tensors, were they handed over."""
        policy, sampler = pair
        for seed in range(3):
            move(policy, seed=seed)
            sampler.sync(policy)
            rows = sampler.sample(PROMPTS, 4, SamplingParams(max_completion_tokens=12, seed=seed))
            assert gap(policy, PROMPTS, rows) < self.tolerance


def test_a_plain_engine_quantises_as_the_policy_does(tmp_path: Path) -> None:
    """Both to NF4 when they load (vLLM by vllm-bnb-plugin), in bfloat16: the base's type, not the adapter's float32."""
    folder = save_model(tmp_path, "llama", **HEADS, hidden_size=128, initializer_range=0.1)
    rollout = {"engine": "vllm"}
    recipe = recipe_for(
        folder, backend="transformers", load_in_4bit=True, dtype="bfloat16", max_seq_length=CONTEXT, rollout=rollout
    )
    policy = policy_of(recipe)
    move(policy)
    sampler = sampler_of(policy, recipe)
    config = sampler._engine._engine.llm_engine.vllm_config
    assert (config.model_config.quantization, config.model_config.dtype) == ("bitsandbytes", torch.bfloat16)
    assert gap(policy, PROMPTS, sampler.sample(PROMPTS, 4, SamplingParams(max_completion_tokens=12, seed=1))) < 0.12


class Killed(BaseException):
    """Not an Exception, as a signal is none."""


def test_a_killed_evaluation_continues_to_the_same_completions_each_time_in_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 problems of 16 completions: 640, of which vLLM runs 256 at once. Log-probabilities round by what else runs, so
    entropies are compared up to that."""
    lora, settings = "model.lora={rank: 8, alpha: 8}", "evaluation={samples: 16, limit: 40, max_completion_tokens: 48}"
    recipe = load_recipe("tiny_arithmetic", ["rollout.engine=vllm", lora, "model.dtype=float32", settings])
    policy = policy_of(recipe)
    subject = PolicyAndSampler(policy, sampler_of(policy, recipe))
    problems = load_benchmark(recipe, "arithmetic", PromptEncoder(policy.tokenizer, None), max_seq_length=512)
    generate, calls = PlainEngine.generate, []

    def counted(engine: PlainEngine, requests: Any) -> Any:
        calls.append(requests)
        return generate(engine, requests)

    monkeypatch.setattr(PlainEngine, "generate", counted)

    def kill(done: int, total: int) -> None:
        if killed.samples_file.exists() and killed.samples_file.read_bytes().count(b"\n") == 16:
            raise Killed

    with Scorer(recipe.rewards, longest=recipe.rollout.max_completion_tokens) as scorer:
        whole, killed = (
            find_evaluation(RunFolder(tmp_path / name), problems, subject_of(recipe)) for name in ("whole", "killed")
        )
        seen: list[int] = []

        def note(done: int, total: int) -> None:
            seen.append(done)

        evaluate(
            recipe.evaluation,
            lambda: subject,
            problems,
            whole,
            scorer,
            seed=recipe.seed,
            progress=note,
        )
        assert (set(seen), len(calls)) == ({*range(41)}, 1)
        assert seen == sorted(seen)
        with pytest.raises(Killed):
            evaluate(recipe.evaluation, lambda: subject, problems, killed, scorer, seed=recipe.seed, progress=kill)
        assert len(killed.problems()) == 16
        assert not subject.sampler._engine._engine.llm_engine.has_unfinished_requests()  # type: ignore[attr-defined]
        evaluate(recipe.evaluation, lambda: subject, problems, killed, scorer, seed=recipe.seed)
    assert len(calls) == 3
    of_whole, of_killed = ({problem.id: problem for problem in stored.problems()} for stored in (whole, killed))
    assert of_whole.keys() == of_killed.keys() == {problem.id for problem, _ in problems.prompts}
    for one in of_whole:
        for a, b in zip(of_whole[one].completions, of_killed[one].completions, strict=True):
            assert (a.text, a.tokens, a.correct) == (b.text, b.tokens, b.correct)
            assert a.mean_entropy == pytest.approx(b.mean_entropy, abs=1e-4)


def test_what_the_recipe_says_reaches_a_plain_engine_and_guesses_change_no_log_probability(folder: Path) -> None:
    """Guessed from the row's own text, at temperature 1: the adapter's file is all that is written for it."""
    speculative = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
    vllm = {"max_num_batched_tokens": 300, "enable_prefix_caching": False, "speculative_config": speculative}
    rollout = {"engine": "vllm", "max_num_seqs": 64, "vllm": vllm}
    recipe = recipe_for(folder, backend="transformers", max_seq_length=CONTEXT, rollout=rollout)
    policy = policy_of(recipe)
    move(policy)
    sampler = sampler_of(policy, recipe)
    config = sampler._engine._engine.llm_engine.vllm_config
    assert (config.scheduler_config.max_num_seqs, config.scheduler_config.max_num_batched_tokens) == (64, 300)
    assert not config.cache_config.enable_prefix_caching
    assert {key: getattr(config.speculative_config, key) for key in speculative} == speculative
    assert gap(policy, PROMPTS, sampler.sample(PROMPTS, 8, SamplingParams(max_completion_tokens=24, seed=1))) < 1e-4
    written = {file.name for file in Path(sampler._engine._folder.name).rglob("*") if file.is_file()}
    assert written == {"adapter_model.safetensors", "adapter_config.json", "README.md"}


DEMO = [
    str(Path(sys.executable).parent / "gtpo"), "train", "-q", "--recipe", "tiny_arithmetic",
    "--set", "rollout.engine=vllm", "--set", "run_name=vllm", "--set", "model.lora={rank: 16, alpha: 16}",
    "--set", "model.dtype=float32", "--set", "optimizer.learning_rate=2.0e-3",
    "--set", "objective.probe.num_prompts=16",
]  # fmt: skip


def test_ctrl_c_reaches_the_whole_group_of_the_terminal_and_the_step_is_saved(tmp_path: Path) -> None:
    known = {name: value for name, value in os.environ.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    process = subprocess.Popen(
        [*DEMO, "--set", "training.max_steps=2000"], cwd=tmp_path, env=known | {"HF_HUB_OFFLINE": "1"},
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    metrics = tmp_path / "runs/vllm/metrics.jsonl"
    while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 3):
        assert process.poll() is None, process.communicate()[1][-3000:]
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate()
    assert process.returncode == 130, error[-3000:]
    assert "Traceback" not in error
    steps = metrics.read_bytes().count(b"\n")
    assert [path.name for path in (tmp_path / "runs/vllm/checkpoints").iterdir()] == [f"step-{steps:06d}"]


def test_the_demo_learns_with_vllm(tmp_path: Path) -> None:
    """The built-in model with an adapter: sampled by vLLM, trained by us."""
    done = subprocess.run(
        [*DEMO, "--set", "training.max_steps=40"],
        cwd=tmp_path, env=os.environ | {"HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    rows = [json.loads(line) for line in (tmp_path / "runs" / "vllm" / "metrics.jsonl").read_text().splitlines()]
    first, last = (sum(row["train/accuracy_rate"] for row in part) / 10 for part in (rows[:10], rows[-10:]))
    assert last > first + 0.15
    assert max(row["sampler/gap_max"] for row in rows) < 1e-3
