"""From a question to the token ids that a model continues, and from a worked solution to the completion SFT teaches.

A tokenizer with a chat template renders its template. One without gets the plain format:

    <system prompt>

    Question: <question>
    Answer:

with the special tokens that the tokenizer itself puts in front. Without a system prompt the text begins at "Question:".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gtpo_cli.data.local import DroppedRow, summarise_dropped
from gtpo_cli.errors import DataError, ModelError
from gtpo_cli.rewards.extract import PAPER_TAGS, TagNames, tag_pair
from gtpo_cli.types import Problem

# Llama 3 templates write "Today Date": 3.1 this fixed day, 3.2 the clock's, which would change the prompts of a run
# that is resumed on another day. Templates that know no date ignore it.
TEMPLATE_DATE = "26 Jul 2024"
_PROBE_QUESTION = "What is 1 + 1?"


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
            self.folds_system_prompt = bool(self._system) and not self._takes_system_message()
            self._check_template()

    def encode(self, question: str) -> tuple[int, ...]:
        """Token ids of the prompt, beginning-of-sequence token (at most one) included. Raises ModelError."""
        if self.uses_plain_format:
            ids = list(self._tokenizer(self.render(question), verbose=False)["input_ids"])
            if len(ids) > 1 and ids[-1] == self._tokenizer.eos_token_id:
                ids.pop()  # some tokenizers close each text; a closed prompt has nothing to continue
        else:
            # The template has written the special tokens: adding them again would double bos.
            ids = list(self._tokenizer(self.render(question), add_special_tokens=False, verbose=False)["input_ids"])
        bos = self._tokenizer.bos_token_id
        if bos is not None and ids[:2] == [bos, bos]:
            del ids[0]
        return tuple(ids)

    def render(self, question: str) -> str:
        """The text of the prompt as the tokenizer gets it."""
        if self.uses_plain_format:
            return "\n\n".join(filter(None, (self._system, f"Question: {question}\nAnswer:")))
        return self._apply_template(question)

    def messages(self, question: str) -> list[dict[str, str]]:
        """What the chat template renders: the question, and the system prompt where it belongs."""
        messages = [{"role": "user", "content": question}]
        if self.folds_system_prompt:
            messages[0]["content"] = f"{self._system}\n\n{question}"
        elif self._system:
            messages.insert(0, {"role": "system", "content": self._system})
        return messages

    def _apply_template(self, question: str) -> str:
        from jinja2 import TemplateError

        try:
            text: str = self._tokenizer.apply_chat_template(
                self.messages(question), tokenize=False, add_generation_prompt=True, date_string=TEMPLATE_DATE
            )
        # A template is a program that came with the model: besides its own errors it can fail as Python does.
        except (TemplateError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
            raise ModelError(
                f"{self._name()}: the chat template cannot render a question ({type(error).__name__}: {error}); "
                "use another tokenizer, or remove its chat_template to get the plain format"
            ) from error
        return text

    def _takes_system_message(self) -> bool:
        try:
            return self._system in self._apply_template(_PROBE_QUESTION)
        except ModelError:  # "System role not supported": tried again without; a second failure is reported
            return False

    def _check_template(self) -> None:
        if _PROBE_QUESTION not in self._apply_template(_PROBE_QUESTION):
            raise ModelError(
                f"{self._name()}: the chat template leaves the user's message out; use another tokenizer, or remove "
                "its chat_template to get the plain format"
            )

    def _name(self) -> str:
        return getattr(self._tokenizer, "name_or_path", "") or type(self._tokenizer).__name__


def encode_prompts(
    problems: Iterable[Problem], encoder: PromptEncoder, *, max_prompt_tokens: int
) -> tuple[list[tuple[Problem, tuple[int, ...]]], tuple[DroppedRow, ...]]:
    """Each problem with its prompt's token ids, and the problems whose prompt is longer than `max_prompt_tokens`.

    Raises DataError when no prompt is left, ModelError for a template that fails.
    """
    kept: list[tuple[Problem, tuple[int, ...]]] = []
    dropped: list[DroppedRow] = []
    for problem in problems:
        ids = encoder.encode(problem.question)
        if len(ids) <= max_prompt_tokens:
            kept.append((problem, ids))
        else:
            reason = f"prompt too long: {len(ids)} tokens, the limit is {max_prompt_tokens}"
            dropped.append(DroppedRow(problem.source or problem.id, reason))
    if not kept:
        if not dropped:
            raise DataError("no prompt is left: there are no problems")
        raise DataError(
            f"no prompt is left: {summarise_dropped(dropped)}; a prompt must fit data.max_prompt_tokens and, with a "
            "token to spare, the context (model.max_seq_length, or the model's own): raise them, or shorten the prompts"
        )
    return kept, tuple(dropped)
