"""Attention over whole sequences, for training: window keys in blocks, then compressed entries, in one softmax.

Attention runs in blocks of W queries: a block sees its own W keys and the W before it (all that a window can reach),
then the entries. B sequences of T tokens, H heads, D head_dim, E entries of a layer.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from outrider.config.model import LayerConfig
from outrider.tune.context import Context, Tally
from outrider.tune.fake import fake_fp4_rows
from outrider.tune.grad.attention import sink_attention
from outrider.tune.grad.basic import linear, rms, rope


def attention(context: Context, x: Tensor, layer: LayerConfig, prefix: str, tally: Tally | None) -> Tensor:
    """x ``[B, T, d]``, normed, to the sublayer's output ``[B, T, d]``."""
    low, q, kv = queries_and_keys(context, x, layer, prefix)
    window, (batch, length) = context.config.sliding_window, x.shape[:2]
    blocks = -(-length // window)
    keys = [window_blocks(kv, window, blocks)]
    bias = [window_bias(window, blocks, x.dtype).expand(batch, -1, -1, -1)]
    scores = seen = None
    if layer.ratio and length >= layer.ratio:
        entries = context.stored(compress(context, x, layer, prefix + "compressor.", context.config.head_dim))
        seen = visible(length, entries.shape[1], layer.ratio).expand(batch, -1, -1)
        if layer.kind == "csa":
            scores = _scores(context, x, low, layer, prefix + "indexer.").masked_fill(~seen, -math.inf)
            seen = seen if context.dense else best_mask(scores.detach(), context.config.index_topk)
        keys.append(entries.unsqueeze(1).expand(-1, blocks, -1, -1))
        bias.append(_entry_bias(seen, window, blocks, x.dtype))
    bias.append(torch.zeros(batch, blocks, window, 1, dtype=x.dtype))
    out, mass = _blocked(context, q, torch.cat(keys, 2), torch.cat(bias, 3), context.params[prefix + "attn_sink"])
    if tally is not None and scores is not None and seen is not None:
        tally.index_losses.append(index_loss(scores, seen, mass[:, :length]))
    return output(context, out[:, :length], layer, prefix)


def queries_and_keys(
    context: Context, x: Tensor, layer: LayerConfig, prefix: str, first: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """(low-rank query ``[B, T, q_lora]``, rotated q ``[B, T, H, D]``, rotated kv ``[B, T, D]``) at ``first``…"""
    p, config = context.params, context.config
    heads, dim, eps = config.num_attention_heads, config.head_dim, config.rms_norm_eps
    factors = context.factors(layer, first, x.shape[1])
    low = rms(context.project(x, prefix + "wq_a"), p[prefix + "q_norm.weight"], eps)
    q = context.project(low, prefix + "wq_b").unflatten(-1, (heads, dim))
    q = rope(rms(q, torch.ones(dim, dtype=x.dtype), eps), factors.unsqueeze(1))
    kv = rope(rms(context.project(x, prefix + "wkv"), p[prefix + "kv_norm.weight"], eps), factors)
    return low, q, context.stored(kv)


def output(context: Context, out: Tensor, layer: LayerConfig, prefix: str, first: int = 0) -> Tensor:
    """Attention's heads ``[B, T, H, D]``: rotated back, grouped low-rank projection, then wo_b, ``[B, T, d]``."""
    config = context.config
    batch, length = out.shape[:2]
    out = rope(out, context.factors(layer, first, length).conj().unsqueeze(1))
    grouped = out.reshape(batch, length, config.o_groups, -1)
    wo_a = context.params[prefix + "wo_a.weight"].view(config.o_groups, config.o_lora_rank, -1)
    parts = [linear(grouped[:, :, g], wo_a[g], context.compute) for g in range(config.o_groups)]
    return context.project(torch.cat(parts, -1), prefix + "wo_b")


def compress(context: Context, x: Tensor, layer: LayerConfig, prefix: str, dim: int, first_entry: int = 0) -> Tensor:
    """Entries ``[B, T//r, dim]`` of the tokens x, rotated at the first token that each covers. x begins with the
    tokens of entry ``first_entry`` (whose own predecessor, in a CSA layer, counts as absent)."""
    p, ratio = context.params, layer.ratio
    count = x.shape[1] // ratio
    whole = x[:, : count * ratio]
    u = linear(whole, p[prefix + "wkv.weight"], context.compute).unflatten(1, (count, ratio))
    g = linear(whole, p[prefix + "wgate.weight"], context.compute).unflatten(1, (count, ratio)) + p[prefix + "ape"]
    if layer.kind == "csa":
        u, g = _overlapped(u, dim, 0.0), _overlapped(g, dim, -math.inf)
    pooled = (g.softmax(2) * u).sum(2)
    normed = rms(pooled, p[prefix + "norm.weight"], context.config.rms_norm_eps)
    return rope(normed, context.factors(layer, first_entry * ratio, count, ratio))


def _overlapped(rows: Tensor, dim: int, absent: float) -> Tensor:
    """Ratio-4 rows ``[B, E, r, 2·dim]`` to ``[B, E, 2r, dim]``: the previous tokens' first half, then the own tokens'
    second half; before the first entry there is ``absent``."""
    before = functional.pad(rows[:, :-1, :, :dim], (0, 0, 0, 0, 1, 0), value=absent)
    return torch.cat([before, rows[..., dim:]], 2)


def visible(length: int, entries: int, ratio: int) -> Tensor:
    """``[1, T, E]``: entry j is visible to query t when (j+1)·ratio ≤ t+1."""
    last = (torch.arange(entries) + 1) * ratio
    return (last <= torch.arange(length).unsqueeze(1) + 1).unsqueeze(0)


def index_keys(context: Context, x: Tensor, layer: LayerConfig, prefix: str, first_entry: int = 0) -> Tensor:
    """The indexer's keys ``[B, T//r, index_head_dim]`` (prefix ends in "indexer.")."""
    keys = compress(context, x, layer, prefix + "compressor.", context.config.index_head_dim, first_entry)
    return _index_row(context, keys)


def index_scores(
    context: Context, x: Tensor, low: Tensor, keys: Tensor, layer: LayerConfig, prefix: str, first: int = 0
) -> Tensor:
    """Indexer scores ``[B, T, E]`` of queries at ``first``… over all ``keys``."""
    config = context.config
    heads, dim, (batch, length) = config.index_n_heads, config.index_head_dim, x.shape[:2]
    q = context.project(low, prefix + "wq_b").unflatten(-1, (heads, dim))
    q = _index_row(context, rope(q, context.factors(layer, first, length).unsqueeze(1)))
    products = torch.bmm(q.reshape(batch, -1, dim).to(context.compute), keys.transpose(1, 2).to(context.compute))
    opened = torch.relu(products).view(batch * length, heads, -1)
    weights = linear(x, context.params[prefix + "weights_proj.weight"], context.compute) * (dim**-0.5 * heads**-0.5)
    return torch.bmm(weights.view(-1, 1, heads).to(context.compute), opened).to(x.dtype).view(batch, length, -1)


def _scores(context: Context, x: Tensor, low: Tensor, layer: LayerConfig, prefix: str) -> Tensor:
    """Scores of a whole sequence. Inputs are detached: the indexer learns from attention, never the other way."""
    x = x.detach()
    return index_scores(context, x, low.detach(), index_keys(context, x, layer, prefix), layer, prefix)


def _index_row(context: Context, row: Tensor) -> Tensor:
    """The Hadamard transform leaves products of queries and keys as they are, so it is applied only where FP4 is
    simulated behind it."""
    if not context.simulate:
        return row
    return fake_fp4_rows(row @ hadamard(row.shape[-1]))


def hadamard(size: int) -> Tensor:
    """The Sylvester Hadamard matrix over √size (orthogonal and symmetric)."""
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)], 0)
    return matrix * size**-0.5


