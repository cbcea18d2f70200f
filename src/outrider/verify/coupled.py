"""The coupled rule (spec 2 §3): a draft is accepted iff it is the target's own pick at that position.

The pick's noise is a function of (seed, position, token), so the text is the one that plain decoding makes, whatever
was drafted; greedy is the case without noise. (Drafter-invariant speculative sampling: Daliri, Musco, Suresh 2024.)
"""

from __future__ import annotations

from collections.abc import Sequence

from outrider.core import Verdict
from outrider.model.transformer import Target
from outrider.ops.rows import Batch
from outrider.sampling.pick import NO_TOKEN, pick


def target_picks(batch: Batch, target: Target) -> list[list[int]]:
    """What the target picks after each of a span's judged rows: its last known token, then every draft."""
    judged = [(span, len(draft) + 1 if span.want else 0) for span, draft in zip(batch.spans, batch.drafts, strict=True)]
    texts = [span.seq for span, count in judged for _ in range(count)]
    positions = [span.start + len(span.ids) + i for span, count in judged for i in range(count)]
    picks = iter(pick(target.logits, [text.sampling for text in texts], [text.seed for text in texts], positions))
    return [[next(picks) for _ in range(count)] for _, count in judged]


class Coupled:
    """``verify.base.Verifier`` for greedy and coupled sampling."""

    def judge(self, batch: Batch, target: Target) -> Sequence[Verdict]:
        """Accept the longest prefix of drafts that the target picks too, then take its next pick."""
        picked = target_picks(batch, target)
        return [
            _verdict(span.start + len(span.ids) - 1, draft, picks)
            for span, draft, picks in zip(batch.spans, batch.drafts, picked, strict=True)
        ]


def _verdict(last_known: int, draft: Sequence[int], picks: Sequence[int]) -> Verdict:
    if not picks:
        return Verdict()
    accepted = 0
    while accepted < len(draft) and draft[accepted] == picks[accepted]:
        accepted += 1
    if picks[accepted] == NO_TOKEN:
        return Verdict(tuple(draft[:accepted]), accepted, fault=last_known + accepted)
    return Verdict((*draft[:accepted], picks[accepted]), accepted)
