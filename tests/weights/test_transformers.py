"""What transformers saves opens here with every trunk tensor right, in all of its layouts; and ours opens there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers.models.deepseek_v4 import DeepseekV4Config, DeepseekV4ForCausalLM

from outrider.config.model import Yarn
from outrider.weights import Checkpoint, open_checkpoint, save_checkpoint
from tests.support.checkpoints import random_tensors, tiny_config


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = DeepseekV4Config(
        vocab_size=64,
        hidden_size=64,
        moe_intermediate_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        head_dim=32,
        q_lora_rank=48,
        num_experts_per_tok=2,
        n_routed_experts=4,
        max_position_embeddings=1024,
        compress_ratios=[0, 4, 128, 4, 0],
        num_hash_layers=1,
        qk_rope_head_dim=16,
        o_groups=2,
        o_lora_rank=16,
        index_n_heads=8,
        index_head_dim=32,
        index_topk=4,
        sliding_window=8,
        rope_scaling={
            "type": "yarn",
            "factor": 16,
            "original_max_position_embeddings": 64,
            "beta_fast": 32,
            "beta_slow": 1,
        },
    )
    model = DeepseekV4ForCausalLM(config)
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.dtype == torch.float32:
                tensor.normal_()
        model.model.layers[0].mlp.gate.tid2eid.random_(0, 4)
    return model


def check_layer(checkpoint: Checkpoint, prefix: str, layer: Any) -> None:
    """Compare one layer, module by module, with what the released names mean (spec 1 §§2–3)."""
    attn, mlp = layer.self_attn, layer.mlp
    pairs = {
        "attn_norm.weight": layer.input_layernorm.weight,
        "ffn_norm.weight": layer.post_attention_layernorm.weight,
        "hc_attn_fn": layer.attn_hc.fn,
        "hc_attn_base": layer.attn_hc.base,
        "hc_attn_scale": layer.attn_hc.scale,
        "hc_ffn_fn": layer.ffn_hc.fn,
        "hc_ffn_base": layer.ffn_hc.base,
        "hc_ffn_scale": layer.ffn_hc.scale,
        "attn.wq_a.weight": attn.q_a_proj.weight,
        "attn.q_norm.weight": attn.q_a_norm.weight,
        "attn.wq_b.weight": attn.q_b_proj.weight,
        "attn.wkv.weight": attn.kv_proj.weight,
        "attn.kv_norm.weight": attn.kv_norm.weight,
        "attn.wo_a.weight": attn.o_a_proj.weight,
        "attn.wo_b.weight": attn.o_b_proj.weight,
        "attn.attn_sink": attn.sinks,
        "ffn.gate.weight": mlp.gate.weight,
        "ffn.shared_experts.w1.weight": mlp.shared_experts.gate_proj.weight,
        "ffn.shared_experts.w2.weight": mlp.shared_experts.down_proj.weight,
        "ffn.shared_experts.w3.weight": mlp.shared_experts.up_proj.weight,
    }
    pairs |= (
        {"ffn.gate.tid2eid": mlp.gate.tid2eid} if mlp.is_hash else {"ffn.gate.bias": mlp.gate.e_score_correction_bias}
    )
    for expert in range(4):
        gate, up = mlp.experts.gate_up_proj[expert].chunk(2, 0)
        pairs |= {f"ffn.experts.{expert}.w1.weight": gate, f"ffn.experts.{expert}.w3.weight": up}
        pairs[f"ffn.experts.{expert}.w2.weight"] = mlp.experts.down_proj[expert]
    if attn.compressor is not None:
        pairs |= compressor("attn.compressor.", attn.compressor)
        if hasattr(attn.compressor, "indexer"):
            indexer = attn.compressor.indexer
            pairs |= compressor("attn.indexer.compressor.", indexer)
            pairs["attn.indexer.wq_b.weight"] = indexer.q_b_proj.weight
            pairs["attn.indexer.weights_proj.weight"] = indexer.scorer.weights_proj.weight
    for name, tensor in pairs.items():
        assert torch.equal(checkpoint[prefix + name].data, tensor), prefix + name
    assert sum(name.startswith(prefix) for name in checkpoint) == len(pairs)


def compressor(prefix: str, module: Any) -> dict[str, Tensor]:
    return {
        f"{prefix}ape": module.position_bias,
        f"{prefix}wkv.weight": module.kv_proj.weight,
        f"{prefix}wgate.weight": module.gate_proj.weight,
        f"{prefix}norm.weight": module.kv_norm.weight,
    }


@pytest.mark.parametrize(
    "options",
    [
        {},  # its rendering of the released names
        {"save_original_format": False},  # its own module names, fused experts
        {"save_original_format": False, "max_shard_size": "100KB"},
    ],
)
def test_what_transformers_saves_opens_here(model: Any, tmp_path: Path, options: dict[str, Any]) -> None:
    model.save_pretrained(tmp_path, **options)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.head == "none" and checkpoint.ignored == () and len(checkpoint.warnings) == 1
    config = checkpoint.config
    assert config.compress_ratios == (0, 4, 128, 4) and config.num_hash_layers == 1
    assert config.yarn == Yarn(16.0, 64, 32.0, 1.0) and config.compress_rope_theta == 160000.0
    assert config.qk_rope_head_dim == 16
    for index, layer in enumerate(model.model.layers):
        check_layer(checkpoint, f"layers.{index}.", layer)
    top = {
        "embed.weight": model.model.embed_tokens.weight,
        "norm.weight": model.model.norm.weight,
        "head.weight": model.lm_head.weight,
        "hc_head_fn": model.model.hc_head.hc_fn,
        "hc_head_base": model.model.hc_head.hc_base,
        "hc_head_scale": model.model.hc_head.hc_scale,
    }
    for name, tensor in top.items():
        assert torch.equal(checkpoint[name].data, tensor), name


def test_one_expert_of_a_fused_tensor_reads_only_its_bytes(model: Any, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path, save_original_format=False)
    checkpoint = open_checkpoint(tmp_path)
    entry = checkpoint.entries["layers.2.ffn.experts.3.w3.weight"]
    assert entry.nbytes == 32 * 64 * 4
    assert checkpoint.stored_bytes == sum(t.nbytes for t in load_file(tmp_path / "model.safetensors").values())


def test_what_is_saved_here_opens_in_transformers(tmp_path: Path) -> None:
    config = tiny_config(hca_ratio=128, max_position_embeddings=1024)
    tensors = random_tensors(config, 0)
    save_checkpoint(tmp_path / "ours", config, tensors, quantise=False, plain_dtype=torch.float32)
    theirs = DeepseekV4ForCausalLM.from_pretrained(tmp_path / "ours", dtype=torch.float32)
    theirs.save_pretrained(tmp_path / "theirs", save_original_format=False)
    back = open_checkpoint(tmp_path / "theirs")
    trunk = {name: tensor for name, tensor in tensors.items() if not name.startswith("mtp.")}
    assert set(back) == set(trunk)
    for name, tensor in trunk.items():
        assert torch.equal(back[name].data, tensor), name
