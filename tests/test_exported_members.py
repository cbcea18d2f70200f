"""The public names, pinned: adding or losing one is a decision, not an accident."""

from __future__ import annotations

import subprocess
import sys

import pytest

import outrider

NAMES = [
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


def test_exported_names_are_these() -> None:
    assert sorted(outrider.__all__) == NAMES
    assert dir(outrider) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_name_is_there(name: str) -> None:
    assert getattr(outrider, name) is not None


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing_of_the_kind'"):
        _ = outrider.nothing_of_the_kind


def test_importing_doesnt_wait_for_torch() -> None:
    code = "import sys, outrider, outrider.cli.main; sys.exit('torch' in sys.modules or 'rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
