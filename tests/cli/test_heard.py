"""Counting drafts from where tokens came from."""

from __future__ import annotations

import pytest

from outrider import Piece
from outrider.cli.heard import Heard, add, decode_rate, shares


def piece(*origins: str) -> Piece:
    return Piece("x" * len(origins), tuple(range(len(origins))), ("x",) * len(origins), origins, None)


def heard(*pieces: Piece) -> Heard:
    ear = Heard()
    said = list(ear.listen(pieces))
    assert [origin for _, origin in said] == ear.origins
    return ear


def test_drafts_by_position() -> None:
    ear = heard(
        piece("target"),
        piece("accepted", "accepted", "bonus"),
        piece("accepted", "corrected"),
        piece("corrected"),
        piece("accepted"),  # the text ended inside the drafts
    )
    assert ear.offered() == [4, 2]
    assert ear.accepted() == [3, 1]
    assert ear.steps == 5
    assert ear.text == "x" * 8


def test_the_beginning_counts_alone() -> None:
    ear = heard(piece("accepted", "accepted", "bonus"), piece("corrected"))
    first = ear.first(2)
    assert first.offered() == [1, 1]
    assert first.steps == 1
    assert first.token_ids == [0, 1]
    assert len(first.times) == len(first.texts) == 2


def test_nothing_heard() -> None:
    ear = Heard()
    assert (ear.steps, ear.offered(), ear.accepted(), ear.text, ear.decode_rate()) == (0, [], [], "", None)


def test_rate_leaves_the_first_moment_out() -> None:
    assert decode_rate([10.0, 10.0, 11.0, 12.0, 12.0]) == pytest.approx(1.5)
    assert decode_rate([1.0, 1.0]) is None


def test_sums_and_shares() -> None:
    assert add([[1, 2], [1], [], [0, 0, 3]]) == [2, 2, 3]
    assert shares([1, 0], [2, 0]) == [0.5, None]
