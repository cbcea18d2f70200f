"""What every part of the demo shares: the checkpoint, the prompt and the sampling; and the built-in prompts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.cli.checkpoint import open_engine
from outrider.cli.heard import Heard

if TYPE_CHECKING:
    from outrider import Engine

DRAFTS = 3
"""Drafts a step wherever the demo doesn't vary them."""

PROMPT = '''class Stack:
    """A stack of items, last in, first out."""

    def __init__(self, items=None):
        self.items = list(items or [])

    def push(self, item):'''

PROMPTS = (
    '''    def read_header(self, line):
        """Parse one header line into a name and a value."""
        if not line:
            raise ValueError("empty header line")
        name, sep, value = line.partition(":")
        if not sep:
            raise ValueError("no colon in header line: %r" % line)
        name = name.strip().lower()
        value = value.strip()
        if name in self.headers:''',
    '''def find_files(top, suffix, followlinks=False):
    """Yield the names of all files below top that end with suffix."""
    for dirpath, dirnames, filenames in os.walk(top, followlinks=followlinks):
        for filename in sorted(filenames):
            if filename.endswith(suffix):
                yield os.path.join(dirpath, filename)


def copy_file(source, target, length=16*1024):
    """Copy the data of one file to another."""''',
    """def main():
    import argparse
    parser = argparse.ArgumentParser(description="Count words in files.")
    parser.add_argument("files", nargs="*", help="files to read")
    parser.add_argument("-v", "--verbose", action="store_true",
                        help="say what is done")
    args = parser.parse_args()
    for name in args.files:
        try:
            with open(name) as f:""",
    '''class Timer:
    def __init__(self, interval, function, args=None, kwargs=None):
        self.interval = interval
        self.function = function
        self.args = args if args is not None else []
        self.kwargs = kwargs if kwargs is not None else {}
        self.finished = Event()

    def cancel(self):
        """Stop the timer if it hasn't finished yet."""
        self.finished.set()

    def run(self):''',
    """    def test(self, value):
        if isinstance(value, str):
            return self.decode(value)
        elif isinstance(value, (list, tuple)):
            return [self.test(item) for item in value]
        elif isinstance(value, dict):
            result = {}
            for key, item in value.items():""",
    '''class Error(Exception):
    """Base class for exceptions in this module."""


class ParsingError(Error):
    """Raised when a configuration file does not follow legal syntax."""

    def __init__(self, source, lineno):
        self.source = source
        self.lineno = lineno''',
)
"""Beginnings of different kinds of Python, written for this demo. None ends in a line's end: a tokenizer joins that
with the next line's indent, so a lone one says that the file is over."""


@dataclass(frozen=True)
class Job:
    """One prompt, one seed, one temperature, on one checkpoint."""

    checkpoint: Path
    prompt: str
    temperature: float
    seed: int

    def engine(self, draft_length: int = 0, **options: Any) -> Engine:
        """An engine on the checkpoint: plain, or drafting with the model's own head."""
        draft = "mtp" if draft_length else "none"
        return open_engine(self.checkpoint, draft=draft, draft_length=draft_length, **options)

    def sampling(self, max_tokens: int) -> dict[str, Any]:
        """Keywords of ``generate`` and ``stream``."""
        return {"max_tokens": max_tokens, "temperature": self.temperature, "seed": self.seed}

    def stream(self, engine: Engine, heard: Heard, prompt: str, max_tokens: int) -> Iterator[tuple[str, str]]:
        """(text, origin) of each token as it comes; ``heard`` takes them in."""
        return heard.listen(engine.stream(prompt, **self.sampling(max_tokens)))


def hash_of(token_ids: Iterable[int]) -> str:
    """Twelve hex digits that stand for a list of tokens."""
    return hashlib.sha256(" ".join(map(str, token_ids)).encode()).hexdigest()[:12]


def first_difference(left: list[int], right: list[int]) -> int | None:
    """The first place where two texts have different tokens (one may have ended there), or None."""
    if left == right:
        return None
    pairs = zip(left, right, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))
