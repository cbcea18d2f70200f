"""Drafts given by a function: for tests, and for trying an idea before it has a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outrider.cache.cache import Cache
from outrider.core import Span
from outrider.draft.base import Drafts
from outrider.draft.none import NoDrafter

Script = Callable[[Span], Sequence[int]]


class ScriptedDrafter(NoDrafter):
    """Proposes ``script(span)``, cut to the span's width. ``span.seq.tokens`` is the text so far."""

    name = "scripted"

    def __init__(self, script: Script, *, max_width: int | None = None) -> None:
        self._script = script
        self.max_width = max_width

    def propose(self, spans: Sequence[Span], cache: Cache) -> Drafts:
        """What the script says, for spans that may have drafts."""
        return Drafts(tuple(tuple(self._script(span))[: span.width] if span.width else () for span in spans))
