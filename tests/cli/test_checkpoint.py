"""Which checkpoint is taken: named, from the variable, or the shipped one."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.cli import checkpoint
from outrider.errors import CheckpointError


def folder(place: Path) -> Path:
    place.mkdir(parents=True)
    (place / "config.json").write_text("{}")
    return place


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(checkpoint.VARIABLE, raising=False)


def test_named_wins_over_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(checkpoint.VARIABLE, str(folder(tmp_path / "variable")))
    named = folder(tmp_path / "named")
    assert checkpoint.find_checkpoint(named) == named
    assert checkpoint.find_checkpoint(None) == tmp_path / "variable"


def test_the_shipped_one_is_found_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = folder(tmp_path / "models" / "tiny")
    monkeypatch.chdir(tmp_path)
    assert checkpoint.find_checkpoint(None) == shipped


def test_one_place_is_the_checkout_of_this_code() -> None:
    assert Path(__file__).parents[2] / "models" / "tiny" in checkpoint.shipped_places()


def test_none_at_all_says_how_to_name_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "shipped_places", lambda: [tmp_path / "models" / "tiny"])
    with pytest.raises(CheckpointError, match=r"Name a folder with --checkpoint, or in OUTRIDER_CHECKPOINT\."):
        checkpoint.find_checkpoint(None)
