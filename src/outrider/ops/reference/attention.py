"""Attention of one layer over its window and its compressed entries (spec 1 §3 "Attention").

What a query sees is a function of its key alone: window keys (t−W, t], entries e with (e+1)·r ≤ t+1. Lanes are laid
out by that rule and never by where rows happen to lie, so cutting a text into steps can't change a bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.ops.address import closed_entries
from outrider.ops.reference import indexer
from outrider.ops.reference.compressor import closing, pooled, stage_raw, stage_rows
from outrider.ops.reference.handles import Attention, Layer
from outrider.ops.reference.moe import project
from outrider.ops.reference.primitives import activation, apply_rope, attend, linear, rms_norm, rope_angles
from outrider.ops.rows import Batch, LayerLogs, LogView
from outrider.quant import fp8

KV_BLOCK = 64  # FP8 simulation of KV rows, spec 1 §2
ROWS = 32  # queries gathered at a time: bounds the copy of keys to ROWS·lanes·D


@dataclass(frozen=True, slots=True)
class Normed:
    """A sublayer's input: as it is, and (where a weight is quantised) quantised once for all that read it."""

    x: Tensor
    quantised: Tensor | None


def _angles(layer: Layer, batch: Batch) -> tuple[Tensor, Tensor]:
    frequencies = layer.attention.frequencies
    key = ("angles", "window" if layer.layer.kind == "window" else "compressed")
    return batch.memo(key, lambda: rope_angles(batch.rope, frequencies))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, inverse: bool = False) -> Tensor:
    """RoPE on the last dims of ``x [..., D]``."""
    rotated = cos.shape[-1] * 2
    return torch.cat([x[..., :-rotated], apply_rope(x[..., -rotated:], cos, sin, inverse)], dim=-1)


