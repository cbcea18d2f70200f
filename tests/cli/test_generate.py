"""``outrider generate``: the engine's own text, streamed or not; interruptions lose nothing."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import outrider
from outrider import Completion, Engine, Piece, Stats, Stream
from tests.cli.conftest import Cli

PROMPT = "hello w"
ASKED = ("--max-tokens", "12", "--temperature", "0.8", "--seed", "7", "--ignore-eos")


@pytest.fixture(scope="module")
def engine(tiny: Path) -> Iterator[Engine]:
    with outrider.load(tiny) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(engine: Engine) -> Completion:
    return engine.generate(PROMPT, max_tokens=12, temperature=0.8, seed=7, ignore_eos=True)


@pytest.mark.parametrize("more", [(), ("--no-stream",), ("--draft", "none"), ("--draft-length", "1")])
def test_text_on_stdout_and_statistics_on_stderr(
    cli: Cli, tiny: Path, expected: Completion, more: tuple[str, ...]
) -> None:
    ran = cli("generate", PROMPT, "-c", str(tiny), *ASKED, *more)
    assert ran.status == 0
    assert ran.out == expected.text + "\n"
    assert "12 tokens in " in ran.err
    assert ran.err.endswith("ended by length; seed 7\n")
    assert ("drafts accepted" in ran.err) == ("none" not in more)


def test_json_is_one_object(cli: Cli, tiny: Path, expected: Completion) -> None:
    ran = cli("generate", PROMPT, "-c", str(tiny), *ASKED, "--json")
    said = json.loads(ran.out)
    assert ran.err == ""
    assert said["text"] == expected.text
    assert said["token_ids"] == expected.token_ids
    assert said["finish_reason"] == "length"
    assert said["seed"] == 7
    assert said["stats"]["steps"] == expected.stats.steps
    assert said["stats"]["acceptance_by_position"] == list(expected.stats.acceptance_by_position)


def test_the_seed_shown_replays_the_text(cli: Cli, tiny: Path) -> None:
    free = ("generate", PROMPT, "-c", str(tiny), "--max-tokens", "8", "--temperature", "1", "--json")
    first = json.loads(cli(*free).out)
    again = json.loads(cli(*free, "--seed", str(first["seed"])).out)
    assert again["token_ids"] == first["token_ids"]


@pytest.mark.parametrize("more", [(), ("--no-stream",)])
def test_several_prompts(cli: Cli, tiny: Path, expected: Completion, more: tuple[str, ...]) -> None:
    ran = cli("generate", PROMPT, "END\nof it", "-c", str(tiny), *ASKED, *more)
    assert ran.status == 0
    assert ran.out.startswith(f"==> {PROMPT}\n{expected.text}\n==> END\n")
    assert ran.err.count("seed 7") == 2


def test_several_prompts_in_json_are_one_object_a_line(cli: Cli, tiny: Path, expected: Completion) -> None:
    lines = cli("generate", "END", PROMPT, "-c", str(tiny), *ASKED, "--json").out.splitlines()
    assert json.loads(lines[1])["token_ids"] == expected.token_ids


def test_prompt_from_a_file_and_from_stdin(
    cli: Cli, tiny: Path, expected: Completion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prompt.txt").write_text(PROMPT)
    ran = cli("generate", "--file", str(tmp_path / "prompt.txt"), "-c", str(tiny), *ASKED)
    assert ran.out == expected.text + "\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(PROMPT))
    assert cli("generate", "-", "-c", str(tiny), *ASKED).out == expected.text + "\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((), "There is no prompt."),
        (("--file", "/nowhere/at/all"), "'/nowhere/at/all' can't be read: No such file or directory."),
        (("x", "--top-p", "2"), "top_p"),
        (("x", "--max-tokens", "-1"), "max_tokens"),
        (("x", "--draft", "nobody"), "nobody"),
        (("x", "--draft-length", "-2"), "draft_length"),
    ],
)
def test_what_cant_be_done_is_one_sentence(cli: Cli, tiny: Path, arguments: tuple[str, ...], sentence: str) -> None:
    ran = cli("generate", "-c", str(tiny), *arguments)
    assert ran.status == 1
    assert ran.out == ""
    assert ran.err.startswith("outrider: ")
    assert sentence in ran.err
    assert ran.err.count("\n") == 1


def test_a_file_that_isnt_text(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    assert cli("generate", "--file", str(tmp_path / "bytes")).err.endswith("bytes' isn't UTF-8 text.\n")


def test_a_stop_string_is_passed_on(cli: Cli, tiny: Path, expected: Completion) -> None:
    stop = expected.text[1:3]
    said = json.loads(cli("generate", PROMPT, "-c", str(tiny), *ASKED, "--stop", stop, "--json").out)
    assert said["finish_reason"] == "stop"
    assert said["text"] == expected.text[: expected.text.index(stop)]


@pytest.mark.parametrize("more", [(), ("--no-stream",), ("--json",)])
def test_ctrl_c_prints_what_was_made(
    cli: Cli, tiny: Path, expected: Completion, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    real, pieces = Stream.__next__, []

    def interrupted(stream: Stream) -> Piece:
        if len(pieces) == 3:
            raise KeyboardInterrupt
        pieces.append(real(stream))
        return pieces[-1]

    monkeypatch.setattr(Stream, "__next__", interrupted)
    ran = cli("generate", PROMPT, "-c", str(tiny), *ASKED, "--draft", "none", *more)
    assert ran.status == 130
    if more == ("--json",):
        said = json.loads(ran.out)
        assert said["finish_reason"] == "cancelled"
        assert said["token_ids"] == expected.token_ids[:3]
        assert said["stats"]["steps"] == 2
    else:
        assert ran.out.startswith("".join(piece.text for piece in pieces))
        assert ran.err.startswith("interrupted: 3 tokens in ")
        assert ran.err.endswith("seed 7\n")


@pytest.mark.parametrize("more", [("--no-stream",), ("--json",)])
def test_ctrl_c_keeps_what_was_made_of_several_prompts(
    cli: Cli, tiny: Path, expected: Completion, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    real, steps = Engine.step, []

    def interrupted(engine: Engine) -> None:
        steps.append(1)
        if len(steps) == 4:
            raise KeyboardInterrupt
        real(engine)

    monkeypatch.setattr(Engine, "step", interrupted)
    ran = cli("generate", PROMPT, PROMPT, "-c", str(tiny), *ASKED, "--draft", "none", *more)
    assert ran.status == 130
    if more == ("--json",):
        said = [json.loads(line) for line in ran.out.splitlines()]
        assert [one["token_ids"] for one in said] == [expected.token_ids[:3]] * 2
        assert {one["finish_reason"] for one in said} == {"cancelled"}
    else:
        assert ran.err.count("interrupted: 3 tokens in ") == 2


def test_a_request_that_fails_ends_with_1(cli: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = Completion("he", [2], "error", 7, Stats(), error="the logits at position 9 aren't finite.")
    monkeypatch.setattr(Stream, "completion", property(lambda stream: failed))
    ran = cli("generate", "a", "b", "-c", str(tiny), "--json")
    assert ran.status == 1
    assert json.loads(ran.out.splitlines()[0])["error"] == failed.error
    assert "outrider: the logits at position 9 aren't finite." in ran.err


def test_a_real_interrupt_of_the_real_program(tiny: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "outrider",
        "generate",
        PROMPT,
        "-c",
        str(tiny),
        "--max-tokens",
        "480",
        "--ignore-eos",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        assert program.stdout and program.stderr
        first = program.stdout.read(4)
        program.send_signal(signal.SIGINT)
        rest, err = program.communicate(timeout=100)
    assert program.returncode == 130
    assert err.startswith(b"interrupted: ")
    assert b"Traceback" not in err
    assert len(first + rest) > 4
