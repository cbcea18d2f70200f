"""A drafter's duties (spec 2 §2), one test each; ``docs/drafting.md`` has the table duty → place → test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import outrider
from outrider.cache.cache import Cache
from outrider.core import Sampling, Span
from outrider.core import Sequence as Text
from outrider.draft.base import Drafter, Drafts
from outrider.draft.mtp import MtpDrafter
from outrider.draft.none import NoDrafter
from outrider.draft.scripted import ScriptedDrafter
from outrider.errors import ConfigError, OutriderWarning
from outrider.model.mtp import MtpBlock
from outrider.sampling.pick import pick
from tests.support.checkpoints import save_tiny
from tests.support.engines import (
    FedScript,
    Model,
    Truth,
    assert_idle,
    assert_promise,
    make_engine,
    plain_truth,
    recorded,
    right_up_to,
    tiny_model,
)
from tests.support.harness import Harness, Round, assert_home, random_text, reference

RUN: dict[str, Any] = {"max_tokens": 24, "temperature": 8.0, "seed": 7, "ignore_eos": True}
PROMPTS = [random_text(n, 60 + n) for n in (1, 6, 15)]


pytestmark = pytest.mark.timeout(600)  # seconds on a quiet core, minutes on a crowded one


@pytest.fixture(scope="module")
def model() -> Model:
    return tiny_model(0)


@pytest.fixture(scope="module")
def truth(model: Model) -> Truth:
    """The k = 0 run of all prompts."""
    return plain_truth(model, PROMPTS, **RUN)


@pytest.fixture(scope="module")
def last(model: Model) -> Truth:
    """The same of the last prompt alone."""
    return plain_truth(model, PROMPTS[2:], **RUN)


def ready(model: Model, length: int = 21, seed: int = 3) -> tuple[Harness, Text, list[int]]:
    """A harness with one text of which all but the last token are committed."""
    harness, text = Harness(model, slots=2, step_rows=64), random_text(length, seed)
    seq = harness.open()
    harness.prefill(seq, text[:-1])
    return harness, seq, text


def propose(harness: Harness, seq: Text, pending: int, width: int) -> Drafts:
    harness.cache.reserve(seq, 1 + width)
    try:
        return harness.drafter.propose([Span(seq, seq.committed, (pending,), width, 1)], harness.cache)
    finally:
        harness.cache.discard()


# ---- declared up front --------------------------------------------------------------------------------------------


def test_every_drafter_has_the_protocol(model: Model) -> None:
    for drafter in (NoDrafter(), ScriptedDrafter(lambda span: []), model.drafter()):
        assert isinstance(drafter, Drafter)
        assert not drafter.needs_comm, "nothing here is sharded yet"


def test_what_lacks_the_protocol_is_refused_by_name(tmp_path: Any) -> None:
    class Half:
        name = "half"

        def propose(self, spans: Sequence[Span], cache: Cache) -> Drafts:
            return Drafts.none(spans)

    save_tiny(tmp_path / "model")
    with pytest.raises(ConfigError, match="draft is of type Half, which lacks the protocol"):
        outrider.load(tmp_path / "model", draft=Half())  # type: ignore[arg-type]


def test_a_declared_width_bounds_k_at_start(tmp_path: Any) -> None:
    save_tiny(tmp_path / "model")
    drafter = ScriptedDrafter(lambda span: [1, 2], max_width=2)
    with pytest.raises(ConfigError, match="scripted makes 2 at most") as refused:
        outrider.load(tmp_path / "model", draft=drafter, draft_length=3)
    assert refused.value.key == "draft_length"
    outrider.load(tmp_path / "model", draft=drafter, draft_length=2).close()


# ---- propose ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [0, 1, 2])
def test_fewer_drafts_than_asked_or_none_are_valid(model: Model, truth: Truth, most: int) -> None:
    right = right_up_to(truth.texts, lambda span: span.width)
    engine = make_engine(model, ScriptedDrafter(lambda span: right(span)[: most if span.seq.id else 0]), 4)
    assert_promise(model, truth, engine, drafts=False, **RUN)


def test_more_drafts_than_asked_are_cut(model: Model, truth: Truth) -> None:
    """A drafter can't run past the places that were reserved for it."""

    class Eager(NoDrafter):
        def propose(self, spans: Sequence[Span], cache: Cache) -> Drafts:
            return Drafts(tuple((1,) * 50 for _ in spans), tuple((0.5,) * 50 for _ in spans))

    assert_promise(model, truth, make_engine(model, Eager(), 3, max_length=48), drafts=False, **RUN)


