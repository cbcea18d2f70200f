"""Sampling noise as a pure function of (seed, sample index, position, purpose, token id), spec 2 §3 and design §7.

The integer generator is normative: Philox-4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as
1, 2, 3", 2011). Its key is the request's 64-bit seed, low half first; its counter is (token id // 4, position, sample
index, purpose), and word ``token id % 4`` of the four that come out belongs to the token. A word x becomes the uniform
u = (x + 0.5) / 2^32, strictly inside (0, 1), and that the Gumbel value -log(-log(u)), inside [-3.14, 22.88].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

GUMBEL_MIN, GUMBEL_MAX = -3.14, 22.88
"""Bounds of every Gumbel value: the uniforms lie in [2^-33, 1 - 2^-33]."""


class Purpose(IntEnum):
    """What noise is drawn for; different purposes are independent."""

    TARGET = 0
    """The target's own pick, and the coupled draft, which must meet the same noise."""


@dataclass(frozen=True)
class NoiseKeys:
    """What the noise of R rows depends on, besides the token id: ``columns`` is int64 [5, R], values below 2^32: the
    low and the high half of the seed, position, sample index, purpose."""

    columns: Tensor

    @classmethod
    def of(cls, seeds: Sequence[int], samples: Sequence[int], positions: Sequence[int], purpose: Purpose) -> NoiseKeys:
        """One key a row from plain integers; a negative seed counts as its 64-bit two's complement."""
        halves = [seed & _MASK for seed in seeds], [(seed >> 32) & _MASK for seed in seeds]
        columns = (*halves, list(positions), list(samples), [int(purpose)] * len(seeds))
        return cls(torch.tensor(columns, dtype=torch.int64))

    def take(self, rows: Tensor) -> NoiseKeys:
        """The keys of ``rows`` (int64 [N]), in that order, repeats allowed, on the device of ``rows``.

        The key of a single row is left as one column, which serves any number of blocks.
        """
        columns = self.columns.to(rows.device)
        return NoiseKeys(columns if columns.shape[1] == 1 else columns[:, rows])


def philox(counter: Tensor, key: Tensor) -> Tensor:
    """Philox-4x32-10 of N counters: int64 [4, N] and keys int64 [2, N or 1], values below 2^32 → int64 [4, N].

    A product of two 32-bit numbers wraps in int64 but loses no bit; its halves are masked where they are used.
    """
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for n in range(_ROUNDS):
        p0, p1 = x0 * _MULTIPLIERS[0], x2 * _MULTIPLIERS[1]
        x0 = (p1 >> 32).bitwise_xor_(x1).bitwise_xor_(k0 + n * _WEYL[0]).bitwise_and_(_MASK)
        x2 = (p0 >> 32).bitwise_xor_(x3).bitwise_xor_(k1 + n * _WEYL[1]).bitwise_and_(_MASK)
        x1, x3 = p1, p0
    return torch.stack((x0, x1.bitwise_and_(_MASK), x2, x3.bitwise_and_(_MASK)))


def words(keys: NoiseKeys, blocks: Tensor) -> Tensor:
    """The random words of N blocks of four ids: ``blocks`` int64 [N], a key for each or one for all → int64 [N, 4]."""
    counter = torch.cat((blocks[None], keys.columns[2:].expand(3, len(blocks))))
    return philox(counter, keys.columns[:2]).T


def _exponential(words: Tensor) -> Tensor:
    """-log(u) in float64, where u = (x + 0.5) / 2^32 is exact."""
    return words.double().add_(0.5).mul_(2.0**-32).log_().neg_()


def gumbel(words: Tensor) -> Tensor:
    """Gumbel values of random words, any shape: int64 → float64."""
    return _exponential(words).log_().neg_()


def gumbel_fast(words: Tensor) -> Tensor:
    """``gumbel`` to within 1e-5, as float32. Only the last logarithm is single: the first one would lose the largest
    values, whose uniforms lie nearer to 1 than float32 can tell."""
    return _exponential(words).float().log_().neg_()


def gumbel64(seed: int, sample: int, position: int, purpose: Purpose, ids: Tensor) -> Tensor:
    """The Gumbel value of each of ``ids`` (int64 [N]) at one position: float64 [N]."""
    keys = NoiseKeys.of([seed], [sample], [position], purpose).take(ids)
    lanes = words(keys, ids // 4).gather(1, (ids % 4).unsqueeze(1))
    return gumbel(lanes.squeeze(1))
