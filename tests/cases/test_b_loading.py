"""Cases B1, B3, B4, B5, B7, B8, B9: checkpoints as converters and fine-tunes leave them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from outrider.config.model import ModelConfig
from outrider.errors import CheckpointError, ConfigError
from outrider.quant import fp8
from outrider.weights import Checkpoint, expected_tensors, open_checkpoint, save_checkpoint
from tests.support.checkpoints import edit_config, edit_tensors, random_tensors, save_tiny, tiny_config

HEAD = "mtp.0."


def values(checkpoint: Checkpoint) -> dict[str, Tensor]:
    return {name: stored.dequantise() for name, stored in checkpoint.items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def drop_head(tensors: dict[str, Tensor]) -> None:
    for name in [name for name in tensors if name.startswith("mtp.")]:
        del tensors[name]


def long_names(tensors: dict[str, Tensor]) -> None:
    """Respell everything in the way of converted files, embedding and head at the top level only."""
    for name in list(tensors):
        new = (
            name.replace(".attn.", ".self_attn.")
            .replace(".ffn.", ".mlp.")
            .replace("gate.bias", "gate.e_score_correction_bias")
        )
        new = (
            "lm_head.weight" if name == "head.weight" else "model." + new.replace("embed.weight", "embed_tokens.weight")
        )
        if new.endswith(".scale"):
            new = new.removesuffix("scale") + "weight_scale_inv"
        tensors[new] = tensors.pop(name)


@pytest.mark.parametrize("quantise", [False, True])
def test_b1_both_layouts_load_alike(tmp_path: Path, quantise: bool) -> None:
    save_tiny(tmp_path, quantise=quantise)
    short = values(open_checkpoint(tmp_path))
    edit_tensors(tmp_path, long_names)
    assert "model.mtp.0.self_attn.wq_a.weight" in load_file(tmp_path / "model.safetensors")
    long = open_checkpoint(tmp_path)
    assert same(short, values(long)) and long.head == "mtp" and long.warnings == ()


def test_b1_the_head_has_no_embedding_of_its_own(tmp_path: Path) -> None:
    """Only the top-level embed and head exist under names that a model can read: nothing can stay at random."""
    config = save_tiny(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert {"embed.weight", "head.weight"} <= set(checkpoint)
    assert not [name for name in checkpoint if name.startswith(("mtp.0.embed", "mtp.0.head."))]
    assert set(checkpoint) == set(expected_tensors(config, 1))


def every_tensor() -> list[str]:
    return list(expected_tensors(tiny_config(), 1))


@pytest.mark.parametrize("name", every_tensor()[::7])
def test_b1_any_tensor_left_unwritten_is_named(tmp_path: Path, name: str) -> None:
    save_tiny(tmp_path)
    edit_tensors(tmp_path, lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(tmp_path)
    assert caught.value.tensor == name and name in str(caught.value)


def test_b3_one_block_may_be_read_for_every_depth(tmp_path: Path) -> None:
    """A reader that frees what it gave: the block is there again for the next depth, and is the same."""
    save_tiny(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    names = [name for name in checkpoint if name.startswith(HEAD)]
    first = {name: checkpoint[name].data for name in names}
    for _ in range(2):
        assert all(torch.equal(checkpoint[name].data, first[name]) for name in names)


def test_b3_three_blocks_are_three(tmp_path: Path) -> None:
    config = tiny_config(hca_ratio=128, compress_ratios=(0, 4, 128, 4, 0, 0, 0), num_hidden_layers=4)
    tensors = random_tensors(config, 0, mtp_blocks=3)
    save_checkpoint(tmp_path / "x", config, tensors, quantise=False, plain_dtype=torch.float32)
    checkpoint = open_checkpoint(tmp_path / "x")
    assert checkpoint.mtp_blocks == 3 == len(checkpoint.config.mtp_layers)
    for block in range(3):
        name = f"mtp.{block}.attn.wkv.weight"
        assert torch.equal(checkpoint[name].data, tensors[name])
    assert len(checkpoint.warnings) == 1 and "hold 3" in checkpoint.warnings[0]


def test_b3_no_layer_answers_to_the_name_of_a_block(tmp_path: Path) -> None:
    """layers.4 of a four-layer model is nobody: not the draft head under another number."""
    save_tiny(tmp_path)
    edit_tensors(
        tmp_path,
        lambda t: [t.update({n.replace(HEAD, "layers.4."): t.pop(n)}) for n in list(t) if n.startswith(HEAD)],
    )
    with pytest.raises(CheckpointError, match=r"layers\.4\."):
        open_checkpoint(tmp_path)


def test_b4_lost_head_warns_once_and_refuses_when_asked_for(tmp_path: Path) -> None:
    save_tiny(tmp_path, quantise=True)
    edit_tensors(tmp_path, drop_head)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.head == "none" and len(checkpoint.warnings) == 1
    assert "num_nextn_predict_layers = 1" in checkpoint.warnings[0]
    with pytest.raises(CheckpointError, match="draft head"):
        checkpoint.require_head()


@pytest.mark.parametrize("key", [0, None])
def test_b4_head_that_the_config_denies_is_used_and_reported(tmp_path: Path, key: int | None) -> None:
    save_tiny(tmp_path)
    edit_config(tmp_path, num_nextn_predict_layers=key)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.head == "mtp" and checkpoint.mtp_blocks == 1
    assert len(checkpoint.warnings) == 1 and "num_nextn_predict_layers = 0" in checkpoint.warnings[0]


@pytest.mark.parametrize("name", [name for name in every_tensor() if name.startswith(HEAD)])
def test_b4_half_a_head_is_an_error(tmp_path: Path, name: str) -> None:
    save_tiny(tmp_path)
    edit_tensors(tmp_path, lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match="in part only") as caught:
        open_checkpoint(tmp_path)
    assert caught.value.tensor == name


def test_b4_one_expert_of_the_head_missing(tmp_path: Path) -> None:
    save_tiny(tmp_path, quantise=True)
    gone = [f"mtp.0.ffn.experts.2.w{i}.{leaf}" for i in (1, 2, 3) for leaf in ("weight", "scale")]
    edit_tensors(tmp_path, lambda tensors: [tensors.pop(name) for name in gone])
    with pytest.raises(CheckpointError, match="3 tensors") as caught:
        open_checkpoint(tmp_path)
    assert caught.value.tensor == "mtp.0.ffn.experts.2.w1.weight"


LISTS = {
    "as mtp.0": ["mtp.0.e_proj", "mtp.0.attn.wq_a"],
    "as layers.N": ["layers.4.e_proj", "model.layers.4.self_attn.q_a_proj"],
    "wrong": ["layers.0.attn.wq_a", "lm_head"],
    "none": None,
}


def plain_part(folder: Path, part: str) -> None:
    """Store the values of one part of a quantised checkpoint in bf16, which holds them exactly, without scales."""
    exact = values(open_checkpoint(folder))
    expected = expected_tensors(open_checkpoint(folder).config, 1)

    def dequantise(tensors: dict[str, Tensor]) -> None:
        for name in [name for name, want in expected.items() if want.kind in ("linear", "expert")]:
            if name.startswith(part):
                tensors[name] = exact[name].bfloat16()
                del tensors[name.removesuffix("weight") + "scale"]

    edit_tensors(folder, dequantise)


@pytest.mark.parametrize("ignored", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("part", ["mtp.", "layers."])
def test_b5_head_and_trunk_in_different_formats(tmp_path: Path, part: str, ignored: list[str] | None) -> None:
    """A bf16 head on an FP8/FP4 trunk, and the reverse, whatever the config's lists of exceptions say."""
    save_tiny(tmp_path, quantise=True)
    before = values(open_checkpoint(tmp_path))
    config = open_checkpoint(tmp_path).config
    plain_part(tmp_path, part)
    quantisation = {"quant_method": "fp8", "fmt": "e4m3", "ignored_layers": ignored, "modules_to_not_convert": ignored}
    edit_config(tmp_path, quantization_config=quantisation)
    checkpoint = open_checkpoint(tmp_path)
    assert same(before, values(checkpoint)) and checkpoint.config == config and checkpoint.warnings == ()
    for name, want in expected_tensors(config, 1).items():
        if want.kind in ("linear", "expert"):
            assert (checkpoint[name].format == "plain") == name.startswith(part)


