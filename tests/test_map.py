"""docs/map.md is true: it names every module, and nothing that isn't there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "outrider"


def named() -> set[str]:
    """Paths of all modules named in the map, relative to the package."""
    rooms = (ROOT / "docs" / "map.md").read_text(encoding="utf-8").split("## Rooms")[1].split("## Beside it")[0]
    found = set()
    for paragraph in rooms.split("\n\n"):
        room = re.match(r"\*\*`(\w+)/`\*\*", paragraph)
        for path in re.findall(r"`([\w/]+\.py)`", paragraph):
            found.add(f"{room.group(1)}/{path}" if room else path)
    return found


def there() -> set[str]:
    """Paths of all modules with content."""
    paths = (path.relative_to(SOURCE) for path in SOURCE.rglob("*.py"))
    return {str(path) for path in paths if len(path.parts) == 1 or path.stem != "__init__"}


def test_every_module_is_on_the_map() -> None:
    assert there() - named() == set()


def test_nothing_else_is_on_the_map() -> None:
    assert named() - there() == set()


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        links = re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text(encoding="utf-8"))
        assert [link for link in links if not (page.parent / link).exists()] == [], page
