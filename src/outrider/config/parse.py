"""``config.json`` → ModelConfig, and back. Anything that isn't implemented is refused, naming key and value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.config.check import refuse
from outrider.config.fields import Fields, as_integer
from outrider.config.layers import CSA, HCA, parse_hash_layers, parse_ratios
from outrider.config.model import ModelConfig
from outrider.config.rope import parse_rope
from outrider.errors import ConfigError

INTEGERS = (
    "hidden_size",
    "num_hidden_layers",
    "vocab_size",
    "num_attention_heads",
    "head_dim",
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
    "hc_mult",
    "hc_sinkhorn_iters",
    "max_position_embeddings",
)
NUMBERS = ("routed_scaling_factor", "hc_eps", "rms_norm_eps")

FIXED: dict[str, Any] = {
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "n_shared_experts": 1,
    "num_key_value_heads": 1,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "n_group": 1,
    "topk_group": 1,
    "moe_layer_freq": 1,
    "first_k_dense_replace": 0,
}
"""Keys of which one value is implemented. A file may leave them out."""

FIXED_QUANTISATION: dict[str, Any] = {
    "fmt": "e4m3",
    "scale_fmt": "ue8m0",
    "weight_block_size": [128, 128],
    "activation_scheme": "dynamic",
}
EXPERT_DTYPES = (None, "fp4", "fp8")
TORCH_DTYPES = ("bfloat16", "float16", "float32")
DTYPE_KEYS = ("torch_dtype", "dtype")


def load_config(path: str | Path, *, mtp_blocks: int | None = None) -> ModelConfig:
    """ModelConfig of a checkpoint folder, or of a config.json. Raises ConfigError."""
    return parse_config(read_json(Path(path)), mtp_blocks=mtp_blocks)


def read_json(path: Path) -> dict[str, Any]:
    """The object in ``path`` (or in the config.json of that folder). Raises ConfigError where there is none."""
    file = path / "config.json" if path.is_dir() else path
    try:
        raw = json.loads(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"Can't read {file}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} isn't valid JSON: {error}.") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{file} holds a {type(raw).__name__}, expected an object.")
    return raw


def parse_config(raw: Mapping[str, Any], *, mtp_blocks: int | None) -> ModelConfig:
    """The config of spec 1 §1 from parsed JSON, in the released or in the transformers spelling.

    ``mtp_blocks`` is the number of ``mtp.N`` blocks in the checkpoint (None if unknown); it decides how long
    compress_ratios must be. Raises ConfigError naming the key, the value and what was expected.
    """
    top = Fields(raw)
    top.choice("model_type", ("deepseek_v4",))
    top.fixed(**FIXED)
    rope = parse_rope(top)
    plain: dict[str, Any] = {key: top.integer(key) for key in INTEGERS} | {key: top.number(key) for key in NUMBERS}
    return ModelConfig(
        **plain,
        num_nextn_predict_layers=top.integer("num_nextn_predict_layers") if top.has("num_nextn_predict_layers") else 0,
        qk_rope_head_dim=_rope_dims(top),
        compress_ratios=parse_ratios(top, mtp_blocks),
        num_hash_layers=parse_hash_layers(top),
        swiglu_limit=0.0 if raw.get("swiglu_limit", 0) is None else top.number("swiglu_limit"),
        rope_theta=rope.theta,
        compress_rope_theta=rope.compress_theta,
        yarn=rope.yarn,
        bos_token_id=top.integer("bos_token_id") if top.has("bos_token_id") else None,
        eos_token_ids=_eos(top),
        quantised=_quantised(top),
        expert_dtype=_expert_dtype(top),
        torch_dtype=_torch_dtype(top),
    )


def to_json(config: ModelConfig) -> dict[str, Any]:
    """The released layout of ``config``, which ``parse_config`` reads back to the same.

    Raises ConfigError for a stand-in compression ratio: a checkpoint has 4 and 128 only.
    """
    for key, value, expected in (("csa_ratio", config.csa_ratio, CSA), ("hca_ratio", config.hca_ratio, HCA)):
        if value != expected:
            raise refuse(key, value, f"{expected}, as a checkpoint can't hold a stand-in ratio")
    values = vars(config)
    eos = config.eos_token_ids
    return {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        **{key: value for key, value in FIXED.items() if key not in ("mlp_bias", "n_group", "topk_group")},
        **{key: values[key] for key in (*INTEGERS, *NUMBERS, "num_nextn_predict_layers", "qk_rope_head_dim")},
        **{key: values[key] for key in ("num_hash_layers", "swiglu_limit", "rope_theta", "compress_rope_theta")},
        "compress_ratios": list(config.compress_ratios),
        "rope_scaling": None if config.yarn is None else {"type": "yarn", **vars(config.yarn)},
        "bos_token_id": config.bos_token_id,
        "eos_token_id": eos[0] if len(eos) == 1 else list(eos) or None,
        "torch_dtype": config.torch_dtype,
        **({"expert_dtype": config.expert_dtype} if config.expert_dtype else {}),
        **({"quantization_config": {"quant_method": "fp8", **FIXED_QUANTISATION}} if config.quantised else {}),
    }


def _rope_dims(top: Fields) -> int:
    """qk_rope_head_dim, or head_dim · partial_rotary_factor where only that is there."""
    if not top.has("partial_rotary_factor"):
        return top.integer("qk_rope_head_dim")
    derived = round(top.integer("head_dim") * top.number("partial_rotary_factor"))
    if top.has("qk_rope_head_dim") and top.integer("qk_rope_head_dim") != derived:
        raise refuse("qk_rope_head_dim", top.integer("qk_rope_head_dim"), f"{derived}, as partial_rotary_factor says")
    return derived


def _eos(top: Fields) -> tuple[int, ...]:
    value = top.raw.get("eos_token_id")
    if value is None:
        return ()
    if isinstance(value, list):
        return tuple(as_integer(item, f"eos_token_id[{i}]") for i, item in enumerate(value))
    return (top.integer("eos_token_id"),)


def _quantised(top: Fields) -> bool:
    """Lists of modules left unquantised aren't read: each tensor's own dtype and scale decide (case B5)."""
    if not top.has("quantization_config"):
        return False
    inner = top.inner("quantization_config")
    inner.choice("quant_method", ("fp8",))
    inner.fixed(**FIXED_QUANTISATION)
    return True


def _expert_dtype(top: Fields) -> str | None:
    places = [top, *([top.inner("quantization_config")] if top.has("quantization_config") else [])]
    found = [place.choice("expert_dtype", EXPERT_DTYPES) for place in places if place.has("expert_dtype")]
    if len(set(found)) > 1:
        raise refuse("expert_dtype", found[0], f"the same as quantization_config.expert_dtype ({found[1]!r})")
    return str(found[0]) if found else None


def _torch_dtype(top: Fields) -> str:
    found = [top.choice(key, TORCH_DTYPES) for key in DTYPE_KEYS if top.has(key)]
    if len(set(found)) > 1:
        raise refuse("dtype", found[1], f"the same as torch_dtype ({found[0]!r})")
    return str(found[0]) if found else "bfloat16"
