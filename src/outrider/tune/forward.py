"""The model once more: full sequences, differentiable (design §1.5). Same formulas as spec 1, written for training.

Shapes: B sequences of T tokens, S streams, d hidden; parameters under their released names. What the weights are
(float32, or as a checkpoint will hold them) is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from outrider.config.model import LayerConfig
from outrider.tune.attention import attention
from outrider.tune.context import Context, Tally
from outrider.tune.grad.basic import inverse_rms, linear, rms
from outrider.tune.grad.hyper import collapse, expand, sinkhorn
from outrider.tune.moe import moe

MTP = "mtp.0."

Attend = Callable[[Tensor], Tensor]
"""Normed input ``[B, T, d]`` to attention's output ``[B, T, d]``."""


def embed_streams(context: Context, ids: Tensor) -> Tensor:
    """Token ids ``[B, T]`` to the S equal streams that enter the first layer, ``[B, T, S, d]``."""
    embedded = functional.embedding(ids, context.params["embed.weight"])
    return embedded.unsqueeze(2).expand(-1, -1, context.config.hc_mult, -1).contiguous()


def trunk(context: Context, ids: Tensor, tally: Tally | None = None) -> Tensor:
    """Token ids ``[B, T]`` to the streams after the last layer, ``[B, T, S, d]``."""
    streams = embed_streams(context, ids)
    for layer in context.config.layers:
        streams = plain_layer(context, streams, ids, layer, f"layers.{layer.index}.", tally)
    return streams


def draft_input(context: Context, streams: Tensor, next_ids: Tensor) -> Tensor:
    """What the draft head's layer reads: slot i from streams i ``[B, T, S, d]`` and token i+1 ``[B, T]``."""
    p, eps = context.params, context.config.rms_norm_eps
    embedded = rms(functional.embedding(next_ids, p["embed.weight"]), p[MTP + "enorm.weight"], eps)
    hidden = context.project(rms(streams, p[MTP + "hnorm.weight"], eps), MTP + "h_proj")
    return context.project(embedded, MTP + "e_proj").unsqueeze(2) + hidden


def draft(context: Context, streams: Tensor, next_ids: Tensor, tally: Tally | None = None) -> Tensor:
    """The draft head's streams ``[B, T, S, d]`` from the trunk's; ``logits(…, MTP)`` makes its predictions."""
    mixed = draft_input(context, streams, next_ids)
    return plain_layer(context, mixed, next_ids, context.config.mtp_layers[0], MTP, tally)


def logits(context: Context, streams: Tensor, prefix: str = "") -> Tensor:
    """Streams to logits ``[B, T, vocab]``; with ``MTP`` the draft head's own mixing and norm are used."""
    return linear(head_input(context, streams, prefix), context.params["head.weight"], context.compute)


def head_input(context: Context, streams: Tensor, prefix: str = "") -> Tensor:
    """What the head multiplies: the streams mixed to one and normed, ``[B, T, d]``."""
    p, config = context.params, context.config
    flat = streams.flatten(2)
    m = (flat @ p[prefix + "hc_head_fn"].t()) * inverse_rms(flat, config.rms_norm_eps)
    weights = torch.sigmoid(m * p[prefix + "hc_head_scale"] + p[prefix + "hc_head_base"]) + config.hc_eps
    mixed = torch.matmul(weights.unsqueeze(2), streams).squeeze(2)
    return rms(mixed, p[prefix + "norm.weight"], config.rms_norm_eps)


def plain_layer(
    context: Context, streams: Tensor, ids: Tensor, layer: LayerConfig, prefix: str, tally: Tally | None
) -> Tensor:
    """A layer with ordinary attention over the whole sequences."""
    return run_layer(
        context, streams, ids, layer, prefix, lambda x: attention(context, x, layer, prefix + "attn.", tally), tally
    )


def run_layer(
    context: Context, streams: Tensor, ids: Tensor, layer: LayerConfig, prefix: str, attend: Attend,
    tally: Tally | None = None,
) -> Tensor:  # fmt: skip
    """``attend``, then MoE, each wrapped in its hyper-connection; streams ``[B, T, S, d]``, ids ``[B, T]``."""
    p, eps, shape = context.params, context.config.rms_norm_eps, streams.shape
    flat, x, post, mix = _collapse(context, streams.flatten(0, 1), prefix + "hc_attn")
    y = attend(rms(x, p[prefix + "attn_norm.weight"], eps).view(*shape[:2], -1))
    flat, x, post, mix = _collapse(context, expand(flat, y.flatten(0, 1), post, mix), prefix + "hc_ffn")
    y = moe(context, rms(x, p[prefix + "ffn_norm.weight"], eps), ids.flatten(), layer, prefix + "ffn.", tally)
    return expand(flat, y, post, mix).view(shape)


def _collapse(context: Context, streams: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hyper-connection, first half, of streams ``[N, S, d]``: the streams again, the sublayer's input ``[N, d]``,
    post ``[N, S]`` and C ``[N, S, S]``."""
    config, s = context.config, context.config.hc_mult
    scale, base = context.params[name + "_scale"], context.params[name + "_base"]
    streams, x, rest = collapse(streams, context.params[name + "_fn"], scale, base, config.rms_norm_eps, config.hc_eps)
    post = 2 * torch.sigmoid(rest[:, :s] * scale[1] + base[s : 2 * s])
    mix = (rest[:, s:] * scale[2] + base[2 * s :]).view(-1, s, s)
    return streams, x, post, sinkhorn(mix, config.hc_sinkhorn_iters, config.hc_eps)
