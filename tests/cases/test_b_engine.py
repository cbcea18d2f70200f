"""Cases B1, B3, B4 and B5 on a loaded engine: what the loader made of a head, seen by what it drafts."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import outrider
from outrider.draft.mtp import MtpDrafter
from outrider.engine.llm import Engine
from outrider.errors import CheckpointError, OutriderWarning
from outrider.weights import save_checkpoint
from tests.cases.test_b_loading import LISTS, drop_head, long_names, plain_part
from tests.engine.scene import prompt
from tests.support.checkpoints import edit_config, edit_tensors, random_tensors, save_tiny, tiny_config

IDS = prompt(21)
OPTIONS: dict[str, Any] = {"max_tokens": 6, "temperature": 0.0, "ignore_eos": True}


def mtp_of(engine: Engine) -> MtpDrafter:
    assert isinstance(engine.parts.drafter, MtpDrafter)
    return engine.parts.drafter


def tensors_in(handle: Any) -> list[Tensor]:
    """All tensors of a handle, however it nests them."""
    if isinstance(handle, Tensor):
        return [handle]
    parts = handle if isinstance(handle, list | tuple) else [getattr(handle, n, None) for n in _fields(handle)]
    return [tensor for part in parts for tensor in tensors_in(part)]


def _fields(handle: Any) -> list[str]:
    return list(getattr(handle, "__dataclass_fields__", ()))


@pytest.mark.parametrize("spelling", ["released", "long"])
def test_b1_the_head_shares_embedding_and_vocabulary_with_the_trunk(tmp_path: Path, spelling: str) -> None:
    """The very storage, whichever way the names were spelled."""
    save_tiny(tmp_path)
    if spelling == "long":
        edit_tensors(tmp_path, long_names)
    with outrider.load(tmp_path, draft="mtp") as engine:
        trunk, block = engine.parts.model, mtp_of(engine).block
        assert block.embed is trunk.embed
        own = {tensor.data_ptr() for tensor in tensors_in(trunk.head) if tensor.dim() == 2 and 64 in tensor.shape}
        shared = own & {tensor.data_ptr() for tensor in tensors_in(block.head)}
        largest = max((tensor for tensor in tensors_in(trunk.head)), key=Tensor.numel)
        assert largest.data_ptr() in shared, "the vocabulary product exists twice"


def test_b1_both_spellings_draft_alike(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    with outrider.load(tmp_path) as engine:
        logits, made = engine.draft_logits(IDS), engine.generate(IDS, **OPTIONS)
    edit_tensors(tmp_path, long_names)
    with outrider.load(tmp_path) as engine:
        assert torch.equal(engine.draft_logits(IDS), logits)
        again = engine.generate(IDS, **OPTIONS)
    assert again.token_ids == made.token_ids and again.stats.accepted == made.stats.accepted


@pytest.mark.parametrize("quantise", [False, True])
def test_b3_one_block_drafts_at_every_depth(tmp_path: Path, quantise: bool) -> None:
    """k = 3 on one block; its weights were read once, and the reader that gave them is gone."""
    save_tiny(tmp_path, quantise=quantise)
    with outrider.load(tmp_path, draft="mtp", draft_length=3, poison=True) as engine:
        assert (engine.info.drafter, engine.info.draft_length) == ("mtp", 3)
        made = engine.generate(IDS, **OPTIONS)
        assert made.stats.drafted >= 3 and len(made.stats.acceptance_by_position) == 3
    with outrider.load(tmp_path, draft="none") as plain:
        assert plain.generate(IDS, **OPTIONS).token_ids == made.token_ids


def test_b4_a_lost_head_runs_undrafted_with_one_warning(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    edit_tensors(tmp_path, drop_head)
    with pytest.warns(OutriderWarning) as met:
        engine = outrider.load(tmp_path)
    assert len(met) == 1 and "num_nextn_predict_layers = 1" in str(met[0].message)
    made = engine.generate(IDS, **OPTIONS)
    assert (engine.info.draft_length, made.stats.drafted) == (0, 0) and len(made.token_ids) == 6
    for options in ({"draft": "mtp"}, {"draft_length": 3}):
        with pytest.raises(CheckpointError, match="draft head"):
            outrider.load(tmp_path, **options)  # type: ignore[arg-type]


def test_b4_a_head_that_the_config_denies_drafts_and_is_reported(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    with outrider.load(tmp_path) as engine:
        logits = engine.draft_logits(IDS)
    edit_config(tmp_path, num_nextn_predict_layers=0)
    with pytest.warns(OutriderWarning, match="num_nextn_predict_layers = 0"):
        engine = outrider.load(tmp_path)
    assert torch.equal(engine.draft_logits(IDS), logits) and engine.info.drafter == "mtp"


def test_b4_half_a_head_does_not_load(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    edit_tensors(tmp_path, lambda tensors: tensors.pop("mtp.0.ffn.experts.2.w1.weight"))
    for options in ({}, {"draft": "none"}):
        with pytest.raises(CheckpointError, match="in part only"):
            outrider.load(tmp_path, **options)  # type: ignore[arg-type]


def test_b5_a_plain_head_on_a_quantised_trunk_drafts_the_same_for_every_list(tmp_path: Path) -> None:
    """Decided by the stored dtype and the presence of a scale: the config's lists of exceptions change nothing."""
    save_tiny(tmp_path, quantise=True)
    plain_part(tmp_path, "mtp.")
    found = []
    for ignored in LISTS.values():
        quantisation = {"quant_method": "fp8", "fmt": "e4m3", "ignored_layers": ignored}
        edit_config(tmp_path, quantization_config=quantisation)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with outrider.load(tmp_path, draft="mtp") as engine:
                with engine.record() as record:
                    engine.generate(IDS, **OPTIONS)
                found.append((engine.draft_logits(IDS), record.first_draft))
    logits, firsts = found[0]
    assert logits.isfinite().all() and firsts
    for other, others in found[1:]:
        assert torch.equal(other, logits) and others.keys() == firsts.keys()
        assert all(torch.equal(row, firsts[key]) for key, row in others.items())


def test_b5_the_head_is_read_in_its_own_format(tmp_path: Path) -> None:
    """A plain head takes plain inputs, a quantised one quantised inputs: they differ, but not by much."""
    save_tiny(tmp_path, quantise=True)
    with outrider.load(tmp_path) as engine:
        quantised, trunk = engine.draft_logits(IDS), engine.score(IDS)
    plain_part(tmp_path, "mtp.")
    with outrider.load(tmp_path) as engine:
        plain = engine.draft_logits(IDS)
        assert torch.equal(engine.score(IDS), trunk)
    assert not torch.equal(plain, quantised)
    agree = (plain.argmax(1) == quantised.argmax(1)).float().mean()
    assert agree > 0.5, "they're the same weights"


def test_b3_more_blocks_than_drafting_knows_are_not_folded_into_one(tmp_path: Path) -> None:
    config = tiny_config(hca_ratio=128, compress_ratios=(0, 4, 128, 4, 0, 0, 0), num_hidden_layers=4)
    save_checkpoint(
        tmp_path / "x", config, random_tensors(config, 0, mtp_blocks=3), quantise=False, plain_dtype=torch.float32
    )
    with pytest.raises(outrider.UnsupportedError, match="3 MTP blocks"):
        outrider.load(tmp_path / "x", draft="mtp")
    with pytest.warns(OutriderWarning):
        engine = outrider.load(tmp_path / "x")
    assert engine.info.drafter == "none" and len(engine.generate(IDS, **OPTIONS).token_ids) == 6
