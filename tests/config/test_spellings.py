"""Rope settings and kinds of layers in every spelling that files were met in."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.config.model import ModelConfig
from outrider.config.parse import parse_config, to_json
from outrider.errors import ConfigError
from tests.support.checkpoints import tiny_config

CONFIG = tiny_config(hca_ratio=128)


def raw(**changes: Any) -> dict[str, Any]:
    """The released layout of the tiny config, with changes."""
    return to_json(CONFIG) | changes


def refused(raw: dict[str, Any], mtp_blocks: int | None = 1) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_config(raw, mtp_blocks=mtp_blocks)
    return caught.value


# --- rope -------------------------------------------------------------------------------------------------------------

YARN = {"rope_type": "yarn", "factor": 16, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1}
NESTED = {
    "main": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    "compress": {**YARN, "type": "yarn", "attention_factor": 1.0, "rope_theta": 160000.0},
}


def without_rope(**changes: Any) -> dict[str, Any]:
    gone = ("rope_scaling", "rope_theta", "compress_rope_theta")
    return {key: value for key, value in raw().items() if key not in gone} | changes


@pytest.mark.parametrize(
    "values",
    [
        without_rope(rope_parameters=NESTED),
        without_rope(rope_parameters=NESTED, rope_theta=10000, compress_rope_theta=160000),
        without_rope(rope_parameters={**YARN, "rope_theta": 10000}, compress_rope_theta=160000),
        without_rope(rope_scaling=YARN, rope_parameters=NESTED),
        without_rope(
            rope_parameters={
                "sliding_attention": NESTED["main"],
                "compressed_sparse_attention": NESTED["compress"],
                "heavily_compressed_attention": NESTED["compress"],
            }
        ),
    ],
)
def test_rope_in_every_spelling(values: dict[str, Any]) -> None:
    assert parse_config(values, mtp_blocks=1) == CONFIG


@pytest.mark.parametrize(
    ("values", "key"),
    [
        (raw(rope_scaling={"type": "linear", "factor": 2}), "rope_scaling.type"),
        (raw(rope_scaling={"type": "yarn", "factor": 2}), "rope_scaling.original_max_position_embeddings"),
        (raw(rope_scaling={**YARN, "attention_factor": 1.3}), "rope_scaling.attention_factor"),
        (raw(rope_scaling={**YARN, "mscale": 1.0}), "rope_scaling.mscale"),
        (raw(rope_scaling={**YARN, "type": "default"}), "rope_scaling.type"),
        (raw(rope_scaling={**YARN, "factor": 0}), "rope_scaling.factor"),
        (raw(rope_scaling="yarn"), "rope_scaling"),
        (raw(rope_parameters={**YARN, "factor": 4}), "rope_parameters"),
        (raw(rope_parameters={**NESTED, "main": {"rope_type": "yarn"}}), "rope_parameters.main.rope_type"),
        (raw(rope_parameters=NESTED, rope_theta=5000), "rope_parameters.main.rope_theta"),
        (raw(partial_rotary_factor=0.25), "qk_rope_head_dim"),
    ],
)
def test_rope_that_is_not_implemented_or_disagrees(values: dict[str, Any], key: str) -> None:
    assert refused(values).key == key


def test_rope_without_yarn() -> None:
    config = parse_config(raw(rope_scaling=None), mtp_blocks=1)
    assert config.yarn is None and config.layers[1].rope_theta == 160000.0
    assert parse_config(to_json(config), mtp_blocks=1) == config


def test_equal_mscales_cancel() -> None:
    assert parse_config(raw(rope_scaling={**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}), mtp_blocks=1) == CONFIG


# --- the spelling of transformers -------------------------------------------------------------------------------------


def transformers_spelling(config: ModelConfig) -> dict[str, Any]:
    """What transformers' config class writes for the trunk."""
    values = without_rope(rope_parameters=NESTED, dtype="float32", partial_rotary_factor=0.5)
    for key in ("compress_ratios", "num_hash_layers", "topk_method", "torch_dtype", "qk_rope_head_dim"):
        del values[key]
    names = {"window": "sliding_attention", "csa": "compressed_sparse_attention", "hca": "heavily_compressed_attention"}
    values["layer_types"] = [names[layer.kind] for layer in config.layers]
    values["mlp_layer_types"] = ["hash_moe" if layer.hash_routed else "moe" for layer in config.layers]
    values["compress_rates"] = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
    return values


def test_transformers_spelling() -> None:
    assert parse_config(transformers_spelling(CONFIG), mtp_blocks=1) == CONFIG
    assert parse_config(transformers_spelling(CONFIG), mtp_blocks=0).compress_ratios == (0, 4, 128, 4)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"layer_types": ["full_attention"] * 4}, "layer_types[0]"),
        ({"layer_types": ["sliding_attention"] * 3}, "layer_types"),
        ({"mlp_layer_types": ["moe", "hash_moe", "moe", "moe"]}, "mlp_layer_types"),
        (
            {"compress_rates": {"heavily_compressed_attention": 64}},
            "compress_rates.heavily_compressed_attention",
        ),
    ],
)
def test_transformers_spelling_of_what_is_not_implemented(changes: dict[str, Any], key: str) -> None:
    assert refused(transformers_spelling(CONFIG) | changes).key == key
