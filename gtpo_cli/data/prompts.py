"""Encode a question as the token ids of a prompt, and a worked solution as the completion that SFT teaches.

A tokenizer with a chat template renders its template. Other tokenizers get the plain format:

    <system prompt>

    Question: <question>
    Answer:

preceded by the tokenizer's own special tokens. Without a system prompt the text begins at "Question:". In a chat of
several turns, the assistant's answers stand between the questions, each with the end-of-sequence token.

A template may end the prompt with tags, as those of models that think end it with `<think>`. These tags belong to the
completion (`PromptEncoder.opened`). A template that asks the clock always gets the same day.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property, lru_cache
from itertools import takewhile
from typing import Any

from gtpo_cli.data.problems import DroppedRow, summarise_dropped
from gtpo_cli.errors import DataError, ModelError
from gtpo_cli.rewards.extract import PAPER_TAGS, extract_answer, tag_pair, tag_texts
from gtpo_cli.runs.files import guarded
from gtpo_cli.types import Completion, Problem, Tags, Turn

Prompt = tuple[Problem, tuple[int, ...]]  # a problem and the token ids of its prompt

# Llama 3 templates write "Today Date": 3.1 this fixed day, 3.2 the current day, which would change the prompts of a run
# that is resumed on another day. Templates get the day as text, and as a clock if they ask one.
TEMPLATE_DAY = datetime(2024, 7, 26)
TEMPLATE_DATE = f"{TEMPLATE_DAY:%d %b %Y}"
_PROBE_QUESTION, _PROBE_SYSTEM, _PROBE_ANSWER = "What is 1 + 1?", "Be brief.", "It is two."
_LONG_QUESTION = "What is 1 + 1? " * 128
# Tokenisation takes hundreds of bytes per token. So it begins with this many characters per allowed token, and
# continues with four times as many until the text ends or is surely too long.
_CHARACTERS_A_TOKEN = 16
_MARGIN = 1024


def wrap_solution(solution: str, answer: str, *, tags: Tags = PAPER_TAGS) -> str:
    """Return the completion that SFT teaches: `<reasoning>{solution}</reasoning><answer>{answer}</answer>`.

    Without a reasoning tag the solution is left out before answer tags, and stands as it is before a box, hashes or
    `Answer:`. If it gives the answer there itself, nothing is added. There are no line breaks around the tags, which
    would cost a character-level model tokens. The rewards ignore white space between tags.
    """
    if tags.place != "tags":
        if extract_answer(solution, tags=Tags(None, place=tags.place)) == answer:
            written = ""
        else:
            written = {"boxed": f"\\boxed{{{answer}}}", "hashes": f"#### {answer}"}.get(tags.place, f"Answer: {answer}")
    else:
        opening, closing = tag_pair(tags.answer)
        written = f"{opening}{answer}{closing}"
    if tags.reasoning is not None:
        opening, closing = tag_pair(tags.reasoning)
        return f"{opening}{solution}{closing}{written}"
    return written if tags.place == "tags" else "\n".join(filter(None, (solution, written)))


def completion_of(text: str, tokenizer: Any, *, at_most: int | None = None) -> Completion:
    """Return a text as a completion with the token that ends it, and 0 for its unknown log-probabilities.

    `at_most`: see `token_ids`. Raises ModelError if the tokenizer has no such token.
    """
    ids = (*token_ids(tokenizer, text, at_most=at_most, add_special_tokens=False), _end_id(tokenizer))
    return Completion(ids, (0.0,) * len(ids), "stop", text)


def completion_text(tokenizer: Any, ids: Sequence[int], ends: Collection[int]) -> str:
    """Return the text of a completion, up to the first of the tokens that end it. Other special tokens stay, because
    tags may be such tokens, and so does a token of padding, which may be text elsewhere."""
    stops = {*ends, tokenizer.eos_token_id}
    whole = takewhile(lambda token: token not in stops, ids)
    text: str = tokenizer.decode([token for token in whole if token != tokenizer.bos_token_id])
    return text


def turn_end(tokenizer: Any) -> int | None:
    """Return the special token with which the chat template ends an assistant's turn; None if there is none."""
    template = getattr(tokenizer, "chat_template", None)
    return _turn_end(tokenizer, str(template)) if template else None


@lru_cache(maxsize=8)
def _turn_end(tokenizer: Any, _template: str) -> int | None:
    chat = [{"role": "user", "content": _PROBE_QUESTION}, {"role": "assistant", "content": _PROBE_ANSWER}]
    try:
        text = _rendered(tokenizer, chat, add_generation_prompt=False)
    except ModelError:  # it refuses assistants' turns
        return None
    before, _, after = text.rpartition(_PROBE_ANSWER)
    ids = token_ids(tokenizer, after.lstrip(), add_special_tokens=False) if before else []
    return ids[0] if ids and ids[0] in getattr(tokenizer, "added_tokens_decoder", {}) else None


