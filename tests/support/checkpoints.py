"""Tiny V4 checkpoints made in code: every kind of layer, random weights, logits that vary strongly."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.config.model import ModelConfig, Yarn
from outrider.quant.stored import Stored
from outrider.weights import expected_tensors, lay_out, save_checkpoint
from outrider.weights.names import Expected


def tiny_config(**overrides: Any) -> ModelConfig:
    """Layers window, csa, hca, csa and one MTP block; the first layer is routed by hash. float32, not quantised.

    ``hca_ratio=8`` stands in for 128; give 128 to save it to files. compress_ratios follows it, num_hidden_layers
    follows compress_ratios (less one MTP block) unless they are given.
    """
    hca = overrides.get("hca_ratio", 8)
    ratios = overrides.get("compress_ratios", (0, 4, hca, 4, 0))
    values: dict[str, Any] = {
        "hidden_size": 64,
        "num_hidden_layers": len(ratios) - 1,
        "num_nextn_predict_layers": 1,
        "vocab_size": 64,
        "num_attention_heads": 4,
        "head_dim": 32,
        "qk_rope_head_dim": 16,
        "q_lora_rank": 48,
        "o_groups": 2,
        "o_lora_rank": 16,
        "sliding_window": 8,
        "compress_ratios": ratios,
        "index_n_heads": 8,
        "index_head_dim": 32,
        "index_topk": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "num_hash_layers": 1,
        "moe_intermediate_size": 32,
        "routed_scaling_factor": 1.5,
        "swiglu_limit": 10.0,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "compress_rope_theta": 160000.0,
        "yarn": Yarn(factor=16.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0),
        "max_position_embeddings": 512,
        "bos_token_id": 0,
        "eos_token_ids": (1,),
        "torch_dtype": "float32",
        "hca_ratio": hca,
    }
    return ModelConfig(**(values | overrides))


def random_tensors(config: ModelConfig, seed: int, mtp_blocks: int = 1) -> dict[str, Tensor]:
    """All tensors of the config, float32 (routes int64). A tensor depends on the seed, its name and shape only."""
    return {name: _random(config, seed, name, want) for name, want in expected_tensors(config, mtp_blocks).items()}


def stored(config: ModelConfig, tensors: dict[str, Tensor], *, quantise: bool = False) -> dict[str, Stored]:
    """What a checkpoint of these tensors would hold, without files: exact float32 unless ``quantise``."""
    laid = lay_out(config, tensors.items(), quantise=quantise, plain_dtype=torch.float32)
    return {item.name: item for item in laid}


def _random(config: ModelConfig, seed: int, name: str, want: Expected) -> Tensor:
    generator = torch.Generator().manual_seed(seed * 1_000_003 + zlib.crc32(name.encode()))
    if want.kind == "ids":
        scores = torch.rand(want.shape[0], config.n_routed_experts, generator=generator)
        return scores.argsort(1)[:, : want.shape[1]].contiguous()
    noise = torch.randn(want.shape, generator=generator)
    last = name.rsplit(".", 1)[-1]
    if name.endswith("norm.weight"):
        return 1 + 0.1 * noise
    if name == "embed.weight" or last == "attn_sink":
        return noise
    if last.endswith("_scale"):
        return 1 + 0.2 * noise
    if last == "bias":
        return 0.1 * noise
    if last in ("ape", "base") or last.endswith("_base"):
        return 0.5 * noise
    gain = 3.0 if name == "head.weight" else 1.5
    return gain * noise * want.shape[-1] ** -0.5


def save_tiny(folder: Path, *, quantise: bool = False, seed: int = 0, **overrides: Any) -> ModelConfig:
    """Save a tiny checkpoint with one MTP block in the released layout (exact float32, or FP8 with FP4 experts)."""
    formats = {"quantised": True, "expert_dtype": "fp4"} if quantise else {}
    config = tiny_config(hca_ratio=128, **formats, **overrides)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in _tiny_files(config, seed, quantise).items():
        (folder / name).write_bytes(content)
    return config


@cache
def _tiny_files(config: ModelConfig, seed: int, quantise: bool) -> dict[str, bytes]:
    """The files of such a checkpoint; made once, as many tests damage a copy each."""
    with TemporaryDirectory() as work:
        target = Path(work) / "tiny"
        tensors = random_tensors(config, seed)
        save_checkpoint(target, config, tensors, quantise=quantise, plain_dtype=torch.float32)
        return {path.name: path.read_bytes() for path in target.iterdir()}


def edit_tensors(folder: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    """Let ``edit`` change the raw tensors of the folder's only file, in place."""
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def edit_config(folder: Path, **changes: Any) -> None:
    """Set keys of the folder's config.json; None removes one."""
    raw = json.loads((folder / "config.json").read_text())
    raw |= changes
    kept = {key: value for key, value in raw.items() if key not in changes or value is not None}
    (folder / "config.json").write_text(json.dumps(kept))
