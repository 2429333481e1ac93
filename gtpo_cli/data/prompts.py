"""Encode a question as the token ids of a prompt, and a worked solution as the completion that SFT teaches.

A tokenizer with a chat template renders its template. Other tokenizers get the plain format:

    <system prompt>

    Question: <question>
    Answer:

preceded by the tokenizer's own special tokens. Without a system prompt the text begins at "Question:". In a chat of
several turns, the assistant's answers stand between the questions, each with the end-of-sequence token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from gtpo_cli.data.problems import DroppedRow, summarise_dropped
from gtpo_cli.errors import DataError, ModelError
from gtpo_cli.rewards.extract import PAPER_TAGS, TagNames, tag_pair
from gtpo_cli.runs.files import guarded
from gtpo_cli.types import Completion, Problem, Turn

Prompt = tuple[Problem, tuple[int, ...]]  # a problem and the token ids of its prompt

# Llama 3 templates write "Today Date": 3.1 this fixed day, 3.2 the current day, which would change the prompts of a run
# that is resumed on another day. Templates without a date ignore it.
TEMPLATE_DATE = "26 Jul 2024"
_PROBE_QUESTION, _PROBE_SYSTEM = "What is 1 + 1?", "Be brief."
_LONG_QUESTION = "What is 1 + 1? " * 128
# Tokenisation takes hundreds of bytes per token. So it begins with this many characters per allowed token, and
# continues with four times as many until the text ends or is surely too long.
_CHARACTERS_A_TOKEN = 16
_MARGIN = 1024


def wrap_solution(solution: str, answer: str, *, tags: TagNames = PAPER_TAGS) -> str:
    """Return the completion that SFT teaches: `<reasoning>{solution}</reasoning><answer>{answer}</answer>`.

    Tags without reasoning give only the answer's block. There are no line breaks around the tags, which would cost a
    character-level model tokens. The rewards ignore white space between tags.
    """
    opening, closing = tag_pair(tags.answer)
    answer_block = f"{opening}{answer}{closing}"
    if tags.reasoning is None:
        return answer_block
    opening, closing = tag_pair(tags.reasoning)
    return f"{opening}{solution}{closing}{answer_block}"


def reference_completion(
    problem: Problem, tokenizer: Any, tags: TagNames = PAPER_TAGS, *, at_most: int | None = None
) -> Completion:
    """Return the completion to imitate: solution and gold answer in their tags, then end-of-sequence. `at_most`: see
    `token_ids`."""
    return completion_of(wrap_solution(problem.solution or "", problem.gold, tags=tags), tokenizer, at_most=at_most)


def completion_of(text: str, tokenizer: Any, *, at_most: int | None = None) -> Completion:
    """Return a text as a completion with an end-of-sequence token, and 0 for its unknown log-probabilities."""
    ids = (*token_ids(tokenizer, text, at_most=at_most, add_special_tokens=False), tokenizer.eos_token_id)
    return Completion(ids, (0.0,) * len(ids), "stop", text)


class PromptEncoder:
    """Encodes questions for one tokenizer and one system prompt (None or blank: no system prompt).

    `uses_plain_format`: the tokenizer has no chat template, so the plain format of this module is used.
    `folds_system_prompt`: its template refuses or ignores a system message, so the system prompt stands in the user's
    message, before the question and a blank line.
    Raises ModelError for a template that cannot render a question.
    """

    def __init__(self, tokenizer: Any, system_prompt: str | None) -> None:
        self._tokenizer = tokenizer
        self._system = (system_prompt or "").strip()
        self.uses_plain_format: bool = not getattr(tokenizer, "chat_template", None)
        self.folds_system_prompt = False
        if not self.uses_plain_format:
            self._check_template_ends()
            self.folds_system_prompt = bool(self._system) and not self._takes_system_message
            if _PROBE_QUESTION not in self._apply_template(self.messages(_PROBE_QUESTION)):
                raise self._refused("leaves the user's message out")

    def encode(self, question: str, turns: Sequence[Turn] = (), *, at_most: int | None = None) -> tuple[int, ...]:
        """Return the token ids of the prompt with at most one beginning-of-sequence token. Raises ModelError.

        `turns`: see `Problem`. `at_most`: see `token_ids`.
        """
        if self.uses_plain_format:
            ids = token_ids(self._tokenizer, self.render(question, turns), at_most=at_most)
            if len(ids) > 1 and ids[-1] == self._tokenizer.eos_token_id:
                ids.pop()  # some tokenizers end every text, but a prompt must stay open
        else:
            # The template already wrote the special tokens.
            ids = token_ids(self._tokenizer, self.render(question, turns), at_most=at_most, add_special_tokens=False)
        bos = self._tokenizer.bos_token_id
        if bos is not None and ids[:2] == [bos, bos]:
            del ids[0]
        return tuple(ids)

    def render(self, question: str, turns: Sequence[Turn] = ()) -> str:
        """Return the text of the prompt, as the tokenizer gets it."""
        if not self.uses_plain_format:
            return self._apply_template(self.messages(question, turns))
        system, turns = self._with_system(question, turns)
        eos = getattr(self._tokenizer, "eos_token", None) or ""
        chat = "".join(text + eos if role == "assistant" else f"Question: {text}\nAnswer:" for role, text in turns)
        return "\n\n".join(filter(None, (system, chat)))

    def prompt(self, question: str, turns: Sequence[Turn] = ()) -> str | tuple[Turn, ...]:
        """Return the prompt as in `Problem.prompt`: the turns for the chat template, or the text without a template."""
        if self.uses_plain_format:
            return self.render(question, turns)
        return tuple((message["role"], message["content"]) for message in self.messages(question, turns))

    def messages(self, question: str, turns: Sequence[Turn] = ()) -> list[dict[str, str]]:
        """Return the messages for the chat template: the question or chat, and the chat's system prompt or else the
        recipe's."""
        system, turns = self._with_system(question, turns)
        messages = [{"role": role, "content": text} for role, text in turns]
        if system and not self._takes_system_message:
            messages[0]["content"] = f"{system}\n\n{messages[0]['content']}"
        elif system:
            messages.insert(0, {"role": "system", "content": system})
        return messages

    def _with_system(self, question: str, turns: Sequence[Turn]) -> tuple[str, Sequence[Turn]]:
        turns = turns or (("user", question),)
        own = [text for role, text in turns if role == "system"]
        return "\n\n".join(own) or self._system, [turn for turn in turns if turn[0] != "system"]

    def _apply_template(self, messages: Sequence[Mapping[str, str]]) -> str:
        # A template is a program that comes with the model.
        with guarded(lambda why: self._refused(f"cannot render a question ({why})")):
            text: str = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, date_string=TEMPLATE_DATE
            )
        return text

    def _check_template_ends(self) -> None:
        """Raise ModelError for a template that takes too much time or memory."""
        template = self._tokenizer.chat_template
        if isinstance(template, dict):
            template = template.get("default")
        if not isinstance(template, str):
            return
        from gtpo_cli.runs.limited import LIMITS, renders

        special = getattr(self._tokenizer, "special_tokens_map", {}).items()
        tokens = tuple((name, token) for name, token in special if isinstance(token, str))
        if not renders(template, (_PROBE_QUESTION, _LONG_QUESTION), self._system or _PROBE_SYSTEM, tokens):
            raise self._refused(f"does not render a question within {LIMITS}")

    @cached_property
    def _takes_system_message(self) -> bool:
        system = self._system or _PROBE_SYSTEM
        messages = [{"role": "system", "content": system}, {"role": "user", "content": _PROBE_QUESTION}]
        try:
            return system in self._apply_template(messages)
        except ModelError:  # "System role not supported": the caller tries without it and reports a failure
            return False

    def _refused(self, what_it_does: str) -> ModelError:
        return ModelError(
            f"{_name_of(self._tokenizer)}: the chat template {what_it_does}; use another tokenizer, or remove its "
            "chat_template to get the plain format"
        )


