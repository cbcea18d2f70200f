from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from outrider.errors import CheckpointError
from outrider.quant import e8m0, fp8
from tests.support.rows import assert_row_invariant

GOLDEN = load_file(Path(__file__).parents[1] / "golden" / "ops.safetensors")

# All finite e4m3 numbers that aren't negative, by their definition: 4 exponent bits with bias 7, 3 mantissa bits.
MAGNITUDES = torch.tensor(
    [2.0**-6 * m / 8 for m in range(8)] + [2.0 ** (e - 7) * (1 + m / 8) for e in range(1, 16) for m in range(8)][:-1],
    dtype=torch.float64,
)


def nearest(x: Tensor) -> Tensor:
    """The nearest e4m3 number of float64 values, ties to the even mantissa, saturating."""
    size = x.abs().clamp_max(448.0)
    low = torch.searchsorted(MAGNITUDES, size, right=True).clamp_max(len(MAGNITUDES)) - 1
    high = (low + 1).clamp_max(len(MAGNITUDES) - 1)
    down, up = size - MAGNITUDES[low], MAGNITUDES[high] - size
    chosen = torch.where((up < down) | ((up == down) & (low % 2 == 1)), high, low)
    return MAGNITUDES[chosen] * torch.where(x < 0, -1.0, 1.0)


def oracle(x: Tensor, block: int) -> Tensor:
    """Quantise and dequantise in float64, one block at a time."""
    parts = []
    for part in x.double().split(block, -1):
        amax = part.abs().amax(-1, keepdim=True).clamp_min(float(torch.tensor(1e-4)))
        scale = torch.exp2(torch.ceil(torch.log2((amax / 448.0).float().double())))
        parts.append(nearest(part / scale) * scale)
    return torch.cat(parts, -1).float()


@pytest.mark.parametrize("name", ["act_quant64", "act_quant64_bf16", "act_quant64_tiny"])
def test_golden_simulation(name: str) -> None:
    expected = GOLDEN[f"{name}.out"]
    assert torch.equal(fp8.simulate(GOLDEN[f"{name}.in"].float(), 64).to(expected.dtype), expected)


def test_golden_quantised_activations() -> None:
    q, scale = fp8.quantise(GOLDEN["act_quant128.in"])
    assert q.dtype == torch.float8_e4m3fn
    assert torch.equal(q.float(), GOLDEN["act_quant128.q"].float())
    assert torch.equal(scale, GOLDEN["act_quant128.scale"])


@given(st.integers(1, 300), st.sampled_from([16, 64, 128]), st.floats(-8, 8))
def test_simulate_is_nearest_with_the_least_scale(columns: int, block: int, size: float) -> None:
    x = torch.randn(5, columns, generator=torch.Generator().manual_seed(columns)) * 10.0**size
    x[0] = 0.0
    assert torch.equal(fp8.simulate(x, block), oracle(x, block))


@pytest.mark.parametrize("columns", [1, 64, 127, 128, 129, 300])
def test_simulate_is_quantise_and_back(columns: int) -> None:
    x = torch.randn(2, 3, columns)
    q, scale = fp8.quantise(x)
    assert q.shape == x.shape
    assert scale.shape == (2, 3, -(-columns // 128))
    assert torch.equal(fp8.simulate(x), q.float() * scale.repeat_interleave(128, -1)[..., :columns])


def test_a_short_block_ignores_what_lies_beyond_it() -> None:
    x = torch.randn(4, 200)
    assert torch.equal(fp8.simulate(x)[:, 128:], fp8.simulate(x[:, 128:]))


def test_ties_go_to_the_even_mantissa() -> None:
    x = torch.tensor([[448.0, 17.0, 19.0, -17.0, -19.0, 2.0**-10, 3 * 2.0**-10]])
    assert fp8.simulate(x).tolist() == [[448.0, 16.0, 20.0, -16.0, -20.0, 0.0, 2.0**-8]]


def test_nan_and_infinity_are_not_hidden() -> None:
    x = torch.ones(2, 256)
    x[0, 3], x[1, 200] = torch.nan, torch.inf
    y = fp8.simulate(x)
    assert y[0, 3].isnan()
    assert not y[1, 200].isfinite()
    assert torch.equal(y[0, 128:], x[0, 128:])


@pytest.mark.parametrize("columns", [64, 70, 200, 512])
def test_rows_are_invariant(columns: int) -> None:
    x = torch.randn(33, columns) * torch.logspace(-3, 3, 33).unsqueeze(1)
    assert_row_invariant(lambda x: fp8.simulate(x, 64), x)
    assert_row_invariant(fp8.quantise, x)


@pytest.mark.parametrize("shape", [(128, 128), (256, 384), (130, 200), (1, 1), (96, 257)])
def test_weights_round_trip(shape: tuple[int, int]) -> None:
    w = torch.randn(shape) * 0.02
    q, scale = fp8.quantise_weight(w)
    assert (q.dtype, scale.dtype) == (torch.float8_e4m3fn, torch.float8_e8m0fnu)
    assert scale.shape == fp8.scale_shape(shape)
    back = fp8.dequantise_weight(q, scale)
    assert ((back - w).abs() <= w.abs() / 16 + e8m0.decode(scale).max() * 2.0**-10).all()
    again, same = fp8.quantise_weight(back)
    assert torch.equal(fp8.dequantise_weight(again, same), back)


def test_each_weight_block_has_its_own_scale() -> None:
    w = torch.ones(130, 260)
    w[128:, :128] = 448.0 * 64
    w[:128, 256:] = 2.0**-9
    _, scale = fp8.quantise_weight(w)
    assert e8m0.decode(scale).tolist() == [[2.0**-8, 2.0**-8, 2.0**-17], [64.0, 2.0**-8, 2.0**-8]]


def test_b7_a_float32_weight_scale_is_used_as_it_is() -> None:
    q = torch.randn(130, 200).to(torch.float8_e4m3fn)
    scale = torch.tensor([[1.5, 0.7], [1.0, 3.0]])
    w = fp8.dequantise_weight(q, scale)
    assert torch.equal(w[:128, :128], q[:128, :128].float() * 1.5)
    assert torch.equal(w[128:, 128:], q[128:, 128:].float() * 3.0)


def test_b7_activation_scales_are_rounded_up_front() -> None:
    q, scale = fp8.quantise(torch.full((1, 128), 1.5 * 448.0))
    assert scale.tolist() == [[2.0]]
    assert (q.float() == 320.0).all(), "336, a tie of 320 and 352, goes to the even mantissa"


@pytest.mark.parametrize("shape", [(1, 2), (2, 3), (2, 1)])
def test_a_wrong_scale_shape_is_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(CheckpointError, match=r"not \(2, 2\)"):
        fp8.dequantise_weight(torch.ones(130, 200).to(torch.float8_e4m3fn), torch.ones(shape))
