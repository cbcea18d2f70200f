"""Statistics: counted after stops, by position, and never of drafts behind the end of a text."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.core import Kept, Span
from outrider.draft.scripted import ScriptedDrafter
from outrider.engine.results import Stats
from outrider.engine.tally import Tally, Timing
from tests.engine.scene import at_rest, from_script, load, prompt, scripted
from tests.support.engines import make_engine, tiny_model

GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}


def counting(text: list[int] | tuple[int, ...]) -> int:
    """A target that counts up from the last token."""
    return (text[-1] + 1) % 64


def stats_of(wrong_at: Any, k: int, tokens: int, **options: Any) -> Stats:
    truth = [p % 64 for p in range(10, 100)]
    engine = scripted(counting, from_script(truth, wrong_at), k)
    made = engine.generate(truth[:3], max_tokens=tokens, **(GREEDY | options))
    assert made.token_ids == truth[3 : 3 + len(made.token_ids)] and at_rest(engine)
    return made.stats


def test_all_accepted() -> None:
    """One token comes with the prompt; then three passes of four, each of three drafts and a bonus."""
    stats = stats_of(lambda position: False, 3, 13)
    assert (stats.steps, stats.drafted, stats.accepted) == (3, 9, 9)
    assert stats.acceptance_by_position == [1.0, 1.0, 1.0] and stats.tokens_per_step == 4.0


def test_none_accepted() -> None:
    stats = stats_of(lambda position: True, 2, 6)
    assert (stats.steps, stats.accepted) == (5, 0)
    assert stats.drafted == 2 + 2 + 2 + 1 + 0, "drafts shrink at the end"
    assert stats.acceptance_by_position == [0.0, None] and stats.tokens_per_step == 1.0


def test_by_position_given_that_the_one_before_was_accepted() -> None:
    """Wrong at every even position: of each pair the first is accepted or refused in turn."""
    stats = stats_of(lambda position: position % 4 == 2, 3, 15)
    # made: position 3 with the prompt; from 4: [4, 5, 6✗] → 3; from 7: [7, 8, 9] → 4; from 11: [11, 12, 13] → 4; …
    # drafts begin behind the pending token: 4 5 6✗ | 7 8 9 | 11 12 13 | 15 16 17: nothing wrong is met but 6
    assert (stats.steps, stats.drafted, stats.accepted) == (4, 11, 10)
    assert stats.acceptance_by_position == [1.0, 1.0, pytest.approx(2 / 3)]
    assert stats.tokens_per_step == 14 / 4


@pytest.mark.parametrize("k", range(1, 5))
def test_never_drafted_is_none_not_a_number(k: int) -> None:
    engine = scripted(counting, ScriptedDrafter(lambda span: []), k)
    stats = engine.generate([5], max_tokens=4, **GREEDY).stats
    assert stats.acceptance_by_position == [None] * k and (stats.drafted, stats.accepted) == (0, 0)
    assert stats.tokens_per_step == 1.0 and stats.steps == 3


def test_one_token_takes_no_pass_after_the_prompts() -> None:
    engine = scripted(counting, ScriptedDrafter(lambda span: []), 2)
    stats = engine.generate([5], max_tokens=1, **GREEDY).stats
    assert stats.steps == 0 and stats.tokens_per_step is None and stats.acceptance_by_position == [None, None]
    assert stats.hit_tokens == 0


def test_g3_what_lies_behind_the_end_is_not_counted() -> None:
    """G3: drafts [a, b, EOS, c, d], all of them what the target wants: three are emitted, drafted and accepted."""
    truth = [9, 20, 21, 22, 1, 23, 24]
    engine = scripted(lambda text: truth[len(text)] if len(text) < len(truth) else 2, from_script(truth), 5)
    made = engine.generate(truth[:1], max_tokens=20, temperature=0.0)
    assert made.token_ids == [20, 21, 22, 1] and made.finish_reason == "stop"
    assert (made.stats.steps, made.stats.drafted, made.stats.accepted) == (1, 3, 3)
    assert made.stats.acceptance_by_position == [1.0, 1.0, 1.0, None, None] and made.stats.tokens_per_step == 3.0


@pytest.mark.parametrize("k", range(5))
def test_g3_emitted_tokens_add_up(k: int) -> None:
    model = tiny_model()
    engine = make_engine(model, "mtp" if k else "none", k)
    for seed in range(3):
        made = engine.generate(prompt(5), max_tokens=13, temperature=0.8, seed=seed)
        stats = made.stats
        assert stats.tokens_per_step is None or round(stats.tokens_per_step * stats.steps) == len(made.token_ids) - 1
        assert 0 <= stats.accepted <= stats.drafted <= k * stats.steps


def test_g3_nothing_is_negative_when_a_text_is_given_up() -> None:
    engine = scripted(counting, from_script([p % 64 for p in range(90)]), 3)
    for taken in range(4):
        stream = engine.stream([0, 1], max_tokens=40, **GREEDY)
        before = stream.stats
        for _ in range(taken):
            next(stream)
            now = stream.stats
            assert now.steps >= before.steps and now.drafted >= before.drafted and now.accepted >= before.accepted
            before = now
        stream.close()
        assert stream.stats == before and min(before.steps, before.drafted, before.accepted) >= 0


def test_a_cancelled_or_failing_drafter_counts_nothing() -> None:
    def fail(span: Span) -> list[int]:
        raise ArithmeticError("no")

    engine = scripted(counting, ScriptedDrafter(fail), 2)
    with pytest.warns(UserWarning, match="failed to propose"):
        stats = engine.generate([5], max_tokens=3, **GREEDY).stats
    assert (stats.drafted, stats.accepted, stats.steps) == (0, 0, 2)


def test_seconds_are_parts_of_a_whole() -> None:
    stats = make_engine(tiny_model(), "mtp", 3).generate(prompt(20), max_tokens=6, **GREEDY).stats
    assert 0 < stats.prompt_seconds < stats.seconds
    parts = stats.draft_seconds + stats.target_seconds + stats.feed_seconds
    assert min(stats.draft_seconds, stats.target_seconds, stats.feed_seconds) > 0 and parts < stats.seconds


def test_the_tally_counts_what_a_stop_lets_through() -> None:
    """Every number of drafts, accepted and emitted that a last step can have."""
    for drafts in range(6):
        for accepted in range(drafts + 1):
            tally = Tally()
            tally.count_step(Kept(accepted + 1, (5,) * (accepted + 1), accepted, None))
            tally.count_drafts(drafts, Kept(accepted + 1, (5,) * (accepted + 1), accepted, None))
            assert (tally.drafted, tally.accepted, tally.made) == (drafts, accepted, accepted + 1)
            for emitted in range(1, accepted + 2):
                last = Tally()
                last.count_step(Kept(emitted, (5,) * emitted, min(accepted, emitted), "stop"))
                last.count_drafts(drafts, Kept(emitted, (5,) * emitted, min(accepted, emitted), "stop"))
                assert last.drafted == min(drafts, emitted) and last.accepted == min(accepted, emitted)
                assert all(0 <= a <= o for a, o in zip(last.accepted_at, last.offered_at, strict=True))
                assert sum(last.accepted_at) == last.accepted


def test_time_of_the_prompt_is_kept_apart() -> None:
    tally = Tally()
    tally.spent(Timing(2.0, 0.0, 1.0, 0.5), prompt=True)
    tally.spent(Timing(1.0, 0.25, 0.5, 0.25), prompt=False)
    stats = tally.stats(2)
    assert (stats.seconds, stats.prompt_seconds) == (3.0, 2.0)
    assert (stats.draft_seconds, stats.target_seconds, stats.feed_seconds) == (0.25, 1.5, 0.75)


@pytest.mark.parametrize("chunk", [1, 2, 3, 6])
def test_drafts_of_a_prompts_last_token_are_counted(chunk: int) -> None:
    with load("text", draft_length=3, prefill_chunk=chunk, max_length=100) as engine:
        stream = engine.stream(prompt(7), max_tokens=12, temperature=0.0, ignore_eos=True)
        origins = [origin for piece in stream for origin in piece.origins]
        stats = stream.stats
    assert stats.accepted == origins.count("accepted")
    assert stats.drafted >= stats.accepted + origins.count("corrected")
