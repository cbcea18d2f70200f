"""Shaping: temperature and the three cuts against a sorting oracle, ties, and rows that don't depend on each other."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.core import Sampling
from outrider.sampling.shape import shape

INF = math.inf
SAMPLED = Sampling(temperature=1.0)


def survivors(row: list[float], sampling: Sampling) -> list[int]:
    """Ids that stay, by sorting: likeliest first, the lower id first among equals."""
    top = max(row)
    scaled = [(torch.tensor(x - top) / torch.tensor(sampling.temperature)).item() for x in row]
    order = sorted((id for id in range(len(row)) if scaled[id] > -INF), key=lambda id: (-scaled[id], id))
    order = order[: sampling.top_k or None]
    total = math.fsum(math.exp(scaled[id]) for id in order)
    if sampling.top_p < 1:
        before = [math.fsum(math.exp(scaled[id]) for id in order[:n]) for n in range(len(order))]
        order = [id for n, id in enumerate(order) if before[n] < sampling.top_p * total]
    return sorted(id for id in order if math.exp(scaled[id]) >= sampling.min_p)


def kept(row: torch.Tensor, sampling: Sampling) -> list[int]:
    (shaped,) = shape(row[None], [sampling])
    return torch.nonzero(shaped > -INF).flatten().tolist()


LEVELS = st.sampled_from([0.0, -1.0, -1.5, 2.0, 2.25, -40.0, -60.0, -INF])
SAMPLINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.25, 0.7, 1.0, 3.0]),
    top_k=st.integers(0, 14),
    top_p=st.sampled_from([1e-9, 0.13, 0.5, 0.77, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.04, 0.3, 0.9]),
)


@given(st.lists(LEVELS, min_size=1, max_size=12), st.floats(-3, 3, width=32), SAMPLINGS)
def test_cuts_are_what_sorting_gives(levels: list[float], extra: float, sampling: Sampling) -> None:
    """Few levels, so ties abound; sums this short are exact enough for both ways to agree."""
    row = torch.tensor([*levels, extra])
    assert kept(row, sampling) == survivors(row.tolist(), sampling)


@pytest.mark.parametrize("top_p", [0.001, 0.3, 0.9, 0.99999])
@pytest.mark.parametrize("temperature", [0.05, 1.0, 5.0])
def test_top_p_of_a_long_row(top_p: float, temperature: float) -> None:
    row = torch.randn(20_000, generator=torch.Generator().manual_seed(3)) * 3
    sampling = replace(SAMPLED, top_p=top_p, temperature=temperature)
    (shaped,) = shape(row[None], [sampling])
    chance = torch.softmax((row / temperature).double(), 0)
    mass = chance[shaped > -INF].sum()
    smallest = chance[shaped > -INF].min()
    assert mass >= top_p - 1e-9 > mass - smallest - 2e-9
    assert chance[shaped == -INF].max() <= smallest


def test_the_scaled_row_is_exact_and_its_top_is_zero() -> None:
    row = torch.tensor([3.0, -2.0, 7.5, -INF, 7.5])
    (shaped,) = shape(row[None], [replace(SAMPLED, temperature=0.5)])
    assert shaped.tolist() == [-9.0, -19.0, 0.0, -INF, 0.0]


def test_ties_at_the_edge_keep_the_lowest_ids() -> None:
    flat = torch.zeros(1000)
    assert kept(flat, replace(SAMPLED, top_k=3)) == [0, 1, 2]
    assert kept(flat, replace(SAMPLED, top_p=0.0035)) == [0, 1, 2, 3]
    assert kept(flat, replace(SAMPLED, min_p=1.0)) == list(range(1000))
    flat[500] = 1.0
    assert kept(flat, replace(SAMPLED, top_k=3)) == [0, 1, 500]


def test_top_k_beyond_the_vocabulary_cuts_nothing() -> None:
    assert kept(torch.arange(4.0), replace(SAMPLED, top_k=5)) == [0, 1, 2, 3]


def test_top_p_keeps_at_least_one_token() -> None:
    assert kept(torch.tensor([0.0, 5.0, 1.0]), replace(SAMPLED, top_p=5e-324)) == [1]


def test_huge_logits_neither_overflow_nor_make_nan() -> None:
    row = torch.tensor([3e38, -3e38, 2.9e38, 0.0])
    (shaped,) = shape(row[None], [replace(SAMPLED, temperature=1e-5, top_p=0.9)])
    assert shaped.tolist() == [0.0, -INF, -INF, -INF]


@pytest.mark.parametrize("temperature", [None, 0.0, 1e-6])
def test_greedy_rows_come_back_as_they_are(temperature: float | None) -> None:
    row = torch.randn(1, 50)
    sampling = Sampling(temperature=temperature, top_k=2, top_p=0.1, min_p=0.9)
    assert torch.equal(shape(row, [sampling]), row)


def test_rows_without_a_distribution_come_back_as_they_are() -> None:
    rows = torch.zeros(3, 9)
    rows[0, 4], rows[1, 2], rows[2] = math.nan, INF, -INF
    cut = replace(SAMPLED, temperature=0.5, top_k=2, top_p=0.5, min_p=0.1)
    assert torch.equal(shape(rows, [cut] * 3).nan_to_num(nan=99.0), rows.nan_to_num(nan=99.0))


def test_the_input_is_left_alone() -> None:
    rows = torch.randn(4, 30)
    before = rows.clone()
    shape(rows, [replace(SAMPLED, top_k=2), Sampling(temperature=0), SAMPLED, replace(SAMPLED, min_p=0.5)])
    assert torch.equal(rows, before)


MIXED = [
    SAMPLED,
    Sampling(temperature=0.0),
    Sampling(temperature=0.7, top_p=0.9),
    Sampling(temperature=1.3, top_k=20),
    Sampling(temperature=0.3, min_p=0.05),
    Sampling(temperature=2.0, top_k=40, top_p=0.8, min_p=0.01),
    Sampling(temperature=None, top_k=5),
]


@pytest.mark.parametrize("vocab", [1, 3, 64, 1027, 5000])
def test_a_row_is_the_same_bits_alone_and_anywhere_in_a_batch(vocab: int) -> None:
    rows = torch.randn(len(MIXED), vocab, generator=torch.Generator().manual_seed(vocab)) * 4
    together = shape(rows, MIXED)
    for r, sampling in enumerate(MIXED):
        assert torch.equal(shape(rows[r : r + 1].clone(), [sampling])[0], together[r])
    order = [4, 0, 6, 2, 2, 5, 1, 3]
    assert torch.equal(shape(rows[order], [MIXED[r] for r in order]), together[order])
