"""docs/worked_example.md is true: gtpo's functions give every number of its tables."""
# ruff: noqa: RUF001 (column titles as the page prints them)

import re
from pathlib import Path

import pytest
import torch
from eq11 import gtpo_loss

from gtpo_cli.kernels import token_logprobs_and_entropy
from gtpo_cli.objective import (
    coefficients,
    conflict_spans,
    conflict_weights,
    group_advantages,
    keep_mask,
    mean_entropy,
    policy_loss,
)
from gtpo_cli.rewards import accuracy_reward, format_reward

PAGE = (Path(__file__).parents[3] / "docs" / "worked_example.md").read_text(encoding="utf-8")
GROUP = ["o1", "o2", "o3", "o4"]
GAMMA = 0.1
ROUNDING = 0.5001e-4  # four decimals


def table(section: int) -> list[list[dict[str, str]]]:
    """Tables of a section: a list of rows, each a dictionary from column title to cell."""
    text = re.search(rf"^## {section}\. .*?(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL).group()
    tables = []
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        header, _, *rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in block.splitlines()]
        tables.append([dict(zip(header, row, strict=True)) for row in rows])
    return tables


def number(cell: str) -> float:
    return float(cell.replace("−", "-"))


def numbers(cell: str) -> list[float]:
    return [number(part) for part in cell.strip("`").split()]


def digits(cell: str) -> list[float]:
    return [float(digit) for digit in cell.strip("`")]


def column(rows: list[dict[str, str]], title: str) -> list[float]:
    return [number(row[title]) for row in rows]


def close(values: object) -> object:
    return pytest.approx(values, rel=0, abs=ROUNDING)


@pytest.fixture(scope="module")
def code() -> dict:
    """The group of the page, from its tokens and entropies to the loss."""
    group = [row["tokens"].strip("`").split() for row in table(1)[0]]
    vocabulary = sorted({token for completion in group for token in completion})
    T = max(len(completion) for completion in group)
    ids = torch.tensor([[[vocabulary.index(token) for token in o] + [0] * (T - len(o)) for o in group]])
    mask = torch.tensor([[[True] * len(o) + [False] * (T - len(o)) for o in group]])
    rewards = torch.tensor([[20.0, 10.0, 1.0, 1.0]])
    entropies = [numbers(row["H of each token"]) for row in table(4)[0]]
    entropy = torch.tensor([[row + [0.0] * (T - len(row)) for row in entropies]])
    logprobs = torch.full((1, 4, T), -1.0, requires_grad=True)  # any value

    A = group_advantages(rewards)
    spans = conflict_spans(ids, mask, A)
    M = spans.forward_BGT | spans.backward_BGT
    weights = conflict_weights(M, A)
    mean = mean_entropy(entropy, mask)
    keep = keep_mask(mean, initial_entropy=0.40)
    c = coefficients(A, mean, keep, weights, mask, entropy_coef=GAMMA)
    result = policy_loss(logprobs, c, mask)
    result.loss.backward()
    return locals() | dict(zip(GROUP, group, strict=True))


def real(code: dict, name_or_tensor: object) -> list[list[float]]:
    """Rows of a (1, 4, T) tensor without padding."""
    values = code[name_or_tensor] if isinstance(name_or_tensor, str) else name_or_tensor
    return [values[0, i, : len(code[name])].tolist() for i, name in enumerate(GROUP)]


def test_completions(code):
    (rows,) = table(1)
    assert [row["completion"] for row in rows] == GROUP
    assert [row["tokens"].strip("`").split() for row in rows] == [code[name] for name in GROUP]
    assert [int(row["length"]) for row in rows] == code["mask"].sum(-1)[0].tolist()


def test_rewards(code):
    (rows,) = table(2)
    texts = [" ".join(code[name][:-1]) for name in GROUP]
    assert column(rows, "format") == [format_reward(text) for text in texts]
    assert column(rows, "accuracy") == [accuracy_reward(text, "5") for text in texts]
    assert column(rows, "R") == code["rewards"][0].tolist()
    assert column(rows, "R") == [f + a for f, a in zip(column(rows, "format"), column(rows, "accuracy"), strict=True)]


