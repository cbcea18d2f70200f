"""The reference backend: every block as the composition of primitives. It defines what the others must compute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from outrider.config.model import LayerConfig, ModelConfig
from outrider.ops.reference import attention, handles, hyper
from outrider.ops.reference.handles import DraftInput, Embedding, Head, Layer
from outrider.ops.reference.moe import moe, project
from outrider.ops.reference.primitives import rms_norm
from outrider.ops.rows import Batch, LayerLogs
from outrider.ops.table import Handle, HandleKind, Move
from outrider.quant.stored import Stored


class ReferenceBlocks:
    """Plain PyTorch in float32 (``ops.table.Blocks``)."""

    name = "reference"
    threads = 1

    def __init__(self, device: str = "cpu") -> None:
        self._device = device

    @contextmanager
    def running(self) -> Iterator[None]:
        """On one thread: on some processors a product's last bits depend on how many threads share it (MKL does so
        without AVX-512), and a small model gains nothing from more."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def promise(self) -> str:
        """What is tested for this backend: rows don't depend on the company they keep, to the last bit."""
        return "bit-exact: float32 logits of a row don't depend on drafts, batch, chunking or thread count"

    def prepare(
        self,
        kind: HandleKind,
        tensors: Mapping[str, Stored],
        config: ModelConfig,
        layer: LayerConfig | None = None,
        shared: Handle | None = None,
    ) -> Handle:
        """Dequantise to float32 once; tensors are read one at a time."""
        tensors = handles.On(tensors, self._device)
        if kind == "layer":
            assert layer is not None
            return handles.layer(tensors, config, layer)
        if kind == "head":
            assert shared is None or isinstance(shared, Head)
            return handles.head(tensors, config, shared)
        return handles.embedding(tensors, config) if kind == "embed" else handles.draft_input(tensors, config)

    def embed(self, handle: Handle, ids: Tensor) -> Tensor:
        """See ``Blocks.embed``."""
        assert isinstance(handle, Embedding)
        return handle.weight[ids].unsqueeze(1).expand(-1, handle.streams, -1).contiguous()

    def layer(self, handle: Handle, streams: Tensor, batch: Batch, logs: LayerLogs) -> Tensor:
        """See ``Blocks.layer``: attention, then experts, each inside its hyper-connection."""
        assert isinstance(handle, Layer)
        x, post, comb = hyper.enter(handle.hc_attn, handle.attn_norm, streams, handle)
        normed = attention.stage(handle, batch, logs, x)
        streams = hyper.leave(attention.attention(handle, batch, logs, normed), post, comb, streams)
        x, post, comb = hyper.enter(handle.hc_ffn, handle.ffn_norm, streams, handle)
        return hyper.leave(moe(handle, x, batch.ids), post, comb, streams)

    def layer_stage(self, handle: Handle, streams: Tensor, batch: Batch, logs: LayerLogs) -> None:
        """See ``Blocks.layer_stage``."""
        assert isinstance(handle, Layer)
        x, _, _ = hyper.enter(handle.hc_attn, handle.attn_norm, streams, handle)
        attention.stage(handle, batch, logs, x)

    def head(self, handle: Handle, streams: Tensor) -> Tensor:
        """See ``Blocks.head``."""
        assert isinstance(handle, Head)
        return project(handle.weight, rms_norm(hyper.collapse(handle, streams), handle.norm, handle.eps))

    def collapse(self, handle: Handle, streams: Tensor) -> Tensor:
        """See ``Blocks.collapse``."""
        assert isinstance(handle, Head)
        return hyper.collapse(handle, streams)

    def draft_input(self, handle: Handle, streams: Tensor, embedded: Tensor) -> Tensor:
        """See ``Blocks.draft_input``: x_s = e_proj·rms(embedding) + h_proj·rms(stream s)."""
        assert isinstance(handle, DraftInput)
        token = project(handle.e_proj, rms_norm(embedded[:, 0], handle.enorm, handle.eps))
        flat = rms_norm(streams, handle.hnorm, handle.eps).flatten(0, 1)
        return project(handle.h_proj, flat).view_as(streams) + token.unsqueeze(1)

    def commit(self, moves: list[Move]) -> None:
        """See ``Blocks.commit``."""
        for log, source, destination in moves:
            log[:, destination] = log[:, source]
