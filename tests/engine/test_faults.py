"""What goes wrong inside a step: damaged logits end one request; a drafter's errors end none."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from outrider.cache.cache import Cache
from outrider.core import Kept, Span
from outrider.draft.base import Drafts
from outrider.draft.scripted import ScriptedDrafter
from outrider.errors import OutriderWarning
from outrider.model.transformer import Target
from outrider.ops.rows import Batch
from tests.engine.scene import at_rest, damaged, load, prompt
from tests.support.engines import FedScript, make_engine, recorded, right_up_to, tiny_model

OPTIONS: dict[str, Any] = {"max_tokens": 10, "temperature": 0.7, "seed": 2, "ignore_eos": True}
PROMPTS = ([3, 9, 4], [5, 2, 8, 30, 31], [7, 11])


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("k", range(5))
def test_damaged_logits_end_one_request_and_name_the_position(k: int, value: float) -> None:
    """Damage behind any number of right drafts: the tokens before it stand, and the rest of the batch is unharmed."""
    model = tiny_model()
    plain = make_engine(model, "none", 0)
    whole = [made.token_ids for made in plain.generate([list(ids) for ids in PROMPTS], **OPTIONS)]
    texts = [(*ids, *made) for ids, made in zip(PROMPTS, whole, strict=True)]
    engine = make_engine(model, FedScript(model, right_up_to(texts, lambda span: 9)), k)
    for position in range(4, 9):
        with damaged(engine, {(5, position)}, value):
            made = engine.generate([list(ids) for ids in PROMPTS], **OPTIONS)
        assert [one.finish_reason for one in made] == ["length", "error", "length"]
        assert made[1].error is not None and f"position {position}" in made[1].error
        assert [*PROMPTS[1], *made[1].token_ids] == list(texts[1][: position + 1])
        assert (made[0].token_ids, made[2].token_ids) == (whole[0], whole[2]) and made[0].error is None
        assert at_rest(engine)
    assert [one.token_ids for one in engine.generate([list(ids) for ids in PROMPTS], **OPTIONS)] == whole


def test_damage_behind_the_end_of_a_text_does_not_matter() -> None:
    model = tiny_model()
    whole = make_engine(model, "none", 0).generate([5, 2, 8], **OPTIONS).token_ids
    engine = make_engine(model, FedScript(model, right_up_to([(5, 2, 8, *whole)], lambda span: 9)), 4)
    with damaged(engine, {(5, 6)}, math.nan):
        made = engine.generate([5, 2, 8], **OPTIONS | {"max_tokens": 4})
        assert made.token_ids == whole[:4] and made.finish_reason == "length" and made.error is None
        stopped = engine.generate([5, 2, 8], **OPTIONS | {"stop_token_ids": [whole[3]]})
        assert stopped.finish_reason == "stop" and stopped.error is None


def test_an_error_comes_out_of_a_stream_as_its_last_piece() -> None:
    """Text that was held back comes out too: nothing that was made is lost."""
    engine = load("text", draft="none")
    free = engine.generate([5, 66, 67], **OPTIONS)
    for stop in (None, free.text + "never"):
        for position in range(2, 8):
            with damaged(engine, {(5, position)}, math.nan):
                pieces = list(stream := engine.stream([5, 66, 67], stop=stop, **OPTIONS))
            made = stream.completion
            assert pieces[-1].finish_reason == made.finish_reason == "error" and f"position {position}" in str(
                made.error
            )
            assert made.token_ids == free.token_ids[: position - 2]
            assert "".join(piece.text for piece in pieces) == made.text
            assert engine.tokenizer is not None and made.text == engine.tokenizer.decode(made.token_ids)
    assert at_rest(engine)


# ---- drafters -------------------------------------------------------------------------------------------------------


def plain_text(ids: list[int]) -> list[int]:
    return make_engine(tiny_model(), "none", 0).generate(ids, **OPTIONS).token_ids


def test_a_drafter_that_fails_to_propose_costs_drafts_and_nothing_else() -> None:
    passes: list[int] = []

    def script(span: Span) -> Sequence[int]:
        passes.append(len(span.seq.tokens))
        if len(passes) % 2:
            raise ArithmeticError("no idea")
        return [3, 3]

    engine = make_engine(tiny_model(), ScriptedDrafter(script), 2)
    with pytest.warns(OutriderWarning, match="scripted failed to propose: ArithmeticError"):
        made = engine.generate(prompt(5), **OPTIONS)
    assert made.token_ids == plain_text(prompt(5)) and at_rest(engine)


@pytest.mark.parametrize("ids", [(64,), (3, 64, 3), (-1,), (2**40,), (3,) * 50])
def test_c7_ids_out_of_range_and_too_many_of_them_are_cut(ids: tuple[int, ...]) -> None:
    class Wild(ScriptedDrafter):
        """Says what it likes, however wide."""

        def propose(self, spans: Sequence[Span], cache: Cache) -> Drafts:
            return Drafts(tuple(ids for _ in spans))

    engine = make_engine(tiny_model(), Wild(lambda span: ids), 2)
    made = engine.generate([prompt(5), prompt(3)], **OPTIONS)
    assert [one.token_ids for one in made] == [plain_text(prompt(5)), plain_text(prompt(3))] and at_rest(engine)


def test_drafts_for_another_number_of_texts_are_none() -> None:
    class Short(ScriptedDrafter):
        """Forgets a span."""

        def propose(self, spans: Sequence[Span], cache: Cache) -> Drafts:
            return Drafts(())

    engine = make_engine(tiny_model(), Short(lambda span: ()), 2)
    with pytest.warns(OutriderWarning, match="failed to propose"):
        assert engine.generate(prompt(5), **OPTIONS).token_ids == plain_text(prompt(5))


@pytest.mark.parametrize("at", range(4))
def test_a_head_that_cannot_be_fed_drafts_again_once_its_window_is_new(at: int) -> None:
    """After a failed catch_up there are no drafts until W newer rows are home; then they are those of ever."""
    model, options = tiny_model(), OPTIONS | {"max_tokens": 24}
    drafter = model.drafter()
    engine = make_engine(model, drafter, 2)
    real, calls = drafter.catch_up, iter(range(100))

    def failing(batch: Batch, target: Target, kept: Sequence[Kept], cache: Cache) -> None:
        if next(calls) == at:
            raise ArithmeticError("no room")
        real(batch, target, kept, cache)

    drafter.catch_up = failing  # type: ignore[method-assign]
    with pytest.warns(OutriderWarning, match="mtp failed to catch up"):
        (made,), record = recorded(engine, [prompt(5)], **options)
    assert made.token_ids == make_engine(model, "none", 0).generate(prompt(5), **options).token_ids
    drafts = engine.draft_logits([*prompt(5), *made.token_ids])
    positions = sorted(position for _, position in record.first_draft)
    assert positions[-1] - positions[0] >= 8 or at == 0
    assert max(b - a for a, b in zip([5, *positions], [*positions, 29], strict=True)) >= 8, "a pause of a window"
    for (_, position), row in record.first_draft.items():
        assert row.equal(drafts[position - 1]), f"first draft at {position}"
    assert at_rest(engine)


def test_a_head_with_nan_logits_drafts_nothing_from_there_on() -> None:
    model = tiny_model()
    drafter = model.drafter()
    block = drafter.block

    class Blind:
        """The block, whose logits are NaN."""

        slot, stage, collapsed = block.slot, block.stage, block.collapsed

        def logits(self, streams: Any) -> Any:
            return block.logits(streams) * math.nan

    drafter.block = Blind()  # type: ignore[assignment]
    engine = make_engine(model, drafter, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = engine.generate(prompt(5), **OPTIONS)
    assert made.token_ids == plain_text(prompt(5)) and made.stats.drafted == 0 and at_rest(engine)


@pytest.mark.parametrize("kind", [float, lambda token: torch.tensor([token + 0.5]), str, lambda token: None])
def test_drafts_that_are_no_whole_numbers_are_no_drafts(kind: Callable[[int], Any]) -> None:
    with load("text") as plain:
        want = plain.generate(prompt(5), max_tokens=8, temperature=0.0, ignore_eos=True).token_ids
    drafter = ScriptedDrafter(lambda span: [kind(token) for token in want[len(span.seq.generated) :][:2]])
    with (
        load("text", draft=drafter, draft_length=2) as engine,
        pytest.warns(OutriderWarning, match="failed to propose"),
    ):
        assert engine.generate(prompt(5), max_tokens=8, temperature=0.0, ignore_eos=True).token_ids == want
