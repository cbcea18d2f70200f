"""Bugs put in on purpose: the identity check must fail under each. A check that nothing can fail proves nothing.

Most are caught by comparing a drafted run with a plain one that has the same bug; those marked ``golden`` change both
alike, so that only values from before can show them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from outrider.cache.cache import Cache
from outrider.core import Kept, Verdict
from outrider.draft.mtp import MtpDrafter
from outrider.errors import CapacityError
from outrider.ops.address import ring_home
from outrider.ops.reference import attention, compressor, hyper, indexer, moe
from outrider.ops.rows import Batch, LogView
from outrider.sampling import pick as picking
from outrider.verify import coupled
from outrider.verify.base import Verifier
from outrider.verify.coupled import Coupled
from outrider.verify.everything import CommitEverything
from tests.support.checkpoints import random_tensors, tiny_config
from tests.support.engines import (
    FedScript,
    Model,
    Truth,
    assert_promise,
    build_model,
    make_engine,
    plain_truth,
    right_up_to,
)
from tests.support.harness import random_text

PROMPTS = [random_text(length, length) for length in (5, 12, 19)]
GREEDY = {"max_tokens": 9, "temperature": 0.0, "ignore_eos": True}
HOT = {"max_tokens": 9, "temperature": 6.0, "seed": 2, "ignore_eos": True}

Patch = pytest.MonkeyPatch

pytestmark = pytest.mark.timeout(600)  # seconds on a quiet core, minutes on a crowded one


def tied_model() -> Model:
    """One index head, so that many entries score exactly 0; every row of the head twice, so that every best logit is
    tied; and experts of a width that isn't a multiple of a vector register."""
    config = tiny_config(compress_ratios=(0, 4, 8, 0), index_n_heads=1, index_topk=2, moe_intermediate_size=36)
    tensors = random_tensors(config, 3)
    tensors["head.weight"][1::2] = tensors["head.weight"][0::2]
    return build_model(config, tensors)


@dataclass(frozen=True)
class Golden:
    """A sound run: what plain decoding makes, and how many passes drafting saves."""

    model: Model
    greedy: Truth
    hot: Truth
    passes: tuple[int, int]


def truths(model: Model) -> tuple[Truth, Truth]:
    return plain_truth(model, PROMPTS, **GREEDY), plain_truth(model, PROMPTS, **HOT)


def check(
    model: Model, greedy: Truth, hot: Truth, verifier: Verifier | None = None, **settings: Any
) -> tuple[int, int]:
    """The identity check: scripted drafts right up to j, then the real head. Returns the passes of both runs."""
    drafter = FedScript(model, right_up_to(greedy.texts, lambda span: len(span.seq.tokens) % 5))
    scripted = make_engine(model, drafter, 4, verifier=verifier, prefill_chunk=7, **settings)
    real = make_engine(model, "mtp", 3, verifier=verifier, **settings)
    first = assert_promise(model, greedy, scripted, **GREEDY)
    return first.passes, assert_promise(model, hot, real, **HOT).passes


@pytest.fixture(scope="module")
def golden() -> Golden:
    model = tied_model()
    greedy, hot = truths(model)
    return Golden(model, greedy, hot, check(model, greedy, hot))


def test_the_check_passes_unharmed(golden: Golden) -> None:
    assert check(golden.model, golden.greedy, golden.hot, poison=False) == golden.passes
    assert golden.passes[1] < 9, "the real head must be of use, or its mutations can't show"


# ---- the bugs -----------------------------------------------------------------------------------------------------


def home_for_staged(patch: Patch) -> None:
    def address(self: Batch, log: LogView, position: Tensor, span: Tensor) -> Tensor:
        return ring_home(self.columns[0, span].unsqueeze(-1), position, log.capacity)

    patch.setattr(Batch, "row_address", address)


