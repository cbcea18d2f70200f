"""FP8 (e4m3) with one power-of-two scale a block: activations, KV rows and weights (spec 1 §2)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider.errors import CheckpointError
from outrider.quant import e8m0

BLOCK = 128
LARGEST = 448.0
FLOOR = 1e-4  # least amax of a block: keeps the scale of a block of zeros finite


def quantise(x: Tensor, block: int = BLOCK) -> tuple[Tensor, Tensor]:
    """Float32 ``[..., N]`` → (float8_e4m3fn ``[..., N]``, float32 scales ``[..., ⌈N/block⌉]``, powers of two).

    One scale for each ``block`` values along the last dim, the last block may be short: max|x| of the block, at least
    1e-4, divided by 448, rounded up. A row's result depends on that row only. NaN stays NaN.
    """
    blocks = _blocks(x, block)
    scale = _scale(blocks.abs().amax(-1, keepdim=True))
    q = _round(blocks / scale).flatten(-2)
    return q[..., : x.shape[-1]], scale.squeeze(-1)


def simulate(x: Tensor, block: int = BLOCK) -> Tensor:
    """Quantise and dequantise at once: float32 ``[..., N]`` → the same shape, float32. KV rows use ``block=64``."""
    blocks = _blocks(x, block)
    scale = _scale(blocks.abs().amax(-1, keepdim=True))
    return (_round(blocks / scale).to(torch.float32) * scale).flatten(-2)[..., : x.shape[-1]]


def scale_shape(shape: tuple[int, ...], block: int = BLOCK) -> tuple[int, int]:
    """The shape of the scales of a weight ``[out, in]``: one a ``block`` × ``block`` square, edges may be short."""
    rows, columns = shape
    return -(-rows // block), -(-columns // block)


def quantise_weight(w: Tensor, block: int = BLOCK) -> tuple[Tensor, Tensor]:
    """Float32 ``[out, in]`` → (float8_e4m3fn ``[out, in]``, float8_e8m0fnu scales of ``scale_shape``)."""
    high, wide = scale_shape(tuple(w.shape), block)
    padded = F.pad(w, (0, wide * block - w.shape[1], 0, high * block - w.shape[0]))
    scale = _scale(padded.view(high, block, wide, block).abs().amax((1, 3)))
    q = _round(w / _spread(scale, tuple(w.shape), block))
    return q, e8m0.encode(scale)


def dequantise_weight(q: Tensor, scale: Tensor, block: int = BLOCK) -> Tensor:
    """FP8 ``[out, in]`` times the scale of each block → float32 ``[out, in]``. Exact for power-of-two scales.

    ``scale`` is ue8m0 or float32, of ``scale_shape``; raises CheckpointError for another shape.
    """
    expected = scale_shape(tuple(q.shape), block)
    if tuple(scale.shape) != expected:
        raise CheckpointError(f"Scales of an FP8 weight {tuple(q.shape)} are {tuple(scale.shape)}, not {expected}.")
    return q.to(torch.float32) * _spread(e8m0.decode(scale), tuple(q.shape), block)


def _blocks(x: Tensor, block: int) -> Tensor:
    """``[..., N]`` → contiguous ``[..., ⌈N/block⌉, block]``, the last block filled up with zeros."""
    short = -x.shape[-1] % block
    padded = F.pad(x, (0, short)) if short else x.contiguous()
    return padded.unflatten(-1, (-1, block))


def _scale(amax: Tensor) -> Tensor:
    return e8m0.ceil_pow2(amax.clamp_min(FLOOR).div_(LARGEST))


def _round(x: Tensor) -> Tensor:
    """To the nearest e4m3 number, ties to even, saturating."""
    return x.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)


def _spread(scale: Tensor, shape: tuple[int, ...], block: int) -> Tensor:
    """Block scales repeated to one a value of a weight ``shape``."""
    wide = scale.repeat_interleave(block, 0)[: shape[0]]
    return wide.repeat_interleave(block, 1)[:, : shape[1]]
