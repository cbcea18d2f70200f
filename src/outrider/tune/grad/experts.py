"""A set of experts that share an input."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from outrider.tune.grad import Grads


class _Experts(Function):
    """All experts that share an input. ``rows`` lists the token of each use, sorted by expert; ``counts`` the uses."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, share: Tensor, rows: Tensor, counts: list[int], limit: float, compute: torch.dtype,
        *weights: Tensor,
    ) -> Tensor:  # fmt: skip
        gathered = x.to(compute).index_select(0, rows)
        cast = [weight.to(compute) for weight in weights]
        n = len(counts)
        gates, ups, outs = [], [], []
        for part, part_share, w1, w2, w3 in zip(
            gathered.split(counts), share.split(counts), cast[:n], cast[n : 2 * n], cast[2 * n :], strict=True
        ):
            gate, up = part @ w1.t(), part @ w3.t()
            inner = functional.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit) * part_share.to(compute)
            outs.append(inner @ w2.t())
            gates.append(gate)
            ups.append(up)
        ctx.save_for_backward(gathered, share, rows, torch.cat(gates), torch.cat(ups), *cast)
        ctx.counts, ctx.limit, ctx.dtype = counts, limit, x.dtype
        return torch.zeros_like(x).index_add_(0, rows, torch.cat(outs).to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Grads:
        gathered, share, rows, gates, ups, *cast = ctx.saved_tensors
        counts, n, dtype = ctx.counts, len(ctx.counts), ctx.dtype
        dout = grads[0].to(gathered.dtype).index_select(0, rows)
        inner, dgate, dup, dshare = _swiglu_backward(dout, share, gates, ups, cast[n : 2 * n], counts, ctx.limit)
        dx_rows, dw1, dw2, dw3 = [], [], [], []
        parts = zip(
            gathered.split(counts), dout.split(counts), inner.split(counts), dgate.split(counts), dup.split(counts),
            cast[:n], cast[2 * n :], strict=True,
        )  # fmt: skip
        for part, part_dout, part_inner, part_dgate, part_dup, w1, w3 in parts:
            dw1.append((part_dgate.t() @ part).to(dtype))
            dw2.append((part_dout.t() @ part_inner).to(dtype))
            dw3.append((part_dup.t() @ part).to(dtype))
            dx_rows.append(torch.addmm(part_dgate @ w1, part_dup, w3))
        dx = torch.zeros_like(grads[0]).index_add_(0, rows, torch.cat(dx_rows).to(dtype))
        return dx, dshare, None, None, None, None, *dw1, *dw2, *dw3


def _swiglu_backward(
    dout: Tensor, share: Tensor, gates: Tensor, ups: Tensor, w2: list[Tensor], counts: list[int], limit: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of silu(min(gate, L)) · clamp(up, ±L) · share for all uses at once (elementwise work doesn't care
    which expert a row belongs to). Returns (inner, d gate, d up, d share)."""
    dinner = torch.cat([part @ weight for part, weight in zip(dout.split(counts), w2, strict=True)])
    weight = share.to(gates.dtype)
    gate, up = gates.clamp(max=limit), ups.clamp(-limit, limit)
    sigmoid = torch.sigmoid(gate)
    silu = gate * sigmoid
    inner = silu * up
    dshare = (dinner * inner).sum(-1, keepdim=True).to(share.dtype)
    inner *= weight
    weighted = dinner * weight
    dsilu = sigmoid * (1 + gate * (1 - sigmoid))
    dgate = (weighted * up * dsilu).masked_fill_(gates > limit, 0)
    dup = (weighted * silu).masked_fill_(ups.abs() > limit, 0)
    return inner, dgate, dup, dshare


def experts(
    x: Tensor, share: Tensor, rows: Tensor, counts: list[int], limit: float, compute: torch.dtype,
    w1: list[Tensor], w2: list[Tensor], w3: list[Tensor],
) -> Tensor:  # fmt: skip
    """Σ over uses of w2(silu(min(w1 x, L)) · clamp(w3 x, ±L) · share): x ``[N, d]``, share ``[uses, 1]``, rows
    ``[uses]`` (token of each use, sorted by expert), counts the uses of each expert. ``limit`` is L (inf for none)."""
    return _Experts.apply(x, share, rows, counts, limit, compute, *w1, *w2, *w3)
