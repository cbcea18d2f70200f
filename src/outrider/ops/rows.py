"""What an operator is told about the rows of a step: descriptors of spans, and views on the logs of state.

Descriptors instead of index lists: every address follows from them by the functions of ``address``. The reference
makes the index tensors once a step for each kind of layer and keeps them in the Batch's memo.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from outrider.core import Span
from outrider.ops.address import page_home, ring_home, staged_entry, staged_row

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LogView:
    """One layer's rows of one log: ``rows`` float32 ``[home + staging, width]``, and the numbers that address it.

    ``capacity`` rows a slot in a ring (0 for pages), ``page_rows`` rows a page (0 for rings), ``home`` home rows in
    all: staging begins there. ``stride`` tokens make one row.
    """

    rows: Tensor
    home: int
    stride: int = 1
    capacity: int = 0
    page_rows: int = 0


@dataclass(frozen=True, slots=True)
class LayerLogs:
    """The logs that one layer reads and stages. ``valid`` (width 1) marks window rows that may be seen; only a drafter
    that leaves holes on purpose has it."""

    window: LogView
    raw: LogView | None = None
    entries: LogView | None = None
    index_raw: LogView | None = None
    index_entries: LogView | None = None
    valid: LogView | None = None


@dataclass(frozen=True, slots=True)
class SpanDesc:
    """Where a span's state lies: its home (``slot``, ``pages``), how many tokens are ``committed``, how many rows of
    other spans are ``staged`` before its own, its ``index`` in the plan, and its rows in the batch."""

    slot: int
    pages: tuple[int, ...]
    committed: int
    staged: int
    index: int
    first_row: int
    rows: int


@dataclass(frozen=True, eq=False)
class Batch:
    """The rows of one call, R of them, each with the span it belongs to. All tensors are int64 ``[R]``.

    ``key`` addresses a row's state and decides what it sees (keys ``lowest`` … ``key``); ``rope`` is its rotary
    position (the same, except in an MTP block: design §4). ``want`` lists the rows whose logits are needed.
    """

    descs: tuple[SpanDesc, ...]
    span: Tensor
    ids: Tensor
    key: Tensor
    rope: Tensor
    lowest: Tensor
    want: Tensor
    spans: tuple[Span, ...] = ()
    drafts: tuple[tuple[int, ...], ...] = ()
    _memo: dict[tuple[object, ...], object] = field(default_factory=dict, repr=False)

    @property
    def size(self) -> int:
        """R, the number of rows."""
        return self.ids.numel()

    def memo(self, key: tuple[object, ...], make: Callable[[], T]) -> T:
        """``make()``, once for each ``key``: index tensors that all layers of a kind share."""
        if key not in self._memo:
            self._memo[key] = make()
        return self._memo[key]  # type: ignore[return-value]

    @cached_property
    def columns(self) -> Tensor:
        """slot, committed, staged, index of every span: int64 ``[4, spans]``."""
        rows = [(d.slot, d.committed, d.staged, d.index) for d in self.descs]
        return torch.tensor(rows, dtype=torch.int64, device=self.ids.device).reshape(-1, 4).T.contiguous()

    @cached_property
    def _pages(self) -> Tensor:
        most = max((len(d.pages) for d in self.descs), default=0)
        table = [list(d.pages) + [0] * (most - len(d.pages)) for d in self.descs]
        return torch.tensor(table, dtype=torch.int64, device=self.ids.device).reshape(len(self.descs), most)

    def row_address(self, log: LogView, position: Tensor, span: Tensor) -> Tensor:
        """Rows of ``log`` (a ring) at ``position`` ``[R, N]`` for spans ``span`` ``[R]``: home where committed, else
        staging. Any in-range row for a negative position: the caller masks those lanes."""
        slot, committed, staged, _ = self.columns[:, span].unsqueeze(-1)
        home = ring_home(slot, position, log.capacity)
        return torch.where(position < committed, home, staged_row(log.home, staged, position, committed))

    def entry_address(self, log: LogView, entry: Tensor, span: Tensor) -> Tensor:
        """Rows of ``log`` (pages) for ``entry`` ``[R, N]``; entries must exist (masked lanes pass any small one)."""
        _, committed, staged, index = self.columns[:, span].unsqueeze(-1)
        fresh = staged_entry(log.home, staged, index, entry, committed, log.stride)
        if self._pages.shape[1] == 0:
            return fresh.clamp_max(log.rows.shape[0] - 1)
        page = (entry // log.page_rows).clamp_max(self._pages.shape[1] - 1)
        home = page_home(self._pages[span.unsqueeze(-1), page], entry, log.page_rows)
        return torch.where((entry + 1) * log.stride <= committed, home, fresh)

    def rows(
        self,
        members: Sequence[int],
        counts: Sequence[int],
        keys: Sequence[int],
        ids: Sequence[int],
        lowest: Sequence[int],
    ) -> Batch:
        """The same plan with other rows: for span ``members[i]``, ``counts[i]`` rows; ``keys`` and ``ids`` a row each,
        ``lowest`` a span each. Rotary positions are keys − 1: this is how an MTP block counts (design §4)."""
        descs, first = list(self.descs), 0
        for member, count in zip(members, counts, strict=True):
            descs[member] = replace(descs[member], first_row=first, rows=count)
            first += count
        device = self.ids.device
        repeats = torch.tensor(counts, dtype=torch.int64, device=device)
        spread = torch.tensor([list(members), list(lowest)], dtype=torch.int64, device=device).repeat_interleave(
            repeats, 1
        )
        key = torch.tensor(keys, dtype=torch.int64, device=device)
        return Batch(
            descs=tuple(descs),
            span=spread[0],
            ids=torch.tensor(ids, dtype=torch.int64, device=device),
            key=key,
            rope=key - 1,
            lowest=spread[1],
            want=torch.arange(first, device=device),
        )
