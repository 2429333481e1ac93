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

import gc
import logging
import shutil
import tempfile
from collections.abc import Collection, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import torch

from gtpo_cli.errors import GenerationError, NoRoomToSampleError, install, out_of_memory
from gtpo_cli.generation.sampler import OnCompletion, SamplingParams, check_prompts
from gtpo_cli.models.loading import dtype_name
from gtpo_cli.models.policy import Policy
from gtpo_cli.models.tiny import resolve_name
from gtpo_cli.models.transformers_policy import TransformersPolicy
from gtpo_cli.models.unsloth_policy import UnslothPolicy
from gtpo_cli.recipe.schema import Recipe, RolloutRecipe
from gtpo_cli.seeds import derive_seed
from gtpo_cli.text import one_line
from gtpo_cli.types import Completion

_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # the maxima vLLM takes
Request = tuple[Sequence[int], Any]  # a prompt's token ids, and its vllm.SamplingParams
Outputs = Generator[tuple[int, Any], None, None]  # a request's number, and its RequestOutput


def _outputs(engine: Any, requests: Iterable[Request], adapter: Any) -> Outputs:
    """Of each request, once all its completions are there. `engine`: a vllm.LLMEngine.

    It is handed twice as many sequences as it runs at once, so that it always has others where some have ended. What
    is under way when the generator is closed is aborted.
    """
    from vllm.inputs import tokens_input

    most = 2 * engine.vllm_config.scheduler_config.max_num_seqs
    waiting = enumerate(requests)
    under_way: dict[str, int] = {}  # request id -> its sequences
    try:
        while True:
            while sum(under_way.values()) < most and (following := next(waiting, None)) is not None:
                number, (prompt, params) = following
                engine.add_request(str(number), tokens_input(list(prompt)), params, lora_request=adapter)
                under_way[str(number)] = params.n
            if not under_way:
                return
            for output in engine.step():
                if output.finished:
                    del under_way[output.request_id]
                    yield int(output.request_id), output
    finally:
        if under_way:
            engine.abort_request(list(under_way))


