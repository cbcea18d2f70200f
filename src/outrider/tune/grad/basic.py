"""Linear layers, norms and rotations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from outrider.tune.grad import Grads


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, compute: torch.dtype) -> Tensor:
        rows, matrix = x.reshape(-1, x.shape[-1]).to(compute), weight.to(compute)
        ctx.save_for_backward(rows, matrix)
        ctx.dtype = x.dtype
        return (rows @ matrix.t()).to(x.dtype).view(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Grads:
        rows, matrix = ctx.saved_tensors
        (grad,) = grads
        flat = grad.reshape(-1, grad.shape[-1]).to(rows.dtype)
        dx = None
        if ctx.needs_input_grad[0]:
            dx = (flat @ matrix).to(ctx.dtype).view(*grad.shape[:-1], matrix.shape[1])
        dweight = (flat.t() @ rows).to(ctx.dtype) if ctx.needs_input_grad[1] else None
        return dx, dweight, None


def linear(x: Tensor, weight: Tensor, compute: torch.dtype) -> Tensor:
    """x ``[..., in]`` times weight ``[out, in]`` transposed."""
    return _Linear.apply(x, weight, compute)


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """rsqrt(mean(x²) + eps) over the last axis, kept as an axis of 1."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.rsqrt(norm.square() / x.shape[-1] + eps)


class _Rms(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        rstd = inverse_rms(x, eps)
        ctx.save_for_backward(x, rstd, weight)
        return (x * rstd).mul_(weight)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Grads:
        x, rstd, weight = ctx.saved_tensors
        (grad,) = grads
        hat = x * rstd
        product = grad * hat
        dweight = product.view(-1, x.shape[-1]).sum(0) if ctx.needs_input_grad[1] else None
        shared = product.mul_(weight).mean(-1, keepdim=True)
        dx = (grad * weight).sub_(hat.mul_(shared)).mul_(rstd)
        return dx, dweight, None


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x · rsqrt(mean(x²) + eps) · weight over the last axis (spec 1 §2)."""
    return _Rms.apply(x, weight, eps)


def _rotated(x: Tensor, factors: Tensor) -> Tensor:
    out = x.clone()
    rotary = 2 * factors.shape[-1]
    tail = torch.view_as_complex(out[..., -rotary:].unflatten(-1, (-1, 2)))
    tail.mul_(factors)
    return out


class _Rope(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factors: Tensor) -> Tensor:
        ctx.save_for_backward(factors)
        return _rotated(x.contiguous(), factors)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Grads:
        (factors,) = ctx.saved_tensors
        return _rotated(grads[0].contiguous(), factors.conj()), None


def rope(x: Tensor, factors: Tensor) -> Tensor:
    """Rotate the last pairs (2i, 2i+1) of x by the complex ``factors`` (broadcast over x's leading axes)."""
    return _Rope.apply(x, factors)
