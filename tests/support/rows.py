"""Is a function of rows row-invariant? Its results are compared bit for bit, however the rows are called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

ROWS = 33

WIDE = torch.backends.cpu.get_cpu_capability() == "AVX512"
"""On other processors a product's bits may depend on the number of threads; a pass runs on one (``Blocks.running``)."""

THREADS = (1, 2) if WIDE else (1,)

needs_wide = pytest.mark.skipif(not WIDE, reason="needs AVX-512: elsewhere products may differ with the threads")

Rows = Tensor | tuple[Tensor, ...]


@contextmanager
def threads(n: int) -> Iterator[None]:
    """Run with ``n`` torch threads, then with as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def bits(x: Tensor) -> Tensor:
    """The bit patterns, so that NaN equals itself and −0 differs from +0."""
    if x.dtype == torch.float32:
        return x.contiguous().view(torch.int32)
    return x.contiguous().view(torch.uint8) if x.dtype == torch.float8_e4m3fn else x


def assert_row_invariant(
    function: Callable[..., Rows], *inputs: Tensor, thread_counts: Sequence[int] = THREADS, many: int = 700
) -> None:
    """``function`` of ``[33, …]`` tensors gives each row the bits that it gives the row alone: for 1 to 33 rows from
    any place on (views on the inputs, hence at any address), in any order, among ``many``; and for some of these
    with more threads."""
    with threads(1):
        alone = [_tuple(function(*[x[i : i + 1].clone() for x in inputs])) for i in range(ROWS)]
    expected = tuple(bits(torch.cat(parts)) for parts in zip(*alone, strict=True))
    generator = torch.Generator().manual_seed(0)
    for count in thread_counts:
        with threads(count):
            for rows in range(1, ROWS + 1) if count == 1 else (1, 3, 4, ROWS):
                start = (7 * rows) % (ROWS - rows + 1)
                _compare(function, inputs, expected, slice(start, start + rows), count)
                _compare(function, inputs, expected, torch.randperm(ROWS, generator=generator)[:rows], count)
            _compare(function, inputs, expected, torch.randint(0, ROWS, (many,), generator=generator), count)


def _compare(
    function: Callable[..., Rows],
    inputs: tuple[Tensor, ...],
    expected: tuple[Tensor, ...],
    at: slice | Tensor,
    count: int,
) -> None:
    found = _tuple(function(*[x[at] for x in inputs]))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(bits(one), other[at]), f"rows {at} differ with {count} threads"


def _tuple(x: Rows) -> tuple[Tensor, ...]:
    return x if isinstance(x, tuple) else (x,)
