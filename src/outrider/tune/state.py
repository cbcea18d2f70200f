"""The file that an interrupted run continues from: written whole, then put in place of the old one."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import torch

from outrider.errors import ConfigError


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Write ``state`` (tensors, numbers, strings, lists, dicts) atomically: a crash leaves the old file or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    torch.save(state, part)
    os.replace(part, path)


def load_state(path: Path) -> dict[str, Any]:
    """Read what ``save_state`` wrote. Raises ConfigError where there is none, or it can't be read."""
    if not path.is_file():
        raise ConfigError(f"there is no training state at {path}.", key="resume", hint="Begin a new run.")
    try:
        return torch.load(path, weights_only=True)
    except (RuntimeError, EOFError, OSError, ValueError, pickle.UnpicklingError) as error:
        raise ConfigError(
            f"the training state {path} can't be read ({type(error).__name__}).",
            key="resume",
            hint="Start the run afresh.",
        ) from error
