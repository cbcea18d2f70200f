"""The one place where a backend is chosen; everything above is handed the chosen one."""

from __future__ import annotations

from outrider.errors import ConfigError, UnsupportedError
from outrider.ops.table import Blocks

BACKENDS = ("auto", "reference", "native")


def choose_backend(name: str, device: str = "cpu") -> Blocks:
    """The backend called ``name``, with its weights on ``device``. "auto" is the fastest that works here: for now the
    reference, until native kernels exist.

    Raises ConfigError for an unknown name, UnsupportedError for one that isn't there yet.
    """
    if name not in BACKENDS:
        raise ConfigError(f"backend is {name!r}; expected one of {', '.join(BACKENDS)}.", key="backend")
    if name == "native":
        raise UnsupportedError("backend='native' isn't there yet.", hint="Use backend='reference' or 'auto'.")
    from outrider.ops.reference.blocks import ReferenceBlocks

    return ReferenceBlocks(device)
