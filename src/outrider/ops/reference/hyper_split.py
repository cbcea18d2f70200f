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
    pre = sigmoid(mixes[:, :s] * scale[0] + base[:s]) + eps
    post = 2.0 * sigmoid(mixes[:, s : 2 * s] * scale[1] + base[s : 2 * s])
    comb = (mixes[:, 2 * s :] * scale[2] + base[2 * s :]).unflatten(-1, (s, s))
    comb = torch.softmax(comb, -1) + eps
    comb.div_(comb.sum(-2, keepdim=True).add_(eps))
    for _ in range(iterations - 1):
        comb.div_(comb.sum(-1, keepdim=True).add_(eps))
        comb.div_(comb.sum(-2, keepdim=True).add_(eps))
    return pre, post, comb
