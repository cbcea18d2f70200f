"""Incremental detokenising: any split gives the one-shot text, and nothing is held back longer than it must be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.text.detok import Detokeniser
from tests.support.bytelevel import small_tokenizer

TOKENIZER = small_tokenizer()
IDS = st.lists(st.one_of(st.integers(0, TOKENIZER.vocab_size + 3), st.integers(0x80, 0xFF)), max_size=60)


def pieces(ids: list[int]) -> list[str]:
    detokeniser = Detokeniser(TOKENIZER)
    return [*(detokeniser.push(id) for id in ids), detokeniser.finish()]


@given(IDS)
def test_joined_pieces_are_the_one_shot_text(ids: list[int]) -> None:
    assert "".join(pieces(ids)) == TOKENIZER.decode(ids)


@given(st.text(alphabet=st.sampled_from("aé你\ufffd\U0001f600\0")))
def test_whole_characters_come_out_with_their_last_byte(text: str) -> None:
    given_out = ""
    detokeniser = Detokeniser(TOKENIZER)
    for n, byte in enumerate(text.encode(), start=1):
        given_out += detokeniser.push(byte)
        assert given_out == text.encode()[:n].decode("utf-8", "ignore")
    assert detokeniser.finish() == ""


@given(IDS, IDS, IDS)
def test_a_copy_is_independent(start: list[int], left: list[int], right: list[int]) -> None:
    one = Detokeniser(TOKENIZER)
    text = "".join(map(one.push, start))
    other = one.copy()
    ends = ["".join([text, *map(d.push, ids), d.finish()]) for d, ids in ((one, left), (other, right))]
    assert ends == [TOKENIZER.decode(start + left), TOKENIZER.decode(start + right)]


def test_an_invalid_byte_is_given_out_at_once() -> None:
    assert pieces([0xFF] * 3) == ["\ufffd"] * 3 + [""]
    assert pieces([0xE4, 0xBD, 0x41]) == ["", "", "\ufffdA", ""]


def test_half_a_character_at_the_end_becomes_one_replacement() -> None:
    assert pieces([0x41, 0xE4, 0xBD]) == ["A", "", "", "\ufffd"]
