"""The shape of the tiny model and its first parameters."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from outrider.config.model import LayerConfig, ModelConfig, Yarn
from outrider.tune.tokenizer_training import BOS_ID, EOS_ID

TINY = ModelConfig(
    hidden_size=192,
    num_hidden_layers=6,
    num_nextn_predict_layers=1,
    vocab_size=2048,
    num_attention_heads=4,
    head_dim=96,
    qk_rope_head_dim=32,
    q_lora_rank=96,
    o_groups=2,
    o_lora_rank=64,
    sliding_window=128,
    compress_ratios=(0, 4, 128, 4, 128, 4, 0),
    index_n_heads=8,
    index_head_dim=64,
    index_topk=32,
    n_routed_experts=8,
    num_experts_per_tok=2,
    num_hash_layers=1,
    moe_intermediate_size=128,
    routed_scaling_factor=1.5,
    swiglu_limit=10.0,
    hc_mult=4,
    hc_sinkhorn_iters=20,
    hc_eps=1e-6,
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    compress_rope_theta=160000.0,
    yarn=Yarn(factor=16.0, original_max_position_embeddings=1024, beta_fast=32.0, beta_slow=1.0),
    max_position_embeddings=16384,
    bos_token_id=BOS_ID,
    eos_token_ids=(EOS_ID,),
    quantised=True,
    expert_dtype="fp4",
)
"""All kinds of layers at their smallest. head_dim 96 and index_head_dim 64 are dims that other engines can run too."""


class _Maker:
    """Fills a dict of float32 parameters from one generator, in a fixed order of names."""

    def __init__(self, config: ModelConfig, seed: int) -> None:
        self.config = config
        self.generator = torch.Generator().manual_seed(seed)
        self.params: dict[str, Tensor] = {}

    def normal(self, name: str, *shape: int, std: float, mean: float = 0.0) -> None:
        self.params[name] = torch.randn(*shape, generator=self.generator) * std + mean

    def matrix(self, name: str, out: int, inputs: int) -> None:
        self.normal(name, out, inputs, std=0.5 * inputs**-0.5)

    def ones(self, name: str, size: int) -> None:
        self.params[name] = torch.ones(size)

    def hyper(self, name: str) -> None:
        """Streams start nearly alike (an even mean in, one unit out, C close to identity); noise tells them apart."""
        s, width = self.config.hc_mult, self.config.hc_mult * self.config.hidden_size
        self.normal(name + "_fn", (2 + s) * s, width, std=0.5 * width**-0.5)
        base = torch.cat([torch.full((s,), -math.log(s - 1)), torch.zeros(s), 3.0 * torch.eye(s).flatten()])
        self.params[name + "_base"] = base + 0.3 * torch.randn(base.shape, generator=self.generator)
        self.params[name + "_scale"] = torch.full((3,), 0.3)

    def hyper_head(self, prefix: str) -> None:
        s, width = self.config.hc_mult, self.config.hc_mult * self.config.hidden_size
        self.normal(prefix + "hc_head_fn", s, width, std=0.5 * width**-0.5)
        self.params[prefix + "hc_head_base"] = torch.full((s,), -math.log(s - 1))
        self.params[prefix + "hc_head_scale"] = torch.full((1,), 0.3)
        self.ones(prefix + "norm.weight", self.config.hidden_size)

    def compressor(self, prefix: str, layer: LayerConfig, dim: int) -> None:
        width = dim * (2 if layer.kind == "csa" else 1)
        self.params[prefix + "ape"] = torch.zeros(layer.ratio, width)
        self.matrix(prefix + "wkv.weight", width, self.config.hidden_size)
        self.matrix(prefix + "wgate.weight", width, self.config.hidden_size)
        self.ones(prefix + "norm.weight", dim)

    def attention(self, prefix: str, layer: LayerConfig) -> None:
        c = self.config
        self.matrix(prefix + "wq_a.weight", c.q_lora_rank, c.hidden_size)
        self.ones(prefix + "q_norm.weight", c.q_lora_rank)
        self.matrix(prefix + "wq_b.weight", c.num_attention_heads * c.head_dim, c.q_lora_rank)
        self.matrix(prefix + "wkv.weight", c.head_dim, c.hidden_size)
        self.ones(prefix + "kv_norm.weight", c.head_dim)
        self.params[prefix + "attn_sink"] = torch.zeros(c.num_attention_heads)
        self.matrix(
            prefix + "wo_a.weight", c.o_groups * c.o_lora_rank, c.num_attention_heads * c.head_dim // c.o_groups
        )
        self.matrix(prefix + "wo_b.weight", c.hidden_size, c.o_groups * c.o_lora_rank)
        if layer.ratio:
            self.compressor(prefix + "compressor.", layer, c.head_dim)
        if layer.kind == "csa":
            self.matrix(prefix + "indexer.wq_b.weight", c.index_n_heads * c.index_head_dim, c.q_lora_rank)
            self.matrix(prefix + "indexer.weights_proj.weight", c.index_n_heads, c.hidden_size)
            self.compressor(prefix + "indexer.compressor.", layer, c.index_head_dim)

    def expert(self, prefix: str) -> None:
        c = self.config
        self.matrix(prefix + "w1.weight", c.moe_intermediate_size, c.hidden_size)
        self.matrix(prefix + "w2.weight", c.hidden_size, c.moe_intermediate_size)
        self.matrix(prefix + "w3.weight", c.moe_intermediate_size, c.hidden_size)

    def router(self, prefix: str, layer: LayerConfig) -> None:
        c = self.config
        self.normal(prefix + "gate.weight", c.n_routed_experts, c.hidden_size, std=c.hidden_size**-0.5)
        if layer.hash_routed:
            order = torch.rand(c.vocab_size, c.n_routed_experts, generator=self.generator).argsort(-1)
            self.params[prefix + "gate.tid2eid"] = order[:, : c.num_experts_per_tok].contiguous()
        else:
            self.params[prefix + "gate.bias"] = torch.zeros(c.n_routed_experts)

    def layer(self, prefix: str, layer: LayerConfig) -> None:
        for kind in ("attn", "ffn"):
            self.ones(f"{prefix}{kind}_norm.weight", self.config.hidden_size)
            self.hyper(f"{prefix}hc_{kind}")
        self.attention(prefix + "attn.", layer)
        self.router(prefix + "ffn.", layer)
        for index in range(self.config.n_routed_experts):
            self.expert(f"{prefix}ffn.experts.{index}.")
        self.expert(prefix + "ffn.shared_experts.")


def initial_parameters(config: ModelConfig, seed: int) -> dict[str, Tensor]:
    """Fresh float32 parameters under the released names (``gate.tid2eid`` is int64), the same for one seed."""
    maker = _Maker(config, seed)
    maker.normal("embed.weight", config.vocab_size, config.hidden_size, std=0.5)
    maker.normal("head.weight", config.vocab_size, config.hidden_size, std=0.01)
    maker.hyper_head("")
    for layer in config.layers:
        maker.layer(f"layers.{layer.index}.", layer)
    for index, layer in enumerate(config.mtp_layers):
        prefix = f"mtp.{index}."
        maker.layer(prefix, layer)
        maker.hyper_head(prefix)
        for name in ("e_proj", "h_proj"):
            maker.matrix(f"{prefix}{name}.weight", config.hidden_size, config.hidden_size)
        for name in ("enorm", "hnorm"):
            maker.ones(f"{prefix}{name}.weight", config.hidden_size)
    return maker.params
