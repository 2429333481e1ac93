"""An inspected group on the terminal: tokens coloured by lambda, their spans marked below them.

Colour is never the only carrier: the line of marks under the tokens says f (forward span), b (backward span) or x
(both), and the lambda that holds there stands above.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gtpo_cli.recipe import Recipe
from gtpo_cli.recipe.schema import LN_2
from gtpo_cli.report.inspection import InspectedCompletion, InspectedGroup, InspectedStep, Token

# both parts of each pair are given, so that the contrast does not hang on the palette of a terminal
LESS, SAME, MORE = "#ffffff on #1f5f99", "", "#ffffff on #1b7337"
_INDENT = "  "


def print_step(console: Console, step: InspectedStep, groups: Sequence[InspectedGroup]) -> None:
    """The groups with all their completions."""
    for line in rules(step):
        console.print(Text(line))
    console.print(legend())
    for group in groups:
        print_group(console, group, step.recipe)


def rules(step: InspectedStep) -> list[str]:
    """What the recipe says about the weights of this step."""
    objective, initial = step.recipe.objective, step.run.initial_entropy()
    lines = [f"{step.run.path}, step {step.step}: {len(step.groups)} problems; objective {objective.name}"]
    if objective.conflict.enabled:
        conflict = objective.conflict
        lines.append(
            f"lambda in conflict spans: {conflict.negative_weight:g} where A < 0, {conflict.positive_weight:g} where "
            f"A > 0 ({conflict.alignment} alignment); 1 elsewhere"
        )
    else:
        lines.append("conflict correction is off: lambda is 1 everywhere")
    if initial is not None:
        state = "on" if filter_is_on(initial, objective.filter.enabled) else "off"
        lines.append(
            f"filter {state}: <H>_ini = {initial:.4f}, ln 2 = {LN_2:.4f}; delta = 0 where <H> > "
            f"{objective.filter.threshold:.4f}" + (" and A < 0" if objective.filter.only_negative else "")
        )
    lines.append(f"weight of a token: delta (A - gamma <H>) lambda / |o|, gamma = {objective.entropy_coef:g}")
    if objective.compat == "released_code":
        lines.append(
            "compat: released_code divides by the completion's conflict count too (docs/objective.md, section 9)"
        )
    return lines


def filter_is_on(initial_entropy: float, enabled: str) -> bool:
    """`gtpo_cli.objective.filter_is_on`, said again without torch; a test holds the two together."""
    return enabled == "always" or (enabled == "auto" and initial_entropy < LN_2)


def legend() -> Text:
    """The colours and marks."""
    text = Text()
    text.append(" lambda < 1 ", LESS)
    text.append(" (punished less) ")
    text.append(" lambda > 1 ", MORE)
    text.append(" (rewarded more)   marks: f forward span, b backward span, x both")
    return text


def print_group(console: Console, group: InspectedGroup, recipe: Recipe) -> None:
    console.print()
    console.print(Text(f"problem {group.number}, {group.problem}: {group.question}", style="bold"))
    console.print(
        Text(f"gold {group.gold}; reward {group.reward_mean:.2f} on average, standard deviation {group.reward_std:.2f}")
    )
    if not group.informative:
        console.print(Text("all rewards are equal, so every A is 0 and nothing conflicts"))
    if shown := pulls_text(group, recipe):
        console.print(Text(shown))
    for completion in group.completions:
        console.print()
        console.print(Text(headline(completion, recipe).replace("\n", f"\n{_INDENT}")))
        for line in token_lines(completion, max(20, console.width - len(_INDENT))):
            console.print(line)


def pulls_text(group: InspectedGroup, recipe: Recipe) -> str:
    """One line: the shares of the group's gradient by place, up and down; empty where there is none to show."""
    if recipe.objective.compat == "released_code":
        return ""  # its tokens have a further divisor
    words = {"prefix": "shared start", "suffix": "shared end", "eos": "end token", "middle": "middle"}
    parts = [f"{words[place]} +{up:.0%} -{down:.0%}" for place, (up, down) in group.pulls(recipe).items()]
    return "gradient (up, down): " + ", ".join(parts) if parts else ""


def headline(completion: InspectedCompletion, recipe: Recipe) -> str:
    """Two lines: reward, its parts and the answer; then advantage, entropy, delta, coefficient, lengths."""
    parts = ", ".join(f"{name} {score:g}" for name, score in completion.rewards.items())
    answer = "no answer in tags" if completion.extracted is None else f"answer {completion.extracted!r}"
    return (
        f"#{completion.number}  reward {completion.reward:g} ({parts}), {answer}"
        f"{', truncated' if completion.truncated else ''}\n"
        f"A {completion.advantage:+.3f}, <H> {completion.mean_entropy:.4f}, delta {int(completion.kept)}, "
        f"delta (A - gamma <H>) {completion.coefficient(recipe):+.3f}; {len(completion.tokens)} tokens, "
        f"{completion.forward_length} forward, {completion.backward_length} backward"
    )


def token_lines(completion: InspectedCompletion, width: int) -> Iterator[Text]:
    """Tokens in rows of at most `width` cells, each row followed by its marks where there are any."""
    row, marks, used = Text(_INDENT), Text(_INDENT), 0
    for token in completion.tokens:
        shown = visible(token.text)
        cells = cell_len(shown)
        if used and used + cells > width:
            yield from _row(row, marks)
            row, marks, used = Text(_INDENT), Text(_INDENT), 0
        row.append(shown, style_of(token))
        marks.append(token.mark.ljust(cells, token.mark))
        used += cells
        if "\n" in token.text:
            yield from _row(row, marks)
            row, marks, used = Text(_INDENT), Text(_INDENT), 0
    if used:
        yield from _row(row, marks)


def _row(row: Text, marks: Text) -> Iterator[Text]:
    yield row
    if marks.plain.strip():
        marks.rstrip()
        yield marks


def style_of(token: Token) -> str:
    """The colour of a token's lambda."""
    return LESS if token.weight < 1 else MORE if token.weight > 1 else SAME


def visible(text: str) -> str:
    """A token's text on one line: line breaks and other control characters as signs, never empty."""
    named = {"\n": "⏎", "\t": "⇥", "\r": "␍", "\x1b": "␛"}
    shown = "".join(named.get(character, character if character.isprintable() else "·") for character in text)
    return shown or "∅"


def print_tokens(console: Console, group: InspectedGroup, completion: InspectedCompletion, recipe: Recipe) -> None:
    """A table of a completion's tokens: every figure, and why lambda is what it is."""
    console.print(Text(headline(completion, recipe)))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("place", "token", "span", "lambda", "ln p", "entropy", "weight", "why"):
        left = name in ("token", "span", "why")
        table.add_column(name, justify="left" if left else "right", overflow="fold", no_wrap=name != "why")
    for place, token in enumerate(completion.tokens):
        figures = (f"{token.weight:g}", f"{token.logprob:.4f}", f"{token.entropy:.4f}")
        table.add_row(
            str(place), Text(visible(token.text), style_of(token)), token.mark, *figures,
            f"{completion.token_weight(token, recipe):+.5f}", Text(group.why(completion, place, recipe)),
        )  # fmt: skip
    console.print(table)
