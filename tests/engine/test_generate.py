"""``Engine.generate``: what it takes, what it refuses before anything runs, and what it gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from outrider.core import Sampling
from outrider.engine.llm import Engine
from outrider.errors import RequestError, UnsupportedError
from tests.engine.scene import at_rest, load, prompt, shared
from tests.support.engines import make_engine, tiny_model

GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}


@pytest.fixture
def engine() -> Engine:
    return shared("text")


def test_text_and_its_ids_give_the_same(engine: Engine) -> None:
    text = "hello w"
    of_text = engine.generate(text, max_tokens=6, **GREEDY)
    of_ids = engine.generate(engine.encode(text), max_tokens=6, **GREEDY)
    assert of_text.token_ids == of_ids.token_ids and of_text.text == of_ids.text
    assert of_text.prompt_token_ids == engine.encode(text) and len(of_text.token_ids) == 6
    assert of_text.finish_reason == "length" and of_text.error is None and of_text.logprobs is None
    assert engine.tokenizer is not None and of_text.text == engine.tokenizer.decode(of_text.token_ids)
    assert at_rest(engine)


def test_several_prompts_keep_their_order(engine: Engine) -> None:
    prompts = ["hello", [5, 6, 7], "a", (9, 9)]
    together = engine.generate(prompts, max_tokens=3, **GREEDY)
    assert [made.prompt_token_ids for made in together] == [engine.encode(one) for one in prompts]
    for one, made in zip(prompts, together, strict=True):
        alone = engine.generate(list(one) if not isinstance(one, str) else one, max_tokens=3, **GREEDY)
        assert made.token_ids == alone.token_ids
    assert isinstance(engine.generate(["hello"], max_tokens=1, **GREEDY), list)
    assert at_rest(engine)


def test_ids_may_come_as_arrays(engine: Engine) -> None:
    plain = engine.generate([5, 6, 7], max_tokens=3, **GREEDY).token_ids
    for given in (np.array([5, 6, 7]), torch.tensor([5, 6, 7]), [np.int64(5), np.int32(6), 7]):
        assert engine.generate(given, max_tokens=3, **GREEDY).token_ids == plain  # type: ignore[call-overload]


@pytest.mark.parametrize("empty", ["", [], (), [[]], ["hello", ""], [[3], []]])
def test_an_empty_prompt_is_refused(engine: Engine, empty: Any) -> None:
    with pytest.raises(RequestError, match="empty") as caught:
        engine.generate(empty, max_tokens=1)
    assert caught.value.param == "prompt" and at_rest(engine)


@pytest.mark.parametrize("bad", [-1, 10**4, 2**31, 2**63, True, 1.5])
@pytest.mark.parametrize("place", [0, 2])
def test_an_id_that_is_none_is_refused(engine: Engine, bad: Any, place: int) -> None:
    ids: list[Any] = [5, 6, 7]
    ids[place] = bad
    for given in (ids, [[5], ids]):
        with pytest.raises(RequestError) as caught:
            engine.generate(given, max_tokens=1)
        assert caught.value.param == "prompt" and at_rest(engine)


@pytest.mark.parametrize("thing", [5, None, {"a": 1}, [5, "a"], [None], b"bytes"])
def test_a_prompt_of_another_kind_is_refused(engine: Engine, thing: Any) -> None:
    with pytest.raises(RequestError) as caught:
        engine.generate(thing, max_tokens=1)
    assert caught.value.param == "prompt" and at_rest(engine)


def test_text_needs_a_tokenizer() -> None:
    engine = shared()
    with pytest.raises(RequestError, match=r"no tokenizer\.json") as caught:
        engine.generate("hello", max_tokens=1)
    assert caught.value.param == "prompt"
    made = engine.generate(prompt(4), max_tokens=2, **GREEDY)
    assert made.text == "" and len(made.token_ids) == 2
    with pytest.raises(RequestError, match="tokenizer") as caught:
        engine.generate(prompt(4), stop="x")
    assert caught.value.param == "stop" and at_rest(engine)


def test_no_tokens_at_all(engine: Engine) -> None:
    made = engine.generate("hello", max_tokens=0)
    assert (made.token_ids, made.text, made.finish_reason) == ([], "", "length")
    assert made.stats.steps == 0 and made.stats.tokens_per_step is None
    mixed = engine.generate(["hello", "a"], max_tokens=0)
    assert [one.finish_reason for one in mixed] == ["length"] * 2 and at_rest(engine)


@pytest.mark.parametrize("k", [0, 3, 5])
def test_c6_prompts_near_the_models_length(k: int) -> None:
    """C6: drafts shrink to fit, no position past the end is run, the last token is the one that fills the text."""
    engine = make_engine(tiny_model(), "mtp" if k else "none", k, max_length=32, step_rows=64)
    plain = make_engine(tiny_model(), "none", 0, max_length=32, step_rows=64)
    for length in range(26, 32):
        with engine.record() as record:
            made = engine.generate(prompt(length), max_tokens=None, **GREEDY)
        assert len(made.token_ids) == 32 - length and made.finish_reason == "length"
        assert made.token_ids == plain.generate(prompt(length), max_tokens=100, **GREEDY).token_ids
        assert record.rows == {0: 31} and max(position for _, position in record.target) == 30
    for length in (32, 33, 320):
        with pytest.raises(RequestError, match=f"{length} tokens; there must be fewer than 32") as caught:
            engine.generate(prompt(length), max_tokens=1)
        assert caught.value.param == "prompt"
    assert at_rest(engine)


def test_a_lower_max_length_binds() -> None:
    with load(max_length=20) as engine:
        assert len(engine.generate(prompt(15), max_tokens=50, **GREEDY).token_ids) == 5
        with pytest.raises(RequestError):
            engine.generate(prompt(20))


def test_an_unknown_or_later_keyword_is_refused(engine: Engine) -> None:
    with pytest.raises(RequestError) as caught:
        engine.generate("hello", max_token=5)
    assert caught.value.param == "max_token"
    with pytest.raises(UnsupportedError, match="logprobs"):
        engine.generate("hello", logprobs=3)
    assert at_rest(engine)


@pytest.mark.parametrize("max_batch", [1, 2])
@pytest.mark.parametrize("k", [0, 3])
def test_more_prompts_than_places_wait_their_turn(max_batch: int, k: int) -> None:
    prompts = [prompt(length, 3) for length in (9, 2, 14, 5, 1)]
    engine = make_engine(tiny_model(), "mtp" if k else "none", k, max_batch=max_batch)
    alone = make_engine(tiny_model(), "none", 0)
    expected = [alone.generate(one, max_tokens=7, seed=4).token_ids for one in prompts]
    assert [made.token_ids for made in engine.generate(prompts, max_tokens=7, seed=4)] == expected
    assert at_rest(engine)


def test_texts_put_back_for_want_of_pages_are_made_whole() -> None:
    prompts = [prompt(length, 5) for length in (15, 16, 22)]
    engine = make_engine(tiny_model(), "mtp", 3, max_pages=7, max_length=56, max_batch=3)
    alone = make_engine(tiny_model(), "none", 0)
    expected = [alone.generate(one, max_tokens=20, temperature=0.9, seed=4).token_ids for one in prompts]
    made = engine.generate(prompts, max_tokens=20, temperature=0.9, seed=4)
    assert [one.token_ids for one in made] == expected
    assert engine.scheduler.preemptions > 0 and at_rest(engine)


def test_closing_cancels_what_is_open_and_frees_it() -> None:
    with load("text") as engine:
        streams = [engine.stream("hello", max_tokens=50, **GREEDY) for _ in range(6)]  # two of them wait
        next(streams[0])
        engine.step()
    assert at_rest(engine)
    assert {stream.completion.finish_reason for stream in streams} == {"cancelled"}
    assert all(len(list(stream)) <= 2 for stream in streams), "nothing is made after closing"
    engine.close()
    with pytest.raises(RequestError, match="engine is closed"):
        engine.generate("hello", max_tokens=2, **GREEDY)


@pytest.mark.parametrize("wrong", [5, 5.5, None, True, b"abc", {1, 2}, object()], ids=repr)
@pytest.mark.parametrize("call", ["generate", "stream", "score", "streams", "draft_logits"])
def test_what_is_no_prompt_is_refused_everywhere(call: str, wrong: object) -> None:
    with load("text") as engine, pytest.raises(RequestError) as caught:
        getattr(engine, call)(wrong)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("name", ["n", "logprobs", "grammar", "logit_bias", "bad_words", "min_tokens", "rule"])
@pytest.mark.parametrize("value", [np.array([1, 2]), torch.tensor([1, 2])], ids=["array", "tensor"])
def test_an_array_is_no_neutral_value(name: str, value: object) -> None:
    with load("text") as engine, pytest.raises(UnsupportedError, match=name):
        engine.generate([1, 2], **{name: value})


def test_options_may_be_one_sampling() -> None:
    asked = Sampling(max_tokens=5, temperature=0.7, seed=3)
    with load("text") as engine:
        made = engine.generate([5, 6], asked)
        assert made.token_ids == engine.generate([5, 6], max_tokens=5, temperature=0.7, seed=3).token_ids
        assert [token for piece in engine.stream([5, 6], asked) for token in piece.token_ids] == made.token_ids
        for wrong in ({"sampling": asked, "seed": 4}, {"sampling": 3}):
            with pytest.raises(RequestError, match="one Sampling"):
                engine.generate([5, 6], **wrong)
