"""Show an inspected step on the terminal and as a self-contained page: tokens coloured by lambda, with marked spans.

Colour is never the only sign. On the terminal, marks under the tokens say f (forward span), b (backward span) or x
(both). On the page, lines above and below a token mark the spans, and shading shows its entropy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from gtpo_cli.entropy_filter import LN_2, filter_is_on
from gtpo_cli.errors import EvaluationError
from gtpo_cli.recipe.schema import AdvantagesRecipe, LossRecipe, ObjectiveRecipe, TokenWeightsRecipe
from gtpo_cli.rewards.extract import NO_ANSWER
from gtpo_cli.runs.files import own_folder, write_aside, writing
from gtpo_cli.terminal.console import print_line, print_table
from gtpo_cli.text import counted
from gtpo_cli.tools.report.inspection import CONTROLS, InspectedGroup, InspectedStep, StoredCompletion, Token
from gtpo_cli.tracking import reward_words

# Both foreground and background are set, so that the contrast does not depend on the terminal's palette. On a terminal
# with 16 colours they become blue and green.
LESS, SAME, MORE = "#ffffff on #1f3f99", "", "#ffffff on #0a7a20"
_INDENT = "  "
_FULL_SHADE = 2 * LN_2  # nats; a token with this entropy or more is fully shaded on the page
_SIGNS = {"\n": "⏎", "\t": "⇥", "\r": "␍", "\x1b": "␛"}


# -- shared text ------------------------------------------------------------------------------------------------------


def summary(step: InspectedStep) -> str:
    """Say in words what happened in the step."""
    rows = [row for group in step.groups for row in group.completions]
    differ = sum(group.informative for group in step.groups)
    right = sum(row.correct for row in rows)
    return (
        f"In step {step.step} of {step.run.path}, {right} of {counted(len(rows), 'answer')} to "
        f"{counted(len(step.groups), 'problem')} {'was' if right == 1 else 'were'} right. {_taught(differ, step)}"
    )


def _taught(differ: int, step: InspectedStep) -> str:
    if not differ:
        return "Within each problem all rewards were equal, so no answer was preferred to another."
    if differ == len(step.groups):
        return "Within each problem the rewards differed."
    number = step.choose(None)[0].number
    return f"Rewards differed in {differ} of the problems, most in problem {number}; the others preferred no answer."


def rules(step: InspectedStep) -> list[str]:
    """Describe how the recipe sets the weights of this step."""
    objective, initial = step.objective, step.run.initial_entropy()
    weights, entropy_filter = objective.token_weights, objective.filter
    lines = [f"objective {objective.name}"]
    lines += [f"A of the rule {_with_config(objective.advantages)}"] * (objective.advantages.rule != "group")
    lines += [f"loss of the rule {_with_config(objective.loss)}"] * (objective.loss.rule != "token")
    if weights.rule == "none":
        lines.append("no rule for token weights: lambda is 1 everywhere")
    elif weights.rule == "conflict":
        positive, negative = weights.config.get("positive", 2.0), weights.config.get("negative", 0.0)
        lines.append(
            f"lambda in conflict spans: {negative:g} where A < 0, {positive:g} where A > 0 "
            f"({objective.conflict.alignment} alignment); 1 elsewhere{CONTROLS[weights.control]}"
        )
    else:
        lines.append(f"lambda of the rule {_with_config(weights)}{CONTROLS[weights.control]}")
    if initial is not None:
        state = "on" if filter_is_on(initial, entropy_filter.enabled) else "off"
        lines.append(
            f"filter {state}: <H>_ini = {initial:.4f}, ln 2 = {LN_2:.4f}; delta = 0 where <H> > "
            f"{entropy_filter.threshold:.4f}" + (" and A < 0" if entropy_filter.only_negative else "")
        )
    lines.append(f"c = delta (A - gamma <H>) lambda multiplied a token's ratio, gamma = {objective.entropy_coef:g}")
    return lines


def _with_config(rule: AdvantagesRecipe | TokenWeightsRecipe | LossRecipe) -> str:
    config = ", ".join(f"{name} {value}" for name, value in rule.config.items())
    return f"{rule.rule} with {config}" if config else str(rule.rule)


def headline(completion: StoredCompletion, *same: StoredCompletion) -> str:
    """Return two lines: reward, its parts and the answer; then advantage, entropy, delta, coefficients, lengths.
    `same`: the completions that are identical to it."""
    rewards = {"format": completion.format, "accuracy": completion.accuracy, **completion.plugins}
    parts = ", ".join(f"{reward_words(name)} {score:g}" for name, score in rewards.items())
    answer = f"answer {NO_ANSWER if completion.extracted is None else repr(completion.extracted)}"
    if completion.score is not None:
        answer += f" of score {completion.score:g}"
    cs = completion.coefficient
    coefficients = f", c {min(cs):+z.3f} to {max(cs):+z.3f}" if cs else ""
    delta = int(completion.kept)
    others = f" (x {len(same) + 1}, with {', '.join(f'#{one.number}' for one in same)})" if same else ""
    return (
        f"#{completion.number}{others}  reward {completion.reward:g} ({parts}), {answer}"
        f"{', truncated' if completion.finish_reason == 'length' else ''}\n"
        f"A {completion.advantage:+z.3f}, <H> {completion.mean_entropy:.4f}, delta {delta}{coefficients}; "
        f"{counted(len(completion.token_ids), 'token')}, {sum(completion.forward)} forward, "
        f"{sum(completion.backward)} backward"
    )


def shown_coefficient(token: Token) -> str:
    return f"{token.coefficient:+z.4f}"


def visible(text: str) -> str:
    """Return a token's text on one line, with signs for control characters; never empty."""
    shown = "".join(_SIGNS.get(character, character if character.isprintable() else "·") for character in text)
    return shown or "∅"


