"""From a question to the token ids that a model continues, and from a worked solution to the completion SFT teaches.

A tokenizer with a chat template renders its template. One without gets the plain format:

    <system prompt>

    Question: <question>
    Answer:

with the special tokens that the tokenizer itself puts in front. Without a system prompt the text begins at "Question:".
A chat of several turns has the assistant's answers, each with the end-of-sequence token, between the questions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from gtpo_cli.data.problems import DroppedRow, summarise_dropped
from gtpo_cli.errors import DataError, ModelError
from gtpo_cli.files import guarded
from gtpo_cli.rewards.extract import PAPER_TAGS, TagNames, tag_pair
from gtpo_cli.types import Completion, Problem, Turn

Prompt = tuple[Problem, tuple[int, ...]]  # a problem and the token ids of its prompt

# Llama 3 templates write "Today Date": 3.1 this fixed day, 3.2 the clock's, which would change the prompts of a run
# that is resumed on another day. Templates that know no date ignore it.
TEMPLATE_DATE = "26 Jul 2024"
_PROBE_QUESTION, _PROBE_SYSTEM = "What is 1 + 1?", "Be brief."
_LONG_QUESTION = "What is 1 + 1? " * 128
# A text is tokenised from its beginning, this many characters for each token that is allowed, and then four times as
# many, until it is over or is surely too long: tokens take hundreds of bytes each while they are made.
_CHARACTERS_A_TOKEN = 16
_MARGIN = 1024


def wrap_solution(solution: str, answer: str, *, tags: TagNames = PAPER_TAGS) -> str:
    """The completion that SFT teaches: `<reasoning>{solution}</reasoning><answer>{answer}</answer>`, in these tags.

    Where the tags have no reasoning, the answer's block alone.

    One form for all data, without line breaks around the tags: it costs a character-level model no tokens, and the
    rewards read it like any other (white space between tags means nothing to them).
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
    """The completion to imitate: solution and gold answer in their tags, then end-of-sequence. `at_most`: see
    `token_ids`."""
    return completion_of(wrap_solution(problem.solution or "", problem.gold, tags=tags), tokenizer, at_most=at_most)


def completion_of(text: str, tokenizer: Any, *, at_most: int | None = None) -> Completion:
    """A text as if it had been sampled, ended by the end-of-sequence token; its log-probabilities are not known (0)."""
    ids = (*token_ids(tokenizer, text, at_most=at_most, add_special_tokens=False), tokenizer.eos_token_id)
    return Completion(ids, (0.0,) * len(ids), "stop", text)


