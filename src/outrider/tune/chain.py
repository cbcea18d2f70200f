"""The draft head unrolled over its own streams, as a draft round runs it, for all anchors of a sequence at once.

Anchor i stands for a round whose last known streams are the trunk's at position i. Step s (1, 2, …) is slot i+s−1: it
reads token i+s and the streams of step s−1 (step 1: the trunk's), and predicts token i+s+1. Its keys are those of the
slots up to i, made from true streams (step 1 of the anchors up to i), then those of this anchor's own steps 2 … s.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.tune.attention import output, queries_and_keys, query_blocks, window_bias, window_blocks
from outrider.tune.context import Context
from outrider.tune.forward import MTP, draft_input, run_layer


def unroll(context: Context, streams: Tensor, ids: Tensor, steps: int) -> list[Tensor]:
    """The head's streams ``[B, T, S, d]`` after each of ``steps`` steps: from the trunk's streams ``[B, T, S, d]`` and
    ids ``[B, T+steps]`` (teacher-forced)."""
    layer, length = context.config.mtp_layers[0], streams.shape[1]
    kept: list[Tensor] = []
    results = []
    for step in range(steps):
        tokens = ids[:, step + 1 : step + 1 + length]

        def attend(x: Tensor, first: int = step) -> Tensor:
            _, q, kv = queries_and_keys(context, x, layer, MTP + "attn.", first)
            kept.append(kv)
            out = _chained(context, q, kept[0], kept[1:])
            return output(context, out, layer, MTP + "attn.", first)

        streams = run_layer(context, draft_input(context, streams, tokens), tokens, layer, MTP, attend)
        results.append(streams)
    return results


def _chained(context: Context, q: Tensor, true: Tensor, own: list[Tensor]) -> Tensor:
    """q ``[B, T, H, D]`` over the true slots' keys ``[B, T, D]`` up to its anchor and its ``own`` later keys."""
    config, length = context.config, q.shape[1]
    window, heads = config.sliding_window, q.shape[2]
    blocks = -(-length // window)
    keys = window_blocks(true, window, blocks).flatten(0, 1)
    bias = window_bias(window, blocks, q.dtype, ahead=len(own)).expand(q.shape[0], -1, -1, -1).flatten(0, 1)
    grouped = query_blocks(q * config.softmax_scale, window, blocks)
    parts = [(grouped.flatten(1, 2) @ keys.transpose(1, 2)).unflatten(1, (heads, window)) + bias.unsqueeze(1)]
    mine = [query_blocks(kv.unsqueeze(2), window, blocks) for kv in own]
    parts += [(grouped * kv).sum(-1, keepdim=True) for kv in mine]
    parts.append(context.params[MTP + "attn.attn_sink"].view(1, heads, 1, 1).expand(*grouped.shape[:3], 1))
    p = torch.softmax(torch.cat(parts, -1), -1)
    count = keys.shape[1]
    out = (p[..., :count].flatten(1, 2) @ keys).unflatten(1, (heads, window))
    for index, kv in enumerate(mine):
        out = out + p[..., count + index, None] * kv
    return out.transpose(1, 2).reshape(q.shape[0], blocks * window, heads, -1)[:, :length]