# -- the page ---------------------------------------------------------------------------------------------------------


def write_page(step: InspectedStep, file: Path) -> Path:
    """Write the page and return its path. Raises EvaluationError if it cannot be written."""
    with writing(lambda why: EvaluationError(f"{file}: cannot be written ({why}); name another file with --out")):
        own_folder(file.parent)
        write_aside(file, render(step))
    return file


def render(step: InspectedStep) -> str:
    """Render the page with all groups of the step."""
    from gtpo_cli.pages import filled

    return filled(
        "gtpo_cli.tools.report",
        "inspect.html.j2",
        title=f"{step.run.name}, step {step.step}",
        summary=summary(step),
        rules=rules(step),
        full_shade=_FULL_SHADE,
        groups=step.groups,
        objective=step.objective,
        headline=headline,
        visible=visible,
        shown_coefficient=shown_coefficient,
    )


# -- the terminal -----------------------------------------------------------------------------------------------------


def print_step(console: Console, step: InspectedStep, groups: Sequence[InspectedGroup]) -> None:
    """Print what happened in words, and the groups with their completions, identical ones once."""
    print_line(console, summary(step))
    console.print()
    for line in rules(step):
        print_line(console, line)
    console.print(
        Text.assemble(
            (" lambda < 1 ", LESS), " (pulls less) ", (" lambda > 1 ", MORE),
            " (pulls more)   marks: f forward span, b backward span, x both",
        )
    )  # fmt: skip
    for group in groups:
        _print_group(console, group)


def _print_group(console: Console, group: InspectedGroup) -> None:
    console.print()
    print_line(console, f"problem {group.number}, {group.first.problem}: {group.first.question}", style="bold")
    rewards = f"reward {group.reward_mean:z.2f} on average, standard deviation {group.reward_std:.2f}"
    print_line(console, f"gold {group.first.gold}; {rewards}")
    if group.remark:
        print_line(console, group.remark)
    for completion, *same in group.folded():
        console.print()
        print_line(console, headline(completion, *same).replace("\n", f"\n{_INDENT}"))
        for line in token_lines(completion, max(20, console.width - len(_INDENT))):
            console.print(line)


def token_lines(completion: StoredCompletion, width: int) -> Iterator[Text]:
    """Yield tokens in rows of at most `width` cells, each followed by a row of its marks, if any."""
    for row in _rows(completion.tokens, width):
        yield Text.assemble(_INDENT, *((visible(token.text), style_of(token)) for token in row))
        marks = "".join(token.mark * cell_len(visible(token.text)) for token in row)
        if marks.strip():
            yield Text(_INDENT + marks.rstrip())


def _rows(tokens: Sequence[Token], width: int) -> Iterator[list[Token]]:
    """Split tokens into rows. A row ends at `width` cells, and after a token with a line break."""
    row: list[Token] = []
    used = 0
    for token in tokens:
        cells = cell_len(visible(token.text))
        if row and used + cells > width:
            yield row
            row, used = [], 0
        row.append(token)
        used += cells
        if "\n" in token.text:
            yield row
            row, used = [], 0
    if row:
        yield row


def style_of(token: Token) -> str:
    """Return the colour of a token's lambda."""
    return LESS if token.weight < 1 else MORE if token.weight > 1 else SAME


def print_tokens(
    console: Console, group: InspectedGroup, completion: StoredCompletion, objective: ObjectiveRecipe
) -> None:
    """Print a table of a completion's tokens with every figure and the reason for lambda."""
    print_line(console, headline(completion))
    rows = [
        (str(place), Text(visible(token.text), style_of(token)), token.mark, f"{token.weight:g}",
         f"{token.logprob:z.4f}", f"{token.entropy:.4f}", shown_coefficient(token), why)
        for place, (token, why) in enumerate(zip(completion.tokens, group.reasons(completion, objective), strict=True))
    ]  # fmt: skip
    header = ("place", "token", "span", "lambda", "ln p", "entropy", "c", "why")
    print_table(console, header, rows, numbers=(0, 3, 4, 5, 6))