def _finish_row(layer: Layer, row: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """A normed KV row or entry ``[n, D]``: RoPE, and FP8 simulation of the dims that aren't rotated."""
    row = _rotate(row, cos, sin)
    if layer.config.quantised:
        still = row.shape[-1] - cos.shape[-1] * 2
        row = torch.cat([fp8.simulate(row[:, :still], KV_BLOCK), row[:, still:]], dim=1)
    return row


def stage(layer: Layer, batch: Batch, logs: LayerLogs, x: Tensor) -> Normed:
    """Stage all that this layer remembers of these rows: window KV, raw compressor rows, entries that close."""
    attention = layer.attention
    normed = Normed(x, activation(x) if attention.wkv.quantised or attention.wq_a.quantised else None)
    kv = rms_norm(project(attention.wkv, x, normed.quantised), attention.kv_norm, layer.config.rms_norm_eps)
    stage_rows(batch, logs.window, _finish_row(layer, kv, *_angles(layer, batch)))
    if attention.compressor is not None:
        assert logs.raw is not None and logs.entries is not None
        _stage_entries(layer, batch, logs.raw, logs.entries, x)
    if attention.indexer is not None:
        assert logs.index_raw is not None and logs.index_entries is not None
        _stage_index(layer, batch, logs.index_raw, logs.index_entries, x)
    return normed


def _entry_angles(layer: Layer, batch: Batch, log: LogView) -> tuple[Tensor, Tensor]:
    """An entry is rotated to the first token that it covers."""
    new = closing(batch, log)
    frequencies = layer.attention.frequencies
    return batch.memo(("entry angles", log.stride), lambda: rope_angles(new.entry * log.stride, frequencies))


def _stage_entries(layer: Layer, batch: Batch, raw: LogView, log: LogView, x: Tensor) -> None:
    compressor = layer.attention.compressor
    assert compressor is not None
    stage_raw(batch, raw, compressor, x)
    new = closing(batch, log)
    if new.entry.numel():
        entry = pooled(batch, raw, compressor, new, layer.config.rms_norm_eps)
        log.rows.index_copy_(0, new.row, _finish_row(layer, entry, *_entry_angles(layer, batch, log)))


def _stage_index(layer: Layer, batch: Batch, raw: LogView, log: LogView, x: Tensor) -> None:
    assert layer.attention.indexer is not None
    compressor = layer.attention.indexer.compressor
    stage_raw(batch, raw, compressor, x)
    new = closing(batch, log)
    if new.entry.numel():
        key = pooled(batch, raw, compressor, new, layer.config.rms_norm_eps)
        key = indexer.turn(key, *_entry_angles(layer, batch, log), layer.config.quantised)
        log.rows.index_copy_(0, new.row, key)


def attention(layer: Layer, batch: Batch, logs: LayerLogs, normed: Normed) -> Tensor:
    """``[R, d]`` from the sublayer's input, after ``stage``."""
    weights, config = layer.attention, layer.config
    eps = config.rms_norm_eps
    low_rank = rms_norm(project(weights.wq_a, normed.x, normed.quantised), weights.q_norm, eps)
    low_rank_quantised = activation(low_rank) if weights.wq_b.quantised else low_rank
    query = project(weights.wq_b, low_rank, low_rank_quantised)
    query = rms_norm(query.unflatten(1, (config.num_attention_heads, config.head_dim)), None, eps)
    cos, sin = _angles(layer, batch)
    query = _rotate(query, cos, sin)
    entries = _entries(layer, batch, logs, normed.x, (low_rank, low_rank_quantised))
    out = _attend(layer, batch, logs, query, entries)
    return _project_out(weights, _rotate(out, cos, sin, inverse=True), config.o_groups)


def _entries(layer: Layer, batch: Batch, logs: LayerLogs, x: Tensor, low_rank: tuple[Tensor, Tensor]) -> Tensor | None:
    """Entry numbers that each row attends to, ascending, -1 beyond; None in a window layer."""
    if logs.entries is None:
        return None
    if logs.index_entries is not None:
        return indexer.choose(layer, batch, logs.index_entries, x, low_rank)
    stride = logs.entries.stride
    visible = closed_entries(batch.key + 1, stride)
    return batch.memo(("all", stride), lambda: indexer.everything(visible, int(visible.max())))


def _window(layer: Layer, batch: Batch, logs: LayerLogs) -> tuple[Tensor, Tensor]:
    """Rows of the W keys up to each row's own, oldest first, and which of them may be seen."""
    log, width = logs.window, layer.config.sliding_window

    def lay() -> tuple[Tensor, Tensor]:
        position = batch.key.unsqueeze(1) - torch.arange(width - 1, -1, -1, device=batch.key.device)
        return batch.row_address(log, position, batch.span), position >= batch.lowest.unsqueeze(1)

    address, seen = batch.memo(("window", log.home, log.capacity), lay)
    if logs.valid is not None:
        seen = seen & (logs.valid.rows[address, 0] == 1.0)
    return address, seen


def _attend(layer: Layer, batch: Batch, logs: LayerLogs, query: Tensor, entries: Tensor | None) -> Tensor:
    """One softmax over window, entries and sink: ``[R, H, D]``."""
    address, seen = _window(layer, batch, logs)
    if entries is not None:
        assert logs.entries is not None
        entry_address = batch.entry_address(logs.entries, entries.clamp_min(0), batch.span)
    out = torch.empty_like(query)
    for first in range(0, batch.size, ROWS):
        part = slice(first, first + ROWS)
        keys, mask = logs.window.rows[address[part]], seen[part]
        if entries is not None and logs.entries is not None:
            keys = torch.cat([keys, logs.entries.rows[entry_address[part]]], dim=1)
            mask = torch.cat([mask, entries[part] >= 0], dim=1)
        out[part] = attend(query[part], keys, mask, layer.attention.sink, layer.config.softmax_scale)
    return out


def _project_out(weights: Attention, out: Tensor, groups: int) -> Tensor:
    """Grouped low-rank output projection; ``wo_a`` takes its input unquantised (spec 1 §2)."""
    grouped = out.flatten(1).unflatten(1, (groups, -1))
    parts = [linear(grouped[:, group].contiguous(), weights.wo_a[group]) for group in range(groups)]
    return project(weights.wo_b, torch.cat(parts, dim=1))
