"""Reading typed values out of parsed JSON: what is missing or of another type is named, never guessed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outrider.config.check import refuse
from outrider.errors import ConfigError

LARGEST = 1e18  # beyond it no value makes sense, and a float could overflow


@dataclass(frozen=True)
class Fields:
    """One JSON object and its path ("" for the file's top level, "rope_scaling." within it)."""

    raw: Mapping[str, Any]
    path: str = ""

    def has(self, key: str) -> bool:
        """True where the key is there and isn't null."""
        return self.raw.get(key) is not None

    def _value(self, key: str) -> Any:
        if key not in self.raw:
            raise ConfigError(f"Config key {self.path}{key} is missing.", key=self.path + key)
        return self.raw[key]

    def integer(self, key: str) -> int:
        """The integer at ``key``; 3.0 counts as one, true doesn't. ConfigError if missing or of another type."""
        return as_integer(self._value(key), self.path + key)

    def number(self, key: str) -> float:
        """The finite number at ``key``. ConfigError if missing or of another type."""
        value = self._value(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not -LARGEST < value < LARGEST:
            raise refuse(self.path + key, value, "a finite number")
        return float(value)

    def items(self, key: str) -> list[Any]:
        """The list at ``key``. ConfigError if missing or of another type."""
        value = self._value(key)
        if not isinstance(value, list | tuple):
            raise refuse(self.path + key, value, "a list")
        return list(value)

    def inner(self, key: str) -> Fields:
        """The object at ``key``. ConfigError if missing or of another type."""
        value = self._value(key)
        if not isinstance(value, Mapping):
            raise refuse(self.path + key, value, "an object")
        return Fields(value, f"{self.path}{key}.")

    def choice(self, key: str, allowed: tuple[Any, ...]) -> Any:
        """The value at ``key``, refused by name unless it is one of ``allowed`` and of its type."""
        value = self._value(key)
        if not any(same(value, item) for item in allowed):
            raise refuse(self.path + key, value, " or ".join(repr(item) for item in allowed))
        return value

    def fixed(self, **expected: Any) -> None:
        """Every key that is there must have the one value that is implemented; an absent or null one means it."""
        for key, value in expected.items():
            if self.has(key):
                self.choice(key, (value,))


def same(value: Any, expected: Any) -> bool:
    """Equality that keeps true apart from 1."""
    return isinstance(value, bool) == isinstance(expected, bool) and bool(value == expected)


def as_integer(value: Any, key: str) -> int:
    """``value`` as an int; raises ConfigError naming ``key``."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not -LARGEST < value < LARGEST:
        raise refuse(key, value, "an integer")
    return value
