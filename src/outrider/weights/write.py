"""Saving a model in the released layout: which tensor becomes FP8, FP4, bf16 or float32 is spec 1 §2's choice."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from outrider.config.model import ModelConfig
from outrider.config.parse import to_json
from outrider.errors import CheckpointError
from outrider.quant import fp4, fp8
from outrider.quant.stored import Stored
from outrider.weights.audit import INTEGERS, scale_name
from outrider.weights.folder import INDEX, SINGLE
from outrider.weights.names import Expected, expected_tensors
from outrider.weights.spool import Spool

Values = Tensor | Stored


def save_checkpoint(
    path: str | Path,
    config: ModelConfig,
    tensors: Mapping[str, Values] | Iterable[tuple[str, Values]],
    *,
    quantise: bool,
    plain_dtype: torch.dtype = torch.bfloat16,
    shard_bytes: int | None = None,
    extra_files: Mapping[str, bytes] | None = None,
) -> None:
    """Write config.json and the tensors (released names, all that the config calls for) to the folder ``path``.

    ``quantise`` stores linears as FP8 and experts as ``config.expert_dtype`` says, and declares it in config.json;
    else they are stored in ``plain_dtype``, like all that is never quantised. A ``Stored`` is written byte for byte.
    Tensors are taken one at a time. One file, or shards of at most ``shard_bytes`` and an index.

    All is written beside ``path`` and then moved there, so an interrupted save leaves what was there before. Raises
    CheckpointError for a tensor that is missing, unknown, there twice or of a wrong shape, or if the disk refuses.
    """
    target = Path(path)
    saved = replace(config, quantised=config.quantised or quantise)
    files = {"config.json": (json.dumps(to_json(saved), indent=1) + "\n").encode(), **(extra_files or {})}
    pairs = tensors.items() if isinstance(tensors, Mapping) else tensors
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as work:
            folder = Path(work) / "new"
            folder.mkdir()
            _write_tensors(folder, lay_out(saved, pairs, quantise=quantise, plain_dtype=plain_dtype), shard_bytes)
            for name, content in files.items():
                (folder / name).write_bytes(content)
            _install(folder, target)
    except OSError as error:
        raise CheckpointError(f"Can't write {target}: {error.strerror}.") from error


def lay_out(
    config: ModelConfig,
    tensors: Iterable[tuple[str, Values]],
    *,
    quantise: bool,
    plain_dtype: torch.dtype = torch.bfloat16,
) -> Iterator[Stored]:
    """The tensors as a released checkpoint stores them, one by one. Raises as ``save_checkpoint`` does."""
    expected = expected_tensors(config, len(config.mtp_layers))
    left = dict(expected)
    for name, value in tensors:
        want = left.pop(name, None)
        if want is None:
            what = "is given twice" if name in expected else "is not one that the config calls for"
            raise CheckpointError(f"Tensor {name} {what}.", tensor=name)
        if tuple(value.shape) != want.shape:
            found = list(value.shape)
            raise CheckpointError(f"Tensor {name} has shape {found}, expected {list(want.shape)}.", tensor=name)
        yield value if isinstance(value, Stored) else _store(name, value, want, config, quantise, plain_dtype)
    if left:
        first = next(iter(left))
        raise CheckpointError(f"{len(left)} tensors that the config calls for weren't given: {first}…", tensor=first)


def _store(
    name: str, value: Tensor, want: Expected, config: ModelConfig, quantise: bool, plain_dtype: torch.dtype
) -> Stored:
    value = value.detach()
    if (value.dtype in INTEGERS) != (want.kind == "ids"):
        expected = "integers" if want.kind == "ids" else "floating point"
        raise CheckpointError(f"Tensor {name} has dtype {value.dtype}, expected {expected}.", tensor=name)
    if want.kind == "ids":
        return Stored(name, value)
    if want.kind == "exact":
        return Stored(name, value.to(torch.float32))
    if not quantise or want.kind == "plain":
        return Stored(name, value.to(plain_dtype))
    if want.kind == "expert" and config.expert_dtype == "fp4":
        data, scale = fp4.quantise_weight(value.to(torch.float32))
        return Stored(name, data, scale, "fp4")
    data, scale = fp8.quantise_weight(value.to(torch.float32))
    return Stored(name, data, scale, "fp8")


def _write_tensors(folder: Path, tensors: Iterable[Stored], shard_bytes: int | None) -> None:
    """Shards under temporary names (how many there will be isn't known), then their names and the index."""
    shards: list[list[str]] = []
    total = 0
    with Spool(folder) as spool:
        for stored in tensors:
            parts = [(stored.name, stored.data)]
            if stored.scale is not None:
                parts.append((scale_name(stored.name), stored.scale))
            size = sum(part.nbytes for _, part in parts)
            if shard_bytes is not None and spool.nbytes and spool.nbytes + size > shard_bytes:
                shards.append(spool.finish(folder / f"shard-{len(shards)}"))
            for name, part in parts:
                spool.add(name, part)
            total += size
        shards.append(spool.finish(folder / f"shard-{len(shards)}"))
    if shard_bytes is None:
        (folder / "shard-0").rename(folder / SINGLE)
        return
    weight_map = {}
    for i, names in enumerate(shards):
        file = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        (folder / f"shard-{i}").rename(folder / file)
        weight_map.update(dict.fromkeys(names, file))
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=1) + "\n")


def _install(new: Path, target: Path) -> None:
    """Move ``new`` to ``target``. Into a folder that is there already: file by file, config.json last, and weights of
    an earlier save that aren't replaced are removed; other files stay."""
    if not target.exists():
        new.rename(target)
        return
    written = sorted((file.name for file in new.iterdir()), key=lambda name: name == "config.json")
    for name in written:
        os.replace(new / name, target / name)
    for old in [*target.glob("model-*-of-*.safetensors"), target / SINGLE, target / INDEX]:
        if old.name not in written:
            old.unlink(missing_ok=True)
