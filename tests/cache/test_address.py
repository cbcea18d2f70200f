"""Addresses are the same numbers on ints and on tensors, and no two rows of a step share one."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.ops.address import closed_entries, page_home, ring_home, staged_entry, staged_row, staging_rows

small = st.integers(0, 40)
spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), min_size=1, max_size=6)
strides = st.sampled_from([1, 2, 4, 8, 128])


@given(st.lists(st.tuples(small, small, small), min_size=1), st.integers(1, 9), strides)
def test_ints_and_tensors_agree(rows: list[tuple[int, int, int]], capacity: int, stride: int) -> None:
    a, b, c = torch.tensor(rows, dtype=torch.int64).T
    assert ring_home(a, b, capacity).tolist() == [ring_home(x, y, capacity) for x, y, _ in rows]
    assert page_home(a, b, capacity).tolist() == [page_home(x, y, capacity) for x, y, _ in rows]
    assert staged_row(7, a, b, c).tolist() == [staged_row(7, x, y, z) for x, y, z in rows]
    assert staged_entry(7, a, a, b, c, stride).tolist() == [staged_entry(7, x, x, y, z, stride) for x, y, z in rows]
    assert closed_entries(a, stride).tolist() == [closed_entries(x, stride) for x, _, _ in rows]


@given(spans, strides)
def test_staged_entries_never_meet_and_fit(plan: list[tuple[int, int]], stride: int) -> None:
    """Spans of (committed, rows): each entry that closes has a staging row of its own, inside the staging."""
    home, staged, seen = 5, 0, set()
    for index, (committed, rows) in enumerate(plan):
        for entry in range(committed // stride, (committed + rows) // stride):
            row = staged_entry(home, staged, index, entry, committed, stride)
            assert row not in seen and home <= row < home + staging_rows(staged + rows, index + 1, stride)
            seen.add(row)
        staged += rows


@given(st.integers(0, 5), st.integers(0, 50), st.integers(1, 9))
def test_a_ring_keeps_the_last_rows_apart(slot: int, last: int, capacity: int) -> None:
    rows = {ring_home(slot, position, capacity) for position in range(last, last + capacity)}
    assert rows == set(range(slot * capacity, (slot + 1) * capacity))


@given(st.integers(0, 20), st.integers(1, 9))
def test_entries_closed_are_those_whose_last_token_was_seen(tokens: int, stride: int) -> None:
    assert closed_entries(tokens, stride) == sum((entry + 1) * stride <= tokens for entry in range(tokens + 1))
