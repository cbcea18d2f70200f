"""``score``, ``streams``, ``draft_logits``: the same bits for any chunking, beside anything that runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from outrider.draft.scripted import ScriptedDrafter
from outrider.engine.llm import Engine
from outrider.errors import CapacityError, RequestError, UnsupportedError
from tests.engine.scene import at_rest, load, prompt, shared
from tests.support.engines import make_engine, stateless_drafts, stateless_logits, tiny_model

IDS = prompt(37)


def engine_of(**settings: Any) -> Engine:
    return make_engine(tiny_model(), "mtp", 3, **settings)


def test_what_they_give() -> None:
    engine = engine_of()
    logits, streams, drafts = engine.score(IDS), engine.streams(IDS), engine.draft_logits(IDS)
    assert logits.shape == (37, 64) and streams.shape == (37, 4, 64) and drafts.shape == (36, 64)
    assert {tensor.dtype for tensor in (logits, streams, drafts)} == {torch.float32}
    assert all(tensor.isfinite().all() for tensor in (logits, streams, drafts))
    assert torch.equal(logits[:20], stateless_logits(tiny_model(), IDS[:20]))
    assert torch.equal(drafts, stateless_drafts(tiny_model(), IDS)) and at_rest(engine)


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5, 7, 8, 9, 36, 37, 38])
def test_the_size_of_chunks_does_not_matter(chunk: int) -> None:
    """C2, the head's part, too: a chunk's last slot takes the next chunk's first token."""
    whole, cut = engine_of(), engine_of(prefill_chunk=chunk)
    assert torch.equal(cut.score(IDS), whole.score(IDS))
    assert torch.equal(cut.streams(IDS), whole.streams(IDS))
    assert torch.equal(cut.draft_logits(IDS), whole.draft_logits(IDS))
    assert at_rest(cut)


def test_a_step_smaller_than_the_text_is_enough() -> None:
    small = engine_of(step_rows=8)
    assert torch.equal(small.score(IDS), engine_of().score(IDS))


@pytest.mark.parametrize("length", [1, 2])
def test_c3_short_texts(length: int) -> None:
    engine = engine_of()
    assert engine.score(IDS[:length]).shape == (length, 64)
    assert torch.equal(engine.draft_logits(IDS[:length]), engine.draft_logits(IDS)[: length - 1])
    assert engine.draft_logits(IDS[:1]).shape == (0, 64)


def test_a_text_as_long_as_the_model_can_be_read() -> None:
    engine = engine_of(max_length=16)
    assert engine.score(IDS[:16]).shape == (16, 64)
    with pytest.raises(RequestError) as caught:
        engine.score(IDS[:17])
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("bad", [[], [64], [-1], [3, 2**40]])
def test_what_cannot_be_read_is_refused(bad: list[int]) -> None:
    engine = engine_of()
    for read in (engine.score, engine.streams, engine.draft_logits):
        with pytest.raises(RequestError) as caught:
            read(bad)
        assert caught.value.param == "prompt" and at_rest(engine)


def test_text_is_read_where_there_is_a_tokenizer() -> None:
    engine = shared("text")
    assert torch.equal(engine.score("hello w"), engine.score(engine.encode("hello w")))


def test_drafts_need_the_head() -> None:
    for drafter in ("none", ScriptedDrafter(lambda span: [])):
        engine = make_engine(tiny_model(), drafter, 0)
        with pytest.raises(UnsupportedError, match="MTP head"):
            engine.draft_logits(IDS)
        assert at_rest(engine)


def test_reading_beside_a_full_batch_changes_neither() -> None:
    engine = engine_of(max_batch=2)
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 0.8, "seed": 3}
    expected = [made.token_ids for made in engine.generate([IDS[:5], IDS[:9]], **options)]
    logits, drafts = engine.score(IDS), engine.draft_logits(IDS)
    streams = [engine.stream(IDS[:n], **options) for n in (5, 9)]
    found: list[list[int]] = [[], []]
    for _ in range(3):
        for made, stream in zip(found, streams, strict=True):
            made += next(stream).token_ids
        assert torch.equal(engine.score(IDS), logits) and torch.equal(engine.draft_logits(IDS), drafts)
    for made, stream in zip(found, streams, strict=True):
        made += [token for piece in stream for token in piece.token_ids]
    assert found == expected and at_rest(engine)


def test_reading_where_no_page_is_free_is_an_error_that_changes_nothing() -> None:
    engine = engine_of(max_batch=1, max_length=24, max_pages=3)
    options: dict[str, Any] = {"max_tokens": 14, "temperature": 0.0, "ignore_eos": True}
    expected = engine.generate(IDS[:9], **options).token_ids
    stream = engine.stream(IDS[:9], **options)
    made = [*next(stream).token_ids]
    with pytest.raises(CapacityError):
        engine.score(IDS[:20])
    made += [token for piece in stream for token in piece.token_ids]
    assert made == expected and at_rest(engine)


def test_scoring_takes_no_part_in_drafting() -> None:
    """A score between two steps leaves no trace in the head's rows."""
    with load(max_batch=1) as engine:
        options: dict[str, Any] = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True}
        with engine.record() as before:
            engine.generate(IDS[:9], **options)
        with engine.record() as after:
            for _ in engine.stream(IDS[:9], **options):
                engine.score(IDS)
        assert before.first_draft.keys() == after.first_draft.keys()
        assert all(torch.equal(row, after.first_draft[key]) for key, row in before.first_draft.items())
