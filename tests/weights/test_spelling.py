"""Every spelling of every tensor's name comes out as the released one."""

from __future__ import annotations

import re

import pytest

from outrider.weights import expected_tensors
from outrider.weights.spelling import released_name, split_fused
from tests.support.checkpoints import tiny_config

NAMES = list(expected_tensors(tiny_config(), 1))

# transformers' module names, written independently of the code: released pattern → theirs, all that match, in order
TRANSFORMERS = [
    (r"^embed\.", "embed_tokens."),
    (r"^head\.", "lm_head."),
    (r"hc_head_(fn|base|scale)$", r"hc_head.hc_\1"),
    (r"\.hc_(attn|ffn)_(fn|base|scale)$", r".\1_hc.\2"),
    (r"\.attn_norm\.", ".input_layernorm."),
    (r"\.ffn_norm\.", ".post_attention_layernorm."),
    (r"\.attn\.indexer\.compressor\.", ".attn.compressor.indexer."),
    (r"\.attn\.indexer\.weights_proj\.", ".attn.compressor.indexer.scorer.weights_proj."),
    (r"\.attn\.indexer\.wq_b\.", ".attn.compressor.indexer.q_b_proj."),
    (r"(\.compressor\..*|\.compressor)\.norm\.|(\.compressor)\.norm\.", r"\1.kv_norm."),
    (r"(\.compressor.*)\.wgate\.", r"\1.gate_proj."),
    (r"\.ape$", ".position_bias"),
    (r"\.attn_sink$", ".sinks"),
    (r"\.attn\.q_norm\.", ".attn.q_a_norm."),
    (r"\.wq_a\.", ".q_a_proj."),
    (r"\.wq_b\.", ".q_b_proj."),
    (r"\.wkv\.", ".kv_proj."),
    (r"\.wo_a\.", ".o_a_proj."),
    (r"\.wo_b\.", ".o_b_proj."),
    (r"\.gate\.bias$", ".gate.e_score_correction_bias"),
    (r"experts(\.\d+)?\.w1\.", r"experts\1.gate_proj."),
    (r"experts(\.\d+)?\.w2\.", r"experts\1.down_proj."),
    (r"experts(\.\d+)?\.w3\.", r"experts\1.up_proj."),
    (r"\.attn\.", ".self_attn."),
    (r"\.ffn\.", ".mlp."),
]


def transformers_name(name: str) -> str:
    for pattern, theirs in TRANSFORMERS:
        name = re.sub(pattern, theirs, name)
    return name if name.startswith("lm_head") else f"model.{name}"


@pytest.mark.parametrize("name", NAMES)
def test_released_names_stay(name: str) -> None:
    assert released_name(name) == released_name(f"model.{name}") == name


@pytest.mark.parametrize("name", NAMES)
def test_transformers_names(name: str) -> None:
    assert released_name(transformers_name(name)) == name


@pytest.mark.parametrize(
    ("theirs", "released"),
    [
        ("model.layers.3.self_attn.wq_a.weight", "layers.3.attn.wq_a.weight"),
        ("layers.3.mlp.experts.7.w1.weight_scale_inv", "layers.3.ffn.experts.7.w1.scale"),
        ("model.layers.3.mlp.gate.e_score_correction_bias", "layers.3.ffn.gate.bias"),
        ("layers.3.self_attn.q_a_proj.weight_scale_inv", "layers.3.attn.wq_a.scale"),
        ("layers.3.attn.indexer.wq_b.weight_scale_inv", "layers.3.attn.indexer.wq_b.scale"),
        ("layers.3.attn.indexer.compressor.position_bias", "layers.3.attn.indexer.compressor.ape"),
        # what save_pretrained of transformers writes for kv_norm
        ("model.layers.3.attn.norm.weight", "layers.3.attn.kv_norm.weight"),
        ("mtp.0.self_attn.kv_proj.weight", "mtp.0.attn.wkv.weight"),
        ("model.mtp.0.hc_head.hc_scale", "mtp.0.hc_head_scale"),
        ("mtp.0.embed_tokens.weight", "mtp.0.embed.weight"),
        ("model.layers.3.mlp.experts.gate_up_proj", "layers.3.ffn.experts.gate_up_proj.weight"),
        ("model.layers.3.mlp.experts.gate_up_proj_scale_inv", "layers.3.ffn.experts.gate_up_proj.scale"),
        ("model.layers.3.mlp.experts.down_proj", "layers.3.ffn.experts.w2.weight"),
        ("model.layers.3.mlp.experts.down_proj_scale_inv", "layers.3.ffn.experts.w2.scale"),
        # not understood: left as they are, for the audit to name
        ("layers.3.attn.rotary.inv_freq", "layers.3.attn.rotary.inv_freq"),
        ("", ""),
        ("layers", "layers"),
        ("layers.3", "layers.3"),
    ],
)
def test_mixed_spellings(theirs: str, released: str) -> None:
    assert released_name(theirs) == released


def test_no_two_tensors_fall_together() -> None:
    assert len({released_name(transformers_name(name)) for name in NAMES}) == len(NAMES)


def test_only_fused_experts_are_fused() -> None:
    assert split_fused("layers.3.ffn.experts.w2.scale") == ("layers.3.ffn.experts.", "w2", "scale")
    assert not any(split_fused(name) for name in NAMES)
