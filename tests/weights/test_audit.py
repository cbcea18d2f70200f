"""The audit: each wrong tensor is named, and a mutated checkpoint is an error on purpose or opens."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.errors import CheckpointError, OutriderError
from outrider.quant import fp4, fp8
from outrider.weights import open_checkpoint
from tests.support.checkpoints import edit_config, edit_tensors

GOLDEN = Path(__file__).parents[1] / "golden"
Edit = Callable[[dict[str, Tensor]], object]


def refused(folder: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    return caught.value


def test_formats_of_the_fixture(folder: Path) -> None:
    """The edits above mean what they say: this checkpoint has FP8 linears and FP4 experts of these shapes."""
    checkpoint = open_checkpoint(folder)
    linear, expert = checkpoint["layers.0.attn.wq_b.weight"], checkpoint["layers.1.ffn.experts.1.w3.weight"]
    assert linear.scale is not None and tuple(linear.scale.shape) == fp8.scale_shape(linear.shape)
    assert expert.scale is not None and tuple(expert.scale.shape) == fp4.scale_shape(expert.shape)


def cast(name: str, dtype: torch.dtype) -> Edit:
    return lambda tensors: tensors.update({name: tensors[name].view(torch.uint8).to(dtype)})


def put(**new: Tensor) -> Edit:
    return lambda tensors: tensors.update({name.replace("_at_", "."): tensor for name, tensor in new.items()})


@pytest.mark.parametrize(
    ("edit", "tensor", "what"),
    [
        (lambda t: t.pop("layers.2.attn.compressor.ape"), "layers.2.attn.compressor.ape", "is missing"),
        (lambda t: t.pop("layers.0.attn.wkv.scale"), "layers.0.attn.wkv.weight", "has no scale"),
        (lambda t: t.pop("layers.0.attn.wkv.weight"), "layers.0.attn.wkv.weight", "is missing"),
        (lambda t: t.pop("layers.1.ffn.experts.3.w1.scale"), "layers.1.ffn.experts.3.w1.weight", "has no scale"),
        (put(extra_at_weight=torch.zeros(1)), "extra.weight", "not called for"),
        (put(embed_at_scale=torch.zeros(1)), "embed.scale", "not called for"),
        (put(norm_at_weight=torch.zeros(63)), "norm.weight", "[63], expected [64]"),
        (put(norm_at_weight=torch.zeros(64, dtype=torch.float64)), "norm.weight", "float64"),
        (put(norm_at_weight=torch.zeros(64).to(torch.float8_e4m3fn)), "norm.weight", "can't be used"),
        (cast("layers.0.attn.wkv.scale", torch.float16), "layers.0.attn.wkv.weight", "float16"),
        (cast("layers.0.attn.wkv.weight", torch.bfloat16), "layers.0.attn.wkv.weight", "which has none"),
        (cast("layers.0.attn.wkv.weight", torch.int32), "layers.0.attn.wkv.weight", "can't be used"),
        (cast("layers.0.ffn.gate.tid2eid", torch.float32), "layers.0.ffn.gate.tid2eid", "can't be used"),
    ],
)
def test_audit_names_the_tensor(folder: Path, edit: Edit, tensor: str, what: str) -> None:
    edit_tensors(folder, edit)
    error = refused(folder)
    assert error.tensor == tensor and tensor.removesuffix(".weight") in str(error) and what in str(error)


@pytest.mark.parametrize("name", ["layers.0.attn.wq_b", "layers.1.ffn.experts.1.w3", "mtp.0.e_proj"])
def test_scale_of_wrong_shape(folder: Path, name: str) -> None:
    def longer(tensors: dict[str, Tensor]) -> None:
        scale = tensors[f"{name}.scale"].view(torch.uint8)
        tensors[f"{name}.scale"] = torch.cat([scale, scale], 0).view(torch.float8_e8m0fnu)

    edit_tensors(folder, longer)
    error = refused(folder)
    assert error.tensor == f"{name}.scale" and "expected [" in str(error)


def test_hash_routes_out_of_range(folder: Path) -> None:
    name = "layers.0.ffn.gate.tid2eid"
    edit_tensors(folder, lambda t: t[name].__setitem__((5, 1), 4))
    assert refused(folder).tensor == name
    edit_tensors(folder, lambda t: t[name].__setitem__((5, 1), -1))
    assert "-1" in str(refused(folder))


def test_two_spellings_of_one_tensor(folder: Path) -> None:
    edit_tensors(folder, lambda t: t.update({"model.embed_tokens.weight": t["embed.weight"].clone()}))
    error = refused(folder)
    assert error.tensor == "embed.weight" and "twice" in str(error) and "model.embed_tokens.weight" in str(error)


def test_many_missing_or_unknown_are_counted(folder: Path) -> None:
    edit_config(folder, num_hidden_layers=3, compress_ratios=[0, 4, 128, 0])
    error = refused(folder)
    assert (
        error.tensor.startswith("layers.3.") and "tensors (layers.3." in str(error) and "not called for" in str(error)
    )
    edit_config(folder, num_hidden_layers=5, compress_ratios=[0, 4, 128, 4, 0, 0])
    error = refused(folder)
    assert error.tensor.startswith("layers.4.") and "tensors (" in str(error)


def test_names_not_understood_are_told_where_others_are_missing(folder: Path) -> None:
    edit_tensors(folder, lambda t: t.update({"layers.0.attn.query_a.weight": t.pop("layers.0.attn.q_norm.weight")}))
    error = refused(folder)
    assert error.tensor == "layers.0.attn.q_norm.weight" and "layers.0.attn.query_a.weight" in str(error)


def opens_or_refuses(folder: Path) -> bool:
    """True if it opens and every tensor can be read; an error on purpose is False, any other fails the test."""
    try:
        for stored in open_checkpoint(folder).values():
            stored.dequantise()
    except OutriderError:
        return False
    return True


NAMES = sorted(load_file(GOLDEN / "a1-quant" / "model.safetensors"))


@given(name=st.sampled_from(NAMES), kind=st.sampled_from(["drop", "rename", "flat", "shorter", "dtype"]))
def test_a_changed_tensor_is_always_an_error(tmp_path_factory: pytest.TempPathFactory, name: str, kind: str) -> None:
    folder = tmp_path_factory.mktemp("mutant")
    shutil.copy(GOLDEN / "a1-quant" / "config.json", folder)
    tensors = load_file(GOLDEN / "a1-quant" / "model.safetensors")
    value = tensors.pop(name)
    raw = value.view(torch.uint8)
    if kind == "rename":
        tensors[name + "x"] = value
    elif kind == "flat":
        tensors[name] = raw.reshape(1, -1).view(value.dtype)[None]
    elif kind == "shorter":
        tensors[name] = value[:-1].clone()
    elif kind == "dtype":
        tensors[name] = raw.to(torch.float64)
    save_file(tensors, folder / "model.safetensors")
    assert not opens_or_refuses(folder)


@given(cut=st.floats(0, 1, exclude_max=True))
def test_a_truncated_checkpoint_is_always_an_error(tmp_path_factory: pytest.TempPathFactory, cut: float) -> None:
    folder = tmp_path_factory.mktemp("cut")
    shutil.copy(GOLDEN / "a2-quant" / "config.json", folder)
    whole = (GOLDEN / "a2-quant" / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: int(cut * len(whole))])
    assert not opens_or_refuses(folder)


@given(at=st.integers(0, 60_000), value=st.binary(min_size=1, max_size=8))
def test_a_patched_header_opens_or_is_refused(tmp_path_factory: pytest.TempPathFactory, at: int, value: bytes) -> None:
    folder = tmp_path_factory.mktemp("patch")
    shutil.copy(GOLDEN / "a2-quant" / "config.json", folder)
    whole = bytearray((GOLDEN / "a2-quant" / "model.safetensors").read_bytes())
    whole[at : at + len(value)] = value
    (folder / "model.safetensors").write_bytes(whole)
    opens_or_refuses(folder)
