"""Cases A: what other engines got wrong in rollback, caches and compressed state."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import outrider
from outrider.cache.spec import LogSpec, check_specs
from outrider.config.engine import EngineConfig
from outrider.core import Kept, Span
from outrider.core import Sequence as Text
from outrider.draft.none import NoDrafter
from outrider.draft.scripted import ScriptedDrafter
from outrider.engine.llm import Engine
from outrider.errors import ConfigError, OutriderWarning, UnsupportedError
from tests.support.caches import assert_holds, make_cache, run, span, stage, text
from tests.support.checkpoints import random_tensors, save_tiny, tiny_config
from tests.support.engines import (
    FedScript,
    assert_idle,
    assert_promise,
    build_model,
    fresh_score,
    make_engine,
    plain_truth,
    right_up_to,
    tiny_model,
)
from tests.support.harness import Harness, Reference, Round, assert_home, drafted, random_text, reference


def check_round(want: Reference, item: Round, rows: torch.Tensor, harness: Harness) -> None:
    """Kept rows are the reference's, and so is all that came home."""
    start = item.seq.committed - item.kept
    assert torch.equal(rows[: item.kept], want.logits[start : start + item.kept])
    assert_home(harness.cache, item.seq, want)


def verify(harness: Harness, seqs: Sequence[Text], wants: Sequence[Reference], plan: Sequence[tuple[int, int]]) -> None:
    """One step in which text i has ``plan[i]`` = (drafts, of which are right); all is checked."""
    draw = random.Random(0)
    rounds = []
    for seq, want, (width, right) in zip(seqs, wants, plan, strict=True):
        drafts = drafted(want.ids, seq.committed, width, right, draw)
        rounds.append(Round(seq, (want.ids[seq.committed],), drafts, keep=1 + right))
    for item, want, rows in zip(rounds, wants, harness.step(rounds), strict=True):
        check_round(want, item, rows, harness)


def test_a1_widths_past_the_ratio_then_twelve_more_tokens() -> None:
    """Every K in 1…9, every prefix mod 8, every accepted length: one batch of all, then twelve tokens of decoding."""
    model = tiny_model(3)
    want = reference(model, random_text(60, 1))
    for width in (5, 7, 9):
        cases = [(prefix, right) for prefix in range(16, 24) for right in range(width + 1)]
        harness = Harness(model, slots=len(cases), step_rows=len(cases) * 24)
        seqs = [harness.open() for _ in cases]
        harness.step([Round(seq, want.ids[:prefix]) for seq, (prefix, _) in zip(seqs, cases, strict=True)])
        verify(harness, seqs, [want] * len(seqs), [(width, right) for _, right in cases])
        rounds = [Round(seq, want.ids[seq.committed : seq.committed + 12]) for seq in seqs]
        for item, rows in zip(rounds, harness.step(rounds), strict=True):
            check_round(want, item, rows, harness)


def test_a1_a_k_above_the_bound_is_refused_at_start(tmp_path: Any) -> None:
    save_tiny(tmp_path / "model")
    with pytest.raises(ConfigError, match="draft_length is 8; a step has 8 rows, so it can be 7 at most"):
        outrider.load(tmp_path / "model", draft_length=8, step_rows=8)
    drafter = ScriptedDrafter(lambda span: [], max_width=2)
    with pytest.raises(ConfigError, match="draft_length is 3; the drafter scripted makes 2 at most"):
        outrider.load(tmp_path / "model", draft=drafter, draft_length=3)


def test_a2_one_rejects_all_beside_one_that_accepts_all() -> None:
    model = tiny_model(0)
    a, b, c = (reference(model, random_text(70, seed)) for seed in (1, 2, 3))
    harness = Harness(model, slots=2, step_rows=80)
    first, second = harness.open(), harness.open()
    harness.step([Round(first, a.ids[:9]), Round(second, b.ids[:15])])  # 1 and 3 past a multiple of 4
    for permuted in (False, True):
        for rights in ((0, 4), (4, 0), (0, 5), (5, 0)):
            work = [(first, a, rights[0]), (second, b, rights[1])]
            work = work[::-1] if permuted else work
            verify(harness, [w[0] for w in work], [w[1] for w in work], [(5, w[2]) for w in work])
    slot = first.slot
    harness.close(first)
    third = harness.open()
    harness.prefill(third, c.ids[:6])
    assert third.slot == slot
    for rights in ((0, 3), (3, 0), (0, 0)):
        verify(harness, [second, third], [b, c], [(3, right) for right in rights])


