"""What every part of the differentiable model needs: config, parameters and numerics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from outrider.config.model import LayerConfig, ModelConfig
from outrider.ops.reference.rope import inverse_frequencies
from outrider.tune.fake import fake_fp8_rows
from outrider.tune.grad.basic import linear

Params = Mapping[str, Tensor]


@dataclass
class Tally:
    """What a forward leaves besides its result: indexer losses (one a CSA layer) and expert loads by layer prefix."""

    index_losses: list[Tensor] = field(default_factory=list)
    loads: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Context:
    """One set of parameters (canonical released names) and how to compute with it.

    ``compute`` is the dtype that matrix products take their inputs in. ``dense`` lets CSA queries see every visible
    entry (the indexer's warm-up). ``simulate`` passes activations through FP8 and FP4 as a quantised checkpoint does.
    """

    config: ModelConfig
    params: Params
    compute: torch.dtype = torch.float32
    dense: bool = False
    simulate: bool = False
    _factors: dict[tuple[float, bool, int, int, int], Tensor] = field(default_factory=dict, repr=False)

    @property
    def limit(self) -> float:
        """The clamp of the experts, infinite where the config has none."""
        return self.config.swiglu_limit or math.inf

    def project(self, x: Tensor, name: str) -> Tensor:
        """A linear that a checkpoint stores in FP8: its input is quantised where activations are simulated."""
        return linear(fake_fp8_rows(x) if self.simulate else x, self.params[name + ".weight"], self.compute)

    def stored(self, kv: Tensor) -> Tensor:
        """Key rows ``[…, D]`` as a cache holds them: FP8 on the unrotated dims where activations are simulated."""
        if not self.simulate:
            return kv
        plain = self.config.head_dim - self.config.qk_rope_head_dim
        return torch.cat([fake_fp8_rows(kv[..., :plain], 64), kv[..., plain:]], -1)

    def factors(self, layer: LayerConfig, first: int, count: int, step: int = 1) -> Tensor:
        """Complex rotations ``[count, R/2]`` of a layer at positions first, first + step, … (cached)."""
        key = (layer.rope_theta, layer.yarn is None, first, count, step)
        if key not in self._factors:
            freqs = inverse_frequencies(self.config.qk_rope_head_dim, layer.rope_theta, layer.yarn)
            angles = (first + step * torch.arange(count)).to(torch.float32).unsqueeze(1) * freqs
            self._factors[key] = torch.polar(torch.ones_like(angles), angles)
        return self._factors[key]
