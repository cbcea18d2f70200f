"""The stop matcher against a naive oracle, for any stops and any split of the text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.text.stopstring import StopStrings

TEXT = st.text(alphabet="ab", max_size=24)
STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=6), max_size=4).map(tuple)


def oracle(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """The text before the stop string that is completed first (of several, the longest), and that stop string."""
    for end in range(1, len(text) + 1):
        done = [stop for stop in stops if text[:end].endswith(stop)]
        if done:
            longest = max(done, key=len)
            return text[: end - len(longest)], longest
    return text, None


def held_back(text: str, stops: tuple[str, ...]) -> int:
    """How many of the last characters may be the start of a stop string."""
    starts = [n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])]
    return max(starts, default=0)


@given(TEXT, STOPS, st.lists(st.integers(0, 5), min_size=30, max_size=30))
def test_any_split_gives_what_the_oracle_says(text: str, stops: tuple[str, ...], sizes: list[int]) -> None:
    matcher, given_out, rest = StopStrings(stops), "", text
    for size in (*sizes, len(text)):
        given_out += matcher.push(rest[:size])
        rest = rest[size:]
    assert (given_out + matcher.finish(), matcher.found) == oracle(text, stops)


@given(TEXT, STOPS)
def test_no_more_is_held_back_than_may_be_a_stop(text: str, stops: tuple[str, ...]) -> None:
    matcher, given_out = StopStrings(stops), ""
    for n, character in enumerate(text, start=1):
        given_out += matcher.push(character)
        if matcher.found is not None:
            return
        assert given_out == text[: n - held_back(text[:n], stops)]


@given(TEXT, TEXT, TEXT, STOPS)
def test_a_copy_is_independent(start: str, left: str, right: str, stops: tuple[str, ...]) -> None:
    one = StopStrings(stops)
    text = one.push(start)
    other = one.copy()
    ends = [(text + m.push(more) + m.finish(), m.found) for m, more in ((one, left), (other, right))]
    assert ends == [oracle(start + left, stops), oracle(start + right, stops)]


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("xabcy", ("abcd", "bc"), "xa"),
        ("xabcy", ("bc", "abc"), "x"),
        ("aab", ("ab",), "a"),
        ("ababac", ("abac",), "ab"),
        ("你好吗", ("好",), "你"),
    ],
)
def test_the_first_completed_stop_wins(text: str, stops: tuple[str, ...], expected: str) -> None:
    matcher = StopStrings(stops)
    assert matcher.push(text) + matcher.finish() == expected
    assert matcher.push("more") == "" == matcher.finish()


def test_finish_then_push_starts_afresh() -> None:
    matcher = StopStrings(("ab",))
    assert matcher.push("xa") == "x"
    assert matcher.finish() == "a"
    assert matcher.push("b") == "b"
