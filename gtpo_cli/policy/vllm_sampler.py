"""Sample with a vLLM engine that serves the policy's base model and adapter.

PlainEngine: a separate `vllm.LLM` with its own copy of the base weights, for any policy.
SharedEngine: the engine that Unsloth starts with the policy (`fast_inference`); base weights exist once.
Every update gets a new adapter name and id, because vLLM may reuse the key-value cache of old weights for an old name.

The log-probabilities of a completion come from vLLM. They belong to softmax(logits / temperature), as the protocol
requires. But in a shared engine, and in a plain one at a temperature other than 1, top-p and top-k cut the distribution
first (vLLM reports either raw or fully processed log-probabilities). They differ from the policy's by the arithmetic of
the two engines: sampler/gap_mean and gap_max.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import tempfile
from collections.abc import Collection, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import torch

from gtpo_cli.data.prompts import completion_text
from gtpo_cli.errors import GenerationError, install, out_of_memory
from gtpo_cli.job import Job
from gtpo_cli.policy.loading import dtype_name
from gtpo_cli.policy.policy import Policy
from gtpo_cli.policy.sampler import OnCompletion, SamplingParams, check_prompts
from gtpo_cli.policy.transformers_policy import TransformersPolicy
from gtpo_cli.policy.unsloth_policy import UnslothPolicy
from gtpo_cli.policy.vllm_start import capture_graphs_with_adapter, prepare_vllm
from gtpo_cli.recipe.schema import RolloutRecipe
from gtpo_cli.seeds import derive_seed
from gtpo_cli.text import one_line
from gtpo_cli.types import Completion

_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # values of max_lora_rank
Request = tuple[Sequence[int], Any]  # (token ids of a prompt, vllm.SamplingParams)
Outputs = Generator[tuple[int, Any], None, None]  # (number of a request, RequestOutput)


def run_requests(engine: Any, requests: Iterable[Request], adapter: Any) -> Outputs:
    """Yield the output of each request when all its completions are finished. `engine`: a vllm.LLMEngine.

    The engine gets twice as many sequences as it runs at once, so that others always wait when some end. Closing the
    generator aborts unfinished requests.
    """
    from vllm.inputs import tokens_input

    most = 2 * engine.vllm_config.scheduler_config.max_num_seqs
    waiting = enumerate(requests)
    running: dict[str, int] = {}  # request id -> number of its sequences
    try:
        while True:
            while sum(running.values()) < most and (following := next(waiting, None)) is not None:
                number, (prompt, params) = following
                engine.add_request(str(number), tokens_input(list(prompt)), params, lora_request=adapter)
                running[str(number)] = params.n
            if not running:
                return
            for output in engine.step():
                if output.finished:
                    del running[output.request_id]
                    yield int(output.request_id), output
    finally:
        if running:
            engine.abort_request(list(running))


class PlainEngine:
    """A `vllm.LLM` with adapters enabled. It reads the adapter from a folder.

    `update` switches to the policy's current adapter. `generate`: see `run_requests`.
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
        shutil.rmtree(
            path.with_name(str(number - 1)), ignore_errors=True
        )  # the old adapter is no longer read and may be large
        self._adapter = LoRARequest(f"policy-{number}", number, str(path))

    def generate(self, requests: Iterable[Request]) -> Outputs:
        return run_requests(self._engine.llm_engine, requests, self._adapter)


