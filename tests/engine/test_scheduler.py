"""Who runs, from where, with how many drafts: the scheduler alone, on made-up places."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core import Kept, Sampling, Sequence, Span
from outrider.engine.scheduler import Scheduler
from outrider.errors import CapacityError


@dataclass
class FakePlaces:
    """Pages of ``page`` tokens, ``pages`` of them, and ``slots`` slots; counted, not stored."""

    pages: int = 1000
    page: int = 4
    slots: int = 1000
    held: dict[int, int] = field(default_factory=dict)

    def missing(self, seq: Sequence, rows: int) -> int:
        return max(0, -(-(seq.committed + rows) // self.page) - self.held.get(seq.id, 0))

    @property
    def free(self) -> int:
        return self.pages - sum(self.held.values())

    def can_reserve(self, seq: Sequence, rows: int) -> bool:
        return (seq.slot >= 0 or len(self.held) < self.slots) and self.missing(seq, rows) <= self.free

    def reserve(self, seq: Sequence, rows: int) -> None:
        assert self.can_reserve(seq, rows)
        self.held[seq.id] = self.held.get(seq.id, 0) + self.missing(seq, rows)
        seq.slot = seq.id

    def release(self, seq: Sequence) -> None:
        self.held.pop(seq.id, None)
        seq.slot, seq.committed = -1, 0

    def commit(self, seq: Sequence, rows: int) -> None:
        """What the cache does after a step."""
        seq.committed += rows
        self.held[seq.id] = -(-seq.committed // self.page)


def make(places: FakePlaces | None = None, width: int = 0, **options: Any) -> tuple[Scheduler, list[int]]:
    released: list[int] = []
    settings: dict[str, Any] = {"max_batch": 8, "step_rows": 32, "prefill_chunk": None} | options
    scheduler = Scheduler(
        places or FakePlaces(), width=lambda seq: width, released=lambda seq: released.append(seq.id), **settings
    )
    return scheduler, released


def text(number: int, prompt: int, limit: int = 1000) -> Sequence:
    return Sequence(number, [number] * prompt, prompt, Sampling(), seed=0, limit=limit)


def run(scheduler: Scheduler, places: FakePlaces, accepted: int = 0, token: int = 99) -> list[Span]:
    """One step: every draft up to ``accepted`` is accepted, and one token of the target's own follows."""
    spans = scheduler.next()
    for span in spans:
        made = min(accepted, span.width) + 1 if span.want else 0
        made = min(made, span.seq.limit - len(span.seq.tokens))
        rows = len(span.ids) - 1 + made if span.want else len(span.ids)
        finish = "length" if len(span.seq.tokens) + made == span.seq.limit else None
        places.commit(span.seq, rows)
        scheduler.apply(span.seq, Kept(rows, (token,) * made, max(0, made - 1), finish))
    return spans


def shape(spans: list[Span]) -> list[tuple[int, int, int, int, int]]:
    return [(span.seq.id, span.start, len(span.ids), span.width, span.want) for span in spans]


def test_nothing_to_do() -> None:
    scheduler, _ = make()
    assert scheduler.idle and scheduler.next() == []


def test_first_come_first_served_up_to_max_batch() -> None:
    places = FakePlaces()
    scheduler, _ = make(places, max_batch=2)
    for number in range(4):
        scheduler.add(text(number, 3, limit=5 if number == 0 else 1000))
    assert [span.seq.id for span in run(scheduler, places)] == [0, 1]
    assert [span.seq.id for span in run(scheduler, places)] == [0, 1]  # 0 has reached its limit now
    assert [span.seq.id for span in run(scheduler, places)] == [1, 2]


def test_a_prompt_is_cut_into_chunks_and_only_its_last_wants_logits() -> None:
    places = FakePlaces()
    scheduler, _ = make(places, prefill_chunk=4, width=2)
    scheduler.add(text(0, 10))
    steps = [shape(run(scheduler, places)) for _ in range(4)]
    assert steps == [[(0, 0, 4, 0, 0)], [(0, 4, 4, 0, 0)], [(0, 8, 2, 0, 1)], [(0, 10, 1, 2, 1)]]


