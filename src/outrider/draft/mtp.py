"""Drafting with the checkpoint's own MTP head (spec 2 §1).

propose: slot p takes the carry (target streams of the last committed position) and the pending token, giving the
first draft; each further slot takes streams′ of the one before and the token just drafted. catch_up: every committed
position gets its row, made of true streams and committed tokens, also when nothing is drafted, so that drafting can
resume at any step with nothing missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from outrider.cache.cache import Cache
from outrider.cache.spec import LogSpec
from outrider.config.draft import DraftConfig
from outrider.config.model import ModelConfig
from outrider.core import Kept, Sampling, Span
from outrider.core import Sequence as Text
from outrider.draft.base import Drafts
from outrider.draft.holes import Holes
from outrider.model.logs import MTP_CARRY, mtp_specs
from outrider.model.mtp import MtpBlock
from outrider.model.transformer import Target
from outrider.ops.address import ring_home
from outrider.ops.rows import Batch
from outrider.sampling.pick import NO_TOKEN, pick


class MtpDrafter:
    """The MTP head as a proposer (``draft.base.Drafter``)."""

    name = "mtp"
    tap = True
    max_width: int | None = None
    needs_comm = False

    def __init__(self, block: MtpBlock, model: ModelConfig, options: DraftConfig) -> None:
        self.block = block
        self.vocab_limit = options.vocab_limit
        self.logs: tuple[LogSpec, ...] = mtp_specs(model, holes=options.feed == "kept")
        self._options = options
        self._window = model.sliding_window
        self._streams = (model.hc_mult, model.hidden_size)
        self._holes = Holes() if options.feed == "kept" else None
        self._first: dict[int, int] = {}
        """Sequence id → lowest key whose row is good, where a failed catch_up left rows missing."""

    # ---- propose ------------------------------------------------------------------------------------------------

    def propose(self, spans: Sequence[Span], cache: Cache) -> Drafts:
        """See ``Drafter``. A sequence's drafts end where its logits aren't finite."""
        widths = [span.width if span.width and self._ready(span.seq) else 0 for span in spans]
        if not any(widths):
            return Drafts.none(spans)
        plan = cache.plan_drafts(spans, widths)
        chain = _Chain(plan, widths, self.vocab_limit)
        streams = self._carry(plan, chain.members, cache)
        while chain.members:
            rows = chain.rows([self._lowest(spans[i].seq) for i in chain.members])
            streams = self.block.slot(streams, rows, cache)
            alive = chain.extend(self.block.logits(streams), self._pick)
            streams = streams[alive]
            if self._options.chain == "collapsed":
                streams = self.block.collapsed(streams)
        if self._holes is not None:
            self._holes.remember(plan, chain.ids, cache)
        return chain.drafts()

    def _ready(self, seq: Text) -> bool:
        """A carry row is home, and after a failure W newer rows are."""
        return seq.committed > 0 and (seq.id not in self._first or seq.committed - self._first[seq.id] >= self._window)

    def _lowest(self, seq: Text) -> int:
        """The lowest key that may be seen: keys start at 1, or behind the prompt where that isn't fed."""
        fed_from = 1 if self._options.prompt_feed else max(1, seq.prompt_length)
        return max(fed_from, self._first.get(seq.id, 0))

    def _carry(self, plan: Batch, members: Sequence[int], cache: Cache) -> Tensor:
        """Target streams of each member's last committed position, ``[n, S, d]``."""
        log = cache.view(MTP_CARRY)
        home = [ring_home(plan.descs[i].slot, plan.descs[i].committed - 1, log.capacity) for i in members]
        return log.rows[torch.tensor(home, device=log.rows.device)].unflatten(1, self._streams)

    def _pick(self, logits: Tensor, texts: Sequence[Text], positions: Sequence[int]) -> list[int]:
        """The coupled draft: the same processing and the same noise as the target's pick at that position."""
        samplings: list[Sampling] = [text.sampling for text in texts]
        if self._options.drafts == "greedy":
            samplings = [replace(sampling, temperature=0.0) for sampling in samplings]
        seeds = [text.seed for text in texts]
        return pick(logits, samplings, seeds, positions, vocab_limit=self.vocab_limit)

    # ---- catch up -----------------------------------------------------------------------------------------------

    def catch_up(self, batch: Batch, target: Target, kept: Sequence[Kept], cache: Cache) -> None:
        """See ``Drafter``. Only rows that the window can still see are made; their cost is the projections alone."""
        if target.streams is None:
            raise ValueError("the MTP drafter needs the target's streams; run the target with tap=True")
        feeds = [
            _Feed(
                desc.index, max(self._lowest(span.seq), desc.committed, desc.committed + keep.n - self._window), keep.n
            )
            for desc, span, keep in zip(batch.descs, batch.spans, kept, strict=True)
            if keep.n
        ]
        self._stage_rows(batch, target.streams, feeds, cache)
        self._stage_carry(batch, target.streams, feeds, cache)
        if self._holes is not None:
            self._holes.stage(batch, kept, cache)

    def _stage_rows(self, batch: Batch, streams: Tensor, feeds: Sequence[_Feed], cache: Cache) -> None:
        """Key κ joins the streams of κ−1 (the carry for a span's first row) with the token at κ."""
        carry = cache.view(MTP_CARRY)
        sources: list[int] = []
        keys: list[int] = []
        places: list[int] = []
        for feed in feeds:
            desc = batch.descs[feed.span]
            for key in range(feed.first, desc.committed + feed.kept):
                row = desc.first_row + key - desc.committed
                keys.append(key)
                places.append(row)
                first_of_span = key == desc.committed
                home = ring_home(desc.slot, key - 1, carry.capacity)
                sources.append(streams.shape[0] + home if first_of_span else row - 1)
        if not keys:
            return
        device = streams.device
        flat = torch.cat([streams.flatten(1), carry.rows[: carry.home]])[torch.tensor(sources, device=device)]
        counts = [max(0, batch.descs[feed.span].committed + feed.kept - feed.first) for feed in feeds]
        rows = batch.rows(
            [feed.span for feed in feeds],
            counts,
            keys,
            batch.ids[torch.tensor(places, device=device)].tolist(),
            [0] * len(feeds),
        )
        self.block.stage(flat.view(-1, *streams.shape[1:]), rows, cache)

    def _stage_carry(self, batch: Batch, streams: Tensor, feeds: Sequence[_Feed], cache: Cache) -> None:
        """The streams of the last kept row wait for the next round."""
        log = cache.view(MTP_CARRY)
        last = [batch.descs[feed.span].first_row + feed.kept - 1 for feed in feeds]
        index = torch.tensor([last, [log.home + feed.span for feed in feeds]], dtype=torch.int64, device=streams.device)
        log.rows[index[1]] = streams[index[0]].flatten(1)

    def miss(self, batch: Batch, kept: Sequence[Kept]) -> None:
        """See ``Drafter``. The carry is lost too, so the first good row is the one after the next."""
        for desc, span, keep in zip(batch.descs, batch.spans, kept, strict=True):
            if keep.n:
                self._first[span.seq.id] = desc.committed + keep.n + 1

    def release(self, seq: Text) -> None:
        """See ``Drafter``."""
        self._first.pop(seq.id, None)
        if self._holes is not None:
            self._holes.forget(seq)