def token_ids(tokenizer: Any, text: str, *, at_most: int | None = None, **options: Any) -> list[int]:
    """Tokenise a text. If it has more than `at_most` ids (None: no limit), the result may be only the first ones, still
    more than `at_most`, so that a very long text costs little. Raises ModelError.

    `options` go to the tokenizer.
    """

    def failed(why: str) -> ModelError:
        return ModelError(f"{_name_of(tokenizer)}: its tokenizer fails on a text ({why}); use another tokenizer")

    with guarded(failed):
        if at_most is not None:
            length = _CHARACTERS_A_TOKEN * at_most + _MARGIN
            while length < len(text):
                ids = list(tokenizer(text[:length], verbose=False, **options)["input_ids"])
                if len(ids) > exact_up_to(at_most):  # the cut changes only a few tokens at its end
                    return ids
                length *= 4
        return list(tokenizer(text, verbose=False, **options)["input_ids"])


def exact_up_to(at_most: int) -> int:
    """Return the largest exact count of `token_ids`. If it returns more ids, the text may have even more."""
    return 2 * at_most + _MARGIN


def count_words(ids: int, at_most: int) -> str:
    """Describe the number of tokens of a text, from the number that `token_ids` returned: "130", "over 5120"."""
    return str(ids) if ids <= exact_up_to(at_most) else f"over {exact_up_to(at_most)}"


def _name_of(tokenizer: Any) -> str:
    return getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__


def encode_prompts(
    problems: Iterable[Problem], encoder: PromptEncoder, *, max_prompt_tokens: int
) -> tuple[list[Prompt], tuple[DroppedRow, ...]]:
    """Return each problem with its prompt's token ids, and the dropped problems: those with more than
    `max_prompt_tokens`, and chats that the template refuses.

    Raises DataError if no prompt is left, ModelError for a template that fails.
    """
    kept: list[Prompt] = []
    dropped: list[DroppedRow] = []
    for problem in problems:
        try:
            ids = encoder.encode(problem.question, problem.turns, at_most=max_prompt_tokens)
        except ModelError as error:
            if not problem.turns:  # a single question must work; a chat may be the row's fault
                raise
            dropped.append(DroppedRow(problem.source or problem.id, f"chat that the template refuses: {error}"))
            continue
        if len(ids) <= max_prompt_tokens:
            kept.append((replace(problem, prompt=encoder.prompt(problem.question, problem.turns)), ids))
        else:
            count = count_words(len(ids), max_prompt_tokens)
            reason = f"prompt too long: {count} tokens, the limit is {max_prompt_tokens}"
            dropped.append(DroppedRow(problem.source or problem.id, reason))
    if not kept:
        if not dropped:
            raise DataError("no prompt is left: there are no problems")
        raise DataError(
            f"no prompt is left: {summarise_dropped(dropped)}; a prompt must fit data.max_prompt_tokens and, with a "
            "token to spare, the context (model.max_seq_length, or the model's own): raise them, or shorten the prompts"
        )
    return kept, tuple(dropped)