def test_a_list_for_another_number_of_spans_is_no_drafts(model: Model, truth: Truth) -> None:
    class Short(NoDrafter):
        name = "short"

        def propose(self, spans: Sequence[Span], cache: Cache) -> Drafts:
            return Drafts(((1, 2),) * (len(spans) + 1))

    with pytest.warns(OutriderWarning, match="the drafter short failed to propose: ValueError"):
        assert_promise(model, truth, make_engine(model, Short(), 3), drafts=False, **RUN)


def test_propose_leaves_nothing_behind(model: Model) -> None:
    harness, seq, text = ready(model)
    before = {name: log.rows.clone() for name, log in harness.cache.logs.items()}
    tokens, committed = list(seq.tokens), seq.committed
    drafts = propose(harness, seq, text[-1], 9)
    assert len(drafts.ids[0]) == 9
    assert (seq.tokens, seq.committed) == (tokens, committed)
    for name, log in harness.cache.logs.items():
        home = log.home
        assert torch.equal(log.rows[:, :home].nan_to_num(-7), before[name][:, :home].nan_to_num(-7))
        assert log.rows[:, home:].isnan().all()
    assert propose(harness, seq, text[-1], 9).ids == drafts.ids, "and so it says the same again"


def test_a_batch_proposes_what_each_would_alone(model: Model) -> None:
    harness = Harness(model, slots=6, step_rows=200)
    texts = [random_text(8 + 5 * n, n) for n in range(6)]
    seqs = [harness.open() for _ in texts]
    for seq, text in zip(seqs, texts, strict=True):
        harness.prefill(seq, text[:-1])
        harness.cache.reserve(seq, 9)
    spans = [Span(seq, seq.committed, (text[-1],), n, 1) for n, (seq, text) in enumerate(zip(seqs, texts, strict=True))]
    together = harness.drafter.propose(spans, harness.cache)
    harness.cache.discard()
    for n, (seq, text) in enumerate(zip(seqs, texts, strict=True)):
        alone = propose(harness, seq, text[-1], n)
        assert together.ids[n] == alone.ids[0]
        assert together.confidence[n] == (alone.confidence[0] if n else ())
        assert len(alone.ids[0]) == n


def test_the_first_draft_is_drawn_with_the_targets_noise_at_its_position(model: Model) -> None:
    """Coupled: the same noise as the target's at that position, for each of the chain's positions."""
    harness, seq, text = ready(model)
    seq.sampling, seq.seed = Sampling(temperature=1.5, top_k=30), 99
    logits = propose(harness, seq, text[-1], 1).first_logits[0][None]
    expected = pick(logits, [seq.sampling], [99], [len(text)])
    elsewhere = {pick(logits, [seq.sampling], [99], [at])[0] for at in range(60) if at != len(text)}
    assert list(propose(harness, seq, text[-1], 1).ids[0]) == expected
    assert elsewhere - set(expected), "the noise must matter"


def test_each_drafts_confidence_is_given(model: Model) -> None:
    harness, seq, text = ready(model)
    drafts = propose(harness, seq, text[-1], 5)
    assert len(drafts.confidence[0]) == 5 and all(0 < chance <= 1 for chance in drafts.confidence[0])
    assert drafts.confidence[0][0] == pytest.approx(float(torch.softmax(drafts.first_logits[0], -1).max()))


