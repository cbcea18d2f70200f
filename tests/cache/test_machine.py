"""Any order of opening, stepping, breaking off and releasing: the cache always holds exactly what was committed."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from outrider.core import Sequence as Text
from tests.support.caches import assert_clean, assert_holds, make_cache, run, span, stage, text

work = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 14), st.integers(0, 14)), min_size=1, max_size=4)


class CacheMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cache = make_cache(slots=4, max_pages=14)
        self.held: list[Text] = []
        self.gone: list[Text] = []
        self.committed: dict[int, int] = {}
        self.opened = 0

    @precondition(lambda self: len(self.held) < 4)
    @rule()
    def open(self) -> None:
        self.opened += 1
        self.held.append(text(self.opened))
        self.committed[self.opened] = 0

    @precondition(lambda self: self.held)
    @rule(work=work)
    def step(self, work: list[tuple[int, int, int]]) -> None:
        chosen = self._fitting(work)
        run(self.cache, chosen)
        for seq, _, kept in chosen:
            self.committed[seq.id] += kept

    @precondition(lambda self: self.held)
    @rule(work=work, staged=st.booleans())
    def break_off(self, work: list[tuple[int, int, int]], staged: bool) -> None:
        chosen = self._fitting(work)
        for seq, rows, _ in chosen:
            self.cache.reserve(seq, rows)
        batch = self.cache.plan([span(seq, rows) for seq, rows, _ in chosen], [()] * len(chosen))
        if staged:
            stage(self.cache, batch, [kept for _, _, kept in chosen])
        self.cache.discard()

    def _fitting(self, work: list[tuple[int, int, int]]) -> list[tuple[Text, int, int]]:
        """Each sequence once, with as many rows as all can have together."""
        chosen: dict[int, tuple[Text, int, int]] = {}
        pages = self.cache.pages.free
        for which, rows, kept in work:
            seq = self.held[which % len(self.held)]
            missing = self.cache.missing_pages(seq, rows)
            if seq.id not in chosen and missing <= pages:
                pages -= missing
                chosen[seq.id] = (seq, rows, min(kept, rows))
        return list(chosen.values())

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 3), twice=st.booleans())
    def release(self, which: int, twice: bool) -> None:
        seq = self.held.pop(which % len(self.held))
        self.cache.release(seq)
        if twice:
            self.cache.release(seq)
        self.gone.append(seq)

    @precondition(lambda self: self.gone)
    @rule(which=st.integers(0, 3))
    def release_one_long_gone(self, which: int) -> None:
        self.cache.release(self.gone[which % len(self.gone)])

    @invariant()
    def holds_what_was_committed(self) -> None:
        self.cache.check_integrity([*self.held, *self.gone])
        for seq in self.held:
            assert_holds(self.cache, seq, self.committed[seq.id])
        assert_clean(self.cache, self.held)


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
