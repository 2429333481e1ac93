"""The policy on plain transformers and PEFT: all weights or LoRA, 32-bit, 16-bit or 4-bit base, on GPU or CPU."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gtpo_cli.data.prompts import turn_end
from gtpo_cli.errors import CheckpointError, ModelError
from gtpo_cli.job import ModelFiles
from gtpo_cli.kernels import token_logprobs_and_entropy
from gtpo_cli.objective.batch import Rows
from gtpo_cli.policy.adapter_config import all_but, check_adapted, check_adapter_config
from gtpo_cli.policy.loading import (
    bounded_context,
    check_complete,
    check_files,
    check_finite,
    check_no_adapter,
    choose_dtype,
    explained,
    keep_weights_differentiable,
    nf4_config,
    quiet,
)
from gtpo_cli.policy.packing import (
    Packed,
    can_pack,
    measuring_budget,
    pack,
    packed_hidden_states,
    rows_without_gaps,
    use_packed_attention,
)
from gtpo_cli.policy.policy import switch_off_dropout
from gtpo_cli.recipe.schema import LoraRecipe, ModelRecipe
from gtpo_cli.runs.files import guarded, open_regular
from gtpo_cli.text import one_line


class TransformersPolicy:
    """Implements `gtpo_cli.policy.policy.Policy`, which documents the methods."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        temperature: float,
        max_seq_length: int,
        reference: Any = None,
        dtype: torch.dtype | None = None,
    ):
        """Wrap a causal language model (a PeftModel or a plain one) that is ready to train.

        `reference`: a frozen copy of the untrained model, for a KL term when all weights train; an adapter is switched
        off instead. `dtype`: the type of computation, if not that of the weights. Raises ModelError if the model's
        logits are not lm_head(hidden states), or if an adapter is more than plain LoRA inside the decoder.
        """
        self.model = model
        self.tokenizer = tokenizer
        self.temperature = temperature
        self.device: torch.device = next(model.parameters()).device
        self.dtype: torch.dtype = dtype or model.dtype
        self._reference = reference
        self.measuring = measuring_budget()
        self._is_peft = hasattr(model, "peft_config")
        if self._is_peft:
            check_adapted(model)
        self._adapter_reference: list[Tensor] | None = None  # start values of an adapter that was not new
        self.max_seq_length = bounded_context(self._causal_lm.config, max_seq_length)
        self.eos_token_ids = _eos_token_ids(self._causal_lm, tokenizer)
        self.vocabulary = int(model.get_input_embeddings().weight.shape[0])
        self.num_parameters = sum(parameter.numel() for parameter in model.parameters())
        _check_logits_are_linear(self._causal_lm, self.device)
        self.packs = can_pack(self._causal_lm.config, self.max_seq_length)
        if self.packs:
            for packing in (self._causal_lm, reference):
                if packing is not None:
                    self._use_packed_attention(packing)

    # -- the decoder and the output layer (the sampler uses them too) ------------------------------------------------

    @property
    def _causal_lm(self) -> Any:
        return self.model.get_base_model() if self._is_peft else self.model

    @property
    def backbone(self) -> Any:
        """The decoder of text without its output layer; it maps input_ids to last_hidden_state."""
        return self._causal_lm.get_decoder()

    @property
    def lm_head(self) -> tuple[Tensor, Tensor | None]:
        """Weight (V, H) and bias (V) or None of the output layer."""
        layer = self._causal_lm.get_output_embeddings()
        return layer.weight, getattr(layer, "bias", None)

    def computing(self) -> AbstractContextManager[Any]:
        """Run forwards of the model in `dtype`, even if its trained weights are float32."""
        return torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != self.model.dtype)

    # -- log-probabilities -------------------------------------------------------------------------------------------

    def token_logprobs(self, rows: Rows, *, trained_NT: Tensor | None = None) -> tuple[Tensor, Tensor]:
        # Checkpointing and dropout (SFT) are for training; measuring (without gradient) must not be random.
        self._set_mode(training=torch.is_grad_enabled())
        return self._logprobs(self._causal_lm, rows, trained_NT=trained_NT)

    @torch.no_grad()
    def reference_logprobs(self, rows: Rows) -> Tensor:
        self._set_mode(training=False)
        if self._is_peft:
            with self._adapter_at_start():
                return self._logprobs(self._causal_lm, rows)[0]
        assert self._reference is not None, "the policy trains all weights but has no reference model"
        return self._logprobs(self._reference, rows)[0]

    @torch.no_grad()
    def plain_logprobs(self, prompt_ids: Sequence[int], completion_ids: Sequence[int]) -> Tensor:
        self._set_mode(training=False)
        ids = torch.tensor([[*prompt_ids, *completion_ids]], device=self.device)
        with self.computing():
            logits_TV = self.model(input_ids=ids, use_cache=False).logits[0, len(prompt_ids) - 1 : -1]
        logp_TV = (logits_TV.float() / self.temperature).log_softmax(dim=-1)
        logp_T: Tensor = logp_TV.gather(1, ids[0, len(prompt_ids) :, None])[:, 0]
        return logp_T

    @contextlib.contextmanager
    def _adapter_at_start(self) -> Iterator[None]:
        """Put the adapter back to its start in the block: a new one is switched off, a trained one restored."""
        if self._adapter_reference is None:
            with self.model.disable_adapter():
                yield
            return
        parameters = list(self.trainable_parameters())
        now = [parameter.data for parameter in parameters]
        try:
            for parameter, start in zip(parameters, self._adapter_reference, strict=True):
                parameter.data = start
            yield
        finally:
            for parameter, data in zip(parameters, now, strict=True):
                parameter.data = data

    # -- methods that the policy on Unsloth overrides ----------------------------------------------------------------

    def _set_mode(self, *, training: bool) -> None:
        self.model.train(training)

    def _use_packed_attention(self, causal_lm: Any) -> None:
        use_packed_attention(causal_lm)

    def _packed_states(self, causal_lm: Any, packed: Packed) -> Tensor:
        return packed_hidden_states(causal_lm.get_decoder(), packed)

    # ----------------------------------------------------------------------------------------------------------------

    def _logprobs(self, causal_lm: Any, rows: Rows, *, trained_NT: Tensor | None = None) -> tuple[Tensor, Tensor]:
        mask = rows.mask_NT
        head = causal_lm.get_output_embeddings()
        with self.computing():
            hidden_MH = self._predicting_states(causal_lm, rows)
        weight = head.weight
        if self.dtype != self.model.dtype:  # convert, as in every other layer
            hidden_MH, weight = hidden_MH.to(self.dtype), weight.to(self.dtype)
        logp_M, entropy_M = token_logprobs_and_entropy(
            hidden_MH,
            weight,
            rows.ids_NT[mask],
            bias_V=getattr(head, "bias", None),
            temperature=self.temperature,
            trained_N=None if trained_NT is None else trained_NT[mask],
        )
        zeros = torch.zeros(mask.shape, dtype=logp_M.dtype, device=logp_M.device)
        return zeros.masked_scatter(mask, logp_M), zeros.masked_scatter(mask, entropy_M)

    def _predicting_states(self, causal_lm: Any, rows: Rows) -> Tensor:
        """Compute the output layer's input for each completion token, (M, H) in order of ids[mask]."""
        if not bool(rows.mask_NT.any()):
            return torch.zeros(0, causal_lm.config.hidden_size, device=self.device)
        if self.packs:
            packed = pack(rows, dtype=self.dtype)
            return self._packed_states(causal_lm, packed)[packed.predictors_M]
        ids_RW, places_M = rows_without_gaps(rows)
        # Rows are right-padded: under a causal mask no real token sees padding, so no attention mask is needed.
        hidden_RWH: Tensor = causal_lm.get_decoder()(input_ids=ids_RW, use_cache=False).last_hidden_state
        return hidden_RWH.flatten(0, 1)[places_M]

    # -- trained weights ---------------------------------------------------------------------------------------------

    def switch_off_dropout(self) -> float:
        return switch_off_dropout(self.model)

    def trainable_parameters(self) -> Iterator[torch.nn.Parameter]:
        return (parameter for parameter in self.model.parameters() if parameter.requires_grad)

    def save(self, folder: Path) -> None:
        for config in getattr(self.model, "peft_config", {}).values():
            if isinstance(config.target_modules, set):  # its order differs between processes
                config.target_modules = sorted(config.target_modules)
        with quiet():
            self.model.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)

    def save_adapter(self, folder: Path, dtype: torch.dtype) -> None:
        """Write only the adapter, in the type of the engine that reads it."""
        tensors = {name: tensor.detach().to(dtype) for name, tensor in self.model.named_parameters() if "lora_" in name}
        with quiet():
            self.model.save_pretrained(folder, state_dict=tensors, save_embedding_layers=False)

    def start_from(self, folder: Path, *, as_reference: bool) -> None:
        """Load an adapter to train further; with `as_reference` it is also part of the reference model."""
        self.load(folder)
        if as_reference:
            self._adapter_reference = [parameter.detach().clone() for parameter in self.trainable_parameters()]

    def load(self, folder: Path) -> None:
        def wrong(why: str) -> CheckpointError:
            return CheckpointError(f"{folder}: the weights cannot be read ({why}); choose another checkpoint")

        with guarded(wrong):
            check_files(folder, wrong)
            self._load_lora(folder) if self._is_peft else self._load_all(folder)
            if not all(bool(torch.isfinite(parameter).all()) for parameter in self.trainable_parameters()):
                raise wrong("they are not finite")

    def _load_all(self, folder: Path) -> None:
        if not (folder / "config.json").is_file():
            raise CheckpointError(
                f"{folder}: has no complete weights (config.json is missing); was it trained with LoRA?"
            )
        check_no_adapter(str(folder))
        model = self._causal_lm
        with quiet():  # with the loaded model's configuration, not the checkpoint's
            saved, loading = type(model).from_pretrained(
                folder, config=model.config, dtype=model.dtype, output_loading_info=True
            )
        if loading["missing_keys"]:
            raise CheckpointError(f"{folder}: lacks {len(loading['missing_keys'])} tensors; choose another checkpoint")
        model.load_state_dict(saved.state_dict())

    def _load_lora(self, folder: Path) -> None:
        from peft import set_peft_model_state_dict
        from safetensors.torch import load_file

        file = folder / "adapter_model.safetensors"
        if not file.is_file():
            raise CheckpointError(
                f"{folder}: has no adapter (adapter_model.safetensors is missing); a pickle (adapter_model.bin) is not "
                "read because it could run code: save it as safetensors with PEFT"
            )
        saved, own = check_adapter_config(folder), self.model.active_peft_config
        if (saved.r, saved.lora_alpha, saved.target_modules) != (
            own.r, own.lora_alpha, tuple(sorted(own.target_modules))
        ):  # fmt: skip
            raise CheckpointError(
                f"{folder / 'adapter_config.json'}: does not fit the recipe's adapter: rank {saved.r}, alpha "
                f"{saved.lora_alpha:g}, layers {', '.join(saved.target_modules)}; was model.lora changed since?"
            )
        with open_regular(file):  # refuses devices and FIFOs
            tensors = load_file(file, device=str(self.device))
        # PEFT would load other tensors into the base: a trained embedding or output layer, a bias
        if foreign := sorted(name for name in tensors if not name.endswith((".lora_A.weight", ".lora_B.weight"))):
            raise CheckpointError(
                f"{file}: has more than an adapter ({one_line(foreign[0])}), which would change the base; merge it "
                "into its base with PEFT (merge_and_unload) and name the result as model.name"
            )
        try:
            result = set_peft_model_state_dict(self.model, tensors)
        except RuntimeError as error:
            if "size mismatch" not in str(error):
                raise
            raise CheckpointError(
                f"{file}: its tensors have other shapes than the layers of the model; it was trained on another base "
                "than model.name"
            ) from error
        missing = [key for key in result.missing_keys if "lora_" in key]
        if result.unexpected_keys or missing:
            raise CheckpointError(
                f"{file}: does not fit the recipe's adapter: {len(missing)} tensors missing, "
                f"{len(result.unexpected_keys)} unknown; was model.lora changed since?"
            )