class SharedEngine:
    """The engine inside a model that Unsloth loaded with fast inference; `update` and `generate` as in PlainEngine.

    With rollout.standby, the engine sleeps from now on and wakes only to sample, so that its key-value cache makes room
    for training. Unsloth and vLLM allow one such engine per process.
    """

    def __init__(self, model: Any) -> None:
        """`model`: what Unsloth returned, with `load_lora` and `vllm_engine`."""
        self._model = model
        # Unsloth sets vLLM's log level to INFO, which would print two lines at every step.
        logging.getLogger("vllm.v1.core.sched.scheduler").setLevel(logging.WARNING)
        self._sleeps = bool(self._engine.vllm_config.model_config.enable_sleep_mode)
        self._folder = tempfile.TemporaryDirectory(prefix="gtpo-adapter-")
        self._policy: Policy | None = None
        self._adapter: Any = None  # set by update, unset after sampling
        self._sleep()

    def update(self, policy: Policy) -> None:
        adapter = self._model.load_lora(self._folder.name, load_tensors=True)  # Unsloth increments name and id
        # vLLM multiplies alpha / rank into tensors of its own type in place, which would change the policy. So it gets
        # a copy in its type. If nothing trains, the adapter has that type already, and the copy is in the main
        # memory: vLLM copies it from there into the place that it reserved on the GPU.
        adapter.lora_tensors = {
            name: tensor.detach().to("cpu" if tensor.dtype == policy.dtype else tensor.device, policy.dtype, copy=True)
            for name, tensor in adapter.lora_tensors.items()
        }
        self._policy, self._adapter = policy, adapter

    def generate(self, requests: Iterable[Request]) -> Outputs:
        if self._adapter is None:
            assert self._policy is not None, "update comes first"
            self.update(self._policy)
        try:
            self._wake_up()
            yield from run_requests(self._engine, requests, self._adapter)
        except (RuntimeError, MemoryError) as error:
            if out_of_memory(error) != "the GPU":
                raise
            raise GenerationError(
                "rollout.gpu_memory_utilization: the GPU's memory does not hold vLLM's engine and everything else "
                f"there ({one_line(str(error))}); lower it, or stop other programs that use the GPU"
            ) from error
        finally:  # training needs the memory, and so does saving an interrupted run
            self._engine.remove_lora(self._adapter.lora_int_id)
            self._adapter = None
            self._sleep()

    def _wake_up(self) -> None:
        """Wake the engine. If memory runs out, free torch's cached memory and try again."""
        if not self._sleeps:
            return
        try:
            self._model.vllm_engine.wake_up()
            return
        except (RuntimeError, MemoryError) as error:
            if out_of_memory(error) != "the GPU":
                raise
        # After the except block, because the traceback still holds tensors there.
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
    """Implements `gtpo_cli.policy.sampler.Sampler`."""

    def __init__(self, engine: PlainEngine | SharedEngine, policy: Policy) -> None:
        self._engine = engine
        self._policy = policy
        self.sync(policy)

    def sync(self, policy: Policy) -> None:
        self._engine.update(policy)

    def sample(
        self, prompts: Sequence[Sequence[int]], n: int, params: SamplingParams, *, ended: OnCompletion | None = None
    ) -> list[list[Completion]]:
        numbers = range(len(prompts))
        blocks = self.sample_blocks(
            prompts, n, params, size=len(prompts), seeds=[params.seed], wanted=numbers, ended=ended
        )
        with closing(blocks) as sampled:
            rows = dict(sampled)
        return [rows[number] for number in numbers]

    def sample_blocks(
        self,
        prompts: Sequence[Sequence[int]],
        n: int,
        params: SamplingParams,
        *,
        size: int,
        seeds: Sequence[int],
        wanted: Collection[int],
        ended: OnCompletion | None = None,
    ) -> Generator[tuple[int, list[Completion]], None, None]:
        """Sample all blocks at once, because each completion has its own seed."""
        check_prompts(prompts, self._policy.max_seq_length)
        numbers = sorted(wanted)

        def request(number: int) -> Request:
            block, place = divmod(number, size)
            seeded = replace(params, seed=seeds[block])
            return prompts[number], self._engine_params(prompts[number], n, seeded, place)

        with closing(self._engine.generate(map(request, numbers))) as outputs:
            for i, output in outputs:
                completions = [self._completion(sampled) for sampled in output.outputs]
                if ended is not None:
                    for completion in completions:
                        ended(numbers[i], completion)
                yield numbers[i], completions

    def rehearse(self, prompt_tokens: int, n: int, params: SamplingParams) -> None:
        """Do nothing: the engine allocated its memory at the start, and queues requests that do not fit."""

    def _engine_params(self, prompt: Sequence[int], n: int, params: SamplingParams, index: int) -> Any:
        import vllm

        return vllm.SamplingParams(
            n=n,
            temperature=params.temperature,
            top_p=params.top_p,
            max_tokens=min(params.max_completion_tokens, self._policy.max_seq_length - len(prompt)),
            seed=derive_seed(params.seed, "vllm prompt", index) >> 1,  # vLLM adds the completion's number
            stop_token_ids=sorted(self._policy.eos_token_ids),
            logprobs=0,  # only of the sampled token
            detokenize=False,
            output_kind=vllm.sampling_params.RequestOutputKind.FINAL_ONLY,
        )

    def _completion(self, sampled: Any) -> Completion:
        ids = tuple(sampled.token_ids)
        logprobs = tuple(step[token].logprob for step, token in zip(sampled.logprobs, ids, strict=True))
        text = completion_text(self._policy.tokenizer, ids, self._policy.eos_token_ids)
        # vLLM also stops at end tokens of the model's generation configuration, which may be more than ours.
        return Completion(ids, logprobs, "stop" if sampled.finish_reason == "stop" else "length", text)


