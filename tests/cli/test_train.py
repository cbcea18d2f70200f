"""``outrider train`` hands its options on and shows what it is told; the training itself has its own tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider.errors import ConfigError
from outrider.tune import run
from outrider.tune.settings import Progress, Recipe
from tests.cli.conftest import Cli

TOLD = (
    Progress("joint", 10, 20, {"main": 3.5, "mtp": 3.25}, 1640.2, 90.0),
    Progress("distil", 5, 5, {"kl": 0.5}, 900.0, 0.0, {"agree": 0.625}),
)
Options = dict[str, Any]


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> Options:
    """What ``train`` was called with; in its place nothing is trained, and progress is told."""
    options: Options = {}

    def train(output: Path, *, progress: Callable[[Progress], None], **more: Any) -> None:
        options.update(more, output=output)
        for each in TOLD:
            progress(each)

    monkeypatch.setattr(run, "train", train)
    return options


def test_defaults_are_those_of_the_shipped_checkpoint(cli: Cli, handed: Options) -> None:
    ran = cli("train", "--output", "runs/x")
    assert ran.status == 0
    assert handed == {
        "output": Path("runs/x"),
        "seed": 0,
        "recipe": Recipe(),
        "data": None,
        "resume": False,
    }
    assert ran.out.splitlines() == [
        "joint 10/20  main 3.500 mtp 3.250  1,640 tokens/s, 2 min left",
        "distil 5/5  kl 0.500  900 tokens/s, 0 min left  (held out: agree 0.625)",
        "done: runs/x",
    ]


def test_options_are_handed_on(cli: Cli, handed: Options) -> None:
    cli("train", "--output", "x", "--seed", "3", "--steps", "20", "--data", "d", "--resume")
    assert handed["seed"] == 3
    assert handed["recipe"] == Recipe().with_steps(20)
    assert handed["data"] == Path("d")
    assert handed["resume"] is True


def test_json_is_an_object_a_line(cli: Cli, handed: Options) -> None:
    lines = [json.loads(line) for line in cli("train", "--output", "x", "--json").out.splitlines()]
    assert [line["phase"] for line in lines] == ["joint", "distil"]
    assert lines[1]["held_out"] == {"agree": 0.625}


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (KeyboardInterrupt(), 130, "outrider train --output x --resume"),
        (ConfigError("data changed"), 1, "data changed"),
    ],
)
def test_ends_in_words(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int, words: str
) -> None:
    def train(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(run, "train", train)
    ran = cli("train", "--output", "x")
    assert ran.status == status
    assert words in ran.err
    assert ran.err.count("\n") == 1


def test_no_steps_at_all_are_refused(cli: Cli, handed: Options) -> None:
    ran = cli("train", "--output", "x", "--steps", "0")
    assert (ran.status, handed) == (1, {})
    assert ran.err == "outrider: steps is 0; at least 1 was expected.\n"
