"""What must hold between the numbers of a model's config, wherever it came from (spec 1 §1 and §3)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.config.model import ModelConfig

POSITIVE = (
    "hidden_size",
    "num_hidden_layers",
    "vocab_size",
    "num_attention_heads",
    "head_dim",
    "qk_rope_head_dim",
    "q_lora_rank",
    "o_groups",
    "o_lora_rank",
    "sliding_window",
    "index_n_heads",
    "index_head_dim",
    "index_topk",
    "n_routed_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "routed_scaling_factor",
    "hc_mult",
    "hc_sinkhorn_iters",
    "hc_eps",
    "rms_norm_eps",
    "rope_theta",
    "compress_rope_theta",
    "max_position_embeddings",
)
NOT_NEGATIVE = ("num_nextn_predict_layers", "num_hash_layers", "swiglu_limit")
FP4_BLOCK = 32
LARGEST = 2**24  # any number of a model's shape: above the largest real ones, below what would exhaust memory or time
MOST_ITERATIONS = 1_000
MOST_EXPERTS = 65_536  # each expert has a name: a damaged number must not fill the memory with names


def refuse(key: str, value: object, expected: str) -> ConfigError:
    """The one shape of a config error: key, value met, what was expected."""
    return ConfigError(f"Config key {key} is {value!r}, expected {expected}.", key=key)


def check_dimensions(config: ModelConfig) -> None:
    """Raise ConfigError for the first number that the model can't be built with."""
    values = vars(config)
    for key in POSITIVE:
        if not (math.isfinite(values[key]) and values[key] > 0):
            raise refuse(key, values[key], "a number above 0")
        if isinstance(values[key], int) and values[key] > LARGEST:
            raise refuse(key, values[key], f"{LARGEST} at most")
    if config.hc_sinkhorn_iters > MOST_ITERATIONS:
        raise refuse("hc_sinkhorn_iters", config.hc_sinkhorn_iters, f"{MOST_ITERATIONS} at most")
    for key in NOT_NEGATIVE:
        if not (math.isfinite(values[key]) and values[key] >= 0):
            raise refuse(key, values[key], "0 or more")
    _check_attention(config)
    _check_experts(config)
    _check_ratios(config)
    _check_yarn(config)
    _check_tokens(config)


def _check_attention(config: ModelConfig) -> None:
    rope, head, index = config.qk_rope_head_dim, config.head_dim, config.index_head_dim
    if config.num_attention_heads % config.o_groups:
        raise refuse("o_groups", config.o_groups, f"a divisor of num_attention_heads ({config.num_attention_heads})")
    if rope % 2 or rope > head:
        raise refuse("qk_rope_head_dim", rope, f"an even number of at most head_dim ({head})")
    if index & (index - 1) or index < rope:
        raise refuse("index_head_dim", index, f"a power of two of at least qk_rope_head_dim ({rope})")


def _check_experts(config: ModelConfig) -> None:
    if config.n_routed_experts > MOST_EXPERTS:
        raise refuse("n_routed_experts", config.n_routed_experts, f"at most {MOST_EXPERTS}")
    if config.num_experts_per_tok > config.n_routed_experts:
        raise refuse("num_experts_per_tok", config.num_experts_per_tok, f"at most {config.n_routed_experts} experts")
    if config.num_hash_layers > config.num_hidden_layers:
        raise refuse("num_hash_layers", config.num_hash_layers, f"at most {config.num_hidden_layers} layers")
    if config.expert_dtype == "fp4":
        for key in ("hidden_size", "moe_intermediate_size"):
            if vars(config)[key] % FP4_BLOCK:
                raise refuse(key, vars(config)[key], f"a multiple of {FP4_BLOCK}, as expert_dtype is fp4")


def _check_ratios(config: ModelConfig) -> None:
    ratios, layers = config.compress_ratios, config.num_hidden_layers
    if len(ratios) < layers:
        raise refuse("compress_ratios", list(ratios), f"at least {layers} entries, one a layer (it has {len(ratios)})")
    known = (0, 1, config.csa_ratio, config.hca_ratio)
    for index, ratio in enumerate(ratios):
        if index < layers and ratio not in known:
            raise refuse(f"compress_ratios[{index}]", ratio, f"0, 1, {config.csa_ratio} or {config.hca_ratio}")
        if index >= layers and ratio not in (0, 1):
            raise refuse(f"compress_ratios[{index}]", ratio, "0 or 1, as blocks of the draft head are window only")


def _check_yarn(config: ModelConfig) -> None:
    if config.yarn is None:
        return
    for key, value in vars(config.yarn).items():
        if not (math.isfinite(value) and value > 0):
            raise refuse(f"rope_scaling.{key}", value, "a number above 0")


def _check_tokens(config: ModelConfig) -> None:
    ids = {"bos_token_id": (config.bos_token_id,), "eos_token_id": config.eos_token_ids}
    for key, tokens in ids.items():
        for token in tokens:
            if token is not None and not 0 <= token < config.vocab_size:
                raise refuse(key, token, f"a token id below vocab_size ({config.vocab_size})")
