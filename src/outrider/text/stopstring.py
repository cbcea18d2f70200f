"""Finding stop strings in a text that arrives in pieces.

Text that could still turn out to be the start of a stop string is held back; everything else is given out at once.
The stop that is *completed* first ends the text, whatever the pieces are; of two completed by the same character the
longer one, so that no part of a stop string is ever shown. Each stop is followed by its own Knuth-Morris-Pratt
automaton: constant work a character and stop, and a state of one integer a stop.
"""

from __future__ import annotations


def _failure_table(stop: str) -> tuple[int, ...]:
    """Entry n: the length of the longest proper prefix of ``stop`` that also ends its first n characters."""
    table = [0, 0]
    for n in range(1, len(stop)):
        table.append(_step(stop, table, table[n], stop[n]))
    return tuple(table)


def _step(stop: str, table: tuple[int, ...] | list[int], matched: int, character: str) -> int:
    """How much of ``stop`` is matched after one more character, ``matched`` of it (not all) being so before."""
    while matched and stop[matched] != character:
        matched = table[matched]
    return matched + (stop[matched] == character)


class StopStrings:
    """A streaming matcher of non-empty ``stops``; with none of them it lets everything through."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._patterns = tuple((stop, _failure_table(stop)) for stop in stops)
        self._matched = [0] * len(stops)
        self._held = ""
        self.found: str | None = None
        """The stop string that was completed; nothing is given out from then on."""

    def push(self, text: str) -> str:
        """Takes the next piece of text and gives out what can't be part of a stop string any more."""
        if self.found is not None:
            return ""
        for index, character in enumerate(text):
            if self._advance(character) is not None:
                return self._cut(text[: index + 1])
        text = self._held + text
        keep = len(text) - max(self._matched, default=0)
        self._held = text[keep:]
        return text[:keep]

    def finish(self) -> str:
        """Gives out what was held back: the text ended, so it isn't the start of a stop string after all."""
        held, self._held = self._held, ""
        self._matched = [0] * len(self._matched)
        return held

    def copy(self) -> StopStrings:
        """An independent matcher in the same state."""
        other = StopStrings.__new__(StopStrings)
        other._patterns, other._matched = self._patterns, self._matched.copy()
        other._held, other.found = self._held, self.found
        return other

    def _advance(self, character: str) -> str | None:
        """Moves every automaton by one character; the longest stop that it completes, if any does."""
        for i, (stop, table) in enumerate(self._patterns):
            self._matched[i] = _step(stop, table, self._matched[i], character)
            if self._matched[i] == len(stop) and len(stop) > len(self.found or ""):
                self.found = stop
        return self.found

    def _cut(self, text: str) -> str:
        """The text up to the completed stop string, ``text`` being the new part up to and with its end."""
        text, self._held = self._held + text, ""
        return text[: len(text) - len(self.found or "")]
