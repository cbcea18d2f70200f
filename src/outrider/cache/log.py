"""One log: the flat run ``[home | staging]`` of rows of all layers of one kind."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.cache.spec import LogSpec
from outrider.ops.address import staging_rows
from outrider.ops.rows import LogView


class Log:
    """``rows`` float32 ``[layers, home + staging, width]``. Home rows are written by ``Cache.commit`` alone.

    With ``poison`` every row that holds nothing is NaN, so that reading one shows (tests).
    """

    def __init__(
        self, spec: LogSpec, *, slots: int, pages: int, page_tokens: int, step_rows: int, device: str, poison: bool
    ) -> None:
        self.spec = spec
        self.page_rows = page_tokens // spec.stride if spec.horizon is None else 0
        self.home = slots * spec.capacity if spec.horizon is not None else pages * self.page_rows
        ring_rows = slots if spec.stages == "last" else step_rows
        self.staging = ring_rows if spec.horizon is not None else staging_rows(step_rows, slots, spec.stride)
        self.poison = poison
        self._device = device
        self.rows = self._fresh(self.home + self.staging)
        self.views = self._make_views()

    def _fresh(self, rows: int) -> Tensor:
        empty = torch.nan if self.poison else 0.0
        return torch.full((self.spec.layers, rows, self.spec.width), empty, device=self._device)

    def _make_views(self) -> tuple[LogView, ...]:
        spec = self.spec
        return tuple(
            LogView(layer, self.home, spec.stride, spec.capacity, self.page_rows) for layer in self.rows.unbind(0)
        )

    def grow(self, pages: int) -> None:
        """Make room for ``pages`` pages in all. Staging must be empty: its addresses move."""
        if self.spec.horizon is not None:
            return
        old, home = self.rows, self.home
        self.home = pages * self.page_rows
        self.rows = self._fresh(self.home + self.staging)
        self.rows[:, :home] = old[:, :home]
        self.views = self._make_views()

    def forget_staging(self) -> None:
        """Staged rows are gone; with ``poison`` visibly so."""
        if self.poison:
            self.rows[:, self.home :] = torch.nan

    def forget_home(self, slot: int, pages: list[int]) -> None:
        """A sequence has left its slot and these pages; with ``poison`` visibly so."""
        if not self.poison:
            return
        if self.spec.horizon is not None:
            if slot >= 0:
                self.rows[:, slot * self.spec.capacity : (slot + 1) * self.spec.capacity] = torch.nan
            return
        for page in pages:
            self.rows[:, page * self.page_rows : (page + 1) * self.page_rows] = torch.nan

    @property
    def bytes(self) -> int:
        """Bytes that the log takes now."""
        return self.rows.numel() * self.rows.element_size()

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot's ring, all layers; 0 for a log in pages."""
        return self.spec.layers * self.spec.capacity * self.spec.width * self.rows.element_size()

    @property
    def page_bytes(self) -> int:
        """Bytes of one page, all layers; 0 for a ring."""
        return self.spec.layers * self.page_rows * self.spec.width * self.rows.element_size()
