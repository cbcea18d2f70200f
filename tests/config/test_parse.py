"""config.json in every spelling, and the refusal of everything that isn't implemented."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.config.model import Yarn
from outrider.config.parse import load_config, parse_config, to_json
from outrider.errors import ConfigError, OutriderError
from tests.support.checkpoints import tiny_config

GOLDEN = Path(__file__).parents[1] / "golden"
CONFIG = tiny_config(hca_ratio=128)
REQUIRED = [
    "model_type",
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
    "compress_ratios",
    "index_n_heads",
    "index_head_dim",
    "index_topk",
    "n_routed_experts",
    "num_experts_per_tok",
    "num_hash_layers",
    "moe_intermediate_size",
    "routed_scaling_factor",
    "swiglu_limit",
    "hc_mult",
    "hc_sinkhorn_iters",
    "hc_eps",
    "rms_norm_eps",
    "rope_theta",
    "compress_rope_theta",
    "max_position_embeddings",
]


def raw(**changes: Any) -> dict[str, Any]:
    """The released layout of the tiny config, with changes."""
    return to_json(CONFIG) | changes


def refused(raw: dict[str, Any], mtp_blocks: int | None = 1) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_config(raw, mtp_blocks=mtp_blocks)
    return caught.value


@pytest.mark.parametrize("name", ["a1-plain", "a1-quant", "a2-plain", "a2-quant"])
def test_golden_configs_load_and_round_trip(name: str) -> None:
    config = load_config(GOLDEN / name, mtp_blocks=1)
    assert config.quantised == name.endswith("quant")
    assert config.expert_dtype == ("fp4" if config.quantised else None)
    assert parse_config(json.loads(json.dumps(to_json(config))), mtp_blocks=1) == config


def test_a1_values() -> None:
    config = load_config(GOLDEN / "a1-quant", mtp_blocks=1)
    assert [layer.kind for layer in config.layers] == ["window", "csa", "hca", "csa", "hca"]
    assert [layer.hash_routed for layer in config.layers] == [True, False, False, False, False]
    assert [layer.kind for layer in config.mtp_layers] == ["window"]
    assert config.yarn == Yarn(16.0, 64, 32.0, 1.0)
    assert (config.rope_theta, config.compress_rope_theta) == (10000.0, 160000.0)
    assert (config.bos_token_id, config.eos_token_ids) == (0, (1,))


@pytest.mark.parametrize("key", REQUIRED)
def test_missing_key_is_named(key: str) -> None:
    values = raw()
    del values[key]
    error = refused(values)
    assert error.key == key and "missing" in str(error)


@pytest.mark.parametrize("key", REQUIRED[1:])
@pytest.mark.parametrize("value", ["abc", True, {"a": 1}, float("nan"), 10**400])
def test_wrong_type_is_named(key: str, value: object) -> None:
    error = refused(raw(**{key: value}))
    assert error.key.startswith(key) and key in str(error)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model_type", "deepseek_v3"),
        ("model_type", ["deepseek_v4"]),
        ("scoring_func", "softmax"),
        ("topk_method", "greedy"),
        ("norm_topk_prob", False),
        ("n_shared_experts", 2),
        ("n_shared_experts", True),
        ("num_key_value_heads", 8),
        ("hidden_act", "gelu"),
        ("tie_word_embeddings", True),
        ("attention_bias", True),
        ("mlp_bias", True),
        ("n_group", 8),
        ("expert_dtype", "int4"),
        ("torch_dtype", "float64"),
        ("dtype", "float64"),
    ],
)
def test_unimplemented_value_is_refused_by_name(key: str, value: object) -> None:
    error = refused(raw(**{key: value}))
    assert error.key == key and key in str(error) and repr(value) in str(error)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("quant_method", "awq"),
        ("fmt", "e5m2"),
        ("scale_fmt", "float"),
        ("weight_block_size", [64, 64]),
        ("activation_scheme", "static"),
    ],
)
def test_unimplemented_quantisation_is_refused_by_name(key: str, value: object) -> None:
    good = to_json(replace(CONFIG, quantised=True))
    assert parse_config(good, mtp_blocks=1).quantised
    good["quantization_config"][key] = value
    assert refused(good).key == f"quantization_config.{key}"


def test_modules_left_unquantised_are_no_error() -> None:
    values = to_json(replace(CONFIG, quantised=True))
    values["quantization_config"] |= {"ignored_layers": ["mtp.0"], "modules_to_not_convert": None, "dequantize": False}
    assert parse_config(values, mtp_blocks=1).quantised


def test_expert_dtype_may_stand_in_the_quantisation() -> None:
    values = to_json(replace(CONFIG, quantised=True, expert_dtype="fp4"))
    values["quantization_config"]["expert_dtype"] = "fp8"
    assert refused(values).key == "expert_dtype"
    del values["expert_dtype"]
    assert parse_config(values, mtp_blocks=1).expert_dtype == "fp8"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("o_groups", 3),
        ("qk_rope_head_dim", 15),
        ("qk_rope_head_dim", 34),
        ("index_head_dim", 48),
        ("index_head_dim", 8),
        ("num_experts_per_tok", 5),
        ("num_hash_layers", 5),
        ("n_routed_experts", 10**9),
        ("hidden_size", 0),
        ("hc_mult", -1),
        ("swiglu_limit", -1.0),
        ("rms_norm_eps", 0.0),
        ("vocab_size", 0),
        ("bos_token_id", 64),
        ("eos_token_id", [1, -1]),
    ],
)
def test_numbers_that_do_not_fit_are_refused(key: str, value: object) -> None:
    assert refused(raw(**{key: value})).key == key


def test_code_made_config_is_checked_too() -> None:
    with pytest.raises(ConfigError, match="o_groups"):
        tiny_config(o_groups=3)
    with pytest.raises(ConfigError, match=r"compress_ratios\[1\]"):
        tiny_config(compress_ratios=(0, 7, 8, 4, 0))
    with pytest.raises(ConfigError, match="hidden_size"):
        tiny_config(expert_dtype="fp4", hidden_size=80)
    assert [layer.ratio for layer in tiny_config().layers] == [0, 4, 8, 4]


def test_eos_may_be_an_integer_a_list_or_absent() -> None:
    assert parse_config(raw(eos_token_id=3), mtp_blocks=1).eos_token_ids == (3,)
    assert parse_config(raw(eos_token_id=[3, 5]), mtp_blocks=1).eos_token_ids == (3, 5)
    assert parse_config(raw(eos_token_id=None), mtp_blocks=1).eos_token_ids == ()
    assert refused(raw(eos_token_id="</s>")).key == "eos_token_id"
    assert refused(raw(eos_token_id=[1, "x"])).key == "eos_token_id[1]"


def test_dtype_in_either_spelling() -> None:
    values = raw(dtype="float16")
    assert refused(values).key == "dtype"
    del values["torch_dtype"]
    assert parse_config(values, mtp_blocks=1).torch_dtype == "float16"


def test_no_swiglu_limit_is_written_null_or_zero() -> None:
    assert parse_config(raw(swiglu_limit=None), mtp_blocks=1).swiglu_limit == 0.0
    assert parse_config(raw(swiglu_limit=0), mtp_blocks=1).swiglu_limit == 0.0


# --- compress_ratios --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blocks", [0, 1, 2, 3])
@pytest.mark.parametrize("extra", [-1, 0, 1, 2, 3, 4])
def test_length_of_compress_ratios_follows_the_blocks_in_the_file(blocks: int, extra: int) -> None:
    ratios = ([0, 4, 128, 4] + [0] * 4)[: 4 + extra]
    values = raw(compress_ratios=ratios)
    if extra == blocks or (blocks == 0 and extra in (1, 3)):
        config = parse_config(values, mtp_blocks=blocks)
        assert len(config.layers) == 4 and len(config.mtp_layers) == blocks
    else:
        error = refused(values, blocks)
        assert error.key == "compress_ratios" and f"it has {4 + extra}" in str(error)


def test_unknown_ratio_is_an_error_and_mtp_blocks_are_window_only() -> None:
    assert refused(raw(compress_ratios=[0, 7, 128, 4, 0])).key == "compress_ratios[1]"
    assert refused(raw(compress_ratios=[0, 8, 128, 4, 0])).key == "compress_ratios[1]"
    assert refused(raw(compress_ratios=[0, 4, 128, 4, 4])).key == "compress_ratios[4]"
    assert refused(raw(compress_ratios="0,4")).key == "compress_ratios"


def test_stand_in_ratio_is_not_saved() -> None:
    with pytest.raises(ConfigError, match="hca_ratio is 8"):
        to_json(tiny_config())


# --- files and mutations ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_bad_files(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(ConfigError, match=r"config\.json"):
        load_config(tmp_path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Can't read .*config\.json"):
        load_config(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "main", "factor"]), inner),
    max_leaves=5,
)


@given(key=st.sampled_from(sorted(to_json(replace(CONFIG, quantised=True)))), value=JSON)
def test_any_json_value_parses_or_is_refused(key: str, value: object) -> None:
    try:
        parse_config(to_json(replace(CONFIG, quantised=True)) | {key: value}, mtp_blocks=1)
    except OutriderError as error:
        assert isinstance(error, ConfigError) and error.key
