"""Which checkpoint a command uses, and the engine on it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.errors import CheckpointError

if TYPE_CHECKING:
    from outrider import Engine

VARIABLE = "OUTRIDER_CHECKPOINT"
SHIPPED = Path("models") / "tiny"


def shipped_places() -> list[Path]:
    """Where the shipped checkpoint may lie: under the working directory, or in the checkout that this file is in."""
    checkout = Path(__file__).resolve().parents[3]
    return [Path.cwd() / SHIPPED, checkout / SHIPPED]


def find_checkpoint(named: Path | None) -> Path:
    """The checkpoint folder: the one named, else the one in ``OUTRIDER_CHECKPOINT``, else the shipped ``models/tiny``.

    Raises CheckpointError where the folder isn't there or holds no ``config.json``.
    """
    chosen = named or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
    if chosen is None:
        return _shipped()
    if not chosen.is_dir():
        raise CheckpointError(f"There is no checkpoint folder '{chosen}'.")
    if not (chosen / "config.json").is_file():
        raise CheckpointError(f"'{chosen}' holds no config.json, so it isn't a checkpoint folder.")
    return chosen


def _shipped() -> Path:
    places = shipped_places()
    for place in places:
        if (place / "config.json").is_file():
            return place
    raise CheckpointError(
        f"No checkpoint was named, and the shipped one isn't at '{places[0]}'.",
        hint=f"Name a folder with --checkpoint, or in {VARIABLE}.",
    )


def open_engine(checkpoint: Path, **options: Any) -> Engine:
    """``outrider.load`` on that folder; PyTorch is imported here and not before."""
    import outrider

    return outrider.load(checkpoint, **options)
