"""Case H4: characters at the borders of tokens and steps, invalid bytes, and the end of a stream."""

from __future__ import annotations

import pytest

from outrider.text.detok import Detokeniser
from outrider.text.stream import TextStream
from tests.support.bytelevel import small_tokenizer

TOKENIZER = small_tokenizer()
TEXT = "aé你\U0001f600\ufffd\ufffdz é"


@pytest.mark.parametrize("size", range(1, 6))
def test_h4_deltas_of_any_size_join_to_the_one_shot_text(size: int) -> None:
    """Split at every byte: each prefix of the bytes too, so that a stream may end anywhere inside a character."""
    ids = list(TEXT.encode())
    for end in range(len(ids) + 1):
        stream, shown = TextStream(TOKENIZER), ""
        for start in range(0, end, size):
            shown += "".join(map(stream.advance, ids[start : min(start + size, end)]))
            assert TEXT.startswith(shown)  # what was sent is never taken back
        assert shown + stream.finish() == TOKENIZER.decode(ids[:end])


def test_h4_a_real_replacement_character_passes_at_once() -> None:
    detokeniser = Detokeniser(TOKENIZER)
    assert [detokeniser.push(byte) for byte in "\ufffdx".encode()] == ["", "", "\ufffd", "x"]


@pytest.mark.parametrize("byte", [0x80, 0xC0, 0xFE, 0xFF])
def test_h4_five_hundred_invalid_bytes_are_each_sent_at_once(byte: int) -> None:
    stream = TextStream(TOKENIZER, ("\ufffd!",))
    pieces = [stream.advance(byte) for _ in range(500)]
    assert pieces[0] == "" and set(pieces[1:]) == {"\ufffd"}  # one is held back: a stop string begins with it
    assert stream.finish() == "\ufffd"


def test_h4_bytes_that_each_begin_a_character_stall_nothing() -> None:
    """0xE4 is the first of three bytes: another one behind it makes it invalid, and is the next beginning."""
    detokeniser = Detokeniser(TOKENIZER)
    pieces = [detokeniser.push(0xE4) for _ in range(500)]
    assert pieces == ["", *["\ufffd"] * 499]
    assert detokeniser.finish() == "\ufffd"


def test_h4_the_end_of_a_stream_with_half_a_character() -> None:
    for half in range(1, 4):
        stream = TextStream(TOKENIZER)
        ids = list("é\U0001f600".encode()[: 2 + half])
        assert "".join(map(stream.advance, ids)) == "é"
        assert stream.finish() == "\ufffd" and stream.finish() == ""
