"""The built-in model `builtin:tiny`: a LLaMA of 167 thousand parameters that reads characters and adds up digits.

It exists so that the whole product runs on any machine with nothing to download. It was warm-started by supervised
fine-tuning on imperfect demonstrations of the arithmetic task (scripts/build_tiny_model.py makes it, reproducibly), so
that reinforcement has something to improve.
"""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

from gtpo_cli.errors import ModelError

BUILTIN_PREFIX = "builtin:"
WORDS = ("reasoning", "answer")  # one token each, so that a tag is three tokens: "<", "reasoning", ">"
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<user>", "<assistant>")

# System messages are left out: the model never saw one. Every turn is one marker and the text.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}<user>{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' %}<assistant>{{ message['content'] }}{{ eos_token }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def resolve_name(name: str) -> str:
    """A recipe's `model.name` as a path or hub id: `builtin:tiny`, a run folder with full weights, or as it is."""
    if name.startswith(BUILTIN_PREFIX):
        folder = Path(__file__).resolve().parent / "builtin" / name.removeprefix(BUILTIN_PREFIX)
        if not (folder / "config.json").is_file():
            known = sorted(path.parent.name for path in folder.parent.glob("*/config.json"))
            raise ModelError(
                f"model.name: {name} does not exist; built in: {', '.join(BUILTIN_PREFIX + k for k in known)}"
            )
        return str(folder)
    checkpoints = Path(name) / "checkpoints"
    try:
        is_run = checkpoints.is_dir()
    except OSError as error:  # a name longer than names can be, a folder that may not be entered
        raise ModelError(f"model.name: {name[:80]} cannot be looked up ({error.strerror})") from error
    return str(_weights_of_run(Path(name), checkpoints)) if is_run else name


def _weights_of_run(run: Path, checkpoints: Path) -> Path:
    """The weights of a run's newest checkpoint. Raises ModelError where there are none, or only an adapter."""
    folders = sorted(path for path in checkpoints.glob("step-*") if (path / "model").is_dir())
    if not folders:
        raise ModelError(f"model.name: the run {run} has no checkpoint yet; train it first")
    weights = folders[-1] / "model"
    if not (weights / "config.json").is_file():
        raise ModelError(
            f"model.name: the run {run} trained an adapter, which is no model by itself; "
            "name its base model, or train the first run with model.lora: null"
        )
    return weights


def tiny_tokenizer() -> Any:
    """A character-level tokenizer over printable ASCII and newline, with WORDS as single tokens and CHAT_TEMPLATE."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel(_vocabulary(), unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("|".join(WORDS) + r"|[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        additional_special_tokens=["<user>", "<assistant>"],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def _vocabulary() -> dict[str, int]:
    characters = string.digits + string.ascii_letters + string.punctuation + " \n"
    return {token: index for index, token in enumerate((*SPECIAL, *WORDS, *characters))}


def tiny_config(vocab_size: int) -> Any:
    """The architecture: hidden 64, 3 layers, 2 heads, feed-forward 192, tied embeddings."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        pad_token_id=SPECIAL.index("<pad>"),
        bos_token_id=SPECIAL.index("<s>"),
        eos_token_id=SPECIAL.index("</s>"),
    )


def is_builtin(config: Any) -> bool:
    """Whether this is the architecture of the built-in models, setting by setting."""
    own, other = tiny_config(config.vocab_size).to_dict(), config.to_dict()
    return config.vocab_size == len(_vocabulary()) and all(
        other.get(name) == value for name, value in own.items() if name not in _NOT_THE_ARCHITECTURE
    )


# What loading writes into a configuration, and what says how it was made.
_NOT_THE_ARCHITECTURE = frozenset(
    {"_name_or_path", "architectures", "dtype", "initializer_range", "transformers_version"}
)
