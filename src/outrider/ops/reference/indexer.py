"""The indexer of CSA layers: which entries a query attends to (spec 1 §3 "Indexer")."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.ops.address import closed_entries
from outrider.ops.reference.handles import Attention, Layer
from outrider.ops.reference.moe import project
from outrider.ops.reference.primitives import apply_rope, hadamard, linear, rope_angles, top_k_by_rule, tree_sum
from outrider.ops.rows import Batch, LogView
from outrider.quant.fp4 import simulate

TILE = 64  # keys a product: a fixed shape, so that a score's bits don't depend on how many entries exist


def turn(x: Tensor, cos: Tensor, sin: Tensor, quantised: bool) -> Tensor:
    """RoPE on the last dims, Hadamard, and FP4 simulation where the checkpoint is quantised; shape kept."""
    rotated = cos.shape[-1] * 2
    x = torch.cat([x[..., :-rotated], apply_rope(x[..., -rotated:], cos, sin)], dim=-1)
    x = hadamard(x)
    return simulate(x) if quantised else x


def choose(layer: Layer, batch: Batch, log: LogView, x: Tensor, low_rank: tuple[Tensor, Tensor]) -> Tensor:
    """The entries that each row attends to, int64 ``[R, n]`` ascending, -1 where there are fewer.

    ``low_rank`` is the normed low-rank query and its quantised form. Where no row sees more than index_topk entries
    all are taken: the same set that scoring would give.
    """
    config = layer.config
    visible = batch.memo(("visible", log.stride), lambda: closed_entries(batch.key + 1, log.stride))
    most = batch.memo(("most", log.stride), lambda: int(visible.max()))
    if most <= config.index_topk:
        return batch.memo(("all", log.stride), lambda: everything(visible, most))
    scores = _scores(layer, batch, log, x, low_rank, most)
    scores.masked_fill_(torch.arange(most, device=x.device) >= visible.unsqueeze(1), -torch.inf)
    chosen = top_k_by_rule(scores, config.index_topk)
    chosen = torch.where(chosen < visible.unsqueeze(1), chosen, most).sort(dim=1).values
    return torch.where(chosen < most, chosen, -1)


def everything(visible: Tensor, most: int) -> Tensor:
    """All entries that each row sees, ``[R, most]``, -1 beyond."""
    lanes = torch.arange(most, device=visible.device)
    return torch.where(lanes < visible.unsqueeze(1), lanes, -1)


def _scores(layer: Layer, batch: Batch, log: LogView, x: Tensor, low_rank: tuple[Tensor, Tensor], most: int) -> Tensor:
    """score(t, j) = Σ_h weight_h · relu(q_h·k_j) ``[R, most]``; lanes that a row doesn't see hold anything."""
    attention, config = layer.attention, layer.config
    query, weight = _queries(attention, layer, batch, x, low_rank)
    heads = config.index_n_heads
    scores = x.new_full((batch.size, most), -torch.inf)
    for desc in batch.descs:
        if not desc.rows:
            continue
        mine = slice(desc.first_row, desc.first_row + desc.rows)
        count = closed_entries(desc.committed + desc.rows, log.stride)
        keys = _keys(batch, log, desc.index, count)
        flat = query[mine].flatten(0, 1)
        dots = torch.cat([linear(flat, tile) for tile in keys.split(TILE)], dim=1).unflatten(0, (-1, heads))
        scores[mine, :count] = tree_sum(torch.relu(dots) * weight[mine].unsqueeze(-1), 1)[:, :count]
    return scores


def _queries(
    attention: Attention, layer: Layer, batch: Batch, x: Tensor, low_rank: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Queries ``[R, heads, dim]`` and head weights ``[R, heads]``."""
    assert attention.indexer is not None
    config = layer.config
    query = project(attention.indexer.wq_b, *low_rank).unflatten(1, (config.index_n_heads, config.index_head_dim))
    cos, sin = batch.memo(("angles", "compressed"), lambda: rope_angles(batch.rope, attention.frequencies))
    query = turn(query, cos, sin, config.quantised)
    weight = project(attention.indexer.weights_proj, x)
    return query, weight * (config.index_head_dim**-0.5 * config.index_n_heads**-0.5)


def _keys(batch: Batch, log: LogView, span: int, count: int) -> Tensor:
    """Keys of a span's first ``count`` entries, zero-padded to whole tiles: ``[n·TILE, dim]``."""
    padded = -(-count // TILE) * TILE
    entry = torch.arange(padded, device=log.rows.device)
    exists = entry < count
    address = batch.entry_address(
        log, torch.where(exists, entry, 0).unsqueeze(0), torch.tensor([span], device=entry.device)
    )
    return torch.where(exists.unsqueeze(1), log.rows[address[0]], 0.0)
