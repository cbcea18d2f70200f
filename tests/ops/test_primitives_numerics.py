from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.ops.reference import primitives as ops
from tests.support.rows import assert_row_invariant, threads

WIDTHS = [1, 3, 7, 24, 70, 256]


def rows(*shape: int) -> torch.Tensor:
    """33 rows of different sizes."""
    return torch.randn(33, *shape) * torch.logspace(-1, 1, 33).view(-1, *[1] * len(shape))


@pytest.mark.parametrize("width", [*WIDTHS, 1000])
@pytest.mark.parametrize("name", ["sigmoid", "silu", "softplus"])
def test_pointwise_rows_are_invariant(name: str, width: int) -> None:
    assert_row_invariant(getattr(ops, name), rows(width))


@pytest.mark.parametrize("width", WIDTHS)
def test_sums_over_any_dim_are_invariant(width: int) -> None:
    assert_row_invariant(lambda x: ops.tree_sum(x, -1), rows(width))
    assert_row_invariant(lambda x: ops.tree_sum(x, 1), rows(width, 5))
    assert_row_invariant(lambda x: ops.softmax_over(x, 1), rows(width, 5))


@pytest.mark.parametrize("width", [7, 64, 70, 512, 16385, 28672])
def test_norms_are_invariant(width: int) -> None:
    w = torch.randn(width)
    assert_row_invariant(lambda x: ops.rms_norm(x, w, 1e-6), rows(width), many=40)


def test_threads_do_not_share_the_sum_of_one_long_row() -> None:
    x = torch.randn(8, 131072)
    expected = ops.rms_norm(x, None, 1e-6)
    with threads(2):
        for i in range(8):
            assert torch.equal(ops.rms_norm(x[i : i + 1], None, 1e-6), expected[i : i + 1])


def test_norms_of_heads_are_invariant() -> None:
    assert_row_invariant(lambda x: ops.rms_norm(x, None, 1e-6), rows(5, 77))
    x = rows(77, 5)
    assert torch.equal(
        ops.rms_norm(x.transpose(1, 2), None, 1e-6), ops.rms_norm(x.transpose(1, 2).contiguous(), None, 1e-6)
    )


@pytest.mark.parametrize("width", [1, 2, 32, 128])
def test_hadamard_rows_are_invariant(width: int) -> None:
    assert_row_invariant(ops.hadamard, rows(3, width))


@pytest.mark.parametrize("width", [64, 70, 300])
def test_activation_rows_are_invariant(width: int) -> None:
    assert_row_invariant(ops.activation, rows(width))


POINTS = torch.cat(
    [torch.linspace(-120, 120, 4001), torch.logspace(-30, 1, 200), torch.tensor([0.0, -0.0, 1e30, -1e30])]
)


@pytest.mark.parametrize(
    ("name", "oracle"),
    [("sigmoid", torch.sigmoid), ("silu", torch.nn.functional.silu), ("softplus", torch.nn.functional.softplus)],
)
def test_pointwise_values_are_those_of_float64(name: str, oracle: object) -> None:
    exact = oracle(POINTS.double())  # type: ignore[operator]
    found = getattr(ops, name)(POINTS).double()
    normal = exact.abs() > 1e-36  # below, e^−x overflows in float32
    assert torch.allclose(found[normal], exact[normal], rtol=1e-6, atol=0.0)
    assert (found[~normal] - exact[~normal]).abs().max() <= 1e-36


def test_softplus_keeps_small_and_large_values() -> None:
    found = ops.softplus(torch.tensor([-40.0, 0.0, 40.0, 200.0]))
    assert torch.allclose(
        found.double(), torch.tensor([math.exp(-40), math.log(2), 40.0, 200.0]).double(), rtol=1e-6, atol=0.0
    )


@given(st.integers(1, 40), st.integers(0, 2))
def test_tree_sum_is_a_sum_over_any_dim(width: int, dim: int) -> None:
    shape = [2, 3, 4]
    shape[dim] = width
    x = torch.randn(shape, generator=torch.Generator().manual_seed(width))
    kept = x.clone()
    assert torch.allclose(ops.tree_sum(x, dim).double(), x.double().sum(dim), atol=1e-5)
    assert torch.equal(x, kept)


@given(st.integers(1, 20), st.integers(0, 30))
def test_trailing_zero_lanes_change_no_sum(width: int, more: int) -> None:
    x = torch.randn(4, width, generator=torch.Generator().manual_seed(width))
    assert torch.equal(ops.tree_sum(torch.cat((x, torch.zeros(4, more)), 1), 1), ops.tree_sum(x, 1))


def test_tree_sum_order_is_by_halves() -> None:
    big = 2.0**25
    assert ops.tree_sum(torch.tensor([big, 1.0, -big, 1.0]), 0).item() == 2.0
    assert ops.tree_sum(torch.tensor([big, -big, 1.0, 1.0]), 0).item() == 0.0


def test_softmax_over_gives_masked_lanes_nothing() -> None:
    x = torch.randn(5, 6, 3)
    more = torch.cat((x, torch.full((5, 9, 3), -torch.inf)), 1)
    found = ops.softmax_over(more, 1)
    assert torch.equal(found[:, :6], ops.softmax_over(x, 1))
    assert not found[:, 6:].any()
    assert torch.allclose(found[:, :6].double(), torch.softmax(x.double(), 1), atol=1e-7)


@pytest.mark.parametrize("width", [5, 64, 40001])
def test_norm_values_are_those_of_float64(width: int) -> None:
    x, w = torch.randn(3, width) * 3, torch.randn(width)
    exact = x.double() * torch.rsqrt((x.double() ** 2).mean(-1, keepdim=True) + 1e-6)
    assert torch.allclose(ops.rms_norm(x, None, 1e-6).double(), exact, rtol=1e-5, atol=1e-7)
    assert torch.allclose(ops.rms_norm(x, w, 1e-6).double(), exact * w.double(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("width", [1, 2, 4, 64, 128])
def test_hadamard_is_its_matrix_and_its_own_inverse(width: int) -> None:
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while matrix.shape[0] < width:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)), 0)
    x = torch.randn(3, 5, width)
    kept = x.clone()
    assert torch.allclose(ops.hadamard(x).double(), x.double() @ matrix / math.sqrt(width), atol=1e-5)
    assert torch.allclose(ops.hadamard(ops.hadamard(x)), x, atol=1e-5)
    assert torch.equal(x, kept)


@given(st.lists(st.sampled_from([-1.0, -0.0, 0.0, 0.5, 2.0, -math.inf]), min_size=1, max_size=40), st.integers(1, 40))
def test_top_k_is_best_first_and_ties_go_by_lane(scores: list[float], k: int) -> None:
    expected = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k]
    assert ops.top_k_by_rule(torch.tensor([scores]), k).tolist() == [expected]


@pytest.mark.parametrize("width", [1, 5, 64, 1000])
def test_top_k_rows_are_invariant(width: int) -> None:
    assert_row_invariant(lambda x: ops.top_k_by_rule(x, 8), rows(width).round())


def test_extra_lanes_of_minus_infinity_change_no_choice() -> None:
    scores = torch.randn(7, 20).round()
    more = torch.cat((scores, torch.full((7, 50), -torch.inf)), 1)
    assert torch.equal(ops.top_k_by_rule(more, 12), ops.top_k_by_rule(scores, 12))


def test_top_k_of_nothing_is_nothing() -> None:
    assert ops.top_k_by_rule(torch.empty(3, 0), 4).shape == (3, 0)
