"""A cache without a model: every row holds a number that says whose it is, so that a wrong row shows."""

from __future__ import annotations

import torch

from outrider.cache.cache import Cache
from outrider.cache.spec import LogSpec
from outrider.core import Kept, Sampling, Span
from outrider.core import Sequence as Text
from outrider.ops.dispatch import choose_backend
from outrider.ops.rows import Batch

WINDOW, CARRY, ONES, FOURS, EIGHTS = "window", "carry", "ones", "fours", "eights"
SPECS = (
    LogSpec(WINDOW, 2, 3, horizon=8),
    LogSpec(CARRY, 1, 2, horizon=1, stages="last"),
    LogSpec(ONES, 1, 1),
    LogSpec(FOURS, 2, 1, stride=4),
    LogSpec(EIGHTS, 1, 2, stride=8),
)


def make_cache(*, slots: int = 4, max_pages: int = 20, step_rows: int = 64, page_tokens: int = 8) -> Cache:
    """Poisoned throughout."""
    return Cache(
        SPECS,
        choose_backend("reference"),
        slots=slots,
        max_pages=max_pages,
        step_rows=step_rows,
        page_tokens=page_tokens,
        poison=True,
    )


def text(id: int) -> Text:
    """A sequence that holds nothing."""
    return Text(id, [], 0, Sampling(), seed=0, limit=1 << 30)


def span(seq: Text, rows: int) -> Span:
    """``rows`` known tokens from where ``seq`` stands."""
    return Span(seq, seq.committed, (0,) * rows, 0, 0)


def value(seq: Text, key: int, log: str) -> float:
    """The number of a row: exact in float32."""
    return float(seq.id * 4096 + key * 8 + [WINDOW, CARRY, ONES, FOURS, EIGHTS].index(log))


def stage(cache: Cache, batch: Batch, kept: list[int]) -> None:
    """Write what a forward would: every row's number, every entry that closes; the carry of the last kept row."""
    staged = 0
    for index, (desc, item) in enumerate(zip(batch.descs, batch.spans, strict=True)):
        seq = item.seq
        window, carry = cache.logs[WINDOW], cache.logs[CARRY]
        for row in range(desc.rows):
            window.rows[:, window.home + staged + row] = value(seq, seq.committed + row, WINDOW)
        if kept[index]:
            carry.rows[:, carry.home + index] = value(seq, seq.committed + kept[index] - 1, CARRY)
        for name, stride in ((ONES, 1), (FOURS, 4), (EIGHTS, 8)):
            log = cache.logs[name]
            for n, entry in enumerate(range(seq.committed // stride, (seq.committed + desc.rows) // stride)):
                log.rows[:, log.home + staged // stride + index + n] = value(seq, entry, name)
        staged += desc.rows


def run(cache: Cache, work: list[tuple[Text, int, int]]) -> None:
    """One step of (sequence, rows, kept)."""
    for seq, rows, _ in work:
        cache.reserve(seq, rows)
    batch = cache.plan([span(seq, rows) for seq, rows, _ in work], [()] * len(work))
    stage(cache, batch, [kept for _, _, kept in work])
    cache.commit(batch, [Kept(kept) for _, _, kept in work])


def assert_holds(cache: Cache, seq: Text, committed: int) -> None:
    """Exactly the rows of ``committed`` tokens are home for ``seq``."""
    assert seq.committed == committed
    for spec in SPECS:
        log = cache.logs[spec.name]
        if spec.horizon is not None:
            keys = range(max(0, committed - spec.horizon), committed)
            rows = [seq.slot * spec.horizon + key % spec.horizon for key in keys]
        else:
            keys, per_page = range(committed // spec.stride), cache.page_tokens // spec.stride
            rows = [seq.pages[key // per_page] * per_page + key % per_page for key in keys]
        want = torch.tensor([value(seq, key, spec.name) for key in keys])
        assert torch.equal(log.rows[:, rows], want.view(1, -1, 1).expand(spec.layers, -1, spec.width)), spec.name


def assert_clean(cache: Cache, seqs: list[Text]) -> None:
    """Staging, free slots and free pages hold nothing but poison."""
    slots, pages = {seq.slot for seq in seqs}, {page for seq in seqs for page in seq.pages}
    for spec in SPECS:
        log = cache.logs[spec.name]
        assert log.rows[:, log.home :].isnan().all()
        per, held = (spec.horizon, slots) if spec.horizon is not None else (log.page_rows, pages)
        free = [row for row in range(log.home) if row // per not in held]
        assert log.rows[:, free].isnan().all(), spec.name
