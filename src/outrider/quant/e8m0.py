"""ue8m0 scales: a byte b stands for 2^(b − 127); 255 is NaN (spec 1 §2)."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.errors import UnsupportedError

_MANTISSA = 0x007F_FFFF


def decode(scale: Tensor) -> Tensor:
    """The float32 values of a scale tensor, same shape.

    ``scale`` is float8_e8m0fnu, its raw bytes as uint8, or float32, which some converted checkpoints hold and which is
    used as it is (1.5 stays 1.5). Raises UnsupportedError for another dtype.
    """
    if scale.dtype == torch.uint8:
        scale = scale.view(torch.float8_e8m0fnu)
    if scale.dtype in (torch.float8_e8m0fnu, torch.float32):
        return scale.to(torch.float32)
    raise UnsupportedError(f"A scale has dtype {scale.dtype}; float8_e8m0fnu, uint8 or float32 was expected.")


def ceil_pow2(x: Tensor) -> Tensor:
    """The least power of two that is ≥ x, float32, same shape; x is positive and finite.

    Exact: a carry out of the mantissa raises the exponent, where a logarithm would be off by one near a power.
    Values below 2^−126 give 2^−126, the least normal number.
    """
    return ((x.view(torch.int32) + _MANTISSA) & ~_MANTISSA).view(torch.float32)


def encode(scale: Tensor) -> Tensor:
    """float32 powers of two → float8_e8m0fnu, same shape.

    Raises UnsupportedError for a value that is no power of two: keeping only its exponent would make every weight that
    it scales wrong by up to a factor of two, with no error (case B7).
    """
    bits = scale.contiguous().view(torch.int32)
    exact = (decode(_exponent(bits)) == scale).all()
    if not exact:
        wrong = scale[decode(_exponent(bits)) != scale].flatten()[0].item()
        raise UnsupportedError(
            f"A scale of {wrong} is no power of two, so ue8m0 can't hold it.",
            hint="Round it up first (ceil_pow2) and quantise with the rounded scale, or keep it in float32.",
        )
    return _exponent(bits)


def _exponent(bits: Tensor) -> Tensor:
    """The exponent bytes of float32 bit patterns, as float8_e8m0fnu."""
    return ((bits >> 23) & 0xFF).to(torch.uint8).view(torch.float8_e8m0fnu)
