"""``outrider generate``: continue prompts, streaming, with statistics that an interruption doesn't lose."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.cli.checkpoint import find_checkpoint, open_engine
from outrider.errors import RequestError

if TYPE_CHECKING:
    from outrider import Completion, Engine

INTERRUPTED = 130


@dataclass(frozen=True)
class Request:
    """What the command line asked for. ``sampling`` are keywords of ``Engine.generate``, ``loading`` of ``load``."""

    prompts: list[str]
    checkpoint: Path | None
    sampling: dict[str, Any] = field(default_factory=dict)
    loading: dict[str, Any] = field(default_factory=dict)
    as_json: bool = False
    stream: bool = True


def read_prompts(named: list[str], file: Path | None) -> list[str]:
    """The prompts named, or the text of a file; '-' stands for standard input. Raises RequestError where none is."""
    prompts = [sys.stdin.read() if prompt == "-" else prompt for prompt in named]
    if file is not None:
        prompts.append(_read(file))
    if not prompts:
        raise RequestError("There is no prompt.", param="prompt", hint="Give one, or --file FILE, or '-' for stdin.")
    return prompts


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise RequestError(f"'{file}' can't be read: {error.strerror}.", param="file") from error
    except UnicodeDecodeError as error:
        raise RequestError(f"'{file}' isn't UTF-8 text.", param="file") from error


def generate(request: Request) -> int:
    """Run the request and print what comes; returns the exit status."""
    with open_engine(find_checkpoint(request.checkpoint), **request.loading) as engine:
        if len(request.prompts) > 1 and (request.as_json or not request.stream):
            return _together(engine, request, request.sampling)
        for prompt in request.prompts:
            if len(request.prompts) > 1:
                print(_heading(prompt))
            if status := _one(engine, prompt, request, request.sampling):
                return status
    return 0


def _one(engine: Engine, prompt: str, request: Request, sampling: dict[str, Any]) -> int:
    """One prompt, token by token; an interruption keeps what was made."""
    live = request.stream and not request.as_json
    interrupted = False
    with engine.stream(prompt, **sampling) as stream:
        try:
            for piece in stream:
                if live:
                    print(piece.text, end="", flush=True)
        except KeyboardInterrupt:
            interrupted = True
    made = stream.completion
    if request.as_json:
        print(json.dumps(_as_json(made), ensure_ascii=False))
    else:
        print("" if live else made.text)
        print(_statistics(made, interrupted), file=sys.stderr)
    return INTERRUPTED if interrupted else _status(made)


def _together(engine: Engine, request: Request, sampling: dict[str, Any]) -> int:
    """Several prompts in one batch, printed in their order when all are done; an interruption keeps what was made."""
    interrupted = False
    streams = [engine.stream(prompt, **sampling) for prompt in request.prompts]
    try:
        for stream in streams:  # a step serves them all, so that the later ones have their pieces already
            for _ in stream:
                pass
    except KeyboardInterrupt:
        interrupted = True
    for stream in streams:
        stream.close()
    done = [stream.completion for stream in streams]
    for prompt, made in zip(request.prompts, done, strict=True):
        if request.as_json:
            print(json.dumps(_as_json(made), ensure_ascii=False))
        else:
            print(f"{_heading(prompt)}\n{made.text}")
            print(_statistics(made, made.finish_reason == "cancelled"), file=sys.stderr)
    return INTERRUPTED if interrupted else max(map(_status, done))


def _heading(prompt: str) -> str:
    """A line that tells several prompts' texts apart."""
    return f"==> {prompt.strip().partition(chr(10))[0]}"


def _status(made: Completion) -> int:
    """1, with the reason on stderr, where a text ended in an error."""
    if made.error is None:
        return 0
    print(f"outrider: {made.error}", file=sys.stderr)
    return 1


def _as_json(made: Completion) -> dict[str, Any]:
    """The completion as an object; ``error`` only where there is one."""
    said = asdict(made)
    return {name: value for name, value in said.items() if name not in ("logprobs", "error") or value is not None}


def _statistics(made: Completion, interrupted: bool) -> str:
    """One line for people, on stderr so that a pipe gets the text alone."""
    stats, count = made.stats, len(made.token_ids)
    parts = [f"{count} tokens in {stats.seconds:.2f} s, the prompt {stats.prompt_seconds:.2f} s of them"]
    if stats.tokens_per_step is not None:
        parts.append(f"{stats.steps} passes after the prompt's, {stats.tokens_per_step:.2f} tokens each")
    if stats.drafted:
        shares = " ".join("–" if share is None else f"{share:.2f}" for share in stats.acceptance_by_position)
        parts.append(f"{stats.accepted} of {stats.drafted} drafts accepted ({shares} by position)")
    parts += [f"ended by {made.finish_reason}", f"seed {made.seed}"]
    return ("interrupted: " if interrupted else "") + "; ".join(parts)
