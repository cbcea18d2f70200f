"""The nouns that every layer shares. No torch here: a scheduler or a server can hold these without a tensor.

Words, used alike everywhere: a *sequence* is one text being made. A *span* is what one step runs of it: known tokens,
then room for drafts. The *committed* tokens of a sequence are those whose rows lie in the cache; the *pending* ones
are known but not yet run. A *verdict* is what the target makes of a span; *kept* is what remains of the verdict after
stops and limits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

FinishReason = Literal["stop", "length", "cancelled", "error"]

GREEDY_BELOW = 1e-5  # a temperature below this is greedy: dividing by it would overflow (case E3)


@dataclass(frozen=True, slots=True)
class Sampling:
    """What a request asks of the sampler. Validated by ``outrider.sampling.validate``, not here.

    ``temperature`` None or below 1e-5 is greedy. ``top_k`` 0, ``top_p`` 1.0 and ``min_p`` 0.0 cut nothing.
    ``max_tokens`` None runs to the model's length. ``seed`` None draws one, reported in ``Completion.seed``.
    """

    max_tokens: int | None = 16
    temperature: float | None = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None

    @property
    def greedy(self) -> bool:
        """True where the most likely token is taken and no noise is drawn."""
        return self.temperature is None or self.temperature < GREEDY_BELOW


@dataclass(eq=False, slots=True)
class Sequence:
    """One running text. The cache writes ``slot``, ``pages`` and ``committed``; the scheduler writes ``tokens`` and
    ``finish``; nothing else writes a Sequence.

    ``tokens[committed:]`` is never empty while it runs: those tokens are known but their rows aren't in the cache.
    """

    id: int
    tokens: list[int]
    prompt_length: int
    sampling: Sampling
    seed: int
    limit: int
    """Most tokens it may ever hold, prompt included: the smaller of the model's length and prompt + max_tokens."""
    slot: int = -1
    pages: list[int] = field(default_factory=list)
    committed: int = 0
    finish: FinishReason | None = None

    @property
    def pending(self) -> int:
        """Known tokens whose rows aren't in the cache yet."""
        return len(self.tokens) - self.committed

    @property
    def generated(self) -> list[int]:
        """The tokens made so far, without the prompt."""
        return self.tokens[self.prompt_length :]


@dataclass(frozen=True, slots=True)
class Span:
    """What one step runs of one sequence: ``ids`` are known tokens at positions ``start``…, after which at most
    ``width`` drafts may follow. The last ``want`` known rows need logits (0, 1, or all when scoring); every draft row
    has them."""

    seq: Sequence
    start: int
    ids: tuple[int, ...]
    width: int
    want: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the target says of a span: the accepted drafts and then one token of its own (the correction, or the bonus
    when every draft was accepted). Empty where no logits were wanted. ``accepted`` counts the drafts in ``tokens``.
    ``fault`` is the position whose logits weren't finite, if one was met: the tokens before it stand."""

    tokens: tuple[int, ...] = ()
    accepted: int = 0
    fault: int | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """What stays of a span after stops and limits. ``n`` rows are committed; ``tokens`` are emitted, the last of which
    has no row yet (exactly as in plain decoding); ``accepted`` of them were drafts."""

    n: int
    tokens: tuple[int, ...] = ()
    accepted: int = 0
    finish: FinishReason | None = None
