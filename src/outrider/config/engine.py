"""How the engine runs: sizes and bounds, checked when it is built and never changed afterwards."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.errors import ConfigError

LARGEST = 2**31 - 1
MOST_TEXTS = 4_096
MOST_ROWS = 65_536
"""Places are taken when the engine is built: above these a typing error would take all memory."""


@dataclass(frozen=True)
class EngineConfig:
    """``max_batch`` texts run at once; a text holds ``max_length`` tokens at most (None: the model's length); a step
    runs ``step_rows`` rows at most, of one prompt ``prefill_chunk`` (None: as many as fit). ``page_tokens`` tokens
    make a page of history, of which there are ``max_pages`` (None: enough for every slot). ``poison`` marks rows that
    hold nothing with NaN (tests)."""

    max_batch: int = 8
    max_length: int | None = None
    prefill_chunk: int | None = None
    step_rows: int = 512
    threads: int | None = None
    page_tokens: int = 128
    max_pages: int | None = None
    poison: bool = False

    def __post_init__(self) -> None:
        for name in ("max_batch", "max_length", "prefill_chunk", "step_rows", "threads", "page_tokens", "max_pages"):
            value = getattr(self, name)
            optional = name not in ("max_batch", "step_rows", "page_tokens")
            if value is None and optional:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
                raise ConfigError(f"{name} is {value!r}; expected a whole number from 1 to {LARGEST}.", key=name)
        if not isinstance(self.poison, bool):
            raise ConfigError(f"poison is {self.poison!r}; expected True or False.", key="poison")
        if self.max_batch > MOST_TEXTS:
            raise ConfigError(f"max_batch is {self.max_batch}; expected {MOST_TEXTS} at most.", key="max_batch")
        if self.step_rows > MOST_ROWS:
            raise ConfigError(f"step_rows is {self.step_rows}; expected {MOST_ROWS} at most.", key="step_rows")
        if self.step_rows < self.max_batch:
            raise ConfigError(
                f"step_rows is {self.step_rows} and max_batch {self.max_batch}: a step needs a row for each text.",
                key="step_rows",
                hint="Raise step_rows or lower max_batch.",
            )

    def length(self, model_length: int) -> int:
        """The most tokens a text may hold. Raises ConfigError where max_length is above the model's own."""
        if self.max_length is not None and self.max_length > model_length:
            raise ConfigError(
                f"max_length is {self.max_length}; the model's max_position_embeddings is {model_length}.",
                key="max_length",
                hint="Lower max_length, or leave it out.",
            )
        return self.max_length or model_length
