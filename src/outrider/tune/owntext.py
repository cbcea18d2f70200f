"""The trunk's own text, many sequences in lockstep: what the draft head will meet, to distil it on.

All sequences are at the same position, so the caches are plain tensors that grow by one row a step. (Serving is the
engine's business; this loop shares the training formulas and knows nothing of slots, pages or rollback.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.config.model import LayerConfig
from outrider.tune.attention import best_mask, compress, index_keys, index_scores, output, queries_and_keys
from outrider.tune.context import Context
from outrider.tune.forward import embed_streams, logits, run_layer
from outrider.tune.grad.attention import sink_attention


@dataclass
class _Rows:
    """What one layer remembers, each ``[B, length, …]``, filled from the front: keys, and in a compressed layer its
    normed inputs, entries and index keys."""

    kv: Tensor
    x: Tensor | None = None
    entries: Tensor | None = None
    index: Tensor | None = None


class Lockstep:
    """Decodes ``batch`` sequences of at most ``length`` tokens, one position of all of them at a time."""

    def __init__(self, context: Context, batch: int, length: int) -> None:
        self.context, self.position = context, 0
        self.rows = [self._rows(layer, batch, length) for layer in context.config.layers]

    def _rows(self, layer: LayerConfig, batch: int, length: int) -> _Rows:
        config = self.context.config
        rows = _Rows(torch.zeros(batch, length, config.head_dim))
        if layer.ratio:
            rows.x = torch.zeros(batch, length, config.hidden_size)
            rows.entries = torch.zeros(batch, length // layer.ratio, config.head_dim)
        if layer.kind == "csa":
            rows.index = torch.zeros(batch, length // layer.ratio, config.index_head_dim)
        return rows

    def step(self, ids: Tensor) -> Tensor:
        """Run the tokens ids ``[B]`` at the present position; logits ``[B, vocab]`` of the next ones."""
        column = ids.unsqueeze(1)
        streams = embed_streams(self.context, column)
        for layer, rows in zip(self.context.config.layers, self.rows, strict=True):
            prefix = f"layers.{layer.index}."

            def attend(x: Tensor, layer: LayerConfig = layer, rows: _Rows = rows, prefix: str = prefix) -> Tensor:
                return self._attend(x, layer, rows, prefix + "attn.")

            streams = run_layer(self.context, streams, column, layer, prefix, attend)
        self.position += 1
        return logits(self.context, streams)[:, 0]

    def _attend(self, x: Tensor, layer: LayerConfig, rows: _Rows, prefix: str) -> Tensor:
        context, t = self.context, self.position
        low, q, kv = queries_and_keys(context, x, layer, prefix, t)
        rows.kv[:, t] = kv[:, 0]
        keys = rows.kv[:, max(0, t + 1 - context.config.sliding_window) : t + 1]
        bias = torch.zeros(x.shape[0], 1, keys.shape[1] + 1)
        if rows.x is not None and rows.entries is not None:
            rows.x[:, t] = x[:, 0]
            self._close(layer, rows, rows.x, rows.entries, prefix)
            count = (t + 1) // layer.ratio
            seen = torch.zeros(x.shape[0], 1, count)
            if rows.index is not None and count:
                scores = index_scores(context, x, low, rows.index[:, :count], layer, prefix + "indexer.", t)
                seen = seen.masked_fill_(~best_mask(scores, context.config.index_topk), -math.inf)
            keys, bias = torch.cat([rows.entries[:, :count], keys], 1), torch.cat([seen, bias], 2)
        sink = context.params[prefix + "attn_sink"]
        out, _ = sink_attention(q.transpose(1, 2), keys, bias, sink, keys.shape[1], context.compute)
        return output(context, out.transpose(1, 2), layer, prefix, t)

    def _close(self, layer: LayerConfig, rows: _Rows, x: Tensor, entries: Tensor, prefix: str) -> None:
        """Where the present token is the last of an entry, make that entry (and its index key)."""
        entry, left = divmod(self.position + 1, layer.ratio)
        if left:
            return
        first = max(0, entry - 2) if layer.kind == "csa" else entry - 1
        covered = x[:, first * layer.ratio : entry * layer.ratio]
        dim = self.context.config.head_dim
        made = compress(self.context, covered, layer, prefix + "compressor.", dim, first)
        entries[:, entry - 1] = self.context.stored(made[:, -1])
        if rows.index is not None:
            rows.index[:, entry - 1] = index_keys(self.context, covered, layer, prefix + "indexer.", first)[:, -1]


@torch.no_grad()
def own_text(context: Context, prompts: Tensor, length: int, temperature: Tensor, generator: torch.Generator) -> Tensor:
    """Continue prompts ``[B, P]`` to ``[B, length]`` token ids; ``temperature`` ``[B]`` 0 is greedy."""
    loop = Lockstep(context, prompts.shape[0], length)
    ids = torch.zeros(prompts.shape[0], length, dtype=torch.int64)
    ids[:, : prompts.shape[1]] = prompts
    for t in range(length - 1):
        scores = loop.step(ids[:, t])
        if t + 1 >= prompts.shape[1]:
            uniform = torch.rand(scores.shape, generator=generator).clamp_(1e-9, 1 - 1e-7)
            noise = -torch.log(-torch.log(uniform)) * temperature.unsqueeze(1)
            ids[:, t + 1] = (scores + noise).argmax(-1)
    return ids
