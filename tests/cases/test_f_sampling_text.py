"""Cases F1, F2 and F4, the part of clipping: where a text ends inside an accepted run, and why."""

from __future__ import annotations

import itertools

import pytest

from outrider.core import Kept
from outrider.text.stream import TextStream
from tests.sampling.test_clip import (
    EOS,
    PROMPT,
    TOKENIZER,
    finish_alone,
    finish_in_blocks,
    judged,
    running,
)

RUN = 5
KINDS: dict[str, tuple[list[int], dict[str, object]]] = {
    "eos": ([EOS], {}),
    "stop_token_ids": ([ord("#")], {"stop_token_ids": (ord("#"),)}),
    "stop string in a token": (TOKENIZER.encode("hello"), {"stop": ("ell",)}),
    "stop string over two tokens": (list(b"<>"), {"stop": ("<>",)}),
    "stop string begun before": ([ord(">")], {"stop": ("d>", "0>", "1>", "2>", "3>")}),
}


def test_f1_a_stop_before_the_cap_is_a_stop() -> None:
    clipped = judged(running(limit=len(PROMPT) + 2), TextStream(TOKENIZER), [EOS, 120, 121])
    assert clipped.kept == Kept(n=1, tokens=(EOS,), accepted=1, finish="stop")


def test_f1_a_cap_before_the_stop_is_a_length() -> None:
    clipped = judged(running(limit=len(PROMPT) + 2), TextStream(TOKENIZER), [97, 98, EOS])
    assert clipped.kept == Kept(n=2, tokens=(97, 98), accepted=2, finish="length")


@pytest.mark.parametrize("kind", KINDS)
def test_f1_every_offset_of_the_stop_and_of_the_cap(kind: str) -> None:
    """Against one token a step (k = 0), and against the rule itself: the first to end wins, a tie is a stop."""
    ender, options = KINDS[kind]
    for offset, cap in itertools.product(range(RUN + 1), range(1, RUN + 3)):
        tokens = [*b"01234"[:offset], *ender, *b"vwxyz"[offset:]] if offset < RUN else list(b"01234")
        whole = finish_in_blocks(tokens, cap, options, [len(tokens)])
        assert whole == finish_alone(tokens, cap, options)
        stop_at = offset + len(ender)
        if kind == "stop string begun before" and offset == 0:
            stop_at = len(tokens) + 1  # nothing before it to complete a stop string with
        if offset < RUN and stop_at <= min(cap, len(tokens)):
            assert (len(whole[0]), whole[2]) == (stop_at, "stop")
        elif cap <= len(tokens):
            assert (len(whole[0]), whole[2]) == (cap, "length")
        else:
            assert whole[2] is None


@pytest.mark.parametrize("width", range(1, RUN + 1))
def test_f2_nothing_behind_an_eos_in_the_block_is_kept(width: int) -> None:
    """Whichever token is declared EOS: no row past the one before it, no draft behind it counted, no text of it."""
    tokens = list(b"abcdef"[: width + 1])
    for place, eos in enumerate(tokens):
        clipped = judged(running(stop_token_ids=(eos,)), TextStream(TOKENIZER), tokens)
        made = place + 1
        assert clipped.kept == Kept(n=made, tokens=tuple(tokens[:made]), accepted=min(made, width), finish="stop")
        assert "".join(clipped.pieces) == bytes(tokens[:place]).decode()


@pytest.mark.parametrize("width", range(5))
def test_f4_exactly_max_tokens_are_delivered(width: int) -> None:
    tokens = [*b"abcd", EOS, *b"efghijklmnop"]
    for cap in range(1, 13):
        made, text, reason = finish_in_blocks(tokens, cap, {"ignore_eos": True}, [width + 1] * len(tokens))
        assert (made, reason) == (tokens[:cap], "length")
        assert text == TOKENIZER.decode(tokens[:cap])
