#!/usr/bin/env python
"""How many drafts are accepted: by position, on repeating and non-repeating text apart, for each way of drafting.

    python benchmarks/acceptance.py                        # models/tiny, held-out Python, greedy
    python benchmarks/acceptance.py --prompts benchmarks/data/humaneval.jsonl --temperature 0.8

Prompts are lines of JSON, {"turns": [text]}; of a text with a fenced block the code inside is the prompt. Space at its
end is cut: the tokenizer joins a line's end with the next line's indent, and a lone one says that a file ends. A token
*repeats* where the 8 tokens that end with it occurred before in its text: loops flatter any drafter, so they are
counted apart. The text is the same for every variant (the promise), which the script checks.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import outrider

HERE = Path(__file__).resolve().parent
GRAM = 8
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    'chain="collapsed"': {"chain": "collapsed"},
    'feed="kept"': {"feed": "kept"},
    "prompt_feed=False": {"prompt_feed": False},
}


@dataclass
class Counts:
    """Drafts judged and accepted by position, and tokens and steps, of one kind of text."""

    judged: list[int]
    accepted: list[int]
    tokens: int = 0
    steps: int = 0

    def share(self, position: int) -> float | None:
        """Accepted / judged."""
        return self.accepted[position] / self.judged[position] if self.judged[position] else None


@dataclass
class Result:
    """One variant's counts on all text and on text that doesn't repeat."""

    all: Counts
    fresh: Counts
    texts: list[list[int]] = field(default_factory=list)
    seconds: float = 0.0


def read_prompts(path: Path, count: int) -> list[str]:
    """The first ``count`` prompts."""
    prompts = []
    for line in path.read_text(encoding="utf-8").splitlines()[:count]:
        text = json.loads(line)["turns"][0]
        fenced = re.search(r"```(?:python)?\n(.*?)```", text, re.DOTALL)
        prompts.append((fenced.group(1) if fenced else text).rstrip())
    return prompts


def repeats(tokens: Sequence[int]) -> list[bool]:
    """For each token, whether the GRAM tokens that end with it stood in the text before."""
    seen: set[tuple[int, ...]] = set()
    marks = []
    for end in range(1, len(tokens) + 1):
        gram = tuple(tokens[max(0, end - GRAM) : end])
        marks.append(len(gram) == GRAM and gram in seen)
        seen.add(gram)
    return marks


def run(engine: outrider.Engine, prompts: Sequence[str], length: int, sampling: dict[str, Any]) -> Result:
    """Complete all prompts, eight at a time, and count."""
    result = Result(Counts([0] * length, [0] * length), Counts([0] * length, [0] * length))
    started = time.perf_counter()
    for first in range(0, len(prompts), engine.info.cache.slots):
        group = prompts[first : first + engine.info.cache.slots]
        streams = [engine.stream(prompt, **sampling) for prompt in group]
        steps: list[list[tuple[int, int, bool]]] = [[] for _ in streams]
        for index, piece in interleaved(streams):
            accepted = piece.origins.count("accepted")
            steps[index].append((len(piece.token_ids), accepted, piece.finish_reason is not None))
        for stream, made in zip(streams, steps, strict=True):
            done = stream.completion
            marks = repeats(done.prompt_token_ids + done.token_ids)[len(done.prompt_token_ids) :]
            count(result, marks, made[1:], made[0][0], length)  # the first token is the prompt's own pass
            result.texts.append(done.token_ids)
    result.seconds = time.perf_counter() - started
    return result


def interleaved(streams: Sequence[outrider.engine.llm.Stream]) -> Iterator[tuple[int, outrider.Piece]]:
    """Pieces of all streams in turn, until all have ended."""
    live = dict(enumerate(streams))
    while live:
        for index, stream in list(live.items()):
            piece = next(stream, None)
            if piece is None:
                del live[index]
            else:
                yield index, piece


def count(result: Result, marks: Sequence[bool], steps: list[tuple[int, int, bool]], at: int, length: int) -> None:
    """Add one text's steps. A step counts as fresh where the token at its first position doesn't repeat; so does each
    draft by the token that stands at its place."""
    for tokens, accepted, last in steps:
        reached = min(length, tokens) if last else length
        for counts in (result.all, *([result.fresh] if not marks[at] else [])):
            counts.tokens += tokens
            counts.steps += 1
        for position in range(min(reached, accepted + 1)):
            place = at + position
            for counts in (result.all, *([result.fresh] if place < len(marks) and not marks[place] else [])):
                counts.judged[position] += 1
                counts.accepted[position] += position < accepted
        at += tokens


def table(results: dict[str, Result], length: int) -> str:
    """Markdown."""
    heads = ["variant", "text", *(f"position {i + 1}" + (f" given {i}" if i else "") for i in range(length))]
    lines = ["| " + " | ".join([*heads, "tokens a step", "steps"]) + " |", "|" + "---|" * (length + 4)]
    for name, result in results.items():
        for text, counts in (("all", result.all), ("not repeating", result.fresh)):
            shares = [counts.share(i) for i in range(length)]
            cells = [f"{share:.3f}" if share is not None else "–" for share in shares]
            rate = f"{counts.tokens / counts.steps:.2f}" if counts.steps else "–"
            lines.append("| " + " | ".join([name, text, *cells, rate, str(counts.steps)]) + " |")
    return "\n".join(lines)


def main() -> int:
    """Run the variants on the same prompts and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", default=str(HERE.parent / "models" / "tiny"))
    parser.add_argument("--prompts", type=Path, default=HERE / "data" / "held-out-python.jsonl")
    parser.add_argument("--count", type=int, default=48, help="prompts (default 48)")
    parser.add_argument("--tokens", type=int, default=128, help="new tokens a prompt (default 128)")
    parser.add_argument("--length", type=int, default=3, help="drafts a step (default 3)")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--json", action="store_true", help="print counts as JSON instead of a table")
    args = parser.parse_args()
    prompts = read_prompts(args.prompts, args.count)
    sampling = {"max_tokens": args.tokens, "temperature": args.temperature, "seed": args.seed}
    results: dict[str, Result] = {}
    for name in args.variants:
        with outrider.load(args.checkpoint, draft="mtp", draft_length=args.length, **VARIANTS[name]) as engine:
            results[name] = run(engine, prompts, args.length, sampling)
        print(f"{name}: {results[name].seconds:.0f} s", file=sys.stderr)
    texts = [result.texts for result in results.values()]
    if any(text != texts[0] for text in texts):
        print("the texts of two variants differ: a promise is broken", file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps({name: {"all": vars(r.all), "fresh": vars(r.fresh)} for name, r in results.items()}))
    else:
        print(f"{len(prompts)} prompts of {args.prompts.name}, {args.tokens} tokens, temperature {args.temperature}")
        print(table(results, args.length))
    return 0


if __name__ == "__main__":
    sys.exit(main())
