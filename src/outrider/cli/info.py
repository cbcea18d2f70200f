"""``outrider info``: what a checkpoint is, what runs it, what that promises, and the memory it takes."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from outrider.cli.checkpoint import find_checkpoint, open_engine
from outrider.cli.screen import Screen

if TYPE_CHECKING:
    from outrider.engine.results import Info


def info(checkpoint: Path | None, loading: dict[str, Any], as_json: bool) -> int:
    """Load the checkpoint and print what the engine says of itself."""
    with open_engine(find_checkpoint(checkpoint), **loading) as engine:
        said = engine.info
    if as_json:
        print(json.dumps(asdict(said), default=str, ensure_ascii=False))
    else:
        Screen().print(_table(said))
    return 0


def _table(said: Info) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in _rows(said):
        table.add_row(name, value)
    return table


def _rows(said: Info) -> list[tuple[str, str]]:
    config, cache = said.config, said.cache
    kinds = Counter(layer.kind for layer in config.layers)
    layers = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    model = f"{config.num_hidden_layers} layers ({layers}), hidden {config.hidden_size}"
    each = f"{size(cache.bytes_per_sequence)} a sequence, {size(cache.bytes_per_page)} a page of {cache.page_tokens}"
    return [
        ("checkpoint", str(said.path)),
        ("model", f"{model}, {said.parameters:,} parameters"),
        ("longest text", f"{cache.longest:,} tokens"),
        ("backend", f"{said.backend} on {said.device}, {said.dtype}, threads: {said.threads}"),
        ("drafts", f"{said.drafter}, {said.draft_length} a step" if said.draft_length else "none"),
        ("promise", said.promise),
        ("weights", f"{size(said.weight_bytes)} in memory, {size(said.stored_bytes)} stored"),
        ("cache", f"{cache.slots} sequences at once; {each} tokens; {size(cache.bytes)} now"),
    ]


def size(count: int) -> str:
    """A number of bytes for people: ``15.2 MB``."""
    amount = float(count)
    for unit in ("bytes", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"
