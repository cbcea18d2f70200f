"""A checkpoint's folder: one ``model.safetensors``, or an index with its shards → every tensor by released name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from outrider.errors import CheckpointError
from outrider.quant import fp8
from outrider.weights.shard import Located, read_header
from outrider.weights.spelling import GATE_UP, released_name, split_fused

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


def find_tensors(folder: Path) -> dict[str, Located]:
    """Every tensor of the folder by its released name; fused experts are given one expert at a time.

    Raises CheckpointError for missing or damaged files, an index that doesn't say what the shards hold, and a tensor
    that is there twice (in two shards, or in two spellings).
    """
    sources: dict[str, Located] = {}
    for source in _sources(folder):
        _add(sources, released_name(source.source), source)
    found: dict[str, Located] = {}
    for name, source in sources.items():
        for part, located in _split(name, source, sources):
            _add(found, part, located)
    return found


def _add(found: dict[str, Located], name: str, new: Located) -> None:
    if name in found:
        old = found[name]
        where = f"as {old.source} in {old.path.name} and as {new.source} in {new.path.name}"
        raise CheckpointError(f"Tensor {name} is there twice: {where}.", tensor=name, hint="Remove one of them.")
    found[name] = new


def _sources(folder: Path) -> list[Located]:
    if not folder.is_dir():
        what = "isn't a folder" if folder.exists() else "doesn't exist"
        raise CheckpointError(f"Checkpoint {folder} {what}.", hint="Name the folder that holds config.json.")
    index = folder / INDEX
    if not index.exists():
        if not (folder / SINGLE).exists():
            raise CheckpointError(f"{folder} holds neither {SINGLE} nor {INDEX}.")
        return list(read_header(folder / SINGLE).values())
    listed = _read_index(index)
    if (folder / SINGLE).exists() and SINGLE not in listed.values():
        raise CheckpointError(f"{folder} holds both {SINGLE} and {INDEX}.", hint="Remove the one that is out of date.")
    return _shards(folder, listed)


def _read_index(index: Path) -> dict[str, str]:
    """The index's weight_map: tensor → file."""
    try:
        raw = json.loads(index.read_bytes())
    except OSError as error:
        raise CheckpointError(f"Can't read {index}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{index} isn't valid JSON: {error}.") from error
    listed = raw.get("weight_map") if isinstance(raw, dict) else None
    if not isinstance(listed, dict) or not listed:
        raise CheckpointError(f"{index} has no weight_map of tensors to files.")
    for name, file in listed.items():
        if not isinstance(file, str) or Path(file).name != file or not file:
            raise CheckpointError(f"{index} places {name} in {file!r}, expected a file beside it.", tensor=name)
    return listed


def _shards(folder: Path, listed: dict[str, str]) -> list[Located]:
    """All tensors of the listed shards; index and shards must say the same."""
    result: list[Located] = []
    for file in sorted(set(listed.values())):
        if not (folder / file).exists():
            first = next(name for name, place in listed.items() if place == file)
            raise CheckpointError(f"{folder / file} is missing; {INDEX} places {first} in it.", tensor=first)
        header = read_header(folder / file)
        for name, place in listed.items():
            if place == file and name not in header:
                raise CheckpointError(f"{INDEX} places {name} in {file}, which doesn't hold it.", tensor=name)
        for name in header:
            if listed.get(name) != file:
                elsewhere = f"places it in {listed[name]}" if name in listed else "doesn't list it"
                raise CheckpointError(f"{file} holds {name}, but {INDEX} {elsewhere}.", tensor=name)
        result.extend(header.values())
    return result


def _split(name: str, source: Located, sources: Mapping[str, Located]) -> list[tuple[str, Located]]:
    """Fused experts [E, rows, in] → one tensor an expert (two for gate_up_proj: w1's rows, then w3's)."""
    fused = split_fused(name)
    if fused is None:
        return [(name, source)]
    prefix, projection, leaf = fused
    if len(source.shape) != 3 or 0 in source.shape:
        raise _unfit(source, "one matrix an expert")
    count, high, _ = source.shape
    if projection == "w2":
        return [(f"{prefix}{e}.w2.{leaf}", source.rows(e, 0, high)) for e in range(count)]
    weight = sources.get(f"{prefix}{GATE_UP}.weight", source)
    if high % 2 or (leaf == "scale" and not _halves_are_whole_blocks(weight, source)):
        raise _unfit(source, "as many rows for w1 as for w3")
    cuts = {"w1": (0, high // 2), "w3": (high // 2, high)}
    return [
        (f"{prefix}{e}.{w}.{leaf}", source.rows(e, first, last))
        for e in range(count)
        for w, (first, last) in cuts.items()
    ]


def _halves_are_whole_blocks(weight: Located, scale: Located) -> bool:
    """A 128×128 block that holds rows of both w1 and w3 has a scale that can't be given to either."""
    rows = weight.shape[1] if len(weight.shape) == 3 else 0
    return scale.shape[1] == rows or rows % (2 * fp8.BLOCK) == 0


def _unfit(source: Located, expected: str) -> CheckpointError:
    found = list(source.shape)
    return CheckpointError(f"Tensor {source.source} has shape {found}, expected {expected}.", tensor=source.source)
