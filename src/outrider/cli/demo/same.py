"""Part one: the same prompt and seed, plain and then drafted, streamed side by side in time: the same text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.text import Text

from outrider.cli.demo.job import DRAFTS, Job, first_difference, hash_of
from outrider.cli.heard import Heard
from outrider.cli.screen import Screen

TOKENS = 96


@dataclass(frozen=True)
class Same:
    """Both streams, and whether they say the same."""

    plain: Heard
    drafted: Heard

    @property
    def ok(self) -> bool:
        """True where the texts are one text, token for token."""
        return self.plain.token_ids == self.drafted.token_ids

    def as_json(self) -> dict[str, Any]:
        """What ``--json`` says of this part."""
        return {
            "same": self.ok,
            "text": self.drafted.text,
            "tokens": len(self.plain.token_ids),
            "hash": {"plain": hash_of(self.plain.token_ids), "drafted": hash_of(self.drafted.token_ids)},
            "passes": {"plain": self.plain.steps, "drafted": self.drafted.steps},
            "origins": list(self.drafted.origins),
        }


def show_same(screen: Screen, job: Job) -> Same:
    """Stream both and print the comparison."""
    screen.title("1  The same text", f"temperature {job.temperature:g}, seed {job.seed}")
    plain = stream_live(screen, job, "plain: one token a pass", 0)
    drafted = stream_live(screen, job, f"drafted: up to {DRAFTS} drafts a pass", DRAFTS)
    screen.legend("accepted", "corrected", "bonus")
    same = Same(plain, drafted)
    screen.verdict(same.ok, _sentence(same))
    return same


def stream_live(screen: Screen, job: Job, heading: str, draft_length: int) -> Heard:
    """Print the prompt, then each token as it comes, in the look of its origin."""
    screen.print(Text(f"── {heading}", "bold"))
    with screen.status("loading"):
        engine = job.engine(draft_length=draft_length)
    heard = Heard()
    with engine:
        screen.print(Text(job.prompt, "dim"), end="")
        for text, origin in job.stream(engine, heard, job.prompt, TOKENS):
            screen.token(text, origin)
    screen.print("\n")
    return heard


def _sentence(same: Same) -> str:
    plain, drafted = same.plain, same.drafted
    if same.ok:
        return (
            f"the same {len(plain.token_ids)} tokens ({hash_of(plain.token_ids)}), "
            f"in {plain.steps} passes plain and {drafted.steps} drafted"
        )
    at = first_difference(plain.token_ids, drafted.token_ids)
    return f"the texts part at token {at}: {hash_of(plain.token_ids)} plain, {hash_of(drafted.token_ids)} drafted"