KINDS: dict[str, Callable[[list[int]], Any]] = {
    "list": list,
    "tuple": tuple,
    "numpy": np.array,
    "torch": torch.tensor,
    "numpy numbers": lambda kept: [np.int32(n) for n in kept],
    "torch numbers": lambda kept: [torch.tensor(n) for n in kept],
    "iterator": iter,
    "Kept": lambda kept: [Kept(n) for n in kept],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kept", [[0], [5], [0, 5, 2], [1, 1, 5]], ids=str)
def test_a3_counts_of_every_kind(kind: str, kept: list[int]) -> None:
    cache, seqs = make_cache(), [text(n + 1) for n in range(len(kept))]
    run(cache, [(seq, 6, 6) for seq in seqs])
    for seq in seqs:
        cache.reserve(seq, 5)
    batch = cache.plan([span(seq, 5) for seq in seqs], [()] * len(seqs))
    stage(cache, batch, kept)
    cache.commit(batch, KINDS[kind](kept))
    for seq, count in zip(seqs, kept, strict=True):
        assert_holds(cache, seq, 6 + count)


@pytest.mark.parametrize("kept", [0, 3, np.int64(3), torch.tensor(3)], ids=repr)
def test_a3_one_number_for_all(kept: Any) -> None:
    cache, seqs = make_cache(), [text(1), text(2)]
    for seq in seqs:
        cache.reserve(seq, 3)
    batch = cache.plan([span(seq, 3) for seq in seqs], [(), ()])
    stage(cache, batch, [int(kept)] * 2)
    cache.commit(batch, kept)
    for seq in seqs:
        assert_holds(cache, seq, int(kept))


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ([], "kept has 0 numbers for 2 spans"),
        ([1], "kept has 1 numbers for 2 spans"),
        ([1, 2, 3], "kept has 3 numbers for 2 spans"),
        ([3, 5], "kept is 5 for span 1, which has 4 rows; expected 0 to 4"),
        ([-1, 2], "kept is -1 for span 0"),
        (5, "kept is 5 for span 0"),
        (torch.tensor([2, 9]), "kept is 9 for span 1"),
        ([1.5, 2], "float"),
        (["1", 2], "str"),
    ],
    ids=str,
)
def test_a3_a14_wrong_counts_move_nothing(kept: Any, message: str) -> None:
    cache, seqs = make_cache(), [text(1), text(2)]
    run(cache, [(seqs[0], 7, 7), (seqs[1], 10, 10)])
    for seq in seqs:
        cache.reserve(seq, 4)
    batch = cache.plan([span(seq, 4) for seq in seqs], [(), ()])
    stage(cache, batch, [4, 4])
    before = {name: log.rows.clone() for name, log in cache.logs.items()}
    with pytest.raises((ValueError, TypeError), match=message):
        cache.commit(batch, kept)
    for name, rows in before.items():
        assert torch.equal(cache.logs[name].rows.nan_to_num(-1), rows.nan_to_num(-1))
    assert [seq.committed for seq in seqs] == [7, 10]
    cache.commit(batch, [4, 4])  # the plan is still good
    assert_holds(cache, seqs[0], 11)


def test_a4_mixed_prompt_lengths_and_accepts() -> None:
    model, k = tiny_model(1), 4
    wants = [reference(model, random_text(50, seed)) for seed in (4, 5, 6)]
    harness = Harness(model, slots=3, step_rows=80)
    seqs = [harness.open() for _ in wants]
    lengths = (3, 7, 12)
    harness.step([Round(seq, want.ids[:n]) for seq, want, n in zip(seqs, wants, lengths, strict=True)])
    verify(harness, seqs, wants, [(k, k), (k, 0), (k, 1)])
    assert [seq.committed for seq in seqs] == [3 + k + 1, 8, 14]
    for seq in seqs:
        harness.cache.reserve(seq, 1)
    batch = harness.cache.plan(
        [Span(s, s.committed, (w.ids[s.committed],), 0, 1) for s, w in zip(seqs, wants, strict=True)], [()] * 3
    )
    assert batch.rope.tolist() == batch.key.tolist() == [8, 8, 14]
    assert harness.model.trunk(batch, harness.cache).logits.isfinite().all()
    harness.cache.discard()
    verify(harness, seqs, wants, [(0, 0)] * 3)


