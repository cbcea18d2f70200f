"""No drafting: plain decoding is the drafter that proposes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.cache.cache import Cache
from outrider.cache.spec import LogSpec
from outrider.core import Kept, Span
from outrider.core import Sequence as Text
from outrider.draft.base import Drafts
from outrider.model.transformer import Target
from outrider.ops.rows import Batch


class NoDrafter:
    """Proposes nothing and keeps nothing. Also the base of drafters that keep no rows."""

    name = "none"
    tap = False
    logs: tuple[LogSpec, ...] = ()
    max_width: int | None = None
    vocab_limit: int | None = None
    needs_comm = False

    def propose(self, spans: Sequence[Span], cache: Cache) -> Drafts:
        """Nothing."""
        return Drafts.none(spans)

    def catch_up(self, batch: Batch, target: Target, kept: Sequence[Kept], cache: Cache) -> None:
        """Nothing to feed."""

    def miss(self, batch: Batch, kept: Sequence[Kept]) -> None:
        """Nothing to miss."""

    def release(self, seq: Text) -> None:
        """Nothing to free."""
