"""Does a checkpoint hold exactly what its config calls for? Every tensor once, right shape, usable dtype, its scale.

The format is decided tensor by tensor, from its stored dtype and its scale, never from a list in the config: the draft
head is often stored in another format than the trunk (case B5).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from outrider.config.model import ModelConfig
from outrider.errors import CheckpointError
from outrider.quant import fp4, fp8
from outrider.quant.stored import Format, Stored
from outrider.weights.names import Expected, expected_tensors
from outrider.weights.shard import Located

FLOATS = (torch.bfloat16, torch.float16, torch.float32)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
PACKED = (torch.int8, torch.uint8)
SCALES = (torch.float8_e8m0fnu, torch.uint8, torch.float32)
NAMED = 4  # how many names an error lists


@dataclass(frozen=True, slots=True)
class Entry:
    """One audited tensor: where its data and its scale lie, and its format."""

    data: Located
    scale: Located | None
    format: Format

    @property
    def nbytes(self) -> int:
        """Bytes on disk, scale included."""
        return self.data.nbytes + (self.scale.nbytes if self.scale else 0)

    def read(self, name: str) -> Stored:
        """Data and scale from disk. Scales stored as raw bytes come as float8_e8m0fnu, packed values as int8."""
        data = self.data.read()
        scale = self.scale.read() if self.scale else None
        if scale is not None and scale.dtype == torch.uint8:
            scale = scale.view(torch.float8_e8m0fnu)
        return Stored(name, data.view(torch.int8) if self.format == "fp4" else data, scale, self.format)


def audit(config: ModelConfig, mtp_blocks: int, found: Mapping[str, Located]) -> dict[str, Entry]:
    """Match ``found`` (released name → place) with what the config calls for; nothing may be missing or left over.

    Raises CheckpointError naming the tensor. Order of the result: that of ``expected_tensors``.
    """
    expected = expected_tensors(config, mtp_blocks)
    scales = {scale_name(name): name for name, want in expected.items() if want.kind in ("linear", "expert")}
    unknown = [name for name in found if name not in expected and name not in scales]
    missing = [name for name in expected if name not in found]
    if missing:
        raise _missing(missing, unknown)
    if unknown:
        raise CheckpointError(
            f"{_some(unknown)} not called for by the config.",
            tensor=unknown[0],
            hint="Either the config is another model's, or the file holds what this version can't use.",
        )
    entries = {name: _entry(name, want, found) for name, want in expected.items()}
    for name, want in expected.items():
        if want.kind == "ids":
            _check_ids(name, entries[name], config.n_routed_experts)
    return entries


def scale_name(weight: str) -> str:
    """``X.weight`` → ``X.scale``."""
    return weight.removesuffix(".weight") + ".scale"


def _missing(missing: list[str], unknown: list[str]) -> CheckpointError:
    head = all(name.startswith("mtp.") for name in missing)
    hints = ["The draft head is there in part only: convert it again, or remove all mtp.* to run undrafted."] * head
    hints += [f"{_some(unknown)} there under names that aren't understood."] * bool(unknown)
    return CheckpointError(f"{_some(missing)} missing.", tensor=missing[0], hint=" ".join(hints))


def _some(names: Iterable[str]) -> str:
    """ "Tensor a is", or "5 tensors (a, b, c, d, …) are"."""
    names = list(names)
    if len(names) == 1:
        return f"Tensor {names[0]} is"
    return f"{len(names)} tensors ({', '.join(names[:NAMED])}{', …' if len(names) > NAMED else ''}) are"


def _entry(name: str, want: Expected, found: Mapping[str, Located]) -> Entry:
    data = found[name]
    scale = found.get(scale_name(name)) if want.kind in ("linear", "expert") else None
    if data.dtype in (INTEGERS if want.kind == "ids" else FLOATS):
        if scale is not None:
            raise _wrong(scale, name, f"is a scale, but the weight is stored as {data.dtype}, which has none")
        _check_shape(data, name, want.shape)
        return Entry(data, None, "plain")
    stored_as: Format = "fp4" if data.dtype in PACKED else "fp8"
    if want.kind not in ("linear", "expert") or data.dtype not in (torch.float8_e4m3fn, *PACKED):
        raise _wrong(data, name, f"is stored as {data.dtype}, which can't be used for it")
    if scale is None:
        raise _wrong(data, name, f"is stored as {data.dtype} but has no scale ({scale_name(name)})")
    _check_quantised(name, want.shape, data, scale, stored_as)
    return Entry(data, scale, stored_as)


def _check_quantised(name: str, shape: tuple[int, ...], data: Located, scale: Located, stored_as: Format) -> None:
    if scale.dtype not in SCALES:
        raise _wrong(scale, name, f"is a scale stored as {scale.dtype}, expected ue8m0 or float32")
    if stored_as == "fp4" and shape[1] % fp4.BLOCK:
        raise _wrong(data, name, f"is packed FP4, but its {shape[1]} inputs are no multiple of {fp4.BLOCK}")
    _check_shape(data, name, (shape[0], shape[1] // 2) if stored_as == "fp4" else shape)
    _check_shape(scale, scale_name(name), (fp4 if stored_as == "fp4" else fp8).scale_shape(shape))


def _check_shape(located: Located, name: str, shape: tuple[int, ...]) -> None:
    if located.shape != shape:
        raise _wrong(located, name, f"has shape {list(located.shape)}, expected {list(shape)}")


def _wrong(located: Located, name: str, what: str) -> CheckpointError:
    alias = "" if located.source in (name, scale_name(name)) else f" (for {name})"
    return CheckpointError(f"Tensor {located.source}{alias} in {located.path.name} {what}.", tensor=name)


def _check_ids(name: str, entry: Entry, experts: int) -> None:
    """The one tensor whose values are read at opening: an id out of range would be read as some other memory."""
    low, high = torch.aminmax(entry.data.read())
    if low < 0 or high >= experts:
        raise _wrong(entry.data, name, f"holds expert ids {int(low)}…{int(high)}, expected 0…{experts - 1}")
