from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outrider.ops.reference import primitives as ops
from tests.support.rows import THREADS, assert_row_invariant, needs_wide, threads

Case = tuple[Tensor, Tensor, Tensor, Tensor, float]


def case(rows: int, heads: int, width: int, lanes: int) -> Case:
    """Random queries, keys, a mask with one empty row, sinks and the scale."""
    mask = torch.rand(rows, lanes) < 0.7
    mask[rows // 2] = False
    return torch.randn(rows, heads, width), torch.randn(rows, lanes, width), mask, torch.randn(heads), width**-0.5


def oracle(q: Tensor, kv: Tensor, mask: Tensor, sink: Tensor, scale: float) -> Tensor:
    """The same softmax in float64, the sink as one more lane that carries nothing."""
    kv = torch.where(mask.unsqueeze(-1), kv, 0.0).double()
    scores = torch.einsum("thd,tnd->thn", q.double(), kv) * scale
    scores = scores.masked_fill(~mask.unsqueeze(1), -torch.inf)
    both = torch.cat((scores, sink.double().view(1, -1, 1).expand(len(q), -1, 1)), -1)
    return torch.einsum("thn,tnd->thd", torch.softmax(both, -1)[..., :-1], kv)


SHAPES = [(4, 32, 9), (8, 96, 130), (1, 32, 64), (2, 16, 70), (3, 33, 200), (5, 7, 1), (1, 1, 100), (6, 48, 65)]


@pytest.mark.parametrize(("heads", "width", "lanes"), SHAPES)
def test_rows_are_invariant(heads: int, width: int, lanes: int) -> None:
    q, kv, mask, sink, scale = case(33, heads, width, lanes)
    assert_row_invariant(lambda *rows: ops.attend(*rows, sink, scale), q, kv, mask, many=80)


def test_rows_of_a_large_layer_are_invariant() -> None:
    q, kv, mask, sink, scale = case(5, 64, 512, 140)
    alone = torch.cat([ops.attend(q[i : i + 1], kv[i : i + 1], mask[i : i + 1], sink, scale) for i in range(5)])
    for count in THREADS:
        with threads(count):
            for rows in range(1, 6):
                some = slice(5 - rows, 5)
                assert torch.equal(ops.attend(q[some], kv[some], mask[some], sink, scale), alone[some])


@needs_wide
@pytest.mark.parametrize(("heads", "width"), [(4, 97), (5, 96), (8, 96), (11, 16), (17, 33), (64, 97)])
def test_more_threads_than_cores_change_no_bit(heads: int, width: int) -> None:
    q, kv, mask, sink, scale = case(3, heads, width, 100)
    expected = ops.attend(q, kv, mask, sink, scale)
    for count in (2, 8):
        with threads(count):
            for i in (0, 2):  # a query alone: threads then share its product
                one = slice(i, i + 1)
                assert torch.equal(ops.attend(q[one], kv[one], mask[one], sink, scale), expected[one])


@pytest.mark.parametrize(("heads", "width", "lanes"), SHAPES)
def test_values_are_those_of_float64(heads: int, width: int, lanes: int) -> None:
    inputs = case(7, heads, width, lanes)
    kept = [x.clone() for x in inputs[:4]]
    assert torch.allclose(ops.attend(*inputs).double(), oracle(*inputs), atol=1e-5)
    assert all(torch.equal(x, y) for x, y in zip(inputs[:4], kept, strict=True))


@pytest.mark.parametrize("lanes", [1, 63, 64, 65, 128, 150])
@pytest.mark.parametrize("more", [1, 63, 64, 200])
def test_trailing_masked_lanes_change_no_bit(lanes: int, more: int) -> None:
    q, kv, mask, sink, scale = case(5, 4, 32, lanes)
    longer = torch.cat((kv, torch.full((5, more, 32), torch.nan)), 1)
    hidden = torch.cat((mask, torch.zeros(5, more, dtype=torch.bool)), 1)
    assert torch.equal(ops.attend(q, longer, hidden, sink, scale), ops.attend(q, kv, mask, sink, scale))


@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf, 3e38])
def test_what_lies_in_masked_lanes_never_leaks(poison: float) -> None:
    q, kv, mask, sink, scale = case(6, 4, 32, 90)
    clean, dirty = (kv.masked_fill(~mask.unsqueeze(-1), value) for value in (0.0, poison))
    assert torch.equal(ops.attend(q, dirty, mask, sink, scale), ops.attend(q, clean, mask, sink, scale))


def test_nan_in_a_visible_lane_shows_in_its_row_only() -> None:
    q, kv, mask, sink, scale = case(6, 4, 32, 90)
    expected = ops.attend(q, kv, mask, sink, scale)
    kv[1, 5], mask[1, 5] = torch.nan, True
    found = ops.attend(q, kv, mask, sink, scale)
    assert found[1].isnan().all()
    assert torch.equal(found[[0, 2, 3, 4, 5]], expected[[0, 2, 3, 4, 5]])


def test_a_query_that_sees_nothing_gets_zeros() -> None:
    q, kv, _, sink, scale = case(3, 4, 32, 70)
    assert not ops.attend(q, kv, torch.zeros(3, 70, dtype=torch.bool), sink, scale).any()


def test_scores_far_apart_do_not_overflow() -> None:
    q, kv, mask, sink, _ = case(4, 4, 32, 70)
    for shift in (-500.0, 500.0):
        inputs = (q * 100, kv * 10, mask, sink + shift, 1.0)
        assert torch.allclose(ops.attend(*inputs).double(), oracle(*inputs), atol=1e-3)
