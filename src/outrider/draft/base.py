"""The contract between drafting and the engine (spec 2 §2, design §5).

A drafter owns no cache and keeps no copy of a text: its rows lie in logs of the cache under the one rule that a
forward writes nothing that lasts. ``docs/drafting.md`` has the table duty → place → test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import Tensor

from outrider.cache.cache import Cache
from outrider.cache.spec import LogSpec
from outrider.core import Kept, Span
from outrider.core import Sequence as Text
from outrider.model.transformer import Target
from outrider.ops.rows import Batch


@dataclass(frozen=True, slots=True)
class Drafts:
    """Proposed ids, one list a span (fewer than asked, or none, is a valid answer); the drafter's own probability of
    each (same shape, or empty); and its logits for the first draft of span i (for inspection)."""

    ids: tuple[tuple[int, ...], ...]
    confidence: tuple[tuple[float, ...], ...] = ()
    first_logits: dict[int, Tensor] = field(default_factory=dict)

    @staticmethod
    def none(spans: Sequence[Span]) -> Drafts:
        """No drafts for anyone."""
        return Drafts(tuple(() for _ in spans))


@runtime_checkable
class Drafter(Protocol):
    """A proposer. What it needs is declared up front and checked when the engine is built.

    ``tap``: it reads the target's streams. ``logs``: rows it keeps. ``max_width``: most drafts it can make (None: any
    number). ``vocab_limit``: it proposes only ids below (None: any). ``needs_comm``: its propose and catch_up must run
    on every rank of a group. ``step_rows`` needs no more than the drafts asked for.
    """

    name: str
    tap: bool
    logs: tuple[LogSpec, ...]
    max_width: int | None
    vocab_limit: int | None
    needs_comm: bool

    def propose(self, spans: Sequence[Span], cache: Cache) -> Drafts:
        """At most ``width`` drafts a span, for the positions after its last known token. Leaves nothing behind. An
        exception means no drafts in this step."""
        ...

    def catch_up(self, batch: Batch, target: Target, kept: Sequence[Kept], cache: Cache) -> None:
        """Stage the drafter's rows of what is about to be committed: committed tokens, true streams. Called on every
        step, drafts or not; ``Cache.commit`` writes."""
        ...

    def miss(self, batch: Batch, kept: Sequence[Kept]) -> None:
        """``catch_up`` has failed: what it staged for this batch must never be read."""
        ...

    def release(self, seq: Text) -> None:
        """``seq`` has left its slot (finished, cancelled, preempted). A second call does nothing."""
        ...
