"""Detokenising and stop strings together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.text.stream import TextStream
from tests.support.bytelevel import small_tokenizer
from tests.text.test_stopstring import oracle

TOKENIZER = small_tokenizer()
TEXT = st.text(alphabet="aE你EN\ufffd", max_size=20)
STOPS = st.lists(st.sampled_from(["END", "EN", "你", "a你", "\ufffd", "N\ufffd", "hello"]), max_size=3).map(tuple)


def run(stream: TextStream, ids: list[int]) -> str:
    return "".join([*map(stream.advance, ids), stream.finish()])


@given(st.one_of(TEXT.map(TOKENIZER.encode), st.lists(st.integers(0, 255), max_size=20)), STOPS)
def test_the_text_is_the_decoded_text_up_to_the_stop(ids: list[int], stops: tuple[str, ...]) -> None:
    stream = TextStream(TOKENIZER, stops)
    text, found = oracle(TOKENIZER.decode(ids), stops)
    assert run(stream, ids) == text
    assert stream.stopped == (found is not None)


@given(TEXT, TEXT, TEXT, STOPS)
def test_a_copy_is_independent(start: str, left: str, right: str, stops: tuple[str, ...]) -> None:
    one = TextStream(TOKENIZER, stops)
    first = "".join(map(one.advance, start.encode()))
    other = one.copy()
    ends = [first + run(s, list(more.encode())) for s, more in ((one, left), (other, right))]
    assert ends == [oracle(start + left, stops)[0], oracle(start + right, stops)[0]]


def test_text_after_the_stop_in_the_same_token_is_left_out() -> None:
    stream = TextStream(TOKENIZER, ("el",))
    assert stream.advance(TOKENIZER.encode("hello")[0]) == "h"
    assert stream.stopped
    assert stream.advance(ord("x")) == ""


def test_without_a_tokenizer_there_is_no_text() -> None:
    stream = TextStream(None)
    assert run(stream.copy(), [1, 2, 3]) == ""
    assert not stream.stopped