class PromptEncoder:
    """Encodes questions for one tokenizer and one system prompt (None or blank = none).

    `uses_plain_format`: the tokenizer has no chat template, so the plain format of this module is used.
    `folds_system_prompt`: its template refuses or ignores a system message, so the system prompt stands before the
    question in the user's message, a blank line between them.
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
        """Token ids of the prompt, beginning-of-sequence token (at most one) included. Raises ModelError.

        `turns`: see `Problem`. `at_most`: see `token_ids`.
        """
        if self.uses_plain_format:
            ids = token_ids(self._tokenizer, self.render(question, turns), at_most=at_most)
            if len(ids) > 1 and ids[-1] == self._tokenizer.eos_token_id:
                ids.pop()  # some tokenizers close each text; a closed prompt has nothing to continue
        else:
            # The template has written the special tokens: adding them again would double bos.
            ids = token_ids(self._tokenizer, self.render(question, turns), at_most=at_most, add_special_tokens=False)
        bos = self._tokenizer.bos_token_id
        if bos is not None and ids[:2] == [bos, bos]:
            del ids[0]
        return tuple(ids)

    def render(self, question: str, turns: Sequence[Turn] = ()) -> str:
        """The text of the prompt as the tokenizer gets it."""
        if not self.uses_plain_format:
            return self._apply_template(self.messages(question, turns))
        system, turns = self._with_system(question, turns)
        eos = getattr(self._tokenizer, "eos_token", None) or ""
        chat = "".join(text + eos if role == "assistant" else f"Question: {text}\nAnswer:" for role, text in turns)
        return "\n\n".join(filter(None, (system, chat)))

    def asked(self, question: str, turns: Sequence[Turn] = ()) -> str | tuple[Turn, ...]:
        """As `Problem.prompt` has it: the turns that the chat template renders, or the text where there is none."""
        if self.uses_plain_format:
            return self.render(question, turns)
        return tuple((message["role"], message["content"]) for message in self.messages(question, turns))

    def messages(self, question: str, turns: Sequence[Turn] = ()) -> list[dict[str, str]]:
        """What the chat template renders: the question or the chat, and the system prompt where it belongs: the
        chat's own, else the recipe's."""
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
        # A template is a program that came with the model.
        with guarded(lambda why: self._refused(f"cannot render a question ({why})")):
            text: str = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, date_string=TEMPLATE_DATE
            )
        return text

    def _check_template_ends(self) -> None:
        """Raise ModelError for a template that takes more time or memory than any has use for."""
        template = self._tokenizer.chat_template
        if isinstance(template, dict):
            template = template.get("default")
        if not isinstance(template, str):
            return
        from gtpo_cli.data.template_probe import MEMORY_BYTES, SECONDS, renders

        special = getattr(self._tokenizer, "special_tokens_map", {}).items()
        tokens = tuple((name, token) for name, token in special if isinstance(token, str))
        if not renders(template, (_PROBE_QUESTION, _LONG_QUESTION), self._system or _PROBE_SYSTEM, tokens):
            raise self._refused(f"does not render a question within {SECONDS} s and {MEMORY_BYTES // 2**20} MiB")

    @cached_property
    def _takes_system_message(self) -> bool:
        system = self._system or _PROBE_SYSTEM
        messages = [{"role": "system", "content": system}, {"role": "user", "content": _PROBE_QUESTION}]
        try:
            return system in self._apply_template(messages)
        except ModelError:  # "System role not supported": tried again without; a second failure is reported
            return False

    def _refused(self, what_it_does: str) -> ModelError:
        return ModelError(
            f"{_name_of(self._tokenizer)}: the chat template {what_it_does}; use another tokenizer, or remove its "
            "chat_template to get the plain format"
        )


def token_ids(tokenizer: Any, text: str, *, at_most: int | None = None, **options: Any) -> list[int]:
    """The ids of a text. Of one that has more than `at_most` (None = all are wanted) there may be only the first ones,
    more than `at_most`, so that a text of any length costs no more than one that fits. Raises ModelError.

    `options` go to the tokenizer.
    """

    def wrong(why: str) -> ModelError:
        return ModelError(f"{_name_of(tokenizer)}: its tokenizer fails on a text ({why}); use another tokenizer")

    with guarded(wrong):
        if at_most is not None:
            length = _CHARACTERS_A_TOKEN * at_most + _MARGIN
            while length < len(text):
                ids = list(tokenizer(text[:length], verbose=False, **options)["input_ids"])
                if len(ids) > counted_up_to(at_most):  # the cut changes a few tokens at its end, not half of them
                    return ids
                length *= 4
        return list(tokenizer(text, verbose=False, **options)["input_ids"])


def counted_up_to(at_most: int) -> int:
    """Where `token_ids` gives more ids than this, the text may have more still."""
    return 2 * at_most + _MARGIN


def said_count(ids: int, at_most: int) -> str:
    """How many tokens a text has that `token_ids` gave so many of: "130", "over 5120"."""
    return str(ids) if ids <= counted_up_to(at_most) else f"over {counted_up_to(at_most)}"


def _name_of(tokenizer: Any) -> str:
    return getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__


def encode_prompts(
    problems: Iterable[Problem], encoder: PromptEncoder, *, max_prompt_tokens: int
) -> tuple[list[Prompt], tuple[DroppedRow, ...]]:
    """Each problem with its prompt's token ids, and the problems whose prompt is longer than `max_prompt_tokens`, or a
    chat that the template refuses.

    Raises DataError when no prompt is left, ModelError for a template that fails.
    """
    kept: list[Prompt] = []
    dropped: list[DroppedRow] = []
    for problem in problems:
        try:
            ids = encoder.encode(problem.question, problem.turns, at_most=max_prompt_tokens)
        except ModelError as error:
            if not problem.turns:  # the template has rendered a question before; a chat is the row's own
                raise
            dropped.append(DroppedRow(problem.source or problem.id, f"chat that the template refuses: {error}"))
            continue
        if len(ids) <= max_prompt_tokens:
            kept.append((replace(problem, prompt=encoder.asked(problem.question, problem.turns)), ids))
        else:
            count = said_count(len(ids), max_prompt_tokens)
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
