"""Checkpoints: reading (lazily, audited), naming and writing. Gives named tensors, never a model."""

from outrider.weights.names import Expected, expected_tensors
from outrider.weights.reader import Checkpoint, open_checkpoint
from outrider.weights.write import lay_out, save_checkpoint

__all__ = ["Checkpoint", "Expected", "expected_tensors", "lay_out", "open_checkpoint", "save_checkpoint"]
