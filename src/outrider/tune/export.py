"""The trained model as a checkpoint folder in the released layout, with its tokenizer and the record of its making."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from torch import Tensor

from outrider.config.model import ModelConfig
from outrider.weights import save_checkpoint


def export(
    output: Path, config: ModelConfig, params: Mapping[str, Tensor], tokenizer: Tokenizer, record: Mapping[str, Any]
) -> None:
    """Write ``params`` (float32, released names) quantised, with ``tokenizer.json`` and ``training.json``, to the
    folder ``output``. Raises CheckpointError where a tensor is missing or the disk refuses."""
    files = {
        "tokenizer.json": tokenizer.to_str(pretty=False).encode(),
        "training.json": (json.dumps(record, indent=1) + "\n").encode(),
    }
    save_checkpoint(output, config, params, quantise=True, extra_files=files)
