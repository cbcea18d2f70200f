"""Ctrl-C at any line of a step: every sequence is as before it or as after it, nothing is lost, and the text goes on.

The signal is a real one, raised from a trace function at the n-th line that the step runs in the rooms that hold
state; so what is held back during a commit is tested as well.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import outrider.engine.llm as llm
from outrider.engine.llm import Engine, Stream
from tests.engine.scene import at_rest, prompt
from tests.support.engines import make_engine, tiny_model

ROOT = Path(llm.__file__).parents[1]
WATCHED = tuple(str(ROOT / room) for room in ("engine", "cache", "draft", "verify", "model"))
OPTIONS: dict[str, Any] = {"max_tokens": 9, "temperature": 0.8, "seed": 5, "ignore_eos": True}
PROMPTS = (prompt(9), prompt(4))
QUICK = 24


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also where the tests run in the background and it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Lines:
    """Counts the lines that run in the watched rooms, and sends SIGINT at the ``at``-th."""

    def __init__(self, at: int = -1) -> None:
        self.count = 0
        self._at = at

    def __call__(self, frame: FrameType, event: str, arg: object) -> Lines | None:
        if not frame.f_code.co_filename.startswith(WATCHED):
            return None
        if event == "line":
            self.count += 1
            if self.count == self._at:
                signal.raise_signal(signal.SIGINT)
        return self


def traced(lines: Lines, work: Callable[[], object]) -> None:
    before = sys.gettrace()
    sys.settrace(lines)
    try:
        work()
    finally:
        sys.settrace(before)


def open_streams(engine: Engine, steps: int) -> list[Stream]:
    """Two texts, ``steps`` steps after their start."""
    streams = [engine.stream(ids, **OPTIONS) for ids in PROMPTS]
    for _ in range(steps):
        engine.step()
    return streams


def lines_of_a_step(engine: Engine, steps: int) -> int:
    streams = open_streams(engine, steps)
    lines = Lines()
    traced(lines, engine.step)
    for stream in streams:
        stream.close()
    return lines.count


def interrupt(engine: Engine, steps: int, line: int, expected: list[list[int]]) -> None:
    streams = open_streams(engine, steps)
    with pytest.raises(KeyboardInterrupt):
        traced(Lines(line), engine.step)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    running = engine.scheduler.running
    engine.parts.cache.check_integrity(running)
    assert len(running) + len(engine.scheduler.waiting) == 2
    for seq in running:
        assert seq.committed in (0, len(seq.tokens) - 1), "a commit without its tokens, or tokens without their commit"
    made = [[token for piece in stream for token in piece.token_ids] for stream in streams]
    assert made == expected, f"interrupted at line {line}"
    assert at_rest(engine)


def sweep(steps: int, k: int, count: int | None) -> None:
    model = tiny_model()
    engine = make_engine(model, "mtp" if k else "none", k, max_batch=2)
    expected = [made.token_ids for made in make_engine(model, "none", 0).generate(list(PROMPTS), **OPTIONS)]
    lines_of_a_step(engine, steps)  # makes room for pages, once
    lines = lines_of_a_step(engine, steps)
    assert lines > 100
    stride = 1 if count is None else max(1, lines // count)
    for line in range(1, lines - 10, stride):
        interrupt(engine, steps, line, expected)


@pytest.mark.parametrize("steps", [0, 2])
def test_ctrl_c_at_some_lines_of_a_step(steps: int) -> None:
    sweep(steps, 3, QUICK)


class Opcodes:
    """Sends SIGINT at the ``at``-th bytecode of the scheduler's own functions."""

    def __init__(self, at: int) -> None:
        self.count = 0
        self._at = at

    def __call__(self, frame: FrameType, event: str, arg: object) -> Opcodes | None:
        if not frame.f_code.co_filename.endswith("scheduler.py"):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            self.count += 1
            if self.count == self._at:
                signal.raise_signal(signal.SIGINT)
        return self


