"""What came out of a stream: text, tokens, origins, and the times at which they came.

Counting here, from the pieces, is what makes an interrupted run's statistics possible, and those of its beginning.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outrider import Piece


@dataclass
class Heard:
    """The pieces of one stream so far. ``times[i]`` is when token i came, in seconds since the start."""

    started: float = field(default_factory=time.perf_counter)
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def listen(self, pieces: Iterable[Piece]) -> Iterator[tuple[str, str]]:
        """Take in the pieces and pass on (text, origin) of each token."""
        for piece in pieces:
            now = time.perf_counter() - self.started
            self.texts += piece.texts
            self.token_ids += piece.token_ids
            self.origins += piece.origins
            self.times += [now] * len(piece.token_ids)
            yield from zip(piece.texts, piece.origins, strict=True)

    def first(self, count: int) -> Heard:
        """The same, cut after ``count`` tokens."""
        return replace(
            self,
            texts=self.texts[:count],
            token_ids=self.token_ids[:count],
            origins=self.origins[:count],
            times=self.times[:count],
        )

    @property
    def text(self) -> str:
        """All that was said."""
        return "".join(self.texts)

    @property
    def steps(self) -> int:
        """Target passes: each ends with the target's own token, or with a draft where the text stopped inside them."""
        ended = sum(origin != "accepted" for origin in self.origins)
        return ended + (bool(self.origins) and self.origins[-1] == "accepted")

    def offered(self) -> list[int]:
        """How often a draft at each position was judged, given that those before it were accepted."""
        return _by_position(self.origins)[0]

    def accepted(self) -> list[int]:
        """How often a draft at each position was accepted."""
        return _by_position(self.origins)[1]

    @property
    def seconds(self) -> float:
        """From the start until the last token."""
        return self.times[-1] if self.times else 0.0

    def decode_rate(self) -> float | None:
        """Tokens a second after the first token (so the prompt's time is out); None below two moments."""
        return decode_rate(self.times)


def decode_rate(times: list[float]) -> float | None:
    """Tokens a second between the first moment and the last."""
    if not times or times[-1] <= times[0]:
        return None
    later = sum(moment > times[0] for moment in times)
    return later / (times[-1] - times[0])


def _by_position(origins: list[str]) -> tuple[list[int], list[int]]:
    """Counts of drafts judged and accepted, by position. A step's tokens are accepted drafts, then one of the target's
    own: a correction says that one more draft was judged, and refused."""
    offered: list[int] = []
    accepted: list[int] = []
    at = 0
    for origin in origins:
        if origin in ("accepted", "corrected"):
            if at == len(offered):
                offered.append(0)
                accepted.append(0)
            offered[at] += 1
            accepted[at] += origin == "accepted"
        at = at + 1 if origin == "accepted" else 0
    return offered, accepted


def add(counts: Iterable[list[int]]) -> list[int]:
    """Sum of lists of different lengths, place by place."""
    total: list[int] = []
    for row in counts:
        total += [0] * (len(row) - len(total))
        for at, count in enumerate(row):
            total[at] += count
    return total


def shares(accepted: list[int], offered: list[int]) -> list[float | None]:
    """accepted / offered by position; None where nothing was offered."""
    return [a / n if n else None for a, n in zip(accepted, offered, strict=True)]
