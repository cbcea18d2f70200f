"""``config.json`` of a DeepSeek-V4 checkpoint as one frozen object; every derived number is a property."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from outrider.config.check import check_dimensions

LayerKind = Literal["window", "csa", "hca"]


@dataclass(frozen=True)
class Yarn:
    """YaRN scaling of the rope frequencies of compressed layers (spec 1 §3)."""

    factor: float
    original_max_position_embeddings: int
    beta_fast: float
    beta_slow: float


@dataclass(frozen=True)
class LayerConfig:
    """What one layer is: its kind, ratio (0 for window only), rope base and router."""

    index: int
    kind: LayerKind
    ratio: int
    rope_theta: float
    yarn: Yarn | None
    hash_routed: bool


@dataclass(frozen=True)
class ModelConfig:
    """The released names of spec 1 §1, checked. ``compress_ratios`` has one entry a trunk layer, then one a MTP block;
    0 is window only (CSA is ``csa_ratio``, HCA ``hca_ratio``; a config made in code may use a stand-in for 128).

    Raises ConfigError, naming the key, where dimensions don't fit each other, however it was made.
    """

    hidden_size: int
    num_hidden_layers: int
    num_nextn_predict_layers: int
    vocab_size: int
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    sliding_window: int
    compress_ratios: tuple[int, ...]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    n_routed_experts: int
    num_experts_per_tok: int
    num_hash_layers: int
    moe_intermediate_size: int
    routed_scaling_factor: float
    swiglu_limit: float
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float
    rms_norm_eps: float
    rope_theta: float
    compress_rope_theta: float
    yarn: Yarn | None
    max_position_embeddings: int
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    quantised: bool = False
    """A quantization_config is present: KV and indexer rows pass through FP8/FP4 simulation."""
    expert_dtype: str | None = None
    torch_dtype: str = "bfloat16"
    csa_ratio: int = 4
    hca_ratio: int = 128

    def __post_init__(self) -> None:
        check_dimensions(self)

    @cached_property
    def layers(self) -> tuple[LayerConfig, ...]:
        """The trunk's layers, in order."""
        return tuple(self._layer(i, self.compress_ratios[i]) for i in range(self.num_hidden_layers))

    @cached_property
    def mtp_layers(self) -> tuple[LayerConfig, ...]:
        """The draft head's blocks (ratio 0, score-routed), one for each entry beyond the trunk's."""
        n = self.num_hidden_layers
        return tuple(self._layer(i, ratio) for i, ratio in enumerate(self.compress_ratios[n:], start=n))

    def _layer(self, index: int, ratio: int) -> LayerConfig:
        kind: LayerKind = "window" if ratio in (0, 1) else "csa" if ratio == self.csa_ratio else "hca"
        compressed = kind != "window"
        return LayerConfig(
            index=index,
            kind=kind,
            ratio=ratio if compressed else 0,
            rope_theta=self.compress_rope_theta if compressed else self.rope_theta,
            yarn=self.yarn if compressed else None,
            hash_routed=index < self.num_hash_layers,
        )

    @property
    def softmax_scale(self) -> float:
        """1/√D, the scale of attention scores."""
        return self.head_dim**-0.5
