"""Seeds: a text is a function of its request and its seed, and of nothing else (case E5, the parts without n > 1)."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.engine.llm import Engine
from tests.engine.scene import at_rest, prompt
from tests.support.engines import make_engine, tiny_model

IDS = prompt(6)
OPTIONS: dict[str, Any] = {"max_tokens": 8, "temperature": 1.2, "ignore_eos": True}


def engine_of(k: int = 3, **settings: Any) -> Engine:
    return make_engine(tiny_model(), "mtp" if k else "none", k, **settings)


def test_e5_a_seed_gives_one_text_wherever_it_runs() -> None:
    """Alone, in a batch of five, after a hundred other requests, after being put back, for several k."""
    expected = engine_of(0).generate(IDS, seed=7, **OPTIONS).token_ids
    engine = engine_of()
    assert engine.generate(IDS, seed=7, **OPTIONS).token_ids == expected
    batch = engine.generate([prompt(9), IDS, prompt(3), prompt(12), prompt(2)], seed=7, **OPTIONS)
    assert batch[1].token_ids == expected
    for number in range(0, 100, 10):
        engine.generate([prompt(3, number + i) for i in range(10)], max_tokens=1, seed=number)
    assert engine.generate(IDS, seed=7, **OPTIONS).token_ids == expected
    for k in (1, 2, 5):
        assert engine_of(k).generate(IDS, seed=7, **OPTIONS).token_ids == expected


def test_e5_being_put_back_does_not_shift_it() -> None:
    expected = engine_of(0).generate(prompt(22), seed=7, **OPTIONS | {"max_tokens": 20}).token_ids
    engine = engine_of(max_pages=7, max_length=56, max_batch=3)
    made = engine.generate([prompt(15), prompt(16), prompt(22)], seed=7, **OPTIONS | {"max_tokens": 20})
    assert engine.scheduler.preemptions > 0 and made[2].token_ids == expected and at_rest(engine)


def test_e5_without_a_seed_texts_differ_and_each_can_be_replayed() -> None:
    engine = engine_of()
    made = [engine.generate(IDS, **OPTIONS | {"temperature": 1.5, "max_tokens": 5}) for _ in range(8)]
    made += engine.generate([IDS] * 8, **OPTIONS | {"temperature": 1.5, "max_tokens": 5})
    made += [one for _ in range(2) for one in engine.generate([IDS] * 8, **OPTIONS | {"temperature": 1.5})]
    assert len({tuple(one.token_ids[:5]) for one in made}) >= 30 and len({one.seed for one in made}) == 32
    for one in made[::6]:
        again = engine.generate(IDS, seed=one.seed, **OPTIONS | {"temperature": 1.5, "max_tokens": len(one.token_ids)})
        assert again.token_ids == one.token_ids and again.seed == one.seed


def test_a_given_seed_is_reported() -> None:
    engine = engine_of()
    for seed in (0, -1, 2**63, 2**64 - 1):
        assert engine.generate(IDS, seed=seed, **OPTIONS | {"max_tokens": 1}).seed == seed
    with engine.stream(IDS, seed=5, **OPTIONS) as stream:
        assert stream.completion.seed == 5


def test_seeds_matter_and_are_not_shared_by_prompts() -> None:
    engine = engine_of()
    texts = {tuple(engine.generate(IDS, seed=seed, **OPTIONS).token_ids) for seed in range(8)}
    assert len(texts) == 8


@pytest.mark.parametrize("temperature", [0.0, None, 1e-6])
def test_a_greedy_text_has_no_noise(temperature: float | None) -> None:
    engine = engine_of()
    texts = {tuple(engine.generate(IDS, max_tokens=6, temperature=temperature, seed=s).token_ids) for s in range(3)}
    assert len(texts) == 1


def test_drafts_behind_a_stop_do_not_shift_the_noise() -> None:
    """The token that ends one text is made in the middle of a block; the next request is as ever."""
    engine, plain = engine_of(4), engine_of(0)
    free = plain.generate(IDS, seed=3, **OPTIONS).token_ids
    for end in range(1, len(free)):
        stopped = engine.generate(IDS, seed=3, stop_token_ids=[free[end]], **OPTIONS)
        assert stopped.token_ids == free[: free.index(free[end]) + 1]
    assert engine.generate(IDS, seed=3, **OPTIONS).token_ids == free
