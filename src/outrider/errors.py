"""Every error a caller may see: one sentence that says what is wrong, and a hint that says what to do.

A message names the thing, the value met and what was expected. ``str(error)`` is the whole text shown to a user;
the command line prints it without a traceback.
"""

from __future__ import annotations


class OutriderError(Exception):
    """Base of all errors raised on purpose. ``hint`` says what to do about it ("" where the message already does)."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class ConfigError(OutriderError):
    """A config file, or an option of the engine, has a value that can't be used. ``key`` names it."""

    def __init__(self, message: str, *, key: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.key = key


class CheckpointError(OutriderError):
    """A checkpoint's files are missing, damaged or inconsistent. ``tensor`` names the tensor at fault, if one is."""

    def __init__(self, message: str, *, tensor: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.tensor = tensor


class CapacityError(OutriderError):
    """There is no room: memory, slots, pages, or rows of a step."""


class RequestError(OutriderError):
    """A request can't be honoured as it stands. ``param`` names the field at fault."""

    def __init__(self, message: str, *, param: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.param = param


class UnsupportedError(OutriderError):
    """The thing asked for is known, but isn't implemented (or can't be done exactly) here."""


class GrammarError(OutriderError):
    """A grammar can't be compiled, or leaves nothing to say."""


class OutriderWarning(UserWarning):
    """Something that a user should know, after which the work goes on (such as a checkpoint without its head)."""
