"""Opening a checkpoint: what is given out, the draft head there, lost or half lost, and laziness."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from outrider.errors import CheckpointError, ConfigError, UnsupportedError
from outrider.weights import expected_tensors, open_checkpoint, save_checkpoint
from tests.support.checkpoints import edit_config, edit_tensors, random_tensors, tiny_config

GOLDEN = Path(__file__).parents[1] / "golden"
Edit = Callable[[dict[str, Tensor]], object]


def refused(folder: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    return caught.value


@pytest.mark.parametrize("name", ["a1-plain", "a1-quant", "a2-plain", "a2-quant"])
def test_golden_folders_open_and_every_byte_is_given_out(name: str) -> None:
    checkpoint = open_checkpoint(GOLDEN / name)
    raw = load_file(GOLDEN / name / "model.safetensors")
    assert (checkpoint.head, checkpoint.mtp_blocks, checkpoint.warnings, checkpoint.ignored) == ("mtp", 1, (), ())
    assert set(checkpoint) == {key for key in raw if not key.endswith(".scale")} == set(checkpoint.names)
    for key, tensor in checkpoint.items():
        assert torch.equal(tensor.data.view(torch.uint8), raw.pop(key).view(torch.uint8)), key
        if tensor.scale is not None:
            scale = raw.pop(key.removesuffix("weight") + "scale")
            assert torch.equal(tensor.scale.view(torch.uint8), scale.view(torch.uint8)), key
    assert not raw
    assert checkpoint.stored_bytes == sum(t.nbytes for t in load_file(GOLDEN / name / "model.safetensors").values())


def test_formats_follow_the_tensors() -> None:
    checkpoint = open_checkpoint(GOLDEN / "a1-quant")
    formats = {name: checkpoint[name].format for name in checkpoint}
    kinds = expected_tensors(checkpoint.config, 1)
    wanted = {"linear": "fp8", "expert": "fp4"}
    assert formats == {name: wanted.get(want.kind, "plain") for name, want in kinds.items()}


def test_mapping(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    assert "embed.weight" in checkpoint and "nothing" not in checkpoint and 3 not in checkpoint
    assert len(checkpoint) == len(list(checkpoint)) == len(checkpoint.names)
    with pytest.raises(KeyError):
        checkpoint["nothing"]


def test_scales_as_raw_bytes_and_packed_values_as_uint8(folder: Path) -> None:
    before = {name: stored.dequantise() for name, stored in open_checkpoint(folder).items()}

    def as_bytes(tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            if tensor.dtype in (torch.float8_e8m0fnu, torch.int8):
                tensors[name] = tensor.view(torch.uint8)

    edit_tensors(folder, as_bytes)
    after = open_checkpoint(folder)
    assert all(torch.equal(after[name].dequantise(), values) for name, values in before.items())


def test_float32_scales_of_fp4(folder: Path) -> None:
    name = "layers.1.ffn.experts.2.w2"
    before = open_checkpoint(folder)[f"{name}.weight"].dequantise()
    edit_tensors(folder, lambda t: t.update({f"{name}.scale": t[f"{name}.scale"].float() * 1.5}))
    assert torch.equal(open_checkpoint(folder)[f"{name}.weight"].dequantise(), before * 1.5)


def test_quantised_tensors_without_a_quantization_config(folder: Path) -> None:
    edit_config(folder, quantization_config=None)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.config.quantised
    assert len(checkpoint.warnings) == 1 and "quantization_config" in checkpoint.warnings[0]


def drop_head(tensors: dict[str, Tensor]) -> None:
    for name in [name for name in tensors if name.startswith("mtp.")]:
        del tensors[name]


def test_copies_of_embed_and_head_are_ignored_and_named(folder: Path) -> None:
    copies = {"mtp.0.embed.weight": torch.zeros(2), "mtp.0.head.weight": torch.zeros(3)}
    edit_tensors(folder, lambda t: t.update(copies))
    checkpoint = open_checkpoint(folder)
    assert sorted(checkpoint.ignored) == sorted(copies) and checkpoint.warnings == ()
    edit_tensors(folder, lambda t: (drop_head(t), t.update(copies)))
    assert open_checkpoint(folder).head == "none"


@pytest.mark.parametrize("ratios", [[0, 4, 128, 4], [0, 4, 128, 4, 0], [0, 4, 128, 4, 0, 0, 0]])
def test_lost_head_runs_undrafted_with_one_warning(folder: Path, ratios: list[int]) -> None:
    edit_tensors(folder, drop_head)
    edit_config(folder, compress_ratios=ratios)
    checkpoint = open_checkpoint(folder)
    assert (checkpoint.head, checkpoint.mtp_blocks, checkpoint.config.mtp_layers) == ("none", 0, ())
    assert len(checkpoint.warnings) == 1 and "undrafted" in checkpoint.warnings[0]
    assert not any(name.startswith("mtp.") for name in checkpoint)
    with pytest.raises(CheckpointError, match="no draft head"):
        checkpoint.require_head()


def test_a_checkpoint_that_promises_no_head(folder: Path) -> None:
    edit_tensors(folder, drop_head)
    edit_config(folder, compress_ratios=[0, 4, 128, 4], num_nextn_predict_layers=0)
    assert open_checkpoint(folder).warnings == ()


def test_head_with_its_config_entry_missing(folder: Path) -> None:
    edit_config(folder, compress_ratios=[0, 4, 128, 4])
    with pytest.raises(ConfigError) as caught:
        open_checkpoint(folder)
    assert caught.value.key == "compress_ratios"


def test_blocks_not_numbered_from_zero(folder: Path) -> None:
    edit_tensors(folder, lambda t: [t.update({n.replace("mtp.0", "mtp.1"): t.pop(n)}) for n in list(t) if "mtp.0" in n])
    assert "mtp.1" in str(refused(folder))


@pytest.fixture
def dspark(folder: Path) -> Path:
    """The trunk with three blocks of a DSpark drafter instead of the head."""
    edit_tensors(folder, drop_head)
    new = {f"mtp.{i}.attn_norm.weight": torch.ones(64) for i in range(3)}
    edit_tensors(folder, lambda t: t.update(new | {"mtp.0.main_proj.weight": torch.zeros(64, 192)}))
    edit_config(folder, compress_ratios=[0, 4, 128, 4, 0, 0, 0], dspark_block_size=5)
    return folder


def test_dspark_runs_undrafted_with_one_warning(dspark: Path) -> None:
    checkpoint = open_checkpoint(dspark)
    assert (checkpoint.head, checkpoint.mtp_blocks, len(checkpoint.ignored)) == ("dspark", 3, 4)
    assert len(checkpoint.warnings) == 1 and "DSpark" in checkpoint.warnings[0]
    with pytest.raises(UnsupportedError, match="DSpark"):
        checkpoint.require_head()


def test_dspark_known_by_its_config_alone(dspark: Path) -> None:
    edit_tensors(dspark, lambda t: t.pop("mtp.0.main_proj.weight"))
    assert open_checkpoint(dspark).head == "dspark"


def test_head_that_is_there_passes(folder: Path) -> None:
    open_checkpoint(folder).require_head()


def test_reading_takes_the_memory_of_one_tensor(tmp_path: Path) -> None:
    config = tiny_config(hca_ratio=128, vocab_size=20_000, num_hash_layers=0)
    save_checkpoint(tmp_path / "big", config, random_tensors(config, 0), quantise=False)
    tracemalloc.start()
    checkpoint = open_checkpoint(tmp_path / "big")
    opened = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    largest = 0
    for name in checkpoint:
        largest = max(largest, checkpoint[name].data.nbytes)
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    assert largest == 20_000 * 64 * 2 and checkpoint.stored_bytes > 2 * largest
    assert opened < 1_000_000, "opening reads no weights"
    assert largest <= peak < largest + 200_000


def test_a_tensor_can_be_read_again_and_is_ones_own(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    first = checkpoint["norm.weight"].data
    before = first.clone()
    first.zero_()
    assert torch.equal(checkpoint["norm.weight"].data, before)
