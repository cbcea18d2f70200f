"""Weights as the reference likes them: float32, dequantised once, in frozen dataclasses.

``Linear.quantised`` remembers that the checkpoint holds FP8 or FP4 for it: its inputs are then quantised too (spec 1
§2). Decided for each tensor by how it is stored, never by what a config says of its neighbours (case B5).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from outrider.config.model import LayerConfig, ModelConfig
from outrider.ops.reference.primitives import inverse_frequencies
from outrider.quant.stored import Stored

Tensors = Mapping[str, Stored]


class On(Mapping[str, Stored]):
    """The same tensors, moved to a device as they are read."""

    def __init__(self, tensors: Tensors, device: str) -> None:
        self._tensors = tensors
        self._device = device

    def __getitem__(self, name: str) -> Stored:
        stored = self._tensors[name]
        scale = None if stored.scale is None else stored.scale.to(self._device)
        return replace(stored, data=stored.data.to(self._device), scale=scale)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


@dataclass(frozen=True, slots=True)
class Linear:
    """``[out, in]`` float32."""

    weight: Tensor
    quantised: bool


@dataclass(frozen=True, slots=True)
class Hyper:
    """mHC of one sublayer: ``fn [(2+S)·S, S·d]`` (head: ``[S, S·d]``), ``base``, ``scale``."""

    fn: Tensor
    base: Tensor
    scale: Tensor


@dataclass(frozen=True, slots=True)
class Compressor:
    """``ape [r, c·D]``, ``wkv`` and ``wgate`` stacked ``[2·c·D, d]`` (both read one unquantised input)."""

    ape: Tensor
    stacked: Linear
    norm: Tensor
    width: int
    overlap: int


@dataclass(frozen=True, slots=True)
class Indexer:
    """Scores entries for CSA: queries from the low-rank query, keys from a compressor of its own."""

    wq_b: Linear
    weights_proj: Linear
    compressor: Compressor


@dataclass(frozen=True, slots=True)
class Attention:
    """Weights of spec 1 §3 "Attention"; ``wo_a`` is a group a row block: ``[g, o_lora, H·D/g]``."""

    wq_a: Linear
    q_norm: Tensor
    wq_b: Linear
    wkv: Linear
    kv_norm: Tensor
    sink: Tensor
    wo_a: Tensor
    wo_b: Linear
    frequencies: Tensor
    compressor: Compressor | None
    indexer: Indexer | None


@dataclass(frozen=True, slots=True)
class Expert:
    """SwiGLU: ``w1``, ``w3 [inter, d]``, ``w2 [d, inter]``."""

    w1: Linear
    w2: Linear
    w3: Linear


@dataclass(frozen=True, slots=True)
class Moe:
    """Router and experts. ``table`` int64 ``[vocab, k]`` on hash layers, else ``bias [E]``."""

    gate: Linear
    bias: Tensor | None
    table: Tensor | None
    experts: tuple[Expert, ...]
    shared: Expert


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer, trunk or MTP, with the numbers that its formulas need."""

    config: ModelConfig
    layer: LayerConfig
    attn_norm: Tensor
    ffn_norm: Tensor
    hc_attn: Hyper
    hc_ffn: Hyper
    attention: Attention
    moe: Moe


@dataclass(frozen=True, slots=True)
class Head:
    """Mixes the streams to one row, norms it, and multiplies by the vocabulary."""

    hyper: Hyper
    norm: Tensor
    weight: Linear
    eps: float
    hc_eps: float


@dataclass(frozen=True, slots=True)
class DraftInput:
    """The two projections that join the trunk's streams with the next token's embedding."""

    e_proj: Linear
    h_proj: Linear
    enorm: Tensor
    hnorm: Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class Embedding:
    """``weight [vocab, d]`` float32, copied to ``streams`` streams."""

    weight: Tensor
    streams: int


def plain(tensors: Tensors, name: str) -> Tensor:
    """A tensor as float32, contiguous."""
    return tensors[name].dequantise().contiguous()


def linear(tensors: Tensors, name: str) -> Linear:
    """``{name}.weight`` and whether it was stored quantised."""
    stored = tensors[f"{name}.weight"]
    return Linear(stored.dequantise().contiguous(), stored.format != "plain")


