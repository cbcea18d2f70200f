"""The engine that users hold: text in, text out. One loop of steps serves every request that is open."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, overload

import numpy as np
from torch import Tensor

from outrider.config.engine import EngineConfig
from outrider.core import Sampling
from outrider.core import Sequence as Text
from outrider.draft.controller import DraftController
from outrider.engine.interrupts import interrupts_held
from outrider.engine.record import Record
from outrider.engine.request import Request
from outrider.engine.results import Completion, Info, Piece, Stats
from outrider.engine.scheduler import Scheduler
from outrider.engine.score import draft_logits, score
from outrider.engine.step import Parts, Step, run_step
from outrider.errors import RequestError
from outrider.sampling.validate import make_sampling, validate
from outrider.text.stream import TextStream
from outrider.text.tokenizer import Tokenizer

Prompt = str | Sequence[int] | np.ndarray[Any, Any] | Tensor
"""Text, or token ids: a list, an array or a tensor of one dim."""


class Engine:
    """Made by ``outrider.load``. Not for several threads at once; streams and calls may be interleaved in one."""

    def __init__(
        self, parts: Parts, config: EngineConfig, controller: DraftController, info: Info, tokenizer: Tokenizer | None
    ) -> None:
        self.info = info
        self.tokenizer = tokenizer
        self.parts = parts
        self._chunk = min(config.prefill_chunk or config.step_rows, config.step_rows)
        self._open: dict[int, Request] = {}
        self._numbers = itertools.count()
        self._records: list[Record] = []
        self._given_up: list[Request] = []
        self._in_step = False
        self._closed = False
        self.scheduler = Scheduler(
            parts.cache,
            max_batch=config.max_batch,
            step_rows=config.step_rows,
            prefill_chunk=config.prefill_chunk,
            width=controller.width,
            released=parts.drafter.release,
        )

    # ---- making text --------------------------------------------------------------------------------------------

    @overload
    def generate(self, prompts: str | list[int], sampling: Sampling | None = None, **options: Any) -> Completion: ...
    @overload
    def generate(
        self, prompts: list[str] | list[list[int]], sampling: Sampling | None = None, **options: Any
    ) -> list[Completion]: ...
    def generate(self, prompts: Any, sampling: Sampling | None = None, **options: Any) -> Completion | list[Completion]:
        """Complete one prompt (text or token ids), or several in one batch, in their order.

        Options are a ``Sampling``, or its fields as keywords. Raises RequestError (``.param``) before anything runs
        where one can't be honoured.
        """
        prompts = prompts.tolist() if isinstance(prompts, Tensor | np.ndarray) else prompts
        single = isinstance(prompts, str) or _is_ids(prompts)
        listed: list[Prompt] = [prompts] if single else _listed(prompts)
        asked = _asked(sampling, options)
        requests = [self._request(prompt, asked) for prompt in listed]
        try:
            for request in requests:
                self._submit(request)
            while any(request.seq.finish is None for request in requests):
                self.step()
        finally:
            self.give_up(requests)
        done = [request.completion(self.info.draft_length) for request in requests]
        return done[0] if single else done

    def stream(self, prompt: str | list[int], sampling: Sampling | None = None, **options: Any) -> Stream:
        """Complete one prompt piece by piece, a piece a step. Closing the stream, or leaving its loop, cancels."""
        if isinstance(prompt, list | tuple) and prompt and not _is_ids(prompt):
            raise RequestError("stream takes one prompt: text, or a list of token ids.", param="prompt")
        request = self._request(prompt, _asked(sampling, options))
        self._submit(request)
        return Stream(self, request)

    def _request(self, prompt: Prompt, sampling: Sampling) -> Request:
        ids = self.encode(prompt)
        longest = self.info.cache.longest
        validate(
            sampling,
            vocab_size=self.info.config.vocab_size,
            max_length=longest,
            prompt=ids,
            has_tokenizer=self.tokenizer is not None,
        )
        most = longest if sampling.max_tokens is None else min(longest, len(ids) + sampling.max_tokens)
        seed = secrets.randbits(63) if sampling.seed is None else sampling.seed
        seq = Text(next(self._numbers), ids, len(ids), sampling, seed=seed, limit=most)
        return Request(seq, TextStream(self.tokenizer, sampling.stop))

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt. Raises RequestError for text where the checkpoint has no tokenizer, and once the
        engine is closed."""
        if self._closed:
            raise RequestError("this engine is closed.", hint="Load another one.")
        if isinstance(prompt, Tensor | np.ndarray):
            prompt = prompt.tolist()
        if isinstance(prompt, list | tuple):
            return [int(id) if isinstance(id, np.integer) else id for id in prompt]
        if not isinstance(prompt, str):
            raise RequestError(f"a prompt is text or token ids; got {type(prompt).__name__}.", param="prompt")
        if self.tokenizer is None:
            raise RequestError(
                "the checkpoint has no tokenizer.json, so a prompt must be token ids; got text.", param="prompt"
            )
        return self.tokenizer.encode(prompt)

    # ---- reading text -------------------------------------------------------------------------------------------

    def score(self, ids: str | list[int]) -> Tensor:
        """The trunk's logits at every position, float32 ``[T, vocab]``. No drafting, no sampling."""
        return score(self.parts.model, self.parts.cache, self._readable(ids), self._chunk)[0]

    def streams(self, ids: str | list[int]) -> Tensor:
        """The trunk's streams after the last layer, float32 ``[T, S, d]``."""
        return score(self.parts.model, self.parts.cache, self._readable(ids), self._chunk)[1]

    def draft_logits(self, ids: str | list[int]) -> Tensor:
        """The MTP head's logits, float32 ``[T-1, vocab]``: slot i from the streams of i and token i+1."""
        parts = self.parts
        return draft_logits(parts.model, parts.drafter, parts.cache, self._readable(ids), self._chunk)

    def _readable(self, ids: Prompt) -> list[int]:
        listed, longest = self.encode(ids), self.info.cache.longest
        validate(
            Sampling(max_tokens=0),
            vocab_size=self.info.config.vocab_size,
            max_length=longest + 1,
            prompt=listed,
            has_tokenizer=self.tokenizer is not None,
        )
        return listed

    # ---- the loop -----------------------------------------------------------------------------------------------

    def _submit(self, request: Request) -> None:
        if request.seq.limit == len(request.seq.tokens):
            request.seq.finish = "length"
            return
        self._open[request.seq.id] = request
        self.scheduler.add(request.seq)

    def step(self) -> None:
        """Run one step for everything that is open; does nothing where nothing is."""
        self._drop_given_up()
        if self.scheduler.idle:
            return
        self._in_step = True
        try:
            with interrupts_held():
                spans = self.scheduler.next()
            texts = {span.seq.id: self._open[span.seq.id].stream for span in spans}
            with self.parts.model.ops.running():
                run_step(self.parts, spans, texts, self._apply)
        finally:
            self._in_step = False

    def _apply(self, step: Step) -> None:
        for span, draft, verdict, clipped in zip(
            step.batch.spans, step.batch.drafts, step.verdicts, step.clipped, strict=True
        ):
            request = self._open[span.seq.id]
            if clipped.kept.finish == "error":
                request.error = f"the logits at position {verdict.fault} aren't finite: the checkpoint is damaged."
            request.take(span, len(draft), clipped, step.timing)
            self.scheduler.apply(span.seq, clipped.kept)
            if span.seq.finish is not None:
                del self._open[span.seq.id]
        for record in self._records:
            record.add(step)

    def give_up(self, requests: Sequence[Request]) -> None:
        """Cancel what hasn't finished and free it: now, or (a stream may be collected in the middle of a step) before
        the next step."""
        self._given_up += requests
        if not self._in_step:
            self._drop_given_up()

    def _drop_given_up(self) -> None:
        with interrupts_held():
            while self._given_up:
                request = self._given_up.pop()
                if request.seq.finish is None:
                    self.scheduler.cancel(request.seq)
                    request.cancelled()
                self._open.pop(request.seq.id, None)

    @contextmanager
    def record(self) -> Iterator[Record]:
        """Record the logits behind every token made inside the block (see ``Record``)."""
        record = Record()
        self._records.append(record)
        try:
            yield record
        finally:
            self._records.remove(record)

    def close(self) -> None:
        """Cancel what is open. Nothing can be asked of the engine afterwards; a second call does nothing."""
        self._closed = True
        self.give_up(list(self._open.values()))

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Stream(Iterator[Piece]):
    """Pieces of one request as they are made. ``completion`` and ``stats`` hold at any time what there is so far."""

    def __init__(self, engine: Engine, request: Request) -> None:
        self._engine = engine
        self._request = request

    def __next__(self) -> Piece:
        request = self._request
        while not request.pieces:
            if request.seq.finish is not None:
                raise StopIteration
            self._engine.step()
        return request.pieces.popleft()

    def close(self) -> None:
        """Cancel, if it hasn't finished; a second call does nothing."""
        self._engine.give_up([self._request])

    @property
    def completion(self) -> Completion:
        """All that was made so far, and the seed that replays it."""
        return self._request.completion(self._engine.info.draft_length)

    @property
    def stats(self) -> Stats:
        """Statistics so far."""
        return self.completion.stats

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def _asked(sampling: Sampling | None, options: dict[str, Any]) -> Sampling:
    if sampling is None:
        return make_sampling(**options)
    if options or not isinstance(sampling, Sampling):
        raise RequestError("give one Sampling, or its fields as keywords, not both.", param="sampling")
    return sampling


def _is_ids(prompts: object) -> bool:
    """A list of ints is one prompt; so is an empty list, which validation then refuses."""
    return isinstance(prompts, list | tuple) and all(isinstance(item, int | np.integer) for item in prompts)


def _listed(prompts: Any) -> list[Prompt]:
    if not isinstance(prompts, list | tuple) or not all(isinstance(item, str | list | tuple) for item in prompts):
        raise RequestError(
            f"a prompt is text, a list of token ids, or a list of those; got {type(prompts).__name__}.", param="prompt"
        )
    return list(prompts)
