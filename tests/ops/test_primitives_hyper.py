from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outrider.ops.reference import primitives as ops
from tests.support.rows import assert_row_invariant, threads

EPS = 1e-6


def oracle(mixes: Tensor, scale: Tensor, base: Tensor, s: int, iterations: int) -> tuple[Tensor, Tensor, Tensor]:
    """Spec 1 §3 step 2, word for word, in float64."""
    mixes, scale, base = mixes.double(), scale.double(), base.double()
    pre = torch.sigmoid(mixes[:, :s] * scale[0] + base[:s]) + EPS
    post = 2 * torch.sigmoid(mixes[:, s : 2 * s] * scale[1] + base[s : 2 * s])
    comb = (mixes[:, 2 * s :] * scale[2] + base[2 * s :]).view(-1, s, s)
    comb = torch.softmax(comb, -1) + EPS
    comb = comb / (comb.sum(-2, keepdim=True) + EPS)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(-1, keepdim=True) + EPS)
        comb = comb / (comb.sum(-2, keepdim=True) + EPS)
    return pre, post, comb


@pytest.mark.parametrize("streams", [1, 2, 3, 4, 5, 8])
def test_rows_are_invariant(streams: int) -> None:
    scale, base = torch.randn(3), torch.randn((2 + streams) * streams)
    mixes = torch.randn(33, len(base)) * 3
    assert_row_invariant(lambda x: ops.hyper_split(x, scale, base, streams, 5, EPS), mixes)


def test_rows_of_a_long_prompt_are_those_of_a_short_one() -> None:
    scale, base, mixes = torch.randn(3), torch.randn(24), torch.randn(9000, 24)
    expected = ops.hyper_split(mixes[8990:], scale, base, 4, 4, EPS)
    with threads(2):
        found = ops.hyper_split(mixes, scale, base, 4, 4, EPS)
    assert all(torch.equal(a[8990:], b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("streams", [2, 3, 4])
@pytest.mark.parametrize("iterations", [1, 2, 20])
def test_values_are_those_of_float64(streams: int, iterations: int) -> None:
    scale, base = torch.randn(3), torch.randn((2 + streams) * streams)
    mixes = torch.randn(6, len(base)) * 2
    found = ops.hyper_split(mixes, scale, base, streams, iterations, EPS)
    for one, exact in zip(found, oracle(mixes, scale, base, streams, iterations), strict=True):
        assert one.is_contiguous()
        assert torch.allclose(one.double(), exact, atol=2e-6)


def test_comb_ends_doubly_stochastic() -> None:
    _, _, comb = ops.hyper_split(torch.randn(50, 24), torch.ones(3), torch.zeros(24), 4, 20, EPS)
    assert torch.allclose(comb.sum(-1), torch.ones(50, 4), atol=1e-3)
    assert torch.allclose(comb.sum(-2), torch.ones(50, 4), atol=1e-5)


def test_nan_stays_in_its_row() -> None:
    mixes = torch.randn(5, 24)
    expected = ops.hyper_split(mixes, torch.ones(3), torch.zeros(24), 4, 20, EPS)
    mixes[2] = torch.nan
    found = ops.hyper_split(mixes, torch.ones(3), torch.zeros(24), 4, 20, EPS)
    for one, other in zip(found, expected, strict=True):
        assert one[2].isnan().all()
        assert torch.equal(one[[0, 1, 3, 4]], other[[0, 1, 3, 4]])
