"""A pool of numbered places (slots, pages): take, give back, count. The lowest free number is taken first."""

from __future__ import annotations

import heapq


class Pool:
    """``size`` places, numbered from 0; ``grow`` adds more, up to ``limit``."""

    def __init__(self, size: int, limit: int) -> None:
        self.size = size
        self.limit = limit
        self._free = list(range(size))

    @property
    def free(self) -> int:
        """Places that could still be had, growth included."""
        return len(self._free) + self.limit - self.size

    @property
    def used(self) -> int:
        """Places taken."""
        return self.size - len(self._free)

    def grow(self, size: int) -> None:
        """Add the numbers up to ``size``."""
        for place in range(self.size, size):
            heapq.heappush(self._free, place)
        self.size = size

    def take(self) -> int:
        """The lowest free place; the caller has checked that there is one in ``size``."""
        return heapq.heappop(self._free)

    def give(self, place: int) -> None:
        """Return a place."""
        heapq.heappush(self._free, place)

    def is_free(self, place: int) -> bool:
        """True where nobody holds it."""
        return place in self._free
