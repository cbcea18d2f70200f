"""The MTP block: a draft head made of one window layer (spec 1 §3 "MTP block").

Its log is keyed by the newest token that a row depends on: slot i depends on token i+1, so its key is i+1 and its
rotary position key − 1; the lowest key is 1 (design §4).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from outrider.cache.cache import Cache
from outrider.model.logs import MTP_VALID, MTP_WINDOW
from outrider.ops.rows import Batch, LayerLogs
from outrider.ops.table import Blocks, Handle


@dataclass(frozen=True, slots=True)
class MtpBlock:
    """Handles of the block; ``embed`` is the trunk's own, ``head`` multiplies by the trunk's vocabulary."""

    ops: Blocks
    embed: Handle
    draft_input: Handle
    layer: Handle
    head: Handle

    def slot(self, streams: Tensor, batch: Batch, cache: Cache) -> Tensor:
        """Run slots whose token is ``batch.ids`` on the streams ``[R, S, d]`` before them; returns streams′.
        Raises ValueError for a collapsed ``[R, d]`` input: the block was trained on all streams (case C4)."""
        return self.ops.layer(self.layer, self._join(streams, batch), batch, self._logs(cache))

    def stage(self, streams: Tensor, batch: Batch, cache: Cache) -> None:
        """Leave the slots' KV rows and nothing else: no attention, no experts (design §4)."""
        self.ops.layer_stage(self.layer, self._join(streams, batch), batch, self._logs(cache))

    def logits(self, streams: Tensor) -> Tensor:
        """float32 ``[R, vocab]`` from streams′."""
        return self.ops.head(self.head, streams)

    def collapsed(self, streams: Tensor) -> Tensor:
        """streams′ mixed to one row and copied to every stream: what chain="collapsed" feeds on (spec 2 §2)."""
        return self.ops.collapse(self.head, streams).unsqueeze(1).expand_as(streams).contiguous()

    def _join(self, streams: Tensor, batch: Batch) -> Tensor:
        if streams.dim() != 3:
            raise ValueError(f"an MTP slot takes streams [rows, streams, hidden]; got shape {list(streams.shape)}")
        return self.ops.draft_input(self.draft_input, streams, self.ops.embed(self.embed, batch.ids))

    def _logs(self, cache: Cache) -> LayerLogs:
        valid = cache.view(MTP_VALID) if MTP_VALID in cache.logs else None
        return LayerLogs(cache.view(MTP_WINDOW), valid=valid)
