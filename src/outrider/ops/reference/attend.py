"""Attention of one shared K = V head over lanes gathered for each query (spec 1 §3)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

LANES = 64
"""Keys of one tile: sums over keys are made tile by tile."""


def attend(q: Tensor, kv: Tensor, mask: Tensor, sink: Tensor, scale: float) -> Tensor:
    """Queries ``[T, H, D]`` over their own keys ``kv [T, N, D]`` → ``[T, H, D]``, all float32.

    One softmax over the lanes where ``mask [T, N]`` (bool) is true; ``sink [H]`` (finite) only adds exp(sink) to the
    denominator, so a query that sees nothing gets zeros. What lies in a masked lane is replaced, not weighted by zero,
    so a NaN there can't leak. Lanes are taken in tiles of 64 in ascending order: trailing masked lanes, in any number,
    change no bit.
    """
    tiles = -(-kv.shape[1] // LANES)
    missing = tiles * LANES - kv.shape[1]
    kv = F.pad(kv.masked_fill(~mask.unsqueeze(-1), 0.0), (0, 0, 0, missing))
    parts = kv.unflatten(1, (tiles, LANES)).unbind(1)
    hidden = ~F.pad(mask, (0, missing)).unsqueeze(1)
    scores = torch.cat([torch.bmm(q, part.transpose(1, 2)) for part in parts], -1).mul_(scale)
    scores.masked_fill_(hidden, -torch.inf)
    sink = sink.unsqueeze(-1)
    top = torch.maximum(scores.amax(-1, keepdim=True), sink)
    weights = torch.exp(scores - top)
    total = torch.exp(sink - top)
    out = torch.zeros_like(q)
    for part, weight in zip(parts, weights.split(LANES, -1), strict=True):
        total = total + weight.sum(-1, keepdim=True)
        out += torch.bmm(weight, part)
    return out / total
