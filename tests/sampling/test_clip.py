"""Cutting a verdict: what is kept, the text it releases, and that nothing else moves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.core import Kept, Sampling, Span, Verdict
from outrider.core import Sequence as Running
from outrider.sampling.clip import Clipped, clip
from outrider.text.stream import TextStream
from tests.support.bytelevel import small_tokenizer

TOKENIZER = small_tokenizer()
EOS = TOKENIZER.encode("<|eos|>")[0]
PROMPT = [1, 2, 3]


def running(limit: int = 100, **options: object) -> Running:
    sampling = Sampling(**options)  # type: ignore[arg-type]
    return Running(
        id=0, tokens=list(PROMPT), prompt_length=len(PROMPT), sampling=sampling, seed=1, limit=limit, committed=2
    )


def judged(seq: Running, text: TextStream, tokens: list[int], ids: tuple[int, ...] = (3,)) -> Clipped:
    """A verdict that accepts all but the last token, clipped."""
    span = Span(seq=seq, start=seq.committed, ids=ids, width=len(tokens), want=1)
    return clip(seq, span, Verdict(tokens=tuple(tokens), accepted=len(tokens) - 1), text, frozenset({EOS}))


def finish_alone(tokens: list[int], limit: int, options: dict[str, object]) -> tuple[list[int], str, str | None]:
    """The same tokens, one a step: what plain decoding makes of them. Returns tokens, text, reason."""
    return finish_in_blocks(tokens, limit, options, [1] * len(tokens))


def finish_in_blocks(
    tokens: list[int], limit: int, options: dict[str, object], sizes: list[int]
) -> tuple[list[int], str, str | None]:
    seq, shown = running(len(PROMPT) + limit, **options), ""
    stream = TextStream(TOKENIZER, seq.sampling.stop)
    rest = tokens
    for size in sizes:
        block, rest = rest[:size], rest[size:]
        if not block:
            break
        clipped = judged(seq, stream, block)
        stream = clipped.text
        seq.tokens += clipped.kept.tokens
        shown += "".join(clipped.pieces)
        if clipped.kept.finish:
            return seq.generated, shown, clipped.kept.finish
    return seq.generated, shown, None


def test_all_is_kept_where_nothing_ends() -> None:
    seq, text = running(), TextStream(TOKENIZER)
    clipped = judged(seq, text, list(b"abc"))
    assert clipped.kept == Kept(n=3, tokens=tuple(b"abc"), accepted=2, finish=None)
    assert clipped.pieces == ("a", "b", "c")


def test_a_span_without_logits_keeps_all_its_rows() -> None:
    seq = running()
    span = Span(seq=seq, start=0, ids=(1, 2, 3), width=0, want=0)
    clipped = clip(seq, span, Verdict(tokens=(), accepted=0), TextStream(TOKENIZER), frozenset({EOS}))
    assert clipped.kept == Kept(n=3) and clipped.pieces == ()


def test_rows_kept_count_the_known_tokens_and_not_the_last_emitted() -> None:
    clipped = judged(running(), TextStream(TOKENIZER), [97, EOS, 98], ids=(1, 2, 3))
    assert clipped.kept == Kept(n=4, tokens=(97, EOS), accepted=2, finish="stop")


def test_accepted_counts_only_drafts_that_are_kept() -> None:
    seq = running()
    span = Span(seq=seq, start=2, ids=(3,), width=4, want=1)
    verdict = Verdict(tokens=(97, 98, EOS), accepted=2)
    assert clip(seq, span, verdict, TextStream(None), frozenset({EOS})).kept.accepted == 2
    assert clip(seq, span, verdict, TextStream(None), frozenset({97})).kept.accepted == 1


def test_nothing_given_is_changed() -> None:
    seq = running(limit=5, stop=("bc",))
    text = TextStream(TOKENIZER, ("bc",))
    text.advance(ord("b"))
    before = list(seq.tokens), seq.committed, seq.finish
    first, again = (judged(seq, text, list(b"cxy")) for _ in range(2))
    assert (first.kept, first.pieces) == (again.kept, again.pieces)
    assert (list(seq.tokens), seq.committed, seq.finish) == before
    assert not text.stopped and first.text.stopped


def test_the_text_of_a_stop_token_is_left_out_and_what_was_held_back_is_given_out() -> None:
    clipped = judged(running(stop=("xyz",), stop_token_ids=(65,)), TextStream(TOKENIZER, ("xyz",)), list(b"axyAb"))
    assert clipped.pieces == ("a", "", "", "xy")
    assert clipped.kept.finish == "stop" and clipped.kept.tokens == tuple(b"axyA")


def test_half_a_character_at_the_limit_is_given_out_as_a_replacement() -> None:
    clipped = judged(running(limit=5), TextStream(TOKENIZER), [97, 0xE4, 0xBD])
    assert clipped.pieces == ("a", "\ufffd") and clipped.kept.finish == "length"


def test_ignored_eos_is_an_ordinary_token() -> None:
    clipped = judged(running(ignore_eos=True), TextStream(TOKENIZER), [97, EOS, 98])
    assert clipped.kept.finish is None and "".join(clipped.pieces) == "ab"
    stopped = judged(running(ignore_eos=True, stop_token_ids=(EOS,)), TextStream(TOKENIZER), [97, EOS, 98])
    assert stopped.kept.finish == "stop" and stopped.kept.tokens == (97, EOS)


@given(
    st.lists(
        st.one_of(st.sampled_from([*b"abEN", EOS, 0xE4, 0xBD, 0xA0]), st.sampled_from(TOKENIZER.encode("END你"))),
        max_size=12,
    ),
    st.integers(1, 14),
    st.lists(st.integers(1, 5), min_size=12, max_size=12),
    st.sampled_from([{}, {"stop": ("END", "Na")}, {"stop_token_ids": (97,)}, {"ignore_eos": True, "stop": ("你",)}]),
)
def test_any_split_into_steps_ends_alike(
    tokens: list[int], limit: int, sizes: list[int], options: dict[str, object]
) -> None:
    assert finish_in_blocks(tokens, limit, options, sizes) == finish_alone(tokens, limit, options)
