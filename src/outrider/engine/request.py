"""One request on its way through the engine: its sequence, its text, its pieces, its counts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from outrider.core import Kept, Sequence, Span
from outrider.engine.results import Completion, Origin, Piece
from outrider.engine.tally import Tally, Timing
from outrider.sampling.clip import Clipped
from outrider.text.stream import TextStream


@dataclass(eq=False, slots=True)
class Request:
    """Everything of one request that isn't state of the model."""

    seq: Sequence
    stream: TextStream
    pieces: deque[Piece] = field(default_factory=deque)
    texts: list[str] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    error: str | None = None

    def take(self, span: Span, drafts: int, clipped: Clipped, timing: Timing) -> None:
        """Take over what a committed step has made: text state, pieces, counts. Before the scheduler applies it."""
        kept = clipped.kept
        making = span.start + len(span.ids) > self.seq.prompt_length
        self.tally.spent(timing, prompt=not making)
        if making and span.want:
            self.tally.count_step(kept)
        if span.want:
            self.tally.count_drafts(drafts, kept)
        self.stream = clipped.text
        if kept.tokens or kept.finish:
            pieces = clipped.pieces
            self.texts.extend(pieces)
            origins = _origins(drafts, kept)
            self.pieces.append(Piece("".join(pieces), kept.tokens, pieces, origins, kept.finish))

    def cancelled(self) -> None:
        """The request was given up: what is held back of its text comes out."""
        self.texts.append(self.stream.finish())

    def completion(self, longest: int) -> Completion:
        """What it has made so far; final once the sequence has finished."""
        seq = self.seq
        return Completion(
            text="".join(self.texts),
            token_ids=seq.generated,
            finish_reason=seq.finish or "cancelled",
            seed=seq.seed,
            stats=self.tally.stats(longest),
            prompt_token_ids=seq.tokens[: seq.prompt_length],
            error=self.error,
        )


def _origins(drafts: int, kept: Kept) -> tuple[Origin, ...]:
    own: Origin = "target" if not drafts else "bonus" if kept.accepted == drafts else "corrected"
    origins: list[Origin] = ["accepted"] * kept.accepted
    return (*origins, *[own] * (len(kept.tokens) - kept.accepted))
