"""What a command prints on: a terminal with colours, or anything else with plain marks; and where a token came from."""

from __future__ import annotations

import io
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

from rich.console import Console, RenderableType
from rich.text import Text

SVG_WIDTH = 100


class Look(NamedTuple):
    """How tokens of one origin look: a colour, the marks that stand for it where there is none, and what it means."""

    style: str
    before: str
    after: str
    meaning: str


LOOKS = {
    "accepted": Look("green", "", "", "accepted draft"),
    "corrected": Look("bold red", "‹", "›", "correction: the draft was refused, this is the model's own token"),
    "bonus": Look("bold cyan", "«", "»", "bonus: every draft was accepted, and one more token came with them"),
    "target": Look("default", "", "", "no draft here"),
}


class Screen:
    """A console, and a recorder beside it when a picture is wanted. Honours NO_COLOR and pipes, as rich does."""

    def __init__(self, *, picture: Path | None = None, quiet: bool = False) -> None:
        self.console = Console(highlight=False, emoji=False, markup=False, quiet=quiet)
        self._picture = picture
        self._recorder = _recorder() if picture else None

    @property
    def _views(self) -> list[tuple[Console, bool]]:
        """The terminal and the picture, each with whether it tells origins apart by colour (else by marks)."""
        colour = self.console.color_system is not None and not self.console.no_color
        return [(self.console, colour), *([(self._recorder, True)] if self._recorder else [])]

    def print(self, what: RenderableType, *, end: str = "\n") -> None:
        """Print, on the terminal and in the picture. A whole line is wrapped at words; what others go on from isn't."""
        for console, _ in self._views:
            console.print(what, end=end, soft_wrap=end != "\n")

    def token(self, text: str, origin: str) -> None:
        """Print one token's text at once, in the look of its origin."""
        for console, colour in self._views:
            console.print(looking(text, origin, colour), end="", soft_wrap=True)
        self.console.file.flush()

    def title(self, name: str, about: str) -> None:
        """The heading of a part."""
        self.print(Text.assemble((name, "bold magenta"), f"  {about}\n"))

    def tick(self, good: bool) -> Text:
        """✓ or ✗."""
        return Text("✓", "bold green") if good else Text("✗", "bold red")

    def verdict(self, good: bool, sentence: str) -> None:
        """A line that says whether something held."""
        self.print(Text.assemble(self.tick(good), f" {sentence}\n"))

    def legend(self, *origins: str) -> None:
        """One line for each origin: how it looks and what it means."""
        for console, colour in self._views:
            for origin in origins:
                console.print(Text.assemble("  ", looking("token", origin, colour), f"  {LOOKS[origin].meaning}"))

    def status(self, message: str) -> AbstractContextManager[object]:
        """A line that says what is going on while it lasts; nothing on a pipe."""
        return self.console.status(message) if self.console.is_terminal else nullcontext()

    def save_picture(self, title: str) -> None:
        """Write the SVG that was asked for; does nothing where none was."""
        if self._recorder and self._picture:
            self._recorder.save_svg(str(self._picture), title=title)


def _recorder() -> Console:
    return Console(
        record=True, force_terminal=True, width=SVG_WIDTH, file=io.StringIO(), color_system="truecolor", highlight=False
    )


def looking(text: str, origin: str, colour: bool) -> Text:
    """A token's text as one of its origin looks, with colours or without."""
    look = LOOKS[origin]
    return Text(text, look.style) if colour else Text(marked(text, look.before, look.after))


def marked(text: str, before: str, after: str) -> str:
    """A token's text between two marks. They go round what can be seen; a token of blanks is shown by one sign, so
    that the marks aren't torn over two lines."""
    if not before:
        return text
    seen = text.strip()
    if not seen:
        sign = "⏎" if "\n" in text else "·" if text else ""
        return f"{before}{sign}{after}{text}"
    start = text.index(seen)
    return f"{text[:start]}{before}{seen}{after}{text[start + len(seen) :]}"
