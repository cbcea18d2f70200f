"""Batches: the same plan with other rows, as an MTP block counts them."""

from __future__ import annotations

from outrider.cache.plan import draft_batch
from outrider.core import Sampling, Sequence, Span


def test_rows_of_an_mtp_block_are_keyed_by_their_newest_token_and_rotated_one_before() -> None:
    seqs = [Sequence(n, [1, 2, 3, 4], 4, Sampling(), seed=0, limit=9, slot=n, committed=3) for n in range(2)]
    plan = draft_batch([Span(seq, 3, (4,), 2, 1) for seq in seqs], [2, 2], "cpu")
    rows = plan.rows([1], [2], [3, 4], [4, 7], [1])
    assert rows.key.tolist() == [3, 4] and rows.rope.tolist() == [2, 3]
    assert rows.span.tolist() == [1, 1] and rows.ids.tolist() == [4, 7] and rows.lowest.tolist() == [1, 1]
    assert [(desc.staged, desc.first_row, desc.rows) for desc in rows.descs] == [(0, 0, 2), (2, 0, 2)]
