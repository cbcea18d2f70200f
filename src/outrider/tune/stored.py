"""Parameters as the checkpoint will hold them: FP4 routed experts, FP8 linears, bf16 or float32 for the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from outrider.config.model import ModelConfig
from outrider.quant import fp4, fp8
from outrider.weights.names import expected_tensors


def as_stored(config: ModelConfig, params: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
    """The values of ``names`` after a round trip through the formats that spec 1 §2 stores them in, in the dtype that
    they came in; detached copies. Experts are FP4 here, whatever ``config.expert_dtype`` says."""
    expected = expected_tensors(config, len(config.mtp_layers))
    result = {}
    shapes: dict[torch.Size, list[str]] = {}
    for name in names:
        if expected[name].kind == "expert":
            shapes.setdefault(params[name].shape, []).append(name)
        else:
            result[name] = _rounded(expected[name].kind, params[name].detach())
    for group in shapes.values():
        stacked = fp4.simulate(torch.stack([params[name].detach() for name in group]))
        result.update(zip(group, stacked.unbind(0), strict=True))
    return {name: result[name] for name in names}


def _rounded(kind: str, value: Tensor) -> Tensor:
    if kind == "linear":
        return fp8.dequantise_weight(*fp8.quantise_weight(value))
    return value.to(torch.bfloat16).to(value.dtype) if kind == "plain" else value.clone()
