"""Checkpoints in files for ``load``, and targets and drafters that say what a test wants."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import outrider
from outrider.cache.cache import Cache
from outrider.core import Span
from outrider.draft.scripted import ScriptedDrafter
from outrider.engine.llm import Engine
from outrider.model.transformer import Target, Transformer
from outrider.ops.rows import Batch
from tests.support.bytelevel import library_tokenizer, write_tokenizer
from tests.support.checkpoints import edit_tensors, save_tiny
from tests.support.engines import make_engine, tiny_model

_WORK = TemporaryDirectory(prefix="outrider-tests-")
atexit.register(_WORK.cleanup)
EOS = 1


@cache
def checkpoint(kind: str = "plain") -> Path:
    """A tiny random checkpoint, made once. ``kind``: "plain" (token ids only), "text" (with a byte-level tokenizer),
    "headless". Not to be changed."""
    folder = Path(_WORK.name) / kind
    options: dict[str, Any] = {"compress_ratios": (0, 4, 128, 0)}
    if kind == "text":
        options |= {"vocab_size": library_tokenizer().get_vocab_size()}
    save_tiny(folder, **options)
    if kind == "text":
        write_tokenizer(folder)
    if kind == "headless":
        edit_tensors(folder, lambda tensors: [tensors.pop(name) for name in list(tensors) if name.startswith("mtp.")])
    return folder


def load(kind: str = "plain", **options: Any) -> Engine:
    """An engine of its own, unwritten rows poisoned."""
    return outrider.load(checkpoint(kind), **{"poison": True, "max_batch": 4, **options})


@cache
def shared(kind: str = "plain", **options: Any) -> Engine:
    """An engine that tests share: each leaves it at rest."""
    return load(kind, **options)


def at_rest(engine: Engine) -> bool:
    """Nothing runs, waits, is open, staged or held."""
    engine.parts.cache.check_integrity([])
    return engine.scheduler.idle and not engine._open and engine.parts.cache._plan is None


def prompt(length: int, seed: int = 0) -> list[int]:
    """Token ids from 2 to 63: without the end-of-text token."""
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(2, 64, (length,), generator=generator).tolist()


# ---- scripts --------------------------------------------------------------------------------------------------------

Favourite = Callable[[Sequence[int]], int]
"""The text so far → the token that the target likes best."""


class ScriptedTarget:
    """Stands in for the trunk: its logits favour what a function says, by ten. It leaves no rows of state."""

    def __init__(self, real: Transformer, favourite: Favourite) -> None:
        self.config = real.config
        self.ops = real.ops
        self._favourite = favourite

    def __call__(self, batch: Batch, cache: Cache, *, tap: bool = False) -> Target:
        logits = torch.zeros(batch.want.numel(), self.config.vocab_size)
        for row, (_, text) in enumerate(judged(batch)):
            logits[row, self._favourite(text)] = 10.0
        return Target(logits, None)


class Damaged:
    """A trunk whose logits after some texts, named by (first token, position of the last), are ``value``."""

    def __init__(self, real: Transformer, places: set[tuple[int, int]], value: float) -> None:
        self.config = real.config
        self.ops = real.ops
        self._real = real
        self._places = places
        self._value = value

    def __call__(self, batch: Batch, cache: Cache, *, tap: bool = False) -> Target:
        target = self._real(batch, cache, tap=tap)
        for row, (_, text) in enumerate(judged(batch)):
            if (text[0], len(text) - 1) in self._places:
                target.logits[row, 5] = self._value
        return target


def judged(batch: Batch) -> Iterator[tuple[int, list[int]]]:
    """For each row of a pass's logits: the sequence's id, and the text up to and with that row's token."""
    for span, draft in zip(batch.spans, batch.drafts, strict=True):
        text = [*span.seq.tokens[: span.start + len(span.ids)], *draft]
        first = span.start + len(span.ids) - span.want
        for end in range(first + 1, len(text) + 1 if span.want else 0):
            yield span.seq.id, text[:end]


def scripted(favourite: Favourite, draft: ScriptedDrafter | str = "none", k: int = 0, **settings: Any) -> Engine:
    """An engine whose target is a ``ScriptedTarget``."""
    engine = make_engine(tiny_model(), draft, k, **settings)
    target = ScriptedTarget(engine.parts.model, favourite)
    engine.parts = replace(engine.parts, model=target)  # type: ignore[arg-type]
    return engine


@contextmanager
def damaged(engine: Engine, places: set[tuple[int, int]], value: float) -> Iterator[None]:
    """Inside, the engine's trunk is ``Damaged``."""
    parts = engine.parts
    engine.parts = replace(parts, model=Damaged(parts.model, places, value))  # type: ignore[arg-type]
    try:
        yield
    finally:
        engine.parts = parts


def from_script(truth: Sequence[int], wrong_at: Callable[[int], bool] = lambda position: False) -> ScriptedDrafter:
    """Drafts what ``truth`` (prompt and all) holds next, but a wrong token at the positions that ``wrong_at`` names;
    always as many as asked for."""

    def script(span: Span) -> list[int]:
        start = len(span.seq.tokens)
        ahead = [truth[p] if p < len(truth) else 7 for p in range(start, start + span.width)]
        return [token ^ 1 if wrong_at(start + i) else token for i, token in enumerate(ahead)]

    return ScriptedDrafter(script)
