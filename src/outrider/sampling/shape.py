"""From raw logits to the distribution that a request asks for: temperature, then top-k, top-p, min-p (spec 2 §3).

The target and every drafter go through this one function. A row's result doesn't depend on the other rows of the
call, to the last bit: the scaling is one subtraction and one division an entry, and cuts are made row by row, with
sums whose order no thread count changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.core import Sampling

_BUCKETS_PER_UNIT = 100
_BUCKETS = 4096
"""Buckets of ``_nucleus``: 0.01 wide, the last one for all that is e^-41 times as likely as the likeliest, or less."""


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
        _keep(row, sampling.top_k, torch.topk(row, sampling.top_k).values[-1])
    if sampling.top_p < 1.0:
        _keep(row, *_nucleus(row, sampling.top_p))
    if sampling.min_p > 0.0:
        row.masked_fill_(row.double() < math.log(sampling.min_p), -torch.inf)


def _keep(row: Tensor, count: int, edge: Tensor) -> None:
    """Cuts all but the ``count`` largest entries, the smallest of which is ``edge``; of entries equal to it the lower
    ids stay. In place."""
    keep = row >= edge
    surplus = int(keep.sum()) - count
    if surplus > 0:
        equal = torch.nonzero(row == edge).flatten()
        keep[equal[len(equal) - surplus :]] = False
    row.masked_fill_(~keep, -torch.inf)


def _nucleus(row: Tensor, top_p: float) -> tuple[int, Tensor]:
    """The fewest of the likeliest ids that reach ``top_p`` of the mass: how many, and the smallest entry among them.

    Without sorting the row: the mass is summed in buckets of similar entries, likeliest first, and only the bucket in
    which ``top_p`` is reached is sorted. All in float64 and in a fixed order.
    """
    weight = row.double().exp()
    bucket = (row * -_BUCKETS_PER_UNIT).clamp_(max=_BUCKETS - 1).long()
    reached = torch.bincount(bucket, weight, minlength=_BUCKETS).cumsum(0)
    wanted = top_p * reached[-1]
    last = int((reached < wanted).sum())
    before = reached[last - 1] if last else 0.0
    entries = row[bucket == last].sort(descending=True).values
    needed = int((before + entries.double().exp().cumsum(0) < wanted).sum())
    needed = min(needed, len(entries) - 1)  # the bucket's own sum may have been rounded differently
    return int((bucket < last).sum()) + needed + 1, entries[needed]
