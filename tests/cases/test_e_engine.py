"""Cases E3 and E9 on the whole engine: mixed batches, and rows that no neighbour can change."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from outrider.core import Sampling
from outrider.core import Sequence as Text
from outrider.engine.llm import Engine
from outrider.engine.request import Request
from outrider.text.stream import TextStream
from tests.engine.scene import prompt
from tests.support.engines import assert_identical, make_engine, plain_truth, recorded, tiny_model

TEMPERATURES = (0.0, 1e-6, 0.7, None)


def run_mixed(engine: Engine, samplings: list[Sampling], ids: list[int]) -> list[list[int]]:
    """One batch whose requests differ in their sampling (``generate`` gives all of a call the same)."""
    requests = []
    for number, sampling in enumerate(samplings):
        seq = Text(1000 + number, list(ids), len(ids), sampling, seed=9, limit=len(ids) + 10)
        requests.append(Request(seq, TextStream(None)))
        engine._submit(requests[-1])
    while not engine.scheduler.idle:
        engine.step()
    return [request.seq.generated for request in requests]


@pytest.mark.parametrize("k", [0, 3])
def test_e3_every_mark_of_greedy_in_one_batch(k: int) -> None:
    model, ids = tiny_model(), prompt(5)
    engine = make_engine(model, "mtp" if k else "none", k)
    samplings = [Sampling(temperature=temperature, ignore_eos=True) for temperature in TEMPERATURES]
    with engine.record() as record:
        made = run_mixed(engine, samplings, ids)
    assert not any(row.isnan().any() for row in [*record.target.values(), *record.first_draft.values()])
    greedy = list(ids)
    for _ in range(10):
        greedy.append(int(engine.score(greedy)[-1].argmax()))
    assert made[0] == made[1] == made[3] == greedy[5:] and made[2] != made[0]
    assert [run_mixed(engine, [sampling], ids)[0] for sampling in samplings] == made
    assert run_mixed(engine, samplings, ids) == made


@pytest.mark.parametrize("k", range(6))
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_e9_float32_is_exact(k: int, temperature: float) -> None:
    """Not only the tokens: every row of logits that judged one, and every first draft, to the last bit."""
    model = tiny_model()
    prompts = [prompt(length, 7) for length in (1, 6, 13)]
    options: dict[str, Any] = {"max_tokens": 12, "temperature": temperature, "seed": 1}
    truth = plain_truth(model, prompts, **options)
    engine = make_engine(model, "mtp" if k else "none", k)
    done, record = recorded(engine, prompts, **options)
    assert_identical(truth, done, record, drafts=bool(k))


def test_e9_what_neighbours_hold_never_changes_a_row() -> None:
    """Same shapes, other contents; also other shapes."""
    model, ids = tiny_model(), prompt(9)
    options: dict[str, Any] = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True}
    engine = make_engine(model, "mtp", 3)
    _, alone = recorded(engine, [ids], **options)
    for seed in range(6):
        others = [prompt(length, 20 + seed) for length in ((9, 9, 9) if seed < 3 else (1, 2 + seed, 17))]
        place = seed % 4
        batch = [*others[:place], ids, *others[place:]]
        done, record = recorded(engine, batch, **options)
        assert len(done) == 4
        mine = {position: row for (number, position), row in record.target.items() if number == place}
        assert mine.keys() == {position for _, position in alone.target}
        assert all(torch.equal(row, alone.target[0, position]) for position, row in mine.items())
