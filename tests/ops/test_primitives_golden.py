"""The vendor's operators, by their recorded inputs and outputs. (Quantisers: tests/quant.)"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from outrider.config.model import Yarn
from outrider.ops.reference import primitives as ops
from outrider.quant.stored import Format, Stored

GOLDEN = load_file(Path(__file__).parents[1] / "golden" / "ops.safetensors")
YARN = Yarn(factor=16.0, original_max_position_embeddings=65536, beta_fast=32.0, beta_slow=1.0)


def close(found: Tensor, name: str, bound: float) -> bool:
    return bool((found - GOLDEN[name]).abs().max() <= bound)


@pytest.mark.parametrize("kind", ["fp8", "fp4"])
def test_golden_quantised_linear(kind: Format) -> None:
    name = f"{kind}_linear"
    w = Stored(name, GOLDEN[f"{name}.weight"], GOLDEN[f"{name}.scale"], kind).dequantise()
    assert close(ops.linear(ops.activation(GOLDEN[f"{name}.x"]), w), f"{name}.y", 1e-5)


def test_golden_sinkhorn() -> None:
    mixes, scale, base = (GOLDEN[f"sinkhorn.{part}"] for part in ("mixes", "scale", "base"))
    pre, post, comb = ops.hyper_split(mixes, scale, base, 4, 20, 1e-6)
    assert close(pre, "sinkhorn.pre", 1e-6)
    assert close(post, "sinkhorn.post", 1e-6)
    assert close(comb, "sinkhorn.comb", 1e-6)


def test_golden_hadamard() -> None:
    assert close(ops.hadamard(GOLDEN["hadamard.in"]), "hadamard.out", 1e-6)


@pytest.mark.parametrize(("name", "theta", "yarn"), [("rope", 10000.0, None), ("yarn", 160000.0, YARN)])
def test_golden_rope_angles(name: str, theta: float, yarn: Yarn | None) -> None:
    cos, sin = ops.rope_angles(GOLDEN["yarn.positions"], ops.inverse_frequencies(64, theta, yarn))
    assert close(cos, f"{name}.cos", 1e-6)
    assert close(sin, f"{name}.sin", 1e-6)


def test_golden_sparse_attention() -> None:
    index = GOLDEN["sparse_attn.index"].long()
    kv = GOLDEN["sparse_attn.kv"][index.clamp_min(0)]
    scale = float(GOLDEN["sparse_attn.scale"])
    found = ops.attend(GOLDEN["sparse_attn.q"], kv, index >= 0, GOLDEN["sparse_attn.sink"], scale)
    assert close(found, "sparse_attn.out", 1e-5)


def test_golden_top_k_rule() -> None:
    assert torch.equal(ops.top_k_by_rule(GOLDEN["topk_rule.scores"], 4), GOLDEN["topk_rule.index4"])
