"""``outrider``: the commands, their options and their help. The work is in the module of each command."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO

import typer

from outrider import __version__
from outrider.errors import OutriderError, OutriderWarning

FAILED = 1
INTERRUPTED = 130

app = typer.Typer(
    name="outrider",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

Checkpoint = Annotated[
    Path | None,
    typer.Option("--checkpoint", "-c", help="Checkpoint folder (default: $OUTRIDER_CHECKPOINT, else models/tiny)."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Seed = Annotated[int | None, typer.Option(help="Seed of the sampling noise; the same seed gives the same text.")]
Draft = Annotated[
    str, typer.Option(help="Who proposes: 'mtp' (the model's own head), 'none', or 'auto' (mtp if the model has it).")
]
DraftLength = Annotated[str, typer.Option(help="Drafts a step: a number, or 'auto'.")]
Threads = Annotated[
    int | None, typer.Option(help="Threads; the reference backend computes on one, so that bits are the same.")
]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"outrider {__version__}")
        raise typer.Exit


@app.callback()
def outrider(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Speculative decoding for DeepSeek-V4 that never changes an answer.

    \b
    outrider demo                        see it work on the shipped checkpoint
    outrider generate "def main("        continue a prompt
    outrider info models/tiny            what a checkpoint is, and what is promised for it
    """


@app.command()
def demo(
    checkpoint: Checkpoint = None,
    prompt: Annotated[str | None, typer.Option(help="The prompt of the first part.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sampling noise.")] = 7,
    temperature: Annotated[float, typer.Option(help="Temperature; 0 is greedy.")] = 0.8,
    sabotage: Annotated[
        bool, typer.Option("--sabotage", help="Commit every draft, unchecked, and see the text go wrong.")
    ] = False,
    svg: Annotated[Path | None, typer.Option(help="Also write a picture of what is shown.")] = None,
    as_json: Json = False,
) -> None:
    """See it work: same text, the promise, acceptance, speed.

    Runs in under a minute on the shipped checkpoint.

    \b
    outrider demo
    outrider demo --seed 11 --prompt "class Stack:"
    outrider demo --sabotage             what happens when drafts aren't checked

    Ends with status 1 when the promise doesn't hold.
    """
    from outrider.cli.demo.show import Options, show

    _end(show(Options(checkpoint, prompt, seed, temperature, sabotage, svg, as_json)))


@app.command()
def generate(
    prompts: Annotated[
        list[str] | None, typer.Argument(metavar="PROMPT", help="Texts to continue; '-' reads stdin.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Take the text of this file as a prompt.")] = None,
    checkpoint: Checkpoint = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens to make.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token; higher is freer.")] = 0.0,
    seed: Seed = None,
    top_k: Annotated[int, typer.Option(help="Only the k likeliest tokens; 0 is all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Only the likeliest tokens that together have this probability.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Only tokens at least this likely, relative to the likeliest.")] = 0.0,
    stop: Annotated[list[str] | None, typer.Option(help="End before this string (can be given again).")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on past the end-of-text token.")] = False,
    draft: Draft = "auto",
    draft_length: DraftLength = "auto",
    threads: Threads = None,
    no_stream: Annotated[
        bool, typer.Option("--no-stream", help="Print when done; several prompts run as a batch.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Continue prompts.

    The text goes to stdout, one line of statistics to stderr.

    \b
    outrider generate "def fibonacci(n):" --max-tokens 100
    outrider generate --file start.py --temperature 0.8 --seed 7
    outrider generate "import os" --draft none          plain decoding: the same text
    echo "class Stack:" | outrider generate - --json

    Ctrl-C prints what was made, and the statistics, and ends with status 130. With --json and several prompts there
    is one object a line.
    """
    from outrider.cli.generate import Request, generate, read_prompts

    sampling = dict(
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
    )
    loading = dict(draft=draft, draft_length=_draft_length(draft_length), threads=threads)
    request = Request(read_prompts(prompts or [], file), checkpoint, sampling, loading, as_json, not no_stream)
    _end(generate(request))


@app.command()
def info(
    checkpoint: Annotated[Path | None, typer.Argument(help="Checkpoint folder (default: as elsewhere).")] = None,
    draft: Draft = "auto",
    draft_length: DraftLength = "auto",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """What a checkpoint is, and what is promised for it.

    Also which backend runs it, with how many threads, and the memory it takes.

    \b
    outrider info
    outrider info models/tiny --json
    """
    from outrider.cli.info import info

    loading: dict[str, Any] = dict(draft=draft, draft_length=_draft_length(draft_length), threads=threads)
    _end(info(checkpoint, loading, as_json))


@app.command()
def train(
    output: Annotated[
        Path, typer.Option(help="Folder for the checkpoint, and for what an interrupted run goes on from.")
    ],
    seed: Annotated[int, typer.Option(help="The same seed and data give the same checkpoint.")] = 0,
    steps: Annotated[
        int | None, typer.Option(help="Steps of trunk and head together; the head's own follow in proportion.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Folder of .py files (default: Python's own library).")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from where an interrupted run was.")] = False,
    as_json: Json = False,
) -> None:
    """Train a tiny V4 with a draft head, as models/tiny was.

    The defaults made models/tiny (its card says how long it took). Lines say how it goes; with --json they are objects.

    \b
    outrider train --output runs/mine
    outrider train --output runs/mine --resume
    outrider train --output runs/short --steps 20 --data my/sources
    """
    from outrider.cli.train import Asked, train

    _end(train(Asked(output, seed, steps, data, resume, as_json)))


def _draft_length(text: str) -> int | str:
    """'auto' or a number; what a number may be is the engine's to say."""
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither 'auto' nor a number.", param_hint="--draft-length") from None


def _end(status: int) -> None:
    if status:
        raise typer.Exit(status)


def run() -> NoReturn:
    """The program: every failure is one sentence on stderr and a status, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that can't show a sign gets '?', not a failure
    warnings.showwarning = _warn
    sys.exit(_run())


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Our own warnings are sentences for users; others are for developers, who have ``-X dev``."""
    if issubclass(category, OutriderWarning) or sys.flags.dev_mode:
        print(f"outrider: warning: {message}", file=sys.stderr)


def _run() -> int:
    try:
        app(prog_name="outrider")
    except SystemExit as end:
        return _flushed(end.code if isinstance(end.code, int) else FAILED)
    except OutriderError as error:
        return _complain(str(error))
    except BrokenPipeError:
        return _quiet()
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # a bug: still one sentence, and the way to see more
        if sys.flags.dev_mode:
            raise
        what = f"This shouldn't happen ({type(error).__name__}: {error})."
        return _complain(f"{what} 'python -X dev -m outrider …' shows where; please report it.")
    return 0


def _complain(sentence: str) -> int:
    print(f"outrider: {sentence}", file=sys.stderr)
    return FAILED


def _flushed(status: int) -> int:
    """Flush here, so that a reader that has gone away is noticed here and not in the interpreter's last moments."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return _quiet()
    return status


def _quiet() -> int:
    """The reader of our output has gone: nothing to say, and nothing may be flushed to it any more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILED
