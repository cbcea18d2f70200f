"""``outrider train``: train the tiny model and its draft head, showing how it goes."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outrider.tune.settings import Progress

INTERRUPTED = 130


@dataclass(frozen=True)
class Asked:
    """What the command line asked for; None is the value that made ``models/tiny``."""

    output: Path
    seed: int
    steps: int | None
    data: Path | None
    resume: bool
    as_json: bool


def train(asked: Asked) -> int:
    """Train into ``asked.output``; returns the exit status."""
    from outrider.tune.run import train as run
    from outrider.tune.settings import Recipe

    recipe = Recipe() if asked.steps is None else Recipe().with_steps(asked.steps)
    try:
        run(
            asked.output,
            seed=asked.seed,
            recipe=recipe,
            data=asked.data,
            resume=asked.resume,
            progress=_as_json if asked.as_json else _as_line,
        )
    except KeyboardInterrupt:
        again = shlex.join(["outrider", "train", "--output", str(asked.output), "--resume"])
        print(f"interrupted; with the same options and --resume it goes on: {again}", file=sys.stderr)
        return INTERRUPTED
    if not asked.as_json:
        print(f"done: {asked.output}")
    return 0


def _as_json(progress: Progress) -> None:
    print(json.dumps(asdict(progress)), flush=True)


def _as_line(progress: Progress) -> None:
    """``joint 120/1050  main 3.91 mtp 3.75  1,640 tokens/s, 24 min left  (held out: main 4.02 mtp 3.88)``"""
    line = f"{progress.phase} {progress.step}/{progress.steps}  {_losses(progress.losses)}"
    line += f"  {progress.tokens_per_second:,.0f} tokens/s, {progress.seconds_left / 60:.0f} min left"
    if progress.held_out is not None:
        line += f"  (held out: {_losses(progress.held_out)})"
    print(line, flush=True)


def _losses(losses: dict[str, float]) -> str:
    return " ".join(f"{name} {value:.3f}" for name, value in losses.items())
