"""``outrider info``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider.cli.info import size
from tests.cli.conftest import Cli


def test_says_backend_promise_and_memory(cli: Cli, tiny: Path) -> None:
    ran = cli("info", str(tiny))
    assert ran.status == 0
    assert ran.err == ""
    for word in ("reference on cpu, float32", "promise", "in memory", "mtp, 3 a step", "1 window, 2 csa, 1 hca"):
        assert word in ran.out


def test_json_for_machines(cli: Cli, tiny: Path) -> None:
    said = json.loads(cli("info", str(tiny), "--json", "--draft", "none").out)
    assert said["backend"] == "reference"
    assert said["drafter"] == "none"
    assert said["draft_length"] == 0
    assert said["cache"]["bytes"] > 0
    assert said["config"]["vocab_size"] == said["config"]["vocab_size"]
    assert said["path"] == str(tiny)


@pytest.mark.parametrize(("count", "text"), [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 kB"), (2e9, "2.0 GB")])
def test_sizes(count: int, text: str) -> None:
    assert size(int(count)) == text
