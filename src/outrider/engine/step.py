"""One step of the engine: the path of design §5, line by line. Nothing lasts before ``commit``."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from operator import index
from typing import TypeVar

from torch import Tensor

from outrider.cache.cache import Cache
from outrider.core import Kept, Span, Verdict
from outrider.draft.base import Drafter, Drafts
from outrider.engine.interrupts import interrupts_held
from outrider.engine.tally import Timing
from outrider.errors import OutriderWarning
from outrider.model.transformer import Target, Transformer
from outrider.ops.rows import Batch
from outrider.sampling.clip import Clipped, clip
from outrider.text.stream import TextStream
from outrider.verify.base import Verifier

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Parts:
    """What a step is made of; all of it outlives the step."""

    model: Transformer
    cache: Cache
    drafter: Drafter
    verifier: Verifier
    eos_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Step:
    """What a step has made; committed already. One verdict and one clipped a span of ``batch``."""

    batch: Batch
    drafts: Drafts
    target: Target
    verdicts: tuple[Verdict, ...]
    clipped: tuple[Clipped, ...]
    timing: Timing


def run_step(parts: Parts, spans: list[Span], texts: Mapping[int, TextStream], apply: Callable[[Step], None]) -> None:
    """Draft, verify, keep, feed, commit, apply. ``texts`` holds each sequence's text state by its id.

    An exception, also a KeyboardInterrupt, before ``commit`` leaves every sequence as it was; an interrupt during
    ``commit`` and ``apply``, which belong together, waits for their end.
    """
    cache, clock = parts.cache, _Clock()
    try:
        drafts = clock.measure("draft", lambda: _propose(parts.drafter, spans, cache, parts.model.config.vocab_size))
        batch = cache.plan(spans, drafts.ids)
        target = clock.measure("target", lambda: parts.model(batch, cache, tap=parts.drafter.tap))
        verdicts = tuple(parts.verifier.judge(batch, target))
        clipped = tuple(
            _clip(span, verdict, texts[span.seq.id], parts.eos_ids)
            for span, verdict in zip(spans, verdicts, strict=True)
        )
        kept = [item.kept for item in clipped]
        clock.measure("feed", lambda: _catch_up(parts.drafter, batch, target, kept, cache))
        with interrupts_held():
            cache.commit(batch, kept)
            apply(Step(batch, drafts, target, verdicts, clipped, clock.timing()))
    except BaseException:
        cache.discard()
        raise


def _propose(drafter: Drafter, spans: list[Span], cache: Cache, vocab: int) -> Drafts:
    """A drafter's exception means no drafts in this step, never a failed request."""
    try:
        return _usable(drafter.propose(spans, cache), spans, vocab)
    except Exception as error:
        warnings.warn(f"the drafter {drafter.name} failed to propose: {error!r}", OutriderWarning, stacklevel=2)
        return Drafts.none(spans)
    finally:
        cache.discard()


def _usable(drafts: Drafts, spans: list[Span], vocab: int) -> Drafts:
    """``drafts``, cut where there are more than were asked for, and before an id that isn't in the vocabulary: a
    drafter can't write out of range (case C7). Raises ValueError where there isn't one list a span, TypeError where an
    id is no whole number."""
    ids = tuple(
        tuple(takewhile(lambda token: 0 <= token < vocab, map(index, draft[: span.width])))
        for span, draft in zip(spans, drafts.ids, strict=True)
    )
    first = {int(at): row for at, row in drafts.first_logits.items() if isinstance(row, Tensor)}
    confidence = tuple(c[: len(d)] for c, d in zip(drafts.confidence, ids, strict=False))
    return Drafts(ids, confidence, first)


def _catch_up(drafter: Drafter, batch: Batch, target: Target, kept: list[Kept], cache: Cache) -> None:
    """A drafter that can't be fed misses rows; the request goes on."""
    try:
        drafter.catch_up(batch, target, kept, cache)
    except Exception as error:
        warnings.warn(f"the drafter {drafter.name} failed to catch up: {error!r}", OutriderWarning, stacklevel=2)
        try:
            drafter.miss(batch, kept)
        except Exception as worse:
            warnings.warn(f"the drafter {drafter.name} failed to miss: {worse!r}", OutriderWarning, stacklevel=2)


def _clip(span: Span, verdict: Verdict, text: TextStream, eos_ids: frozenset[int]) -> Clipped:
    """Stops and limits; a row that isn't finite ends the text after the tokens before it."""
    clipped = clip(span.seq, span, verdict, text, eos_ids)
    if verdict.fault is None or clipped.kept.finish is not None:
        return clipped
    held = clipped.text.finish()
    pieces = (*clipped.pieces[:-1], clipped.pieces[-1] + held) if clipped.pieces else (held,)
    return replace(clipped, kept=replace(clipped.kept, finish="error"), pieces=pieces)


class _Clock:
    """Wall time of a step and of its parts."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._parts: dict[str, float] = {}

    def measure(self, part: str, work: Callable[[], T]) -> T:
        start = time.perf_counter()
        try:
            return work()
        finally:
            self._parts[part] = time.perf_counter() - start

    def timing(self) -> Timing:
        """The step's seconds so far."""
        return Timing(whole=time.perf_counter() - self._start, **self._parts)