def load_transformers_policy(
    recipe: ModelRecipe, *, files: ModelFiles, temperature: float, with_reference: bool, seed: int, trains: bool = True
) -> TransformersPolicy:
    """Load the model's weights as the recipe says, and add the adapter.

    `with_reference`: a KL term needs the untrained model. `trains`: as in `load_policy`; an adapter is always float32.
    Raises ModelError with the remedy.
    """
    from transformers import AutoModelForCausalLM

    path = files.path
    gpu = torch.cuda.is_available()  # the current one of several; a launcher gives each process its own
    device = torch.device("cuda", torch.cuda.current_device()) if gpu else torch.device("cpu")
    dtype = choose_dtype(recipe.dtype, device)
    stored = torch.float32 if trains and recipe.lora is None else dtype  # 16 bits would lose an update of 1e-6
    kwargs: dict[str, Any] = {"revision": recipe.revision, "trust_remote_code": recipe.trust_remote_code}
    if recipe.load_in_4bit:
        kwargs |= {"quantization_config": nf4_config(dtype), "device_map": {"": device}}
    with explained(path):
        model, loading = AutoModelForCausalLM.from_pretrained(
            path, config=copy.deepcopy(files.config), dtype=stored, output_loading_info=True, **kwargs
        )
    check_complete(path, model, loading)
    check_finite(path, model)
    _check_vocabulary(path, files.tokenizer, model)
    if not recipe.load_in_4bit:
        model.to(device)
    keep_weights_differentiable(model)
    reference = None
    if recipe.lora is not None:
        model = _with_lora(model, recipe.lora, seed)
    else:
        if trains and getattr(model, "hf_quantizer", None) is not None:
            raise ModelError(
                f"model.name: the weights of {path} are quantised, and such weights cannot train; set model.lora (an "
                "adapter beside them), or name a copy in 16 bits"
            )
        _train_text_alone(model)
        reference = copy.deepcopy(model).eval().requires_grad_(False) if with_reference else None
    if recipe.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    with explained(path):  # the first forward may fail if the configuration is impossible
        return TransformersPolicy(
            model, files.tokenizer, temperature=temperature, max_seq_length=recipe.max_seq_length, reference=reference,
            dtype=dtype,
        )  # fmt: skip


