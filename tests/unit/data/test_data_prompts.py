from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from gtpo_cli.data import DroppedRow, PromptEncoder, encode_prompts
from gtpo_cli.errors import DataError, ModelError
from gtpo_cli.types import Problem

CHAT = (
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
REFUSES_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + CHAT
)
IGNORES_SYSTEM = CHAT.replace("for m in messages", "for m in messages if m['role'] != 'system'")


def small_tokenizer(template: str | None = None, *, ends: bool = False) -> PreTrainedTokenizerFast:
    """One token a byte; writes <s> in front of each text, and </s> behind it when `ends`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate(["<s>", "</s>", *alphabet])}
    backend = Tokenizer(models.BPE(vocab, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>" if ends else "<s> $A", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = template
    return tokenizer


def characters(tokenizer: Any, ids: tuple[int, ...]) -> str:
    """Each token's own text, so that a special token written as text and one written as token look alike."""
    return "".join(tokenizer.convert_ids_to_tokens(list(ids))).replace("Ġ", " ").replace("Ċ", "\n")


@pytest.mark.parametrize(
    ("system", "text"),
    [
        ("Be brief.\n", "Be brief.\n\nQuestion: 1+1?\nAnswer:"),
        (None, "Question: 1+1?\nAnswer:"),
        (" ", "Question: 1+1?\nAnswer:"),
    ],
)
@pytest.mark.parametrize("ends", [False, True])
def test_plain_format(system: str | None, text: str, ends: bool) -> None:
    tokenizer = small_tokenizer(ends=ends)
    encoder = PromptEncoder(tokenizer, system)
    assert encoder.uses_plain_format
    ids = encoder.encode("1+1?")
    assert characters(tokenizer, ids) == "<s>" + text
    assert ids[0] == 0
    assert ids.count(0) == 1
    assert 1 not in ids


def test_chat_template_writes_bos_once() -> None:
    tokenizer = small_tokenizer(CHAT)
    encoder = PromptEncoder(tokenizer, "Be brief.")
    assert not encoder.uses_plain_format
    assert not encoder.folds_system_prompt
    ids = encoder.encode("1+1?")
    assert characters(tokenizer, ids) == "<s>[system]Be brief.[user]1+1?[assistant]"
    assert ids.count(0) == 1
    assert characters(tokenizer, PromptEncoder(tokenizer, None).encode("1+1?")) == "<s>[user]1+1?[assistant]"


@pytest.mark.parametrize("template", [REFUSES_SYSTEM, IGNORES_SYSTEM])
def test_a_template_without_system_role_gets_the_system_prompt_in_the_question(template: str) -> None:
    tokenizer = small_tokenizer(template)
    encoder = PromptEncoder(tokenizer, "Be brief.")
    assert encoder.folds_system_prompt
    assert characters(tokenizer, encoder.encode("1+1?")) == "<s>[user]Be brief.\n\n1+1?[assistant]"
    assert not PromptEncoder(tokenizer, None).folds_system_prompt


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('no chat today') }}", "TemplateError: no chat today"),
        ("{% for %}", "TemplateSyntaxError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages[0]['content'] + 1 }}", "TypeError"),
        ("{{ undefined_thing.name }}", "UndefinedError"),
        ("a constant", "leaves the user's message out"),
    ],
)
@pytest.mark.parametrize("system", [None, "Be brief."])
def test_a_template_that_fails_is_named(template: str, message: str, system: str | None) -> None:
    with pytest.raises(ModelError, match=f"chat template .*{message}"):
        PromptEncoder(small_tokenizer(template), system)


def test_the_date_in_a_template_stands_still() -> None:
    dated = (
        "{% if date_string is defined %}{{ date_string }}{% else %}{{ strftime_now('%d %b %Y') }}{% endif %}|" + CHAT
    )
    text = PromptEncoder(small_tokenizer(dated), None).render("1+1?")
    assert text.startswith("26 Jul 2024|")


def test_long_prompts_are_dropped_with_their_length() -> None:
    encoder = PromptEncoder(small_tokenizer(), None)
    problems = [
        Problem("a", "123", "1", source="f:1"),
        Problem("b", "1234", "1", source="f:2"),
        Problem("c", "1" * 99, "1"),
    ]
    frame = len("<Question: \nAnswer:")  # bos is one token
    kept, dropped = encode_prompts(problems, encoder, max_prompt_tokens=frame + 3)
    assert [(problem.id, len(ids)) for problem, ids in kept] == [("a", frame + 3)]
    assert kept[0][1] == encoder.encode("123")
    assert dropped == (
        DroppedRow("f:2", f"prompt too long: {frame + 4} tokens, the limit is {frame + 3}"),
        DroppedRow("c", f"prompt too long: {frame + 99} tokens, the limit is {frame + 3}"),
    )
    with pytest.raises(DataError, match=r"no prompt is left: dropped 3 rows \(3 prompt too long\).*max_seq_length"):
        encode_prompts(problems, encoder, max_prompt_tokens=frame)
    with pytest.raises(DataError, match="there are no problems"):
        encode_prompts([], encoder, max_prompt_tokens=10)


def real_tokenizer(shared: Path, name: str) -> Any:
    folder = shared / "models" / name
    if not folder.is_dir():
        pytest.skip(f"{folder.name} is not in the shared folder")
    return AutoTokenizer.from_pretrained(folder)


def test_llama_3_1(shared: Path) -> None:
    tokenizer = real_tokenizer(shared, "tokenizers/llama-3.1")
    encoder = PromptEncoder(tokenizer, "Be brief.")
    ids = encoder.encode("1+1?")
    assert tokenizer.decode(ids) == (
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n"
        "Today Date: 26 Jul 2024\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n1+1?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert ids[0] == 128000
    assert ids.count(128000) == 1
    assert (encoder.uses_plain_format, encoder.folds_system_prompt) == (False, False)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
    assert list(ids) == tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]


def test_qwen_2_5(shared: Path) -> None:
    tokenizer = real_tokenizer(shared, "tokenizers/qwen2.5")
    encoder = PromptEncoder(tokenizer, "Be brief.")
    assert tokenizer.decode(encoder.encode("1+1?")) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert encoder.encode("1+1?")[0] == 151644
    assert (encoder.uses_plain_format, encoder.folds_system_prompt) == (False, False)


# -- what others wrote ------------------------------------------------------------------------------------------------


class Watched:
    """A tokenizer that notes how much text it is given."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer, self.characters = tokenizer, 0

    def __call__(self, text: str, **options: Any) -> Any:
        self.characters += len(text)
        return self._tokenizer(text, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*$"])
def test_a_pattern_that_never_ends_is_an_error_in_a_line(pattern: str) -> None:
    backend = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="<unk>")
    with pytest.raises(
        ModelError, match=r"its tokenizer fails on a text \(PanicException: .*retry-limit-in-match over"
    ):
        PromptEncoder(tokenizer, None).encode("a" * 4000 + "b")
