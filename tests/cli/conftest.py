"""The program called in this process, and a tiny random checkpoint with a tokenizer for it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from outrider.cli import main
from tests.support.bytelevel import library_tokenizer, write_tokenizer
from tests.support.checkpoints import save_tiny


class Ran(NamedTuple):
    """What a command did."""

    status: int
    out: str
    err: str


Cli = Callable[..., Ran]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """``cli("generate", "x")`` is ``outrider generate x``; nothing but an exit status may come out of it."""

    def call(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["outrider", *arguments])
        with pytest.raises(SystemExit) as end:
            main.run()
        return Ran(int(end.value.code or 0), *capfd.readouterr())

    return call


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint of every layer kind, with an MTP head and a byte-level tokenizer."""
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny(folder, vocab_size=library_tokenizer().get_vocab_size())
    write_tokenizer(folder)
    return folder
