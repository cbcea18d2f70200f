"""Files and fused experts: an index with its shards, and what is missing, doubled or misplaced."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.errors import CheckpointError, ConfigError
from outrider.weights import open_checkpoint, save_checkpoint
from tests.support.checkpoints import edit_tensors, random_tensors, tiny_config

GOLDEN = Path(__file__).parents[1] / "golden"
Edit = Callable[[dict[str, Tensor]], object]


def refused(folder: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    return caught.value


def test_path_that_is_no_checkpoint(tmp_path: Path) -> None:
    assert "doesn't exist" in str(refused(tmp_path / "none"))
    assert "holds neither" in str(refused(tmp_path))
    (tmp_path / "file").write_text("x")
    assert "isn't a folder" in str(refused(tmp_path / "file"))


def test_missing_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(ConfigError, match=r"config\.json"):
        open_checkpoint(folder)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    config = tiny_config(hca_ratio=128)
    save_checkpoint(tmp_path / "s", config, random_tensors(config, 0), quantise=False, shard_bytes=200_000)
    return tmp_path / "s"


def shard(folder: Path, number: int = 2) -> Path:
    return sorted(folder.glob("model-*.safetensors"))[number - 1]


def edit_index(folder: Path, edit: Callable[[dict[str, str]], object]) -> None:
    path = folder / "model.safetensors.index.json"
    raw = json.loads(path.read_text())
    edit(raw["weight_map"])
    path.write_text(json.dumps(raw))


def test_shards_hold_the_same_as_one_file(sharded: Path, tmp_path: Path) -> None:
    config = tiny_config(hca_ratio=128)
    save_checkpoint(tmp_path / "one", config, random_tensors(config, 0), quantise=False)
    one, many = open_checkpoint(tmp_path / "one"), open_checkpoint(sharded)
    assert len(list(sharded.glob("model-*.safetensors"))) > 3
    assert one.names == many.names and one.config == many.config
    assert all(torch.equal(one[name].data, many[name].data) for name in one)


def test_missing_shard(sharded: Path) -> None:
    shard(sharded).unlink()
    error = refused(sharded)
    assert "-00002-of-" in str(error) and "is missing" in str(error) and error.tensor


def test_index_naming_a_tensor_that_its_shard_lacks(sharded: Path) -> None:
    edit_index(sharded, lambda weights: weights.update({"embed.weight": shard(sharded).name}))
    error = refused(sharded)
    assert error.tensor == "embed.weight" and "embed.weight" in str(error)


def test_shard_with_a_tensor_that_the_index_lacks(sharded: Path) -> None:
    edit_index(sharded, lambda weights: weights.pop("embed.weight"))
    assert "doesn't list it" in str(refused(sharded))


def test_tensor_in_two_shards(sharded: Path) -> None:
    path = shard(sharded, 3)
    save_file(load_file(path) | {"embed.weight": torch.zeros(64, 64)}, path)
    error = refused(sharded)
    assert error.tensor == "embed.weight" and "places it in" in str(error)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "valid JSON"),
        ("[]", "weight_map"),
        ('{"weight_map": {}}', "weight_map"),
        ('{"weight_map": {"a": 3}}', "places a in 3"),
        ('{"weight_map": {"a": "../b"}}', "places a in"),
    ],
)
def test_bad_index(sharded: Path, text: str, what: str) -> None:
    (sharded / "model.safetensors.index.json").write_text(text)
    assert what in str(refused(sharded))


def test_index_beside_a_single_file(sharded: Path) -> None:
    shutil.copy(shard(sharded), sharded / "model.safetensors")
    assert "both" in str(refused(sharded))


def fuse(tensors: dict[str, Tensor]) -> None:
    """Fuse the experts of layer 1 as transformers names and stacks them."""
    for leaf, suffix in (("weight", ""), ("scale", "_scale_inv")):
        raw = {w: [tensors.pop(f"layers.1.ffn.experts.{e}.{w}.{leaf}") for e in range(4)] for w in ("w1", "w2", "w3")}
        dtype = raw["w1"][0].dtype
        as_bytes = {w: torch.stack([tensor.view(torch.uint8) for tensor in parts]) for w, parts in raw.items()}
        gate_up = torch.cat([as_bytes["w1"], as_bytes["w3"]], 1)
        tensors[f"model.layers.1.mlp.experts.gate_up_proj{suffix}"] = gate_up.view(dtype)
        tensors[f"model.layers.1.mlp.experts.down_proj{suffix}"] = as_bytes["w2"].view(dtype)


@pytest.mark.parametrize(("dtype", "inner"), [("fp4", 32), ("fp4", 96), ("fp8", 128), ("fp8", 256)])
def test_fused_quantised_experts(tmp_path: Path, dtype: str, inner: int) -> None:
    config = tiny_config(hca_ratio=128, quantised=True, expert_dtype=dtype, moe_intermediate_size=inner)
    save_checkpoint(tmp_path / "x", config, random_tensors(config, 0), quantise=True)
    before = {name: stored.dequantise() for name, stored in open_checkpoint(tmp_path / "x").items()}
    edit_tensors(tmp_path / "x", fuse)
    fused = open_checkpoint(tmp_path / "x")
    assert fused.names == tuple(before)
    assert all(torch.equal(fused[name].dequantise(), values) for name, values in before.items())


def test_fused_scales_shared_by_two_matrices_are_refused(tmp_path: Path) -> None:
    """With 200 rows each, the second 128-row block would be w1's end and w3's start."""
    config = tiny_config(hca_ratio=128, quantised=True, expert_dtype="fp8", moe_intermediate_size=200)
    save_checkpoint(tmp_path / "x", config, random_tensors(config, 0), quantise=True)
    edit_tensors(tmp_path / "x", fuse)
    error = refused(tmp_path / "x")
    assert "gate_up_proj_scale_inv" in error.tensor and "as many rows" in str(error)


@pytest.mark.parametrize("shape", [(4, 64), (4, 63, 64), (0, 64, 64)])
def test_fused_experts_of_wrong_shape(folder: Path, shape: tuple[int, ...]) -> None:
    edit_tensors(folder, lambda t: t.update({"layers.1.mlp.experts.gate_up_proj": torch.zeros(shape)}))
    assert refused(folder).tensor == "layers.1.mlp.experts.gate_up_proj"


def test_fused_and_single_experts_together(folder: Path) -> None:
    edit_tensors(folder, lambda t: t.update({"layers.1.mlp.experts.down_proj": torch.zeros(4, 64, 32)}))
    assert "twice" in str(refused(folder))
