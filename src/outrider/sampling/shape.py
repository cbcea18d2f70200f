"""From raw logits to the distribution that a request asks for: temperature, then top-k, top-p, min-p (spec 2 §3).

The target and every drafter go through this one function. A row's result doesn't depend on the other rows of the
call, to the last bit: the scaling is one subtraction and one division an entry, cuts are made row by row, and the only
long sum is taken in tiles of fixed size, so that no thread count changes it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from outrider.core import Sampling

_FIRST_NUCLEUS = 256
_NUCLEUS_GROWTH = 8
_SUM_TILE = 1024


def shape(logits: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Logits of the distributions to draw from: float32 [R, V] and one Sampling a row → a new float32 [R, V].

    A sampled row becomes (logit - largest logit) / temperature, so that its largest entry is exactly 0, and ids that
    are cut are -inf. Of equal logits at the edge of a cut the lower ids stay. Greedy rows come back as they are, and so
    do rows without a distribution (a NaN, a +inf, or nothing but -inf), which ``pick`` reports.
    """
    top = logits.amax(-1)
    sampled = [not sampling.greedy and math.isfinite(t) for sampling, t in zip(samplings, top.tolist(), strict=True)]
    shift = torch.where(torch.tensor(sampled, device=top.device), top, 0.0)
    scale = [float(s.temperature or 1.0) if use else 1.0 for s, use in zip(samplings, sampled, strict=True)]
    shaped = (logits - shift[:, None]) / torch.tensor(scale, device=top.device)[:, None]
    for row, sampling, use in zip(shaped, samplings, sampled, strict=True):
        if use:
            _cut(row, sampling)
    return shaped


def _cut(row: Tensor, sampling: Sampling) -> None:
    """Applies the three cuts to one scaled row, in place."""
    if 0 < sampling.top_k < len(row):
        _keep_top(row, sampling.top_k)
    if sampling.top_p < 1.0:
        _keep_top(row, _nucleus_size(row, sampling.top_p))
    if sampling.min_p > 0.0:
        row.masked_fill_(row.double() < math.log(sampling.min_p), -torch.inf)


def _keep_top(row: Tensor, count: int) -> None:
    """Cuts all but the ``count`` largest entries, the lower ids first among equals. In place."""
    if count >= len(row):
        return
    edge = torch.topk(row, count).values[-1]
    keep = row > edge
    equal = torch.nonzero(row == edge).flatten()
    keep[equal[: count - int(keep.sum())]] = True
    row.masked_fill_(~keep, -torch.inf)


def _nucleus_size(row: Tensor, top_p: float) -> int:
    """How many of the likeliest ids it takes to reach ``top_p`` of the mass. Sorts no more of the row than needed."""
    wanted = top_p * _mass(row)
    size = min(_FIRST_NUCLEUS, len(row))
    while True:
        reached = torch.topk(row, size).values.double().exp().cumsum(0)
        if size == len(row) or reached[-1] >= wanted:
            return int((reached < wanted).sum()) + 1
        size = min(size * _NUCLEUS_GROWTH, len(row))


def _mass(row: Tensor) -> float:
    """The sum of exp over one row, in float64 and in a fixed order."""
    tiles = pad(row.double().exp(), (0, -len(row) % _SUM_TILE)).view(-1, _SUM_TILE)
    return float(tiles.sum(-1).sum())