def first_draft_unchecked(patch: Patch) -> None:
    own = coupled._verdict

    def verdict(last_known: int, draft: Sequence[int], picks: Sequence[int]) -> Verdict:
        return own(last_known, draft, [*draft[:1], *picks[1:]] if draft else picks)

    patch.setattr(coupled, "_verdict", verdict)


def _drafts_with_noise_one_on(
    self: MtpDrafter, logits: Tensor, texts: Sequence[Any], positions: Sequence[int]
) -> list[int]:
    samplings, seeds = [text.sampling for text in texts], [text.seed for text in texts]
    return picking.pick(logits, samplings, seeds, [position + 1 for position in positions])


def target_noise_by_row(patch: Patch) -> None:
    """Noise keyed by the row of the batch instead of the position of the text."""
    own = coupled.pick
    patch.setattr(coupled, "pick", lambda logits, samplings, seeds, positions: own(
        logits, samplings, seeds, list(range(len(positions)))))  # fmt: skip


def one_row_more_is_kept(patch: Patch) -> None:
    own = Cache.commit

    def commit(self: Cache, batch: Batch, kept: int | Sequence[Kept]) -> None:
        if not isinstance(kept, int):
            kept = [replace(k, n=min(k.n + 1, d.rows)) for k, d in zip(kept, batch.descs, strict=True)]
        own(self, batch, kept)

    patch.setattr(Cache, "commit", commit)


def carry_one_row_early(patch: Patch) -> None:
    own = MtpDrafter._stage_carry

    def carry(self: MtpDrafter, batch: Batch, streams: Tensor, feeds: Sequence[Any], cache: Cache) -> None:
        own(self, batch, streams, [replace(feed, kept=max(1, feed.kept - 1)) for feed in feeds], cache)

    patch.setattr(MtpDrafter, "_stage_carry", carry)


def feed_of_drafted_streams(patch: Patch) -> None:
    """The row of the pending token is fed from its own streams instead of those before it."""
    own = MtpDrafter._stage_rows

    def rows(self: MtpDrafter, batch: Batch, streams: Tensor, feeds: Sequence[Any], cache: Cache) -> None:
        own(self, batch, torch.cat([streams[1:], streams[-1:]]), feeds, cache)

    patch.setattr(MtpDrafter, "_stage_rows", rows)


def overlap_zeroed_at_the_edge_of_a_step(patch: Patch) -> None:
    own = compressor.pooled

    def pooled(batch: Batch, raw: LogView, *rest: Any) -> Tensor:
        rows = raw.rows.clone()
        if rest[0].overlap == 2:
            rows[: raw.home] = 0.0
        return own(batch, replace(raw, rows=rows), *rest)

    patch.setattr(attention, "pooled", pooled)


def last_row_of_a_ring_not_copied(patch: Patch) -> None:
    """What a pad that is too short does: of a long span the oldest row that is still needed stays behind."""
    own = Cache._moves

    def moves(self: Cache, log: Any, batch: Batch, counts: list[int]) -> Any:
        whole = own(self, log, batch, counts)
        if log.spec.name != "csa_raw" or max(counts) < 4:
            return whole
        return [(rows, source[1:], destination[1:]) for rows, source, destination in whole]

    patch.setattr(Cache, "_moves", moves)


def ties_to_the_highest_entry(patch: Patch) -> None:
    def top(scores: Tensor, k: int) -> Tensor:
        lanes = scores.shape[-1]
        order = torch.sort(scores.flip(-1), dim=-1, descending=True, stable=True).indices
        return (lanes - 1 - order)[:, : min(k, lanes)]

    patch.setattr(indexer, "top_k_by_rule", top)


def ties_to_the_highest_token(patch: Patch) -> None:
    def argmax(logits: Tensor, top: Tensor) -> list[int]:
        lanes = torch.arange(logits.shape[1])
        return torch.where(logits == top[:, None], lanes, -1).amax(-1).tolist() if len(logits) else []

    patch.setattr(picking, "_lowest_argmax", argmax)


