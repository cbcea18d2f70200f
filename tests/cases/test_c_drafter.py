"""Cases C: what a drafter is fed, at which positions, up to which limits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outrider.core import Span
from outrider.draft.scripted import ScriptedDrafter
from outrider.errors import RequestError
from outrider.model.mtp import MtpBlock
from outrider.model.transformer import Target, Transformer
from outrider.ops.rows import Batch
from tests.support.checkpoints import random_tensors, tiny_config
from tests.support.engines import (
    Model,
    assert_promise,
    build_model,
    make_engine,
    plain_truth,
    tiny_model,
)
from tests.support.harness import Harness, assert_home, random_text, reference

GREEDY = {"temperature": 0.0, "ignore_eos": True}


def straight_line(model: Model, text: list[int], k: int) -> tuple[list[int], list[Tensor]]:
    """k greedy drafts after ``text``, and their logits: no cache, no chain; each draft runs all slots anew. Slot i
    takes the target's streams of i before head-mix and norm and token i + 1, a chained one the block's own streams."""
    harness = Harness(model, slots=1, step_rows=len(text) + k)
    cache, seq, n = harness.cache, harness.open(), len(text)
    cache.reserve(seq, n + k)
    batch = cache.plan([Span(seq, 0, tuple(text), 0, n)], [(0,) * k])
    streams = model.trunk(batch, cache, tap=True).streams
    assert streams is not None and streams.dim() == 3
    inputs, tokens, drafts, logits = streams[: n - 1], list(text[1:]), [], []
    for _ in range(k):
        rows = batch.rows([0], [len(tokens)], range(1, len(tokens) + 1), tokens, [1])
        out = model.mtp.slot(inputs, rows, cache)
        logits.append(model.mtp.logits(out)[-1])
        drafts.append(int(logits[-1].argmax()))
        inputs, tokens = torch.cat([inputs, out[-1:]]), [*tokens, drafts[-1]]
    return drafts, logits


def test_c2_chunked_prompts_feed_the_head_alike() -> None:
    """23 tokens in chunks of 1…23: the head's rows and its first drafts are those of a one-shot prompt."""
    model, text = tiny_model(0), random_text(24, 1)
    want = reference(model, text)
    harness = Harness(model, slots=23, step_rows=700)
    seqs = [harness.open() for _ in range(23)]
    for seq, chunk in zip(seqs, range(1, 24), strict=True):
        harness.prefill(seq, text[:23], [chunk] * 22)
        assert_home(harness.cache, seq, want)
    spans = [Span(seq, 23, (text[23],), 4, 1) for seq in seqs]
    for seq in seqs:
        harness.cache.reserve(seq, 5)
    drafts = harness.drafter.propose(spans, harness.cache)
    harness.cache.discard()
    assert set(drafts.ids) == {tuple(straight_line(model, text, 4)[0])}
    assert all(torch.equal(row, want.first[22]) for row in drafts.first_logits.values())


@pytest.mark.parametrize("length", [1, 2])
def test_c3_short_prompts_draft_from_their_own_tokens(length: int) -> None:
    """No embedding is blanked: logits are the block's, called with (streams 0, token 1)."""
    model = tiny_model(3)
    truth = plain_truth(model, [random_text(length, seed) for seed in range(4)], max_tokens=4, **GREEDY)
    record = assert_promise(model, truth, make_engine(model, "mtp", 2), max_tokens=4, **GREEDY)
    for index, text in enumerate(truth.texts):
        _, logits = straight_line(model, list(text[: length + 1]), 1)
        assert torch.equal(record.first_draft[index, length], logits[0])


def test_c4_the_chain_is_fed_all_streams() -> None:
    """K = 3 drafts are those of a straight-line loop in which slot 0 takes the target's streams [T, S, d] and each
    further slot the block's own, in the same shape."""
    model, text = tiny_model(4), random_text(19, 2)
    harness = Harness(model, slots=1, step_rows=40)
    seq = harness.open()
    harness.prefill(seq, text[:-1])
    harness.cache.reserve(seq, 4)
    found = harness.drafter.propose([Span(seq, 18, (text[18],), 3, 1)], harness.cache)
    harness.cache.discard()
    drafts, logits = straight_line(model, text, 3)
    assert list(found.ids[0]) == drafts
    chances = [float(torch.softmax(row, -1)[token]) for row, token in zip(logits, drafts, strict=True)]
    assert found.confidence[0] == pytest.approx(chances)


def test_c4_a_collapsed_hidden_is_refused() -> None:
    model = tiny_model(0)
    harness = Harness(model, slots=1, step_rows=8)
    seq = harness.open()
    harness.cache.reserve(seq, 4)
    batch = harness.cache.plan([Span(seq, 0, (1, 2, 3), 0, 3)], [()])
    streams = model.trunk(batch, harness.cache, tap=True).streams
    assert streams is not None
    for run in (model.mtp.slot, model.mtp.stage):
        with pytest.raises(ValueError, match=r"takes streams \[rows, streams, hidden\]; got shape \[3, 64\]"):
            run(streams.mean(1), batch, harness.cache)


