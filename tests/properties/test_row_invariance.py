"""Whole steps are row-invariant: the bits of a row don't depend on the rows beside it, their number, their order, or
the number of threads. All other tests that put many scenarios into one batch rest on this one."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from tests.support.engines import tiny_model
from tests.support.harness import Harness, Round, drafted, random_text

TEXTS = 34

pytestmark = pytest.mark.timeout(600)  # seconds on a quiet core, minutes on a crowded one


class Crowd:
    """Texts of different lengths, each with a span of its own; steps keep nothing, so each can be run again."""

    def __init__(self) -> None:
        self.harness = Harness(tiny_model(0), slots=TEXTS, step_rows=800)
        draw = random.Random(1)
        texts = [random_text(60, n) for n in range(TEXTS)]
        seqs = [self.harness.open() for _ in texts]
        self.harness.step(
            [Round(seq, tuple(text[: draw.randint(1, 24)])) for seq, text in zip(seqs, texts, strict=True)]
        )
        self.rounds = []
        for n, (seq, text) in enumerate(zip(seqs, texts, strict=True)):
            at, width = seq.committed, n % 7
            known = tuple(text[at : at + 1 + (n % 5 == 4) * 3])
            drafts = drafted(text, at + len(known) - 1, width, draw.randint(0, width), draw)
            self.rounds.append(Round(seq, known, drafts, keep=0, width=width))
        self.alone = [self.run([n]) for n in range(TEXTS)]

    def run(self, members: list[int]) -> list[tuple[Tensor, Tensor | None]]:
        """Target logits and first-draft logits of these texts, run together."""
        rounds = [self.rounds[n] for n in members]
        with self.harness.model.trunk.ops.running():
            first = self.harness.first_drafts(rounds)
            return [(logits, first.get(i)) for i, logits in enumerate(self.harness.step(rounds))]

    def check(self, members: list[int]) -> None:
        for n, (logits, first) in zip(members, self.run(members), strict=True):
            ((want, want_first),) = self.alone[n]
            assert torch.equal(logits, want), f"text {n} in a batch of {len(members)}"
            assert (first is None) == (want_first is None)
            assert first is None or want_first is None or torch.equal(first, want_first)


@pytest.fixture(scope="module")
def crowd() -> Crowd:
    return Crowd()


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_alone_and_beside_1_to_33_others(crowd: Crowd) -> None:
    draw = random.Random(2)
    for count in range(2, TEXTS + 1):
        crowd.check(draw.sample(range(TEXTS), count))


def test_any_order(crowd: Crowd) -> None:
    draw, everyone = random.Random(3), list(range(TEXTS))
    for _ in range(3):
        draw.shuffle(everyone)
        crowd.check(everyone)


@pytest.mark.parametrize("members", [[6], [13, 4], [4, 13, 27, 9, 20]], ids=["one", "two", "five"])
def test_two_threads_give_the_bits_of_one(crowd: Crowd, two_threads: None, members: list[int]) -> None:
    crowd.check(members)


@pytest.mark.slow
def test_two_threads_and_everyone(crowd: Crowd, two_threads: None) -> None:
    crowd.check(list(range(TEXTS)))
