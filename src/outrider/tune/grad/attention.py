"""Attention with a sink."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional

from outrider.tune.grad import Grads


class _SinkAttention(Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, keys: Tensor, bias: Tensor, sink: Tensor, first_entry: int, compute: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        groups, heads, width, dim = q.shape
        scale = dim**-0.5
        flat = (q * scale).to(compute).view(groups, heads * width, dim)
        padded = functional.pad(keys.to(compute), (0, 0, 0, 1))
        scores = torch.bmm(flat, padded.transpose(1, 2)).view(groups, heads, width, -1)
        scores += bias.to(compute).unsqueeze(1)
        scores[..., -1] = sink.to(compute).view(1, heads, 1)
        p = torch.softmax(scores, -1)
        ctx.save_for_backward(flat, padded, p)
        ctx.dtype, ctx.scale = q.dtype, scale
        out = torch.bmm(p.view(groups, heads * width, -1), padded).view(q.shape).to(q.dtype)
        mass = p[..., first_entry:-1].to(q.dtype).sum(1)
        ctx.mark_non_differentiable(mass)
        return out, mass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Grads:
        flat, padded, p = ctx.saved_tensors
        groups, heads, width, count = p.shape
        dout = grads[0].to(flat.dtype).reshape(flat.shape)
        dp = torch.bmm(dout, padded.transpose(1, 2)).view(p.shape)
        ds = torch._softmax_backward_data(dp, p, -1, flat.dtype)
        dsink = ds[..., -1].to(ctx.dtype).sum((0, 2))
        flat_ds = ds.view(groups, heads * width, count)
        dq = torch.bmm(flat_ds, padded).to(ctx.dtype).mul_(ctx.scale).view(groups, heads, width, -1)
        dkeys = torch.bmm(flat_ds.transpose(1, 2), flat)
        dkeys += torch.bmm(p.view(flat_ds.shape).transpose(1, 2), dout)
        return dq, dkeys[:, :-1].to(ctx.dtype), None, dsink, None, None


def sink_attention(
    q: Tensor, keys: Tensor, bias: Tensor, sink: Tensor, first_entry: int, compute: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Attention with one shared K = V head and a sink logit a head that only adds to the denominator.

    q ``[G, H, W, D]``, keys ``[G, K, D]``, bias ``[G, W, K+1]`` (0 or −inf; the last column is the sink's and 0),
    sink ``[H]``. Returns out like q, and (not differentiable) the mass given to keys from ``first_entry`` on, summed
    over heads, ``[G, W, K − first_entry]``.
    """
    return _SinkAttention.apply(q, keys, bias, sink, first_entry, compute)