def _train_text_alone(model: Any) -> None:
    """Freeze what no text passes through, such as an image encoder, which weight decay would shrink."""
    parts = [part for part in (model.get_decoder(), model.get_output_embeddings()) if part is not None]
    text = {weight for part in parts for weight in part.parameters()}
    for weight in model.parameters():
        weight.requires_grad_(weight.requires_grad and weight in text)


def _check_vocabulary(path: str, tokenizer: Any, model: Any) -> None:
    """Raise ModelError if the tokenizer belongs to another model, as its base vocabulary exceeds the embedding.

    Tokens added beyond the embedding are common and do not occur in text.
    """
    rows = model.get_input_embeddings().weight.shape[0]
    if tokenizer.vocab_size > rows:
        raise ModelError(
            f"model.name: the tokenizer of {path} has {tokenizer.vocab_size} tokens, but the model {rows}, so they do "
            "not belong together; fetch both from one place"
        )


def linear_names(model: Any) -> list[str]:
    """List the last parts of the names of the linear layers in a model's decoder of text."""
    return sorted(
        {name.rpartition(".")[2] for name, module in model.get_decoder().named_modules() if is_linear(module)}
    )


def is_linear(module: Any) -> bool:
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, (torch.nn.Linear, Conv1D))


def all_linear(model: Any) -> list[str]:
    """List those of `linear_names` to which PEFT gives a plain adapter, as a copy without weights shows.

    PEFT refuses layers whose weights fused kernels read (Mamba's out_proj). It takes names that layers share with fused
    experts for the experts.
    """
    from peft import LoraConfig, get_peft_model

    def takes(names: list[str]) -> bool:
        with torch.device("meta"):
            twin = type(model)(copy.deepcopy(model.config))
        config = LoraConfig(r=1, target_modules=names, task_type="CAUSAL_LM")
        try:
            get_peft_model(twin, config)
        except ValueError:
            return False
        return set(config.target_modules) == set(names)

    names = linear_names(model)
    return names if takes(names) else [name for name in names if takes([name])]


