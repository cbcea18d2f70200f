"""One safetensors file: its header is read and checked at once, its tensors one by one when they are asked for.

The format: 8 bytes, the header's length N (little endian); N bytes of JSON, name → dtype, shape, data_offsets; data.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from outrider.errors import CheckpointError

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
MAX_HEADER = 100_000_000  # the format's own bound


@dataclass(frozen=True, slots=True)
class Located:
    """Where a tensor lies: bytes [start, stop) of ``path``. ``source`` is the name it has there."""

    path: Path
    source: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return self.stop - self.start

    def read(self) -> Tensor:
        """The tensor, read from disk into memory of its own. Raises CheckpointError if the bytes are gone."""
        buffer = np.empty(self.nbytes, dtype=np.uint8)
        try:
            with self.path.open("rb") as file:
                file.seek(self.start)
                count = file.readinto(buffer.data)
        except OSError as error:
            raise CheckpointError(f"Can't read {self.path}: {error.strerror}.", tensor=self.source) from error
        if count != self.nbytes:
            raise CheckpointError(f"{self.path} became shorter while it was in use.", tensor=self.source)
        return torch.from_numpy(buffer).view(self.dtype).reshape(self.shape)

    def rows(self, item: int, first: int, last: int) -> Located:
        """Rows [first, last) of ``self[item]``, for a tensor of three dims: contiguous on disk."""
        _, high, wide = self.shape
        row = wide * self.dtype.itemsize
        start = self.start + (item * high + first) * row
        shape = (last - first, wide)
        return Located(self.path, f"{self.source}[{item}]", self.dtype, shape, start, start + (last - first) * row)


def read_header(path: Path) -> dict[str, Located]:
    """Every tensor of a safetensors file by the name it has there.

    Raises CheckpointError where the file is missing, truncated, or its header is no such header.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, MAX_HEADER):
                _damaged(path, f"it has {size} bytes, fewer than its header needs")
            text = file.read(length)
    except OSError as error:
        raise CheckpointError(f"Can't read {path}: {error.strerror}.") from error
    entries = _parse(path, text)
    located = {name: _locate(path, name, entry, 8 + length) for name, entry in entries.items()}
    _check_cover(path, list(located.values()), 8 + length, size)
    return located


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text, object_pairs_hook=lambda pairs: _no_twice(path, pairs))
    except (ValueError, RecursionError):
        _damaged(path, "its header isn't valid JSON")
    if not isinstance(header, dict):
        _damaged(path, "its header isn't an object")
    return {name: entry for name, entry in header.items() if name != "__metadata__"}


def _no_twice(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise CheckpointError(f"{path} holds {twice} twice.", tensor=twice)
    return result


def _locate(path: Path, name: str, entry: Any, base: int) -> Located:
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(start), int(stop)]}:
            pass
        case _:
            _damaged(path, f"its header entry for {name} lacks dtype, shape or offsets", name)
    if dtype not in DTYPES:
        _damaged(path, f"tensor {name} has dtype {dtype}, expected one of {', '.join(DTYPES)}", name)
    if not all(type(size) is int and size >= 0 for size in shape):
        _damaged(path, f"tensor {name} has shape {shape}", name)
    located = Located(path, name, DTYPES[dtype], tuple(shape), base + start, base + stop)
    if start < 0 or located.nbytes != math.prod(shape) * located.dtype.itemsize:
        _damaged(path, f"tensor {name} of shape {shape} and dtype {dtype} has {located.nbytes} bytes", name)
    return located


def _check_cover(path: Path, tensors: list[Located], base: int, size: int) -> None:
    """Tensors lie one behind the other and fill the file: so a cut or a patched file can't go unseen."""
    end = base
    for tensor in sorted(tensors, key=lambda t: (t.start, t.stop)):
        if tensor.start != end:
            _damaged(path, f"tensor {tensor.source} starts at byte {tensor.start}, expected {end}", tensor.source)
        end = tensor.stop
        if end > size:
            _damaged(path, f"it has {size} bytes, but tensor {tensor.source} ends at {end}", tensor.source)
    if end != size:
        _damaged(path, f"it has {size} bytes, but its tensors end at {end}")


def _damaged(path: Path, what: str, tensor: str = "") -> NoReturn:
    raise CheckpointError(f"{path} is damaged: {what}.", tensor=tensor, hint="Download or convert it again.")
