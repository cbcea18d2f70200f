"""Rotary positions on interleaved pairs, with YaRN for compressed layers (spec 1 §3)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from outrider.config.model import Yarn


def inverse_frequencies(rope_dim: int, theta: float, yarn: Yarn | None) -> Tensor:
    """float32 ``[R/2]``: 1/θ^(2i/R), slowed down by YaRN where given.

    In float32 throughout: a frequency that is one last bit off turns by 1e-3 at position 70,000.
    """
    steps = torch.arange(0, rope_dim, 2, dtype=torch.float32) / rope_dim
    freqs = 1.0 / theta**steps
    if yarn is None:
        return freqs
    low = max(math.floor(_turning_pair(yarn.beta_fast, rope_dim, theta, yarn)), 0)
    high = min(math.ceil(_turning_pair(yarn.beta_slow, rope_dim, theta, yarn)), rope_dim - 1)
    span = high - low if high != low else 0.001
    ramp = ((torch.arange(rope_dim // 2, dtype=torch.float32) - low) / span).clamp(0.0, 1.0)
    smooth = 1.0 - ramp
    return freqs / yarn.factor * (1.0 - smooth) + freqs * smooth


def _turning_pair(beta: float, rope_dim: int, theta: float, yarn: Yarn) -> float:
    """The (fractional) index of the pair that turns ``beta`` times within the original length."""
    return rope_dim * math.log(yarn.original_max_position_embeddings / (beta * 2 * math.pi)) / (2 * math.log(theta))


def rope_angles(positions: Tensor, freqs: Tensor) -> tuple[Tensor, Tensor]:
    """int64 ``[T]`` and float32 ``[R/2]`` → (cos, sin), float32 ``[T, R/2]``.

    The angle is the float32 product (spec 1 §3); cos and sin are computed in float64 and rounded.
    """
    angles = (positions.to(torch.float32).unsqueeze(-1) * freqs).double()
    return angles.cos().float(), angles.sin().float()


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool = False) -> Tensor:
    """Turn the pairs (2i, 2i+1) of ``x [T, …, R]`` by the angles of ``[T, R/2]``, or back (``inverse``); float32.

    Exact elementwise arithmetic only (a complex product may fuse its multiplications).
    """
    between = (1,) * (x.dim() - 2)
    cos = cos.reshape(cos.shape[0], *between, cos.shape[1])
    sin = sin.reshape(cos.shape)
    even, odd = x[..., 0::2], x[..., 1::2]
    if inverse:
        sin = -sin
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)
