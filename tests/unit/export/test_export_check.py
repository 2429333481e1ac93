"""The check finds what it is for: an adapter that was lost or counted twice, also where that changes little."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from exported_runs import moved_run, recipe_on
from jobs import subject_of
from peft.tuners.lora import LoraLayer
from policy_contract import save_model

from gtpo_cli.data import PromptEncoder
from gtpo_cli.errors import ExportError
from gtpo_cli.evaluation.loading import load_frozen
from gtpo_cli.policy.loading import ROUNDING
from gtpo_cli.runs.checkpoints import choose_checkpoint
from gtpo_cli.runs.folder import RunFolder
from gtpo_cli.tools.export.check import (
    AnswerLogprobs,
    Reference,
    compare,
    greedy_answers,
    measure,
    measure_both,
    require,
    sample_questions,
)


@pytest.fixture(scope="module", params=[0.1, 0.003], ids=["trained much", "trained little"])
def policy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("check")
    run = moved_run(folder / "run", recipe_on(save_model(folder / "base")), scale=request.param)
    return load_frozen(subject_of(run.recipe(), choose_checkpoint(run), streaming=True))


def answers_of(policy: Any) -> Any:
    encoder = PromptEncoder(policy.tokenizer, None)
    return greedy_answers(policy, encoder, ["3+8-2+5", "1+1+1+1", "9-9+9-1"], max_tokens=30)


def test_answers_are_greedy_and_measured_as_the_policy_measures(policy: Any) -> None:
    answers = answers_of(policy)
    found = measure(policy.model, answers)
    lengths = [len(answer.completion_ids) for answer in answers]
    assert sum(lengths) == len(found.logprobs_N)
    assert all(1 <= length <= 30 for length in lengths)
    assert found.likeliest_N.tolist() == [token for answer in answers for token in answer.completion_ids]
    row = torch.tensor([[*answers[0].prompt_ids, *answers[0].completion_ids]])
    logits = policy.model(input_ids=row).logits[0].detach().double()
    start = len(answers[0].prompt_ids)
    by_hand = [float(logits[start - 1 + n].log_softmax(0)[token]) for n, token in enumerate(answers[0].completion_ids)]
    assert found.logprobs_N[: lengths[0]].tolist() == pytest.approx(by_hand, abs=1e-5)


def test_the_whole_adapter_passes_and_a_lost_or_doubled_one_does_not(policy: Any) -> None:
    answers = answers_of(policy)
    reference = measure_both(policy.model, answers)
    assert reference.untrained is not None
    whole = compare(reference, reference.trained)
    assert (whole.mean, whole.largest, whole.kept) == (0.0, 0.0, pytest.approx(1.0))
    require(whole, bound=ROUNDING["float32"], where="here", remedy="none")

    lost = compare(reference, reference.untrained)
    assert lost.kept == pytest.approx(0.0)
    assert lost.effect == pytest.approx(lost.mean, rel=1e-5)
    with pytest.raises(ExportError, match=r"here: not exported.*do this"):
        require(lost, bound=ROUNDING["bfloat16"], where="here", remedy="do this")

    layers = [module for module in policy.model.modules() if isinstance(module, LoraLayer)]
    for layer in layers:
        layer.scale_layer(2.0)
    doubled = compare(reference, measure(policy.model, answers))
    for layer in layers:
        layer.unscale_layer(2.0)
    with pytest.raises(ExportError, match="not exported"):
        require(doubled, bound=ROUNDING["bfloat16"], where="here", remedy="none")


def test_what_training_did_is_told_from_rounding() -> None:
    """By hand: untrained 0, trained (1, -1, 0, 0) / 100, the export off by 0.001 where training did nothing."""
    zeros, ids = torch.zeros(4), torch.zeros(4, dtype=torch.long)
    effect, error = torch.tensor([0.01, -0.01, 0.0, 0.0]), torch.tensor([0.0, 0.0, 0.001, -0.001])
    reference = Reference(AnswerLogprobs(effect, ids), AnswerLogprobs(zeros, ids))
    found = compare(reference, AnswerLogprobs(effect + error, ids))
    assert found.kept == pytest.approx(1.0)
    assert found.effect == pytest.approx(0.005)
    # residual mean square 0.001^2 / 2, power 2 * 0.01^2
    assert found.kept_error == pytest.approx((0.001**2 / 2 / 0.0002) ** 0.5, rel=1e-4)
    half = compare(reference, AnswerLogprobs(effect / 2 + error, ids))
    assert half.kept == pytest.approx(0.5)
    with pytest.raises(ExportError, match="it does not contain the adapter as trained"):
        require(half, bound=0.1, where="here", remedy="none")
    require(replace(half, kept_error=0.2), bound=0.1, where="here", remedy="none")  # too noisy to tell


def test_questions_come_from_the_newest_step_that_can_be_read(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert len(sample_questions(run)) == 8  # of the built-in task
    run.samples.mkdir()
    (run.samples / "step-000001.jsonl").write_text('{"question": "old"}\n{"question": "old"}\n{"question": "two"}\n')
    (run.samples / "step-000002.jsonl").write_text('{"question": "new"}\n{"ques')
    assert sample_questions(run) == ("old", "two")
    (run.samples / "step-000002.jsonl").write_text('{"question": "new"}\n')
    assert sample_questions(run) == ("new",)
