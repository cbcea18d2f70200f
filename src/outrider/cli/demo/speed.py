"""Part three: how often drafts are accepted on text that doesn't repeat itself, and the speed of both, run in turn."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.table import Table

from outrider.cli.demo.job import DRAFTS, PROMPTS, Job
from outrider.cli.heard import Heard, add, shares
from outrider.cli.screen import Screen

if TYPE_CHECKING:
    from outrider import Engine

TOKENS = 48
GRAM = 8
SHORTEST = 9
"""A text that repeats itself, or ends, before it has this many tokens says nothing of speed."""


@dataclass(frozen=True)
class Pair:
    """One prompt, plain and drafted, cut where the text begins to repeat itself."""

    plain: Heard
    drafted: Heard


@dataclass(frozen=True)
class Speed:
    """What the pairs say together. Rates are tokens a second after the first token, one a pair."""

    pairs: tuple[Pair, ...]

    @property
    def tokens(self) -> int:
        """How much text was measured."""
        return sum(len(pair.drafted.token_ids) for pair in self.pairs)

    @property
    def offered(self) -> list[int]:
        """How many drafts were judged at each position, those before them accepted."""
        return add(pair.drafted.offered() for pair in self.pairs)

    @property
    def accepted(self) -> list[int]:
        """How many of them were accepted."""
        return add(pair.drafted.accepted() for pair in self.pairs)

    @property
    def tokens_per_step(self) -> float | None:
        """Committed tokens a target pass; None where nothing was measured."""
        steps = sum(pair.drafted.steps for pair in self.pairs)
        return self.tokens / steps if steps else None

    def rates(self, which: str) -> list[float]:
        """Rates of 'plain' or 'drafted', of the pairs in which both have one."""
        both = [(pair.plain.decode_rate(), pair.drafted.decode_rate()) for pair in self.pairs]
        return [(plain if which == "plain" else drafted) for plain, drafted in both if plain and drafted]

    @property
    def ratio(self) -> float | None:
        """Median over the pairs of drafted / plain."""
        ratios = [d / p for p, d in zip(self.rates("plain"), self.rates("drafted"), strict=True)]
        return median(ratios) if ratios else None

    def as_json(self) -> dict[str, Any]:
        """What ``--json`` says of this part."""
        return {
            "tokens": self.tokens,
            "acceptance_by_position": shares(self.accepted, self.offered),
            "offered_by_position": self.offered,
            "tokens_per_step": self.tokens_per_step,
            "tokens_per_second": {"plain": self.rates("plain"), "drafted": self.rates("drafted")},
            "drafted_over_plain": self.ratio,
        }


def show_speed(screen: Screen, job: Job) -> Speed:
    """Measure, and print the table and what follows from it."""
    screen.title("3  Acceptance and speed", f"{len(PROMPTS)} prompts, until the text repeats {GRAM} tokens")
    pairs: list[Pair] = []
    with job.engine() as plain, job.engine(draft_length=DRAFTS) as drafting:
        for number, prompt in enumerate(PROMPTS):
            with screen.status(f"prompt {number + 1} of {len(PROMPTS)}"):
                pairs.append(_pair(plain, drafting, job, prompt, drafted_first=bool(number % 2)))
    speed = Speed(tuple(pair for pair in pairs if len(pair.drafted.token_ids) >= SHORTEST))
    screen.print(_table(speed))
    screen.print(_sentence(speed))
    return speed


def _pair(plain: Engine, drafting: Engine, job: Job, prompt: str, *, drafted_first: bool) -> Pair:
    """Both runs one after the other, the order changing from pair to pair so that neither has the warmer machine."""
    heard = {}
    for engine in (drafting, plain) if drafted_first else (plain, drafting):
        heard[engine] = Heard()
        for _ in job.stream(engine, heard[engine], prompt, TOKENS):
            pass
    until = first_repeat(heard[plain].token_ids)
    return Pair(heard[plain].first(until), heard[drafting].first(until))


def first_repeat(token_ids: list[int], gram: int = GRAM) -> int:
    """How many tokens come before the end of the first ``gram`` tokens in a row that were there before."""
    seen: set[tuple[int, ...]] = set()
    for end in range(gram, len(token_ids) + 1):
        window = tuple(token_ids[end - gram : end])
        if window in seen:
            return end - 1
        seen.add(window)
    return len(token_ids)


def _table(speed: Speed) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column()
    by_position = zip(shares(speed.accepted, speed.offered), speed.offered, strict=True)
    for at, (share, count) in enumerate(by_position, start=1):
        given = "" if at == 1 else ", those before it accepted"
        table.add_row(f"accepted at position {at}", f"{share or 0:.2f}  of {count}{given}")
    if speed.tokens_per_step:
        table.add_row("committed tokens a step", f"{speed.tokens_per_step:.2f}  over {speed.tokens} tokens")
    for which, name in (("plain", "plain"), ("drafted", f"drafted, k = {DRAFTS}")):
        if rates := speed.rates(which):
            spread = f"{min(rates):.1f} to {max(rates):.1f} over {len(rates)} runs in turn"
            table.add_row(name, f"{median(rates):.1f} tokens/s  ({spread})")
    return table


def _sentence(speed: Speed) -> str:
    if speed.ratio is None:
        return "The texts were too short to say anything of speed."
    if speed.ratio > 1.02:
        return f"Here drafting is {speed.ratio:.2f} times as fast as plain decoding (median of the pairs)."
    how = "makes no difference to the speed" if speed.ratio > 0.98 else "is slower than plain decoding"
    return (
        f"Here drafting {how} ({speed.ratio:.2f} times, median of the pairs): on this backend and model the passes "
        "that it saves don't pay for drafting and for the rows that a verifying pass adds."
    )