def test_a_last_chunk_of_one_token_may_have_drafts_but_a_first_token_may_not() -> None:
    places = FakePlaces()
    scheduler, _ = make(places, prefill_chunk=4, width=3)
    scheduler.add(text(0, 5))
    scheduler.add(text(1, 1))
    assert shape(run(scheduler, places)) == [(0, 0, 4, 0, 0), (1, 0, 1, 0, 1)]
    assert shape(run(scheduler, places)) == [(0, 4, 1, 3, 1), (1, 1, 1, 3, 1)]


def test_a_step_never_has_more_rows_than_its_budget() -> None:
    places = FakePlaces()
    scheduler, _ = make(places, step_rows=7, width=5)
    for number in range(3):
        scheduler.add(text(number, 9))
    for _ in range(30):
        spans = run(scheduler, places, accepted=2)
        assert spans and sum(len(span.ids) + span.width for span in spans) <= 7


def test_drafts_shrink_before_anyone_waits() -> None:
    places = FakePlaces()
    scheduler, _ = make(places, step_rows=6, width=9)
    for number in range(3):
        scheduler.add(text(number, 1))
    run(scheduler, places)
    assert [(len(span.ids), span.width) for span in run(scheduler, places)] == [(1, 3), (1, 0), (1, 0)]


def test_making_goes_before_reading() -> None:
    """A long prompt takes what is left; the texts that are being made don't wait for it. Spans keep their order."""
    places = FakePlaces()
    scheduler, _ = make(places, step_rows=8, max_batch=3)
    scheduler.add(text(0, 2))
    run(scheduler, places)
    scheduler.add(text(1, 40))
    scheduler.add(text(2, 3))
    assert [(span.seq.id, len(span.ids)) for span in run(scheduler, places)] == [(0, 1), (1, 6), (2, 1)]


@pytest.mark.parametrize("left", range(1, 8))
def test_drafts_shrink_at_the_limit(left: int) -> None:
    """With ``left`` tokens to go a step makes at most that many: one fewer drafts."""
    places = FakePlaces()
    scheduler, _ = make(places, width=4)
    scheduler.add(text(0, 3, limit=4 + left))
    run(scheduler, places)
    (span,) = run(scheduler, places, accepted=9)
    assert span.width == min(4, left - 1)
    assert (span.seq.finish == "length") == (left <= 5)


