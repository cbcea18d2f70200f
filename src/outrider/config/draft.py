"""How drafting is done: the options of spec 2 §2's table, each with the better way as default."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args, get_type_hints

from outrider.errors import ConfigError

AUTO_LENGTH = 3
"""What draft_length="auto" means until a controller measures (public measurements favour 2 or 3)."""


@dataclass(frozen=True)
class DraftConfig:
    """``length`` drafts a step at most. ``chain``: drafts after the first are fed the head's full streams, or its
    hidden collapsed and copied. ``feed``: after a round every committed position gets a row made of true streams, or
    only the accepted drafts' own rows are kept. ``prompt_feed``: the head reads the prompt. ``drafts``: sampled
    requests draw their drafts with the target's noise, or take the most likely token. ``vocab_limit``: only ids below
    it are drafted (None: any)."""

    length: int = AUTO_LENGTH
    chain: Literal["streams", "collapsed"] = "streams"
    feed: Literal["true", "kept"] = "true"
    prompt_feed: bool = True
    drafts: Literal["sampled", "greedy"] = "sampled"
    vocab_limit: int | None = None

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for name in ("chain", "feed", "drafts"):
            value, allowed = getattr(self, name), get_args(hints[name])
            if value not in allowed:
                raise ConfigError(f"{name} is {value!r}; expected one of {', '.join(allowed)}.", key=name)
        if not isinstance(self.prompt_feed, bool):
            raise ConfigError(f"prompt_feed is {self.prompt_feed!r}; expected True or False.", key="prompt_feed")
        if isinstance(self.length, bool) or not isinstance(self.length, int) or self.length < 0:
            message = f'draft_length is {self.length!r}; expected "auto" or a number of drafts from 0.'
            raise ConfigError(message, key="draft_length")
        limit = self.vocab_limit
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise ConfigError(f"vocab_limit is {limit!r}; expected a number of ids from 1.", key="vocab_limit")


DRAFT_OPTIONS = frozenset(field.name for field in fields(DraftConfig)) - {"length"}
"""Options of ``load`` that belong here under their own name."""
