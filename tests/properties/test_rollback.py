"""After any step, however it was drafted, accepted, cut, mixed or broken off, the cache holds the rows of one plain
pass over the committed tokens, bit for bit, and every later row of logits is that pass's row."""

from __future__ import annotations

import random

import pytest
import torch

from outrider.core import Sequence as Text
from tests.support.engines import Model, stateless_drafts, stateless_logits, tiny_model
from tests.support.harness import Harness, Reference, Round, assert_home, drafted, random_text, reference

WIDTHS = range(17)

pytestmark = pytest.mark.timeout(600)  # seconds on a quiet core, minutes on a crowded one


class Stop(BaseException):
    """Not an Exception: nothing on the way may swallow it."""


class Walk:
    """Texts that go through rounds (width, right) until every one was met at every prefix length mod 8."""

    def __init__(self, model: Model, *, texts: int, seed: int, length: int = 170) -> None:
        self.model = model
        self.draw = random.Random(seed)
        self.references = [reference(self.model, random_text(length, seed * 100 + i)) for i in range(4)]
        self.harness = Harness(self.model, slots=texts, step_rows=texts * 24)
        self.todo = {residue: self._all() for residue in range(8)}
        self.running: list[tuple[Text, Reference]] = []
        self.texts = texts
        self.rounds = 0

    def _all(self) -> list[tuple[int, int]]:
        pairs = [(width, right) for width in WIDTHS for right in range(width + 1)]
        self.draw.shuffle(pairs)
        return pairs

    @property
    def left(self) -> int:
        return sum(map(len, self.todo.values()))

    def step(self, *, broken: float = 0.1, widths: range = WIDTHS) -> None:
        self._refill()
        self.draw.shuffle(self.running)  # slots and rows of the batch are independent of each other
        rounds = [self._round(seq, want.ids, widths) for seq, want in self.running]
        first = self.harness.first_drafts(rounds)
        before = [(item.seq, item.seq.committed) for item in rounds]
        if self.draw.random() < broken:
            self._break_off(rounds)
            assert [(item.seq, item.seq.committed) for item in rounds] == before
        logits = self.harness.step(rounds)
        for index, ((seq, want), item, rows) in enumerate(zip(self.running, rounds, logits, strict=True)):
            start = seq.committed - item.kept
            assert torch.equal(rows[: item.kept], want.logits[start : start + item.kept]), (item.width, item.kept)
            if index in first:
                assert torch.equal(first[index], want.first[start - 1]), "first-draft logits"
            assert_home(self.harness.cache, seq, want)
        self.harness.cache.check_integrity([seq for seq, _ in self.running])
        self.rounds += len(rounds)

    def _break_off(self, rounds: list[Round]) -> None:
        stage = self.draw.choice(["target", "catch_up", "commit"])

        def interrupt(now: str) -> None:
            if now == stage:
                raise Stop

        with pytest.raises(Stop):
            self.harness.step(rounds, interrupt)

    def _round(self, seq: Text, text: tuple[int, ...], widths: range) -> Round:
        at = seq.committed
        if at < 3 or self.draw.random() < 0.05:  # a prompt's chunk
            count = self.draw.randint(1, 9)
            return Round(seq, text[at : at + count])
        fitting = [pair for pair in self.todo[at % 8] if pair[0] in widths]
        width, right = fitting[0] if fitting else self._any(widths)
        if fitting:
            self.todo[at % 8].remove(fitting[0])
        drafts = drafted(text, at, width, right, self.draw)
        return Round(seq, (text[at],), drafts, keep=1 + right, width=min(width, 1))

    def _any(self, widths: range) -> tuple[int, int]:
        width = self.draw.choice(widths)
        return width, self.draw.randint(0, width)

    def _refill(self) -> None:
        for seq, want in list(self.running):
            if seq.committed + 20 > len(want.ids):
                self.running.remove((seq, want))
                self.harness.close(seq)  # its slot goes to the next one
        while len(self.running) < self.texts:
            self.running.append((self.harness.open(), self.draw.choice(self.references)))


def test_every_width_every_accepted_length_every_prefix_mod_8() -> None:
    walk = Walk(tiny_model(0), texts=32, seed=1)
    while walk.left:
        walk.step()
    assert walk.rounds >= 8 * 153


def test_a_tenth_of_the_rounds_alone() -> None:
    """The same walk with one text in the batch: nothing hides behind rows being invariant."""
    walk = Walk(tiny_model(1), texts=1, seed=2)
    while walk.rounds < 60:
        walk.step()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 9))
def test_every_round_on_other_models(seed: int) -> None:
    walk = Walk(tiny_model(seed), texts=24, seed=seed)
    while walk.left:
        walk.step(broken=0.3)


def test_rounds_of_a_quantised_model() -> None:
    """FP8 and FP4 simulation round by value, never by path."""
    walk = Walk(tiny_model(5, quantise=True, hca_ratio=128, compress_ratios=(0, 4, 0)), texts=8, seed=3, length=90)
    for _ in range(8):
        walk.step()


@pytest.mark.parametrize("edge", [range(122, 132)], ids=["around 128"])
def test_prefixes_around_the_real_ratio_and_page_of_128(edge: range) -> None:
    """ratio 128, pages of 128 tokens: a round ends before, on and after the boundary, from each side of it."""
    model = tiny_model(2, hca_ratio=128, compress_ratios=(4, 128, 0))
    text = random_text(160, 11)
    want = reference(model, text, page_tokens=128)
    harness = Harness(model, slots=len(edge), step_rows=1400, page_tokens=128)
    draw = random.Random(5)
    seqs = [harness.open() for _ in edge]
    harness.step([Round(seq, tuple(text[: at - 30])) for seq, at in zip(seqs, edge, strict=True)])
    harness.step([Round(seq, tuple(text[at - 30 : at])) for seq, at in zip(seqs, edge, strict=True)])
    for width, right in [(7, 127), (16, 3), (1, 1), (5, 0)]:
        rounds = []
        for seq in seqs:
            good = max(0, min(width, right - seq.committed)) if right > 16 else right
            drafts = drafted(text, seq.committed, width, good, draw)
            rounds.append(Round(seq, (text[seq.committed],), drafts, keep=1 + good, width=1))
        first = harness.first_drafts(rounds)
        for index, (item, rows) in enumerate(zip(rounds, harness.step(rounds), strict=True)):
            start = item.seq.committed - item.kept
            assert torch.equal(rows[: item.kept], want.logits[start : start + item.kept])
            assert torch.equal(first[index], want.first[start - 1])
            assert_home(harness.cache, item.seq, want)


def test_one_pass_is_the_stateless_reference() -> None:
    """What all tests here compare with: one pass over a text gives the rows of one pass for each prefix."""
    model, text = tiny_model(0), random_text(41, 3)
    want = reference(model, text)
    assert torch.equal(want.logits, stateless_logits(model, text))
    assert torch.equal(want.first, stateless_drafts(model, text))