@pytest.mark.parametrize("pages", range(1, 5))
def test_drafts_shrink_where_pages_are_short(pages: int) -> None:
    """A8: four tokens a page and k = 9. The width is what fits, and nothing is reserved beyond it."""
    places = FakePlaces(pages=pages)
    scheduler, _ = make(places, width=9)
    scheduler.add(text(0, 3))
    run(scheduler, places)
    (span,) = scheduler.next()
    assert span.width == min(9, 4 * pages - 4)
    assert places.held[0] == -(-(4 + span.width) // 4)


def test_the_youngest_is_put_back_and_nothing_is_lost() -> None:
    places = FakePlaces(pages=4)
    scheduler, released = make(places)
    old, young = text(0, 7), text(1, 7)
    scheduler.add(old)
    scheduler.add(young)
    run(scheduler, places)  # 2 pages each: full
    run(scheduler, places)  # position 7, still in page 2
    made = list(young.tokens)
    assert shape(run(scheduler, places)) == [(0, 8, 1, 0, 1)]
    assert young.tokens == made and young.committed == 0 and young.slot == -1 and young.finish is None
    assert list(scheduler.waiting) == [young] and released == [1] and scheduler.preemptions == 1
    scheduler.cancel(old)
    assert shape(run(scheduler, places)) == [(1, 0, 9, 0, 1)]  # its rows are made anew, and one more token
    assert young.tokens == [*made, 99]


def test_of_several_the_last_to_come_is_put_back() -> None:
    places = FakePlaces(pages=6)
    scheduler, released = make(places)
    for number in range(3):
        scheduler.add(text(number, 7))
    for _ in range(3):
        run(scheduler, places)
    assert released == [2] and [seq.id for seq in scheduler.running] == [0, 1]


def test_a_text_that_came_later_puts_nobody_back() -> None:
    places = FakePlaces(pages=2)
    scheduler, released = make(places, prefill_chunk=4)
    scheduler.add(text(0, 12))  # three chunks of a page each
    scheduler.add(text(1, 4))
    run(scheduler, places)  # a page each: full
    # The younger one's next token goes before a prompt, but only a text that came before may take its place away.
    assert shape(run(scheduler, places)) == [(0, 4, 4, 0, 0)]
    assert released == [1]


def test_who_was_put_back_comes_before_who_waits() -> None:
    places = FakePlaces(pages=4)
    scheduler, _ = make(places, max_batch=2)
    for number in range(3):
        scheduler.add(text(number, 7))
    for _ in range(3):
        run(scheduler, places)
    assert [seq.id for seq in scheduler.waiting] == [1, 2]


def test_no_room_for_anyone_is_an_error_that_changes_nothing() -> None:
    places = FakePlaces(pages=1)
    scheduler, _ = make(places)
    seq = text(0, 5)
    scheduler.add(seq)
    for _ in range(2):
        with pytest.raises(CapacityError, match="max_pages"):
            scheduler.next()
        assert scheduler.running == [seq] and places.held == {} and seq.finish is None
    scheduler.cancel(seq)
    assert scheduler.idle and seq.finish == "cancelled"


@pytest.mark.parametrize("state", ["waiting", "running"])
def test_cancelling_frees_once(state: str) -> None:
    places = FakePlaces()
    scheduler, released = make(places)
    seq = text(0, 3)
    scheduler.add(seq)
    if state == "running":
        run(scheduler, places)
    scheduler.cancel(seq)
    scheduler.cancel(seq)
    assert scheduler.idle and places.held == {} and released == [0] and seq.finish == "cancelled"


def test_cancelling_what_has_finished_does_nothing() -> None:
    places = FakePlaces()
    scheduler, released = make(places)
    seq = text(0, 3, limit=4)
    scheduler.add(seq)
    run(scheduler, places)
    assert seq.finish == "length" and released == [0]
    scheduler.cancel(seq)
    assert seq.finish == "length" and released == [0]


@given(
    prompts=st.lists(st.tuples(st.integers(1, 14), st.integers(1, 12)), min_size=1, max_size=6),
    pages=st.integers(7, 16),
    step_rows=st.integers(3, 12),
    width=st.integers(0, 5),
    accepted=st.integers(0, 5),
    chunk=st.none() | st.integers(1, 6),
)
def test_every_text_is_made_whole_whatever_the_room(
    prompts: list[tuple[int, int]], pages: int, step_rows: int, width: int, accepted: int, chunk: int | None
) -> None:
    """Any budget and any number of pages that holds one text: all finish, in whole, within the bounds."""
    places = FakePlaces(pages=pages)
    scheduler, _ = make(places, width, max_batch=3, step_rows=step_rows, prefill_chunk=chunk)
    seqs = [text(number, prompt, prompt + made) for number, (prompt, made) in enumerate(prompts)]
    for seq in seqs:
        scheduler.add(seq)
    for _ in range(2000):
        if scheduler.idle:
            break
        spans = run(scheduler, places, accepted)
        assert spans and sum(len(span.ids) + span.width for span in spans) <= step_rows and places.free >= 0
        for span in spans:
            assert not span.width or (len(span.ids) == span.want == 1 and span.start)
    assert scheduler.idle and places.held == {}
    assert all(seq.finish == "length" and len(seq.tokens) == seq.limit for seq in seqs)