def test_b5_head_of_another_bit_width(tmp_path: Path) -> None:
    """FP8 experts in the head, FP4 ones in the trunk, though expert_dtype says fp4."""
    save_tiny(tmp_path, quantise=True)
    checkpoint = open_checkpoint(tmp_path)
    experts = [name for name in checkpoint if name.startswith("mtp.0.ffn.experts.")]
    wide = {name: fp8.quantise_weight(checkpoint[name].dequantise()) for name in experts}
    new = {name: q for name, (q, _) in wide.items()}
    new |= {name.removesuffix("weight") + "scale": scale for name, (_, scale) in wide.items()}
    edit_tensors(tmp_path, lambda tensors: tensors.update(new))
    mixed = open_checkpoint(tmp_path)
    assert {mixed[name].format for name in experts} == {"fp8"}
    assert mixed["layers.1.ffn.experts.0.w1.weight"].format == "fp4"


def test_b7_float32_weight_scale_is_used_as_it_is(tmp_path: Path) -> None:
    save_tiny(tmp_path, quantise=True)
    name = "layers.1.attn.wq_b"
    raw = load_file(tmp_path / "model.safetensors")
    scale = torch.full(raw[f"{name}.scale"].shape, 1.5)
    edit_tensors(tmp_path, lambda tensors: tensors.update({f"{name}.scale": scale}))
    read = open_checkpoint(tmp_path)[f"{name}.weight"]
    assert read.format == "fp8" and read.scale is not None and read.scale.dtype == torch.float32
    assert torch.equal(read.dequantise(), raw[f"{name}.weight"].float() * 1.5)


