"""Reading a text without making one: logits and streams of every position, and the MTP head's logits.

Each call is a sequence of its own that no scheduler sees; it takes a slot and pages, and gives them back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from outrider.cache.cache import Cache
from outrider.core import Kept, Sampling, Span
from outrider.core import Sequence as Text
from outrider.draft.mtp import MtpDrafter
from outrider.errors import UnsupportedError
from outrider.model.transformer import Target, Transformer
from outrider.ops.rows import Batch

Read = Callable[[Batch, Target], None]


@contextmanager
def _text(cache: Cache, ids: Sequence[int], release: Callable[[Text], None]) -> Iterator[Text]:
    seq = Text(-1, list(ids), len(ids), Sampling(), seed=0, limit=len(ids))
    try:
        yield seq
    finally:
        cache.discard()
        cache.release(seq)
        release(seq)


def _chunks(model: Transformer, cache: Cache, seq: Text, chunk: int, want: bool, read: Read) -> None:
    """Run ``seq`` in chunks; ``read`` sees each one before it is committed."""
    while seq.pending:
        ids = tuple(seq.tokens[seq.committed : seq.committed + chunk])
        cache.reserve(seq, len(ids))
        batch = cache.plan([Span(seq, seq.committed, ids, 0, len(ids) if want else 0)], [()])
        with model.ops.running():
            read(batch, model(batch, cache, tap=True))
        cache.commit(batch, len(ids))


def score(model: Transformer, cache: Cache, ids: Sequence[int], chunk: int) -> tuple[Tensor, Tensor]:
    """Logits float32 ``[T, vocab]`` and streams ``[T, S, d]`` of the trunk at every position."""
    logits: list[Tensor] = []
    streams: list[Tensor] = []

    def read(batch: Batch, target: Target) -> None:
        assert target.streams is not None
        logits.append(target.logits)
        streams.append(target.streams)

    with _text(cache, ids, lambda seq: None) as seq:
        _chunks(model, cache, seq, chunk, True, read)
    return torch.cat(logits), torch.cat(streams)


def draft_logits(model: Transformer, drafter: object, cache: Cache, ids: Sequence[int], chunk: int) -> Tensor:
    """MTP logits float32 ``[T-1, vocab]``: slot i from the streams of i and token i+1. Raises UnsupportedError where
    the engine drafts in another way."""
    if not isinstance(drafter, MtpDrafter):
        raise UnsupportedError("draft_logits needs the MTP head.", hint="Load a checkpoint that has one, draft='mtp'.")
    block, found = drafter.block, []
    carry: list[Tensor] = []

    def read(batch: Batch, target: Target) -> None:
        assert target.streams is not None
        before = torch.cat([*carry, target.streams[:-1]])
        first = batch.descs[0].committed + (0 if carry else 1)
        count = before.shape[0]
        tokens = batch.ids[batch.size - count :].tolist()
        if count:
            rows = batch.rows([0], [count], list(range(first, first + count)), tokens, [1])
            found.append(block.logits(block.slot(before, rows, cache)))
        drafter.catch_up(batch, target, [Kept(batch.size)], cache)
        carry[:] = [target.streams[-1:]]

    with _text(cache, ids, drafter.release) as seq:
        _chunks(model, cache, seq, chunk, False, read)
    return torch.cat(found) if found else torch.empty(0, model.config.vocab_size)
