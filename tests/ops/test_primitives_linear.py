from __future__ import annotations

import pytest
import torch

from outrider.ops.reference import primitives as ops
from tests.support.rows import THREADS, assert_row_invariant, bits, needs_wide, threads

SHAPES = [
    (96, 64), (24, 1024), (256, 96), (4, 384), (64, 256), (20, 512),  # as layers of small models have them
    (1, 33), (7, 501), (33, 70), (129, 1023), (257, 1), (3, 3), (17, 228), (43, 130),  # edges of every kind
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_invariant(shape: tuple[int, int]) -> None:
    w = torch.randn(shape)
    assert_row_invariant(lambda x: ops.linear(x, w), torch.randn(33, shape[1]), many=100)


@pytest.mark.parametrize("shape", [(24, 28672), (1024, 512), (7, 5001), (512, 4096)])
def test_rows_of_large_layers_are_invariant(shape: tuple[int, int]) -> None:
    w, x = torch.randn(shape), torch.randn(6, shape[1])
    alone = torch.cat([ops.linear(x[i : i + 1].clone(), w) for i in range(6)])
    for count in THREADS:
        with threads(count):
            for rows in range(1, 7):
                assert torch.equal(ops.linear(x[6 - rows :], w), alone[6 - rows :])


@needs_wide
@pytest.mark.parametrize("outputs", [8, 17, 24, 40, 64, 75, 107, 128, 300])
def test_more_threads_than_cores_change_no_bit(outputs: int) -> None:
    w, x = torch.randn(outputs, 256), torch.randn(5, 256)
    expected = ops.linear(x, w)
    for count in (3, 8):
        with threads(count):
            assert torch.equal(ops.linear(x, w), expected)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [0, 1, 4, 5])
def test_values_are_those_of_float64(shape: tuple[int, int], rows: int) -> None:
    w, x = torch.randn(shape), torch.randn(rows, shape[1])
    exact = x.double() @ w.double().t()
    found = ops.linear(x, w)
    assert found.shape == (rows, shape[0])
    bound = 1e-6 * (x.double().abs() @ w.double().abs().t())
    assert ((found - exact).abs() <= bound).all()


@pytest.mark.parametrize("offset", [1, 2, 3, 5, 8])
def test_the_address_of_a_row_changes_no_bit(offset: int) -> None:
    w, x = torch.randn(7, 96), torch.randn(8, 96)
    moved = torch.empty(8 * 96 + offset)[offset:].view(8, 96).copy_(x)
    assert torch.equal(ops.linear(moved, w), ops.linear(x, w))


def test_layout_changes_no_bit_and_inputs_stay() -> None:
    w, x = torch.randn(24, 64), torch.randn(64, 9)
    kept = x.clone()
    assert torch.equal(ops.linear(x.t(), w), ops.linear(x.t().contiguous(), w))
    assert torch.equal(x, kept)


def test_nan_stays_in_its_row() -> None:
    w, x = torch.randn(40, 64), torch.randn(8, 64)
    expected = ops.linear(x, w)
    x[2] = torch.nan
    found = ops.linear(x, w)
    others = [i for i in range(8) if i != 2]
    assert found[2].isnan().all()
    assert torch.equal(bits(found[others]), bits(expected[others]))