def with_ratios(folder: Path, ratios: list[int]) -> ModelConfig:
    edit_config(folder, compress_ratios=ratios)
    return open_checkpoint(folder).config


@pytest.mark.parametrize("ratios", [[0, 4, 128], [0, 4, 128, 4], [0, 4, 128, 4, 0, 0], [0, 4, 128, 4, 0, 0, 0]])
def test_b8_list_of_wrong_length_is_an_error(tmp_path: Path, ratios: list[int]) -> None:
    save_tiny(tmp_path)
    with pytest.raises(ConfigError) as caught:
        with_ratios(tmp_path, ratios)
    assert caught.value.key == "compress_ratios" and f"it has {len(ratios)}" in str(caught.value)


def test_b8_unknown_ratio_is_an_error(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    with pytest.raises(ConfigError, match=r"compress_ratios\[2\] is 7"):
        with_ratios(tmp_path, [0, 4, 7, 4, 0])
    with pytest.raises(ConfigError, match=r"compress_ratios\[4\] is 4"):
        with_ratios(tmp_path, [0, 4, 128, 4, 4])


def test_b8_zero_and_one_are_the_same(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    zero = with_ratios(tmp_path, [0, 4, 128, 4, 0])
    assert with_ratios(tmp_path, [1, 4, 128, 4, 1]) == zero
    assert [layer.ratio for layer in zero.mtp_layers] == [0]


@pytest.mark.parametrize("shard_bytes", [None, 60_000])
def test_b9_load_and_save_keep_the_head(tmp_path: Path, shard_bytes: int | None) -> None:
    save_tiny(tmp_path / "a", quantise=True)
    first = open_checkpoint(tmp_path / "a")
    save_checkpoint(tmp_path / "b", first.config, first, quantise=False, shard_bytes=shard_bytes)
    before = load_file(tmp_path / "a" / "model.safetensors")
    after: dict[str, Tensor] = {}
    for path in (tmp_path / "b").glob("*.safetensors"):
        after |= load_file(path)
    assert before.keys() == after.keys() and any(name.startswith("mtp.") for name in after)
    for name, tensor in before.items():
        assert tensor.dtype == after[name].dtype
        assert torch.equal(tensor.view(torch.uint8), after[name].view(torch.uint8)), name


def test_b9_quantising_keeps_the_head(tmp_path: Path) -> None:
    config = save_tiny(tmp_path / "a")
    first = open_checkpoint(tmp_path / "a")
    pairs = ((name, stored.data) for name, stored in first.items())
    save_checkpoint(tmp_path / "b", config, pairs, quantise=True)
    second = open_checkpoint(tmp_path / "b")
    assert second.names == first.names and second.head == "mtp" and second.warnings == ()


def test_b9_a_head_is_never_dropped_silently(tmp_path: Path) -> None:
    config = save_tiny(tmp_path / "a")
    trunk = {n: stored for n, stored in open_checkpoint(tmp_path / "a").items() if not n.startswith(HEAD)}
    with pytest.raises(CheckpointError, match=r"mtp\.0\."):
        save_checkpoint(tmp_path / "b", config, trunk, quantise=False)
