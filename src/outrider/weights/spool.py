"""Writing one safetensors file from tensors that come one at a time."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO

import torch
from torch import Tensor

from outrider.weights.shard import DTYPES

CODES = {dtype: code for code, dtype in DTYPES.items()}
WIDTHS = (8, 4, 2, 1)


class Spool:
    """Collects tensors on disk, apart by the width of their elements, until ``finish`` joins them behind a header.

    Wide elements go first and the header's length is a multiple of 8: so every tensor of the file is aligned, which
    other readers rely on, while memory holds one tensor.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[int, IO[bytes]] = {}
        self._entries: dict[int, list[tuple[str, Tensor]]] = {width: [] for width in WIDTHS}
        self.nbytes = 0

    def __enter__(self) -> Spool:
        with ExitStack() as stack:
            for width in WIDTHS:
                self._files[width] = stack.enter_context(tempfile.TemporaryFile(dir=self._folder))
            self._close = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._close.close()

    def add(self, name: str, tensor: Tensor) -> None:
        """Append one tensor; its memory isn't held on to."""
        width = tensor.dtype.itemsize
        flat = tensor.cpu().contiguous().reshape(-1)
        self._files[width].write(flat.view(torch.uint8).numpy().data)
        self._entries[width].append((name, torch.empty_like(tensor, device="meta")))
        self.nbytes += tensor.nbytes

    def finish(self, path: Path) -> list[str]:
        """Write all tensors since the last call to ``path``; returns their names."""
        header, names = self._header()
        with path.open("wb") as out:
            out.write(len(header).to_bytes(8, "little") + header)
            for file in self._files.values():
                file.seek(0)
                shutil.copyfileobj(file, out)
                file.seek(0)
                file.truncate()
            out.flush()
            os.fsync(out.fileno())
        self._entries = {width: [] for width in WIDTHS}
        self.nbytes = 0
        return names

    def _header(self) -> tuple[bytes, list[str]]:
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        at = 0
        for name, meta in [entry for width in WIDTHS for entry in self._entries[width]]:
            offsets = [at, at + meta.nbytes]
            header[name] = {"dtype": CODES[meta.dtype], "shape": list(meta.shape), "data_offsets": offsets}
            at = offsets[1]
        text = json.dumps(header, separators=(",", ":")).encode()
        return text + b" " * (-len(text) % 8), [name for name in header if name != "__metadata__"]
