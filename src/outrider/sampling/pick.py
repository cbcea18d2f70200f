"""The coupled pick (spec 2 §3, design §7): argmax of shaped logit + Gumbel noise, or of the logit where greedy.

The verifier takes the target's token with it and the drafter its drafts, with the same noise at a position: so a draft
is accepted iff the two agree, and a text doesn't depend on drafting. Exactness: a fast float32 pass finds each row's
best perturbed score, then the ids within its error bound are compared again in float64, ties to the lowest id. A row's
token doesn't depend on the other rows of the call.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from outrider.core import Sampling
from outrider.sampling.noise import GUMBEL_MAX, GUMBEL_MIN, NoiseKeys, Purpose, gumbel, gumbel_fast, words
from outrider.sampling.shape import shape

NO_TOKEN = -1
"""What ``pick`` answers for a row that has no distribution."""

_HOPELESS = GUMBEL_MIN - GUMBEL_MAX
"""A shaped logit below this loses to the largest one (which is 0) whatever the noise: none needs to be drawn."""

_MARGIN = 1e-4
"""Ids within this of the fast pass's best are compared again. Its error is below 2e-5 for any score that can win:
1e-5 of ``gumbel_fast``, and a float32 rounding of a sum below 23."""

_ENTRIES_AT_ONCE = 1 << 17
"""Rows are drawn for in groups of about so many entries, which keeps the temporaries in cache."""


def pick(
    logits: Tensor,
    samplings: Sequence[Sampling],
    seeds: Sequence[int],
    positions: Sequence[int],
    sample_indices: Sequence[int] | None = None,
    *,
    vocab_limit: int | None = None,
) -> list[int]:
    """One token id a row, from raw logits float32 [R, V].

    Row r is the choice for position ``positions[r]`` of sample ``sample_indices[r]`` (all 0 where None) of a request
    with that seed. ``vocab_limit`` restricts the choice to the first so many ids. A row without a distribution (a NaN,
    a +inf, or nothing but -inf) gives ``NO_TOKEN``: the caller names the request and position in its error.
    """
    logits = logits[:, :vocab_limit]
    top = logits.amax(-1)
    usable = torch.isfinite(top).tolist()
    greedy = [r for r, sampling in enumerate(samplings) if usable[r] and sampling.greedy]
    sampled = [r for r, sampling in enumerate(samplings) if usable[r] and not sampling.greedy]
    samples = sample_indices or [0] * len(samplings)
    chosen = dict(zip(greedy, _lowest_argmax(logits[greedy], top[greedy]), strict=True))
    group = max(1, _ENTRIES_AT_ONCE // logits.shape[1])
    for rows in (sampled[n : n + group] for n in range(0, len(sampled), group)):
        shaped = shape(logits[rows], [samplings[r] for r in rows])
        seed, sample, position = ([values[r] for r in rows] for values in (seeds, samples, positions))
        keys = NoiseKeys.of(seed, sample, position, Purpose.TARGET)
        chosen |= dict(zip(rows, _draw(shaped, keys), strict=True))
    return [chosen.get(r, NO_TOKEN) for r in range(len(samplings))]


def _lowest_argmax(logits: Tensor, top: Tensor) -> list[int]:
    """The lowest id at which each row holds its largest value ``top``: [R, V], [R]. (argmax promises no order.)"""
    vocab = logits.shape[1]
    ids = torch.arange(vocab, dtype=torch.int32, device=logits.device)
    return list(torch.where(logits == top[:, None], ids, vocab).amin(-1).tolist())


def _draw(shaped: Tensor, keys: NoiseKeys) -> list[int]:
    """The id with the largest shaped logit + Gumbel noise in each row: float32 [R, V], keys of R rows."""
    blocks = pad(shaped, (0, -shaped.shape[1] % 4), value=-torch.inf).view(len(shaped), -1, 4)
    row, block = torch.nonzero(blocks.amax(-1) >= _HOPELESS, as_tuple=True)
    values = blocks.flatten(0, 1).index_select(0, row * blocks.shape[1] + block)
    random = words(keys.take(row), block)
    fast = values + gumbel_fast(random)
    top = fast.amax(-1)
    bar = top.new_full((len(shaped),), -torch.inf).scatter_reduce(0, row, top, "amax") - _MARGIN
    close = torch.nonzero(top >= bar.index_select(0, row)).flatten()
    row, block, values, random = row[close], block[close], values[close], random[close]
    near, lane = torch.nonzero(fast[close] >= bar[row][:, None], as_tuple=True)
    exact = values[near, lane].double() + gumbel(random[near, lane])
    return _winners(row[near].tolist(), (block[near] * 4 + lane).tolist(), exact.tolist())


def _winners(rows: list[int], ids: list[int], scores: list[float]) -> list[int]:
    """Each row's id of largest score. Rows and ids ascend, so of equal scores the first met has the lowest id."""
    best: dict[int, tuple[float, int]] = {}
    for row, id, score in zip(rows, ids, scores, strict=True):
        if row not in best or score > best[row][0]:
            best[row] = (score, id)
    return [id for _, id in best.values()]
