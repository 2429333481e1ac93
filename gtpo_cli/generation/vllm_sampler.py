"""Sampling by a vLLM engine that serves the policy's base model with the policy's adapter on top.

PlainEngine: a `vllm.LLM` of its own, with its own copy of the base weights, beside any policy.
SharedEngine: the engine that Unsloth starts with the policy (`fast_inference`); base weights exist once.
In both, every update is a new adapter name and id: under a name that is used again, vLLM may serve the key-value cache
of the old weights.

The log-probabilities of a completion are vLLM's own. They are those of softmax(logits / temperature) as the contract
asks, except that top-p and top-k cut the distribution first in a shared engine, and in a plain one where the
temperature is not 1 (vLLM reports either raw or fully processed ones). They differ from the policy's by the two
engines' arithmetic: sampler/gap_mean and gap_max.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from gtpo_cli.errors import GenerationError, install
from gtpo_cli.generation.sampler import Ended, SamplingParams, check_prompts
from gtpo_cli.models.loading import dtype_name
from gtpo_cli.models.policy import Policy
from gtpo_cli.models.tiny import resolve_name
from gtpo_cli.models.transformers_policy import TransformersPolicy
from gtpo_cli.models.unsloth_policy import UnslothPolicy
from gtpo_cli.recipe.schema import Recipe
from gtpo_cli.seeds import derive_seed
from gtpo_cli.types import Completion

_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # the maxima vLLM takes
Prompt = dict[str, list[int]]  # {"prompt_token_ids": ids}


class PlainEngine:
    """A `vllm.LLM` that was started with adapters enabled; the adapter travels through a folder.

    `update`: sample with the policy's current adapter from now on. `generate`: vLLM's RequestOutputs, one for each
    prompt with its SamplingParams.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._folder = tempfile.TemporaryDirectory(prefix="gtpo-adapter-")
        self._numbers = count(1)
        self._adapter: Any = None

    def update(self, policy: Policy) -> None:
        from vllm.lora.request import LoRARequest

        number = next(self._numbers)
        path = Path(self._folder.name) / str(number)
        policy.save(path)
        shutil.rmtree(path.with_name(str(number - 1)), ignore_errors=True)  # loaded long ago; an adapter can be large
        self._adapter = LoRARequest(f"policy-{number}", number, str(path))

    def generate(self, prompts: Sequence[Prompt], params: Sequence[Any]) -> list[Any]:
        outputs: list[Any] = self._engine.generate(
            list(prompts), list(params), lora_request=self._adapter, use_tqdm=False
        )
        return outputs


class SharedEngine:
    """The engine inside a model that Unsloth loaded with fast inference; `update` and `generate` as in PlainEngine.

    It sleeps from here on, and wakes only to sample, where Unsloth's standby is on: its key-value cache makes room for
    training. Unsloth and vLLM allow one such engine in a process.
    """

    def __init__(self, model: Any) -> None:
        """`model`: what Unsloth returned, with `fast_generate`, `load_lora` and `vllm_engine`."""
        self._model = model
        # else two lines at every step: Unsloth has set vLLM's level to INFO, whatever the environment says
        logging.getLogger("vllm.v1.core.sched.scheduler").setLevel(logging.WARNING)
        self._sleeps = bool(model.vllm_engine.llm_engine.vllm_config.model_config.enable_sleep_mode)
        self._folder = tempfile.TemporaryDirectory(prefix="gtpo-adapter-")
        self._adapter: Any = None
        self._sleep()

    def update(self, policy: Policy) -> None:
        adapter = self._model.load_lora(self._folder.name, load_tensors=True)  # Unsloth counts name and id up
        # What it holds are the tensors that train. vLLM multiplies alpha / rank into them in place where their type
        # is the engine's: that would change the policy. So it gets its own.
        adapter.lora_tensors = {name: tensor.detach().clone() for name, tensor in adapter.lora_tensors.items()}
        self._adapter = adapter

    def generate(self, prompts: Sequence[Prompt], params: Sequence[Any]) -> list[Any]:
        try:
            outputs: list[Any] = self._model.fast_generate(  # wakes the engine where it sleeps
                list(prompts), sampling_params=list(params), lora_request=self._adapter, use_tqdm=False
            )
        finally:  # whatever happened: training needs the memory, and so does the saving of an interrupted run
            self._sleep()
        return outputs

    def _sleep(self) -> None:
        if self._sleeps:
            self._model.vllm_engine.sleep(1)


