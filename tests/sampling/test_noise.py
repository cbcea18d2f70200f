"""The noise: Philox against published vectors, uniforms and Gumbel values against exact arithmetic, independence."""

from __future__ import annotations

import math

import pytest
import torch

from outrider.sampling.noise import (
    GUMBEL_MAX,
    GUMBEL_MIN,
    NoiseKeys,
    Purpose,
    gumbel,
    gumbel64,
    gumbel_fast,
    philox,
    words,
)

# Random123's known answers for philox4x32 with 10 rounds: counter, key, result.
KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


def columns(*values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64).T.contiguous()


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_meets_the_known_answers(counter: list[int], key: list[int], expected: list[int]) -> None:
    assert philox(columns(counter), columns(key)).flatten().tolist() == expected


def test_philox_is_the_same_for_many_counters_at_once() -> None:
    counters, keys, results = (columns(*part) for part in zip(*KNOWN, strict=True))
    assert torch.equal(philox(counters, keys), results)
    assert torch.equal(philox(counters, keys[:, 1:2])[:, 1], results[:, 1])


def test_the_counter_is_block_position_sample_purpose_and_the_key_is_the_seed() -> None:
    seed, sample, position = 0x299F31D0_A4093822, 0x13198A2E, 0x85A308D3
    keys = NoiseKeys(torch.tensor([[seed & 0xFFFFFFFF], [seed >> 32], [position], [sample], [0x03707344]]))
    assert words(keys, torch.tensor([0x243F6A88])).tolist() == [KNOWN[2][2]]
    made = NoiseKeys.of([seed], [sample], [position], Purpose.TARGET)
    assert made.columns.flatten().tolist() == [seed & 0xFFFFFFFF, seed >> 32, position, sample, 0]


def test_a_token_has_its_lane_of_its_block() -> None:
    ids = torch.tensor([0, 1, 2, 3, 4, 7, 129_279, 5])
    whole = gumbel(words(NoiseKeys.of([9], [2], [11], Purpose.TARGET), torch.arange(32_320))).flatten()
    assert torch.equal(gumbel64(9, 2, 11, Purpose.TARGET, ids), whole[ids])


def test_a_value_depends_on_neither_its_place_nor_its_neighbours() -> None:
    """To the bit, in float64: whatever a vectorised logarithm does at the edges of its lanes."""
    ids = torch.arange(301)
    whole = gumbel64(1, 0, 5, Purpose.TARGET, ids)
    for n in range(0, 301, 7):
        assert torch.equal(gumbel64(1, 0, 5, Purpose.TARGET, ids[n : n + 3]), whole[n : n + 3])


def test_gumbel_is_exact_at_both_ends() -> None:
    ends = torch.tensor([0, 1, 2**31, 2**32 - 2, 2**32 - 1])
    exact = [-math.log(-math.log1p(-(2**32 - x - 0.5) / 2**32)) for x in ends.tolist()]
    exact[0], exact[1] = -math.log(33 * math.log(2)), -math.log(33 * math.log(2) - math.log(3))
    assert torch.allclose(gumbel(ends), torch.tensor(exact, dtype=torch.float64), rtol=1e-12, atol=0)
    assert gumbel(ends).min() > GUMBEL_MIN and gumbel(ends).max() < GUMBEL_MAX


def test_the_fast_form_is_within_its_bound() -> None:
    ends = torch.arange(1000)
    random = torch.randint(2**32, (200_000,), generator=torch.Generator().manual_seed(0))
    every = torch.cat((ends, 2**32 - 1 - ends, random))
    assert (gumbel_fast(every).double() - gumbel(every)).abs().max() < 1e-5


def test_the_distribution_is_gumbel() -> None:
    """Kolmogorov-Smirnov against exp(-exp(-x)): the 1 % point of 100,000 values is 0.0052."""
    values = gumbel64(123, 0, 0, Purpose.TARGET, torch.arange(100_000)).sort().values
    steps = torch.arange(1, 100_001) / 100_000
    assert (torch.exp(-torch.exp(-values)) - steps).abs().max() < 0.0052


@pytest.mark.parametrize(
    ("seed", "sample", "position"),
    [(8, 0, 0), (7 + 2**32, 0, 0), (7 + 2**63, 0, 0), (-7, 0, 0), (7, 1, 0), (7, 0, 1), (7, 0, 2**20)],
)
def test_streams_are_independent(seed: int, sample: int, position: int) -> None:
    ids = torch.arange(20_000)
    base = gumbel64(7, 0, 0, Purpose.TARGET, ids)
    other = gumbel64(seed, sample, position, Purpose.TARGET, ids)
    correlation = torch.corrcoef(torch.stack((base, other)))[0, 1]
    assert abs(correlation) < 4 / math.sqrt(20_000)


def test_a_negative_seed_is_its_twos_complement() -> None:
    ids = torch.arange(8)
    assert torch.equal(gumbel64(-1, 0, 0, Purpose.TARGET, ids), gumbel64(2**64 - 1, 0, 0, Purpose.TARGET, ids))
