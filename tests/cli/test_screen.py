"""Colours on a terminal, marks elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.cli.screen import LOOKS, Screen, marked


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("self", "‹self›"),
        (" self", " ‹self›"),
        ("x\n    ", "‹x›\n    "),
        ("\n    ", "‹⏎›\n    "),
        ("  ", "‹·›  "),
        ("", "‹›"),
    ],
)
def test_marks_go_round_what_can_be_seen(text: str, shown: str) -> None:
    assert marked(text, "‹", "›") == shown


def test_an_accepted_draft_has_no_mark() -> None:
    assert marked("x", LOOKS["accepted"].before, LOOKS["accepted"].after) == "x"


def shown(capsys: pytest.CaptureFixture[str]) -> str:
    screen = Screen()
    for text, origin in (("a", "accepted"), ("b", "corrected"), ("c", "bonus"), ("d", "target")):
        screen.token(text, origin)
    return capsys.readouterr().out


@pytest.mark.parametrize("variables", [{}, {"FORCE_COLOR": "1", "NO_COLOR": "1"}])
def test_marks_on_a_pipe_and_with_no_color(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert "a‹b›«c»d" in shown(capsys).replace("\x1b[1m", "").replace("\x1b[0m", "")


def test_colours_that_differ_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    out = shown(capsys)
    assert "‹" not in out
    assert "«" not in out
    codes = {out[: out.index(letter)].rpartition("\x1b[")[2] for letter in "abc"}
    assert len(codes) == 3


def test_legend_uses_the_same_marks(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    Screen().legend("accepted", "corrected", "bonus")
    out = capsys.readouterr().out
    assert "  ‹token›  correction" in out
    assert "  «token»  bonus" in out


def test_a_picture_is_written_in_colour(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "out.svg"
    screen = Screen(picture=picture)
    screen.title("Name", "about")
    screen.token("corrected-text", "corrected")
    screen.save_picture("a title")
    svg = picture.read_text()
    assert "corrected-text" in svg
    assert "a&#160;title" in svg or "a title" in svg
    assert "‹" not in svg
    assert "‹corrected-text›" in capsys.readouterr().out


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(quiet=True)
    screen.verdict(True, "well")
    screen.token("x", "bonus")
    screen.legend("bonus")
    assert capsys.readouterr().out == ""
