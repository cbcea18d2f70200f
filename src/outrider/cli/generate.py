"""``outrider generate``: continue prompts, streaming, with statistics that an interruption doesn't lose."""

from __future__ import annotations

import json
import secrets
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.cli.checkpoint import find_checkpoint, open_engine
from outrider.cli.heard import Heard, shares
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
    seed = request.sampling.get("seed")
    sampling = {**request.sampling, "seed": secrets.randbelow(2**31) if seed is None else seed}
    with open_engine(find_checkpoint(request.checkpoint), **request.loading) as engine:
        if len(request.prompts) > 1 and (request.as_json or not request.stream):
            return _together(engine, request, sampling)
        for prompt in request.prompts:
            if len(request.prompts) > 1:
                print(f"==> {prompt.splitlines()[0] if prompt.strip() else prompt!r}")
            if status := _one(engine, prompt, request, sampling):
                return status
    return 0


def _one(engine: Engine, prompt: str, request: Request, sampling: dict[str, Any]) -> int:
    """One prompt, token by token; an interruption keeps what was made."""
    heard = Heard()
    live = request.stream and not request.as_json
    interrupted = False
    try:
        for text, _ in heard.listen(engine.stream(prompt, **sampling)):
            if live:
                print(text, end="", flush=True)
    except KeyboardInterrupt:
        interrupted = True
    if request.as_json:
        print(json.dumps(_as_json(heard, sampling, interrupted), ensure_ascii=False))
    else:
        print("" if live else heard.text)
        print(_statistics(heard, sampling, interrupted), file=sys.stderr)
    return INTERRUPTED if interrupted else 0


def _as_json(heard: Heard, sampling: dict[str, Any], interrupted: bool) -> dict[str, Any]:
    offered, accepted = heard.offered(), heard.accepted()
    return {
        "text": heard.text,
        "token_ids": heard.token_ids,
        "finish_reason": "cancelled" if interrupted else heard.finish_reason,
        "seed": sampling["seed"],
        "stats": {
            "steps": heard.steps,
            "drafted": sum(offered),
            "accepted": sum(accepted),
            "acceptance_by_position": shares(accepted, offered),
            "tokens_per_step": len(heard.token_ids) / heard.steps if heard.steps else None,
            "seconds": heard.seconds,
        },
    }


def _statistics(heard: Heard, sampling: dict[str, Any], interrupted: bool) -> str:
    """One line for people, on stderr so that a pipe gets the text alone."""
    parts = [f"{len(heard.token_ids)} tokens in {heard.seconds:.2f} s"]
    if rate := heard.decode_rate():
        parts[0] += f" ({rate:.1f} tokens/s after the first)"
    if heard.steps:
        parts.append(f"{heard.steps} target passes, {len(heard.token_ids) / heard.steps:.2f} tokens each")
    if by_position := shares(heard.accepted(), heard.offered()):
        parts.append("drafts accepted by position " + " ".join(_share(share) for share in by_position))
    parts.append(f"seed {sampling['seed']}")
    return ("interrupted: " if interrupted else "") + "; ".join(parts)


def _share(share: float | None) -> str:
    return "–" if share is None else f"{share:.2f}"


def _together(engine: Engine, request: Request, sampling: dict[str, Any]) -> int:
    """Several prompts in one batch, printed in their order when all are done."""
    for number, completion in enumerate(engine.generate(request.prompts, **sampling)):
        if request.as_json:
            print(json.dumps(_completion_as_json(completion), ensure_ascii=False))
        else:
            print(f"==> prompt {number + 1}\n{completion.text}")
    return 0


def _completion_as_json(completion: Completion) -> dict[str, Any]:
    stats = completion.stats
    return {
        "text": completion.text,
        "token_ids": list(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "seed": completion.seed,
        "stats": {
            "steps": stats.steps,
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            "acceptance_by_position": list(stats.acceptance_by_position),
            "tokens_per_step": stats.tokens_per_step,
            "seconds": stats.seconds,
        },
    }