def test_advantages(code):
    (rows,) = table(2)
    assert column(rows, "R − mean") == group_advantages(code["rewards"], scale="none")[0].tolist()
    assert column(rows, "A") == close(code["A"][0].tolist())
    assert code["rewards"].std().item() == close(9.0554)
    assert "√82 = 9.0554" in PAGE


def test_masks_and_weights(code):
    (rows,) = table(3)
    spans = code["spans"]
    for title, found in [("forward", spans.forward_BGT), ("backward", spans.backward_BGT), ("M", code["M"])]:
        assert [digits(row[title]) for row in rows] == real(code, found), title
    assert [digits(row["λ"]) for row in rows] == real(code, "weights")
    assert column(rows, "sum of λ") == [sum(row) for row in real(code, "weights")]


def test_entropy(code):
    (rows,) = table(4)
    p = torch.tensor([0.7, 0.2, 0.1])
    # An output layer that holds ln p, under a hidden state of 1
    logprobs, entropy = token_logprobs_and_entropy(torch.ones(3, 1), p.log()[:, None], torch.arange(3))
    assert logprobs.tolist() == close(p.log().tolist())
    assert entropy.tolist() == close([0.8018] * 3)
    assert "p = 0.7, 0.2 and 0.1 give H = 0.8018" in PAGE

    assert column(rows, "⟨H⟩") == close(code["mean"][0].tolist())
    assert column(rows, "δ") == code["keep"][0].tolist()


def expected_coefficients(code: dict) -> list[float]:
    return (code["keep"] * (code["A"] - GAMMA * code["mean"]))[0].tolist()


def test_coefficients(code):
    rows, _ = table(5)
    assert column(rows, "A") == close(code["A"][0].tolist())
    assert column(rows, "0.1 ⟨H⟩") == close((GAMMA * code["mean"])[0].tolist())
    assert column(rows, "δ") == code["keep"][0].tolist()
    assert column(rows, "c") == close(expected_coefficients(code))


def test_loss_and_its_gradient(code):
    rows, derivatives = table(5)
    terms = [c * sum(row) / len(row) for c, row in zip(expected_coefficients(code), real(code, "weights"), strict=True)]
    assert column(rows, "c") == close(expected_coefficients(code))
    assert column(rows, "sum of λ") == [sum(row) for row in real(code, "weights")]
    assert column(rows, "length") == [len(row) for row in real(code, "weights")]
    assert column(rows, "c × sum / length") == close(terms)
    loss = number(re.search(r"the loss is \*\*(.*?)\*\*", PAGE).group(1))
    assert code["result"].loss.item() == close(loss)
    assert -sum(terms) / 4 == close(loss)

    printed = {row["completion"]: [number(row[title]) for title in list(row)[1:]] for row in derivatives}
    for name, gradient, row in zip(GROUP, real(code, code["logprobs"].grad), real(code, "weights"), strict=True):
        if name in printed:
            assert gradient == close([printed[name][int(weight)] for weight in row])
        else:
            assert not any(gradient)  # "nothing else moves"


def test_other_objectives(code):
    losses = {"gtpo": -0.6183, "gtpo without the filter": -0.6686, "grpo": 0.0}
    arguments = {
        "advantages_BG": code["A"],
        "mean_entropy_BG": code["mean"],
        "keep_BG": code["keep"],
        "weights_BGT": code["weights"],
        "completion_mask_BGT": code["mask"],
    }
    everyone = torch.ones_like(code["keep"])
    ones = torch.ones_like(code["weights"])
    variants = {
        "gtpo": {"entropy_coef": GAMMA},
        "gtpo without the filter": {"entropy_coef": GAMMA, "keep_BG": everyone},
        "grpo": {"keep_BG": everyone, "weights_BGT": ones},
    }
    assert losses.keys() == variants.keys()
    for name, changes in variants.items():
        assert gtpo_loss(code["logprobs"], **(arguments | changes)).loss.item() == close(losses[name]), name
