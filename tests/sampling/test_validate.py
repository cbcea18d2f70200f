"""Requests: what is refused, under which name, and that everything in range is taken."""

from __future__ import annotations

import math
from typing import Any

import pytest

from outrider.core import Sampling
from outrider.errors import OutriderError, RequestError, UnsupportedError
from outrider.sampling.validate import make_sampling, validate

VOCAB, LENGTH = 100, 50


def check(prompt: Any = (1, 2, 3), has_tokenizer: bool = True, **options: Any) -> None:
    sampling = make_sampling(**options)
    validate(sampling, vocab_size=VOCAB, max_length=LENGTH, prompt=prompt, has_tokenizer=has_tokenizer)


GOOD: list[dict[str, Any]] = [
    {},
    {"max_tokens": 0},
    {"max_tokens": None},
    {"max_tokens": 2**31 - 1},
    {"temperature": None},
    {"temperature": 0},
    {"temperature": 1e-6},
    {"temperature": 100},
    {"top_k": 0},
    {"top_k": 10**6},
    {"top_p": 1},
    {"top_p": 1e-9},
    {"min_p": 0},
    {"min_p": 1.0},
    {"stop": "END"},
    {"stop": ["a", "b" * 1024]},
    {"stop": None},
    {"stop_token_ids": [0, 99]},
    {"ignore_eos": True},
    {"seed": None},
    {"seed": -(2**63)},
    {"seed": 2**64 - 1},
    {"prompt": [0]},
    {"prompt": [99] * 49},
]

BAD: list[tuple[str, Any]] = [
    *(("max_tokens", value) for value in (-1, True, 2.0, "3", 2**31, 10**5000, math.nan)),
    *(("temperature", value) for value in (-0.1, math.nan, math.inf, -math.inf, True, "1", 1e7, [1.0], 10**400)),
    *(("top_k", value) for value in (-1, False, 1.5, None, 2**63)),
    *(("top_p", value) for value in (0, 0.0, -0.5, 1.0001, math.nan, True, None, "0.5")),
    *(("min_p", value) for value in (-0.01, 1.5, math.nan, False, None)),
    *(("stop", value) for value in ("", [""], ["a", 1], 5, {"a": 1}, ["x"] * 17, ["y" * 1025], ["a"] * 500_000)),
    *(("stop_token_ids", value) for value in ([-1], [100], [101], [2**31], [2**63], [True], [1.0], 7, [1] * 257)),
    *(("ignore_eos", value) for value in (1, 0, None, "yes")),
    *(("seed", value) for value in (-(2**63) - 1, 2**64, 1.0, True, "7")),
    *(("prompt", value) for value in ([], (), [1] * 50, [1] * 51, [1] * 500, [-1], [100], [2**63], [True], [1.0])),
]


@pytest.mark.parametrize("options", GOOD, ids=str)
def test_values_in_range_are_taken(options: dict[str, Any]) -> None:
    check(**options)


@pytest.mark.parametrize(("name", "value"), BAD, ids=lambda value: repr(value)[:30] if type(value) is not int else "")
def test_bad_values_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        check(**{name: value})
    assert caught.value.param == name
    assert name in str(caught.value).lower() and len(str(caught.value)) < 250


def test_stop_strings_need_a_tokenizer() -> None:
    check(has_tokenizer=False, stop_token_ids=[3])
    with pytest.raises(RequestError, match="tokenizer") as caught:
        check(has_tokenizer=False, stop=["x"])
    assert caught.value.param == "stop"


def test_the_message_names_the_entry_at_fault() -> None:
    with pytest.raises(RequestError, match=r"prompt\[2\] is 100; it must lie from 0 to 99"):
        check(prompt=[1, 2, 100])


def test_sequences_become_tuples() -> None:
    made = make_sampling(stop="ab", stop_token_ids=[1, 2], seed=3)
    assert made == Sampling(stop=("ab",), stop_token_ids=(1, 2), seed=3)
    assert make_sampling(stop=["a"], stop_token_ids=None) == Sampling(stop=("a",))
    assert make_sampling() == Sampling()


def test_an_unknown_option_is_refused_by_name() -> None:
    with pytest.raises(RequestError, match="'temprature'") as caught:
        make_sampling(temprature=1.0)
    assert caught.value.param == "temprature"


LATER: list[tuple[str, list[Any], list[Any]]] = [
    ("min_tokens", [0, None], [1, "0"]),
    ("presence_penalty", [0, 0.0], [0.5, math.nan]),
    ("frequency_penalty", [0, 0.0], [-0.5]),
    ("repetition_penalty", [1, 1.0], [0, 1.1]),
    ("logit_bias", [None, {}], [{5: 1.0}]),
    ("bad_words", [None, [], ()], [["x"]]),
    ("n", [1], [0, 2, -1, 10**18, "3", 2.5, True]),
    ("logprobs", [None, False], [0, 5, True]),
    ("prompt_logprobs", [None, False], [1, 0]),
    ("grammar", [None], [{"regex": "a"}, ""]),
    ("rule", ["coupled"], ["rejection", "greedy"]),
    ("draft", [None], ["mtp"]),
    ("draft_length", [None], [3, "auto"]),
]


@pytest.mark.parametrize(("name", "neutral", "other"), LATER, ids=[row[0] for row in LATER])
def test_options_of_later_take_only_what_asks_for_nothing(name: str, neutral: list[Any], other: list[Any]) -> None:
    for value in neutral:
        assert make_sampling(**{name: value}) == Sampling()
    for value in other:
        with pytest.raises(UnsupportedError, match=name):
            make_sampling(**{name: value})


@pytest.mark.parametrize("name", [*(row[0] for row in LATER), *Sampling.__dataclass_fields__])
@pytest.mark.parametrize("value", [object(), [[]], float("nan"), b"x", {"a": {}}, 10**5000, -(10**30)], ids=type)
def test_nothing_but_a_named_error_comes_out(name: str, value: Any) -> None:
    with pytest.raises(OutriderError, match=name):
        check(**{name: value})
