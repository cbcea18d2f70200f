"""A quantised tiny checkpoint for each test to damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.checkpoints import save_tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """FP8 linears, FP4 experts, one MTP block, in one file."""
    save_tiny(tmp_path / "tiny", quantise=True)
    return tmp_path / "tiny"
