"""Opening a checkpoint: files, names, config and audit; then tensors one by one, read when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from outrider.config.model import ModelConfig
from outrider.config.parse import parse_config, read_json
from outrider.errors import CheckpointError, UnsupportedError
from outrider.quant.stored import Stored
from outrider.weights.audit import Entry, audit
from outrider.weights.folder import find_tensors
from outrider.weights.shard import Located

Head = Literal["mtp", "none", "dspark"]

SHARED = ("embed", "head")  # copies of the trunk's in a draft block: never read
DSPARK_MODULES = ("main_proj", "main_norm", "markov_head", "confidence_head")


@dataclass(frozen=True, eq=False)
class Checkpoint(Mapping[str, Stored]):
    """An audited checkpoint: released name → Stored, read from disk at each look-up (keep what you need).

    ``ignored`` names the tensors that nothing will read; ``warnings`` are sentences for the user. ``head`` says which
    draft head is there; ``mtp_blocks`` counts its blocks.
    """

    path: Path
    config: ModelConfig
    head: Head
    mtp_blocks: int
    ignored: tuple[str, ...]
    warnings: tuple[str, ...]
    entries: Mapping[str, Entry]

    def __getitem__(self, name: str) -> Stored:
        return self.entries[name].read(name)

    def __contains__(self, name: object) -> bool:
        return name in self.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def names(self) -> tuple[str, ...]:
        """The released names of all tensors, in the order of a forward."""
        return tuple(self.entries)

    @property
    def stored_bytes(self) -> int:
        """Bytes on disk of all tensors that are read."""
        return sum(entry.nbytes for entry in self.entries.values())

    def require_head(self) -> None:
        """Raise where drafting with the MTP head was asked for and there is none.

        CheckpointError if there is no head at all, UnsupportedError if it is one that isn't implemented yet.
        """
        if self.head == "dspark":
            raise UnsupportedError(f"{self.path} has a DSpark draft head; {NO_DSPARK}", hint="Use draft='none'.")
        if self.head == "none":
            raise CheckpointError(f"{self.path} has no draft head (no mtp.* tensors).", hint="Use draft='none'.")


NO_DSPARK = "drafting with DSpark isn't implemented yet."


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open and audit the checkpoint in folder ``path`` (spec 1 §§1–2); of its data only the hash routes are read.

    Raises CheckpointError (``.tensor``) for files and tensors, ConfigError (``.key``) for config.json.
    """
    folder = Path(path)
    found = find_tensors(folder)
    raw = read_json(folder)
    head, blocks, ignored = _find_head(raw, found)
    config = parse_config(raw, mtp_blocks=blocks)
    kept = {name: place for name, place in found.items() if name not in ignored}
    entries = audit(config, blocks if head == "mtp" else 0, kept)
    warnings = _head_warnings(raw, config, head, blocks)
    if not config.quantised and any(
        entry.format != "plain" for name, entry in entries.items() if not name.startswith("mtp.")
    ):
        config = replace(config, quantised=True)
        warnings.append(
            "config.json has no quantization_config, but tensors are quantised: taken for a quantised model."
        )
    return Checkpoint(folder, config, head, blocks, tuple(ignored), tuple(warnings), entries)


def _find_head(raw: Mapping[str, Any], found: Mapping[str, Located]) -> tuple[Head, int, dict[str, None]]:
    """(which head, how many blocks, names that nothing will read)."""
    blocks: dict[str, set[str]] = {}
    ignored: dict[str, None] = {}
    for name in found:
        parts = name.split(".")
        if parts[0] != "mtp" or len(parts) < 3:
            continue
        if parts[2] in SHARED:
            ignored[name] = None
        else:
            blocks.setdefault(parts[1], set()).add(parts[2])
    if not blocks:
        return "none", 0, ignored
    if set(blocks) != {str(i) for i in range(len(blocks))}:
        raise CheckpointError(
            f"The draft head's blocks are mtp.{', mtp.'.join(sorted(blocks))}, expected them numbered from 0.",
            tensor=f"mtp.{len(blocks) - 1}",
        )
    modules = set().union(*blocks.values())
    declared = any(key.startswith("dspark_") for key in raw)
    if modules.intersection(DSPARK_MODULES) or (declared and "e_proj" not in modules):
        return "dspark", len(blocks), {name: None for name in found if name.startswith("mtp.")}
    return "mtp", len(blocks), ignored


def _head_warnings(raw: Mapping[str, Any], config: ModelConfig, head: Head, blocks: int) -> list[str]:
    declared = config.num_nextn_predict_layers
    if head == "dspark":
        return [f"The draft head is DSpark; {NO_DSPARK} The model runs undrafted."]
    if head == "none":
        listed = raw.get("compress_ratios")
        extra = isinstance(listed, list) and len(listed) > config.num_hidden_layers
        if declared or extra:
            key = f"num_nextn_predict_layers = {declared}" if declared else "an entry of compress_ratios"
            return [f"config.json promises a draft head ({key}), but there are no mtp.* tensors: it runs undrafted."]
    elif declared != blocks:
        return [f"config.json says num_nextn_predict_layers = {declared}, but the files hold {blocks} mtp.N: used."]
    return []
