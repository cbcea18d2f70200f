"""What a verifier is: the target's logits of a step → one verdict a span.

Words (spec 2 §1): an *accepted* token is a draft that the target agrees with; after the accepted ones comes one token
of the target's own, the *correction* where a draft was refused, the *bonus* where none was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from outrider.core import Verdict
from outrider.model.transformer import Target
from outrider.ops.rows import Batch


class Verifier(Protocol):
    """An acceptance rule."""

    def judge(self, batch: Batch, target: Target) -> Sequence[Verdict]:
        """One verdict a span of the batch; an empty one where the span wanted no logits."""
        ...
