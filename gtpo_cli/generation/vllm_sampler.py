"""Sampling by a vLLM engine that serves the policy's base model with the policy's adapter on top.

The log-probabilities of a completion are vLLM's own. They are those of softmax(logits / temperature) as the contract
asks, except that top-p and top-k cut the distribution first in a shared engine, and in a plain one where the
temperature is not 1 (vLLM reports either raw or fully processed ones). They differ from the policy's by the two
engines' arithmetic: sampler/gap_mean and gap_max.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gtpo_cli.errors import GenerationError
from gtpo_cli.generation.sampler import Ended, SamplingParams, check_prompts
from gtpo_cli.generation.vllm_engines import AdapterEngine, PlainEngine, SharedEngine
from gtpo_cli.models.policy import Policy
from gtpo_cli.models.tiny import resolve_name
from gtpo_cli.models.transformers_policy import TransformersPolicy
from gtpo_cli.models.unsloth_policy import UnslothPolicy
from gtpo_cli.recipe.schema import Recipe
from gtpo_cli.seeds import derive_seed
from gtpo_cli.types import Completion

_LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # the maxima vLLM takes


class VllmSampler:
    """Implements `gtpo_cli.generation.sampler.Sampler`; see there for the contract."""

    def __init__(self, engine: AdapterEngine, policy: Policy) -> None:
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
            f"rollout.engine: vllm cannot be imported ({error}); on a GPU machine: pip install 'gtpo_cli[cuda]'; "
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
    return str(policy.dtype).removeprefix("torch.")
