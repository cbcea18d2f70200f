"""Rounding to FP8 and FP4 with a straight-through gradient: what a checkpoint will hold, seen while training."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.autograd import Function

from outrider.quant import fp4, fp8


class _Straight(Function):
    """Forward is the rounded value given beside x; the gradient passes to x as if nothing had been rounded."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rounded: Tensor) -> Tensor:
        return rounded.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        return grads[0], None


def fake_fp8_rows(x: Tensor, block: int = fp8.BLOCK) -> Tensor:
    """Each float32 row rounded to FP8 in blocks of ``block``; the gradient passes straight through."""
    return _Straight.apply(x, fp8.simulate(x.detach(), block))


def fake_fp4_rows(x: Tensor) -> Tensor:
    """Each float32 row rounded to FP4 in blocks of 32; the gradient passes straight through."""
    return _Straight.apply(x, fp4.simulate(x.detach()))
