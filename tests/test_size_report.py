"""scripts/size.py: finds what is too long, and the reason beside it."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def size() -> dict[str, object]:
    return runpy.run_path(str(ROOT / "scripts" / "size.py"))


def function(length: int, comment: str = "") -> str:
    return f"def long() -> None:{comment}\n" + "    x = 1\n" * (length - 1)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (function(60), []),
        (function(61), [(1, "long() has 61 lines (aim: 60)", "")]),
        (function(61, "  # size: a table"), [(1, "long() has 61 lines (aim: 60)", "a table")]),
        ("# size: one list\n" + "x = 1\n" * 300, [(1, "301 lines (aim: 300)", "one list")]),
        ("x = 1\n" * 300, []),
    ],
)
def test_findings(size: dict[str, object], tmp_path: Path, text: str, found: list[tuple[int, str, str]]) -> None:
    path = tmp_path / "module.py"
    path.write_text(text)
    findings = size["findings"]
    assert callable(findings)
    assert [(finding.line, finding.what, finding.reason) for finding in findings(path)] == found
