"""What happens when drafts are committed unchecked: the text leaves the one that the model would have written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.text import Text

from outrider.cli.demo.job import DRAFTS, Job, first_difference
from outrider.cli.demo.same import TOKENS, stream_live
from outrider.cli.heard import Heard
from outrider.cli.screen import Screen

HERE = "⟪here it goes wrong⟫"


@dataclass(frozen=True)
class Sabotaged:
    """The true text and the sabotaged one; ``parted`` is the first token that differs, None where none does."""

    plain: Heard
    unchecked: Heard
    parted: int | None

    def as_json(self) -> dict[str, Any]:
        """What ``--json`` says."""
        return {"plain": self.plain.text, "sabotaged": self.unchecked.text, "first_difference": self.parted}


def show_sabotage(screen: Screen, job: Job) -> Sabotaged:
    """Stream the true text, then the sabotaged one with the first differing place marked."""
    screen.title("Sabotage", "every draft is committed, none is checked")
    plain = stream_live(screen, job, "plain: what the model says", 0)
    unchecked = _stream_unchecked(screen, job, plain)
    parted = first_difference(plain.token_ids, unchecked.token_ids)
    screen.print(_sentence(plain, unchecked, parted))
    return Sabotaged(plain, unchecked, parted)


def _stream_unchecked(screen: Screen, job: Job, plain: Heard) -> Heard:
    """The same prompt and seed, committing everything; tokens after the first difference are in red."""
    screen.print(Text(f"── sabotaged: {DRAFTS} drafts a pass, all of them kept", "bold"))
    heard = Heard()
    style = "default"
    with job.engine(draft_length=DRAFTS, _verifier="everything") as engine:
        screen.print(Text(job.prompt, "dim"), end="")
        for at, (text, _) in enumerate(job.stream(engine, heard, job.prompt, TOKENS)):
            if style == "default" and heard.token_ids[at] != _at(plain.token_ids, at):
                style = "red"
                screen.print(Text(HERE, "bold red"), end="")
            screen.print(Text(text, style), end="")
    screen.print("\n")
    return heard


def _at(token_ids: list[int], at: int) -> int | None:
    return token_ids[at] if at < len(token_ids) else None


def _sentence(plain: Heard, unchecked: Heard, parted: int | None) -> str:
    if parted is None:
        return "No draft was wrong this time, so the texts agree; another --seed or --prompt shows the difference."
    right = plain.texts[parted] if parted < len(plain.texts) else "(the end)"
    wrong = unchecked.texts[parted] if parted < len(unchecked.texts) else "(the end)"
    return (
        f"The texts part at token {parted + 1}: {wrong!r} instead of {right!r}. Nothing failed and the text looks "
        "plausible, which is how this bug was shipped by others: only a comparison with plain decoding shows it."
    )