class PlainEngine:
    """A `vllm.LLM` that was started with adapters enabled; the adapter travels through a folder.

    `update`: sample with the policy's current adapter from now on. `generate`: see `_outputs`.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._folder = tempfile.TemporaryDirectory(prefix="gtpo-adapter-")
        self._numbers = count(1)
        self._adapter: Any = None

    def update(self, policy: Policy) -> None:
        from vllm.lora.request import LoRARequest

        assert isinstance(policy, TransformersPolicy)
        number = next(self._numbers)
        path = Path(self._folder.name) / str(number)
        policy.save_adapter(path, policy.dtype)
        shutil.rmtree(path.with_name(str(number - 1)), ignore_errors=True)  # loaded long ago; an adapter can be large
        self._adapter = LoRARequest(f"policy-{number}", number, str(path))

    def generate(self, requests: Iterable[Request]) -> Outputs:
        return _outputs(self._engine.llm_engine, requests, self._adapter)


class SharedEngine:
    """The engine inside a model that Unsloth loaded with fast inference; `update` and `generate` as in PlainEngine.

    Started so that it can sleep (rollout.standby), it does from here on, and wakes only to sample: its key-value cache
    makes room for training. Unsloth and vLLM allow one such engine in a process.
    """

    def __init__(self, model: Any) -> None:
        """`model`: what Unsloth returned, with `load_lora` and `vllm_engine`."""
        self._model = model
        # else two lines at every step: Unsloth has set vLLM's level to INFO, whatever the environment says
        logging.getLogger("vllm.v1.core.sched.scheduler").setLevel(logging.WARNING)
        self._sleeps = bool(self._engine.vllm_config.model_config.enable_sleep_mode)
        self._folder = tempfile.TemporaryDirectory(prefix="gtpo-adapter-")
        self._policy: Policy | None = None
        self._adapter: Any = None  # from an update to the next sampling
        self._sleep()

    def update(self, policy: Policy) -> None:
        adapter = self._model.load_lora(self._folder.name, load_tensors=True)  # Unsloth counts name and id up
        # What it holds are the tensors that train. vLLM multiplies alpha / rank into them in place where their type
        # is the engine's: that would change the policy. So it gets its own, in the engine's type.
        adapter.lora_tensors = {
            name: tensor.detach().to(policy.dtype, copy=True) for name, tensor in adapter.lora_tensors.items()
        }
        self._policy, self._adapter = policy, adapter

    def generate(self, requests: Iterable[Request]) -> Outputs:
        if self._adapter is None:
            assert self._policy is not None, "update comes first"
            self.update(self._policy)
        try:
            self._wake_up()
            yield from _outputs(self._engine, requests, self._adapter)
        except (RuntimeError, MemoryError) as error:
            if out_of_memory(error) != "the GPU":
                raise
            raise NoRoomToSampleError(
                "rollout.gpu_memory_utilization: the GPU's memory does not hold vLLM's engine beside what else is "
                f"kept there ({one_line(str(error))}); lower it, or end what else uses the GPU"
            ) from error
        finally:  # whatever happened: training needs the memory, and so does the saving of an interrupted run
            self._engine.remove_lora(self._adapter.lora_int_id)
            self._adapter = None
            self._sleep()

    def _wake_up(self) -> None:
        """Where memory does not suffice, once more without what torch holds on to beside the tensors of training."""
        if not self._sleeps:
            return
        try:
            self._model.vllm_engine.wake_up()
            return
        except (RuntimeError, MemoryError) as error:
            if out_of_memory(error) != "the GPU":
                raise
        # outside the except block: there, the traceback would still hold tensors
        gc.collect()
        torch.cuda.empty_cache()
        self._model.vllm_engine.wake_up()

    @property
    def _engine(self) -> Any:
        return self._model.vllm_engine.llm_engine

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
        self, prompts: Sequence[Sequence[int]], n: int, params: SamplingParams, *, ended: OnCompletion | None = None
    ) -> list[list[Completion]]:
        everything = range(len(prompts))
        rows: dict[int, list[Completion]] = {}
        notify = ended or (lambda number, completion: None)
        one = self.sample_blocks(prompts, n, params, size=len(prompts), seeds=[params.seed], wanted=everything)
        with closing(one) as sampled:
            for number, completions in sampled:
                rows[number] = completions
                for completion in completions:
                    notify(number, completion)
        return [rows[number] for number in everything]

    def sample_blocks(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        *,
        size: int,
        seeds: Sequence[int],
        wanted: Collection[int],
    ) -> Generator[tuple[int, list[Completion]], None, None]:
        """All at once: each completion has a seed of its own."""
        check_prompts(prompts, self._policy.max_seq_length)
        numbers = sorted(wanted)

        def request(number: int) -> Request:
            block, place = divmod(number, size)
            of_block = replace(params, seed=seeds[block])
            return prompts[number], self._engine_params(prompts[number], n, of_block, place)

        with closing(self._engine.generate(map(request, numbers))) as outputs:
            for i, output in outputs:
                yield numbers[i], [self._completion(sampled) for sampled in output.outputs]

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
            output_kind=vllm.sampling_params.RequestOutputKind.FINAL_ONLY,
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
    options = _engine_options(recipe.rollout)
    if policy.device.type == "cuda":
        options["gpu_memory_utilization"] = recipe.rollout.engine_share
    else:
        options["enforce_eager"] = True
        # a prompt in pieces has its random generator set back, which vLLM cannot do on a CPU
        options["enable_chunked_prefill"] = False
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


def _engine_options(rollout: RolloutRecipe) -> dict[str, Any]:
    """`rollout.vllm` and `rollout.max_num_seqs` in vLLM's words; what is not said is left to vLLM."""
    options = rollout.vllm.model_dump(exclude={"speculative_config"}, exclude_none=True)
    if rollout.max_num_seqs != "auto":
        options["max_num_seqs"] = rollout.max_num_seqs
    if rollout.speculation is not None:
        options["speculative_config"] = rollout.speculation
    return options


def _dtype(policy: Policy) -> str:
    """The type of the base model's arithmetic, as vLLM names it; the adapter's is float32 whatever that is."""
    assert isinstance(policy, TransformersPolicy)
    return dtype_name(policy.dtype)
