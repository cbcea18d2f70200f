"""Every hand-written backward pass against numeric derivatives in float64, and the whole loss at once."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck
from torch.nn import functional

from outrider.tune.context import Context, Tally
from outrider.tune.fake import fake_fp4_rows, fake_fp8_rows
from outrider.tune.grad.attention import sink_attention
from outrider.tune.grad.basic import linear, rms, rope
from outrider.tune.grad.experts import experts
from outrider.tune.grad.heads import head_divergence, head_loss
from outrider.tune.grad.hyper import collapse, expand, sinkhorn
from outrider.tune.losses import joint_loss
from outrider.tune.trainer import trained_names
from tests.support.checkpoints import random_tensors, tiny_config

F64 = torch.float64


def values(*shape: int, seed: int = 0, grad: bool = True) -> Tensor:
    made = torch.randn(*shape, dtype=F64, generator=torch.Generator().manual_seed(seed + 100 * len(shape)))
    return made.requires_grad_(grad)


def holds(function: Callable[..., Tensor | tuple[Tensor, ...]], *inputs: Tensor) -> bool:
    return gradcheck(function, inputs, eps=1e-6, atol=1e-6, rtol=1e-4)


def test_linear() -> None:
    assert holds(lambda x, w: linear(x, w, F64), values(2, 3, 4), values(5, 4))


def test_rms_with_and_without_a_trained_weight() -> None:
    assert holds(lambda x, w: rms(x, w, 1e-6), values(3, 2, 5), values(5))
    assert holds(lambda x: rms(x, torch.ones(5, dtype=F64), 1e-6), values(3, 5))


def test_rope_turns_back_in_the_backward_pass() -> None:
    factors = torch.polar(torch.ones(3, 2, dtype=F64), values(3, 2, grad=False))
    assert holds(lambda x: rope(x, factors), values(2, 3, 8))
    assert holds(lambda x: rope(x, factors.conj().unsqueeze(1)), values(2, 3, 2, 6))


@pytest.mark.parametrize("iterations", (1, 2, 20))
def test_sinkhorn(iterations: int) -> None:
    assert holds(lambda x: sinkhorn(x, iterations, 1e-6), values(3, 4, 4))


def test_sinkhorn_gives_the_order_of_divisions_of_the_text() -> None:
    logits = values(2, 3, 3, grad=False)
    c = logits.softmax(-1) + 1e-3
    c = c / (c.sum(-2, keepdim=True) + 1e-3)
    c = c / (c.sum(-1, keepdim=True) + 1e-3)
    c = c / (c.sum(-2, keepdim=True) + 1e-3)
    assert torch.allclose(sinkhorn(logits, 2, 1e-3), c, atol=1e-12)


def test_collapse_and_expand() -> None:
    streams, fn, scale, base = values(3, 2, 5), values(8, 10), values(3), values(8)
    assert holds(lambda *t: collapse(*t, 1e-6, 1e-6), streams, fn, scale, base)
    assert holds(expand, streams, values(3, 5), values(3, 2), values(3, 2, 2))


def test_collapse_adds_up_both_uses_of_the_streams() -> None:
    streams, fn, scale, base = values(3, 2, 5), values(8, 10), values(3), values(8)

    def sublayer(s: Tensor, f: Tensor) -> Tensor:
        again, x, rest = collapse(s, f, scale.detach(), base.detach(), 1e-6, 1e-6)
        return expand(again, x.tanh(), rest[:, :2].sigmoid(), rest[:, 2:].view(-1, 2, 2))

    assert holds(sublayer, streams, fn)


def test_sink_attention_with_hidden_keys() -> None:
    bias = torch.zeros(2, 3, 6, dtype=F64)
    bias[:, 0, 2:5] = -math.inf
    bias[1, 2, 0] = -math.inf
    attend = lambda q, k, s: sink_attention(q, k, bias, s, 3, F64)[0]  # noqa: E731
    assert holds(attend, values(2, 2, 3, 4), values(2, 5, 4), values(2))


def test_sink_attention_reports_the_mass_of_entries() -> None:
    q, keys, sink = values(1, 2, 3, 4, grad=False), values(1, 5, 4, grad=False), values(2, grad=False)
    out, mass = sink_attention(q, keys, torch.zeros(1, 3, 6, dtype=F64), sink, 3, F64)
    scores = torch.cat([q @ keys.unsqueeze(1).transpose(2, 3) / 2, sink.view(1, 2, 1, 1).expand(1, 2, 3, 1)], -1)
    p = scores.softmax(-1)
    assert torch.allclose(out, p[..., :5] @ keys.unsqueeze(1))
    assert torch.allclose(mass, p[..., 3:5].sum(1))


@pytest.mark.parametrize("limit", (0.5, math.inf))
def test_experts(limit: float) -> None:
    rows, counts = torch.tensor([0, 2, 1, 0, 3, 2]), [2, 0, 4]
    weights = [values(3, 4, seed=i) for i in range(3)], [values(4, 3, seed=i) for i in range(3)]
    w1, w2 = weights
    w3 = [values(3, 4, seed=9 + i) for i in range(3)]

    def run(x: Tensor, share: Tensor, *w: Tensor) -> Tensor:
        return experts(x, share, rows, counts, limit, F64, list(w[:3]), list(w[3:6]), list(w[6:]))

    assert holds(run, values(4, 4), values(6, 1), *w1, *w2, *w3)


def test_head_losses() -> None:
    x, weight, targets = values(4, 3), values(7, 3), torch.tensor([0, 6, 3, 3])
    assert holds(lambda a, w: head_loss(a, w, targets, F64), x, weight)
    assert torch.allclose(head_loss(x, weight, targets, F64), functional.cross_entropy(x @ weight.t(), targets))
    wanted = values(4, 7, grad=False).softmax(-1)
    assert holds(lambda a: head_divergence(a, weight.detach(), wanted, F64), x)
    log_q = (x @ weight.t()).log_softmax(-1)
    expected = functional.kl_div(log_q, wanted, reduction="batchmean")
    assert torch.allclose(head_divergence(x, weight.detach(), wanted, F64), expected)


def test_rounding_passes_gradients_straight_through() -> None:
    x = torch.randn(3, 64, requires_grad=True)
    for fake in (fake_fp4_rows, fake_fp8_rows):
        rounded = fake(x)
        assert not torch.equal(rounded, x)
        (grad,) = torch.autograd.grad(rounded.square().sum(), x)
        assert torch.equal(grad, 2 * rounded)


def test_whole_loss_falls_along_its_own_gradient() -> None:
    """One number over all parameters at once: a step of ε along −g changes the loss by −ε·|g|²."""
    config = tiny_config()
    params = random_tensors(config, 1)
    names = trained_names(params)
    for name in names:
        params[name].requires_grad_()
    ids = torch.randint(0, 64, (2, 34), generator=torch.Generator().manual_seed(0))

    def loss(dense: bool = True) -> Tensor:
        return joint_loss(Context(config, params, dense=dense), ids, Tally()).total

    grads = torch.autograd.grad(loss(), [params[name] for name in names])
    size = sum(float(grad.square().sum()) for grad in grads)
    step = 2e-3 / size
    values_at = []
    for sign in (-1.0, 1.0):
        with torch.no_grad():
            for name, grad in zip(names, grads, strict=True):
                params[name].add_(grad, alpha=sign * step)
            values_at.append(float(loss()))
            for name, grad in zip(names, grads, strict=True):
                params[name].sub_(grad, alpha=sign * step)
    change = (values_at[1] - values_at[0]) / 2
    assert change == pytest.approx(step * size, rel=0.1)


def test_indexers_learn_from_attention_and_never_the_other_way() -> None:
    config = tiny_config()
    params = random_tensors(config, 2)
    names = trained_names(params)
    for name in names:
        params[name].requires_grad_()
    ids = torch.randint(0, 64, (1, 42), generator=torch.Generator().manual_seed(0))
    tally = Tally()
    joint_loss(Context(config, params), ids, tally)
    index = torch.stack(tally.index_losses).sum()
    assert len(tally.index_losses) == 2 and float(index.detach()) > 0
    grads = torch.autograd.grad(index, [params[name] for name in names], allow_unused=True)
    reached = {name for name, grad in zip(names, grads, strict=True) if grad is not None}
    assert reached == {name for name in names if ".indexer." in name}