def test_a_vocabulary_limit_is_never_left_and_never_an_error(model: Model, truth: Truth) -> None:
    """Not even where the text holds tokens beyond it."""
    assert max(max(text) for text in truth.texts) >= 20
    engine = make_engine(model, "mtp", 4, options={"vocab_limit": 20})
    seen: list[int] = []
    own = engine.parts.drafter.propose

    def watched(spans: Sequence[Span], cache: Cache) -> Drafts:
        drafts = own(spans, cache)
        seen.extend(token for ids in drafts.ids for token in ids)
        return drafts

    engine.parts.drafter.propose = watched  # type: ignore[method-assign]
    assert_promise(model, truth, engine, **RUN)
    assert seen and max(seen) < 20


@pytest.mark.parametrize("slot", [1, 2, 3])
def test_an_exception_in_propose_is_no_drafts(
    model: Model, truth: Truth, slot: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any slot of the chain, with rows staged already: the text and all its rows are the same."""
    calls = iter(range(10**6))
    run = MtpBlock.slot

    def failing(self: MtpBlock, *args: Any) -> Tensor:
        if next(calls) % 5 == slot:
            raise RuntimeError("out of luck")
        return run(self, *args)

    engine = make_engine(model, "mtp", 3)
    monkeypatch.setattr(MtpBlock, "slot", failing)
    with pytest.warns(OutriderWarning, match="the drafter mtp failed to propose: RuntimeError"):
        assert_promise(model, truth, engine, **RUN)


def test_logits_that_are_not_finite_end_that_texts_drafts(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(model, slots=2, step_rows=64)
    texts = [random_text(12, 1), random_text(9, 2)]
    seqs = [harness.open() for _ in texts]
    for seq, text in zip(seqs, texts, strict=True):
        harness.prefill(seq, text[:-1])
    alone = propose(harness, seqs[1], texts[1][-1], 5).ids[0]
    whole = propose(harness, seqs[0], texts[0][-1], 5).ids[0]
    logits, calls = MtpBlock.logits, iter(range(10))

    def damaged(self: MtpBlock, streams: Tensor) -> Tensor:
        out = logits(self, streams).clone()
        if next(calls) == 2:
            out[0, 5] = torch.nan
        return out

    monkeypatch.setattr(MtpBlock, "logits", damaged)
    for seq in seqs:
        harness.cache.reserve(seq, 6)
    spans = [Span(seq, seq.committed, (text[-1],), 5, 1) for seq, text in zip(seqs, texts, strict=True)]
    drafts = harness.drafter.propose(spans, harness.cache)
    assert drafts.ids == (whole[:2], alone)


# ---- catch_up, release --------------------------------------------------------------------------------------------


def test_committed_positions_are_fed_true_streams(model: Model) -> None:
    """After any mix of accepted and refused drafts the head's rows are those of a one-shot pass (feed="true")."""
    harness, seq, text = ready(model, 40)
    want = reference(model, random_text(40, 3))
    harness.close(seq)
    seq = harness.open()
    for keep in (5, 1, 3, 1, 1, 6, 2):
        at = seq.committed
        harness.step([Round(seq, (want.ids[at],), (*want.ids[at + 1 : at + keep], 1, 2, 3), keep=keep)])
        assert_home(harness.cache, seq, want)
    assert text == list(want.ids)


@pytest.mark.parametrize("moment", ["rows", "carry"])
@pytest.mark.parametrize("step", [0, 1, 4])
def test_an_exception_in_catch_up_pauses_drafting_for_a_window(
    model: Model, last: Truth, step: int, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No drafts until W newer rows are home; no row that is missing is read (poison would show); then as before: the
    first drafts' logits are again those of a one-shot pass. Step 0 is the prompt's."""
    engine = make_engine(model, "mtp", 3)
    calls = iter(range(10**6))
    method = {"rows": "_stage_rows", "carry": "_stage_carry"}[moment]
    own = getattr(MtpDrafter, method)

    def failing(self: MtpDrafter, *args: Any) -> None:
        if next(calls) == step:
            raise RuntimeError("no memory")
        own(self, *args)

    monkeypatch.setattr(MtpDrafter, method, failing)
    with pytest.warns(OutriderWarning, match="the drafter mtp failed to catch up: RuntimeError"):
        record = assert_promise(model, last, engine, **RUN)
    drafted = sorted(position for _, position in record.first_draft)
    window = model.config.sliding_window
    gaps = [b - a for a, b in zip([len(PROMPTS[2]) - 1, *drafted], drafted, strict=False)]
    assert max(gaps) >= window + 1, "drafting went on with rows missing"
    assert drafted[-1] > len(PROMPTS[2]) + window, "drafting never resumed"
    assert sum(gap > window for gap in gaps) == 1


def test_a_failure_is_forgotten_with_its_text(model: Model) -> None:
    harness, seq, text = ready(model)
    batch = harness.cache
    batch.reserve(seq, 1)
    plan = batch.plan([Span(seq, 20, (text[20],), 0, 1)], [()])
    harness.drafter.miss(plan, [outrider.core.Kept(1)])
    batch.discard()
    assert propose(harness, seq, text[-1], 2).ids == ((),)
    harness.drafter.release(seq)
    harness.drafter.release(seq)
    assert propose(harness, seq, text[-1], 2).ids != ((),)


def test_a_text_without_committed_rows_has_no_carry_and_no_drafts(model: Model) -> None:
    harness = Harness(model, slots=1, step_rows=8)
    assert propose(harness, harness.open(), 5, 3).ids == ((),)


def test_freeing_twice_and_running_on(model: Model, truth: Truth) -> None:
    engine = make_engine(model, "mtp", 3, max_batch=2)
    stream = engine.stream(PROMPTS[1], **RUN)
    next(stream)
    (seq,) = engine.scheduler.running
    stream.close()
    engine.parts.cache.release(seq)
    engine.parts.drafter.release(seq)
    assert_idle(engine)
    assert_promise(model, truth, engine, **RUN)


def test_the_target_must_be_tapped(model: Model) -> None:
    harness, seq, text = ready(model)
    harness.cache.reserve(seq, 1)
    batch = harness.cache.plan([Span(seq, 20, (text[20],), 0, 1)], [()])
    target = model.trunk(batch, harness.cache, tap=False)
    with pytest.raises(ValueError, match="tap=True"):
        harness.drafter.catch_up(batch, target, [outrider.core.Kept(1)], harness.cache)


# ---- options ------------------------------------------------------------------------------------------------------


OPTIONS: dict[str, dict[str, Any]] = {
    "kept": {"feed": "kept"},
    "no prompt": {"prompt_feed": False},
    "collapsed": {"chain": "collapsed"},
    "greedy drafts": {"drafts": "greedy"},
    "all": {"feed": "kept", "prompt_feed": False, "chain": "collapsed", "drafts": "greedy"},
}
CHANGES_FIRST_DRAFTS = {"kept": True, "no prompt": True, "collapsed": False, "greedy drafts": False, "all": True}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_change_drafts_and_never_the_text(model: Model, truth: Truth, name: str) -> None:
    done, record = recorded(make_engine(model, "mtp", 4, options=OPTIONS[name]), PROMPTS, **RUN)
    assert [completion.token_ids for completion in done] == truth.made
    assert record.rows == truth.rows
    assert all(torch.equal(row, truth.judged[key]) for key, row in record.target.items())
    assert all(row.isfinite().all() for row in record.first_draft.values()), "a missing row was read"
    same = [torch.equal(row, truth.first[key]) for key, row in record.first_draft.items()]
    assert all(same) == (not CHANGES_FIRST_DRAFTS[name])


def drafts_of(model: Model, harness: Harness, seq: Text, pending: int, **options: Any) -> tuple[int, ...]:
    """What a drafter with these options proposes on the same rows."""
    own, harness.drafter = harness.drafter, model.drafter(**options)
    try:
        return propose(harness, seq, pending, 6).ids[0]
    finally:
        harness.drafter = own


def test_collapsed_changes_the_chain_from_the_second_draft_on(model: Model) -> None:
    different = 0
    for seed in range(6):
        harness, seq, text = ready(model, seed=seed)
        streams = drafts_of(model, harness, seq, text[-1])
        collapsed = drafts_of(model, harness, seq, text[-1], chain="collapsed")
        assert streams[0] == collapsed[0]
        different += streams != collapsed
    assert different


def test_greedy_drafts_ignore_the_noise(model: Model) -> None:
    harness, seq, text = ready(model)
    plain = drafts_of(model, harness, seq, text[-1])
    seq.sampling, seq.seed = Sampling(temperature=3.0), 5
    assert drafts_of(model, harness, seq, text[-1], drafts="greedy") == plain
    assert drafts_of(model, harness, seq, text[-1], drafts="sampled") != plain


def test_greedy_drafts_are_accepted_less_often(model: Model) -> None:
    runs: dict[str, Callable[[], int]] = {
        drafts: lambda drafts=drafts: (
            recorded(  # type: ignore[misc]
                make_engine(model, "mtp", 3, options={"drafts": drafts}), PROMPTS, **RUN
            )[1].passes
        )
        for drafts in ("sampled", "greedy")
    }
    assert runs["sampled"]() < runs["greedy"]()


def test_kept_loses_the_bonus_tokens_row_and_marks_it(model: Model, last: Truth) -> None:
    """After a round with a accepted drafts only their rows count: keys committed … committed + a − 1, as drafted; the
    last one of the round is marked as missing and never seen. A prompt's rows all count."""
    drafter = model.drafter(feed="kept", length=2)
    engine = make_engine(model, drafter, 2)
    right = right_up_to(last.texts, lambda span: len(span.seq.tokens) % 3)
    own = drafter.propose

    def scripted(spans: Sequence[Span], cache: Cache) -> Drafts:
        drafts = own(spans, cache)
        ids = tuple(tuple(right(span)) if drafts.ids[i] else () for i, span in enumerate(spans))
        return Drafts(ids, first_logits=drafts.first_logits)

    drafter.propose = scripted  # type: ignore[method-assign]
    marks: dict[int, float] = dict.fromkeys(range(1, len(PROMPTS[2])), 1.0)
    with engine.stream(PROMPTS[2], **RUN) as stream:
        next(stream)
        (seq,) = engine.scheduler.running
        for _ in range(8):
            start, before = seq.committed, len(seq.tokens)
            piece = next(stream)
            if seq.finish is not None:
                break
            accepted = piece.origins.count("accepted")
            marks |= {start + i: float(i < accepted) for i in range(len(seq.tokens) - before)}
            log = engine.parts.cache.logs["mtp_valid"]
            for key in range(max(1, seq.committed - 8), seq.committed):
                assert float(log.rows[0, seq.slot * 8 + key % 8, 0]) == marks[key]
    assert 0.0 in marks.values() and 1.0 in list(marks.values())[len(PROMPTS[2]) :]


def test_without_prompt_feed_the_head_sees_generated_tokens_alone(model: Model, last: Truth) -> None:
    """Its lowest key is the first generated token's: the reference is a pass over its rows from there on."""
    start = len(PROMPTS[2])
    _, record = recorded(make_engine(model, "mtp", 2, options={"prompt_feed": False}), PROMPTS[2:], **RUN)
    harness, text = Harness(model, slots=1, step_rows=64), list(last.texts[0])
    seq = harness.open()
    harness.cache.reserve(seq, len(text))
    batch = harness.cache.plan([Span(seq, 0, tuple(text), 0, 1)], [()])
    streams = model.trunk(batch, harness.cache, tap=True).streams
    assert streams is not None
    keys = range(start, len(text))
    rows = batch.rows([0], [len(keys)], keys, text[start:], [start])
    logits = model.mtp.logits(model.mtp.slot(streams[start - 1 : -1], rows, harness.cache))
    assert record.first_draft
    for (_, position), row in record.first_draft.items():
        assert torch.equal(row, logits[position - start])


def test_a_fed_script_is_fed_like_the_real_head(model: Model, truth: Truth) -> None:
    """The tests' own drafter: always right, k = 6, a quarter of the passes."""
    engine = make_engine(model, FedScript(model, right_up_to(truth.texts, lambda span: span.width)), 6)
    assert assert_promise(model, truth, engine, **RUN).passes <= 6
