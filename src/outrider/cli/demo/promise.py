"""Part two: whatever drafts, chunks or batch, the tokens are those of plain decoding, and the logits that chose them
are compared number by number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.table import Table

from outrider.cli.demo.job import DRAFTS, PROMPTS, Job, hash_of
from outrider.cli.screen import Screen

if TYPE_CHECKING:
    import torch

    from outrider import Engine

TOKENS = 32
LONGEST_DRAFT = 5
CHUNKS = (1, 5, 16)

Rows = Mapping[int, "torch.Tensor"]
"""Float32 [vocab] logits by the position of the token that was run: the row at p judged the token at p + 1."""


@dataclass(frozen=True)
class Setting:
    """One way to run the same request."""

    name: str
    draft_length: int
    options: dict[str, Any] = field(default_factory=dict)
    company: tuple[str, ...] = ()


@dataclass(frozen=True)
class Run:
    """What one setting gave, against plain decoding. ``delta`` is the largest |Δlogit|; infinite where a row that
    plain decoding has is missing or isn't a number."""

    name: str
    hash: str
    delta: float
    same: bool


@dataclass(frozen=True)
class Promise:
    """All runs. ``exact`` says that this backend promises logits to the last bit."""

    runs: tuple[Run, ...]
    promised: str
    exact: bool

    @property
    def largest(self) -> float:
        """The largest |Δlogit| of any run."""
        return max(run.delta for run in self.runs)

    @property
    def ok(self) -> bool:
        """True where every run has plain decoding's tokens, and its very logits where these are promised."""
        return all(run.same for run in self.runs) and (self.largest == 0 or not self.exact)

    def as_json(self) -> dict[str, Any]:
        """What ``--json`` says of this part."""
        runs = [{"name": r.name, "hash": r.hash, "largest_delta": r.delta, "same": r.same} for r in self.runs]
        return {"holds": self.ok, "promised": self.promised, "bit_exact": self.exact, "runs": runs}


def settings() -> list[Setting]:
    """Plain decoding first: the others are compared with it."""
    return [
        Setting("k = 0, plain", 0),
        *(Setting(f"k = {k}", k) for k in range(1, LONGEST_DRAFT + 1)),
        *(
            Setting(f"k = {DRAFTS}, prompt in chunks of {size}", DRAFTS, {"prefill_chunk": size})
            for size in CHUNKS
        ),
        Setting("k = 0, in a batch of four", 0, company=PROMPTS[:3]),
        Setting(f"k = {DRAFTS}, in a batch of four", DRAFTS, company=PROMPTS[:3]),
    ]  # fmt: skip


def show_promise(screen: Screen, job: Job) -> Promise:
    """Run every setting and print the table and the verdict."""
    screen.title("2  The promise", f"{TOKENS} tokens, whatever the drafts, the chunks and the batch")
    runs: list[Run] = []
    plain_ids: list[int] = []
    plain_rows: Rows = {}
    for setting in settings():
        with screen.status(setting.name), job.engine(draft_length=setting.draft_length, **setting.options) as engine:
            ids, rows = _run(engine, job, setting)
            promised, exact = engine.info.promise, engine.info.backend == "reference"
        if not runs:
            plain_ids, plain_rows = ids, rows
        runs.append(Run(setting.name, hash_of(ids), largest_delta(plain_rows, rows), ids == plain_ids))
    promise = Promise(tuple(runs), promised, exact)
    screen.print(_table(screen, promise))
    screen.verdict(promise.ok, _sentence(promise))
    return promise


def _run(engine: Engine, job: Job, setting: Setting) -> tuple[list[int], Rows]:
    """Tokens and logits of the job's own prompt, alone or at the head of a batch."""
    with engine.record() as record:
        first, *_ = engine.generate([job.prompt, *setting.company], **job.sampling(TOKENS))
    own = min(number for number, _ in record.target)
    return list(first.token_ids), {at: row for (number, at), row in record.target.items() if number == own}


def largest_delta(plain: Rows, rows: Rows) -> float:
    """Largest |Δlogit| over the positions that plain decoding has; infinite for a missing row or a NaN."""
    if not all(at in rows for at in plain):
        return math.inf
    deltas = [float((rows[at] - row).abs().max()) for at, row in plain.items()]
    return math.inf if any(map(math.isnan, deltas)) else max(deltas, default=0.0)


def _table(screen: Screen, promise: Promise) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("run")
    table.add_column("hash of the tokens")
    table.add_column("largest |Δlogit|", justify="right")
    table.add_column("")
    for run in promise.runs:
        good = run.same and (run.delta == 0 or not promise.exact)
        table.add_row(run.name, run.hash, f"{run.delta:g}", screen.tick(good))
    return table


def _sentence(promise: Promise) -> str:
    if promise.ok:
        bits = "every logit to the last bit" if promise.largest == 0 else f"logits within {promise.largest:.2g}"
        return f"the promise holds: one hash, {bits} ({promise.promised})"
    broken = [run.name for run in promise.runs if not run.same]
    if broken:
        return f"the promise is broken: other tokens at {'; '.join(broken)}"
    return f"the promise is broken: logits differ by up to {promise.largest:g} where equal bits are promised"
