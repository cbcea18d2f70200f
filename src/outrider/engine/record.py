"""A record of the logits behind each token: for tests, and for showing that drafting changes none of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from outrider.engine.step import Step


@dataclass(slots=True)
class Record:
    """Keys are (request number in this record, position of the row). ``target`` holds the row that judged the token at
    position + 1, ``first_draft`` the drafter's logits for the token at position + 1; float32 ``[vocab]``. ``rows`` is
    the number of committed rows of each request at its last step, ``passes`` the number of target passes."""

    target: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    first_draft: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)
    passes: int = 0
    _numbers: dict[int, int] = field(default_factory=dict)

    def add(self, step: Step) -> None:
        """Take in a committed step."""
        self.passes += 1
        logits = iter(step.target.logits)
        for index, (span, draft, clipped) in enumerate(
            zip(step.batch.spans, step.batch.drafts, step.clipped, strict=True)
        ):
            number = self._numbers.setdefault(span.seq.id, len(self._numbers))
            last = span.start + len(span.ids) - 1
            judged = [next(logits) for _ in range(span.want + len(draft))]
            for offset, row in enumerate(judged[: len(clipped.kept.tokens)]):
                self.target[number, last + offset] = row.clone()
            if index in step.drafts.first_logits:
                self.first_draft[number, last] = step.drafts.first_logits[index].clone()
            self.rows[number] = span.start + clipped.kept.n
