from __future__ import annotations

import math

import pytest
import torch

from outrider.config.model import Yarn
from outrider.ops.reference import primitives as ops
from tests.support.rows import assert_row_invariant

YARN = Yarn(factor=16.0, original_max_position_embeddings=65536, beta_fast=32.0, beta_slow=1.0)


@pytest.mark.parametrize("width", [2, 6, 10, 32, 64])
def test_rows_are_invariant(width: int) -> None:
    freqs = ops.inverse_frequencies(width, 10000.0, None)
    positions = torch.randint(0, 1_000_000, (33,))
    assert_row_invariant(lambda p: ops.rope_angles(p, freqs), positions)
    cos, sin = ops.rope_angles(positions, freqs)
    for inverse in (False, True):
        assert_row_invariant(lambda *a, back=inverse: ops.apply_rope(*a, back), torch.randn(33, 3, width), cos, sin)


def test_frequencies_of_plain_rope() -> None:
    freqs = ops.inverse_frequencies(8, 10000.0, None)
    assert freqs.dtype == torch.float32
    assert torch.allclose(freqs.double(), torch.tensor([1.0, 0.1, 0.01, 0.001]).double(), rtol=1e-6)


def test_yarn_keeps_fast_pairs_and_slows_the_slow_ones_down() -> None:
    plain, slowed = (ops.inverse_frequencies(64, 160000.0, yarn) for yarn in (None, YARN))
    assert torch.equal(slowed[:15], plain[:15])
    assert torch.allclose(slowed[-6:], plain[-6:] / 16.0)
    ratio = (plain / slowed)[14:27]
    assert (ratio.diff() >= 0).all()
    assert 1.0 < ratio[6] < 16.0


def test_yarn_with_one_turning_pair_has_no_zero_span() -> None:
    same = Yarn(factor=4.0, original_max_position_embeddings=64, beta_fast=1e9, beta_slow=1e9)
    assert ops.inverse_frequencies(8, 10000.0, same).isfinite().all()


@pytest.mark.parametrize("position", [0, 1, 4095, 70_000, 1_000_000])
def test_the_angle_is_the_float32_product(position: int) -> None:
    freqs = ops.inverse_frequencies(64, 160000.0, YARN)
    cos, sin = ops.rope_angles(torch.tensor([position]), freqs)
    for i, angle in enumerate((torch.tensor(float(position)) * freqs).tolist()):
        assert cos[0, i].item() == pytest.approx(math.cos(angle), abs=1e-7)
        assert sin[0, i].item() == pytest.approx(math.sin(angle), abs=1e-7)


@pytest.mark.parametrize("shape", [(5, 8), (5, 3, 8), (5, 2, 3, 8)])
def test_pairs_are_interleaved_and_turn_as_complex_numbers(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    cos, sin = ops.rope_angles(torch.arange(3, 8), ops.inverse_frequencies(8, 100.0, None))
    turn = torch.complex(cos.double(), sin.double()).view(5, *[1] * (len(shape) - 2), 4)
    numbers = torch.view_as_complex(x.double().unflatten(-1, (4, 2)))
    expected = torch.view_as_real(numbers * turn).flatten(-2)
    assert torch.allclose(ops.apply_rope(x, cos, sin).double(), expected, atol=1e-6)
    assert torch.allclose(ops.apply_rope(ops.apply_rope(x, cos, sin), cos, sin, inverse=True), x, atol=1e-5)
