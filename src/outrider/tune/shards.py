"""Gradients of one batch computed by two threads, each with half of the sequences and one core.

On small tensors two whole halves side by side are faster than every operator split in two, and they don't stall when
another process takes a core for a moment. Halves are added in a fixed order, so the result doesn't depend on timing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

SHARDS = 2


@dataclass(frozen=True)
class ShardResult:
    """One half's losses (detached scalars by name), gradients by name, and expert loads by layer prefix."""

    losses: dict[str, Tensor]
    grads: dict[str, Tensor]
    loads: dict[str, Tensor]


ShardWork = Callable[[Mapping[str, Tensor], Tensor], tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]]
"""(parameters, windows) → (loss to differentiate, losses to report, loads)."""


class Shards:
    """A pool of ``SHARDS`` single-core workers; use as a context manager."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(SHARDS, initializer=torch.set_num_threads, initargs=(1,))

    def __enter__(self) -> Shards:
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown()

    def gradients(
        self, work: ShardWork, params: Mapping[str, Tensor], names: list[str], windows: Tensor
    ) -> ShardResult:
        """Mean losses and gradients of the parameters ``names`` over all windows, and summed loads. Every shard has
        the same number of windows."""
        parts = windows.chunk(SHARDS)
        results = list(self._pool.map(lambda part: _one(work, params, names, part), parts))
        first, *rest = results
        for other in rest:
            for name, grad in first.grads.items():
                grad.add_(other.grads[name])
            for name, load in first.loads.items():
                load.add_(other.loads[name])
        for grad in first.grads.values():
            grad.div_(len(parts))
        losses = {name: sum(r.losses[name] for r in results) / len(parts) for name in first.losses}
        return ShardResult(losses, first.grads, first.loads)  # type: ignore[arg-type]


def _one(work: ShardWork, params: Mapping[str, Tensor], names: list[str], windows: Tensor) -> ShardResult:
    loss, losses, loads = work(params, windows)
    grads = torch.autograd.grad(loss, [params[name] for name in names])
    return ShardResult(losses, dict(zip(names, grads, strict=True)), loads)
