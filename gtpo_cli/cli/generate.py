"""gtpo generate"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gtpo_cli.cli.options import (
    CheckpointOption,
    TargetArgument,
    TrustOption,
    TrustRunOption,
    base_words,
    find_model,
    find_trained,
    names_run,
)
from gtpo_cli.cli.printing import print_answer, print_verdict, say, suggest
from gtpo_cli.errors import GenerationError, RewardError
from gtpo_cli.recipe import Recipe
from gtpo_cli.runs.folder import Trust
from gtpo_cli.terminal.signals import Waiting
from gtpo_cli.terminal.streams import print_words
from gtpo_cli.text import counted
from gtpo_cli.types import Completion, Problem

if TYPE_CHECKING:
    from gtpo_cli.evaluation.session import Session
    from gtpo_cli.runs.checkpoints import Checkpoint

    Judge = Callable[[Completion, Problem], bool]

_LONGEST_WORD = 20  # characters; longer words are printed unfinished, for languages without spaces
_NAME = re.compile(r"[\w.:~/\\-]+")  # may be a missing folder or a hub id; anything else is a question


def generate(
    target: TargetArgument = None,
    question: Annotated[
        str | None, typer.Argument(metavar="QUESTION", help="Without it, questions are read from the keyboard.")
    ] = None,
    gold: Annotated[
        str | None, typer.Option("--gold", metavar="ANSWER", help="The right answer: shows verdict and reward.")
    ] = None,
    checkpoint: CheckpointOption = "best",
    base: Annotated[bool, typer.Option("--base", help="Ask the run's untrained model.")] = False,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, max=100.0, help="Softmax temperature; 0 = --greedy.")
    ] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always take the likeliest token.")] = False,
    top_p: Annotated[float | None, typer.Option(min=0.0, max=1.0, help="Nucleus sampling; 1 = off.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="An answer is cut off at this length.")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="The same seed repeats the answers; default: the recipe's.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Answers to each question.")] = 1,
    trust_remote_code: TrustOption = False,
    trust_run_code: TrustRunOption = False,
) -> None:
    """Ask a model and watch it answer: streamed text, the answer that the rewards extract, and with --gold its reward.

    RUN comes before QUESTION. Without QUESTION, questions are read one by one (from a pipe: one per line). Without RUN,
    the latest run is asked. Settings without an option come from the recipe's evaluation section.

    gtpo generate runs/my-run "3+8-2+5" --gold 14

    gtpo generate
    """
    if gold is not None and question is None:
        raise typer.BadParameter("--gold is the answer to a QUESTION: gtpo generate RUN QUESTION --gold ANSWER")
    if question is not None and not question.strip():
        raise typer.BadParameter("the question is empty")
    if greedy and (temperature or top_p is not None):
        raise typer.BadParameter("--greedy takes the likeliest token; leave out --temperature and --top-p")
    if base and checkpoint != "best":
        raise typer.BadParameter("--base asks the untrained model, --checkpoint a trained one; leave one of them out")
    if top_p == 0.0:
        raise typer.BadParameter("--top-p 0 leaves no token; use --greedy")
    from gtpo_cli.evaluation.loading import Subject
    from gtpo_cli.evaluation.session import Session
    from gtpo_cli.machine.resolve import measuring_job
    from gtpo_cli.policy.sampler import SamplingParams

    recipe, chosen, adapter, words = _find_model(
        target, checkpoint, base=base, trust=Trust(trust_remote_code, trust_run_code)
    )
    settings = recipe.evaluation
    params = SamplingParams(
        temperature=0.0 if greedy else settings.temperature if temperature is None else temperature,
        top_p=top_p or settings.top_p,
        max_completion_tokens=max_tokens or settings.max_completion_tokens,
    )
    how = "greedy" if params.temperature == 0.0 else f"temperature {params.temperature:g}, top-p {params.top_p:g}"
    with contextlib.ExitStack() as stack:
        judge = _judge(question, gold, recipe, stack)
        print(f"{words}; {how}, at most {counted(params.max_completion_tokens, 'token')}", flush=True)
        with Waiting(say, f"loading {recipe.model.name}"):
            job = measuring_job(recipe, chosen, temperature=params.temperature, adapter=adapter, streaming=True)
            session = Session(Subject(words, job, chosen), params, seed=recipe.seed if seed is None else seed)
        answerer = _Answerer(session, recipe, params.max_completion_tokens, count, judge)
        if question is None:
            _answer_questions(answerer)
        else:
            answerer.answer(question)
    suggest("recipes", "list")


# -- model and questions ----------------------------------------------------------------------------------------------


def _find_model(
    target: str | None, which: str, *, base: bool, trust: Trust
) -> tuple[Recipe, Checkpoint | None, Path | None, str]:
    """Return a recipe, a checkpoint of its run (None for the untrained model), the folder of an adapter without a run,
    and words for the model."""
    if target is None or names_run(target):
        run, recipe, chosen = find_trained(target, None if base else which, what="generate", trust=trust)
        if chosen is None:
            from gtpo_cli.training.start import start_of

            return recipe, start_of(recipe.model, run), None, base_words(recipe.model)
        return recipe, chosen, None, f"{run.path}, step {chosen.step} of {recipe.model.before_training}"
    if not Path(target).exists() and not _NAME.fullmatch(target):
        raise typer.BadParameter(f'name the run before the question: gtpo generate RUN "{target}"')
    if which != "best":
        raise typer.BadParameter(f"{target} is not a run folder: only a run has checkpoints")
    trusted = ["model.trust_remote_code=true"] * (trust is not None and trust.remote_code)
    recipe, chosen, words = find_model(target, overrides=trusted)
    adapter = None if chosen is None else chosen.model
    if base and adapter:
        return recipe, None, adapter, f"{recipe.model.name}, untrained"
    return recipe, chosen, adapter, words


def _judge(question: str | None, gold: str | None, recipe: Recipe, stack: contextlib.ExitStack) -> Judge | None:
    """Return what prints the verdict, if there is a gold answer. Called before the model is loaded, to fail early."""
    if question is None or gold is None:
        return None
    from gtpo_cli.data import wrap_solution
    from gtpo_cli.rewards import Scorer, gold_is_usable, try_rewards

    if not recipe.rewards.takes_any_gold and not gold_is_usable(gold):
        raise typer.BadParameter(f"--gold {gold!r}: is not an answer that can be compared")
    rewards, asked = recipe.rewards, Problem("question", question, gold, source="--gold")
    try:
        right = wrap_solution("", gold, tags=rewards.tags)
        try_rewards(rewards, asked, Completion((0,) * len(right), (0.0,) * len(right), "stop", right))
    except RewardError as error:  # one may need columns of the data, which a typed question does not have
        print(f"your own rewards are left out: {error}")
        rewards = rewards.model_copy(update={"plugins": ()})
    scorer = stack.enter_context(Scorer(rewards, longest=recipe.rollout.max_completion_tokens))

    def judge(completion: Completion, problem: Problem) -> bool:
        problem = replace(problem, gold=gold)
        (verdict,) = scorer.score(problem, [completion])
        print_verdict(problem, verdict, rewards)
        return verdict.correct

    return judge


def _answer_questions(answerer: _Answerer) -> None:
    interactive = sys.stdin.isatty()
    if interactive:
        print("an empty line or Ctrl-D ends; Ctrl-C stops an answer")
    for question in _typed() if interactive else _piped():
        try:
            answerer.answer(question)
        except GenerationError as error:  # the next question may be shorter
            print(f"error: {error}", file=sys.stderr)
        except KeyboardInterrupt:
            if not interactive:
                raise
            print("stopped")


def _typed() -> Iterator[str]:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (line editing and history of input)
    while True:
        try:
            question = input("question> ").strip()
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            continue
        if not question:
            return
        yield question


def _piped() -> Iterator[str]:
    for line in sys.stdin.buffer:
        if question := line.decode(errors="replace").strip():
            print(f"question> {question}")
            yield question


# -- answers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Answerer:
    """Prints `count` answers of a session to each question, with verdicts if there is a judge."""

    session: Session
    recipe: Recipe
    max_tokens: int
    count: int
    judge: Judge | None

    def answer(self, question: str) -> None:
        """Answer a question. Raises GenerationError if it is too long."""
        right = 0
        for number in range(1, self.count + 1):
            if self.count > 1:
                print(f"-- answer {number} of {self.count}")
            completion, problem = _show(self.session.answer(question)), self.session.problem(question)
            print_answer(
                completion, self.recipe, opened=problem.opened, most=self.max_tokens, limit="--max-tokens",
                context=self.session.context,
            )  # fmt: skip
            if self.judge is not None:
                right += self.judge(completion, problem)
        if self.judge is not None and self.count > 1:
            print(f"{right} of {self.count} correct")


def _show(stream: Generator[str, None, Completion]) -> Completion:
    """Print words as they come. When interrupted, end the line and drop the unfinished word."""
    column, word = 0, ""
    try:
        while True:
            *words, word = re.split(r"(?<!\s)(?=\s)", word + next(stream))  # the next piece may continue the last word
            if len(word) > _LONGEST_WORD or not sys.stdout.isatty():
                words, word = [*words, word], ""
            column = print_words("".join(words), column)
    except StopIteration as end:
        print_words(word, column)
        completion: Completion = end.value
        return completion
    finally:
        print(flush=True)
