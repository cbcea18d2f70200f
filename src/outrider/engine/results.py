"""What a request gets: pieces while it runs, a completion at its end, and statistics of its drafting."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from outrider.config.model import ModelConfig
from outrider.core import FinishReason

Origin = Literal["accepted", "corrected", "bonus", "target"]
"""Where a token came from: an accepted draft; the target's correction of a refused one; the target's bonus after all
were accepted; or the target alone, where nothing was drafted."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What one step made of one request. ``texts`` and ``origins`` have one item a token; ``texts`` joined are
    ``text`` (a token that completes a character gives the whole of it, one before gives ""). The last piece alone has
    a ``finish_reason``; where that is "error" it may have no token, and one text: what was held back."""

    text: str
    token_ids: tuple[int, ...]
    texts: tuple[str, ...]
    origins: tuple[Origin, ...]
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class Stats:
    """Statistics of one request.

    ``steps`` are target passes after the prompt's; ``drafted`` and ``accepted`` count after stops: drafts behind the
    token that ended the text are in neither. ``acceptance_by_position[i]`` is the share of drafts at i that were
    accepted, given that all before were (None where none was). Seconds are wall time of the steps that the request
    took part in, shared with its batch: ``draft_seconds``, ``target_seconds`` and ``feed_seconds`` are parts of it.
    """

    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    acceptance_by_position: list[float | None] = field(default_factory=list)
    tokens_per_step: float | None = None
    hit_tokens: int = 0
    seconds: float = 0.0
    prompt_seconds: float = 0.0
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    feed_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request. ``seed`` replays it. ``token_ids`` end with the token that ended the text; ``text`` leaves a
    stop string, or a stop token's text, out. ``error`` says what went wrong where ``finish_reason`` is "error"."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    seed: int
    stats: Stats
    prompt_token_ids: list[int] = field(default_factory=list)
    error: str | None = None
    logprobs: None = None


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """Memory of the cache: ``bytes`` now; a running sequence takes ``bytes_per_sequence`` and ``bytes_per_page`` for
    each page of history (``page_tokens`` tokens). ``longest`` tokens fit into one text."""

    slots: int
    pages: int
    page_tokens: int
    longest: int
    bytes: int
    bytes_per_sequence: int
    bytes_per_page: int


@dataclass(frozen=True, slots=True)
class Info:
    """What an engine is: the checkpoint, what runs it, what that promises, and the memory it takes."""

    path: Path
    backend: str
    device: str
    dtype: str
    threads: int
    promise: str
    parameters: int
    stored_bytes: int
    weight_bytes: int
    drafter: str
    draft_length: int
    cache: CacheInfo
    config: ModelConfig
    warnings: tuple[str, ...] = ()
