"""Mixture of experts: router by hash or score, SwiGLU experts, a shared one (spec 1 §3 "MoE")."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.ops.reference.handles import Layer, Linear
from outrider.ops.reference.primitives import activation, linear, silu, softplus, top_k_by_rule, tree_sum


def project(weights: Linear, x: Tensor, quantised: Tensor | None = None) -> Tensor:
    """A linear layer on ``x [R, in]``; a quantised one takes ``quantised`` = activation(x), made if not given."""
    if weights.quantised:
        x = activation(x) if quantised is None else quantised
    return linear(x, weights.weight)


def _route(layer: Layer, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Chosen experts int64 ``[R, k]`` in ascending order, and their weights ``[R, k]``."""
    moe, config = layer.moe, layer.config
    scores = torch.sqrt(softplus(project(moe.gate, x)))
    if moe.table is not None:
        chosen = moe.table[ids]
    else:
        assert moe.bias is not None
        chosen = top_k_by_rule(scores + moe.bias, config.num_experts_per_tok)
    picked = scores.gather(1, chosen)
    weights = picked / tree_sum(picked, 1).unsqueeze(1) * config.routed_scaling_factor
    order = torch.argsort(chosen, dim=1, stable=True)
    return chosen.gather(1, order), weights.gather(1, order)


def _swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """``silu(gate) · up`` with both clamped (0: not clamped), elementwise."""
    if limit > 0:
        gate, up = gate.clamp_max(limit), up.clamp(-limit, limit)
    return silu(gate) * up


def _shared(layer: Layer, x: Tensor, quantised: Tensor) -> Tensor:
    """The expert that every row passes, weight 1: ``[R, d]``."""
    expert = layer.moe.shared
    gate, up = project(expert.w1, x, quantised), project(expert.w3, x, quantised)
    return project(expert.w2, _swiglu(gate, up, layer.config.swiglu_limit))


def moe(layer: Layer, x: Tensor, ids: Tensor) -> Tensor:
    """``x [R, d]``, token ids ``[R]`` → ``[R, d]``. A row adds its experts in ascending order, then the shared one.

    Pairs (row, expert) are sorted by expert; each touched expert multiplies its own stretch of them, and all that is
    elementwise is done once for all pairs.
    """
    chosen, weights = _route(layer, x, ids)
    quantised = activation(x)
    pair = torch.argsort(chosen.flatten(), stable=True)
    row = pair // chosen.shape[1]
    counts = torch.bincount(chosen.flatten(), minlength=len(layer.moe.experts)).tolist()
    stretches = [(expert, n) for expert, n in zip(layer.moe.experts, counts, strict=True) if n]
    plain, coarse = x[row], quantised[row]
    gate = _multiply([(expert.w1, n) for expert, n in stretches], plain, coarse)
    up = _multiply([(expert.w3, n) for expert, n in stretches], plain, coarse)
    inner = _swiglu(gate, up, layer.config.swiglu_limit) * weights.flatten()[pair].unsqueeze(1)
    out = _multiply([(expert.w2, n) for expert, n in stretches], inner, activation(inner))
    parts = torch.empty_like(out).index_copy_(0, pair, out).unflatten(0, chosen.shape)
    return tree_sum(parts, 1) + _shared(layer, x, quantised)


def _multiply(stretches: list[tuple[Linear, int]], x: Tensor, quantised: Tensor) -> Tensor:
    """Each weight on the next ``n`` rows of ``x``, or of ``quantised`` where it was stored so."""
    parts, at = [], 0
    for weight, n in stretches:
        source = quantised if weight.quantised else x
        parts.append(linear(source[at : at + n], weight.weight))
        at += n
    return torch.cat(parts)
