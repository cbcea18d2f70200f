"""Hyper-connections (mHC): how a sublayer reads from and writes to the S residual streams (spec 1 §3, steps 1-4)."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.ops.reference.handles import Head, Hyper, Layer
from outrider.ops.reference.primitives import hyper_split, linear, rms_norm, sigmoid, tree_sum


def _mixes(hyper: Hyper, streams: Tensor, eps: float) -> Tensor:
    """Step 1: ``[R, (2+S)·S]`` (a head: ``[R, S]``)."""
    flat = streams.flatten(1)
    return linear(flat, hyper.fn) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + eps)


def enter(hyper: Hyper, norm: Tensor, streams: Tensor, layer: Layer) -> tuple[Tensor, Tensor, Tensor]:
    """Steps 1-3: ``[R, S, d]`` → the sublayer's normed input ``[R, d]``, ``post [R, S]``, ``comb [R, S, S]``."""
    config = layer.config
    mixes = _mixes(hyper, streams, config.rms_norm_eps)
    pre, post, comb = hyper_split(
        mixes, hyper.scale, hyper.base, config.hc_mult, config.hc_sinkhorn_iters, config.hc_eps
    )
    mixed = tree_sum(pre.unsqueeze(-1) * streams, 1)
    return rms_norm(mixed, norm, config.rms_norm_eps), post, comb


def leave(y: Tensor, post: Tensor, comb: Tensor, streams: Tensor) -> Tensor:
    """Step 4: streams'_k = post_k · y + Σ_j comb[j, k] · streams_j, ``[R, S, d]``."""
    carried = tree_sum(comb.unsqueeze(-1) * streams.unsqueeze(2), 1)
    return post.unsqueeze(-1) * y.unsqueeze(1) + carried


def collapse(head: Head, streams: Tensor) -> Tensor:
    """What the head makes of the streams before its norm: ``[R, d]``."""
    mixes = _mixes(head.hyper, streams, head.eps)
    weights = sigmoid(mixes * head.hyper.scale + head.hyper.base) + head.hc_eps
    return tree_sum(weights.unsqueeze(-1) * streams, 1)
