"""Who runs in the next step, from where, and with how many drafts. Host only: no tensor is seen here.

First come, first served. Texts that are being made go first (their users wait for the next token), prompts share the
rows that are left, in chunks. Drafts are part of the budget: they shrink before anyone else waits, and a text is put
back (its rows are recomputed later) before a step writes out of range.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from outrider.core import Kept, Sequence, Span
from outrider.errors import CapacityError


class Places(Protocol):
    """What the scheduler asks of the cache."""

    def can_reserve(self, seq: Sequence, rows: int) -> bool:
        """True where ``reserve`` would succeed."""
        ...

    def reserve(self, seq: Sequence, rows: int) -> None:
        """Slot, and pages for ``rows`` more tokens."""
        ...

    def release(self, seq: Sequence) -> None:
        """Free all that a sequence holds."""
        ...


class Scheduler:
    """Owns ``tokens`` and ``finish`` of every sequence it was given."""

    def __init__(
        self,
        places: Places,
        *,
        max_batch: int,
        step_rows: int,
        prefill_chunk: int | None,
        width: Callable[[Sequence], int],
        released: Callable[[Sequence], None],
    ) -> None:
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.preemptions = 0
        self._places = places
        self._max_batch = max_batch
        self._step_rows = step_rows
        self._chunk = prefill_chunk or step_rows
        self._width = width
        self._released = released

    @property
    def idle(self) -> bool:
        """Nothing runs and nothing waits."""
        return not (self.running or self.waiting)

    def add(self, seq: Sequence) -> None:
        """Queue a sequence."""
        self.waiting.append(seq)

    def cancel(self, seq: Sequence) -> None:
        """End ``seq`` between two steps; does nothing where it has ended already."""
        if seq.finish is None:
            self._end(seq)
            seq.finish = "cancelled"

    def next(self) -> list[Span]:
        """The spans of the next step, with their places reserved. Raises CapacityError where not even one text fits."""
        while len(self.running) < self._max_batch and self.waiting:
            self.running.append(self.waiting.popleft())
        spans: list[Span] = []
        rows = self._step_rows
        order = sorted(self.running, key=lambda seq: seq.pending > 1)
        for rank, seq in enumerate(order):
            if seq not in self.running:  # put back to make room for an earlier one
                continue
            later = len(order) - rank - 1  # a row for each of those after: nobody starves
            span = self._span(seq, rows - later)
            if span is not None and self._make_room(seq, span, spans):
                spans.append(span := self._fit(span))
                rows -= len(span.ids) + span.width
        if self.running and not spans:
            raise CapacityError("no text fits into the cache's pages.", hint="Raise max_pages or lower max_length.")
        return sorted(spans, key=lambda span: self.running.index(span.seq))

    def _span(self, seq: Sequence, rows: int) -> Span | None:
        """The most that ``seq`` could run in ``rows`` rows."""
        count = min(seq.pending, self._chunk, rows)
        if count < 1:
            return None
        ids = tuple(seq.tokens[seq.committed : seq.committed + count])
        want = int(count == seq.pending)
        room = min(rows - 1, seq.limit - len(seq.tokens) - 1)
        width = max(0, min(self._width(seq), room)) if seq.pending == 1 and seq.committed else 0
        return Span(seq, seq.committed, ids, width, want)

    def _make_room(self, seq: Sequence, span: Span, spans: list[Span]) -> bool:
        """True once the known tokens of ``span`` have places; for that, the youngest of the texts that came after it
        and aren't in this step are put back."""
        taken = {id(other.seq) for other in spans}
        while not self._places.can_reserve(seq, len(span.ids)):
            behind = self.running[self.running.index(seq) + 1 :]
            victims = [other for other in behind if id(other) not in taken]
            if not victims:
                return False
            self._preempt(victims[-1])
        return True

    def _fit(self, span: Span) -> Span:
        """``span`` with as many drafts as there are places for; reserves them."""
        width = span.width
        while not self._places.can_reserve(span.seq, len(span.ids) + width):
            width -= 1
        self._places.reserve(span.seq, len(span.ids) + width)
        return Span(span.seq, span.start, span.ids, width, span.want)

    def _preempt(self, seq: Sequence) -> None:
        """Put ``seq`` back at the head of the queue. Its tokens stay; its rows are made anew."""
        self._end(seq)
        self.waiting.appendleft(seq)
        self.preemptions += 1

    def apply(self, seq: Sequence, kept: Kept) -> None:
        """Take over what a step has made of ``seq``; it leaves when it has finished."""
        seq.tokens.extend(kept.tokens)
        if kept.finish is not None:
            self._end(seq)
            seq.finish = kept.finish

    def _end(self, seq: Sequence) -> None:
        if seq in self.running:
            self.running.remove(seq)
        elif seq in self.waiting:
            self.waiting.remove(seq)
        self._places.release(seq)
        self._released(seq)