class Boom(BaseException):
    """As a KeyboardInterrupt comes: nobody catches it on the way."""


def _after_drafting(engine: Engine, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(engine.parts.cache, "plan", _raise)


def _after_the_target(engine: Engine, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(type(engine.parts.verifier), "judge", _raise)


def _in_the_feed(engine: Engine, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(engine.parts.drafter, "catch_up", _raise)


def _raise(*_: object, **__: object) -> None:
    raise Boom


@pytest.mark.parametrize("breaking", [_after_drafting, _after_the_target, _in_the_feed])
@pytest.mark.parametrize("made", [1, 5, 8])
def test_a6_a_step_broken_off_leaves_the_text_as_it_was(
    breaking: Callable[[Engine, pytest.MonkeyPatch], None], made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the last round, where max_tokens has cut k from 3 to 1."""
    model, prompt = tiny_model(0), random_text(9, 1)
    sampling = {"max_tokens": 10, "ignore_eos": True, "temperature": 0.9, "seed": 3}
    truth = plain_truth(model, [prompt], **sampling)
    drafter = FedScript(model, right_up_to(truth.texts, lambda span: 1))
    engine = make_engine(model, drafter, 3)
    with engine.record() as record, engine.stream(prompt, **sampling) as stream:
        tokens: list[int] = []
        while len(tokens) < made:
            tokens += next(stream).token_ids
        (seq,) = engine.scheduler.running
        with monkeypatch.context() as patch:
            breaking(engine, patch)
            with pytest.raises(Boom):
                next(stream)
        assert seq.committed == len(prompt) + len(tokens) - 1
        assert_home(engine.parts.cache, seq, reference(model, truth.texts[0]))
        tokens += [token for piece in stream for token in piece.token_ids]
    assert tokens == truth.made[0]
    assert all(torch.equal(row, truth.judged[key]) for key, row in record.target.items())
    assert all(torch.equal(row, truth.first[key]) for key, row in record.first_draft.items())
    assert_idle(engine)


def test_a6_closing_between_two_pieces_of_a_round() -> None:
    model, prompt = tiny_model(0), random_text(9, 1)
    sampling = {"max_tokens": 12, "ignore_eos": True, "temperature": 0.0}
    truth = plain_truth(model, [prompt], **sampling)
    engine = make_engine(model, FedScript(model, right_up_to(truth.texts, lambda span: span.width)), 3)
    for _ in range(2):
        stream = engine.stream(prompt, **sampling)
        first = next(stream)
        stream.close()
        stream.close()
        assert stream.completion.finish_reason == "cancelled"
        assert list(first.token_ids) == truth.made[0][:1]
        assert_idle(engine)
    assert_promise(model, truth, engine, **sampling)


class Wide(NoDrafter):
    """Asks for a log that the cache can't stage."""

    name = "wide"
    logs = (LogSpec("coarse", 1, 4, stride=3),)


def test_a7_a_log_that_cannot_be_staged_is_refused_at_start(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="the log 'coarse' can't be kept"):
        check_specs(Wide.logs, 128)
    save_tiny(tmp_path / "model")
    with pytest.raises(ConfigError, match="the log 'coarse' can't be kept: a page has 128 tokens"):
        outrider.load(tmp_path / "model", draft=Wide())


def test_a7_the_first_token_at_a_near_tie() -> None:
    """The two best logits of the prompt's last row lie 1e-6 apart or less; any path must break the tie alike."""
    config = tiny_config(compress_ratios=(0, 4, 8, 0))
    tensors = random_tensors(config, 4)
    head = tensors["head.weight"]
    head[1::2] = head[0::2] * (1 + 1e-7 * torch.randn(head[0::2].shape, generator=torch.Generator().manual_seed(1)))
    model = build_model(config, tensors)
    prompts = [random_text(n, n) for n in range(1, 14)]
    top = torch.stack([fresh_score(model, prompt)[-1].topk(2).values for prompt in prompts])
    assert ((top[:, 0] - top[:, 1]) < 2e-6).all()
    truth = plain_truth(model, prompts, max_tokens=8, temperature=0.0)
    for chunk in (1, 5, None):
        engine = make_engine(model, "mtp", 3, max_batch=13, prefill_chunk=chunk)
        assert_promise(model, truth, engine, max_tokens=8, temperature=0.0)


def test_a8_pages_for_every_row_and_back() -> None:
    """k = 9 with pages of 8: two boundaries may be crossed at once."""
    for length in range(17):
        cache, seq = make_cache(slots=1, max_pages=8), text(1)
        run(cache, [(seq, length, length)])
        cache.reserve(seq, 10)
        assert len(seq.pages) == -(-(length + 10) // 8)
        cache.discard()
        run(cache, [(seq, 10, 1)])
        assert len(seq.pages) == -(-(length + 1) // 8), "surplus pages go back at commit"
        cache.release(seq)
        assert cache.pages.free == 8


def test_a8_one_page_too_few_shrinks_k() -> None:
    model, prompt = tiny_model(0), random_text(7, 1)
    sampling = {"max_tokens": 17, "ignore_eos": True, "temperature": 0.0}
    truth = plain_truth(model, [prompt, prompt[:3]], **sampling)
    drafter = FedScript(model, right_up_to(truth.texts, lambda span: 0))
    engine = make_engine(model, drafter, 9, max_batch=2, max_length=24, max_pages=4)
    widths: list[int] = []
    reserve = engine.parts.cache.reserve
    engine.parts.cache.reserve = lambda seq, rows: (widths.append(rows), reserve(seq, rows))[1]  # type: ignore[method-assign]
    assert_promise(model, truth, engine, **sampling)
    assert engine.scheduler.preemptions > 0 or len(set(widths)) > 2, "nothing was ever short"


@pytest.mark.parametrize("hca", [8, 128])
def test_a10_any_chunks_give_the_rows_of_one_pass(hca: int) -> None:
    """37 tokens in chunks of every size and at random; with ratio 128, edges around the entry that closes at 128."""
    model = tiny_model(1, hca_ratio=hca, compress_ratios=(0, 4, hca, 0))
    length, page = (37, 8) if hca == 8 else (131, 128)
    want = reference(model, random_text(length, 9), page_tokens=page)
    draw = random.Random(1)
    cuts = [[size] * (length // size) for size in range(1, 38)] if hca == 8 else []
    cuts += [[draw.randint(1, 9) for _ in range(8)] for _ in range(6)]
    cuts += [[edge] for edge in ((3, 4, 5, 7, 8, 9) if hca == 8 else (3, 4, 5, 127, 128, 129))]
    cuts = cuts if hca == 8 else cuts[6:]
    harness = Harness(model, slots=len(cuts), step_rows=2000, page_tokens=page)
    seqs = [harness.open() for _ in cuts]
    left = [[*cut, length] for cut in cuts]
    while any(seq.committed < length for seq in seqs):
        rounds = []
        for seq, sizes in zip(seqs, left, strict=True):
            if seq.committed < length:
                rounds.append(Round(seq, want.ids[seq.committed : seq.committed + sizes.pop(0)]))
        for item, rows in zip(rounds, harness.step(rounds), strict=True):
            check_round(want, item, rows, harness)


def test_a14_the_window_holds_the_last_eight_from_every_fill_level() -> None:
    work = [(fill, rows) for fill in range(18) for rows in range(1, 7)]
    cache = make_cache(slots=len(work), max_pages=400, step_rows=2000)
    seqs = [text(n + 1) for n in range(len(work))]
    run(cache, [(seq, fill, fill) for seq, (fill, _) in zip(seqs, work, strict=True)])
    size = cache.logs["window"].home
    for step in range(3):
        run(cache, [(seq, rows, rows) for seq, (_, rows) in zip(seqs, work, strict=True)])
        for seq, (fill, rows) in zip(seqs, work, strict=True):
            assert_holds(cache, seq, fill + (step + 1) * rows)
    assert cache.logs["window"].home == size == 8 * len(work)


@pytest.mark.parametrize("k", range(9))
def test_a15_every_k_with_ragged_batches(k: int) -> None:
    """Every K, the default among them: never the end points only."""
    model = tiny_model(6)
    sampling = {"max_tokens": 9, "ignore_eos": True, "temperature": 0.0}
    truth = plain_truth(model, [random_text(n, n) for n in (2, 9, 5)], **sampling)
    drafter = FedScript(model, right_up_to(truth.texts, lambda span: len(span.seq.tokens) % (span.width + 1)))
    assert_promise(model, truth, make_engine(model, drafter, k), drafts=k > 0, **sampling)


@pytest.mark.parametrize("k", [0, 3])
def test_a16_the_same_request_again_and_again(k: int) -> None:
    model, prompt = tiny_model(0), random_text(14, 2)
    sampling = {"max_tokens": 10, "ignore_eos": True, "temperature": 0.0}
    truth = plain_truth(model, [prompt], **sampling)
    engine = make_engine(model, "mtp", k, max_batch=2)
    for _ in range(2):
        assert_promise(model, truth, engine, drafts=k > 0, **sampling)
    stream = engine.stream(random_text(20, 3), **sampling)
    next(stream)
    stream.close()
    for _ in range(3):
        assert_promise(model, truth, engine, drafts=k > 0, **sampling)
    for turn in (prompt[:4] + random_text(6, 5), [*prompt[:-1], (prompt[-1] + 1) % 64]):
        cold = plain_truth(model, [turn], **sampling)
        assert_promise(model, cold, engine, drafts=k > 0, **sampling)


@pytest.mark.parametrize("widths", [[4, 4, 4, 3], [3, 1, 4, 2], [1, 1, 1, 1], [4, 0, 2, 3]], ids=str)
def test_a19_ragged_widths_again_and_again(widths: list[int]) -> None:
    """Rows per text differ; the last case has a row without drafts. The step keeps nothing, so it can be repeated."""
    model = tiny_model(1)
    harness = Harness(model, slots=5, step_rows=200)
    texts = [random_text(30, seed) for seed in range(5)]
    seqs = [harness.open() for _ in texts]
    harness.step([Round(seq, tuple(ids[: 9 + n])) for n, (seq, ids) in enumerate(zip(seqs, texts, strict=True))])
    rounds = [
        Round(seq, (ids[seq.committed],), tuple(ids[20 : 20 + width]), keep=0)
        for seq, ids, width in zip(seqs, texts, widths, strict=False)
    ]
    solo = [harness.step([item])[0] for item in rounds]
    nothing = Round(seqs[4], (), (), keep=0)
    for count in range(50):
        chosen = rounds if count % 2 else [*rounds[:2], nothing, *rounds[2:]]
        found = [rows for rows in harness.step(chosen) if len(rows)]
        assert sum(map(len, found)) == sum(widths) + len(widths)
        assert all(torch.equal(a, b) for a, b in zip(found, solo, strict=True))


@pytest.mark.parametrize("length", [10, 9, 40])
def test_a20_verify_then_rollback_then_decode_stores_the_same_bytes(length: int) -> None:
    model = tiny_model(5, quantise=True, hca_ratio=128, compress_ratios=(0, 4, 0))
    want = reference(model, random_text(length + 14, 8))
    harness = Harness(model, slots=1, step_rows=80)
    seq = harness.open()
    harness.prefill(seq, want.ids[:length])
    for width, right in ((9, 0), (9, 0), (4, 2), (0, 0), (7, 1)):
        verify(harness, [seq], [want], [(width, right)])


def test_a20_another_cache_format_is_refused(tmp_path: Any) -> None:
    save_tiny(tmp_path / "model")
    for dtype in ("fp8", "bfloat16", "nonsense"):
        with pytest.raises(UnsupportedError, match="cache_dtype"):
            outrider.load(tmp_path / "model", cache_dtype=dtype)
    outrider.load(tmp_path / "model", cache_dtype="float32").close()


def test_a_small_step_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="step_rows is 3 and max_batch 4"):
        EngineConfig(max_batch=4, step_rows=3)


def test_a6_a_failing_drafter_never_fails_a_request() -> None:
    model, prompt = tiny_model(0), random_text(9, 1)
    truth = plain_truth(model, [prompt], max_tokens=6, temperature=0.0)

    def script(span: Span) -> list[int]:
        raise KeyError("no such draft")

    engine = make_engine(model, ScriptedDrafter(script), 3)
    with pytest.warns(OutriderWarning, match="scripted failed to propose: KeyError"):
        assert_promise(model, truth, engine, drafts=False, max_tokens=6, temperature=0.0)
