"""Mixture of experts: router by hash or score, SwiGLU experts, a shared one (spec 1 §3 "MoE")."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.ops.reference.handles import Expert, Layer, Linear
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


def _expert(expert: Expert, x: Tensor, limit: float, weight: Tensor | None) -> Tensor:
    """``w2(silu(w1 x) · w3 x · weight)`` with both factors clamped, for rows ``x [n, d]``."""
    quantised = activation(x) if expert.w1.quantised or expert.w3.quantised else None
    gate, up = project(expert.w1, x, quantised), project(expert.w3, x, quantised)
    if limit > 0:
        gate, up = gate.clamp_max(limit), up.clamp(-limit, limit)
    inner = silu(gate) * up
    return project(expert.w2, inner if weight is None else inner * weight.unsqueeze(1))


def moe(layer: Layer, x: Tensor, ids: Tensor) -> Tensor:
    """``x [R, d]``, token ids ``[R]`` → ``[R, d]``. Each touched expert runs once over its rows; a row adds its experts
    in ascending order, then the shared one."""
    chosen, weights = _route(layer, x, ids)
    limit = layer.config.swiglu_limit
    parts = x.new_zeros(*chosen.shape, x.shape[1])
    for index in torch.unique(chosen).tolist():
        row, rank = (chosen == index).nonzero(as_tuple=True)
        parts[row, rank] = _expert(layer.moe.experts[index], x[row], limit, weights[row, rank])
    return tree_sum(parts, 1) + _expert(layer.moe.shared, x, limit, None)
