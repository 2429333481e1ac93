"""What a chat template opens, ends and asks, with a real tokenizer and templates of the kinds that people bring."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from gtpo_cli.data import PromptEncoder, completion_of, completion_text
from gtpo_cli.data.prompts import turn_end
from gtpo_cli.errors import DataError, ModelError
from gtpo_cli.recipe.rewards import RewardsRecipe
from gtpo_cli.rewards import Scorer
from gtpo_cli.rewards.extract import Tags
from gtpo_cli.types import Completion, Problem

TURNS = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
ASKS = "{% if add_generation_prompt %}<|im_start|>assistant\n"
PLAIN = TURNS + ASKS + "{% endif %}"
THINKS = TURNS + ASKS + "<think>\n{% endif %}"
SWITCH = (
    TURNS
    + ASKS
    + "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
CLOCK = "{{ strftime_now('%d %B %Y') }}\n" + PLAIN
THINK = Tags(reasoning="think", answer="answer")
PROBLEM = Problem("p", "1+1", "2", "One and one.")


@pytest.fixture
def tokenizer(shared: Path) -> Any:
    return AutoTokenizer.from_pretrained(shared / "models/tokenizers/qwen2.5")


def with_template(tokenizer: Any, template: str) -> Any:
    tokenizer.chat_template = template
    return tokenizer


def said(text: str) -> Completion:
    return Completion((0,) * len(text), (0.0,) * len(text), "stop", text)


@pytest.mark.parametrize(
    ("template", "arguments", "opened"),
    [
        (PLAIN, {}, ""),
        (THINKS, {}, "<think>\n"),
        (SWITCH, {}, ""),
        (SWITCH, {"enable_thinking": False}, "<think>\n\n</think>\n\n"),
    ],
)
@pytest.mark.parametrize("mode", ["strict", "presence"])
def test_tags_that_end_the_prompt_belong_to_the_completion(
    tokenizer: Any, template: str, arguments: dict[str, Any], opened: str, mode: str
) -> None:
    encoder = PromptEncoder(with_template(tokenizer, template), "Think.", tags=THINK, arguments=arguments)
    assert encoder.opened == opened
    assert encoder.render("1+1").endswith(opened)
    whole = "<think>One and one.</think><answer>2</answer>"
    rest = {"": whole, "<think>\n": whole[7:]}.get(opened, "One and one.<answer>2</answer>")
    assert encoder.reference(PROBLEM).text == rest
    tags = {"reasoning": "think", "answer": "answer"}
    rewards = RewardsRecipe.model_validate({"format": {"tags": tags, "mode": mode}})
    problem = Problem("p", "1+1", "2", opened=encoder.opened)
    with Scorer(rewards) as scorer:
        right, wrong, unfinished = scorer.score(problem, [said(rest), said(rest.replace("2", "3")), said("One and")])
    assert (right.reward, right.extracted, right.strict_format) == (20.0, "2", True)
    assert (wrong.reward, wrong.extracted) == (10.0, "3")
    assert (unfinished.reward, unfinished.extracted) == (1.0 if opened else 0.0, None)


def test_a_tag_of_the_template_that_the_recipe_does_not_name_is_said(tokenizer: Any) -> None:
    thinks = with_template(tokenizer, THINKS + "{# strips </think> #}")
    assert any("rewards.format.tags.reasoning: think" in note for note in PromptEncoder(thinks, None).notes)
    notes = PromptEncoder(thinks, None, tags=THINK).notes
    assert notes == ["the chat template ends the prompt with <think>, which counts as the completion's"]


def test_without_tags_nothing_that_ends_the_prompt_is_the_completions(tokenizer: Any) -> None:
    """An answer in a box has no tags, and templates end with a line break."""
    boxed = Tags(None, place="boxed")
    for template, arguments in ((PLAIN, {}), (SWITCH, {"enable_thinking": False})):
        encoder = PromptEncoder(with_template(tokenizer, template), None, tags=boxed, arguments=arguments)
        assert encoder.render("1+1").endswith("\n")
        assert (encoder.opened, encoder.notes) == ("", [])
    thinks = with_template(tokenizer, THINKS + "{# strips </think> #}")
    (note,) = PromptEncoder(thinks, None, tags=boxed).notes
    assert "ends the prompt with <think>, which is none of the recipe's tags" in note


def test_arguments_reach_the_template_and_one_that_it_does_not_read_is_refused(tokenizer: Any) -> None:
    encoder = PromptEncoder(with_template(tokenizer, SWITCH), None, arguments={"enable_thinking": False})
    assert tokenizer.decode(encoder.encode("1+1")).endswith("assistant\n<think>\n\n</think>\n\n")
    with pytest.raises(
        DataError, match=r"template_arguments: thinking_budget would have no effect .* does not read it"
    ):
        PromptEncoder(tokenizer, None, arguments={"thinking_budget": 5})
    with pytest.raises(DataError, match="it has no chat template"):
        PromptEncoder(with_template(tokenizer, ""), None, arguments={"enable_thinking": False})


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt", "tokenize", "chat_template", "tokenizer"])
def test_an_argument_that_gtpo_sets_itself_is_refused(tokenizer: Any, name: str) -> None:
    reads = with_template(tokenizer, SWITCH + f"{{# {name} #}}")
    with pytest.raises(DataError, match=f"data.template_arguments: gtpo sets {name} itself; remove it"):
        PromptEncoder(reads, None, arguments={name: True})


def test_special_tokens_that_are_tags_stay_in_the_text(tokenizer: Any) -> None:
    tokenizer.add_special_tokens({"additional_special_tokens": ["<answer>", "</answer>"]})
    text = "<reasoning>1+1</reasoning><answer>2</answer>"
    completion = completion_of(text, tokenizer)
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    assert completion_text(tokenizer, [*completion.token_ids, end, pad, pad], {end}) == text
    tokenizer.pad_token = "1"  # as of models that were saved with pad_token_id 0, which is text
    ids = tokenizer("1+1=2")["input_ids"]
    assert completion_text(tokenizer, [*ids, end, tokenizer.pad_token_id], {end}) == "1+1=2"
    assert PromptEncoder(tokenizer, None).has_special_tags
    assert tokenizer.decode(completion.token_ids, skip_special_tokens=True) == "<reasoning>1+1</reasoning>2"


def test_a_turn_s_end_is_an_end_and_references_have_it(tokenizer: Any) -> None:
    tokenizer.eos_token = "<|endoftext|>"  # as of Qwen2.5's base model
    im_end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    encoder = PromptEncoder(with_template(tokenizer, PLAIN), None)
    assert turn_end(tokenizer) == im_end
    assert encoder.reference(PROBLEM).token_ids[-1] == im_end
    assert encoder.notes == ["completions end with <|im_end|> too, as turns do in the chat template"]
    with_template(tokenizer, "")
    assert turn_end(tokenizer) is None
    assert completion_of("2", tokenizer).token_ids[-1] == tokenizer.eos_token_id
    tokenizer.eos_token = None
    with pytest.raises(ModelError, match=r"no end-of-sequence token.* set eos_token in its tokenizer_config.json"):
        completion_of("2", tokenizer)


def test_a_template_without_a_generation_prompt_gets_a_sentence(tokenizer: Any) -> None:
    notes = PromptEncoder(with_template(tokenizer, TURNS), None).notes
    assert notes == [
        "the chat template writes no generation prompt: the model itself must begin its turn with "
        "<|im_start|>assistant; use a tokenizer whose template writes it"
    ]
    instruct = (
        "{% for m in messages %}{{ '[INST] ' + m['content'] + ' [/INST]' if m['role'] == 'user' else m['content'] }}"
    )
    assert not PromptEncoder(with_template(tokenizer, instruct + "{% endfor %}"), None).notes  # needs none


def test_the_clock_of_a_template_stands_still(tokenizer: Any) -> None:
    text = PromptEncoder(with_template(tokenizer, CLOCK), None).render("1+1")
    assert text.startswith("26 July 2024\n")
    assert f"{datetime.now():%Y}" not in text


def test_a_token_without_an_embedding_is_named(tokenizer: Any) -> None:
    known = len(tokenizer)
    tokenizer.add_tokens(["<box>"])
    for system, question, what in (("Use <box>.", "1+1", "a prompt"), (None, "<box>1", "a prompt")):
        encoder = PromptEncoder(tokenizer, system, embeddings=known)
        with pytest.raises(
            DataError, match=f"{what} has the token <box> with id {known}, but the model knows only {known}"
        ):
            encoder.encode(question)
    encoder = PromptEncoder(tokenizer, None, embeddings=known)
    with pytest.raises(DataError, match="a reference has the token <box>"):
        encoder.reference(Problem("p", "1+1", "2", "<box>"))
    assert PromptEncoder(tokenizer, "Use <box>.", embeddings=known + 1).encode("1+1")
