"""The differentiable model computes what the checkpoint's own code computes (golden values), in all its spellings."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from outrider.tune.attention import best_mask
from outrider.tune.chain import unroll
from outrider.tune.context import Context, Tally
from outrider.tune.forward import MTP, draft, embed_streams, logits, plain_layer, run_layer, trunk
from outrider.tune.owntext import Lockstep, own_text
from outrider.weights import open_checkpoint
from tests.support.checkpoints import random_tensors, tiny_config
from tests.support.engines import make_engine, tiny_model

FOLDER = Path(__file__).parents[1] / "golden"
PLAIN = ("a1-plain", "a2-plain")


@cache
def golden(name: str) -> tuple[Context, dict[str, Tensor]]:
    checkpoint = open_checkpoint(FOLDER / name)
    params = {
        key: stored.data if key.endswith("tid2eid") else stored.dequantise() for key, stored in checkpoint.items()
    }
    return Context(checkpoint.config, params), load_file(FOLDER / name / "expected.safetensors")


def largest(found: Tensor, expected: Tensor) -> float:
    assert found.shape == expected.shape
    return (found - expected).abs().max().item()


@pytest.mark.parametrize("name", PLAIN)
@torch.no_grad()
def test_golden_logits_streams_and_drafts(name: str) -> None:
    context, expected = golden(name)
    ids = expected["input_ids"].long().unsqueeze(0)
    streams = trunk(context, ids, Tally())
    assert largest(streams[0], expected["streams"]) < 2e-4
    assert largest(logits(context, streams)[0], expected["logits"]) < 2e-4
    drafted = draft(context, streams[:, :-1], ids[:, 1:])
    assert largest(logits(context, drafted, MTP)[0], expected["mtp_logits"]) < 2e-4


@pytest.mark.parametrize("name", PLAIN)
@torch.no_grad()
def test_golden_chain_is_what_unrolling_gives_at_the_last_anchor(name: str) -> None:
    context, expected = golden(name)
    ids = torch.cat([expected["input_ids"].long(), expected["chain_tokens"].long()[:3]]).unsqueeze(0)
    steps = unroll(context, expected["streams"].unsqueeze(0), ids, 3)
    found = torch.stack([logits(context, streams[:, -1:], MTP)[0, 0] for streams in steps])
    assert largest(found, expected["chain_logits"]) < 2e-4
    assert largest(torch.stack([streams[0, -1] for streams in steps]), expected["chain_streams"]) < 2e-4


@pytest.mark.parametrize("name", ("a1-quant", "a2-quant"))
@torch.no_grad()
def test_golden_layers_with_simulated_activations(name: str) -> None:
    context, expected = golden(name)
    context = Context(context.config, context.params, simulate=True)
    ids = expected["input_ids"].long().unsqueeze(0)
    before = embed_streams(context, ids)
    for layer in context.config.layers:
        found = plain_layer(context, before, ids, layer, f"layers.{layer.index}.", None)
        wanted = expected["layer_streams"][layer.index]
        near = ((found[0] - wanted).abs().amax((1, 2)) < 1e-3).float().mean()
        assert near >= 0.97, (layer.index, near)
        before = wanted.unsqueeze(0)


@pytest.mark.parametrize("seed", (0, 1, 2))
@torch.no_grad()
def test_random_models_agree_with_the_engine(seed: int) -> None:
    overrides = ({}, {"hc_mult": 2, "index_n_heads": 4}, {"sliding_window": 5, "index_topk": 2, "swiglu_limit": 0.5})[
        seed
    ]
    model = tiny_model(seed, **overrides)
    context = Context(model.config, random_tensors(model.config, seed))
    ids = torch.randint(0, 64, (1, 61), generator=torch.Generator().manual_seed(seed))
    engine = make_engine(model)
    scores, drafts = engine.score(ids[0].tolist()), engine.draft_logits(ids[0].tolist())
    streams = trunk(context, ids)
    assert largest(logits(context, streams)[0], scores) < 1e-4
    assert largest(logits(context, draft(context, streams[:, :-1], ids[:, 1:]), MTP)[0], drafts) < 1e-4


@torch.no_grad()
def test_lockstep_decoding_equals_the_full_sequence() -> None:
    config = tiny_config()
    context = Context(config, random_tensors(config, 3))
    ids = torch.randint(0, 64, (3, 45), generator=torch.Generator().manual_seed(0))
    loop = Lockstep(context, 3, 45)
    found = torch.stack([loop.step(ids[:, t]) for t in range(45)], 1)
    assert largest(found, logits(context, trunk(context, ids))) < 1e-4


@torch.no_grad()
def test_own_text_is_greedy_where_the_temperature_is_zero() -> None:
    config = tiny_config()
    context = Context(config, random_tensors(config, 4))
    prompts = torch.randint(0, 64, (2, 5), generator=torch.Generator().manual_seed(0))
    text = own_text(context, prompts, 20, torch.tensor([0.0, 5.0]), torch.Generator().manual_seed(0))
    best = logits(context, trunk(context, text)).argmax(-1)
    assert torch.equal(text[:, :5], prompts)
    assert torch.equal(text[0, 5:], best[0, 4:-1])
    assert not torch.equal(text[1, 5:], best[1, 4:-1])


@torch.no_grad()
def test_first_step_of_a_round_is_the_ordinary_draft() -> None:
    config = tiny_config()
    context = Context(config, random_tensors(config, 5))
    ids = torch.randint(0, 64, (2, 40), generator=torch.Generator().manual_seed(0))
    streams = trunk(context, ids[:, :37])
    first, _, _ = unroll(context, streams, ids, 3)
    assert largest(first, draft(context, streams, ids[:, 1:38])) < 1e-5


def test_best_mask_breaks_ties_by_lowest_index() -> None:
    scores = torch.tensor([[0.0, -0.0, 1.0, 0.0, -torch.inf], [-torch.inf, 2.0, 2.0, 2.0, 1.0]])
    chosen = best_mask(scores, 2)
    assert chosen.tolist() == [[True, False, True, False, False], [False, True, True, False, False]]
    assert best_mask(scores, 5).sum(-1).tolist() == [4, 4]
    assert best_mask(torch.full((1, 4), -torch.inf), 2).sum() == 0


def test_a_sequence_never_sees_its_future() -> None:
    config = tiny_config()
    context = Context(config, random_tensors(config, 6))
    ids = torch.randint(0, 64, (1, 30), generator=torch.Generator().manual_seed(0))
    changed = ids.clone()
    changed[0, 20:] = (changed[0, 20:] + 1) % 64
    before, after = trunk(context, ids), trunk(context, changed)
    assert largest(before[:, :20], after[:, :20]) < 1e-5
    assert largest(before[:, 20:], after[:, 20:]) > 1e-2


def test_layers_accept_any_attention() -> None:
    config = tiny_config()
    context = Context(config, random_tensors(config, 7))
    streams = torch.randn(1, 6, 4, 64)
    ids = torch.zeros(1, 6, dtype=torch.int64)
    silent = run_layer(context, streams, ids, config.layers[0], "layers.0.", torch.zeros_like)
    assert silent.shape == streams.shape
