"""The cache: home of every row of state, and the only writer of home rows.

The one rule (design §4): a forward writes staging and nothing else. ``commit`` copies what was accepted home; all
else is forgotten. So rollback is not copying, and an exception before commit leaves every sequence as it was.

A sequence's state is its slot (rings), its pages (whole history) and one integer, ``committed``. ``reserve`` gives
places, ``plan`` lays out a step, ``commit`` ends it, ``discard`` drops it, ``release`` frees a sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index

import numpy as np
import torch
from torch import Tensor

from outrider.cache.log import Log
from outrider.cache.plan import draft_batch, target_batch
from outrider.cache.pool import Pool
from outrider.cache.spec import LogSpec
from outrider.core import Kept, Span
from outrider.core import Sequence as Text
from outrider.errors import CapacityError
from outrider.ops.address import closed_entries, page_home, ring_home, staged_entry, staged_row
from outrider.ops.rows import Batch, LogView, SpanDesc
from outrider.ops.table import Blocks, Move

Counts = int | Tensor | Iterable[int | Kept]
"""Rows kept: one number for every span, or one for each; any sequence, array or tensor of ints."""


class Cache:
    """State of up to ``slots`` sequences. ``page_tokens`` tokens a page (a multiple of every stride); ``max_pages``
    pages at most, taken from memory as they are needed; ``step_rows`` rows of staging."""

    def __init__(
        self,
        specs: Sequence[LogSpec],
        ops: Blocks,
        *,
        slots: int,
        max_pages: int,
        step_rows: int,
        page_tokens: int = 128,
        device: str = "cpu",
        poison: bool = False,
    ) -> None:
        self.slots = Pool(slots, slots)
        self.pages = Pool(min(max_pages, slots), max_pages)
        self.page_tokens = page_tokens
        self.step_rows = step_rows
        self.device = device
        self._ops = ops
        self._plan: Batch | None = None
        self.logs = {
            spec.name: Log(
                spec,
                slots=slots,
                pages=self.pages.size,
                page_tokens=page_tokens,
                step_rows=step_rows,
                device=device,
                poison=poison,
            )
            for spec in specs
        }

    def view(self, name: str, layer: int = 0) -> LogView:
        """Layer ``layer``'s rows of a log. Taken anew for each call: growing moves the rows."""
        return self.logs[name].views[layer]

    # ---- places -------------------------------------------------------------------------------------------------

    def pages_for(self, tokens: int) -> int:
        """Pages that hold a history of ``tokens`` tokens."""
        return -(-tokens // self.page_tokens)

    def missing_pages(self, seq: Text, rows: int) -> int:
        """Pages that ``reserve`` would have to take."""
        return max(0, self.pages_for(seq.committed + rows) - len(seq.pages))

    def can_reserve(self, seq: Text, rows: int) -> bool:
        """True where ``reserve`` would succeed. Changes nothing."""
        return (seq.slot >= 0 or self.slots.free > 0) and self.missing_pages(seq, rows) <= self.pages.free

    def reserve(self, seq: Text, rows: int) -> None:
        """Give ``seq`` a slot, and pages for ``rows`` more tokens. Between steps only. Raises CapacityError, nothing
        changed, where there's no room."""
        missing = self.missing_pages(seq, rows)
        if not self.can_reserve(seq, rows):
            raise CapacityError(
                f"no room for {rows} more tokens of sequence {seq.id}: {missing} pages of {self.page_tokens} tokens "
                f"are missing and {self.pages.free} are free; {self.slots.free} slots are free."
            )
        if seq.slot < 0:
            seq.slot = self.slots.take()
        if self.pages.used + missing > self.pages.size:
            self._grow(self.pages.used + missing)
        seq.pages.extend(self.pages.take() for _ in range(missing))

    def _grow(self, pages: int) -> None:
        size = min(self.pages.limit, max(pages, 2 * self.pages.size))
        for log in self.logs.values():
            log.grow(size)
        self.pages.grow(size)

    def release(self, seq: Text) -> None:
        """Free all that ``seq`` holds; nothing of it is committed any more. A second release does nothing."""
        for log in self.logs.values():
            log.forget_home(seq.slot, seq.pages)
        self._give_pages(seq, keep=0)
        if seq.slot >= 0:
            self.slots.give(seq.slot)
        seq.slot = -1
        seq.committed = 0

    def _give_pages(self, seq: Text, keep: int) -> None:
        for page in seq.pages[keep:]:
            self.pages.give(page)
        del seq.pages[keep:]

    # ---- one step -----------------------------------------------------------------------------------------------

    def plan(self, spans: Sequence[Span], drafts: Sequence[Sequence[int]]) -> Batch:
        """Lay out a pass of the target. One plan is alive at a time, until ``commit`` or ``discard``."""
        return self._adopt(target_batch(spans, drafts, self.device))

    def plan_drafts(self, spans: Sequence[Span], widths: Sequence[int]) -> Batch:
        """Lay out a drafter's own rows, ``widths[i]`` at most for span i. Always ends in ``discard``."""
        return self._adopt(draft_batch(spans, widths, self.device))

    def _adopt(self, batch: Batch) -> Batch:
        if self._plan is not None:
            raise RuntimeError("a plan is still alive: commit or discard it first")
        rows = sum(desc.rows for desc in batch.descs)
        if rows > self.step_rows:
            raise CapacityError(f"a step of {rows} rows was planned; step_rows is {self.step_rows}.")
        if any(desc.slot < 0 for desc in batch.descs):
            raise RuntimeError("a span's sequence holds no slot: reserve first")
        self._plan = batch
        return batch

    def discard(self) -> None:
        """Forget what was staged; every sequence is as before the plan."""
        self._plan = None
        for log in self.logs.values():
            log.forget_staging()

    def commit(self, batch: Batch, kept: Counts) -> None:
        """Copy home the first ``kept`` rows of each span (one number for all, or one a span), move ``committed`` on,
        and return pages that drafts had reserved. Raises ValueError, nothing moved, where ``kept`` doesn't fit."""
        counts = _counts(kept, batch)
        if batch is not self._plan:
            raise RuntimeError("this plan isn't alive: it was committed or discarded, or another was made")
        self._ops.commit([move for log in self.logs.values() for move in self._moves(log, batch, counts)])
        for span, count in zip(batch.spans, counts, strict=True):
            span.seq.committed += count
            self._give_pages(span.seq, keep=self.pages_for(span.seq.committed))
        self.discard()

    def _moves(self, log: Log, batch: Batch, counts: list[int]) -> list[Move]:
        source: list[int] = []
        destination: list[int] = []
        for desc, count in zip(batch.descs, counts, strict=True):
            pairs = _ring_moves(log, desc, count) if log.spec.horizon is not None else _page_moves(log, desc, count)
            source += pairs[0]
            destination += pairs[1]
        if not source:
            return []
        index = torch.tensor([source, destination], dtype=torch.int64, device=self.device)
        return [(log.rows, index[0], index[1])]

    # ---- checks -------------------------------------------------------------------------------------------------

    def check_integrity(self, sequences: Sequence[Text]) -> None:
        """Raise AssertionError unless places are held exactly once, by exactly these sequences, and enough of them.
        Changes nothing; safe between steps."""
        held = [page for seq in sequences for page in seq.pages]
        assert len(set(held)) == len(held) == self.pages.used, "a page is held twice, or lost"
        assert not any(self.pages.is_free(page) for page in held), "a free page is held"
        slots = [seq.slot for seq in sequences if seq.slot >= 0]
        assert len(set(slots)) == len(slots) == self.slots.used, "a slot is held twice, or lost"
        for seq in sequences:
            assert seq.committed == 0 or seq.slot >= 0, "committed rows without a slot"
            assert len(seq.pages) >= self.pages_for(seq.committed), "committed entries without a page"

    @property
    def bytes(self) -> int:
        """Bytes that all logs take now."""
        return sum(log.bytes for log in self.logs.values())


def _counts(kept: Counts, batch: Batch) -> list[int]:
    """``kept`` as one int a span, checked."""
    if isinstance(kept, Tensor):
        kept = kept.tolist()
    given: list[int | Kept] = [int(kept)] * len(batch.descs) if isinstance(kept, int | np.integer) else list(kept)
    counts = [item.n if isinstance(item, Kept) else index(item) for item in given]
    if len(counts) != len(batch.descs):
        raise ValueError(f"kept has {len(counts)} numbers for {len(batch.descs)} spans; expected one for each span")
    for count, desc in zip(counts, batch.descs, strict=True):
        if not 0 <= count <= desc.rows:
            raise ValueError(
                f"kept is {count} for span {desc.index}, which has {desc.rows} rows; expected 0 to {desc.rows}"
            )
    return counts


def _ring_moves(log: Log, desc: SpanDesc, count: int) -> tuple[list[int], list[int]]:
    """The last ``capacity`` of the kept rows; earlier ones would be overwritten at once."""
    capacity = log.spec.capacity
    first = desc.committed + max(0, count - capacity)
    positions = range(first, desc.committed + count)
    if log.spec.stages == "last":
        positions = positions[-1:]
        source = [log.home + desc.index for _ in positions]
    else:
        source = [staged_row(log.home, desc.staged, position, desc.committed) for position in positions]
    return source, [ring_home(desc.slot, position, capacity) for position in positions]


def _page_moves(log: Log, desc: SpanDesc, count: int) -> tuple[list[int], list[int]]:
    """The entries whose last token is among the kept rows."""
    stride = log.spec.stride
    entries = range(closed_entries(desc.committed, stride), closed_entries(desc.committed + count, stride))
    source = [staged_entry(log.home, desc.staged, desc.index, entry, desc.committed, stride) for entry in entries]
    return source, [page_home(desc.pages[entry // log.page_rows], entry, log.page_rows) for entry in entries]
