"""FP4 (e2m1) with one power-of-two scale for each 32 values: expert weights and indexer rows (spec 1 §2).

A code is four bits: 0–7 stand for 0, .5, 1, 1.5, 2, 3, 4, 6, bit 3 is the sign. Two codes share a byte, the one of the
even input index in the low half.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.errors import CheckpointError, UnsupportedError
from outrider.quant import e8m0

BLOCK = 32
LARGEST = 6.0
FLOOR = 6.0 * 2.0**-126  # least amax of a block: its scale is the least normal number
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_VALUES = (*_MAGNITUDES, *(-m for m in _MAGNITUDES))


def pack(codes: Tensor) -> Tensor:
    """Codes 0–15 ``[..., N]``, N even → int8 ``[..., N/2]``."""
    codes = codes.to(torch.uint8)
    return (codes[..., 0::2] | (codes[..., 1::2] << 4)).view(torch.int8)


def unpack(packed: Tensor) -> Tensor:
    """int8 or uint8 ``[..., N/2]`` → codes, uint8 ``[..., N]``."""
    raw = packed.view(torch.uint8)
    return torch.stack((raw & 0xF, raw >> 4), -1).flatten(-2)


def decode(codes: Tensor) -> Tensor:
    """Codes 0–15 → their float32 values, same shape."""
    return torch.tensor(_VALUES, dtype=torch.float32, device=codes.device)[codes.to(torch.int32)]


def round_to_code(x: Tensor) -> Tensor:
    """Finite float32 → the code (uint8) of the nearest e2m1 number, ties to the even code, saturating at ±6."""
    edges = torch.tensor(_MAGNITUDES[1:], dtype=torch.float32, device=x.device)
    magnitude = torch.bucketize(_round(x).abs(), edges, right=True)
    return (magnitude + 8 * torch.signbit(x)).to(torch.uint8)


def simulate(x: Tensor, block: int = BLOCK) -> Tensor:
    """Quantise and dequantise at once: float32 ``[..., N]`` → the same shape, float32. N is a multiple of ``block``.

    A row's result depends on that row only. NaN stays NaN.
    """
    blocks = _blocks(x, block)
    scale = _scale(blocks)
    return (_round(blocks / scale) * scale).flatten(-2)


def scale_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """The shape of the scales of a weight of logical shape ``[out, in]``."""
    return shape[0], shape[1] // BLOCK


def quantise_weight(w: Tensor) -> tuple[Tensor, Tensor]:
    """Float32 ``[out, in]``, in a multiple of 32 → (packed int8 ``[out, in/2]``, float8_e8m0fnu ``[out, in/32]``)."""
    blocks = _blocks(w, BLOCK)
    scale = _scale(blocks)
    return pack(round_to_code(blocks / scale).flatten(-2)), e8m0.encode(scale.squeeze(-1))


def dequantise_weight(packed: Tensor, scale: Tensor) -> Tensor:
    """Packed ``[out, in/2]`` times the scale of each 32 inputs (ue8m0 or float32) → float32 ``[out, in]``.

    Raises CheckpointError where the scales have another shape.
    """
    shape = (packed.shape[0], 2 * packed.shape[1])
    if tuple(scale.shape) != scale_shape(shape):
        raise CheckpointError(f"Scales of an FP4 weight {shape} are {tuple(scale.shape)}, not {scale_shape(shape)}.")
    values = decode(unpack(packed)).unflatten(-1, (-1, BLOCK))
    return values.mul_(e8m0.decode(scale).unsqueeze(-1)).flatten(-2)


def _blocks(x: Tensor, block: int) -> Tensor:
    """``[..., N]`` → contiguous ``[..., N/block, block]``."""
    if x.shape[-1] % block:
        raise UnsupportedError(f"FP4 needs rows of a multiple of {block} values; this one has {x.shape[-1]}.")
    return x.contiguous().unflatten(-1, (-1, block))


def _scale(blocks: Tensor) -> Tensor:
    """The scale of each block: its largest magnitude, floored, over 6, rounded up; last dim 1."""
    return e8m0.ceil_pow2(blocks.abs().amax(-1, keepdim=True).clamp_min(FLOOR).div_(LARGEST))


def _round(x: Tensor) -> Tensor:
    """To the nearest e2m1 number, ties to the even code, saturating.

    Numbers stand .5 apart below 2, 1 apart below 4, then 2 apart; in units of that step an even code is an even
    integer, so rounding half to even is the rule wanted. A value just below a border rounds up onto it either way.
    """
    size = x.abs()
    step = 0.5 + 0.5 * (size >= 2.0) + (size >= 4.0)
    return (torch.round(x / step) * step).clamp(-LARGEST, LARGEST)
