"""Stops and limits (spec 2 §6): cuts a verdict after the first token that ends the text, before any state moves.

Every token is tested alone and in order, as if it had been made alone: so the text ends where plain decoding ends it,
for any number of drafts. A stop and the limit on one token is a stop.
"""

from __future__ import annotations

from dataclasses import dataclass

from outrider.core import FinishReason, Kept, Sequence, Span, Verdict
from outrider.text.stream import TextStream


@dataclass(frozen=True, slots=True)
class Clipped:
    """What is kept of a span, the text state after it, and the text that each kept token released.

    Joined, the pieces of all steps are the final text. The text of a stop token and of a stop string is left out.
    """

    kept: Kept
    text: TextStream
    pieces: tuple[str, ...]


def clip(seq: Sequence, span: Span, verdict: Verdict, text: TextStream, eos_ids: frozenset[int]) -> Clipped:
    """Cuts ``verdict`` where ``seq`` must end. Pure: ``seq`` isn't touched, and ``text`` is copied.

    The copy is installed by whoever applies the step; if the step is thrown away, so is the copy.
    """
    text = text.copy()
    enders = frozenset(seq.sampling.stop_token_ids) | (frozenset() if seq.sampling.ignore_eos else eos_ids)
    pieces: list[str] = []
    finish: FinishReason | None = None
    for token in verdict.tokens:
        pieces.append("" if token in enders else text.advance(token))
        finish = _finish(token in enders or text.stopped, len(seq.tokens) + len(pieces) >= seq.limit)
        if finish:
            pieces[-1] += text.finish()
            break
    tokens = verdict.tokens[: len(pieces)]
    n = len(span.ids) - 1 + len(tokens) if tokens else len(span.ids)
    kept = Kept(n=n, tokens=tokens, accepted=min(verdict.accepted, len(tokens)), finish=finish)
    return Clipped(kept, text, tuple(pieces))


def _finish(stops: bool, full: bool) -> FinishReason | None:
    if stops:
        return "stop"
    return "length" if full else None
