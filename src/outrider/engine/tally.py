"""Counts of one request's drafting, while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from outrider.core import Kept
from outrider.engine.results import Stats


@dataclass(slots=True)
class Timing:
    """Wall seconds of one step: the whole, and three parts of it."""

    whole: float = 0.0
    draft: float = 0.0
    target: float = 0.0
    feed: float = 0.0


@dataclass(slots=True)
class Tally:
    """Grows by one step at a time; ``stats`` reads it."""

    steps: int = 0
    made: int = 0
    drafted: int = 0
    accepted: int = 0
    offered_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    prompt: float = 0.0
    time: Timing = field(default_factory=Timing)

    def spent(self, timing: Timing, *, prompt: bool) -> None:
        """Add a step's wall time."""
        self.time.whole += timing.whole
        self.time.draft += timing.draft
        self.time.target += timing.target
        self.time.feed += timing.feed
        if prompt:
            self.prompt += timing.whole

    def count_step(self, kept: Kept) -> None:
        """A pass after the prompt's."""
        self.steps += 1
        self.made += len(kept.tokens)

    def count_drafts(self, drafts: int, kept: Kept) -> None:
        """``drafts`` were proposed in a pass, which may be a prompt's last. Those behind the text's end don't count."""
        reached = min(drafts, len(kept.tokens)) if kept.finish is not None else drafts
        self.drafted += reached
        self.accepted += kept.accepted
        for position in range(min(reached, kept.accepted + 1)):
            if position == len(self.offered_at):
                self.offered_at.append(0)
                self.accepted_at.append(0)
            self.offered_at[position] += 1
            self.accepted_at[position] += position < kept.accepted

    def stats(self, longest: int) -> Stats:
        """The counts as statistics; ``longest`` is the most drafts that a step could have had."""
        by_position = [a / o for a, o in zip(self.accepted_at, self.offered_at, strict=True)]
        missing = max(0, longest - len(by_position))
        return Stats(
            steps=self.steps,
            drafted=self.drafted,
            accepted=self.accepted,
            acceptance_by_position=[*by_position, *([None] * missing)],
            tokens_per_step=self.made / self.steps if self.steps else None,
            seconds=self.time.whole,
            prompt_seconds=self.prompt,
            draft_seconds=self.time.draft,
            target_seconds=self.time.target,
            feed_seconds=self.time.feed,
        )
