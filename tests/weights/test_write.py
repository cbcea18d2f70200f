"""Saving: the released layout, quantised on request; what is saved loads to the same values."""

from __future__ import annotations

import errno
import gc
import json
import os
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from outrider.errors import CheckpointError, ConfigError
from outrider.quant import fp4, fp8
from outrider.quant.stored import Stored
from outrider.weights import expected_tensors, open_checkpoint, save_checkpoint
from outrider.weights.shard import read_header
from outrider.weights.spool import Spool
from tests.support.checkpoints import random_tensors, stored, tiny_config

CONFIG = tiny_config(hca_ratio=128)
QUANTISED = replace(CONFIG, quantised=True, expert_dtype="fp4", torch_dtype="bfloat16")
TENSORS = random_tensors(CONFIG, 3)


def test_float32_is_exact(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "x", CONFIG, TENSORS, quantise=False, plain_dtype=torch.float32)
    checkpoint = open_checkpoint(tmp_path / "x")
    assert checkpoint.config == CONFIG and checkpoint.warnings == ()
    assert list(checkpoint) == list(TENSORS)
    for name, tensor in TENSORS.items():
        assert torch.equal(checkpoint[name].data, tensor) and checkpoint[name].data.dtype == tensor.dtype


def test_plain_layout(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "x", CONFIG, TENSORS, quantise=False)
    checkpoint = open_checkpoint(tmp_path / "x")
    dtypes = {"exact": torch.float32, "ids": torch.int64}
    for name, want in expected_tensors(CONFIG, 1).items():
        data = checkpoint[name].data
        assert data.dtype == dtypes.get(want.kind, torch.bfloat16), name
        assert torch.equal(data, TENSORS[name].to(data.dtype))


def test_quantised_layout(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "x", QUANTISED, TENSORS, quantise=True)
    checkpoint = open_checkpoint(tmp_path / "x")
    assert checkpoint.config == QUANTISED
    for name, want in expected_tensors(QUANTISED, 1).items():
        item = checkpoint[name]
        assert item.format == {"linear": "fp8", "expert": "fp4"}.get(want.kind, "plain")
        if item.format == "fp8":
            assert torch.equal(item.dequantise(), fp8.dequantise_weight(*fp8.quantise_weight(TENSORS[name])))
        elif item.format == "fp4":
            assert torch.equal(item.dequantise(), fp4.dequantise_weight(*fp4.quantise_weight(TENSORS[name])))
        if item.scale is not None:
            assert item.scale.dtype == torch.float8_e8m0fnu


def test_quantised_experts_are_fp8_unless_the_config_says_fp4(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "x", CONFIG, TENSORS, quantise=True)
    checkpoint = open_checkpoint(tmp_path / "x")
    assert checkpoint.config == replace(CONFIG, quantised=True)
    assert checkpoint["layers.0.ffn.experts.0.w1.weight"].format == "fp8"


def test_same_as_what_support_lays_out_in_memory(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "x", QUANTISED, TENSORS, quantise=True, plain_dtype=torch.float32)
    memory = stored(QUANTISED, TENSORS, quantise=True)
    for name, item in open_checkpoint(tmp_path / "x").items():
        assert torch.equal(item.dequantise(), memory[name].dequantise())


def test_files_are_what_the_safetensors_library_reads(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "x", QUANTISED, TENSORS, quantise=True)
    with safe_open(tmp_path / "x" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        for name in file.keys():  # noqa: SIM118 (the file's object can't be iterated)
            file.get_tensor(name)


def test_every_tensor_is_aligned(tmp_path: Path) -> None:
    """Other readers map files and refuse a tensor that starts between its elements; scales here have odd sizes."""
    save_checkpoint(tmp_path / "x", QUANTISED, TENSORS, quantise=True)
    located = read_header(tmp_path / "x" / "model.safetensors").values()
    assert any(place.nbytes % 2 for place in located)
    assert all(place.start % place.dtype.itemsize == 0 for place in located)


def test_config_comes_last_when_saving_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path / "x", CONFIG, TENSORS, quantise=False)
    moved: list[str] = []
    replace_file = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (moved.append(Path(b).name), replace_file(a, b)))
    save_checkpoint(tmp_path / "x", CONFIG, TENSORS, quantise=False, extra_files={"a": b"", "z": b""})
    assert sorted(moved) == ["a", "config.json", "model.safetensors", "z"] and moved[-1] == "config.json"


def test_stored_tensors_pass_byte_for_byte(tmp_path: Path) -> None:
    name = "layers.1.attn.wq_a.weight"
    data, scale = fp8.quantise_weight(TENSORS[name])
    given = Stored(name, data, scale.float() * 1.5, "fp8")
    save_checkpoint(tmp_path / "x", CONFIG, TENSORS | {name: given}, quantise=False)
    read = open_checkpoint(tmp_path / "x")[name]
    assert read.format == "fp8" and read.scale is not None and given.scale is not None
    assert torch.equal(read.data.view(torch.uint8), data.view(torch.uint8)) and torch.equal(read.scale, given.scale)


