"""Help, usage, and how failures end: a sentence and a status, never a traceback."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import outrider
from outrider.cli import main
from outrider.errors import OutriderWarning
from tests.cli.conftest import Cli


@pytest.mark.parametrize("command", ["demo", "generate", "info", "train"])
def test_help_teaches_with_an_example(cli: Cli, command: str) -> None:
    ran = cli(command, "--help")
    assert ran.status == 0
    assert f"\n  outrider {command}" in ran.out


def test_help_names_every_command(cli: Cli) -> None:
    ran = cli("--help")
    assert ran.status == 0
    assert {"demo", "generate", "info", "train"} <= set(ran.out.split())


def test_version(cli: Cli) -> None:
    assert cli("--version") == (0, f"outrider {outrider.__version__}\n", "")


@pytest.mark.parametrize(
    "arguments",
    [("nope",), ("generate", "--nope"), ("generate", "x", "--max-tokens", "many"), ("info", "--draft-length", "x")],
)
def test_usage_errors_end_with_2(cli: Cli, arguments: tuple[str, ...]) -> None:
    ran = cli(*arguments)
    assert ran.status == 2
    assert ran.out == ""
    assert "Error: " in ran.err


def test_a_missing_folder_is_one_sentence(cli: Cli, tmp_path: Path) -> None:
    ran = cli("info", str(tmp_path / "gone"))
    assert ran == (1, "", f"outrider: There is no checkpoint folder '{tmp_path / 'gone'}'.\n")


def test_a_folder_without_config_is_one_sentence(cli: Cli, tmp_path: Path) -> None:
    ran = cli("info", str(tmp_path))
    assert ran.status == 1
    assert ran.err == f"outrider: '{tmp_path}' holds no config.json, so it isn't a checkpoint folder.\n"


def test_a_bug_is_one_sentence_too(cli: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object, **__: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(outrider, "load", load)
    ran = cli("info", str(tiny))
    assert ran.status == 1
    assert ran.err.startswith("outrider: This shouldn't happen (ZeroDivisionError: division by zero).")
    assert ran.err.count("\n") == 1


def test_ctrl_c_while_loading_ends_with_130(cli: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(outrider, "load", load)
    assert cli("info", str(tiny)).status == 130


def test_only_our_warnings_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = main._warn
        warnings.warn("the checkpoint has no head", OutriderWarning, stacklevel=1)
        warnings.warn("somebody's internals", DeprecationWarning, stacklevel=1)
    assert capsys.readouterr().err == "outrider: warning: the checkpoint has no head\n"


def test_a_reader_that_goes_away_is_no_error(tiny: Path) -> None:
    command = f"{sys.executable} -m outrider info --json {tiny} | true"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert ran.stderr == ""
