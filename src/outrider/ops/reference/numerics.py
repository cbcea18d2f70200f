"""Row-invariant float32 arithmetic: matrix products, norms, sums, pointwise functions, selection.

Row-invariant means: a row's result is the same bits whatever other rows are in the call, wherever it stands among
them, and however many threads run. What makes it so is said at each function; two rules hold for all of them.

- Tensors are made contiguous first. On other layouts PyTorch falls back to scalar code, with other last bits.
- Pointwise functions are built from exp, log and exact arithmetic. torch's sigmoid, softplus and silu compute the
  last few values of a tensor by scalar code, so that a value's bits depend on where it lies.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider.quant import fp8

TILE = 4
LANES = 16
ALIGNMENT = 64
_LONGEST_SUM = 16384  # threads share the sum of a single row that is long: measured from 65,536 values on


def linear(x: Tensor, w: Tensor) -> Tensor:
    """``x [T, in] @ w [out, in]ᵀ`` → ``[T, out]``, float32; T may be 0.

    A matrix product picks its order of additions by its shape, so the shape is fixed: tiles of exactly four rows, the
    last one filled up with zeros. What else was needed, measured with torch 2.13 and MKL on AVX-512 (T = 1…33, out
    1…120 and up to 4,096, in 1…100,001, 1 to 16 threads; without each of these some bits differed):

    - ``in`` a multiple of 4: otherwise up to 11 outputs depend on the row's place in the tile. Others are filled up
      with zeros here, which copies the weight; real ones are multiples of 32.
    - Outputs beyond the last multiple of 16 in a product of their own: in one product they depend on how many threads
      share it, from three on.
    - Each tile begins at a multiple of 64 bytes.
    """
    (rows, inputs), outputs = x.shape, w.shape[0]
    missing, odd = -rows % TILE, -inputs % 4
    if odd:
        x, w = F.pad(x, (0, odd)), F.pad(w, (0, odd))
    x = F.pad(x, (0, 0, 0, missing)) if missing else x.contiguous()
    out = x.new_empty(rows + missing, outputs)
    edge = outputs - outputs % LANES
    parts = [part for part in (slice(0, edge), slice(edge, outputs)) if part.start < part.stop]
    for start in range(0, rows, TILE):
        tile = aligned(x[start : start + TILE])
        for part in parts:
            torch.mm(tile, w[part].t(), out=out[start : start + TILE, part])
    return out[:rows]


def aligned(x: Tensor) -> Tensor:
    """``x``, or a copy of it that starts at a multiple of 64 bytes, as every fresh tensor does."""
    return x.clone() if x.data_ptr() % ALIGNMENT else x


def tree_sum(x: Tensor, dim: int) -> Tensor:
    """The sum over ``dim`` (which goes away) by halving: lane i takes lane i + n/2, n a power of two.

    Missing lanes count as zeros, so trailing zero lanes change nothing. Only elementwise additions, hence invariant
    whatever the other dims are.
    """
    width = 1 << max(x.shape[dim] - 1, 0).bit_length()
    while width > 1:
        width //= 2
        high = x.shape[dim] - width
        low = x.narrow(dim, 0, width)
        if high < width:
            low = low.clone()
            low.narrow(dim, 0, high).add_(x.narrow(dim, width, high))
            x = low
        else:
            x = low + x.narrow(dim, width, width)
    return x.squeeze(dim)


def row_mean(x: Tensor) -> Tensor:
    """Mean over the last dim, kept as a dim of 1. Invariant for rows of a fixed length."""
    columns = x.shape[-1]
    x = x.contiguous()
    while x.shape[-1] > _LONGEST_SUM:
        low, high = F.pad(x, (0, x.shape[-1] % 2)).chunk(2, -1)
        x = low + high
    return x.sum(-1, keepdim=True) / columns


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """``x · rsqrt(mean(x²) + eps) · weight`` over the last dim, float32, any leading dims (spec 1 §2)."""
    x = x.contiguous()
    normed = x * torch.rsqrt(row_mean(x * x) + eps)
    return normed if weight is None else normed * weight


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + e^−x), float32."""
    return torch.exp(-x.contiguous()).add_(1.0).reciprocal_()


def silu(x: Tensor) -> Tensor:
    """x · sigmoid(x), float32."""
    return x * sigmoid(x)


def softplus(x: Tensor) -> Tensor:
    """log(1 + e^x), float32, to a few last bits for any x: max(x, 0) + log1p(e^−|x|).

    log1p(y) is y · log(u) / (u − 1) with u = 1 + y rounded (Kahan), in which the rounding of u cancels.
    """
    x = x.contiguous()
    y = torch.exp(-x.abs())
    u = y + 1.0
    tail = torch.where(u == 1.0, y, y * torch.log(u) / (u - 1.0))
    return x.clamp_min(0.0) + tail


def softmax_over(x: Tensor, dim: int) -> Tensor:
    """Softmax over ``dim``, float32; a lane of −inf gets exactly 0, and trailing ones change nothing.

    The largest lane of each sum must be finite.
    """
    weights = torch.exp((x - x.amax(dim, keepdim=True)).contiguous())
    return weights / tree_sum(weights, dim).unsqueeze(dim)


def hadamard(x: Tensor) -> Tensor:
    """Hadamard transform over the last dim (a power of two, n), scaled by 1/√n; float32, same shape.

    log₂ n steps of one geometry: sum and difference of lanes i and i + n/2 go to lanes 2i and 2i + 1, so that the two
    sets of views serve every step and a step is two calls.
    """
    n = x.shape[-1]
    this = x.reshape(-1, n).clone()
    other = torch.empty_like(this)
    there, back = _butterfly(this, other), _butterfly(other, this)
    for _ in range(n.bit_length() - 1):
        low, high, even, odd = there
        torch.add(low, high, out=even)
        torch.sub(low, high, out=odd)
        this, other, there, back = other, this, back, there
    return this.mul_(1.0 / math.sqrt(n)).view(x.shape)


def _butterfly(source: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Views on ``[M, n]`` buffers: the lower and upper half of the source, the even and odd lanes of the target."""
    half = source.shape[1] // 2
    return source[:, :half], source[:, half:], target[:, 0::2], target[:, 1::2]


def top_k_by_rule(scores: Tensor, k: int) -> Tensor:
    """``[T, N]`` float32 → int64 ``[T, min(k, N)]``: the lanes of the k largest scores, best first.

    Equal scores go by the lowest lane, and −0 equals +0: torch.topk breaks ties otherwise for every shape (spec 1 §3).
    """
    order = torch.sort(scores, dim=-1, descending=True, stable=True).indices
    return order[:, : min(k, scores.shape[-1])]


def activation(x: Tensor, block: int = fp8.BLOCK) -> Tensor:
    """What a quantised linear sees of its input ``[..., N]``: FP8 in blocks along N, dequantised (spec 1 §2)."""
    return fp8.simulate(x, block)
