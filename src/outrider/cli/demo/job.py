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

PROMPT = '''def read_lines(path, encoding="utf-8"):
    """Return the lines of a text file, without their ends."""
'''

PROMPTS = (
    "import os\n\n\ndef find_files(top, suffix):\n",
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n",
    'def parse_header(line):\n    """Parse a header line into name and value."""\n',
    "    def close(self):\n        if self._closed:\n            return\n",
    "def main():\n    import argparse\n    parser = argparse.ArgumentParser()\n",
    "try:\n    value = int(text)\nexcept ValueError:\n",
)
"""Beginnings of different kinds of Python, written for this demo."""


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
