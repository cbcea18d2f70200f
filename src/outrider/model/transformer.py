"""The trunk: embedding, layers, head. It stages rows through the cache and knows nothing of drafting."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from outrider.cache.cache import Cache
from outrider.config.model import ModelConfig
from outrider.model.logs import layer_addresses
from outrider.ops.rows import Batch
from outrider.ops.table import Blocks, Handle


@dataclass(frozen=True, slots=True)
class Target:
    """What a pass gives out: ``logits`` float32 ``[wanted rows, vocab]`` in row order, and (where tapped) the
    ``streams`` ``[R, S, d]`` after the last layer."""

    logits: Tensor
    streams: Tensor | None


class Transformer:
    """Layers of handles, run by one backend."""

    def __init__(
        self, config: ModelConfig, ops: Blocks, *, embed: Handle, layers: tuple[Handle, ...], head: Handle
    ) -> None:
        self.config = config
        self.ops = ops
        self.embed = embed
        self.layers = layers
        self.head = head
        self._addresses = layer_addresses(config)

    def __call__(self, batch: Batch, cache: Cache, *, tap: bool = False) -> Target:
        """Run the batch's rows; their new state is staged."""
        streams = self.ops.embed(self.embed, batch.ids)
        for index in range(len(self.layers)):
            streams = self.run_layer(index, streams, batch, cache)
        return Target(self.ops.head(self.head, streams[batch.want]), streams if tap else None)

    def run_layer(self, index: int, streams: Tensor, batch: Batch, cache: Cache) -> Tensor:
        """One layer alone, streams in and out."""
        return self.ops.layer(self.layers[index], streams, batch, self._addresses[index].logs(cache))
