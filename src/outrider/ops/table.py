"""The operator table: what a backend must offer. Model code calls these blocks and nothing else.

Two levels (design §1.4). *Primitives* (``reference/primitives``) define the results. *Blocks* are what a backend may
override whole; their reference is the composition of primitives in ``reference/``. Weights enter as opaque handles
made once by ``prepare``.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Literal, Protocol

from torch import Tensor

from outrider.config.model import LayerConfig, ModelConfig
from outrider.ops.rows import Batch, LayerLogs
from outrider.quant.stored import Stored

HandleKind = Literal["embed", "layer", "head", "draft_input"]
Handle = object
"""Weights as a backend likes them; only the backend that prepared a handle looks inside."""

Move = tuple[Tensor, Tensor, Tensor]
"""(log ``[layers, rows, width]``, source rows, destination rows): one copy of a commit."""


class Blocks(Protocol):
    """A backend. Streams are float32 ``[R, S, d]``; a result of a row never depends on the other rows of the call."""

    name: str
    threads: int
    """How many threads a pass computes on."""

    def running(self) -> AbstractContextManager[None]:
        """Entered around every pass: what a pass needs of the process is set, and put back afterwards."""
        ...

    def promise(self) -> str:
        """What this backend promises about equality of results, in one sentence."""
        ...

    def prepare(
        self,
        kind: HandleKind,
        tensors: Mapping[str, Stored],
        config: ModelConfig,
        layer: LayerConfig | None = None,
        shared: Handle | None = None,
    ) -> Handle:
        """Make a handle. ``tensors`` is read one tensor at a time by released name, relative to the block. A head may
        share the vocabulary product of another one (``shared``), as an MTP block's does."""
        ...

    def embed(self, handle: Handle, ids: Tensor) -> Tensor:
        """Token ids int64 ``[R]`` → streams ``[R, S, d]``, all streams alike (spec 1 §3)."""
        ...

    def layer(self, handle: Handle, streams: Tensor, batch: Batch, logs: LayerLogs) -> Tensor:
        """One whole layer: stages its rows, attends, mixes experts; returns the new streams."""
        ...

    def layer_stage(self, handle: Handle, streams: Tensor, batch: Batch, logs: LayerLogs) -> None:
        """The part of a layer that leaves rows, and nothing more: what feeding a drafter costs (design §4)."""
        ...

    def head(self, handle: Handle, streams: Tensor) -> Tensor:
        """Streams → logits float32 ``[R, vocab]``."""
        ...

    def collapse(self, handle: Handle, streams: Tensor) -> Tensor:
        """Streams mixed by the head's hyper-connection, before its norm: ``[R, d]``."""
        ...

    def draft_input(self, handle: Handle, streams: Tensor, embedded: Tensor) -> Tensor:
        """MTP input: streams of position i and the embedding ``[R, S, d]`` of token i+1 → streams (spec 1 §3)."""
        ...

    def commit(self, moves: list[Move]) -> None:
        """Copy staged rows home. The only operator that writes home rows; validated before, so it can't fail."""
        ...
