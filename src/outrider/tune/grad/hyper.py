"""The hyper-connection that wraps every sublayer (spec 1 §3)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from outrider.tune.grad import Grads
from outrider.tune.grad.basic import inverse_rms


class _Collapse(Function):
    """Both uses of the streams in one backward pass: their gradient is written once and added to in place."""

    @staticmethod
    def forward(
        ctx: Any, streams: Tensor, fn: Tensor, scale: Tensor, base: Tensor, eps: float, hc_eps: float
    ) -> tuple[Tensor, ...]:
        rows, s, _ = streams.shape
        flat = streams.view(rows, -1)
        rstd = inverse_rms(flat, eps)
        m = (flat @ fn.t()).mul_(rstd)
        pre = torch.sigmoid(m[:, :s] * scale[0] + base[:s])
        x = torch.bmm((pre + hc_eps).unsqueeze(1), streams).squeeze(1)
        ctx.save_for_backward(streams, fn, scale, rstd, m, pre)
        ctx.hc_eps = hc_eps
        return streams.view_as(streams), x, m[:, s:].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Grads:
        streams, fn, scale, rstd, m, pre = ctx.saved_tensors
        passed, dx, drest = grads
        rows, s, _ = streams.shape
        dpre = torch.bmm(streams, dx.unsqueeze(2)).squeeze(2) * (pre * (1 - pre))
        dm = torch.cat([dpre * scale[0], drest], 1)
        scaled = dm * rstd
        shared = (dm * m).sum(-1, keepdim=True).mul_(rstd.square()).div_(-fn.shape[1])
        flat = streams.view(rows, -1)
        dstreams = torch.baddbmm(passed, (pre + ctx.hc_eps).unsqueeze(2), dx.unsqueeze(1)).view(rows, -1)
        dstreams.addmm_(scaled, fn).addcmul_(flat, shared)
        dscale = torch.zeros_like(scale)
        dscale[0] = (dpre * m[:, :s]).sum()
        dbase = torch.cat([dpre.sum(0), dpre.new_zeros(fn.shape[0] - s)])
        return dstreams.view(streams.shape), scaled.t() @ flat, dscale, dbase, None, None


def collapse(
    streams: Tensor, fn: Tensor, scale: Tensor, base: Tensor, eps: float, hc_eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Steps 1 to 3 of the hyper-connection (spec 1 §3): streams ``[N, S, d]``, fn ``[M, S·d]``, scale, base ``[M]``.

    Returns the streams again (use these from here on: their gradient then arrives in this one backward pass), the
    mixed input Σ pre_s · streams_s ``[N, d]``, and what is left of m, ``[N, M − S]``, before its scale and base.
    """
    return _Collapse.apply(streams, fn, scale, base, eps, hc_eps)


class _Expand(Function):
    @staticmethod
    def forward(ctx: Any, streams: Tensor, y: Tensor, post: Tensor, mix: Tensor) -> Tensor:
        ctx.save_for_backward(streams, y, post, mix)
        written = torch.bmm(post.unsqueeze(2), y.unsqueeze(1))
        return written.baddbmm_(mix.transpose(1, 2), streams)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Grads:
        streams, y, post, mix = ctx.saved_tensors
        grad = grads[0].contiguous()
        dstreams = torch.bmm(mix, grad)
        dy = torch.bmm(post.unsqueeze(1), grad).squeeze(1)
        dpost = torch.bmm(grad, y.unsqueeze(2)).squeeze(2)
        return dstreams, dy, dpost, torch.bmm(streams, grad.transpose(1, 2))


def expand(streams: Tensor, y: Tensor, post: Tensor, mix: Tensor) -> Tensor:
    """Step 4: streams'_k = post_k · y + Σ_j C[j,k] · streams_j; streams ``[N, S, d]``, y ``[N, d]``, post ``[N, S]``,
    mix (C) ``[N, S, S]``."""
    return _Expand.apply(streams, y, post, mix)


def _normalise(values: Tensor, axis: int, eps: float, kept: list[Tensor]) -> Tensor:
    """Divide by the sums over ``axis`` + eps; ``kept`` gains the result and those sums."""
    total = values.sum(axis, keepdim=True).add_(eps)
    result = values / total
    kept += [result, total]
    return result


class _Sinkhorn(Function):
    """Works on ``[S, S, N]``: the long axis last, so that the tiny sums run over it in vector registers."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, iterations: int, eps: float) -> Tensor:
        soft = logits.permute(1, 2, 0).contiguous().softmax(1)
        kept: list[Tensor] = []
        values = _normalise(soft + eps, 0, eps, kept)
        for _ in range(iterations - 1):
            values = _normalise(_normalise(values, 1, eps, kept), 0, eps, kept)
        ctx.save_for_backward(soft, *kept)
        return values.permute(2, 0, 1).contiguous()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Grads:
        soft, *kept = ctx.saved_tensors
        grad = grads[0].permute(1, 2, 0).contiguous()
        axis = 0
        for result, total in zip(kept[-2::-2], kept[-1::-2], strict=True):
            grad = (grad - (grad * result).sum(axis, keepdim=True)).div_(total)
            axis = 1 - axis
        grad = soft * (grad - (grad * soft).sum(1, keepdim=True))
        return grad.permute(2, 0, 1).contiguous(), None, None


def sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """``[N, S, S]`` logits to nearly doubly stochastic matrices, exactly as spec 1 §3 step 2 orders the divisions."""
    return _Sinkhorn.apply(logits, iterations, eps)
