"""The tensors that a config calls for: released names, logical shapes and how each is stored (spec 1 §2).

This is the one list; the audit, the writer and the tests all read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outrider.config.model import LayerConfig, ModelConfig

Kind = Literal["linear", "expert", "plain", "exact", "ids"]


@dataclass(frozen=True, slots=True)
class Expected:
    """``shape`` is logical ([out, in] also where two values share a byte). ``kind`` says how a quantised release
    stores it: linear = FP8, expert = FP4 or FP8 (expert_dtype), plain = bf16, exact = float32, ids = integers."""

    shape: tuple[int, ...]
    kind: Kind


def expected_tensors(config: ModelConfig, mtp_blocks: int) -> dict[str, Expected]:
    """Every tensor of the trunk and of ``mtp_blocks`` draft blocks, by its released name, in the order of a forward."""
    d, vocab = config.hidden_size, config.vocab_size
    tensors = {"embed.weight": Expected((vocab, d), "plain")}
    for layer in config.layers:
        tensors |= _layer(config, f"layers.{layer.index}.", layer)
    tensors |= {"norm.weight": Expected((d,), "plain"), "head.weight": Expected((vocab, d), "plain")}
    tensors |= _hyper_head(config, "")
    for block in range(mtp_blocks):
        tensors |= _mtp_block(config, f"mtp.{block}.")
    return tensors


def _layer(config: ModelConfig, prefix: str, layer: LayerConfig | None) -> dict[str, Expected]:
    """One layer; None is a block of the draft head: window only, routed by score."""
    d = config.hidden_size
    tensors = _hyper(config, f"{prefix}hc_attn_") | {f"{prefix}attn_norm.weight": Expected((d,), "plain")}
    tensors |= _attention(config, f"{prefix}attn.")
    if layer is not None and layer.kind != "window":
        tensors |= _compressed(config, f"{prefix}attn.", layer)
    tensors |= _hyper(config, f"{prefix}hc_ffn_") | {f"{prefix}ffn_norm.weight": Expected((d,), "plain")}
    return tensors | _moe(config, f"{prefix}ffn.", hash_routed=layer is not None and layer.hash_routed)


def _hyper(config: ModelConfig, prefix: str) -> dict[str, Expected]:
    s = config.hc_mult
    return {
        f"{prefix}fn": Expected(((2 + s) * s, s * config.hidden_size), "exact"),
        f"{prefix}base": Expected(((2 + s) * s,), "exact"),
        f"{prefix}scale": Expected((3,), "exact"),
    }


def _hyper_head(config: ModelConfig, prefix: str) -> dict[str, Expected]:
    s = config.hc_mult
    return {
        f"{prefix}hc_head_fn": Expected((s, s * config.hidden_size), "exact"),
        f"{prefix}hc_head_base": Expected((s,), "exact"),
        f"{prefix}hc_head_scale": Expected((1,), "exact"),
    }


def _attention(config: ModelConfig, prefix: str) -> dict[str, Expected]:
    d, width = config.hidden_size, config.num_attention_heads * config.head_dim
    rank = config.o_groups * config.o_lora_rank
    return {
        f"{prefix}wq_a.weight": Expected((config.q_lora_rank, d), "linear"),
        f"{prefix}q_norm.weight": Expected((config.q_lora_rank,), "plain"),
        f"{prefix}wq_b.weight": Expected((width, config.q_lora_rank), "linear"),
        f"{prefix}wkv.weight": Expected((config.head_dim, d), "linear"),
        f"{prefix}kv_norm.weight": Expected((config.head_dim,), "plain"),
        f"{prefix}wo_a.weight": Expected((rank, width // config.o_groups), "linear"),
        f"{prefix}wo_b.weight": Expected((d, rank), "linear"),
        f"{prefix}attn_sink": Expected((config.num_attention_heads,), "exact"),
    }


def _compressed(config: ModelConfig, prefix: str, layer: LayerConfig) -> dict[str, Expected]:
    tensors = _compressor(config, f"{prefix}compressor.", layer, config.head_dim)
    if layer.kind == "csa":
        heads, dim = config.index_n_heads, config.index_head_dim
        tensors[f"{prefix}indexer.wq_b.weight"] = Expected((heads * dim, config.q_lora_rank), "linear")
        tensors[f"{prefix}indexer.weights_proj.weight"] = Expected((heads, config.hidden_size), "plain")
        tensors |= _compressor(config, f"{prefix}indexer.compressor.", layer, dim)
    return tensors


def _compressor(config: ModelConfig, prefix: str, layer: LayerConfig, dim: int) -> dict[str, Expected]:
    wide = 2 * dim if layer.kind == "csa" else dim  # overlapping windows: two halves
    return {
        f"{prefix}ape": Expected((layer.ratio, wide), "exact"),
        f"{prefix}wkv.weight": Expected((wide, config.hidden_size), "plain"),
        f"{prefix}wgate.weight": Expected((wide, config.hidden_size), "plain"),
        f"{prefix}norm.weight": Expected((dim,), "plain"),
    }


def _moe(config: ModelConfig, prefix: str, *, hash_routed: bool) -> dict[str, Expected]:
    experts = config.n_routed_experts
    tensors = {f"{prefix}gate.weight": Expected((experts, config.hidden_size), "plain")}
    if hash_routed:
        tensors[f"{prefix}gate.tid2eid"] = Expected((config.vocab_size, config.num_experts_per_tok), "ids")
    else:
        tensors[f"{prefix}gate.bias"] = Expected((experts,), "exact")
    for expert in range(experts):
        tensors |= _expert(config, f"{prefix}experts.{expert}.", "expert")
    return tensors | _expert(config, f"{prefix}shared_experts.", "linear")


def _expert(config: ModelConfig, prefix: str, kind: Kind) -> dict[str, Expected]:
    d, inner = config.hidden_size, config.moe_intermediate_size
    return {
        f"{prefix}w1.weight": Expected((inner, d), kind),
        f"{prefix}w2.weight": Expected((d, inner), kind),
        f"{prefix}w3.weight": Expected((inner, d), kind),
    }


def _mtp_block(config: ModelConfig, prefix: str) -> dict[str, Expected]:
    d = config.hidden_size
    tensors = {f"{prefix}{name}.weight": Expected((d,), "plain") for name in ("enorm", "hnorm", "norm")}
    tensors |= {f"{prefix}{name}.weight": Expected((d, d), "linear") for name in ("e_proj", "h_proj")}
    return tensors | _layer(config, prefix, None) | _hyper_head(config, prefix)