def hyper(tensors: Tensors, prefix: str) -> Hyper:
    """The three ``{prefix}_fn/base/scale`` tensors."""
    return Hyper(*(plain(tensors, f"{prefix}_{part}") for part in ("fn", "base", "scale")))


def embedding(tensors: Tensors, config: ModelConfig) -> Embedding:
    """The embedding table."""
    return Embedding(plain(tensors, "embed.weight"), config.hc_mult)


def head(tensors: Tensors, config: ModelConfig, shared: Head | None) -> Head:
    """The trunk's head, or an MTP block's (whose vocabulary product is the trunk's, ``shared``: spec 1 §2)."""
    return Head(
        hyper(tensors, "hc_head"),
        plain(tensors, "norm.weight"),
        linear(tensors, "head") if shared is None else shared.weight,
        config.rms_norm_eps,
        config.hc_eps,
    )


def draft_input(tensors: Tensors, config: ModelConfig) -> DraftInput:
    """What stands before an MTP block's layer."""
    return DraftInput(
        linear(tensors, "e_proj"),
        linear(tensors, "h_proj"),
        plain(tensors, "enorm.weight"),
        plain(tensors, "hnorm.weight"),
        config.rms_norm_eps,
    )


def layer(tensors: Tensors, config: ModelConfig, spec: LayerConfig) -> Layer:
    """One layer of any kind."""
    return Layer(
        config=config,
        layer=spec,
        attn_norm=plain(tensors, "attn_norm.weight"),
        ffn_norm=plain(tensors, "ffn_norm.weight"),
        hc_attn=hyper(tensors, "hc_attn"),
        hc_ffn=hyper(tensors, "hc_ffn"),
        attention=_attention(tensors, config, spec),
        moe=_moe(tensors, config, spec),
    )


def _attention(tensors: Tensors, config: ModelConfig, spec: LayerConfig) -> Attention:
    compressor = indexer = None
    if spec.kind != "window":
        compressor = _compressor(tensors, "attn.compressor", config.head_dim, spec)
    if spec.kind == "csa":
        indexer = Indexer(
            linear(tensors, "attn.indexer.wq_b"),
            linear(tensors, "attn.indexer.weights_proj"),
            _compressor(tensors, "attn.indexer.compressor", config.index_head_dim, spec),
        )
    sink = plain(tensors, "attn.attn_sink")
    return Attention(
        wq_a=linear(tensors, "attn.wq_a"),
        q_norm=plain(tensors, "attn.q_norm.weight"),
        wq_b=linear(tensors, "attn.wq_b"),
        wkv=linear(tensors, "attn.wkv"),
        kv_norm=plain(tensors, "attn.kv_norm.weight"),
        sink=sink,
        wo_a=plain(tensors, "attn.wo_a.weight").unflatten(0, (config.o_groups, config.o_lora_rank)),
        wo_b=linear(tensors, "attn.wo_b"),
        frequencies=inverse_frequencies(config.qk_rope_head_dim, spec.rope_theta, spec.yarn).to(sink.device),
        compressor=compressor,
        indexer=indexer,
    )


def _compressor(tensors: Tensors, prefix: str, width: int, spec: LayerConfig) -> Compressor:
    halves = [plain(tensors, f"{prefix}.{name}.weight") for name in ("wkv", "wgate")]
    return Compressor(
        ape=plain(tensors, f"{prefix}.ape"),
        stacked=Linear(torch.cat(halves), quantised=False),
        norm=plain(tensors, f"{prefix}.norm.weight"),
        width=width,
        overlap=2 if spec.kind == "csa" else 1,
    )


def _moe(tensors: Tensors, config: ModelConfig, spec: LayerConfig) -> Moe:
    return Moe(
        gate=linear(tensors, "ffn.gate"),
        bias=None if spec.hash_routed else plain(tensors, "ffn.gate.bias"),
        table=tensors["ffn.gate.tid2eid"].data.long() if spec.hash_routed else None,
        experts=tuple(_expert(tensors, f"ffn.experts.{i}") for i in range(config.n_routed_experts)),
        shared=_expert(tensors, "ffn.shared_experts"),
    )


def _expert(tensors: Tensors, prefix: str) -> Expert:
    return Expert(*(linear(tensors, f"{prefix}.{name}") for name in ("w1", "w2", "w3")))