_Choose = Callable[[Tensor, Sequence[Text], Sequence[int]], list[int]]


@dataclass(frozen=True, slots=True)
class _Feed:
    """Of span ``span``, of which ``kept`` rows are kept: the rows from key ``first`` on are made."""

    span: int
    first: int
    kept: int


class _Chain:
    """Drafts of one step as they grow, one slot at a time, all sequences together."""

    def __init__(self, plan: Batch, widths: Sequence[int], vocab_limit: int | None) -> None:
        self._plan = plan
        self._widths = widths
        self._vocab_limit = vocab_limit
        self.members = [i for i, width in enumerate(widths) if width]
        self.ids: list[list[int]] = [[] for _ in widths]
        self._confidence: list[list[float]] = [[] for _ in widths]
        self._first: dict[int, Tensor] = {}

    def rows(self, lowest: Sequence[int]) -> Batch:
        """The next slot of every member: its key is the position of the newest token it depends on."""
        plan = self._plan
        keys = [plan.descs[i].committed + len(self.ids[i]) for i in self.members]
        tokens = [self.ids[i][-1] if self.ids[i] else plan.spans[i].ids[-1] for i in self.members]
        return plan.rows(self.members, [1] * len(self.members), keys, tokens, lowest)

    def extend(self, logits: Tensor, choose: _Choose) -> list[int]:
        """Add a draft to each member; returns which of ``logits``' rows go on."""
        plan, members = self._plan, self.members
        positions = [plan.descs[i].committed + len(self.ids[i]) + 1 for i in members]
        picks = choose(logits, [plan.spans[i].seq for i in members], positions)
        chosen = torch.tensor(picks, device=logits.device).clamp_min(0)
        chance = torch.softmax(logits[:, : self._vocab_limit], dim=-1).gather(1, chosen[:, None])
        alive = []
        for row, (i, token, p) in enumerate(zip(members, picks, chance[:, 0].tolist(), strict=True)):
            if not self.ids[i]:
                self._first[i] = logits[row]
            if token == NO_TOKEN:
                continue
            self.ids[i].append(token)
            self._confidence[i].append(p)
            if len(self.ids[i]) < self._widths[i]:
                alive.append(row)
        self.members = [members[row] for row in alive]
        return alive

    def drafts(self) -> Drafts:
        """What was drafted."""
        return Drafts(tuple(map(tuple, self.ids)), tuple(map(tuple, self._confidence)), self._first)
