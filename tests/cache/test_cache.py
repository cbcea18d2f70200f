"""Places, plans and commits, one rule at a time."""

from __future__ import annotations

import pytest

from outrider.cache.pool import Pool
from outrider.cache.spec import LogSpec, check_specs
from outrider.errors import CapacityError, ConfigError
from tests.support.caches import assert_clean, assert_holds, make_cache, run, span, stage, text


def test_only_kept_rows_come_home() -> None:
    cache, seq = make_cache(), text(1)
    for committed, (rows, kept) in zip((9, 9, 10, 14, 17), [(9, 9), (5, 0), (7, 1), (5, 4), (3, 3)], strict=True):
        run(cache, [(seq, rows, kept)])
        assert_holds(cache, seq, committed)
        assert_clean(cache, [seq])
        cache.check_integrity([seq])


def test_a_span_longer_than_the_ring_leaves_its_last_rows() -> None:
    cache, seq = make_cache(), text(1)
    run(cache, [(seq, 3, 3)])
    run(cache, [(seq, 21, 19)])
    assert_holds(cache, seq, 22)


def test_spans_of_one_step_keep_different_numbers() -> None:
    cache, seqs = make_cache(), [text(n) for n in range(1, 5)]
    run(cache, [(seq, n + 3, n + 3) for n, seq in enumerate(seqs)])
    run(cache, [(seqs[2], 9, 0), (seqs[0], 6, 6), (seqs[3], 8, 3), (seqs[1], 4, 1)])
    for seq, committed in zip(seqs, (9, 5, 5, 9), strict=True):
        assert_holds(cache, seq, committed)
    cache.check_integrity(seqs)


def test_growth_keeps_every_row() -> None:
    """Pages are taken from memory as they are needed: home grows, staging moves, rows stay."""
    cache, seq, other = make_cache(slots=2, max_pages=20), text(1), text(2)
    run(cache, [(seq, 7, 7), (other, 5, 5)])
    home = cache.logs["fours"].home
    for _ in range(9):
        run(cache, [(seq, 8, 8)])
    assert cache.logs["fours"].home > home
    assert_holds(cache, seq, 79)
    assert_holds(cache, other, 5)
    assert cache.pages.size <= 20


def test_pages_that_drafts_had_reserved_go_back_at_commit() -> None:
    cache, seq = make_cache(), text(1)
    cache.reserve(seq, 20)
    assert len(seq.pages) == 3
    batch = cache.plan([span(seq, 20)], [()])
    stage(cache, batch, [2])
    cache.commit(batch, 2)
    assert len(seq.pages) == 1 and cache.pages.used == 1


def test_reserve_refuses_before_it_changes_anything() -> None:
    cache = make_cache(slots=2, max_pages=3)
    seqs = [text(n) for n in range(3)]
    run(cache, [(seqs[0], 9, 9), (seqs[1], 3, 3)])
    with pytest.raises(CapacityError, match=r"no room for 8 more tokens of sequence 1: 1 pages .* 0 are free"):
        cache.reserve(seqs[1], 8)
    with pytest.raises(CapacityError, match="0 slots are free"):
        cache.reserve(seqs[2], 1)
    assert not cache.can_reserve(seqs[2], 1) and cache.can_reserve(seqs[1], 5)
    cache.check_integrity(seqs)
    assert seqs[2].slot == -1 and not seqs[2].pages


def test_a_released_sequence_leaves_nothing_and_twice_is_once() -> None:
    cache, seq, next_ = make_cache(), text(1), text(2)
    run(cache, [(seq, 11, 11)])
    slot, pages = seq.slot, list(seq.pages)
    cache.release(seq)
    cache.release(seq)
    assert (seq.slot, seq.pages, seq.committed) == (-1, [], 0)
    assert_clean(cache, [])
    run(cache, [(next_, 11, 11)])
    assert (next_.slot, next_.pages) == (slot, pages), "the lowest places are taken first"
    cache.release(seq)  # its old slot belongs to another now
    assert_holds(cache, next_, 11)
    cache.check_integrity([seq, next_])


def test_one_plan_is_alive_at_a_time() -> None:
    cache, seq = make_cache(), text(1)
    cache.reserve(seq, 8)
    first = cache.plan([span(seq, 3)], [()])
    with pytest.raises(RuntimeError, match="still alive"):
        cache.plan([span(seq, 3)], [()])
    with pytest.raises(RuntimeError, match="still alive"):
        cache.plan_drafts([span(seq, 1)], [3])
    cache.discard()
    with pytest.raises(RuntimeError, match="isn't alive"):
        cache.commit(first, 3)
    second = cache.plan([span(seq, 3)], [()])
    with pytest.raises(RuntimeError, match="isn't alive"):
        cache.commit(first, 3)
    stage(cache, second, [3])
    cache.commit(second, 3)
    with pytest.raises(RuntimeError, match="isn't alive"):
        cache.commit(second, 3)
    assert_holds(cache, seq, 3)


def test_discard_forgets_a_step() -> None:
    cache, seq = make_cache(), text(1)
    run(cache, [(seq, 6, 6)])
    cache.reserve(seq, 9)
    stage(cache, cache.plan([span(seq, 9)], [()]), [9])
    cache.discard()
    assert_holds(cache, seq, 6)
    run(cache, [(seq, 5, 5)])
    assert_holds(cache, seq, 11)


def test_a_plan_is_checked() -> None:
    cache, seq = make_cache(step_rows=8), text(1)
    with pytest.raises(RuntimeError, match="holds no slot"):
        cache.plan([span(seq, 3)], [()])
    cache.reserve(seq, 9)
    with pytest.raises(CapacityError, match="step of 9 rows was planned; step_rows is 8"):
        cache.plan([span(seq, 9)], [()])
    with pytest.raises(CapacityError, match="step_rows is 8"):
        cache.plan_drafts([span(seq, 1)], [9])


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (LogSpec("window", 1, 4, horizon=8), "its name is taken"),
        (LogSpec("odd", 1, 4, stride=3), "a page has 8 tokens, which stride 3 doesn't divide"),
        (LogSpec("none", 0, 4, horizon=8), "layers 0"),
        (LogSpec("wide", 1, 0, horizon=8), "width 0"),
        (LogSpec("last", 1, 4, stages="last"), "only a ring"),
        (LogSpec("coarse", 1, 4, stride=4, horizon=8), "a ring has stride 1"),
        (LogSpec("short", 1, 4, horizon=0), "a horizon of at least 1"),
    ],
)
def test_logs_that_cannot_be_kept_are_refused_by_name(spec: LogSpec, why: str) -> None:
    with pytest.raises(ConfigError, match=f"the log '{spec.name}' can't be kept: .*{why}"):
        check_specs([LogSpec("window", 1, 4, horizon=8), spec], 8)


def test_a_pool_gives_the_lowest_place_and_counts() -> None:
    pool = Pool(2, 5)
    assert (pool.free, pool.used) == (5, 0)
    assert [pool.take(), pool.take()] == [0, 1]
    pool.grow(4)
    pool.give(1)
    assert pool.is_free(1) and not pool.is_free(0)
    assert [pool.take(), pool.take()] == [1, 2]
    assert (pool.free, pool.used) == (2, 3)
