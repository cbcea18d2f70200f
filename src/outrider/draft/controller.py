"""How many drafts a step may have. A fixed number now; the one that measures is to come (spec 2 §5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from outrider.core import Sequence


class DraftController(Protocol):
    """Decides the width of each sequence's drafts before they are made."""

    def width(self, seq: Sequence) -> int:
        """Most drafts that ``seq`` may have in the coming step."""
        ...


@dataclass(frozen=True, slots=True)
class FixedLength:
    """Always ``length`` drafts."""

    length: int

    def width(self, seq: Sequence) -> int:
        """See ``DraftController``."""
        return self.length