def adapter_targets(model: Any, lora: LoraRecipe) -> list[str]:
    return all_linear(model) if lora.target_modules == "all-linear" else list(lora.target_modules)


def _outside_of_text(model: Any) -> str | None:
    """Return a pattern of the names outside the decoder of text; None if no linear layer is there but the output."""
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    path = next(name for name, module in model.named_modules() if module is decoder)
    outside = (m for name, m in model.named_modules() if not name.startswith(f"{path}.") and m is not head)
    return all_but(path) if path and any(is_linear(module) for module in outside) else None


def _with_lora(model: Any, lora: LoraRecipe, seed: int) -> Any:
    from peft import LoraConfig, get_peft_model

    targets = adapter_targets(model, lora)
    text = set(model.get_decoder().modules()) | {model.get_output_embeddings()}
    leaves = {name.rpartition(".")[2] for name, module in model.named_modules() if module in text}
    unknown = ", ".join(name for name in targets if name not in leaves)
    it_has = f"it has {', '.join(linear_names(model))}, or all-linear for all of them"
    if unknown:
        raise ModelError(f"model.lora.target_modules: this model has no {unknown}; {it_has}")
    config = LoraConfig(
        r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, exclude_modules=_outside_of_text(model),
        task_type="CAUSAL_LM",
    )  # fmt: skip
    with (
        torch.random.fork_rng(devices=[]),
        warnings.catch_warnings(action="ignore"),
    ):  # check_adapted reports problems
        torch.manual_seed(seed)  # for the adapter's random initial values
        try:
            return get_peft_model(model, config)
        except ValueError as error:
            said = one_line(str(error))
            raise ModelError(f"model.lora.target_modules: cannot take an adapter ({said}); {it_has}") from error


