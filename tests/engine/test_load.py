"""``outrider.load``: everything that can be refused is refused there, in one sentence that names it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import outrider
from outrider.cache.spec import LogSpec
from outrider.core import Span
from outrider.draft.none import NoDrafter
from outrider.draft.scripted import ScriptedDrafter
from outrider.engine.memory import available_memory
from outrider.errors import (
    CapacityError,
    CheckpointError,
    ConfigError,
    OutriderWarning,
    RequestError,
    UnsupportedError,
)
from tests.engine.scene import checkpoint, load, prompt


def test_an_engine_says_what_it_is() -> None:
    with load("text", max_batch=3, max_length=100) as engine:
        info = engine.info
    assert info.path == checkpoint("text") and (info.drafter, info.draft_length) == ("mtp", 3)
    assert (info.backend, info.device, info.dtype) == ("reference", "cpu", "float32")
    assert info.threads == 1 and "bit-exact" in info.promise and info.warnings == ()
    assert (info.cache.slots, info.cache.longest, info.cache.page_tokens) == (3, 100, 128)
    assert info.parameters > 10_000 and info.weight_bytes == 4 * info.parameters
    assert info.cache.bytes_per_page > 0 and info.cache.bytes_per_sequence > 0


@pytest.mark.parametrize("name", ["prefill_chunks", "draft_len", "vocab", "dtypes"])
def test_an_unknown_option_is_named_with_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigError, match="step_rows") as caught:
        load(**{name: 1})
    assert caught.value.key == name and name in str(caught.value)


LATER: list[dict[str, Any]] = [
    {"prefix_cache": True},
    {"memory": "4GB"},
    {"cache_dtype": "fp8"},
    {"draft": "ngram"},
    {"draft": "dspark"},
    {"draft_length": {1: 3}},
    {"backend": "native"},
    {"dtype": "bfloat16"},
]


@pytest.mark.parametrize("options", LATER, ids=str)
def test_an_option_whose_time_comes_later_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError) as caught:
        load(**options)
    (value,) = options.values()
    assert "there yet" in str(caught.value)
    assert next(iter(options)).removesuffix("_length") in str(caught.value) or str(value) in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"prefix_cache": False, "memory": None, "cache_dtype": "auto"},
        {"prefix_cache": None, "cache_dtype": "float32", "dtype": "float32", "backend": "reference", "device": "cpu"},
    ],
    ids=str,
)
def test_plain_values_of_later_options_are_taken(options: dict[str, Any]) -> None:
    load(**options).close()


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("draft_length", {"draft_length": -1}),
    ("draft_length", {"draft_length": "many"}),
    ("draft_length", {"draft_length": 2.0}),
    ("draft_length", {"draft_length": True}),
    ("draft_length", {"draft_length": 16, "step_rows": 16, "max_batch": 1}),
    ("step_rows", {"step_rows": 0}),
    ("step_rows", {"step_rows": 3, "max_batch": 4}),
    ("max_batch", {"max_batch": 0}),
    ("max_batch", {"max_batch": "4"}),
    ("max_length", {"max_length": 513}),
    ("max_length", {"max_length": 0}),
    ("prefill_chunk", {"prefill_chunk": 0}),
    ("threads", {"threads": 0}),
    ("threads", {"threads": 1.5}),
    ("max_pages", {"max_pages": 3}),
    ("logs", {"page_tokens": 100}),
    ("chain", {"chain": "stream"}),
    ("feed", {"feed": True}),
    ("prompt_feed", {"prompt_feed": "yes"}),
    ("drafts", {"drafts": "best"}),
    ("draft", {"draft": "medusa"}),
    ("draft", {"draft": object()}),
    ("backend", {"backend": "cuda"}),
    ("device", {"device": "abacus"}),
    ("vocab_limit", {"vocab_limit": 0}),
    ("vocab_limit", {"vocab_limit": "all"}),
]


@pytest.mark.parametrize(("key", "options"), REFUSED, ids=lambda value: str(value))
def test_a_bad_value_is_refused_and_named(key: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(**options)
    assert caught.value.key == key and (key in str(caught.value) or key == "logs")


def test_the_bound_on_drafts_is_in_the_message() -> None:
    """A1: a k above what a step can hold never runs."""
    with pytest.raises(ConfigError, match="it can be 19 at most"):
        load(draft_length=20, step_rows=20)
    load(draft_length=19, step_rows=20).close()


@pytest.mark.parametrize(
    "options", [{"draft": "mtp"}, {"draft_length": 2}, {"draft": "mtp", "draft_length": 0}], ids=str
)
def test_drafting_that_was_asked_for_needs_a_head(options: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="draft head"):
        load("headless", **options)


@pytest.mark.parametrize("options", [{}, {"draft_length": 0}, {"draft": "none"}, {"draft": "none", "draft_length": 2}])
def test_a_lost_head_is_one_warning_and_no_drafts(options: dict[str, Any]) -> None:
    with warnings.catch_warnings(record=True) as met:
        warnings.simplefilter("always")
        engine = load("headless", **options)
    assert [warning.category for warning in met] == [OutriderWarning]
    assert Path(met[0].filename).name == "scene.py", "the warning points at the caller of load"
    assert (engine.info.drafter, engine.info.draft_length, len(engine.info.warnings)) == ("none", 0, 1)
    with load(draft="none") as whole:
        ids = prompt(9)
        made = engine.generate(ids, max_tokens=4, temperature=0.0)
        assert made.token_ids == whole.generate(ids, max_tokens=4, temperature=0.0).token_ids
        assert made.stats.drafted == 0


# ---- a drafter of one's own -----------------------------------------------------------------------------------------


@dataclass
class Proposing:
    """Has a propose, and nothing else of the protocol."""

    name: str = "half"

    def propose(self, spans: object, cache: object) -> None:
        """Nothing."""


class WithLogs(NoDrafter):
    """A drafter with rows of its own."""

    name = "with logs"

    def __init__(self, *logs: LogSpec) -> None:
        self.logs = logs


def test_a_drafter_without_the_protocol_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="Proposing, which lacks the protocol") as caught:
        load(draft=Proposing())
    assert caught.value.key == "draft"


def test_the_class_of_a_drafter_is_no_drafter() -> None:
    with pytest.raises(ConfigError) as caught:
        load(draft=NoDrafter)
    assert caught.value.key == "draft"


def test_a7_a_width_that_a_drafter_cannot_make_is_refused() -> None:
    drafter = ScriptedDrafter(lambda span: [], max_width=2)
    with pytest.raises(ConfigError, match="scripted makes 2 at most") as caught:
        load(draft=drafter, draft_length=3)
    assert caught.value.key == "draft_length"
    load(draft=drafter, draft_length=2).close()


@pytest.mark.parametrize(
    ("log", "wrong"),
    [
        (LogSpec("mine", 1, 4, stride=3), "stride 3 doesn't divide"),
        (LogSpec("mine", 1, 4, stride=4, horizon=8), "a ring has stride 1"),
        (LogSpec("mine", 1, 4, horizon=0), "horizon of at least 1"),
        (LogSpec("mine", 1, 0, horizon=4), "width 0"),
        (LogSpec("mine", 1, 4, stages="last"), "only a ring"),
        (LogSpec("window", 1, 4, horizon=4), "its name is taken"),
    ],
)
def test_a7_a_log_that_cannot_be_staged_is_refused(log: LogSpec, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong) as caught:
        load(draft=WithLogs(log))
    assert repr(log.name) in str(caught.value)


def test_a_drafter_with_rows_of_its_own_runs() -> None:
    with load(draft=WithLogs(LogSpec("mine", 1, 4, horizon=3)), draft_length=2) as engine:
        assert engine.info.drafter == "with logs" and "mine" in engine.parts.cache.logs
        assert len(engine.generate(prompt(5), max_tokens=3, temperature=0.0, ignore_eos=True).token_ids) == 3


# ---- memory, threads, progress --------------------------------------------------------------------------------------


def test_a_checkpoint_that_memory_cannot_hold_is_refused_with_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.engine.load.available_memory", lambda: 1 << 16)
    with pytest.raises(CapacityError, match=r"needs .* GB as float32 .* stored.* GB of memory are free"):
        load()


def test_a_cache_that_memory_cannot_hold_is_refused_with_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    free = iter([1 << 40, 1 << 16])  # enough for the weights, not for the cache
    monkeypatch.setattr("outrider.engine.load.available_memory", lambda: next(free))
    with pytest.raises(CapacityError, match=r"texts and .* rows a step need .* GB of cache"):
        load()


def test_memory_is_read_from_the_system_or_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:      7 kB\n")
    monkeypatch.setattr("outrider.engine.memory.MEMINFO", tmp_path / "meminfo")
    assert available_memory() == 7 * 1024
    monkeypatch.setattr("outrider.engine.memory.MEMINFO", tmp_path / "nowhere")
    assert available_memory() is None


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("max_batch", {"max_batch": 10**9}),
        ("step_rows", {"step_rows": 10**9}),
        ("poison", {"poison": 3}),
        ("progress", {"progress": 3}),
    ],
)
def test_what_would_take_all_memory_or_cannot_be_called_is_refused(key: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(**options)
    assert caught.value.key == key


def test_the_reference_computes_on_one_thread_and_says_so() -> None:
    before = torch.get_num_threads()
    with pytest.warns(OutriderWarning, match="threads=2: the reference backend computes on 1"):
        assert load(threads=2).info.threads == 1
    assert load(threads=1).info.threads == 1
    assert torch.get_num_threads() == before


def test_a_step_runs_on_one_thread_whatever_the_process_has() -> None:
    seen: list[int] = []

    def script(span: Span) -> list[int]:
        seen.append(torch.get_num_threads())
        return []

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        load(draft=ScriptedDrafter(script), draft_length=1).generate([5, 6, 7], max_tokens=4)
        assert seen and set(seen) == {1} and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_threads_of_the_process_change_no_bit_and_are_left_as_they_were() -> None:
    engine = load(draft_length=2)
    tokens, logits = engine.generate([5, 6, 7], max_tokens=12, seed=1).token_ids, engine.score([5, 6, 7, 8])
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert engine.generate([5, 6, 7], max_tokens=12, seed=1).token_ids == tokens
        assert torch.equal(engine.score([5, 6, 7, 8]), logits)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_progress_counts_layers() -> None:
    seen: list[tuple[int, int]] = []
    load(progress=lambda done, of: seen.append((done, of))).close()
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_a_path_that_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        outrider.load(tmp_path)


def test_a_closed_engine_says_so() -> None:
    engine = load("text")
    engine.close()
    engine.close()
    for call in (engine.generate, engine.stream, engine.score):
        with pytest.raises(RequestError, match="engine is closed"):
            call([5, 6])


def test_a_path_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="path is a NoneType"):
        outrider.load(None)  # type: ignore[arg-type]
