"""Position → row: where each row of state lies. Pure arithmetic that works alike on ints and on int64 tensors.

A log is one flat run of rows, ``[home | staging]``. Home rows hold what is committed; staging holds what the running
step has made. Two homes exist (design §4): *rings* (one run of ``capacity`` rows for each slot) and *pages* (shared,
``page_rows`` rows each). These functions are the only place where that layout is written down.
"""

from __future__ import annotations

from typing import TypeVar

from torch import Tensor

Index = TypeVar("Index", int, Tensor)


def ring_home(slot: Index, position: Index, capacity: int) -> Index:
    """Home row of ``position`` in a ring: older positions of the same residue have been overwritten."""
    return slot * capacity + position % capacity


def page_home(page: Index, entry: Index, page_rows: int) -> Index:
    """Home row of ``entry`` in the page that holds it."""
    return page * page_rows + entry % page_rows


def staged_row(home: int, staged: Index, position: Index, committed: Index) -> Index:
    """Staging row of a position that isn't committed yet; ``staged`` rows of other spans lie before this span's."""
    return home + staged + position - committed


def staged_entry(home: int, staged: Index, span: Index, entry: Index, committed: Index, stride: int) -> Index:
    """Staging row of an entry whose group of ``stride`` tokens closes inside this step (design §4).

    A span of n rows closes at most n//stride + 1 entries, hence the ``+ span``: each earlier span has room to spare.
    """
    return home + staged // stride + span + entry - committed // stride


def closed_entries(tokens: Index, stride: int) -> Index:
    """Entries whose tokens have all been seen once ``tokens`` tokens have; also: how many a query at tokens−1 sees."""
    return tokens // stride


def staging_rows(rows: int, spans: int, stride: int) -> int:
    """Rows that the staging of a log in pages needs for a step of ``rows`` rows in at most ``spans`` spans."""
    return rows // stride + spans