def best_mask(scores: Tensor, count: int) -> Tensor:
    """Boolean mask of the ``count`` highest scores of each row (−inf never chosen), ties to the lowest index."""
    if scores.shape[-1] <= count:
        return scores > -math.inf
    threshold = scores.topk(count, -1).values[..., -1:]
    above = scores > threshold
    ties = (scores == threshold) & (scores > -math.inf)
    return above | (ties & (ties.cumsum(-1) <= count - above.sum(-1, keepdim=True)))


def index_loss(scores: Tensor, chosen: Tensor, mass: Tensor) -> Tensor:
    """KL from the attention that the heads gave to the chosen entries to the softmax of the indexer's scores over
    the same entries, averaged over the queries that see at least two."""
    target = mass / mass.sum(-1, keepdim=True).clamp(min=1e-20)
    predicted = scores.masked_fill(~chosen, -math.inf).log_softmax(-1).masked_fill(~chosen, 0.0)
    divergence = (torch.xlogy(target, target) - target * predicted).sum(-1)
    counted = chosen.sum(-1) >= 2
    return divergence.masked_fill(~counted, 0.0).sum() / counted.sum().clamp(min=1)


def window_blocks(kv: Tensor, window: int, blocks: int) -> Tensor:
    """kv ``[B, T, D]`` to ``[B, blocks, 2W, D]``: each block's keys with those of the block before it."""
    padded = functional.pad(kv, (0, 0, window, blocks * window - kv.shape[1]))
    before = padded[:, :-window].unflatten(1, (blocks, window))
    own = padded[:, window:].unflatten(1, (blocks, window))
    return torch.cat([before, own], 2)


