"""Losses over the vocabulary, whose gradient takes the place of the logits in the forward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from outrider.tune.grad import Grads


class _HeadLoss(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, compute: torch.dtype) -> Tensor:
        rows, matrix = x.to(compute), weight.to(compute)
        p = torch.softmax((rows @ matrix.t()).to(x.dtype), -1)
        index = targets.unsqueeze(1)
        picked = p.gather(1, index)
        ctx.save_for_backward(rows, matrix, p.scatter_(1, index, picked - 1).to(compute))
        ctx.dtype = x.dtype
        return -picked.clamp_(min=torch.finfo(x.dtype).tiny).log_().mean()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Grads:
        rows, matrix, dlogits = ctx.saved_tensors
        scale = grads[0] / rows.shape[0]
        dx = (dlogits @ matrix).to(ctx.dtype).mul_(scale)
        return dx, (dlogits.t() @ rows).to(ctx.dtype).mul_(scale), None, None


def head_loss(x: Tensor, weight: Tensor, targets: Tensor, compute: torch.dtype) -> Tensor:
    """Mean cross-entropy of softmax(x · weightᵀ) against ``targets``: x ``[N, d]``, weight ``[vocab, d]``, ``[N]``.
    The logits' gradient is made in the forward pass, in place of the logits."""
    return _HeadLoss.apply(x, weight, targets, compute)


class _HeadDivergence(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor, compute: torch.dtype) -> Tensor:
        matrix = weight.to(compute)
        logp = torch.log_softmax((x.to(compute) @ matrix.t()).to(x.dtype), -1)
        divergence = torch.xlogy(targets, targets).sub_(targets * logp).sum(-1).mean()
        ctx.save_for_backward(matrix, logp.exp_().sub_(targets).to(compute))
        ctx.dtype = x.dtype
        return divergence

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Grads:
        matrix, dlogits = ctx.saved_tensors
        return (dlogits @ matrix).to(ctx.dtype).mul_(grads[0] / dlogits.shape[0]), None, None, None


def head_divergence(x: Tensor, weight: Tensor, targets: Tensor, compute: torch.dtype) -> Tensor:
    """Mean KL from the distributions ``targets`` ``[N, vocab]`` to softmax(x · weightᵀ); weight gets no gradient."""
    return _HeadDivergence.apply(x, weight, targets, compute)
