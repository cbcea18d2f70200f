"""One safetensors file: what is read, and that any damage is one clear error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from outrider.errors import CheckpointError
from outrider.weights.shard import read_header

TENSORS = {
    "a": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "b": torch.arange(4, dtype=torch.int64),
    "c": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "d": torch.tensor([[0.5, 448.0]]).to(torch.float8_e4m3fn),
    "e": torch.tensor([127, 130], dtype=torch.uint8).view(torch.float8_e8m0fnu),
    "f": torch.arange(24, dtype=torch.float16).reshape(2, 4, 3),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_file(TENSORS, tmp_path / "x.safetensors", metadata={"format": "pt"})
    return tmp_path / "x.safetensors"


def write(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes


def test_reads_what_the_library_writes(file: Path) -> None:
    found = read_header(file)
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        read = found[name].read()
        assert read.dtype == tensor.dtype and read.shape == tensor.shape
        assert torch.equal(read.view(torch.uint8), tensor.view(torch.uint8))


def test_rows_of_one_item(file: Path) -> None:
    located = read_header(file)["f"]
    assert torch.equal(located.rows(1, 1, 3).read(), TENSORS["f"][1, 1:3])


@pytest.mark.parametrize(
    ("header", "data", "what"),
    [
        (b"{", b"", "valid JSON"),
        (b"\xff\xff", b"", "valid JSON"),
        ([], b"", "isn't an object"),
        ({"w": []}, b"", "lacks dtype"),
        ({"w": {"dtype": "F32"}}, b"", "lacks dtype"),
        ({"w": entry(dtype="F4")}, bytes(8), "dtype F4"),
        ({"w": entry(shape=[3])}, bytes(8), r"shape \[3\]"),
        ({"w": entry(shape=[-2])}, bytes(8), r"shape \[-2\]"),
        ({"w": entry(shape=["2"])}, bytes(8), "shape"),
        ({"w": entry(data_offsets=[8, 0])}, bytes(8), "bytes"),
        ({"w": entry(data_offsets=[-8, 0])}, bytes(8), "bytes"),
        ({"w": entry()}, bytes(7), "has .* bytes, but tensor w ends"),
        ({"w": entry()}, bytes(9), "tensors end at"),
        ({"w": entry(), "v": entry()}, bytes(8), "starts at"),
        ({"w": entry(data_offsets=[4, 12])}, bytes(12), "starts at"),
        (b'{"w": {"dtype": "F32"}, "w": {"dtype": "F32"}}', b"", "holds w twice"),
    ],
)
def test_damage_is_named(tmp_path: Path, header: Any, data: bytes, what: str) -> None:
    with pytest.raises(CheckpointError, match=what) as caught:
        read_header(write(tmp_path / "x.safetensors", header, data))
    assert "x.safetensors" in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b"1234567", (10**12).to_bytes(8, "little"), (3).to_bytes(8, "little") + b"{}"]
)
def test_header_longer_than_the_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match="fewer than its header needs"):
        read_header(tmp_path / "x.safetensors")


def test_a_file_that_shrinks_or_goes_away_while_in_use(file: Path) -> None:
    last = max(read_header(file).values(), key=lambda located: located.stop)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="became shorter"):
        last.read()
    file.unlink()
    with pytest.raises(CheckpointError, match="Can't read"):
        last.read()
    with pytest.raises(CheckpointError, match="Can't read"):
        read_header(file)


@given(cut=st.floats(0, 1, exclude_max=True))
def test_every_truncation_is_an_error(tmp_path_factory: pytest.TempPathFactory, cut: float) -> None:
    path = tmp_path_factory.mktemp("cut") / "x.safetensors"
    save_file(TENSORS, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(cut * len(whole))])
    with pytest.raises(CheckpointError):
        read_header(path)


@given(at=st.floats(0, 1, exclude_max=True), value=st.binary(min_size=1, max_size=4))
def test_overwritten_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, at: float, value: bytes
) -> None:
    path = tmp_path_factory.mktemp("patch") / "x.safetensors"
    save_file(TENSORS, path)
    whole = bytearray(path.read_bytes())
    place = int(at * len(whole))
    whole[place : place + len(value)] = value
    path.write_bytes(whole)
    try:
        for located in read_header(path).values():
            located.read()
    except CheckpointError:
        pass
