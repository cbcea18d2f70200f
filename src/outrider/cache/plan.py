"""Spans → Batch: which rows a call has, and where they are staged. Descriptors only; addresses follow from them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outrider.core import Span
from outrider.ops.rows import Batch, SpanDesc


def describe(spans: Sequence[Span], rows: Sequence[int]) -> tuple[SpanDesc, ...]:
    """One descriptor a span of ``rows[i]`` rows, staged one after the other."""
    descs, staged = [], 0
    for index, (span, count) in enumerate(zip(spans, rows, strict=True)):
        seq = span.seq
        descs.append(SpanDesc(seq.slot, tuple(seq.pages), seq.committed, staged, index, staged, count))
        staged += count
    return tuple(descs)


def target_batch(spans: Sequence[Span], drafts: Sequence[Sequence[int]], device: str) -> Batch:
    """The rows that the target runs: every span's known tokens, then its drafts. Logits are wanted for the last
    ``want`` known rows and for every draft."""
    counts = [len(span.ids) + len(draft) for span, draft in zip(spans, drafts, strict=True)]
    descs = describe(spans, counts)
    ids: list[int] = []
    keys: list[int] = []
    want: list[int] = []
    for span, draft, desc in zip(spans, drafts, descs, strict=True):
        ids += [*span.ids, *draft]
        keys += range(span.start, span.start + desc.rows)
        end = desc.first_row + desc.rows
        want += range(end - len(draft) - span.want, end)
    span_of = torch.repeat_interleave(torch.arange(len(spans)), torch.tensor(counts, dtype=torch.int64))
    key = torch.tensor(keys, dtype=torch.int64)
    return Batch(
        descs=descs,
        span=span_of.to(device),
        ids=torch.tensor(ids, dtype=torch.int64).to(device),
        key=key.to(device),
        rope=key.to(device),
        lowest=torch.zeros_like(key).to(device),
        want=torch.tensor(want, dtype=torch.int64).to(device),
        spans=tuple(spans),
        drafts=tuple(tuple(draft) for draft in drafts),
    )


def draft_batch(spans: Sequence[Span], widths: Sequence[int], device: str) -> Batch:
    """A plan without rows yet for a drafter that will stage up to ``widths[i]`` rows for span i (``Batch.rows``)."""
    none = torch.empty(0, dtype=torch.int64, device=device)
    drafts = tuple(() for _ in spans)
    return Batch(describe(spans, widths), none, none, none, none, none, none, tuple(spans), drafts)
