"""The text of one sequence as it is made: detokenising and stop strings in one state, cheap to copy.

A step works on a copy (design §5): a verdict's tokens may be cut, and only what is kept may leave a trace.
"""

from __future__ import annotations

from outrider.text.detok import Detokeniser
from outrider.text.stopstring import StopStrings
from outrider.text.tokenizer import Tokenizer


class TextStream:
    """Token ids in, certain text out. Without a tokenizer there is no text, and a stop string is never found
    (``sampling.validate`` refuses one there)."""

    def __init__(self, tokenizer: Tokenizer | None, stops: tuple[str, ...] = ()) -> None:
        self._detokeniser = Detokeniser(tokenizer) if tokenizer else None
        self._stops = StopStrings(stops)

    @property
    def stopped(self) -> bool:
        """True once a stop string was completed; no text is given out from then on."""
        return self._stops.found is not None

    def advance(self, id: int) -> str:
        """The text that ``id`` makes certain; it never holds a stop string nor anything behind one."""
        return self._stops.push(self._detokeniser.push(id)) if self._detokeniser else ""

    def finish(self) -> str:
        """All that is left at the end: text held back as the start of a stop string, U+FFFD for half a character."""
        if self._detokeniser is None:
            return ""
        return self._stops.push(self._detokeniser.finish()) + self._stops.finish()

    def copy(self) -> TextStream:
        """An independent stream in the same state."""
        other = TextStream.__new__(TextStream)
        other._detokeniser = self._detokeniser.copy() if self._detokeniser else None
        other._stops = self._stops.copy()
        return other
