"""Training text: the Python standard library's own source (PSF licence), or a folder of ``.py`` files given instead.

Whole files are held out, chosen by a hash of their path, so that no window of the training stream can hold any of
their text. Everything is a pure function of the files found and a seed: two runs see the same windows in one order.
"""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from outrider.errors import ConfigError
from outrider.tune.tokenizer_training import BOS_ID, EOS_ID

HELD_OUT_FILES = 28
SMALLEST_HELD_OUT = 4_000
"""Characters: a shorter file has no room for a prompt of 256 tokens and what follows it."""

EXCLUDED_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "encodings", "pydoc_data"}
)
"""Tests, other people's packages, and what isn't code to learn from: character tables and a text of help pages."""


@dataclass(frozen=True)
class SourceFile:
    """One text with its path relative to the data root (posix spelling)."""

    path: str
    text: str


@dataclass(frozen=True)
class Split:
    """Training and held-out files, each sorted by path; no file is in both."""

    train: tuple[SourceFile, ...]
    held_out: tuple[SourceFile, ...]

    def digest(self) -> str:
        """sha256 over paths and texts of both halves: what a resumed run compares with the one it continues."""
        state = hashlib.sha256()
        for part in (self.train, self.held_out):
            for file in part:
                state.update(file.path.encode() + b"\0" + file.text.encode() + b"\0")
            state.update(b"\1")
        return state.hexdigest()


def standard_library() -> Path:
    """The folder of the running interpreter's own library."""
    return Path(sysconfig.get_path("stdlib"))


def read_files(root: Path) -> list[SourceFile]:
    """All ``.py`` files below ``root`` that are UTF-8 text, without ``EXCLUDED_FOLDERS`` and generated build data."""
    found = []
    for path in sorted(root.rglob("*.py"), key=lambda p: p.relative_to(root).as_posix()):
        relative = path.relative_to(root)
        if EXCLUDED_FOLDERS.intersection(relative.parts[:-1]) or path.name.startswith("_sysconfigdata"):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if text.strip():
            found.append(SourceFile(relative.as_posix(), text.replace("\r\n", "\n")))
    return found


def split_files(files: list[SourceFile], held_out: int = HELD_OUT_FILES) -> Split:
    """Hold out the ``held_out`` files whose path hashes lowest among those long enough.

    Raises ConfigError where fewer than twice that many files could serve.
    """
    long_enough = [file for file in files if len(file.text) >= SMALLEST_HELD_OUT]
    if len(long_enough) < 2 * held_out:
        raise ConfigError(
            f"the training data has {len(long_enough)} .py files of at least {SMALLEST_HELD_OUT} characters, "
            f"and at least {2 * held_out} are needed to hold out {held_out}.",
            key="data",
            hint="Give a folder with more source text.",
        )
    by_hash = sorted(long_enough, key=lambda file: hashlib.sha256(file.path.encode()).digest())
    chosen = {file.path for file in by_hash[:held_out]}
    return Split(
        train=tuple(file for file in files if file.path not in chosen),
        held_out=tuple(file for file in files if file.path in chosen),
    )


def encode_stream(tokenizer: Tokenizer, files: tuple[SourceFile, ...]) -> np.ndarray:
    """All files one after the other as one uint16 array of token ids."""
    encoded = tokenizer.encode_batch([file.text for file in files], add_special_tokens=False)
    parts = [np.array([BOS_ID, *item.ids, EOS_ID], dtype=np.uint16) for item in encoded]
    return np.concatenate(parts)


def epoch_starts(stream_length: int, window: int, seed: int, epoch: int) -> np.ndarray:
    """Start positions of the windows of one epoch: back to back from a random offset, in random order."""
    rng = np.random.default_rng([seed, epoch])
    offset = int(rng.integers(0, window))
    starts = np.arange(offset, stream_length - window, window)
    rng.shuffle(starts)
    return starts


def spaced_windows(stream: np.ndarray, window: int, count: int) -> Tensor:
    """``count`` evenly spaced windows of a stream, ``[count, window]`` int64: always the same ones, to measure on."""
    starts = np.linspace(0, stream.shape[0] - window, count).astype(int)
    return torch.from_numpy(np.stack([stream[s : s + window] for s in starts]).astype(np.int64))


def batch_windows(stream: np.ndarray, window: int, batch: int, seed: int, step: int) -> Tensor:
    """The token ids ``[batch, window]`` (int64) of training step ``step``: a pure function, so a resumed run needs
    nothing but the step number. An epoch's remainder that doesn't fill a batch is dropped.

    Raises ConfigError where the stream is too short for one batch.
    """
    per_epoch = (stream.shape[0] - 2 * window) // window // batch
    if per_epoch < 1:
        raise ConfigError(
            f"the training text has {stream.shape[0]} tokens; a step of {batch} windows needs {(batch + 2) * window}.",
            key="data",
            hint="Give more text, or a smaller batch.",
        )
    epoch, index = divmod(step, per_epoch)
    starts = epoch_starts(stream.shape[0], window, seed, epoch)[index * batch : (index + 1) * batch]
    return torch.from_numpy(np.stack([stream[s : s + window] for s in starts]).astype(np.int64))