def query_blocks(q: Tensor, window: int, blocks: int) -> Tensor:
    """q ``[B, T, H, D]`` to ``[B·blocks, H, W, D]``, filled up with zeros."""
    padded = functional.pad(q, (0, 0, 0, 0, 0, blocks * window - q.shape[1]))
    return padded.view(-1, window, *q.shape[2:]).transpose(1, 2).contiguous()


def window_bias(window: int, blocks: int, dtype: torch.dtype, ahead: int = 0) -> Tensor:
    """``[1, blocks, W, 2W]``: 0 where the key exists, isn't after the query's own place and lies within a window of a
    query that stands ``ahead`` places further on; −inf elsewhere."""
    distance = torch.arange(window).unsqueeze(1) + window - torch.arange(2 * window)
    seen = ((distance >= 0) & (distance + ahead < window)).repeat(blocks, 1, 1)
    seen[0, :, :window] = False
    return torch.zeros(1, *seen.shape, dtype=dtype).masked_fill_(~seen, -math.inf)


def _entry_bias(seen: Tensor, window: int, blocks: int, dtype: torch.dtype) -> Tensor:
    """Boolean ``[B, T, E]`` to a bias ``[B, blocks, W, E]``."""
    bias = torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, -math.inf)
    return functional.pad(bias, (0, 0, 0, blocks * window - seen.shape[1])).unflatten(1, (blocks, window))


def _blocked(context: Context, q: Tensor, keys: Tensor, bias: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
    """q ``[B, T, H, D]``, keys ``[B, blocks, K, D]``, bias ``[B, blocks, W, K+1]`` → (out ``[B, blocks·W, H, D]``,
    mass given to entries ``[B, blocks·W, E]``)."""
    window = context.config.sliding_window
    batch, blocks = keys.shape[:2]
    grouped = query_blocks(q, window, blocks)
    out, mass = sink_attention(grouped, keys.flatten(0, 1), bias.flatten(0, 1), sink, 2 * window, context.compute)
    out = out.transpose(1, 2).reshape(batch, blocks * window, *q.shape[2:])
    return out, mass.view(batch, blocks * window, -1)
