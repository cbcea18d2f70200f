"""The compressor: raw rows of r tokens (with overlap, of 2r) become one entry (spec 1 §3 "Compressor").

An entry is a pure function of raw rows at positions [(e−c+1)·r, (e+1)·r), so nothing is accumulated: raw rows are
staged by position like everything else, and an entry is made in the step in which its last token runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.ops.address import closed_entries, staged_entry, staged_row
from outrider.ops.reference.handles import Compressor
from outrider.ops.reference.primitives import linear, rms_norm, tree_sum
from outrider.ops.rows import Batch, LogView


@dataclass(frozen=True, slots=True)
class Closing:
    """Entries that close in this step: their number, the span of each, and their staging rows. All int64 ``[E]``."""

    entry: Tensor
    span: Tensor
    row: Tensor


def stage_rows(batch: Batch, log: LogView, rows: Tensor) -> None:
    """Write rows ``[R, width]`` of this call to the staging of a log of stride 1."""
    _, committed, staged, _ = batch.memo(("columns",), lambda: batch.columns[:, batch.span])
    index = batch.memo(("staged", log.home), lambda: staged_row(log.home, staged, batch.key, committed))
    log.rows.index_copy_(0, index, rows)


def stage_raw(batch: Batch, log: LogView, compressor: Compressor, x: Tensor) -> None:
    """Stage u | g + ape[t mod r] for every row, ``[R, 2·c·D]``."""
    raw = linear(x, compressor.stacked.weight)
    half = raw.shape[1] // 2
    ratio = compressor.ape.shape[0]
    phase = batch.memo(("phase", ratio), lambda: batch.key % ratio)
    stage_rows(batch, log, torch.cat([raw[:, :half], raw[:, half:] + compressor.ape[phase]], dim=1))


def closing(batch: Batch, log: LogView) -> Closing:
    """The entries of this step's rows; the same for all logs of one stride and home size."""

    def find() -> Closing:
        entries, spans, rows = [], [], []
        for desc in batch.descs:
            before = closed_entries(desc.committed, log.stride)
            for entry in range(before, closed_entries(desc.committed + desc.rows, log.stride)):
                entries.append(entry)
                spans.append(desc.index)
                rows.append(staged_entry(log.home, desc.staged, desc.index, entry, desc.committed, log.stride))
        made = torch.tensor([entries, spans, rows], dtype=torch.int64, device=batch.ids.device)
        return Closing(*made)

    return batch.memo(("closing", log.stride, log.home), find)


def pooled(batch: Batch, raw: LogView, compressor: Compressor, new: Closing, eps: float) -> Tensor:
    """The normed entries ``[E, D]``, before RoPE: per channel Σ softmax(g)·u over the entry's rows."""
    ratio, width, overlap = compressor.ape.shape[0], compressor.width, compressor.overlap
    first = (new.entry - (overlap - 1)) * ratio
    position = first.unsqueeze(1) + torch.arange(overlap * ratio, device=first.device)
    rows = raw.rows[batch.row_address(raw, position, new.span)]
    u, g = rows.chunk(2, dim=-1)
    if overlap == 2:  # the previous group of tokens lends its first half of channels, the own group its second
        u = torch.cat([u[:, :ratio, :width], u[:, ratio:, width:]], dim=1)
        g = torch.cat([g[:, :ratio, :width], g[:, ratio:, width:]], dim=1)
    absent = (position < 0).unsqueeze(-1)
    g = torch.where(absent, -torch.inf, g)
    u = torch.where(absent, 0.0, u)
    weight = torch.exp(g - g.amax(1, keepdim=True))
    return rms_norm(tree_sum(weight * u, 1) / tree_sum(weight, 1), compressor.norm, eps)
