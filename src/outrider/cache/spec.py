"""What a log of state holds, in plain numbers: the cache knows nothing else about the model (design §4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from outrider.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LogSpec:
    """Rows keyed by position. One row covers ``stride`` tokens and is read for ``horizon`` tokens after it.

    ``horizon`` None: for as long as the sequence lives, so the rows lie in pages. Otherwise they lie in a ring of
    ``horizon // stride`` rows a slot. ``layers`` layers share one tensor. ``stages``: a span stages all its rows, or
    only the last one that is kept.
    """

    name: str
    layers: int
    width: int
    stride: int = 1
    horizon: int | None = None
    stages: Literal["all", "last"] = "all"

    @property
    def capacity(self) -> int:
        """Rows a slot has in the ring; 0 for a log in pages."""
        return 0 if self.horizon is None else self.horizon // self.stride


def check_specs(specs: Sequence[LogSpec], page_tokens: int) -> None:
    """Raise ConfigError for the first log that the cache can't stage or hold (cases A1, A7), naming it."""
    names = [spec.name for spec in specs]
    for spec in specs:
        wrong = _fault(spec, page_tokens)
        if names.count(spec.name) > 1:
            wrong = "its name is taken"
        if wrong:
            raise ConfigError(f"the log {spec.name!r} can't be kept: {wrong}.", key="logs")


def _fault(spec: LogSpec, page_tokens: int) -> str:
    if min(spec.layers, spec.width, spec.stride) < 1:
        return f"layers {spec.layers}, width {spec.width} and stride {spec.stride} must be at least 1"
    if spec.horizon is None and page_tokens % spec.stride:
        return f"a page has {page_tokens} tokens, which stride {spec.stride} doesn't divide"
    if spec.horizon is None and spec.stages == "last":
        return "only a ring can stage a span's last row alone"
    if spec.horizon is not None and (spec.stride != 1 or spec.horizon < 1):
        return f"a ring has stride 1 and a horizon of at least 1; got {spec.stride} and {spec.horizon}"
    return ""
