"""The demo from beginning to end."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from outrider.cli.checkpoint import find_checkpoint
from outrider.cli.demo.job import PROMPT, Job
from outrider.cli.demo.promise import show_promise
from outrider.cli.demo.sabotage import show_sabotage
from outrider.cli.demo.same import show_same
from outrider.cli.demo.speed import show_speed
from outrider.cli.screen import Screen

BROKEN = 1


@dataclass(frozen=True)
class Options:
    """What the command line asked for."""

    checkpoint: Path | None = None
    prompt: str | None = None
    seed: int = 7
    temperature: float = 0.8
    sabotage: bool = False
    svg: Path | None = None
    as_json: bool = False


def show(options: Options) -> int:
    """Run the demo; returns 1 when the promise doesn't hold, else 0 (a sabotage that works is no failure)."""
    checkpoint = find_checkpoint(options.checkpoint)
    job = Job(checkpoint, options.prompt or PROMPT, options.temperature, options.seed)
    screen = Screen(picture=options.svg, quiet=options.as_json)
    if options.sabotage:
        said, holds = show_sabotage(screen, job).as_json(), True
    else:
        same, promise = show_same(screen, job), show_promise(screen, job)
        speed = show_speed(screen, job)
        said = {"same_text": same.as_json(), "promise": promise.as_json(), "speed": speed.as_json()}
        holds = same.ok and promise.ok
    screen.save_picture("outrider demo")
    if options.as_json:
        print(json.dumps({"ok": holds, **said}, ensure_ascii=False))
    return 0 if holds else BROKEN
