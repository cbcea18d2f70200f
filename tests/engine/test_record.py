"""``Engine.record``: the logits behind each token, by request and position."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.engine.scene import from_script, prompt
from tests.support.engines import make_engine, tiny_model

IDS = prompt(7)
OPTIONS: dict[str, Any] = {"max_tokens": 9, "temperature": 0.0, "ignore_eos": True}


def test_target_rows_are_those_of_score() -> None:
    engine = make_engine(tiny_model(), "mtp", 3)
    with engine.record() as record:
        made = engine.generate(IDS, **OPTIONS)
    logits = engine.score([*IDS, *made.token_ids])
    assert record.target.keys() == {(0, position) for position in range(6, 15)}
    assert all(torch.equal(row, logits[position]) for (_, position), row in record.target.items())
    assert record.rows == {0: 15} and record.passes == made.stats.steps + 1


def test_first_drafts_are_those_of_draft_logits() -> None:
    engine = make_engine(tiny_model(), "mtp", 3)
    with engine.record() as record:
        made = engine.generate(IDS, **OPTIONS)
    logits = engine.draft_logits([*IDS, *made.token_ids])
    assert record.first_draft and min(position for _, position in record.first_draft) == 7
    assert all(torch.equal(row, logits[position - 1]) for (_, position), row in record.first_draft.items())


@pytest.mark.parametrize("k", range(5))
def test_every_token_has_its_row_whatever_was_accepted(k: int) -> None:
    model = tiny_model()
    plain = make_engine(model, "none", 0)
    with plain.record() as expected:
        truth = [*IDS, *plain.generate(IDS, **OPTIONS).token_ids]
    engine = make_engine(model, from_script(truth, lambda position: position % 3 == 1), k)
    with engine.record() as record:
        engine.generate(IDS, **OPTIONS)
    assert record.target.keys() == expected.target.keys() and record.rows == expected.rows
    assert all(torch.equal(row, expected.target[key]) for key, row in record.target.items())


def test_requests_are_numbered_as_they_are_met_and_only_inside_the_block() -> None:
    engine = make_engine(tiny_model(), "none", 0)
    engine.generate(IDS, **OPTIONS)
    with engine.record() as outer:
        engine.generate([IDS, IDS[:3]], **OPTIONS)
        with engine.record() as inner:
            engine.generate(IDS[:5], **OPTIONS)
    engine.generate(IDS, **OPTIONS)
    assert outer.rows == {0: 15, 1: 11, 2: 13} and inner.rows == {0: 13}
    assert all(torch.equal(row, outer.target[2, position]) for (_, position), row in inner.target.items())


def test_a_record_keeps_what_there_was_before_an_interruption() -> None:
    engine = make_engine(tiny_model(), "none", 0)
    with pytest.raises(KeyboardInterrupt), engine.record() as record:
        for number, _ in enumerate(engine.stream(IDS, **OPTIONS)):
            if number == 2:
                raise KeyboardInterrupt
    assert len(record.target) == 3 and record.passes == 3
    engine.generate(IDS, **OPTIONS)
    assert record.passes == 3
