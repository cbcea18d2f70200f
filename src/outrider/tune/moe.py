"""Mixture of experts over whole batches, for training (spec 1 §3)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from outrider.config.model import LayerConfig
from outrider.tune.context import Context, Tally
from outrider.tune.fake import fake_fp8_rows
from outrider.tune.grad.experts import experts


def moe(context: Context, x: Tensor, ids: Tensor, layer: LayerConfig, prefix: str, tally: Tally | None) -> Tensor:
    """Routed experts plus the shared one; x ``[N, d]``, normed, ids ``[N]`` (for hash routing)."""
    count = context.config.n_routed_experts
    chosen, share = route(context, x, ids, layer, prefix)
    loads = torch.bincount(chosen.flatten(), minlength=count)
    if tally is not None:
        tally.loads[prefix] = loads
    order = torch.argsort(chosen.flatten(), stable=True)
    rows, shares = order // chosen.shape[1], share.flatten()[order].unsqueeze(1)
    read = fake_fp8_rows(x) if context.simulate else x
    routed = _run(context, read, shares, rows, loads.tolist(), [f"{prefix}experts.{e}." for e in range(count)])
    ones = torch.ones(x.shape[0], 1, dtype=x.dtype)
    everyone = torch.arange(x.shape[0])
    return routed + _run(context, read, ones, everyone, [x.shape[0]], [prefix + "shared_experts."])


def route(context: Context, x: Tensor, ids: Tensor, layer: LayerConfig, prefix: str) -> tuple[Tensor, Tensor]:
    """(chosen experts ``[N, k]``, their weights ``[N, k]``) of rows ``[N, d]``."""
    p, config = context.params, context.config
    scores = functional.softplus(x @ p[prefix + "gate.weight"].t()).sqrt()
    if layer.hash_routed:
        chosen = functional.embedding(ids, p[prefix + "gate.tid2eid"])
    else:
        chosen = (scores.detach() + p[prefix + "gate.bias"]).topk(config.num_experts_per_tok, -1).indices
    weights = scores.gather(1, chosen)
    return chosen, weights / weights.sum(-1, keepdim=True) * config.routed_scaling_factor


def _run(context: Context, x: Tensor, share: Tensor, rows: Tensor, counts: list[int], names: list[str]) -> Tensor:
    """The experts called ``names``, each over its part of ``rows``."""
    w1, w2, w3 = ([context.params[f"{name}{w}.weight"] for name in names] for w in ("w1", "w2", "w3"))
    if context.simulate:
        return _simulated(x, share, rows, counts, context.limit, w1, w2, w3)
    return experts(x, share, rows, counts, context.limit, context.compute, w1, w2, w3)


def _simulated(
    x: Tensor, share: Tensor, rows: Tensor, counts: list[int], limit: float,
    w1: list[Tensor], w2: list[Tensor], w3: list[Tensor],
) -> Tensor:  # fmt: skip
    """``functions.experts`` with each intermediate quantised as it enters w2 (plain autograd)."""
    outs = []
    for part, part_share, a, b, c in zip(x[rows].split(counts), share.split(counts), w1, w2, w3, strict=True):
        inner = functional.silu((part @ a.t()).clamp(max=limit)) * (part @ c.t()).clamp(-limit, limit) * part_share
        outs.append(fake_fp8_rows(inner) @ b.t())
    return torch.zeros_like(x).index_add(0, rows, torch.cat(outs))
