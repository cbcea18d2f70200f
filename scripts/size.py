"""The size report: files above 300 lines and functions above 60, each as ``file:line``.

Small rooms are a habit, not a law: what has to be longer says why in a comment ``# size: reason``, in the first lines
of the file, or on the line of the ``def`` or above it. Under ``src`` anything long without a reason is an error;
elsewhere it is only listed.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FILE_LIMIT = 300
FUNCTION_LIMIT = 60
ROOTS = ("src", "tests", "scripts", "benchmarks")
STRICT = "src"
REASON = re.compile(r"#\s*size:\s*(.+)")


class Finding(NamedTuple):
    """One thing above its limit, and the reason that stands beside it ("" where none does)."""

    path: Path
    line: int
    what: str
    reason: str


def reason_in(lines: list[str]) -> str:
    """The first ``# size: reason`` in some lines."""
    matches = (REASON.search(line) for line in lines)
    return next((match.group(1) for match in matches if match), "")


def findings(path: Path) -> Iterator[Finding]:
    """What is too long in one file."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    if len(lines) > FILE_LIMIT:
        yield Finding(path, 1, f"{len(lines)} lines (aim: {FILE_LIMIT})", reason_in(lines[:20]))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LIMIT:
                beside = lines[max(node.lineno - 2, 0) : node.lineno]
                what = f"{node.name}() has {length} lines (aim: {FUNCTION_LIMIT})"
                yield Finding(path, node.lineno, what, reason_in(beside))


def main() -> int:
    """Print the report; 1 when something under ``src`` is long without a reason."""
    unexplained = 0
    for root in ROOTS:
        for path in sorted(Path(root).rglob("*.py")):
            for finding in findings(path):
                print(f"{finding.path}:{finding.line}: {finding.what}{f': {finding.reason}' if finding.reason else ''}")
                unexplained += root == STRICT and not finding.reason
    if unexplained:
        print(f"size: {unexplained} without a reason; split them, or say why in a comment '# size: …'.")
    return int(unexplained > 0)


if __name__ == "__main__":
    sys.exit(main())
