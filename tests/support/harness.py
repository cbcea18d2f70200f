"""The step by hand: spans, drafts and accepted lengths as a test wants them, on one cache; and what must be in it.

The text is given, not sampled: a right draft is the text's next token. So one batch can hold any scenario, and every
row has a known reference: the row of one pass over the whole text.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.cache.cache import Cache
from outrider.core import Kept, Sampling, Span
from outrider.core import Sequence as Text
from outrider.draft.mtp import MtpDrafter
from outrider.model.logs import MTP_CARRY, MTP_WINDOW, trunk_specs
from tests.support.engines import Model


@dataclass(frozen=True)
class Reference:
    """One pass over ``ids``: ``logits [T, vocab]``, ``first [T-1, vocab]`` of the MTP head, and the row of every log
    by position (stride 1) or entry: ``rows[name] [layers, T // stride, width]``."""

    ids: tuple[int, ...]
    logits: Tensor
    first: Tensor
    rows: dict[str, Tensor]


@dataclass(frozen=True)
class Round:
    """One span of a step: ``known`` tokens, then ``drafts``; ``keep`` rows are committed."""

    seq: Text
    known: tuple[int, ...]
    drafts: tuple[int, ...] = ()
    keep: int | None = None
    width: int = 0
    """Drafts that the MTP head is asked for before (they are looked at and thrown away)."""

    @property
    def kept(self) -> int:
        return len(self.known) + len(self.drafts) if self.keep is None else self.keep


class Harness:
    """A cache with the logs of trunk and MTP head, and the step of design §5 without engine."""

    def __init__(self, model: Model, *, slots: int, step_rows: int, page_tokens: int = 8, poison: bool = True) -> None:
        self.model = model
        self.drafter: MtpDrafter = model.drafter()
        self.cache = Cache(
            (*trunk_specs(model.config), *self.drafter.logs),
            model.trunk.ops,
            slots=slots,
            max_pages=slots * 64,
            step_rows=step_rows,
            page_tokens=page_tokens,
            poison=poison,
        )
        self._opened = 0

    def open(self) -> Text:
        """A text without rows."""
        self._opened += 1
        return Text(self._opened, [], 0, Sampling(temperature=0.0), seed=0, limit=1 << 30)

    def close(self, seq: Text) -> None:
        self.cache.release(seq)
        self.drafter.release(seq)

    def first_drafts(self, rounds: Sequence[Round]) -> dict[int, Tensor]:
        """The head's logits for the first draft of each round that asks for some."""
        for item in rounds:
            self.cache.reserve(item.seq, len(item.known) + max(len(item.drafts), item.width))
        found = self.drafter.propose(self._spans(rounds), self.cache).first_logits
        self.cache.discard()
        return found

    def step(self, rounds: Sequence[Round], interrupt: Callable[[str], None] = lambda stage: None) -> list[Tensor]:
        """Run and commit; logits of all rows of each round. ``interrupt`` is called with "target", "catch_up" and
        "commit" before each, and may raise."""
        cache = self.cache
        for item in rounds:
            cache.reserve(item.seq, len(item.known) + len(item.drafts))
        batch = cache.plan(self._spans(rounds), [item.drafts for item in rounds])
        kept = [Kept(item.kept) for item in rounds]
        try:
            interrupt("target")
            target = self.model.trunk(batch, cache, tap=True)
            interrupt("catch_up")
            self.drafter.catch_up(batch, target, kept, cache)
            interrupt("commit")
        except BaseException:
            cache.discard()
            raise
        cache.commit(batch, kept)
        for item in rounds:
            item.seq.tokens += (*item.known, *item.drafts)[: item.kept]
        return list(target.logits.split([len(item.known) + len(item.drafts) for item in rounds]))

    def _spans(self, rounds: Sequence[Round]) -> list[Span]:
        return [
            Span(item.seq, item.seq.committed, item.known, item.width if len(item.known) == 1 else 0, len(item.known))
            for item in rounds
        ]

    def prefill(self, seq: Text, ids: Sequence[int], chunks: Sequence[int] = ()) -> None:
        """Commit ``ids``, cut as ``chunks`` say (the rest in one)."""
        left = list(ids)
        for chunk in (*chunks, len(left)):
            if left[:chunk]:
                self.step([Round(seq, tuple(left[:chunk]))])
            left = left[chunk:]


def reference(model: Model, ids: Sequence[int], *, page_tokens: int = 8) -> Reference:
    """One pass over all of ``ids`` on an empty cache; read from staging, nothing is committed."""
    harness = Harness(model, slots=1, step_rows=len(ids) + 1, page_tokens=page_tokens)
    cache, seq, count = harness.cache, harness.open(), len(ids)
    cache.reserve(seq, count)
    batch = cache.plan([Span(seq, 0, tuple(ids), 0, count)], [()])
    target = model.trunk(batch, cache, tap=True)
    assert target.streams is not None
    rows = {name: log.rows[:, log.home :][:, : count // log.spec.stride].clone() for name, log in cache.logs.items()}
    slots = batch.rows([0], [count - 1], range(1, count), ids[1:], [1])
    first = model.mtp.logits(model.mtp.slot(target.streams[:-1], slots, cache))
    window = cache.logs[MTP_WINDOW]
    rows[MTP_WINDOW] = window.rows[:, window.home : window.home + count].clone()
    rows[MTP_CARRY] = target.streams.flatten(1).unsqueeze(0).clone()
    return Reference(tuple(ids), target.logits, first, rows)


def home_rows(cache: Cache, seq: Text, name: str) -> tuple[range, Tensor]:
    """Which positions (or entries) of ``seq`` a log must hold at home, and the rows ``[layers, n, width]`` there.
    Written from design §4's text, not with the functions of ``ops.address``."""
    log = cache.logs[name]
    spec = log.spec
    if spec.horizon is None:
        per_page = cache.page_tokens // spec.stride
        held = range(seq.committed // spec.stride)
        where = [seq.pages[entry // per_page] * per_page + entry % per_page for entry in held]
    else:
        lowest = 1 if name == MTP_WINDOW else 0  # no token gives key 0 its streams
        held = range(max(lowest, seq.committed - spec.horizon), seq.committed)
        where = [seq.slot * spec.horizon + position % spec.horizon for position in held]
    return held, log.rows[:, where]


def assert_home(cache: Cache, seq: Text, want: Reference) -> None:
    """Every home row of ``seq`` is the row of one pass over its committed tokens, to the last bit."""
    assert tuple(seq.tokens[: seq.committed]) == want.ids[: seq.committed]
    for name in cache.logs:
        held, rows = home_rows(cache, seq, name)
        expected = want.rows[name][:, held.start : held.stop]
        assert torch.equal(rows, expected), f"home rows of {name} differ at {seq.committed} committed tokens"


def random_text(length: int, seed: int, vocab: int = 64) -> list[int]:
    """Token ids, any of them."""
    draw = random.Random(seed)
    return [draw.randrange(vocab) for _ in range(length)]


def drafted(text: Sequence[int], committed: int, width: int, right: int, draw: random.Random) -> tuple[int, ...]:
    """``width`` drafts after the pending token at ``committed``: the first ``right`` are the text's own, the next is
    wrong, the rest are anything."""
    ahead = list(text[committed + 1 : committed + 1 + width])
    for index in range(right, width):
        ahead[index] = (ahead[index] + (1 if index == right else draw.randrange(64))) % 64
    return tuple(ahead)