@pytest.mark.parametrize("pages", [20, 4])
def test_ctrl_c_while_it_is_chosen_who_runs_loses_nobody(pages: int) -> None:
    """A text on its way from the queue to the batch, or put back into the queue, is in neither for a moment."""
    engine = make_engine(tiny_model(), "none", 0, max_batch=2, max_pages=pages, max_length=32)
    for at in range(1, 400, 6) if pages == 4 else range(1, 120):
        streams = [engine.stream(prompt(15), **OPTIONS) for _ in range(2)]
        for _ in range(2 if pages == 4 else 0):
            engine.step()
        with pytest.raises(KeyboardInterrupt):
            traced(Opcodes(at), engine.step)
        assert len(engine.scheduler.running) + len(engine.scheduler.waiting) == 2, f"lost at bytecode {at}"
        engine.parts.cache.check_integrity(engine.scheduler.running)
        for stream in streams:
            stream.close()
        assert at_rest(engine)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("steps", "k"), [(0, 3), (2, 3), (1, 0)])
def test_ctrl_c_at_every_line_of_a_step(steps: int, k: int) -> None:
    sweep(steps, k, None)


POINTS = (
    "cache.reserve",
    "cache.plan_drafts",
    "drafter.propose",
    "cache.plan",
    "verifier.judge",
    "drafter.catch_up",
    "cache.commit",
)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("point", POINTS)
def test_a6_an_interruption_around_each_part(point: str, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A6: after drafting, after verifying, before and after the commit; near the end, where drafts have shrunk."""
    model = tiny_model()
    expected = [made.token_ids for made in make_engine(model, "none", 0).generate(list(PROMPTS), **OPTIONS)]
    engine = make_engine(model, "mtp", 3)
    streams = open_streams(engine, 2)
    owner, name = getattr(engine.parts, point.split(".")[0]), point.split(".")[1]
    real = getattr(owner, name)

    def interrupted(*arguments: Any, **keywords: Any) -> Any:
        monkeypatch.undo()
        if when == "before":
            signal.raise_signal(signal.SIGINT)
        result = real(*arguments, **keywords)
        signal.raise_signal(signal.SIGINT)
        return result

    for round_ in range(3):
        monkeypatch.setattr(owner, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
        engine.parts.cache.check_integrity(engine.scheduler.running)
        for _ in range(round_ * 2):
            engine.step()
    made = [[token for piece in stream for token in piece.token_ids] for stream in streams]
    assert made == expected and at_rest(engine)


def test_an_interrupted_generate_frees_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(tiny_model(), "mtp", 3)
    expected = engine.generate(list(PROMPTS), **OPTIONS)
    real, passes = engine.parts.verifier.judge, iter(range(3))

    def judge(*arguments: Any) -> Any:
        if next(passes, None) is None:
            monkeypatch.undo()
            signal.raise_signal(signal.SIGINT)
        return real(*arguments)

    monkeypatch.setattr(engine.parts.verifier, "judge", judge)
    with pytest.raises(KeyboardInterrupt):
        engine.generate(list(PROMPTS), **OPTIONS)
    assert at_rest(engine)
    assert [made.token_ids for made in engine.generate(list(PROMPTS), **OPTIONS)] == [
        made.token_ids for made in expected
    ]


def test_an_engine_works_in_a_thread_of_its_own_and_where_ctrl_c_is_ignored() -> None:
    """Neither can meet an interruption: nothing is held, and no handler is set."""
    engine = make_engine(tiny_model(), "mtp", 3)
    expected = engine.generate(PROMPTS[0], **OPTIONS).token_ids
    found: list[list[int]] = []
    thread = threading.Thread(target=lambda: found.append(engine.generate(PROMPTS[0], **OPTIONS).token_ids))
    thread.start()
    thread.join()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    found.append(engine.generate(PROMPTS[0], **OPTIONS).token_ids)
    assert found == [expected, expected] and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
