from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from outrider.errors import CheckpointError, UnsupportedError
from outrider.quant import e8m0, fp4
from tests.support.rows import assert_row_invariant

GOLDEN = load_file(Path(__file__).parents[1] / "golden" / "ops.safetensors")
VALUES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


@pytest.mark.parametrize("name", ["fp4_quant32", "fp4_quant32_tiny"])
def test_golden_simulation(name: str) -> None:
    assert torch.equal(fp4.simulate(GOLDEN[f"{name}.in"]), GOLDEN[f"{name}.out"])


def test_golden_weight() -> None:
    w = fp4.dequantise_weight(GOLDEN["fp4_linear.weight"], GOLDEN["fp4_linear.scale"])
    assert torch.equal(w, GOLDEN["fp4_linear.dequantised"])


def test_every_code_has_its_value_and_comes_back() -> None:
    codes = torch.arange(16, dtype=torch.uint8)
    values = fp4.decode(codes)
    assert values.tolist() == VALUES + [-v for v in VALUES]
    assert torch.signbit(values).tolist() == [False] * 8 + [True] * 8
    assert torch.equal(fp4.round_to_code(values), codes)


def test_the_low_half_of_a_byte_is_the_even_input() -> None:
    packed = fp4.pack(torch.tensor([[0x1, 0xF, 0x8, 0x2]], dtype=torch.uint8))
    assert packed.dtype == torch.int8
    assert packed.view(torch.uint8).tolist() == [[0xF1, 0x28]]
    assert fp4.unpack(packed).tolist() == [[0x1, 0xF, 0x8, 0x2]]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_every_byte_unpacks_and_packs_back(dtype: torch.dtype) -> None:
    packed = torch.arange(256, dtype=torch.uint8).view(dtype).reshape(16, 16)
    assert torch.equal(fp4.pack(fp4.unpack(packed)).view(dtype), packed)


@given(st.floats(-8, 8, width=32))
def test_rounding_is_to_the_nearest(x: float) -> None:
    code = int(fp4.round_to_code(torch.tensor([x])).item())
    distance = abs(abs(x) - VALUES[code & 7])
    assert distance == min(abs(min(abs(x), 6.0) - v) for v in VALUES) or abs(x) > 6.0
    assert abs(x) <= 6.0 or code & 7 == 7
    assert (code >= 8) == (torch.signbit(torch.tensor(x)).item())


def test_ties_go_to_the_even_code() -> None:
    for low in range(7):
        middle = (VALUES[low] + VALUES[low + 1]) / 2
        even = low if low % 2 == 0 else low + 1
        assert fp4.round_to_code(torch.tensor([middle, -middle])).tolist() == [even, even + 8]
        for towards, code in ((0.0, low), (9.0, low + 1)):
            beside = torch.nextafter(torch.tensor(middle), torch.tensor(towards))
            assert fp4.round_to_code(beside).item() == code


@given(st.integers(1, 6), st.floats(-30, 30))
def test_simulate_is_decode_of_codes(blocks: int, size: float) -> None:
    x = torch.randn(4, 32 * blocks, generator=torch.Generator().manual_seed(blocks)) * 10.0**size
    packed, scale = fp4.quantise_weight(x)
    assert torch.equal(fp4.simulate(x), fp4.dequantise_weight(packed, scale))
    expected = [2.0 ** torch.ceil(torch.log2(b.abs().max() / 6).double()) for b in x[0].split(32)]
    assert e8m0.decode(scale)[0].tolist() == [float(e) for e in expected]


def test_a_block_of_zeros_stays_zero() -> None:
    packed, scale = fp4.quantise_weight(torch.zeros(2, 64))
    assert e8m0.decode(scale).tolist() == [[2.0**-126] * 2] * 2
    assert not fp4.dequantise_weight(packed, scale).any()


def test_weights_round_trip() -> None:
    w = torch.randn(96, 128) * 0.02
    packed, scale = fp4.quantise_weight(w)
    assert (packed.dtype, packed.shape, scale.dtype, scale.shape) == (
        torch.int8,
        (96, 64),
        torch.float8_e8m0fnu,
        (96, 4),
    )
    back = fp4.dequantise_weight(packed, scale)
    assert ((back - w).abs() <= e8m0.decode(scale).repeat_interleave(32, 1)).all()
    assert torch.equal(fp4.dequantise_weight(*fp4.quantise_weight(back)), back)


def test_b7_a_float32_weight_scale_is_used_as_it_is() -> None:
    packed = fp4.pack(torch.full((1, 32), 7))
    assert torch.equal(fp4.dequantise_weight(packed, torch.tensor([[1.5]])), torch.full((1, 32), 9.0))


def test_nan_is_not_hidden() -> None:
    x = torch.ones(1, 64)
    x[0, 40] = torch.nan
    y = fp4.simulate(x)
    assert y[0, 40].isnan()
    assert torch.equal(y[0, :32], x[0, :32])


def test_rows_are_invariant() -> None:
    assert_row_invariant(fp4.simulate, torch.randn(33, 3, 96))


def test_odd_widths_and_wrong_scales_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="multiple of 32"):
        fp4.quantise_weight(torch.ones(2, 40))
    with pytest.raises(CheckpointError, match=r"not \(2, 2\)"):
        fp4.dequantise_weight(torch.zeros(2, 32, dtype=torch.int8), torch.ones(2, 1))
