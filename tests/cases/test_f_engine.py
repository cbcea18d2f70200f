"""Cases F1, F2 and F4 on the whole engine, with scripted targets and drafters, for every k."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from outrider.engine.results import Completion
from tests.engine.scene import EOS, at_rest, from_script, load, prompt, scripted, shared
from tests.support.engines import FedScript, make_engine, plain_truth, recorded, right_up_to, tiny_model

KS = range(5)
START = [40, 41, 42]


def run(k: int, tokens: list[int], cap: int, wrong: int = 99, **options: Any) -> Completion:
    """The target wants ``tokens`` behind the prompt, then 50s; the drafter knows, but errs at ``wrong``."""
    truth = [*START, *tokens, *[50] * 20]
    engine = scripted(lambda text: truth[len(text)], from_script(truth, lambda position: position == wrong), k)
    made = engine.generate(START, max_tokens=cap, temperature=0.0, **options)
    assert at_rest(engine)
    return made


@pytest.mark.parametrize("k", KS)
@pytest.mark.parametrize("ender", ["eos", "stop_token_ids"])
def test_f1_every_offset_of_the_stop_and_of_the_cap(k: int, ender: str) -> None:
    """The first to end wins, a tie is a stop: the same text, ids and reason as k = 0."""
    token, options = (EOS, {}) if ender == "eos" else (60, {"stop_token_ids": [60]})
    for offset, cap in itertools.product(range(7), range(1, 9)):
        tokens = [*range(10, 10 + offset), token, *range(20, 24)]
        made = run(k, tokens, cap, **options)
        length = min(offset + 1, cap)
        assert made.token_ids == tokens[:length]
        assert made.finish_reason == ("stop" if offset + 1 <= cap else "length")


@pytest.mark.parametrize("k", KS)
def test_f1_the_two_runs_of_the_report(k: int) -> None:
    eight = list(range(10, 18))
    stopped = run(k, [*eight, EOS, 21, 22], 10)
    assert (stopped.token_ids, stopped.finish_reason) == ([*eight, EOS], "stop")
    capped = run(k, [*eight, 20, 21, EOS], 10)
    assert (capped.token_ids, capped.finish_reason) == ([*eight, 20, 21], "length")


@pytest.mark.parametrize("k", KS)
def test_f1_a_stop_string_and_the_cap(k: int) -> None:
    """On a real text: the string that token number n completes, with the cap before, on and behind it."""
    plain = shared("text", draft="none")
    options: dict[str, Any] = {"temperature": 0.9, "seed": 3, "ignore_eos": True}
    free = plain.generate("hello", max_tokens=8, **options)
    engine = load("text", draft=from_script([*free.prompt_token_ids, *free.token_ids]), draft_length=k)
    assert plain.tokenizer is not None
    for cap in range(1, 9):
        for end in range(1, 8):
            stop = plain.tokenizer.decode(free.token_ids[end - 1 : end + 1])
            made, expected = (e.generate("hello", max_tokens=cap, stop=stop, **options) for e in (engine, plain))
            assert (made.token_ids, made.text, made.finish_reason) == (
                expected.token_ids,
                expected.text,
                expected.finish_reason,
            )
            assert stop not in made.text
    assert at_rest(engine)


@pytest.mark.parametrize("k", range(1, 5))
def test_f2_a_token_of_the_run_declared_eos_ends_it_there(k: int) -> None:
    """No row is committed past the one before it, and nothing behind it is counted."""
    model, ids = tiny_model(), prompt(7)
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True}
    truth = plain_truth(model, [ids], **options)
    free = truth.made[0]
    engine = make_engine(model, FedScript(model, right_up_to(truth.texts, lambda span: 9)), k)
    for eos in set(free):
        (made,), record = recorded(engine, [ids], stop_token_ids=[eos], **options)
        length = free.index(eos) + 1
        assert made.token_ids == free[:length] and made.finish_reason == "stop"
        assert record.rows == {0: len(ids) + length - 1}
        assert made.stats.drafted == made.stats.accepted <= length - 1
        assert at_rest(engine)
    (made,), _ = recorded(engine, [ids], **options)
    assert made.token_ids == free, "what was stopped before left nothing behind"


@pytest.mark.parametrize("k", KS)
@pytest.mark.parametrize("wrong", [99, 5])
def test_f4_exactly_max_tokens_are_delivered(k: int, wrong: int) -> None:
    tokens = [10, EOS, 12, EOS, *range(14, 22)]
    for cap in range(1, 13):
        made = run(k, tokens, cap, wrong, ignore_eos=True)
        assert made.token_ids == tokens[:cap] and made.finish_reason == "length"
        stats = made.stats
        assert cap == 1 + (round(stats.tokens_per_step * stats.steps) if stats.tokens_per_step else 0)


@pytest.mark.parametrize("k", KS)
def test_f4_the_same_on_a_stream(k: int) -> None:
    truth = [*START, *range(10, 30)]
    engine = scripted(lambda text: truth[len(text)], from_script(truth), k)
    for cap in range(1, 13):
        pieces = list(engine.stream(START, max_tokens=cap, temperature=0.0, ignore_eos=True))
        assert [token for piece in pieces for token in piece.token_ids] == truth[3 : 3 + cap]
        assert pieces[-1].finish_reason == "length" and all(piece.token_ids for piece in pieces)
