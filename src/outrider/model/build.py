"""Named tensors → handles → model. Tensors are read one at a time; nothing here knows how a checkpoint is spelled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from outrider.config.model import ModelConfig
from outrider.model.mtp import MtpBlock
from outrider.model.transformer import Transformer
from outrider.ops.table import Blocks
from outrider.quant.stored import Stored

Progress = Callable[[int, int], None]
"""Called with (parts made, parts in all)."""


class Under(Mapping[str, Stored]):
    """The tensors under a prefix, by their names without it."""

    def __init__(self, tensors: Mapping[str, Stored], prefix: str) -> None:
        self._tensors = tensors
        self._prefix = prefix

    def __getitem__(self, name: str) -> Stored:
        return self._tensors[self._prefix + name]

    def __iter__(self) -> Iterator[str]:
        return (name[len(self._prefix) :] for name in self._tensors if name.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def build_transformer(
    config: ModelConfig, tensors: Mapping[str, Stored], ops: Blocks, progress: Progress | None = None
) -> Transformer:
    """The trunk."""
    layers = []
    for spec in config.layers:
        layers.append(ops.prepare("layer", Under(tensors, f"layers.{spec.index}."), config, spec))
        if progress is not None:
            progress(len(layers), len(config.layers))
    return Transformer(
        config,
        ops,
        embed=ops.prepare("embed", tensors, config),
        layers=tuple(layers),
        head=ops.prepare("head", tensors, config),
    )


def build_mtp(trunk: Transformer, tensors: Mapping[str, Stored]) -> MtpBlock:
    """The draft head ``mtp.0``. It shares the trunk's embedding, and the trunk's vocabulary product."""
    config, ops = trunk.config, trunk.ops
    under = Under(tensors, "mtp.0.")
    return MtpBlock(
        ops,
        embed=trunk.embed,
        draft_input=ops.prepare("draft_input", under, config),
        layer=ops.prepare("layer", under, config, config.mtp_layers[0]),
        head=ops.prepare("head", under, config, shared=trunk.head),
    )
