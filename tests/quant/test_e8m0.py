from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import UnsupportedError
from outrider.quant import e8m0

POWERS = torch.tensor([2.0**e for e in range(-126, 128)], dtype=torch.float32)


def test_every_byte_decodes_to_its_power() -> None:
    values = e8m0.decode(torch.arange(256, dtype=torch.uint8))
    assert values[:255].tolist() == [2.0 ** (b - 127) for b in range(255)]
    assert math.isnan(values[255])


def test_both_spellings_of_a_byte_decode_alike() -> None:
    raw = torch.arange(255, dtype=torch.uint8)
    assert torch.equal(e8m0.decode(raw), e8m0.decode(raw.view(torch.float8_e8m0fnu)))


def test_encode_undoes_decode() -> None:
    raw = torch.arange(255, dtype=torch.uint8)
    assert torch.equal(e8m0.encode(e8m0.decode(raw)).view(torch.uint8), raw)


def test_b7_float32_scale_of_one_and_a_half_is_used_as_it_is() -> None:
    assert e8m0.decode(torch.tensor([1.5])).tolist() == [1.5]


@pytest.mark.parametrize("bad", [1.5, -2.0, 0.0, 3.0e-40, math.inf, math.nan])
def test_b7_encode_refuses_what_is_no_power_of_two(bad: float) -> None:
    with pytest.raises(UnsupportedError, match="no power of two"):
        e8m0.encode(torch.tensor([1.0, bad, 4.0]))


def test_decode_refuses_another_dtype() -> None:
    with pytest.raises(UnsupportedError, match="bfloat16"):
        e8m0.decode(torch.ones(2, dtype=torch.bfloat16))


def test_powers_stay_and_their_neighbours_round_up() -> None:
    assert torch.equal(e8m0.ceil_pow2(POWERS), POWERS)
    above = torch.nextafter(POWERS[:-1], torch.tensor(math.inf))
    below = torch.nextafter(POWERS[1:], torch.tensor(0.0))
    assert torch.equal(e8m0.ceil_pow2(above), POWERS[1:])
    assert torch.equal(e8m0.ceil_pow2(below), POWERS[1:])


@given(st.floats(2.0**-126, 2.0**127, width=32))
def test_ceil_pow2_is_the_least_power_not_below(x: float) -> None:
    power = e8m0.ceil_pow2(torch.tensor([x])).item()
    assert math.frexp(power)[0] == 0.5
    assert power / 2 < x <= power
