"""One logical tensor as it lies in a checkpoint: its data, and its scales where it is quantised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from outrider.errors import CheckpointError
from outrider.quant import fp4, fp8

Format = Literal["plain", "fp8", "fp4"]

_DTYPES: dict[Format, tuple[torch.dtype, ...]] = {
    "fp8": (torch.float8_e4m3fn,),
    "fp4": (torch.int8, torch.uint8),
}


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor under its released name, in the format it is stored in (decided by the tensor itself, never by a
    config: case B5).

    ``plain``: ``data`` in any dtype, no scale. ``fp8``: float8_e4m3fn ``[out, in]`` and one scale a 128×128 block.
    ``fp4``: packed int8 or uint8 ``[out, in/2]`` and one scale for each 32 inputs. Raises CheckpointError where data
    and scale don't fit each other.
    """

    name: str
    data: Tensor
    scale: Tensor | None = None
    format: Format = "plain"

    def __post_init__(self) -> None:
        if self.format == "plain":
            return self._refuse_if(self.scale is not None, "is stored plainly, yet has scales")
        dtype = self.data.dtype
        self._refuse_if(dtype not in _DTYPES[self.format], f"is taken for {self.format}, yet has dtype {dtype}")
        self._refuse_if(self.data.dim() != 2, f"is {self.format} and has {self.data.dim()} dims instead of 2")
        if self.scale is None:
            return self._refuse_if(True, f"is {self.format} and has no scales")
        expected = fp8.scale_shape(self.shape) if self.format == "fp8" else fp4.scale_shape(self.shape)
        found = tuple(self.scale.shape)
        self._refuse_if(found != expected, f"{self.shape} has scales {found} where {expected} was expected")

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape: ``[out, in]`` also where two values share a byte."""
        if self.format == "fp4":
            return self.data.shape[0], 2 * self.data.shape[1]
        return tuple(self.data.shape)

    def dequantise(self) -> Tensor:
        """The values as float32, of ``shape``."""
        if self.scale is None:
            return self.data.to(torch.float32)
        if self.format == "fp8":
            return fp8.dequantise_weight(self.data, self.scale)
        return fp4.dequantise_weight(self.data, self.scale)

    def _refuse_if(self, wrong: bool, what: str) -> None:
        if wrong:
            raise CheckpointError(
                f"Tensor {self.name} {what}.",
                tensor=self.name,
                hint="The file is damaged, or was written by a converter that lays it out in another way.",
            )