def _eos_token_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    configured = getattr(model.generation_config, "eos_token_id", None)
    ids: set[Any] = set(configured) if isinstance(configured, (list, tuple)) else {configured}
    ids |= {tokenizer.eos_token_id, turn_end(tokenizer)}
    ids.discard(None)
    if not ids:
        raise ModelError("the model has no end-of-sequence token (generation_config.json, tokenizer); add eos_token_id")
    return frozenset(ids)


@torch.no_grad()
def _check_logits_are_linear(model: Any, device: torch.device) -> None:
    """Raise ModelError unless the model's logits equal output weights times hidden states, as the objective assumes."""
    was_training = model.training
    model.eval()
    ids = torch.arange(1, 5, device=device)[None] % model.get_input_embeddings().weight.shape[0]
    layer = model.get_output_embeddings()
    if layer is None or not hasattr(layer, "weight"):
        raise ModelError(f"{type(model).__name__} has no plain output layer; gtpo cannot train it")
    expected = model(input_ids=ids, use_cache=False).logits.float()
    decoder = model.get_decoder()
    hidden = decoder(input_ids=ids, use_cache=False).last_hidden_state
    if not bool(torch.isfinite(hidden).all()):
        raise ModelError(
            f"{type(model).__name__} computes infinite or NaN values: its weights are damaged, or too large for "
            f"{str(model.dtype).removeprefix('torch.')}; fetch it again, or set model.dtype: float32"
        )
    last_token_changed = torch.cat([ids[:, :-1], ids[:, :1]], dim=1)
    if not _close(decoder(input_ids=last_token_changed, use_cache=False).last_hidden_state[:, :-1], hidden[:, :-1]):
        raise ModelError(
            f"{type(model).__name__} sees later tokens, as encoders do; gtpo trains causal language models such as "
            "Llama and Qwen: choose another model"
        )
    actual = torch.nn.functional.linear(hidden, layer.weight, getattr(layer, "bias", None)).float()
    model.train(was_training)
    if not _close(actual, expected):
        raise ModelError(
            f"{type(model).__name__} changes its logits after the output layer (soft-capping or scaling); "
            "gtpo does not support that yet: choose another model"
        )


def _close(actual: Tensor, expected: Tensor) -> bool:
    return torch.allclose(actual, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()) + 1e-6)
