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
    def colour(self) -> bool:
        """True where origins are told apart by colour, false where by marks."""
        return self.console.color_system is not None and not self.console.no_color

    def print(self, what: RenderableType = "", *, end: str = "\n") -> None:
        """Print, on the terminal and in the picture. Long lines are left to the terminal to wrap."""
        self.console.print(what, end=end, soft_wrap=isinstance(what, str | Text))
        if self._recorder:
            self._recorder.print(what, end=end)

    def token(self, text: str, origin: str) -> None:
        """Print one token's text at once, in the look of its origin."""
        look = LOOKS[origin]
        self.console.print(Text(text, look.style) if self.colour else marked(text, look), end="", soft_wrap=True)
        self.console.file.flush()
        if self._recorder:
            self._recorder.print(Text(text, look.style), end="")

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
        for origin in origins:
            look = LOOKS[origin]
            sample = Text("  token", look.style) if self.colour else Text(f"  {look.before}token{look.after}")
            self.print(Text.assemble(sample, f"  {look.meaning}"))

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


def marked(text: str, look: Look) -> Text:
    """A token's text between the marks of its origin. Marks go round what can be seen: a token of blanks is shown by
    one sign, so that the mark isn't torn over two lines."""
    if not look.before:
        return Text(text)
    seen = text.strip()
    if not seen:
        return Text(f"{look.before}{'⏎' if chr(10) in text else '·'}{look.after}{text}")
    start = text.index(seen)
    return Text(f"{text[:start]}{look.before}{seen}{look.after}{text[start + len(seen) :]}")