def _visible(patch: Patch, shift: int) -> None:
    """What a query sees, ``shift`` tokens off; what exists stays as it is."""
    for module in (attention, indexer):
        patch.setattr(module, "closed_entries", lambda tokens, stride: (tokens + shift) // stride)


def entries_visible_late(patch: Patch) -> None:
    _visible(patch, -1)


def entries_visible_early(patch: Patch) -> None:
    _visible(patch, 1)


IDENTITY: list[Callable[[Patch], None]] = [
    home_for_staged,
    first_draft_unchecked,
    target_noise_by_row,
    one_row_more_is_kept,
    carry_one_row_early,
    feed_of_drafted_streams,
    overlap_zeroed_at_the_edge_of_a_step,
    last_row_of_a_ring_not_copied,
]
ONLY_GOLDEN: list[Callable[[Patch], None]] = [
    ties_to_the_highest_entry,
    ties_to_the_highest_token,
    entries_visible_late,
    entries_visible_early,
]


def name(bug: Callable[[Patch], None]) -> str:
    return bug.__name__.replace("_", " ")


@pytest.mark.parametrize("poison", [True, False], ids=["poisoned", "zeroed"])
@pytest.mark.parametrize("bug", IDENTITY, ids=name)
def test_identity_catches(golden: Golden, bug: Callable[[Patch], None], poison: bool, monkeypatch: Patch) -> None:
    """The plain run has the same bug: nothing but drafting and chunking differs. (A text whose tokens are all committed
    can't go on: the scheduler says so.)"""
    bug(monkeypatch)
    with pytest.raises((AssertionError, CapacityError)):
        check(golden.model, *truths(golden.model), poison=poison)


@pytest.mark.parametrize("bug", ONLY_GOLDEN, ids=name)
def test_golden_values_catch(golden: Golden, bug: Callable[[Patch], None], monkeypatch: Patch) -> None:
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        check(golden.model, golden.greedy, golden.hot, poison=False)


def test_commit_everything_is_caught(golden: Golden) -> None:
    with pytest.raises(AssertionError):
        check(golden.model, golden.greedy, golden.hot, verifier=CommitEverything())
    check(golden.model, golden.greedy, golden.hot, verifier=Coupled())


def test_drafts_with_another_positions_noise_cost_passes(golden: Golden, monkeypatch: Patch) -> None:
    """The text stands, as it must; only the passes that drafting saves show it."""
    monkeypatch.setattr(MtpDrafter, "_pick", _drafts_with_noise_one_on)
    assert check(golden.model, golden.greedy, golden.hot)[1] > golden.passes[1]


# ---- arithmetic that isn't row-invariant --------------------------------------------------------------------------


def test_untiled_products_are_caught(golden: Golden, monkeypatch: Patch) -> None:
    draw = torch.Generator().manual_seed(0)
    x, w = torch.randn(16, 64, generator=draw), torch.randn(96, 64, generator=draw)
    if all(torch.equal(F.linear(x[:n], w)[0], F.linear(x[:1], w)[0]) for n in range(2, 17)):
        pytest.skip("this CPU's matrix product gives a row the same bits in any batch")
    for module in (moe, hyper, attention, compressor, indexer):
        monkeypatch.setattr(module, "linear", F.linear)
    with pytest.raises(AssertionError):
        check(golden.model, *truths(golden.model), poison=False)


def test_torchs_silu_is_caught(golden: Golden, monkeypatch: Patch) -> None:
    x = torch.randn(9, 36, generator=torch.Generator().manual_seed(0))
    if all(torch.equal(F.silu(x[n:])[0], F.silu(x[n : n + 1])[0]) for n in range(9)):
        pytest.skip("this CPU's silu gives a value the same bits wherever it lies")
    monkeypatch.setattr(moe, "silu", F.silu)
    with pytest.raises(AssertionError):
        check(golden.model, *truths(golden.model), poison=False)
