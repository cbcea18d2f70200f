"""The promise at the engine: whatever drafts, at whatever length, in whatever company, the run is the k = 0 run: same
tokens, same number of committed rows, the same bits in every judged row and every first draft."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from outrider.core import Span
from outrider.engine.record import Record
from tests.support.engines import (
    FedScript,
    Truth,
    assert_promise,
    make_engine,
    plain_truth,
    right_up_to,
    tiny_model,
)
from tests.support.harness import random_text

EVERY_K = 17

pytestmark = pytest.mark.timeout(600)  # seconds on a quiet core, minutes on a crowded one
SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "cool": {"temperature": 0.6, "top_k": 20, "seed": 5},
    "cut": {"temperature": 1.0, "top_p": 0.9, "min_p": 0.02, "seed": 6},
    "hot": {"temperature": 8.0, "seed": 7},  # the shared noise decides: many drafts are accepted
}
PROMPTS = [random_text(1 + (5 * n) % 19, 40 + n) for n in range(EVERY_K)]


def truth_of(sampling: dict[str, Any], model_seed: int = 0) -> Truth:
    return plain_truth(tiny_model(model_seed), PROMPTS, max_tokens=20, ignore_eos=True, **sampling)


def rounds(record: Record) -> Counter[int]:
    """How many rounds with drafts each text took."""
    return Counter(text for text, _ in record.first_draft)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_every_k_with_the_real_drafter(name: str) -> None:
    """Seventeen texts in one batch, one for each k in 0…16."""
    sampling, model = SAMPLINGS[name], tiny_model(0)
    engine = make_engine(model, "mtp", 16, max_batch=EVERY_K, step_rows=200, width=lambda seq: seq.id % EVERY_K)
    truth = truth_of(sampling)
    record = assert_promise(model, truth, engine, max_tokens=20, ignore_eos=True, **sampling)
    if name == "hot":
        assert rounds(record)[16] < 14, "nothing was ever accepted: the drafter is dead"


RIGHT: dict[str, Callable[[Span], int]] = {
    "always": lambda span: span.width,
    "never": lambda span: 0,
    "up to j": lambda span: (span.seq.id + len(span.seq.tokens)) % (span.width + 1),
}


@pytest.mark.parametrize("name", RIGHT)
def test_every_k_with_scripted_drafts_beside_a_fed_head(name: str) -> None:
    sampling, model = SAMPLINGS["cool"], tiny_model(1)
    truth = truth_of(sampling, 1)
    drafter = FedScript(model, right_up_to(truth.texts, RIGHT[name]))
    engine = make_engine(model, drafter, 16, max_batch=EVERY_K, step_rows=220, width=lambda seq: seq.id % EVERY_K)
    record = assert_promise(model, truth, engine, max_tokens=20, ignore_eos=True, **sampling)
    least, most = {"always": (1, 3), "never": (17, 20), "up to j": (3, 12)}[name]
    assert least <= rounds(record)[16] <= most


def test_small_batches_many_chunks_reused_slots() -> None:
    """Two texts at a time, prompts in chunks of three, room for few rows: texts wait, and take over slots."""
    model, sampling = tiny_model(1), SAMPLINGS["cut"]
    truth = truth_of(sampling, 1)
    drafter = FedScript(model, right_up_to(truth.texts, RIGHT["up to j"]))
    engine = make_engine(model, drafter, 5, max_batch=3, step_rows=11, prefill_chunk=3)
    assert_promise(model, truth, engine, max_tokens=20, ignore_eos=True, **sampling)
    assert engine.parts.cache.slots.used == 0


def test_texts_put_back_for_want_of_pages() -> None:
    model, sampling = tiny_model(0), SAMPLINGS["greedy"]
    truth = truth_of(sampling)
    engine = make_engine(model, "mtp", 4, max_batch=6, max_length=48, max_pages=11, step_rows=64)
    assert_promise(model, truth, engine, max_tokens=20, ignore_eos=True, **sampling)
    assert engine.scheduler.preemptions > 0


def test_texts_that_end_inside_a_draft() -> None:
    """EOS and stop tokens met in mid-draft end the text where plain decoding ends it."""
    model = tiny_model(2)
    ends = {"max_tokens": 20, "temperature": 1.5, "seed": 3, "stop_token_ids": (2, 9, 17, 33, 40, 52)}
    truth = plain_truth(model, PROMPTS, **ends)
    assert truth.finish.count("stop") > 5
    whole = [*truth.texts]
    drafter = FedScript(model, right_up_to(whole, lambda span: span.width))
    assert_promise(model, truth, make_engine(model, drafter, 6, max_batch=EVERY_K, step_rows=200), **ends)


def test_a_text_alone_is_the_text_of_a_batch() -> None:
    """So a batch may stand for the truth above. Prompts one after the other, then all at once."""
    model, some = tiny_model(0), PROMPTS[3:6]
    sampling = {"max_tokens": 8, "temperature": 0.8, "seed": 1, "ignore_eos": True}
    alone, together = (plain_truth(model, some, alone=alone, **sampling) for alone in (True, False))
    assert (alone.texts, alone.rows) == (together.texts, together.rows)
    assert all(torch.equal(row, together.judged[key]) for key, row in alone.judged.items())


@pytest.mark.slow
@pytest.mark.parametrize("model_seed", range(2, 6))
@pytest.mark.parametrize("name", SAMPLINGS)
def test_random_engines(name: str, model_seed: int) -> None:
    """Random batch, chunk, rows, k and script on other models; a quantised one among them."""
    draw = random.Random(model_seed)
    shape: dict[str, Any] = (
        {"quantise": True, "hca_ratio": 128, "compress_ratios": (0, 4, 0)} if model_seed == 5 else {}
    )
    model = tiny_model(model_seed, **shape)
    truth = plain_truth(model, PROMPTS, max_tokens=20, ignore_eos=True, **SAMPLINGS[name])
    for _ in range(4):
        k, batch = draw.randint(0, 16), draw.randint(1, 9)
        drafter = draw.choice(["mtp", FedScript(model, right_up_to(truth.texts, RIGHT["up to j"]))])
        engine = make_engine(
            model, drafter, k, max_batch=batch, step_rows=draw.randint(20, 90), prefill_chunk=draw.choice([1, 4, None])
        )
        assert_promise(model, truth, engine, drafts=k > 0, max_tokens=20, ignore_eos=True, **SAMPLINGS[name])
