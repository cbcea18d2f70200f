"""What a log of state holds, in plain numbers: the cache knows nothing else about the model (design §4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class LogSpec:
    """Rows keyed by position. One row covers ``stride`` tokens and is read for ``horizon`` tokens after it.

    ``horizon`` None: for as long as the sequence lives, so the rows lie in pages. Otherwise they lie in a ring of
    ``horizon // stride`` rows a slot. ``layers`` layers share one tensor. ``stages``: a span stages all its rows, or
    only the last one that is kept.
    """

    name: str
    layers: int
    width: int
    stride: int = 1
    horizon: int | None = None
    stages: Literal["all", "last"] = "all"

    @property
    def capacity(self) -> int:
        """Rows a slot has in the ring; 0 for a log in pages."""
        return 0 if self.horizon is None else self.horizon // self.stride
