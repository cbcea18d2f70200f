"""The option feed="kept": what an MTP head's cache holds when a round keeps the accepted drafts' own rows and loses the
bonus token's (spec 2 §2, the reference proposer's way). For measuring; the default feeds true streams.

Rows keep their positions here; a lost row is marked in a log of its own and never seen. (The reference closes up the
gap instead, so that its window reaches a little further back.)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.cache.cache import Cache
from outrider.core import Kept
from outrider.core import Sequence as Text
from outrider.model.logs import MTP_VALID, MTP_WINDOW
from outrider.ops.address import staged_row
from outrider.ops.rows import Batch


class Holes:
    """Chain rows of the running step by sequence id, from ``propose`` to ``catch_up``."""

    def __init__(self) -> None:
        self._rows: dict[int, Tensor] = {}

    def remember(self, plan: Batch, ids: Sequence[Sequence[int]], cache: Cache) -> None:
        """Copy the KV rows of the slots that were run for these drafts out of staging."""
        log = cache.view(MTP_WINDOW)
        for desc, span, drafted in zip(plan.descs, plan.spans, ids, strict=True):
            first = log.home + desc.staged
            self._rows[span.seq.id] = log.rows[first : first + len(drafted)].clone()

    def stage(self, batch: Batch, kept: Sequence[Kept], cache: Cache) -> None:
        """Mark a prompt's rows as seen; of a round, only as many as were accepted, and those as they were drafted."""
        window, valid = cache.view(MTP_WINDOW), cache.view(MTP_VALID)
        for desc, span, keep in zip(batch.descs, batch.spans, kept, strict=True):
            if not keep.n:
                continue
            first = staged_row(valid.home, desc.staged, desc.committed, desc.committed)
            marks = torch.ones(keep.n, 1, device=valid.rows.device)
            own = self._rows.pop(span.seq.id, None)
            if desc.committed >= span.seq.prompt_length:
                marks[keep.accepted :] = 0.0
                if own is not None:
                    begin = window.home + desc.staged
                    window.rows[begin : begin + keep.accepted] = own[: keep.accepted]
            valid.rows[first : first + keep.n] = marks

    def forget(self, seq: Text) -> None:
        """``seq`` is gone."""
        self._rows.pop(seq.id, None)
