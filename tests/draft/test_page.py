"""docs/drafting.md names a test for each duty: they are there."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_every_test_that_the_page_names_exists() -> None:
    page = (TESTS.parent / "docs" / "drafting.md").read_text()
    named = set(re.findall(r"test_\w+(?!\w*\.py)", page)) - set(re.findall(r"(test_\w+)\.py", page))
    there = {name for path in TESTS.rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())}
    assert len(named) > 20
    assert not named - there