class VllmSampler:
    """Implements `gtpo_cli.generation.sampler.Sampler`; see there for the contract."""

    def __init__(self, engine: PlainEngine | SharedEngine, policy: Policy) -> None:
        self._engine = engine
        self._policy = policy
        self.sync(policy)

    def sync(self, policy: Policy) -> None:
        self._engine.update(policy)

    def sample(
        self, prompts: Sequence[Sequence[int]], n: int, params: SamplingParams, *, ended: Ended | None = None
    ) -> list[list[Completion]]:
        check_prompts(prompts, self._policy.max_seq_length)
        outputs = self._engine.generate(
            [{"prompt_token_ids": list(prompt)} for prompt in prompts],
            [self._engine_params(prompt, n, params, index) for index, prompt in enumerate(prompts)],
        )
        completions = [[self._completion(sampled) for sampled in output.outputs] for output in outputs]
        if ended is not None:  # vLLM hands out all at the end
            for number, group in enumerate(completions):
                for completion in group:
                    ended(number, completion)
        return completions

    def rehearse(self, prompt_tokens: int, n: int, params: SamplingParams) -> None:
        """Nothing: the engine took its memory when it started, and queues what does not fit at once."""

    def _engine_params(self, prompt: Sequence[int], n: int, params: SamplingParams, index: int) -> Any:
        import vllm

        return vllm.SamplingParams(
            n=n,
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            max_tokens=min(params.max_completion_tokens, self._policy.max_seq_length - len(prompt)),
            seed=derive_seed(params.seed, "vllm prompt", index) >> 1,  # vLLM adds the completion's number to it
            stop_token_ids=sorted(self._policy.eos_token_ids),
            logprobs=0,  # that of the sampled token, and no others
            detokenize=False,
        )

    def _completion(self, sampled: Any) -> Completion:
        ids = tuple(sampled.token_ids)
        logprobs = tuple(step[token].logprob for step, token in zip(sampled.logprobs, ids, strict=True))
        text = self._policy.tokenizer.decode(ids, skip_special_tokens=True)
        # vLLM also stops at the end tokens of the model's own generation configuration, which may be more than ours.
        return Completion(ids, logprobs, "stop" if sampled.finish_reason == "stop" else "length", text)


def load_vllm_sampler(policy: Policy, recipe: Recipe) -> VllmSampler:
    """The engine that Unsloth shares with the policy, or a new one beside it.

    Raises GenerationError with the remedy.
    """
    if isinstance(policy, UnslothPolicy) and policy.shares_engine:
        return VllmSampler(SharedEngine(policy.model), policy)
    return VllmSampler(PlainEngine(_start(policy, recipe)), policy)


def _start(policy: Policy, recipe: Recipe) -> Any:
    assert recipe.model.lora is not None, "the recipe was validated: the weights travel as an adapter"
    try:
        import vllm
    except ImportError as error:
        raise GenerationError(
            f"rollout.engine: vllm cannot be imported ({error}); on a GPU machine: {install('cuda')}; "
            "or use rollout.engine: transformers"
        ) from error
    options: dict[str, Any] = {}
    if policy.device.type == "cuda":
        options["gpu_memory_utilization"] = recipe.rollout.gpu_memory_utilization
    else:
        options["enforce_eager"] = True
    if recipe.model.load_in_4bit:
        options["quantization"] = "bitsandbytes"
    try:
        return vllm.LLM(
            model=resolve_name(recipe.model.name),
            revision=recipe.model.revision,
            trust_remote_code=recipe.model.trust_remote_code,
            dtype=_dtype(policy),
            max_model_len=policy.max_seq_length,
            enable_lora=True,
            max_loras=1,
            max_lora_rank=next(rank for rank in _LORA_RANKS if rank >= recipe.model.lora.rank),
            logprobs_mode="raw_logprobs" if policy.temperature == 1.0 else "processed_logprobs",
            seed=recipe.seed,
            **options,
        )
    except (RuntimeError, ValueError, OSError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise GenerationError(
            f"rollout.engine: vLLM does not start: {first}; see its messages, or use rollout.engine: transformers"
        ) from error


def _dtype(policy: Policy) -> str:
    """The type of the base model's arithmetic, as vLLM names it; the adapter's is float32 whatever that is."""
    assert isinstance(policy, TransformersPolicy)
    return dtype_name(policy.dtype)
