"""Commit every draft unseen: the bug that others shipped, for the demo to show and for tests to catch."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.core import Verdict
from outrider.model.transformer import Target
from outrider.ops.rows import Batch
from outrider.verify.coupled import target_picks


class CommitEverything:
    """A ``Verifier`` that changes answers."""

    def judge(self, batch: Batch, target: Target) -> Sequence[Verdict]:
        """Every draft, then the target's pick after the last one."""
        picked = target_picks(batch, target)
        return [
            Verdict((*draft, picks[-1]), len(draft)) if picks else Verdict()
            for draft, picks in zip(batch.drafts, picked, strict=True)
        ]
