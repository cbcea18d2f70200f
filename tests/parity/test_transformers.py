"""Trunks of random configs against the independent implementation in transformers, float32, to 2e-4.

One shot is held against transformers; every other way of cutting the prompt is held to one shot by bits. The draft
head has no counterpart there (its weights are dropped), so it is tested on golden values alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from outrider.config.model import ModelConfig
from outrider.weights import open_checkpoint, save_checkpoint
from tests.parity.bench import Bench, edges
from tests.support.checkpoints import random_tensors, tiny_config

pytest.importorskip("transformers", reason="the oracle for trunks; the extra 'test' installs it, as CI does")

TOLERANCE = 2e-4
LENGTH = 530
"""Four HCA entries, and a few tokens behind the last one."""

CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no hash layer, one group, two streams": {
        "num_hash_layers": 0,
        "o_groups": 1,
        "hc_mult": 2,
        "num_attention_heads": 3,
        "sliding_window": 5,
        "routed_scaling_factor": 2.5,
    },
    "clamp acts, three streams, six heads": {
        "swiglu_limit": 0.5,
        "hc_mult": 3,
        "num_attention_heads": 6,
        "o_groups": 3,
        "num_hash_layers": 2,
        "head_dim": 40,
        "qk_rope_head_dim": 8,
        "index_head_dim": 16,
        "index_n_heads": 16,
    },
    "all entries picked, wide window": {
        "index_topk": 512,
        "sliding_window": 128,
        "hidden_size": 48,
        "vocab_size": 90,
        "n_routed_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 20,
    },
    "compressed from the first layer, other ropes": {
        "compress_ratios": (128, 4, 4, 128, 0, 0),
        "index_topk": 2,
        "index_n_heads": 16,
        "rope_theta": 500.0,
        "compress_rope_theta": 40000.0,
        "q_lora_rank": 24,
        "o_lora_rank": 20,
        "hc_sinkhorn_iters": 3,
        "num_experts_per_tok": 1,
    },
    "no YaRN, window of one": {"yarn": None, "sliding_window": 1, "compress_ratios": (4, 128, 0, 0)},
}


def config_of(name: str) -> ModelConfig:
    return tiny_config(hca_ratio=128, max_position_embeddings=1024, **CONFIGS[name])


def bench_of(config: ModelConfig, folder: Path, seed: int) -> Bench:
    tensors = random_tensors(config, seed)
    save_checkpoint(folder, config, tensors, quantise=False, plain_dtype=torch.float32)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.config == config
    return Bench(checkpoint.config, checkpoint, head=False)


def tokens(config: ModelConfig, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(config.vocab_size, (LENGTH,), generator=generator).tolist()


def oracle(folder: Path, ids: list[int]) -> Tensor:
    """Logits float32 ``[T, vocab]`` of transformers' model of the same files, its indexer's ties broken by the rule."""
    from transformers.models.deepseek_v4 import DeepseekV4ForCausalLM
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4IndexerScorer

    model = DeepseekV4ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for module in model.modules():
        if isinstance(module, DeepseekV4IndexerScorer):
            module.register_forward_hook(by_rule)
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0]


def by_rule(_module: object, _inputs: object, scores: Tensor) -> Tensor:
    """Scores of the same order in which no two are equal: of equal ones the lower entry is the higher.

    Where fewer entries than are picked score above zero, the rest is picked among exact zeros, and transformers leaves
    that to ``torch.topk``, whose choice depends on the shape of the call (spec 1 §3, "Trap").
    """
    order = scores.sort(dim=-1, descending=True, stable=True).indices
    ranks = torch.arange(scores.shape[-1], dtype=torch.float32).expand_as(scores)
    return torch.empty_like(scores).scatter_(-1, order, -ranks)


def check(name: str, folder: Path, seed: int, cuts: list[list[int]]) -> None:
    config = config_of(name)
    bench, ids = bench_of(config, folder, seed), tokens(config, seed)
    whole = bench.read(ids, [])
    difference = (whole.logits - oracle(folder, ids)).abs().amax(1)
    assert difference.max() <= TOLERANCE, f"first off at position {int((difference > TOLERANCE).float().argmax())}"
    for cut in cuts:
        assert bench.read(ids, cut).same(whole), f"cut as {cut}"


@pytest.mark.parametrize("name", CONFIGS)
def test_trunk_agrees_with_transformers(name: str, tmp_path: Path) -> None:
    check(name, tmp_path / "model", 1, [[127, 1, 1, 127, 256, 1], [3, 2, 123, 129, 254, 2], [130, 125, 4]])


@pytest.mark.parametrize("name", ["plain"])
def test_every_edge_around_4_and_128(name: str, tmp_path: Path) -> None:
    check(name, tmp_path / "model", 2, edges(LENGTH))


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("seed", range(3, 8))
def test_trunk_agrees_with_transformers_on_more_weights(name: str, seed: int, tmp_path: Path) -> None:
    check(name, tmp_path / "model", seed, edges(LENGTH))
