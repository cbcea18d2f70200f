"""Outrider: speculative decoding for DeepSeek-V4 that never changes an answer.

Only names are here. What needs PyTorch is imported when it is first asked for, so that ``outrider --help`` and a
program that only handles errors don't wait for it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from outrider.core import Sampling
from outrider.errors import (
    CapacityError,
    CheckpointError,
    ConfigError,
    GrammarError,
    OutriderError,
    OutriderWarning,
    RequestError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from outrider.engine.llm import Engine, Stream
    from outrider.engine.load import load
    from outrider.engine.results import Completion, Piece, Stats

__version__ = "0.1.0"

__all__ = [
    "CapacityError",
    "CheckpointError",
    "Completion",
    "ConfigError",
    "Engine",
    "GrammarError",
    "OutriderError",
    "OutriderWarning",
    "Piece",
    "RequestError",
    "Sampling",
    "Stats",
    "Stream",
    "UnsupportedError",
    "__version__",
    "load",
]

_LAZY = {
    "Completion": "outrider.engine.results",
    "Engine": "outrider.engine.llm",
    "Piece": "outrider.engine.results",
    "Stats": "outrider.engine.results",
    "Stream": "outrider.engine.llm",
    "load": "outrider.engine.load",
}


def __getattr__(name: str) -> object:
    """Import one of the names that need PyTorch, on first use."""
    if name not in _LAZY:
        raise AttributeError(f"module 'outrider' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
