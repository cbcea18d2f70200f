"""Muon for matrices and AdamW for the rest (spec 4), over a dict of named tensors; state is a plain dict of tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
MUON_MARKS = ("attn.", "experts.", "e_proj.", "h_proj.")
"""Marks of the names whose matrices Muon drives."""


@dataclass(frozen=True)
class Rates:
    """Peak learning rates and constants of one phase."""

    muon: float = 0.02
    embed: float = 1.5e-2
    head: float = 4e-3
    other: float = 2e-3
    weight_decay: float = 0.03
    clip: float = 1.0
    """Largest norm of the gradient of all that AdamW drives."""


@dataclass(frozen=True)
class Schedule:
    """Factor on the peak rates: linear warm-up, constant, then linear down to ``last``."""

    steps: int
    warm_up: int
    constant_until: float
    last: float = 0.02

    def factor(self, step: int) -> float:
        """The factor of 0-based ``step``."""
        if step < self.warm_up:
            return (step + 1) / self.warm_up
        start = self.constant_until * self.steps
        if step <= start:
            return 1.0
        return 1.0 - (1.0 - self.last) * min((step - start) / max(self.steps - 1 - start, 1e-9), 1.0)


def is_muon(name: str, value: Tensor) -> bool:
    """Whether Muon drives this parameter: matrices inside attention, experts and the draft head's projections."""
    return value.dim() == 2 and name.endswith(".weight") and any(mark in name for mark in MUON_MARKS)


def orthogonalised(updates: Tensor, iterations: int = 5) -> Tensor:
    """Newton–Schulz on ``[n, rows, columns]``: each matrix towards the nearest with all singular values 1 (bf16)."""
    a, b, c = NEWTON_SCHULZ
    tall = updates.shape[1] > updates.shape[2]
    x = (updates.transpose(1, 2) if tall else updates).to(torch.bfloat16)
    x = x / (x.float().flatten(1).norm(dim=1).view(-1, 1, 1) + 1e-7).to(torch.bfloat16)
    for _ in range(iterations):
        gram = torch.bmm(x, x.transpose(1, 2))
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.transpose(1, 2) if tall else x).to(updates.dtype)


class Optimiser:
    """Steps a dict of parameters in place. Matrices of one shape are orthogonalised together."""

    def __init__(self, params: Mapping[str, Tensor], rates: Rates) -> None:
        self.rates = rates
        self.step_count = 0
        self.shapes: dict[tuple[int, ...], list[str]] = {}
        self.state: dict[str, Tensor] = {}
        self.adam: list[str] = []
        for name, value in params.items():
            if not is_muon(name, value):
                self.adam.append(name)
                self.state[name + "/first"] = torch.zeros_like(value)
                self.state[name + "/second"] = torch.zeros_like(value)
            else:
                self.shapes.setdefault(tuple(value.shape), []).append(name)
                self.state[name + "/momentum"] = torch.zeros_like(value)

    def step(self, params: Mapping[str, Tensor], grads: Mapping[str, Tensor], factor: float) -> None:
        """One update with every rate times ``factor``."""
        self.step_count += 1
        for shape, names in self.shapes.items():
            self._muon(params, grads, names, shape, factor)
        self._adam(params, grads, factor)

    def _muon(
        self, params: Mapping[str, Tensor], grads: Mapping[str, Tensor], names: list[str], shape: tuple[int, ...],
        factor: float,
    ) -> None:  # fmt: skip
        momentum = 0.85 + 0.10 * min(self.step_count / 300, 1.0)
        updates = []
        for name in names:
            buffer = self.state[name + "/momentum"].lerp_(grads[name], 1 - momentum)
            updates.append(grads[name].lerp(buffer, momentum))
        rate = self.rates.muon * factor
        directions = orthogonalised(torch.stack(updates)) * max(1.0, shape[0] / shape[1]) ** 0.5
        for name, direction in zip(names, directions, strict=True):
            params[name].mul_(1 - rate * self.rates.weight_decay).sub_(direction, alpha=rate)

    def _adam(self, params: Mapping[str, Tensor], grads: Mapping[str, Tensor], factor: float) -> None:
        beta1, beta2 = 0.9, 0.95
        norm = math.sqrt(sum(float(grads[name].square().sum()) for name in self.adam))
        shrink = min(1.0, self.rates.clip / (norm + 1e-12))
        correct1, correct2 = 1 - beta1**self.step_count, 1 - beta2**self.step_count
        for name in self.adam:
            grad = grads[name] * shrink
            first = self.state[name + "/first"].lerp_(grad, 1 - beta1)
            second = self.state[name + "/second"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
            rate = self._rate(name) * factor
            params[name].addcdiv_(first, (second / correct2).sqrt_().add_(1e-8), value=-rate / correct1)

    def _rate(self, name: str) -> float:
        if name == "embed.weight":
            return self.rates.embed
        return self.rates.head if name == "head.weight" else self.rates.other

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that a resumed run needs, as tensors."""
        return {**self.state, "step_count": torch.tensor(self.step_count)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take back what ``state_dict`` gave."""
        self.step_count = int(state["step_count"])
        for name, value in self.state.items():
            value.copy_(state[name])
