"""Prepare the prompts of a run, from a recipe and the form of its prompts.

Training, SFT, TRL, the entropy probe, `gtpo train --dry-run` and `gtpo plan` all use it, so their counts agree.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gtpo_cli.data.order import PromptOrder
from gtpo_cli.data.problems import (
    DroppedRow,
    Side,
    gold_check,
    load_problems,
    normalized_question,
    sources_with_prefix,
    summarise_dropped,
)
from gtpo_cli.data.prompts import Prompt, PromptEncoder, count_words, encode_prompts
from gtpo_cli.errors import DataError
from gtpo_cli.recipe import Recipe
from gtpo_cli.recipe.data import OWN, SourceRecipe, is_task
from gtpo_cli.recipe.rewards import RewardsRecipe
from gtpo_cli.rewards.extract import tag_texts
from gtpo_cli.rewards.same_answer import is_text
from gtpo_cli.seeds import derive_seed
from gtpo_cli.text import counted, shown, some
from gtpo_cli.types import Problem

_SFT_REMEDY = (
    "name the column of the worked solution (data.columns.solution), or imitate the answer alone "
    "(rewards.format.tags.reasoning: null)"
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """The data of a run.

    prompts: the usable problems with the token ids of their prompts, in the order of the data. dropped: the number of
    unusable problems. notes: the reasons, and other messages for the user. sampled: all completions that training
    samples, without those of `objective.resample`. imitated: the references that SFT imitates instead. longest_prompt:
    tokens of the longest prompt. longest_row: the same plus its longest possible completion.
    """

    prompts: list[Prompt]
    order: PromptOrder
    dropped: int
    notes: list[str]
    sampled: int
    imitated: int
    longest_prompt: int
    longest_row: int


def prepare(recipe: Recipe, encoder: PromptEncoder, max_seq_length: int, *, full_steps: bool = False) -> Prepared:
    """Read the recipe's data and count what a run does with it. This needs no weights.

    `max_seq_length` limits prompt and completion together; it is the recipe's or the model's own. SFT keeps only
    problems whose reference fits too. `full_steps` is for TRL, which also samples each group only once (see
    `PromptOrder`). Raises DataError, ModelError.
    """
    usable = _training_prompts(recipe, encoder, max_seq_length)
    prompts, notes = usable.prompts, [*usable.notes, *encoder.notes]
    imitates = recipe.objective.name == "sft"
    resample = recipe.objective.resample
    if resample and not full_steps:
        notes.append(
            f"groups without reward spread are sampled again, {counted(resample, 'time')} at most (objective.resample)"
        )
    order = PromptOrder(recipe, prompts, full_steps=full_steps)
    longest = max(len(ids) for _, ids in prompts)
    room, completion = max_seq_length - longest, recipe.rollout.max_completion_tokens
    if room < completion and not imitates:
        notes.append(
            f"the longest prompt has {longest} tokens and leaves {room} to its completion, not {completion} "
            f"(rollout.max_completion_tokens): both together are at most {max_seq_length} (model.max_seq_length)"
        )
    return Prepared(
        prompts,
        order,
        usable.dropped,
        notes,
        sampled=0 if imitates else order.total_prompts * recipe.rollout.group_size,
        imitated=order.total_prompts if imitates else 0,
        longest_prompt=longest,
        longest_row=min(max_seq_length, longest + recipe.rollout.max_completion_tokens),
    )


@dataclass(frozen=True, slots=True)
class Usable:
    """Problems that fit and can be scored, with their prompts' tokens; the number of unusable ones; notes for the user;
    and the held-out questions (`normalized_question`)."""

    prompts: list[Prompt]
    dropped: int
    notes: list[str]
    held_out: frozenset[str] = frozenset()


def _training_prompts(recipe: Recipe, encoder: PromptEncoder, max_seq_length: int) -> Usable:
    """Return the mixed prompts of all sources; for SFT, only those whose reference fits too. A question that one part
    of a mixture holds out is left out of the others. Raises like `usable_prompts`."""
    found = [
        usable_prompts(
            recipe,
            source,
            encoder,
            max_seq_length=max_seq_length,
            id_prefix=prefix,
            leveled=recipe.data.curriculum is not None,
        )
        for source, prefix in sources_with_prefix(recipe.data)
    ]
    held_out = frozenset[str]().union(*(part.held_out for part in found))
    if recipe.data.curriculum is not None:
        found = [
            _leveled(part, source, recipe.data.curriculum.column)
            for source, part in zip(recipe.data.sources, found, strict=True)
        ]
    parts = []
    dropped, notes = sum(part.dropped for part in found), [note for part in found for note in part.notes]
    for source, part in zip(recipe.data.sources, found, strict=True):
        prompts = [prompt for prompt in part.prompts if normalized_question(prompt[0].question) not in held_out]
        if shared := len(part.prompts) - len(prompts):
            notes.append(
                f"{source.name}: {counted(shared, 'problem')} left out, because another part of the mixture holds "
                f"{'it' if shared == 1 else 'them'} out"
            )
        if recipe.objective.name == "sft":
            prompts, unfit = drop_long_references(
                prompts,
                encoder,
                max_completion_tokens=recipe.rollout.max_completion_tokens,
                max_seq_length=max_seq_length,
            )
            if not prompts:
                alike = len({row.reason for row in unfit}) == 1
                why = summarise_dropped(unfit, most=1 if alike else 3)
                remedy = f"; {_SFT_REMEDY}" if any(row.reason.startswith("no worked") for row in unfit) else ""
                raise DataError(f"no problem is left to imitate: {why}{remedy}")
            dropped += len(unfit)
            notes += [summarise_dropped(unfit)] if unfit else []
        if not prompts:
            raise DataError(f"data.mixture: {source.name}: other parts hold out all of its problems; remove it")
        parts.append(prompts)
    if not recipe.data.mixture:
        return Usable(parts[0], dropped, notes)
    if recipe.data.curriculum is not None:  # it draws by the weights
        return Usable([prompt for part in parts for prompt in part], dropped, notes)

    prompts, note = mixed(parts, recipe.data.mixture, seed=recipe.seed)
    return Usable(prompts, dropped, [*notes, note])


def usable_prompts(
    recipe: Recipe,
    source: SourceRecipe,
    encoder: PromptEncoder,
    *,
    max_seq_length: int,
    side: Side = "training",
    id_prefix: str = "",
    with_columns: bool = False,
    leveled: bool = False,
) -> Usable:
    """Return the prompts that fit `data.max_prompt_tokens` and leave a token of `max_seq_length` to the completion.

    `side`, `id_prefix`, `with_columns`, `leveled`: see `load_problems`. Raises DataError, ModelError.
    """
    data = recipe.data
    loaded = load_problems(
        source, seed=recipe.seed, is_usable=gold_check(recipe.rewards), side=side, id_prefix=id_prefix,
        with_columns=with_columns or bool(recipe.rewards.plugins) or leveled, leveled=leveled,
        answer_tag=recipe.rewards.format.tags.answer,
    )  # fmt: skip
    longest = min(data.max_prompt_tokens, max_seq_length - 1)
    problems = [dataclasses.replace(problem, part=source.name) for problem in loaded.problems]
    prompts, too_long = encode_prompts(problems, encoder, max_prompt_tokens=longest)
    notes = [summarise_dropped(rows) for rows in (loaded.dropped, too_long) if rows]
    if loaded.held_out:
        use = "held out" if side == "training" else "for the test, held out from training"
        notes.insert(0, f"{source.name}: {counted(len(loaded.held_out), 'question')} {use} (data.held_out)")
    if loaded.outside:
        notes.append(f"{source.name}: {counted(loaded.outside, 'row')} left out by data.where")
    if loaded.unused and source.benchmark in OWN:
        notes.append(f"{source.name}: no use is made of {some(loaded.unused)} (data.columns)")
    if not is_task(source.benchmark):
        notes += _notes_on_golds(loaded.problems, recipe.rewards)
    own = sum(turn[0] == "system" for problem, _ in prompts for turn in problem.turns[:1])
    if own and data.system_prompt:
        notes.append(f"{counted(own, 'prompt')} with its own system message, which replaces data.system_prompt")
    asked = [problem for problem, _ in prompts]
    notes += _notes_on_what_is_asked(asked, recipe.rewards.answer) or _notes_on_what_is_not_asked(asked, recipe)
    return Usable(prompts, len(loaded.dropped) + len(too_long), notes, loaded.held_out)


MOST_LEVELS = 50


def _leveled(usable: Usable, source: SourceRecipe, column: str | None) -> Usable:
    """Return a source's prompts with their levels: a task's own, or by a column of numbers. Raises DataError."""
    if is_task(source.benchmark):
        return usable
    key = "data.curriculum.column"
    if column is None:
        raise DataError(f"{key}: {source.name} has no levels of its own; name a column of numbers")
    from gtpo_cli.data.reading import UnusableRowError, number_in

    try:
        values = [number_in(problem.columns, column) for problem, _ in usable.prompts]
    except UnusableRowError as error:
        raise DataError(f"{key}: {source.name} has {error}; name a column of numbers") from error
    levels = {value: level for level, value in enumerate(sorted(set(values)))}
    if len(levels) > MOST_LEVELS:
        raise DataError(
            f"{key}: {column} of {source.name} has {len(levels)} different numbers; {MOST_LEVELS} are allowed"
        )
    prompts = [
        (dataclasses.replace(problem, level=levels[value]), ids)
        for (problem, ids), value in zip(usable.prompts, values, strict=True)
    ]
    return dataclasses.replace(usable, prompts=prompts)


# How prompts ask for an answer, by where it then stands (`rewards.answer`).
_ASKS = {
    "tags": (re.compile("<answer>"), "in <answer> tags"),
    "boxed": (re.compile(r"\\boxed(?![a-z])"), r"in \boxed{}"),
    "hashes": (re.compile("####"), "behind ####"),
    "last_line": (re.compile(r"(?i)\banswer: ?[\"'`*]*[$<\[{]"), "behind Answer:"),
}


def place_asked_for(problems: Sequence[Problem]) -> tuple[str, int] | None:
    """Return where most prompts of the data ask for the answer, and how many do; None if most ask for no place."""
    texts = [" ".join(text for _, text in problem.turns) or problem.question for problem in problems]
    counts = {place: sum(pattern.search(text) is not None for text in texts) for place, (pattern, _) in _ASKS.items()}
    return next(((place, asking) for place, asking in counts.items() if 2 * asking > len(texts)), None)


def _notes_on_what_is_asked(problems: Sequence[Problem], place: str) -> list[str]:
    """Say where most prompts of the data ask for the answer, if the recipe does not look there."""
    asked, asking = place_asked_for(problems) or (place, 0)
    if asked == place:
        return []
    many = f"{asking} of {counted(len(problems), 'prompt')} in the data ask for the answer {_ASKS[asked][1]}"
    return [
        f"{many}, but rewards.answer is {place}, and only what stands there counts; set rewards.answer: {asked}, or "
        "take that out of the data"
    ]


def _notes_on_what_is_not_asked(problems: Sequence[Problem], recipe: Recipe) -> list[str]:
    """Say what the rewards look for and most prompts do not show, unless the model has learned it: it is built in,
    begins with trained weights, or learns it now."""
    learned = recipe.model.name.startswith("builtin:") or recipe.model.start or recipe.objective.name == "sft"
    if learned or not (recipe.rewards.format.weight or recipe.rewards.accuracy.weight):
        return []
    place = {"boxed": "\\boxed", "hashes": "####", "last_line": "Answer:"}.get(recipe.rewards.answer)
    wanted = [text for text in (*tag_texts(recipe.rewards.tags), place) if text is not None and "</" not in text]
    shown_texts = [
        one.opened + (one.prompt if isinstance(one.prompt, str) else "\n".join(text for _, text in one.prompt))
        for one in problems
    ]
    missing = [text for text in wanted if 2 * sum(text in prompt for prompt in shown_texts) < len(shown_texts)]
    if not missing:
        return []
    return [
        f"most prompts do not show {' or '.join(missing)}, which the rewards look for; ask for it in "
        "data.system_prompt, unless the model has learned it"
    ]


MANY_WORDS = 12  # that a completion hardly repeats


def _notes_on_golds(problems: Sequence[Problem], rewards: RewardsRecipe) -> list[str]:
    """Say how many gold answers are prose, which is compared word by word (of texts: how many are long), and which
    questions have two."""
    notes = []
    prose = [
        problem
        for problem in problems
        if rewards.accuracy.weight
        and (len(problem.gold.split()) > MANY_WORDS if rewards.takes_any_gold else is_text(problem.gold))
    ]
    if prose:
        notes.append(
            f"{len(prose)} of {counted(len(problems), 'gold answer')} in words, which only the same words equal; the "
            f"first is {shown(prose[0].gold)} ({prose[0].source or prose[0].id})"
        )
    first: dict[str, Problem] = {}
    for problem in problems:
        first.setdefault(normalized_question(problem.question), problem)
    others = [problem for problem in problems if first[normalized_question(problem.question)].gold != problem.gold]
    if others:
        one = first[normalized_question(others[0].question)]
        notes.append(
            f"{counted(len(others), 'question')} again with another gold answer; the first: {shown(one.gold)} "
            f"({one.source or one.id}) and {shown(others[0].gold)} ({others[0].source or others[0].id})"
        )
    return notes


def drop_long_references(
    prompts: Sequence[Prompt], encoder: PromptEncoder, *, max_completion_tokens: int, max_seq_length: int
) -> tuple[list[Prompt], list[DroppedRow]]:
    """Separate problems whose reference fits from those whose reference is too long or lacks a worked solution."""
    kept: list[Prompt] = []
    dropped: list[DroppedRow] = []
    for problem, prompt_ids in prompts:
        reference = encoder.reference(problem, at_most=max_completion_tokens)
        length = len(reference.token_ids)
        reason = None
        if problem.solution is None and encoder.tags.reasoning is not None:
            reason = "no worked solution to imitate (SFT needs one)"
        elif length > max_completion_tokens or length + len(prompt_ids) > max_seq_length:
            reason = f"reference too long: {count_words(length, max_completion_tokens)} tokens with its tags"
        if reason is None:
            kept.append((problem, prompt_ids))
        else:
            dropped.append(DroppedRow(problem.source or problem.id, reason))
    return kept, dropped


MAX_PROMPTS = 10_000_000  # per epoch; more would come from a mistyped weight


def mixed(parts: Sequence[Sequence[Prompt]], weights: Mapping[str, float], *, seed: int) -> tuple[list[Prompt], str]:
    """Return an epoch of prompts in the proportions of the sources' weights, and a note with the counts.

    Every prompt comes at least once; prompts of a part that is small for its weight come several times. Only the order
    of the parts is random, by `seed`. Raises DataError if the weights need too many prompts.
    """
    total = sum(weights.values())
    shares = [weight / total for weight in weights.values()]
    length = max(len(part) / share for part, share in zip(parts, shares, strict=True))
    if length > MAX_PROMPTS:
        raise DataError(
            f"data.mixture: these weights make an epoch of {length:.0f} prompts; choose more similar weights"
        )
    counts = [round(length * share) for share in shares]
    order = [number for number, count in enumerate(counts) for _ in range(count)]
    random.Random(derive_seed(seed, "mixture")).shuffle(order)
    endless = [itertools.cycle(part) for part in parts]
    words = [
        f"{count} of {name} ({counted(len(part), 'problem')}, weight {weight:g})"
        for count, part, (name, weight) in zip(counts, parts, weights.items(), strict=True)
    ]
    note = f"mixture: {counted(len(order), 'prompt')} an epoch: {', '.join(words)}"
    return [next(endless[number]) for number in order], note
