"""A model on a cache, with nothing of the engine around it: runs a text cut in any way, layer by layer if need be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.cache.cache import Cache
from outrider.config.model import ModelConfig
from outrider.core import Sampling, Span
from outrider.core import Sequence as Text
from outrider.model.build import build_mtp, build_transformer
from outrider.model.logs import mtp_specs, trunk_specs
from outrider.model.mtp import MtpBlock
from outrider.model.transformer import Transformer
from outrider.ops.dispatch import choose_backend
from outrider.ops.rows import Batch
from outrider.quant.stored import Stored


@dataclass(frozen=True)
class Read:
    """What the trunk gives at every position: float32 ``[T, vocab]`` and ``[T, S, d]``."""

    logits: Tensor
    streams: Tensor

    def same(self, other: Read) -> bool:
        """Equal to the last bit."""
        return torch.equal(self.logits, other.logits) and torch.equal(self.streams, other.streams)


class Bench:
    """A trunk and its cache, unwritten rows poisoned; ``head`` where the checkpoint has one."""

    def __init__(self, config: ModelConfig, tensors: Mapping[str, Stored], *, head: bool) -> None:
        ops = choose_backend("reference")
        self.trunk: Transformer = build_transformer(config, tensors, ops)
        self._head = build_mtp(self.trunk, tensors) if head else None
        specs = trunk_specs(config) + (mtp_specs(config, holes=False) if head else ())
        self.cache = Cache(specs, ops, slots=2, max_pages=32, step_rows=1024, poison=True)

    @property
    def head(self) -> MtpBlock:
        """The draft head."""
        assert self._head is not None
        return self._head

    @contextmanager
    def text(self, ids: Sequence[int]) -> Iterator[Text]:
        """A sequence with room for one step, which leaves nothing behind."""
        seq = Text(0, list(ids), len(ids), Sampling(), seed=0, limit=10**6)
        try:
            yield seq
        finally:
            self.cache.discard()
            self.cache.release(seq)
            self.cache.check_integrity([])

    def plan(self, seq: Text, rows: int, width: int = 0) -> Batch:
        """The next ``rows`` known tokens of ``seq``, all of whose logits are wanted."""
        self.cache.reserve(seq, rows + width)
        ids = tuple(seq.tokens[seq.committed : seq.committed + rows])
        return self.cache.plan([Span(seq, seq.committed, ids, width, rows)], [()])

    def read(self, ids: Sequence[int], cuts: Iterable[int]) -> Read:
        """Run ``ids`` in chunks of these sizes; what they leave over is run in one more."""
        logits, streams = [], []
        with self.text(ids) as seq:
            for size in [*cuts, len(ids)]:
                rows = min(size, seq.pending)
                if rows:
                    batch = self.plan(seq, rows)
                    target = self.trunk(batch, self.cache, tap=True)
                    assert target.streams is not None
                    logits.append(target.logits)
                    streams.append(target.streams)
                    self.cache.commit(batch, rows)
        return Read(torch.cat(logits), torch.cat(streams))


def edges(length: int) -> list[list[int]]:
    """Cuts that meet every edge around 4 and 128: one before, at, and one behind it; and tokens one by one over it."""
    first = [[size] for size in (1, 3, 4, 5, 7, 8, 9, 127, 128, 129)]
    over = [[125, *[1] * 6], [127, 1, 1, 127], [3, 1, 1, 122, 2], [128, 128], [129, 127, 1], [4, 124, 4], [126, 5, 3]]
    steady = [[size] * (length // size) for size in (7, 64)]
    return [*first, *over, *steady]
