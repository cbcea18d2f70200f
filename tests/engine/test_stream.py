"""``Engine.stream``: pieces as they are made, and what becomes of a stream that is left."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from outrider.core import Span
from outrider.draft.scripted import ScriptedDrafter
from outrider.engine.llm import Engine, Stream
from outrider.engine.results import Piece
from outrider.errors import RequestError
from tests.engine.scene import at_rest, from_script, load, prompt, shared
from tests.support.engines import make_engine, tiny_model

SAMPLED: dict[str, Any] = {"temperature": 0.9, "seed": 11, "ignore_eos": True}


@pytest.fixture
def engine() -> Engine:
    return shared("text")


def check_pieces(pieces: list[Piece]) -> None:
    for piece in pieces:
        assert "".join(piece.texts) == piece.text
        assert len(piece.texts) == len(piece.origins) == len(piece.token_ids)
    assert [piece.finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)


@pytest.mark.parametrize("seed", range(4))
def test_pieces_joined_are_what_generate_gives(engine: Engine, seed: int) -> None:
    options = SAMPLED | {"seed": seed, "max_tokens": 12}
    pieces = list(stream := engine.stream("hello", **options))
    made = engine.generate("hello", **options)
    check_pieces(pieces)
    assert "".join(piece.text for piece in pieces) == made.text == stream.completion.text
    assert [token for piece in pieces for token in piece.token_ids] == made.token_ids == stream.completion.token_ids
    assert pieces[-1].finish_reason == made.finish_reason == "length"
    assert stream.stats.steps == made.stats.steps and at_rest(engine)


@pytest.mark.parametrize("k", [0, 2, 3])
def test_pieces_of_a_text_that_a_stop_string_ends(k: int) -> None:
    """What is made is whatever; a stop is taken from the middle of it. It is in no piece."""
    engine = shared("text", draft_length=k) if k else shared("text", draft="none")
    free = engine.generate("hello w", max_tokens=14, **SAMPLED)
    assert engine.tokenizer is not None
    stop = next(
        text for id in free.token_ids[5:] if "\ufffd" not in (text := engine.tokenizer.decode([id])) and text.strip()
    )
    pieces = list(stream := engine.stream("hello w", max_tokens=14, stop=stop, **SAMPLED))
    check_pieces(pieces)
    text = "".join(piece.text for piece in pieces)
    assert text == stream.completion.text == free.text[: free.text.index(stop)]
    assert stream.completion.finish_reason == pieces[-1].finish_reason == "stop"
    assert stream.completion.token_ids == free.token_ids[: len(stream.completion.token_ids)] and at_rest(engine)


@pytest.mark.parametrize("k", range(5))
def test_origins_say_what_each_token_was(k: int) -> None:
    """A script that is wrong at every third position: what is before it was accepted, there the target corrects, and
    after a round without a refusal comes a bonus."""
    model, ids = tiny_model(), prompt(6)
    plain = make_engine(model, "none", 0)
    truth = [*ids, *plain.generate(ids, max_tokens=15, **SAMPLED).token_ids]
    engine = make_engine(model, from_script(truth, lambda position: position % 3 == 0), k)
    pieces = list(engine.stream(ids, max_tokens=15, **SAMPLED))
    check_pieces(pieces)
    assert [token for piece in pieces for token in piece.token_ids] == truth[6:]
    assert pieces[0].origins == ("target",), "the prompt's own step drafts nothing"
    at = len(ids) + 1
    for piece in pieces[1:]:
        width = min(k, len(truth) - at - 1)
        right = next((i for i in range(width) if (at + i) % 3 == 0), width)
        own = "target" if not width else "bonus" if right == width else "corrected"
        assert piece.origins == ("accepted",) * right + (own,)
        at += len(piece.token_ids)


@pytest.mark.parametrize("taken", range(4))
def test_a_stream_that_is_closed_early_frees_what_it_held(engine: Engine, taken: int) -> None:
    expected = engine.generate("hello", max_tokens=9, **SAMPLED).token_ids
    stream = engine.stream("hello", max_tokens=9, **SAMPLED)
    made = [token for _ in range(taken) for token in next(stream).token_ids]
    assert stream.completion.finish_reason == "cancelled" and stream.completion.token_ids == made
    stream.close()
    stream.close()
    assert at_rest(engine) and list(stream) == []
    assert stream.completion.token_ids == made == expected[: len(made)]
    assert engine.generate("hello", max_tokens=9, **SAMPLED).token_ids == expected


def test_a_stream_is_a_context_and_leaving_its_loop_cancels(engine: Engine) -> None:
    with engine.stream("hello", max_tokens=30, **SAMPLED) as stream:
        for _ in stream:
            break
    assert at_rest(engine) and stream.completion.finish_reason == "cancelled"
    for _ in engine.stream("hello", max_tokens=30, **SAMPLED):
        break
    gc.collect()
    assert at_rest(engine)


def test_text_held_back_comes_out_when_a_stream_is_closed(engine: Engine) -> None:
    """The start of a stop string, or half a character, was held back; ``completion`` has it."""
    free = engine.generate("hello", max_tokens=4, **SAMPLED)
    stream = engine.stream("hello", max_tokens=40, stop=free.text + "never", **SAMPLED)
    while len(stream.completion.token_ids) < 4:
        next(stream)
    assert stream.completion.text == ""
    count = len(stream.completion.token_ids)
    stream.close()
    assert stream.completion.text == engine.generate("hello", max_tokens=count, **SAMPLED).text


def test_streams_and_calls_may_be_interleaved() -> None:
    engine = load("text", max_batch=2)
    alone = {text: engine.generate(text, max_tokens=10, **SAMPLED).token_ids for text in ("hello", "abc w", "x")}
    one, two = (engine.stream(text, max_tokens=10, **SAMPLED) for text in ("hello", "abc w"))
    found: dict[str, list[int]] = {"hello": [], "abc w": []}
    found["hello"] += next(one).token_ids
    found["abc w"] += next(two).token_ids
    found["hello"] += next(one).token_ids
    assert engine.generate("x", max_tokens=10, **SAMPLED).token_ids == alone["x"], "it waits for a place, then runs"
    scored = engine.score("hello")
    for text, stream in (("hello", one), ("abc w", two)):
        for piece in stream:
            found[text] += piece.token_ids
    assert found == {text: alone[text] for text in found} and at_rest(engine)
    assert scored.equal(engine.score("hello"))


def test_a_stream_that_goes_away_inside_a_step_ends_after_it() -> None:
    """The collector may run anywhere: also while a step holds the stream's rows."""
    model, ids = tiny_model(), prompt(6)
    doomed: list[Stream] = []

    def script(span: Span) -> list[int]:
        while doomed:
            doomed.pop().close()
        return []

    engine = make_engine(model, ScriptedDrafter(script), 2)
    expected = make_engine(model, "none", 0).generate(ids, max_tokens=8, **SAMPLED).token_ids
    other = engine.stream(prompt(9), max_tokens=30, **SAMPLED)
    stream = engine.stream(ids, max_tokens=8, **SAMPLED)
    made = [*next(stream).token_ids]
    doomed.append(other)
    made += [token for piece in stream for token in piece.token_ids]
    assert made == expected and not doomed and at_rest(engine)
    assert other.completion.finish_reason == "cancelled"


def test_several_prompts_are_not_one_stream(engine: Engine) -> None:
    with pytest.raises(RequestError, match="one prompt"):
        engine.stream(["a", "b"])  # type: ignore[arg-type]
