"""``outrider demo``: what it shows is true, and it fails when the promise doesn't hold."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import outrider
from outrider import Engine
from outrider.cli.demo import promise, same, speed
from outrider.cli.demo.job import first_difference, hash_of
from tests.cli.conftest import Cli


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A demo of a few tokens."""
    monkeypatch.setattr(same, "TOKENS", 12)
    monkeypatch.setattr(promise, "TOKENS", 6)
    monkeypatch.setattr(promise, "LONGEST_DRAFT", 2)
    monkeypatch.setattr(promise, "CHUNKS", (16,))
    monkeypatch.setattr(speed, "TOKENS", 12)
    monkeypatch.setattr(speed, "PROMPTS", speed.PROMPTS[:2])


def test_shows_all_three_parts(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    picture = tmp_path / "demo.svg"
    ran = cli("demo", "-c", str(tiny), "--svg", str(picture))
    assert ran.status == 0
    assert ran.err == ""
    for line in ("1  The same text", "✓ the same 12 tokens", "k = 0, plain", "✓ the promise holds: one hash, every"):
        assert line in ran.out
    for line in ("3  Acceptance and speed", "accepted at position 1", "committed tokens a step", "drafted, k = 3"):
        assert line in ran.out
    assert "‹token›  correction" in ran.out
    assert "The&#160;same&#160;text" in picture.read_text()


def test_json_says_the_same(cli: Cli, tiny: Path) -> None:
    ran = cli("demo", "-c", str(tiny), "--json", "--seed", "11", "--prompt", "hello", "--temperature", "0")
    said = json.loads(ran.out)
    assert ran.status == 0
    assert said["ok"] is True
    assert said["same_text"]["same"] is True
    assert [run["largest_delta"] for run in said["promise"]["runs"]] == [0] * 6
    assert len({run["hash"] for run in said["promise"]["runs"]}) == 1
    assert said["speed"]["tokens"] == 24
    with outrider.load(tiny, draft="none") as engine:
        assert said["same_text"]["text"] == engine.generate("hello", max_tokens=12, temperature=0.0).text


def broken_verifier(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on every engine that drafts commits its drafts unchecked."""
    load = outrider.load

    def unchecked(*arguments: Any, **options: Any) -> Engine:
        return load(*arguments, **{**options, "_verifier": "everything"})

    monkeypatch.setattr(outrider, "load", unchecked)


def test_a_broken_promise_ends_with_1(cli: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken_verifier(monkeypatch)
    ran = cli("demo", "-c", str(tiny))
    assert ran.status == 1
    assert "✗ the texts part at token " in ran.out
    assert "✗ the promise is broken: other tokens at k = 1; k = 2" in ran.out
    assert json.loads(cli("demo", "-c", str(tiny), "--json").out)["ok"] is False


def test_other_logits_under_the_same_tokens_break_it_too(cli: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = promise.largest_delta
    monkeypatch.setattr(promise, "largest_delta", lambda plain, rows: real(plain, rows) + 1e-7)
    ran = cli("demo", "-c", str(tiny))
    assert ran.status == 1
    assert "✗ the promise is broken: logits differ by up to 1e-07" in ran.out


def test_sabotage_shows_where_it_goes_wrong(cli: Cli, tiny: Path) -> None:
    ran = cli("demo", "-c", str(tiny), "--sabotage")
    assert ran.status == 0
    assert "⟪here it goes wrong⟫" in ran.out
    assert "The texts part at token " in ran.out
    said = json.loads(cli("demo", "-c", str(tiny), "--sabotage", "--json").out)
    assert said["first_difference"] is not None
    assert said["plain"] != said["sabotaged"]


def test_deltas_miss_nothing() -> None:
    plain = {3: torch.tensor([1.0, 2.0]), 4: torch.tensor([0.0, 0.0])}
    assert promise.largest_delta(plain, dict(plain)) == 0
    assert promise.largest_delta(plain, plain | {4: torch.tensor([0.0, -0.5])}) == 0.5
    assert promise.largest_delta(plain, {3: plain[3]}) == math.inf
    assert promise.largest_delta(plain, plain | {4: torch.tensor([0.0, math.nan])}) == math.inf


def test_first_repeat_is_the_end_of_the_first_gram_seen_before() -> None:
    assert speed.first_repeat([1, 2, 3, 1, 2, 3, 1], gram=3) == 5
    assert speed.first_repeat([1, 1, 1, 1], gram=3) == 3
    assert speed.first_repeat([1, 2, 3, 4], gram=3) == 4
    assert speed.first_repeat([], gram=3) == 0


def test_first_difference() -> None:
    assert first_difference([1, 2], [1, 2]) is None
    assert first_difference([1, 2], [1, 3]) == 1
    assert first_difference([1, 2], [1]) == 1
    assert hash_of([1, 23]) != hash_of([12, 3])


@pytest.mark.parametrize(
    ("ratio", "words"), [(None, "too short"), (1.5, "1.50 times as fast"), (1.0, "no difference"), (0.7, "is slower")]
)
def test_speed_is_said_as_it_is(ratio: float | None, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed.Speed, "ratio", ratio)
    assert words in speed._sentence(speed.Speed(()))
