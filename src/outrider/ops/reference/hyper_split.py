"""The three parts of a hyper-connection's mixing weights (spec 1 §3 step 2)."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.ops.reference.numerics import sigmoid


def hyper_split(
    mixes: Tensor, scale: Tensor, base: Tensor, streams: int, iterations: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """``mixes [T, (2+S)·S]``, ``scale [3]``, ``base [(2+S)·S]`` → pre ``[T, S]``, post ``[T, S]``, comb ``[T, S, S]``.

    ``comb`` is made doubly stochastic by Sinkhorn: a softmax over its last axis, then columns and rows are divided by
    their sums in turn, ``iterations`` times in all, ending with the columns.
    """
    s = streams
    pre_scale, post_scale, comb_scale = scale.unbind()
    pre = sigmoid(mixes[:, :s] * pre_scale + base[:s]).add_(eps)
    post = sigmoid(mixes[:, s : 2 * s] * post_scale + base[s : 2 * s]).mul_(2.0)
    comb = (mixes[:, 2 * s :] * comb_scale + base[2 * s :]).unflatten(-1, (s, s))
    return pre, post, _sinkhorn(torch.softmax(comb, -1).add_(eps), iterations, eps)


def _sinkhorn(comb: Tensor, iterations: int, eps: float) -> Tensor:
    """``comb [T, S, S]`` with columns, then rows and columns in turn, divided by (their sums + eps).

    The eps lies beside the matrix as one more row and column that are never divided, so that a sum has it already:
    two calls a division instead of three, of 80 in all.
    """
    rows, s = comb.shape[0], comb.shape[1]
    framed = comb.new_full((rows, s + 1, s + 1), eps)
    inner, wide, high = framed[:, :s, :s], framed[:, :s], framed[:, :, :s]
    inner.copy_(comb).div_(high.sum(-2, keepdim=True))
    for _ in range(iterations - 1):
        inner.div_(wide.sum(-1, keepdim=True))
        inner.div_(high.sum(-2, keepdim=True))
    return inner.contiguous()
