"""Opening a checkpoint: the golden folders, the audit's every complaint, heads lost and half lost, laziness."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.errors import CheckpointError, ConfigError, OutriderError, UnsupportedError
from outrider.quant import fp4, fp8
from outrider.weights import expected_tensors, open_checkpoint, save_checkpoint
from tests.support.checkpoints import edit_config, edit_tensors, random_tensors, save_tiny, tiny_config

GOLDEN = Path(__file__).parents[1] / "golden"
Edit = Callable[[dict[str, Tensor]], object]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "tiny"
    save_tiny(folder, quantise=True)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A quantised tiny checkpoint of one's own."""
    return Path(shutil.copytree(saved, tmp_path / "tiny"))


def refused(folder: Path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(folder)
    return caught.value


# --- what is good ----------------------------------------------------------------------------------------------------


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


# --- files -----------------------------------------------------------------------------------------------------------


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


# --- tensors ---------------------------------------------------------------------------------------------------------


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


# --- the draft head --------------------------------------------------------------------------------------------------


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


# --- fused experts ---------------------------------------------------------------------------------------------------


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


# --- laziness --------------------------------------------------------------------------------------------------------


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


# --- mutations -------------------------------------------------------------------------------------------------------


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


def test_formats_of_the_fixture(folder: Path) -> None:
    """The edits above mean what they say: this checkpoint has FP8 linears and FP4 experts of these shapes."""
    checkpoint = open_checkpoint(folder)
    linear, expert = checkpoint["layers.0.attn.wq_b.weight"], checkpoint["layers.1.ffn.experts.1.w3.weight"]
    assert linear.scale is not None and tuple(linear.scale.shape) == fp8.scale_shape(linear.shape)
    assert expert.scale is not None and tuple(expert.scale.shape) == fp4.scale_shape(expert.shape)
