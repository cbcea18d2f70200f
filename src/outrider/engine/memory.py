"""How much memory there is, where the system says so."""

from __future__ import annotations

import re
from pathlib import Path

MEMINFO = Path("/proc/meminfo")


def available_memory() -> int | None:
    """Bytes that a process could still take, what the page cache would give back included; None where the system
    doesn't say (only Linux does)."""
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", MEMINFO.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found.group(1)) * 1024 if found else None