def test_c6_near_the_context_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """max_length 32, K = 4: nothing at position 32 is ever run, by target or head, and the text ends at 32 tokens."""
    model, positions = tiny_model(0), []
    run, slot = Transformer.__call__, MtpBlock.slot

    def watched(self: Transformer, batch: Batch, *args: object, **options: bool) -> Target:
        positions.extend(batch.key.tolist())
        return run(self, batch, *args, **options)  # type: ignore[arg-type]

    def watched_slot(self: MtpBlock, streams: Tensor, batch: Batch, *args: object) -> Tensor:
        positions.extend(batch.key.tolist())
        return slot(self, streams, batch, *args)  # type: ignore[arg-type]

    prompts = [random_text(length, length) for length in range(26, 32)]
    monkeypatch.setattr(Transformer, "__call__", watched)
    monkeypatch.setattr(MtpBlock, "slot", watched_slot)
    plain = make_engine(model, "none", 0, max_length=32).generate(prompts, max_tokens=None, **GREEDY)
    engine = make_engine(model, "mtp", 4, max_length=32)
    drafted = engine.generate(prompts, max_tokens=1000, **GREEDY)
    for prompt, a, b in zip(prompts, plain, drafted, strict=True):
        assert a.token_ids == b.token_ids and len(prompt) + len(b.token_ids) == 32
        assert a.finish_reason == b.finish_reason == "length"
    assert max(positions) <= 31
    assert drafted[0].stats.drafted > 0


def test_c6_a_prompt_as_long_as_the_limit() -> None:
    engine = make_engine(tiny_model(0), "mtp", 4, max_length=32)
    for length in (32, 33, 320):
        with pytest.raises(RequestError) as refused:
            engine.generate(random_text(length, 1), max_tokens=4)
        assert refused.value.param == "prompt"
    assert len(engine.generate(random_text(31, 1), max_tokens=4, ignore_eos=True).token_ids) == 1


def padded_model() -> Model:
    """A head padded from 60 to 64 ids, the padding with the highest logits of all."""
    config = tiny_config(compress_ratios=(0, 4, 8, 0))
    tensors = random_tensors(config, 1)
    tensors["head.weight"][60:] = 5 * tensors["head.weight"][:4]
    tensors["head.weight"][62:] *= -1
    return build_model(config, tensors)


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 1.5, "seed": 4}], ids=["greedy", "sampled"])
def test_c7_padded_ids_are_never_drafted(sampling: dict[str, float]) -> None:
    model = padded_model()
    engine = make_engine(model, "mtp", 4, options={"vocab_limit": 60})
    drafted: list[int] = []
    propose = engine.parts.drafter.propose

    def watched(spans: list[Span], cache: object) -> object:
        drafts = propose(spans, cache)  # type: ignore[arg-type]
        for ids, row in zip(drafts.ids, drafts.confidence, strict=bool(drafts.confidence)):
            drafted.extend(ids)
            assert len(ids) == len(row) and all(0 < chance <= 1 for chance in row)
        for index, logits in drafts.first_logits.items():
            within = torch.softmax(logits[:60], -1)
            assert drafts.confidence[index][0] == pytest.approx(float(within[drafts.ids[index][0]]))
        return drafts

    engine.parts.drafter.propose = watched  # type: ignore[method-assign,assignment]
    prompts = [random_text(n, n, 60) for n in (1, 4, 9)]
    truth = plain_truth(model, prompts, max_tokens=12, ignore_eos=True, **sampling)
    assert_promise(model, truth, engine, max_tokens=12, ignore_eos=True, **sampling)
    assert any(token >= 60 for text in truth.made for token in text), "the target must want what can't be drafted"
    assert drafted and max(drafted) < 60


@pytest.mark.parametrize("bad", [64, 1 << 40, -1], ids=str)
def test_c7_an_id_outside_the_vocabulary_cuts_the_drafts(bad: int) -> None:
    """Also -1: it would be embedded as the last row without a word."""
    model = tiny_model(0)
    prompts = [random_text(n, n) for n in (3, 8)]
    truth = plain_truth(model, prompts, max_tokens=8, **GREEDY)
    offered: list[int] = []

    def script(span: Span) -> list[int]:
        at = len(span.seq.tokens)
        text = next(text for text in truth.texts if list(text[:at]) == span.seq.tokens)
        offered.append(at)
        return [*text[at : at + 1], bad, 5] if span.seq.id % 2 else [bad, 1, 2]

    engine = make_engine(model, ScriptedDrafter(script), 3)
    record = assert_promise(model, truth, engine, drafts=False, max_tokens=8, **GREEDY)
    assert offered and record.passes == 8


def test_c7_a_text_without_drafts_beside_others() -> None:
    model = tiny_model(1)
    prompts = [random_text(n, n) for n in (5, 6, 7)]
    truth = plain_truth(model, prompts, max_tokens=8, **GREEDY)
    engine = make_engine(model, "mtp", 4, width=lambda seq: 0 if seq.id == 1 else 4)
    done = assert_promise(model, truth, engine, max_tokens=8, **GREEDY)
    assert not any(text == 1 for text, _ in done.first_draft)