def load_vllm_sampler(policy: Policy, job: Job) -> VllmSampler:
    """Use the engine that Unsloth shares with the policy, or start one. Raises GenerationError with the remedy."""
    if isinstance(policy, UnslothPolicy) and policy.shares_engine:
        return VllmSampler(SharedEngine(policy.model), policy)
    return VllmSampler(PlainEngine(_start(policy, job)), policy)


def _start(policy: Policy, job: Job) -> Any:
    model, rollout = job.recipe.model, job.recipe.rollout
    assert model.lora is not None, "the recipe was validated: the weights travel as an adapter"
    # A process of its own would get the terminal's Ctrl-C too, and end while the policy finishes its step.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    prepare_vllm()
    try:
        import vllm
    except ImportError as error:
        raise GenerationError(
            f"rollout.engine: vllm cannot be imported ({error}); on a GPU machine: {install('cuda')}; "
            "or use rollout.engine: transformers"
        ) from error
    options = _engine_options(rollout)
    if policy.device.type == "cuda":
        options["gpu_memory_utilization"] = rollout.engine_share
    else:
        options["enforce_eager"] = True
        # Chunked prefill rewinds the random generator of a prompt, which vLLM cannot do on a CPU.
        options["enable_chunked_prefill"] = False
    if model.load_in_4bit:
        options["quantization"] = "bitsandbytes"
    capture_graphs_with_adapter(rollout)
    try:
        return vllm.LLM(
            model=job.model.path,
            revision=model.revision,
            trust_remote_code=model.trust_remote_code,
            dtype=dtype_name(policy.dtype),
            max_model_len=policy.max_seq_length,
            enable_lora=True,
            max_loras=1,
            max_lora_rank=next(rank for rank in _LORA_RANKS if rank >= model.lora.rank),
            logprobs_mode="raw_logprobs" if policy.temperature == 1.0 else "processed_logprobs",
            seed=job.recipe.seed,
            **options,
        )
    except (RuntimeError, ValueError, OSError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise GenerationError(
            f"rollout.engine: vLLM does not start: {first}; see its messages, or use rollout.engine: transformers"
        ) from error


def _engine_options(rollout: RolloutRecipe) -> dict[str, Any]:
    """Return `rollout.vllm` and `rollout.max_num_seqs` as vLLM's options; unset keys keep vLLM's defaults."""
    options: dict[str, Any] = {key: value for key, value in rollout.vllm.items() if key != "speculative_config"}
    if rollout.max_num_seqs != "auto":
        options["max_num_seqs"] = rollout.max_num_seqs
    if rollout.speculation is not None:
        options["speculative_config"] = rollout.speculation
    return options