def test_shards_are_no_larger_than_asked_and_indexed(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "x", QUANTISED, TENSORS, quantise=True, shard_bytes=50_000)
    index = json.loads((tmp_path / "x" / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in (tmp_path / "x").glob("*.safetensors"))
    assert files == sorted(set(index["weight_map"].values())) and len(files) > 3
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    for file in files:
        with safe_open(tmp_path / "x" / file, "pt") as opened:
            assert sum(opened.get_tensor(name).nbytes for name in opened.keys()) <= 50_000  # noqa: SIM118
    checkpoint = open_checkpoint(tmp_path / "x")
    assert checkpoint.stored_bytes == index["metadata"]["total_size"]


def test_extra_files(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "x", CONFIG, TENSORS, quantise=False, extra_files={"tokenizer.json": b"{}"})
    assert (tmp_path / "x" / "tokenizer.json").read_bytes() == b"{}"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x"]


@pytest.mark.parametrize("first", [None, 100_000])
@pytest.mark.parametrize("second", [None, 200_000])
def test_saving_over_an_earlier_save(tmp_path: Path, first: int | None, second: int | None) -> None:
    folder = tmp_path / "x"
    save_checkpoint(folder, CONFIG, TENSORS, quantise=False, shard_bytes=first)
    (folder / "notes.txt").write_text("mine")
    (folder / "expected.safetensors").write_text("mine")
    newer = random_tensors(CONFIG, 4)
    save_checkpoint(folder, CONFIG, newer, quantise=False, shard_bytes=second, plain_dtype=torch.float32)
    checkpoint = open_checkpoint(folder)
    assert all(torch.equal(checkpoint[name].data, newer[name]) for name in newer)
    assert (folder / "notes.txt").read_text() == (folder / "expected.safetensors").read_text() == "mine"


def test_saving_a_checkpoint_onto_itself(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "x", QUANTISED, TENSORS, quantise=True)
    before = (tmp_path / "x" / "model.safetensors").read_bytes()
    checkpoint = open_checkpoint(tmp_path / "x")
    save_checkpoint(tmp_path / "x", checkpoint.config, checkpoint, quantise=False)
    assert (tmp_path / "x" / "model.safetensors").read_bytes() == before


def without(name: str) -> dict[str, Tensor]:
    return {key: value for key, value in TENSORS.items() if key != name}


@pytest.mark.parametrize(
    ("tensors", "tensor", "what"),
    [
        (list(without("norm.weight").items()), "norm.weight", "weren't given"),
        ([*TENSORS.items(), ("norm.weight", TENSORS["norm.weight"])], "norm.weight", "twice"),
        ({**TENSORS, "nothing": torch.zeros(1)}, "nothing", "not one that the config calls for"),
        ({**TENSORS, "norm.weight": torch.zeros(63)}, "norm.weight", "[63], expected [64]"),
        ({**TENSORS, "norm.weight": torch.zeros(64, dtype=torch.int64)}, "norm.weight", "floating point"),
        (
            {**TENSORS, "layers.0.ffn.gate.tid2eid": torch.zeros(64, 2)},
            "layers.0.ffn.gate.tid2eid",
            "expected integers",
        ),
    ],
)
def test_refusals_leave_nothing_behind(tmp_path: Path, tensors: object, tensor: str, what: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        save_checkpoint(tmp_path / "x", CONFIG, tensors, quantise=False)  # type: ignore[arg-type]
    assert caught.value.tensor == tensor and what in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_stand_in_ratio_is_refused(tmp_path: Path) -> None:
    config = tiny_config()
    with pytest.raises(ConfigError, match="hca_ratio"):
        save_checkpoint(tmp_path / "x", config, random_tensors(config, 0), quantise=False)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_save_leaves_the_earlier_one(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "x", CONFIG, TENSORS, quantise=False)
    before = {path.name: path.read_bytes() for path in (tmp_path / "x").iterdir()}

    def breaks() -> Iterator[tuple[str, Tensor]]:
        yield from list(random_tensors(CONFIG, 9).items())[:50]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path / "x", CONFIG, breaks(), quantise=False)
    assert {path.name: path.read_bytes() for path in (tmp_path / "x").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_full_disk_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Spool, path: Path) -> list[str]:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Spool, "finish", full)
    with pytest.raises(CheckpointError, match=r"Can't write .* No space left"):
        save_checkpoint(tmp_path / "x", CONFIG, TENSORS, quantise=False)
    assert list(tmp_path.iterdir()) == []


def test_tensors_are_taken_one_at_a_time(tmp_path: Path) -> None:
    """The writer holds none of the earlier tensors when it asks for the next."""
    seen: list[weakref.ref[Tensor]] = []

    def one_by_one() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in TENSORS.items():
            gc.collect(0)
            alive = sum(ref() is not None for ref in seen)
            assert alive <= 1, f"{alive} tensors are still held"
            fresh = tensor.clone()
            seen.append(weakref.ref(fresh))
            yield name, fresh
            del fresh

    save_checkpoint(tmp_path / "x", CONFIG, one_by_one(), quantise=False)
    assert len(seen) == len(TENSORS)