def _end_id(tokenizer: Any) -> int:
    end = turn_end(tokenizer)
    end = tokenizer.eos_token_id if end is None else end
    if end is None:
        raise ModelError(
            f"{_name_of(tokenizer)}: the tokenizer has no end-of-sequence token, so a completion cannot end; set "
            "eos_token in its tokenizer_config.json"
        )
    return int(end)


def _rendered(tokenizer: Any, messages: Sequence[Mapping[str, str]], **arguments: Any) -> str:
    """Render messages with the chat template. Raises ModelError."""
    # A template is a program that comes with the model.
    with guarded(lambda why: _refused(tokenizer, f"cannot render a question ({why})")):
        clock = {"date_string": TEMPLATE_DATE, "strftime_now": TEMPLATE_DAY.strftime}
        text: str = tokenizer.apply_chat_template(messages, tokenize=False, **(clock | arguments))
    return text


def _refused(tokenizer: Any, what_it_does: str) -> ModelError:
    return ModelError(
        f"{_name_of(tokenizer)}: the chat template {what_it_does}; use another tokenizer, or remove its "
        "chat_template to get the plain format"
    )


class PromptEncoder:
    """The form of prompts and completions for one tokenizer, one system prompt (None or blank: no system prompt) and
    the recipe's tags.

    `arguments` are given to the chat template (`data.template_arguments`). `embeddings`: the number of token ids that
    the model knows; None: not checked.
    `uses_plain_format`: the tokenizer has no chat template, so the plain format of this module is used.
    `folds_system_prompt`: its template refuses or ignores a system message, so the system prompt stands in the user's
    message, before the question and a blank line.
    Raises ModelError for a template that cannot render a question; DataError for arguments that it does not read.
    """

    def __init__(
        self,
        tokenizer: Any,
        system_prompt: str | None,
        *,
        tags: Tags = PAPER_TAGS,
        arguments: Mapping[str, Any] | None = None,
        embeddings: int | None = None,
    ) -> None:
        self.tokenizer = self._tokenizer = tokenizer
        self.tags = tags
        self._system = (system_prompt or "").strip()
        self.arguments, self._embeddings = dict(arguments or {}), embeddings
        self.uses_plain_format: bool = not getattr(tokenizer, "chat_template", None)
        self.folds_system_prompt = False
        self._check_arguments()
        if not self.uses_plain_format:
            self._check_template_ends()
            self.folds_system_prompt = bool(self._system) and not self._takes_system_message
            if _PROBE_QUESTION not in self._apply_template(self.messages(_PROBE_QUESTION)):
                raise _refused(tokenizer, "leaves the user's message out")

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
        self._check_ids(ids, "a prompt")
        return tuple(ids)

    def reference(self, problem: Problem, *, at_most: int | None = None) -> Completion:
        """Return the completion that SFT imitates: solution and gold answer in their tags, without the tags that end
        the prompt, then the end. `at_most`: see `token_ids`. Raises ModelError, DataError."""
        text = wrap_solution(problem.solution or "", problem.gold, tags=self.tags)
        for tag in re.findall(self._tag, self.opened):
            text = text.replace(tag, "", 1)
        completion = completion_of(text, self._tokenizer, at_most=at_most)
        self._check_ids(completion.token_ids, "a reference")
        return completion

    @cached_property
    def opened(self) -> str:
        """The recipe's tags that end every prompt, such as `<think>`, with the white space after them; else ""."""
        found = self._tag and re.search(rf"(?:(?:{self._tag})\s*)+\Z", self.render(_PROBE_QUESTION))
        return found[0] if found else ""

    @property
    def other_tag(self) -> str | None:
        """The name of the tag that ends every prompt and is none of the recipe's; None without one."""
        tag = None if self.opened else re.search(r"<([A-Za-z][\w.-]*)>\s*\Z", self.render(_PROBE_QUESTION))
        return tag[1] if tag and f"</{tag[1]}>" in self.template else None

    @cached_property
    def _tag(self) -> str:
        return "|".join(map(re.escape, tag_texts(self.tags)))

    @property
    def has_special_tags(self) -> bool:
        """Whether a tag is a special token, which other tools leave out of a text."""
        special = set(getattr(self._tokenizer, "all_special_tokens", ()))
        return not special.isdisjoint(tag_texts(self.tags))

    @property
    def notes(self) -> list[str]:
        """What a user should know about the prompts and the ends of completions."""
        if self.uses_plain_format:
            return ["the tokenizer has no chat template: prompts are plain text ('Question: ...' then 'Answer:')"]
        found = []
        if self.opened:
            found.append(
                f"the chat template ends the prompt with {_shown(self.opened)}, which counts as the completion's"
            )
        elif tag := self.other_tag:
            found.append(
                f"the chat template ends the prompt with <{tag}>, which is none of the recipe's tags; if the model "
                f"reasons in it, set rewards.format.tags.reasoning: {tag}"
            )
        end = turn_end(self._tokenizer)
        if end is not None and end != self._tokenizer.eos_token_id:
            token = self._tokenizer.convert_ids_to_tokens(end)
            found.append(f"completions end with {token} too, as turns do in the chat template")
        if header := self._missing_header:
            found.append(
                f"the chat template writes no generation prompt: the model itself must begin its turn with "
                f"{_shown(header)}; use a tokenizer whose template writes it"
            )
        return found

    @property
    def _missing_header(self) -> str:
        """What stands between a question and its answer in a chat, if the prompt does not end with it; else ""."""
        messages = self.messages(_PROBE_QUESTION)
        prompt, answered = self.render(_PROBE_QUESTION), [*messages, {"role": "assistant", "content": _PROBE_ANSWER}]
        try:
            if prompt != self._apply_template(messages, add_generation_prompt=False):
                return ""
            chat = self._apply_template(answered, add_generation_prompt=False).rpartition(_PROBE_ANSWER)[0]
        except ModelError:
            return ""
        return chat.removeprefix(prompt).strip() if chat.startswith(prompt) else ""

    @property
    def template(self) -> str:
        """The text of the (default) chat template; "" without one."""
        template = getattr(self._tokenizer, "chat_template", None) or ""
        return str(template.get("default", "")) if isinstance(template, dict) else str(template)

    def _check_arguments(self) -> None:
        """Raise DataError for arguments that gtpo sets itself, and for those that the template does not read."""
        parameters = inspect.signature(self._tokenizer.apply_chat_template).parameters if self.arguments else {}
        set_already = ({*parameters, "messages", "tokenizer"} - {"tools", "documents"}) & self.arguments.keys()
        if set_already:
            raise DataError(f"data.template_arguments: gtpo sets {min(set_already)} itself; remove it")
        unread = [name for name in self.arguments if not re.search(rf"\b{re.escape(name)}\b", self.template)]
        if unread:
            why = "it has no chat template" if self.uses_plain_format else "its chat template does not read it"
            raise DataError(
                f"data.template_arguments: {unread[0]} would have no effect on {_name_of(self._tokenizer)}, as {why}; "
                "remove it"
            )

    def _check_ids(self, ids: Sequence[int], what: str) -> None:
        """Raise DataError for a token that the model has no embedding for."""
        if self._embeddings is None or max(ids, default=0) < self._embeddings:
            return
        token = max(ids)
        raise DataError(
            f"{_name_of(self._tokenizer)}: {what} has the token {self._tokenizer.convert_ids_to_tokens(token)} with id "
            f"{token}, but the model knows only {self._embeddings} tokens; take it out of the text "
            "(data.system_prompt, the data), or use a model with an embedding for it"
        )

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

    def _apply_template(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> str:
        return _rendered(self._tokenizer, messages, add_generation_prompt=add_generation_prompt, **self.arguments)

    def _check_template_ends(self) -> None:
        """Raise ModelError for a template that takes too much time or memory."""
        if not (template := self.template):
            return
        from gtpo_cli.runs.limited import LIMITS, renders

        special = getattr(self._tokenizer, "special_tokens_map", {}).items()
        tokens = tuple((name, token) for name, token in special if isinstance(token, str))
        if not renders(template, (_PROBE_QUESTION, _LONG_QUESTION), self._system or _PROBE_SYSTEM, tokens):
            raise _refused(self._tokenizer, f"does not render a question within {LIMITS}")

    @cached_property
    def _takes_system_message(self) -> bool:
        system = self._system or _PROBE_SYSTEM
        messages = [{"role": "system", "content": system}, {"role": "user", "content": _PROBE_QUESTION}]
        try:
            return system in self._apply_template(messages)
        except ModelError:  # "System role not supported": the caller tries without it and reports a failure
            return False


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


def _shown(text: str) -> str:
    return " ".join(text.split())


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
            prompt = encoder.prompt(problem.question, problem.turns)
            kept.append((replace(problem, prompt=prompt, opened=encoder.opened), ids))
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
