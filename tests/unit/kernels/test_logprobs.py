"""Log-probabilities and entropies without the logits: against full logits in float64, loops, and gradcheck."""

import math

import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import checked
from torch import Tensor
from watch import LargestTensor

from gtpo_cli.kernels import logprobs as kernel
from gtpo_cli.kernels import logprobs as module
from gtpo_cli.kernels import token_logprobs_and_entropy


def random_case(N: int, V: int, H: int, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """Hidden states, output layer, sampled tokens and a gradient to send back; logits have a deviation of about 3."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(N, H, generator=generator, dtype=dtype)
    lm_head = torch.randn(V, H, generator=generator, dtype=dtype) * (3 / math.sqrt(H))
    ids = torch.randint(0, V, (N,), generator=generator)
    return hidden, lm_head, ids, torch.randn(N, generator=generator, dtype=dtype)


def from_full_logits(hidden: Tensor, lm_head: Tensor, ids: Tensor, *, bias: Tensor | None = None, temperature=1.0):
    """The textbook in float64: (logprobs with gradient, entropy)."""
    logits = hidden.double() @ lm_head.double().T
    if bias is not None:
        logits = logits + bias.double()
    logp = torch.log_softmax(logits / temperature, dim=-1)
    return logp.gather(1, ids.long()[:, None])[:, 0], -(logp.exp() * logp).sum(dim=-1).detach()


def gradients(function, *leaves: Tensor, send: Tensor):
    leaves = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    return torch.autograd.grad(function(*leaves), leaves, send)


def relative_error(found: Tensor, truth: Tensor) -> float:
    return float((found.double() - truth).norm() / truth.norm())


# -- by hand ----------------------------------------------------------------------------------------------------------


def test_a_distribution_by_hand():
    p = [0.7, 0.2, 0.1]
    lm_head = torch.tensor(p).log()[:, None]  # with hidden = 1 the logits are ln p
    logprobs, entropy = token_logprobs_and_entropy(torch.ones(3, 1), lm_head, torch.tensor([0, 1, 2]))
    torch.testing.assert_close(logprobs, torch.tensor(p).log(), rtol=1e-6, atol=0)
    # 0.7 * 0.356675 + 0.2 * 1.609438 + 0.1 * 2.302585
    torch.testing.assert_close(entropy, torch.full((3,), 0.8018186), rtol=1e-6, atol=0)


def test_gradient_by_hand():
    # Two tokens, logits 0 and 0, so p = 1/2 each. d logp_0 / dh = W_0 - (W_0 + W_1)/2 = (W_0 - W_1)/2.
    hidden = torch.zeros(1, 2, requires_grad=True)
    lm_head = torch.tensor([[3.0, 1.0], [1.0, -1.0]])
    token_logprobs_and_entropy(hidden, lm_head, torch.tensor([0]))[0].sum().backward()
    assert hidden.grad.tolist() == [[1.0, 1.0]]


# -- against loops and full logits ------------------------------------------------------------------------------------

logit = st.floats(-60, 60, width=32)


@checked
@given(st.data(), st.integers(1, 5), st.integers(1, 6), st.sampled_from([0.5, 1.0, 1.7]), st.integers(1, 4))
def test_equals_the_loop(data, N, V, temperature, vocab_block):
    rows = data.draw(st.lists(st.lists(logit, min_size=V, max_size=V), min_size=N, max_size=N))
    ids = data.draw(st.lists(st.integers(0, V - 1), min_size=N, max_size=N))
    # Hidden states that pick a row of an output layer holding the logits themselves.
    hidden, lm_head = torch.eye(N, dtype=torch.float64), torch.tensor(rows, dtype=torch.float64).T
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_VOCAB_BLOCK", vocab_block)
        logprobs, entropy = token_logprobs_and_entropy(hidden, lm_head, torch.tensor(ids), temperature=temperature)
    for t, (row, token) in enumerate(zip(rows, ids, strict=True)):
        scaled = [value / temperature for value in row]
        expected = scaled[token] - max(scaled) - math.log(math.fsum(math.exp(z - max(scaled)) for z in scaled))
        assert logprobs[t].item() == pytest.approx(expected, rel=1e-12, abs=1e-13)
        assert entropy[t].item() == pytest.approx(
            oracles.entropy(oracles.softmax(row, temperature)), rel=1e-9, abs=1e-13
        )


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_float32_against_full_logits_in_float64(with_bias, temperature):
    hidden, lm_head, ids, send = random_case(96, 5000, 64)
    bias = torch.randn(5000, generator=torch.Generator().manual_seed(1)) if with_bias else None
    logprobs, entropy = token_logprobs_and_entropy(hidden, lm_head, ids, bias_V=bias, temperature=temperature)
    assert logprobs.dtype == entropy.dtype == torch.float32
    expected, expected_entropy = from_full_logits(hidden, lm_head, ids, bias=bias, temperature=temperature)
    torch.testing.assert_close(logprobs.double(), expected, rtol=1e-6, atol=0)
    # The entropy of a nearly certain token is as sensitive to the rounding of logits as 1 - p is: hence 2e-6 nats.
    torch.testing.assert_close(entropy.double(), expected_entropy, rtol=1e-5, atol=2e-6)

    leaves = [hidden, lm_head] + ([bias] if bias is not None else [])
    found = gradients(
        lambda h, w, b=None: token_logprobs_and_entropy(h, w, ids, bias_V=b, temperature=temperature)[0],
        *leaves,
        send=send,
    )
    truth = gradients(
        lambda h, w, b=None: from_full_logits(h, w, ids, bias=b, temperature=temperature)[0],
        *[leaf.double() for leaf in leaves],
        send=send.double(),
    )
    for name, ours, exact in zip(["hidden", "lm_head", "bias"], found, truth, strict=False):
        assert ours.dtype == torch.float32
        assert relative_error(ours, exact) <= 2e-6, name


@pytest.mark.parametrize("temperature", [1.0, 0.3, 50.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_bias_of_minus_infinity_takes_tokens_out_of_the_vocabulary(temperature, dtype):
    hidden, lm_head, ids, send = random_case(40, 3000, 32, dtype=dtype)
    out = torch.zeros(3000, dtype=torch.bool)
    out[:1030] = out[2999] = out[1500:1600] = True  # more than a whole block of the walk
    ids = (~out).nonzero()[:, 0][ids % int((~out).sum())]
    bias = torch.randn(3000, dtype=dtype).masked_fill(out, -torch.inf)
    logprobs, entropy = token_logprobs_and_entropy(hidden, lm_head, ids, bias_V=bias, temperature=temperature)
    kept_ids = (~out).cumsum(0)[ids] - 1
    left = {"bias": bias[~out], "temperature": temperature}
    expected, expected_entropy = from_full_logits(hidden, lm_head[~out], kept_ids, **left)
    torch.testing.assert_close(logprobs.double(), expected, rtol=1e-6, atol=1e-6)
    largest = float((hidden @ lm_head.T + bias)[:, ~out].abs().max()) / temperature
    near = {"rtol": 1e-5, "atol": max(2e-6, 2**-23 * largest)}  # the entropy is a difference of numbers of this size
    torch.testing.assert_close(entropy.double(), expected_entropy, **near)
    options = {"bias_V": bias, "temperature": temperature}
    found = gradients(lambda h, w: token_logprobs_and_entropy(h, w, ids, **options)[0], hidden, lm_head, send=send)
    truth = gradients(
        lambda h, w: from_full_logits(h, w, kept_ids, **left)[0], hidden.double(), lm_head[~out].double(),
        send=send.double(),
    )  # fmt: skip
    assert relative_error(found[0], truth[0]) <= 3e-6
    assert relative_error(found[1][~out], truth[1]) <= 3e-6
    assert not bool(found[1][out].any())
    impossible, entropy = token_logprobs_and_entropy(hidden[:1], lm_head, torch.tensor([7]), **options)
    assert impossible.tolist() == [-math.inf]
    torch.testing.assert_close(entropy.double(), expected_entropy[:1], **near)


def test_bfloat16_products_are_as_exact_as_the_models_own_logits(monkeypatch):
    """On a CPU that multiplies bfloat16, logits are rounded to it, as a bfloat16 model rounds them; sums are not."""
    monkeypatch.setattr(kernel, "_multiplies_bfloat16", lambda *_: True)
    hidden, lm_head, ids, send = random_case(256, 5000, 64)
    hidden, lm_head = hidden.bfloat16(), lm_head.bfloat16()

    def from_rounded_logits(h):
        logp = torch.log_softmax((h @ lm_head.T).float() / 0.9, dim=-1)
        return logp.gather(1, ids[:, None])[:, 0], -(logp.exp() * logp).sum(dim=-1)

    truth, true_entropy = from_full_logits(hidden, lm_head, ids, temperature=0.9)
    ours, theirs = token_logprobs_and_entropy(hidden, lm_head, ids, temperature=0.9), from_rounded_logits(hidden)
    for exact, found, model in zip((truth, true_entropy), ours, theirs, strict=True):
        torch.testing.assert_close(found, model, rtol=1e-5, atol=1e-5)  # the same logits, to the bit
        assert 1e-6 < relative_error(model, exact) < 1e-2
    (exact,) = gradients(lambda h: from_full_logits(h, lm_head, ids, temperature=0.9)[0], hidden.double(),
                         send=send.double())  # fmt: skip
    found, model = (
        gradients(path, hidden, send=send)[0]
        for path in (
            lambda h: token_logprobs_and_entropy(h, lm_head, ids, temperature=0.9)[0],
            lambda h: from_rounded_logits(h)[0],
        )
    )
    assert found.dtype == torch.bfloat16
    assert relative_error(found, exact) <= 1.1 * relative_error(model, exact)


# -- very confident tokens --------------------------------------------------------------------------------------------


def confident_case(H: int = 64, V: int = 4000) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states along the sampled token's output row, as long as it takes for p from 0.5 to 1 - 1e-12."""
    targets = 1.0 - torch.logspace(math.log10(0.5), -12, 25, dtype=torch.float64)
    _, lm_head, ids, send = random_case(len(targets), V, H, seed=3)
    lengths = []
    for target, token in zip(targets.tolist(), ids.tolist(), strict=True):
        low, high = 0.0, 100.0
        for _ in range(60):
            middle = (low + high) / 2
            z = lm_head.double() @ lm_head[token].double() * middle
            others = torch.cat([z[:token], z[token + 1 :]]).logsumexp(0)
            low, high = (middle, high) if torch.sigmoid(others - z[token]) > 1.0 - target else (low, middle)
        lengths.append(low)
    return lm_head[ids] * torch.tensor(lengths)[:, None], lm_head, ids, send


def exact_for_confident(hidden: Tensor, lm_head: Tensor, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """float64 with the sampled token kept apart: (logp, entropy, d logp / d hidden).

    log_softmax itself, even in float64, knows 1 - p of a token at p = 1 - 1e-12 to four digits only.
    """
    hidden, lm_head = hidden.double(), lm_head.double()
    z = hidden @ lm_head.T
    z_token = z.gather(1, ids[:, None])
    gap = z.scatter(1, ids[:, None], -math.inf).logsumexp(1, keepdim=True) - z_token
    logp, one_minus_p = -torch.nn.functional.softplus(gap, threshold=math.inf), torch.sigmoid(gap)
    others_logp = (z - z_token + logp).scatter(1, ids[:, None], -math.inf)
    others_p = others_logp.exp()
    entropy = -(others_p * others_logp.nan_to_num(neginf=0.0)).sum(1) - ((1 - one_minus_p) * logp)[:, 0]
    return logp[:, 0], entropy, one_minus_p * lm_head[ids] - others_p @ lm_head


def test_confident_tokens_keep_their_gradient_and_their_entropy():
    hidden, lm_head, ids, send = confident_case()
    exact_logp, exact_entropy, exact_gradient = exact_for_confident(hidden, lm_head, ids)
    probabilities = -torch.expm1(exact_logp)
    assert 0.45 < probabilities[0] < 0.55
    assert 0.5e-12 < probabilities[-1] < 2e-12

    logprobs, entropy = token_logprobs_and_entropy(hidden, lm_head, ids)
    (found,) = gradients(lambda h: token_logprobs_and_entropy(h, lm_head, ids)[0], hidden, send=send)
    truth = exact_gradient * send.double()[:, None]
    rows = (found.double() - truth).norm(dim=1) / truth.norm(dim=1)
    assert float(rows.max()) <= 1e-4
    assert relative_error(found, truth) <= 2e-6
    assert float(((entropy.double() - exact_entropy) / exact_entropy).abs().max()) <= 1e-4
    assert float(((logprobs.double() - exact_logp) / exact_logp).abs().max()) <= 1e-4


def test_confident_tokens_keep_the_gradient_of_the_output_layer():
    hidden, lm_head, ids, _ = confident_case()
    exact_logp = exact_for_confident(hidden, lm_head, ids)[0]
    for t in range(0, len(ids), 6):  # one token at a time: its row is (1 - p) h, with no other token's share
        (found,) = gradients(
            lambda w, t=t: token_logprobs_and_entropy(hidden[t : t + 1], w, ids[t : t + 1])[0],
            lm_head,
            send=torch.ones(1),
        )
        assert relative_error(found[ids[t]], -torch.expm1(exact_logp[t]) * hidden[t].double()) <= 1e-4


def test_certain_and_impossible_tokens_are_finite():
    hidden = torch.tensor([[1.0], [-1.0]], requires_grad=True)
    lm_head = torch.tensor([[5e3], [0.0], [-5e3]])  # token 0 has probability 1 in the first row, 0 in the second
    logprobs, entropy = token_logprobs_and_entropy(hidden, lm_head, torch.tensor([0, 0]))
    logprobs.sum().backward()
    assert logprobs.tolist() == [0.0, -1e4]
    assert entropy.tolist() == [0.0, 0.0]
    assert hidden.grad.tolist() == [[0.0], [1e4]]  # W_0 - W_2 for the token that cannot be


# -- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab_block", [1, 3, 1024])
@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("with_bias", [False, True])
def test_gradcheck(vocab_block, chunk, temperature, with_bias, monkeypatch):
    monkeypatch.setattr(module, "_VOCAB_BLOCK", vocab_block)
    hidden, lm_head, ids, _ = random_case(5, 7, 3, dtype=torch.float64)
    ids[1] = ids[0]  # a token sampled twice
    leaves = [hidden, lm_head] + ([torch.randn(7, dtype=torch.float64)] if with_bias else [])

    def logprobs(h: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        return token_logprobs_and_entropy(h, w, ids, bias_V=b, temperature=temperature, chunk_tokens=chunk)[0]

    assert torch.autograd.gradcheck(logprobs, [leaf.requires_grad_() for leaf in leaves], atol=1e-8, rtol=1e-6)


def test_tied_embeddings_get_both_gradients():
    # The output layer is the input embedding: its gradient comes through the hidden states and through the logits.
    generator = torch.Generator().manual_seed(5)
    embedding = torch.randn(2500, 16, generator=generator, dtype=torch.float64) * 0.5
    inputs = torch.randint(0, 2500, (30,), generator=generator)
    ids = torch.randint(0, 2500, (30,), generator=generator)
    send = torch.randn(30, generator=generator, dtype=torch.float64)

    def loss(path):
        return lambda weight: path(torch.tanh(weight[inputs]), weight, ids)[0]

    (found,) = gradients(loss(token_logprobs_and_entropy), embedding, send=send)
    (truth,) = gradients(loss(from_full_logits), embedding, send=send)
    torch.testing.assert_close(found, truth, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("chunk", [1, 7, 40, 1000])
def test_chunks_change_nothing(chunk):
    hidden, lm_head, ids, send = random_case(40, 2100, 16, dtype=torch.float64)

    def path(chunk_tokens: int | None):
        outputs = token_logprobs_and_entropy(hidden, lm_head, ids, chunk_tokens=chunk_tokens)
        grads = gradients(
            lambda h, w: token_logprobs_and_entropy(h, w, ids, chunk_tokens=chunk_tokens)[0], hidden, lm_head, send=send
        )
        return [*outputs, *grads]

    for found, whole in zip(path(chunk), path(None), strict=True):
        torch.testing.assert_close(found, whole, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("vocab_block", [1, 100, 2100, 10**6])
def test_blocks_of_the_vocabulary_change_nothing(vocab_block, monkeypatch):
    hidden, lm_head, ids, send = random_case(20, 2100, 8, dtype=torch.float64)

    def path():
        outputs = token_logprobs_and_entropy(hidden, lm_head, ids)
        grads = gradients(lambda h, w: token_logprobs_and_entropy(h, w, ids)[0], hidden, lm_head, send=send)
        return [*outputs, *grads]

    whole = path()
    monkeypatch.setattr(module, "_VOCAB_BLOCK", vocab_block)
    for found, expected in zip(path(), whole, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


def test_gradients_of_a_trained_head_in_bfloat16_are_as_exact_as_those_of_full_logits():
    """Against float64, on the same rounded inputs. Where the processor multiplies bfloat16, they are products of it."""
    hidden, lm_head, ids, send = random_case(64, 3000, 32)
    hidden, lm_head = hidden.bfloat16(), lm_head.bfloat16()

    def naive(h: Tensor, w: Tensor) -> Tensor:
        return (h @ w.T).float().log_softmax(dim=-1).gather(1, ids[:, None])[:, 0]

    exact = gradients(naive_float64(ids), hidden.double(), lm_head.double(), send=send.double())
    ours = gradients(lambda h, w: token_logprobs_and_entropy(h, w, ids)[0], hidden, lm_head, send=send)
    plain = gradients(naive, hidden, lm_head, send=send)
    for found, own, truth in zip(ours, plain, exact, strict=True):
        assert float((found.double() - truth).norm()) < 1.1 * float((own.double() - truth).norm())


# -- cost -------------------------------------------------------------------------------------------------------------


def naive_float64(ids: Tensor):
    return lambda h, w: (h @ w.T).log_softmax(dim=-1).gather(1, ids[:, None])[:, 0]


def naive_float32(hidden: Tensor, lm_head: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    logp = torch.log_softmax(hidden @ lm_head.T, dim=-1)
    return logp.gather(1, ids[:, None])[:, 0], -(logp.exp() * logp).sum(dim=-1).detach()


@pytest.mark.parametrize("head_trains", [False, True])
def test_the_logits_are_never_held_whole(head_trains):
    N, V, H = 256, 8000, 8
    hidden, lm_head, ids, _ = random_case(N, V, H)
    hidden.requires_grad_()
    lm_head.requires_grad_(head_trains)
    logits_bytes = 4 * N * V
    with LargestTensor() as seen:
        token_logprobs_and_entropy(hidden, lm_head, ids)[0].sum().backward()
    assert seen.bytes <= 2 * 4 * N * module._VOCAB_BLOCK < logits_bytes / 3  # one block of logits, one of exponentials
    with LargestTensor() as seen:
        naive_float32(hidden, lm_head, ids)[0].sum().backward()
    assert seen.bytes == logits_bytes  # so the watch would have seen them


# -- errors -----------------------------------------------------------------------------------------------------------


def test_errors_name_the_argument():
    hidden, lm_head, ids, _ = random_case(4, 6, 3)
    with pytest.raises(ValueError, match=r"shapes do not fit: hidden \(4, 3\), lm_head \(6, 2\)"):
        token_logprobs_and_entropy(hidden, lm_head[:, :2], ids)
    with pytest.raises(ValueError, match="shapes do not fit"):
        token_logprobs_and_entropy(hidden, lm_head, ids[:3])
    with pytest.raises(ValueError, match="shapes do not fit"):
        token_logprobs_and_entropy(hidden, lm_head, ids, bias_V=torch.zeros(5))
    for temperature in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="temperature must be positive"):
            token_logprobs_and_entropy(hidden, lm_head, ids, temperature=temperature)
    with pytest.raises(ValueError, match="chunk_tokens must be at least 1, got 0"):
        token_logprobs_and_entropy(hidden, lm_head, ids, chunk_tokens=0)
    for wrong in (-1, 6):
        with pytest.raises(ValueError, match=r"token ids must be in \[0, 6\)"):
            token_logprobs_and_entropy(hidden, lm_head, torch.tensor([0, wrong, 1, 1]))
