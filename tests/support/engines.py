"""Tiny engines in milliseconds: models of random tensors without files, drafters with a script, and recorded runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider.cache.cache import Cache
from outrider.config.draft import DraftConfig
from outrider.config.engine import EngineConfig
from outrider.config.model import ModelConfig
from outrider.core import Sequence as Text
from outrider.core import Span
from outrider.draft.base import Drafter, Drafts
from outrider.draft.controller import FixedLength
from outrider.draft.mtp import MtpDrafter
from outrider.draft.none import NoDrafter
from outrider.draft.scripted import Script, ScriptedDrafter
from outrider.engine.llm import Engine
from outrider.engine.record import Record
from outrider.engine.results import CacheInfo, Completion, Info
from outrider.engine.score import draft_logits, score
from outrider.engine.step import Parts
from outrider.model.build import build_mtp, build_transformer
from outrider.model.logs import trunk_specs
from outrider.model.mtp import MtpBlock
from outrider.model.transformer import Transformer
from outrider.ops.dispatch import choose_backend
from outrider.verify.base import Verifier
from outrider.verify.coupled import Coupled
from tests.support.checkpoints import random_tensors, stored, tiny_config

SMALL = (0, 4, 8, 0)
"""Window, CSA and HCA (8 stands in for 128), and the MTP block: the fewest layers that have every kind of state."""


@dataclass(frozen=True)
class Model:
    """A trunk and its MTP block, with random weights."""

    config: ModelConfig
    trunk: Transformer
    mtp: MtpBlock

    def drafter(self, **options: Any) -> MtpDrafter:
        """The real drafter with these options of ``DraftConfig``."""
        return MtpDrafter(self.mtp, self.config, DraftConfig(**options))


@cache
def tiny_model(seed: int = 0, *, quantise: bool = False, **overrides: Any) -> Model:
    """One tiny model of every seed and config; the same object each time."""
    formats = {"quantised": True, "expert_dtype": "fp4"} if quantise else {}
    config = tiny_config(**({"compress_ratios": SMALL} | formats | overrides))
    return build_model(config, random_tensors(config, seed), quantise=quantise)


def build_model(config: ModelConfig, tensors: dict[str, Tensor], *, quantise: bool = False) -> Model:
    """A model of given tensors."""
    held = stored(config, tensors, quantise=quantise)
    trunk = build_transformer(config, held, choose_backend("reference"))
    return Model(config, trunk, build_mtp(trunk, held))


def make_engine(
    model: Model,
    draft: Drafter | str = "mtp",
    k: int = 3,
    *,
    verifier: Verifier | None = None,
    options: dict[str, Any] | None = None,
    width: Callable[[Text], int] | None = None,
    **settings: Any,
) -> Engine:
    """An engine as ``load`` makes it, with small pages, few rows and poisoned state unless ``settings`` say else.
    ``options`` are those of ``DraftConfig`` for ``draft="mtp"``; ``width`` gives each text a k of its own."""
    config = EngineConfig(**({"max_batch": 8, "step_rows": 96, "page_tokens": 8, "poison": True} | settings))
    drafter = draft if not isinstance(draft, str) else NoDrafter() if draft == "none" else None
    if drafter is None:
        drafter = model.drafter(length=k, **(options or {}))
    length = config.length(model.config.max_position_embeddings)
    slots = config.max_batch + 1
    cache = Cache(
        (*trunk_specs(model.config), *drafter.logs),
        model.trunk.ops,
        slots=slots,
        max_pages=config.max_pages or slots * -(-length // config.page_tokens),
        step_rows=config.step_rows,
        page_tokens=config.page_tokens,
        poison=config.poison,
    )
    parts = Parts(model.trunk, cache, drafter, verifier or Coupled(), frozenset(model.config.eos_token_ids))
    controller = Widths(width) if width is not None else FixedLength(0 if draft == "none" else k)
    return Engine(parts, config, controller, _info(model, cache, length, k), None)


@dataclass(frozen=True)
class Widths:
    """A controller that asks ``of`` for each text's k."""

    of: Callable[[Text], int]

    def width(self, seq: Text) -> int:
        return self.of(seq)


def _info(model: Model, cache: Cache, length: int, k: int) -> Info:
    return Info(
        path=Path("tiny"),
        backend="reference",
        device="cpu",
        dtype="float32",
        threads=model.trunk.ops.threads,
        promise="",
        parameters=0,
        stored_bytes=0,
        weight_bytes=0,
        drafter="",
        draft_length=k,
        cache=CacheInfo(0, cache.pages.limit, cache.page_tokens, length, cache.bytes, 0, 0),
        config=model.config,
    )


# ---- scripted drafters --------------------------------------------------------------------------------------------


class FedScript(MtpDrafter):
    """The MTP drafter in all but its answer: it drafts and is fed as ever, then says what a script says."""

    name = "fed script"

    def __init__(self, model: Model, script: Script) -> None:
        super().__init__(model.mtp, model.config, DraftConfig())
        self._script = script

    def propose(self, spans: Sequence[Span], cache: Cache) -> Drafts:
        own = super().propose(spans, cache)
        said = ScriptedDrafter(self._script).propose(spans, cache)
        return Drafts(said.ids, first_logits=own.first_logits)


def right_up_to(texts: Sequence[Sequence[int]], right: Callable[[Span], int], vocab: int = 64) -> Script:
    """Drafts from the known ``texts``, of which the first ``right(span)`` are right and all others wrong; none for a
    text that has gone astray."""

    def script(span: Span) -> list[int]:
        tokens = span.seq.tokens
        text = next((text for text in texts if list(text[: len(tokens)]) == tokens), None)
        if text is None:
            return []
        ahead = list(text[len(tokens) : len(tokens) + span.width])
        good = right(span)
        wrong = [(token + 1 + i % 7) % vocab for i, token in enumerate(ahead[good:])]
        return [*ahead[:good], *wrong, *[3] * (span.width - len(ahead))]

    return script


# ---- recorded runs ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Truth:
    """What plain decoding makes of some prompts: prompts in one pass, no drafts. ``judged[i, p]``
    are the logits that judged the token at p + 1; ``first[i, p]`` the MTP logits of slot p − 1, from one pass."""

    texts: tuple[tuple[int, ...], ...]
    prompts: tuple[tuple[int, ...], ...]
    judged: dict[tuple[int, int], Tensor]
    first: dict[tuple[int, int], Tensor]
    rows: dict[int, int]
    finish: tuple[str, ...]

    @property
    def made(self) -> list[list[int]]:
        """The generated tokens of each text."""
        return [list(text[len(prompt) :]) for text, prompt in zip(self.texts, self.prompts, strict=True)]


def plain_truth(model: Model, prompts: Sequence[Sequence[int]], *, alone: bool = False, **sampling: Any) -> Truth:
    """The k = 0 run that every other one must equal: prompts in one pass, all in one batch, or each ``alone``."""
    engine = make_engine(model, "none", 0, step_rows=600, max_batch=1 if alone else len(prompts))
    done, record = recorded(engine, prompts, **sampling)
    texts = tuple((*prompt, *completion.token_ids) for prompt, completion in zip(prompts, done, strict=True))
    reader = make_engine(model, "mtp", 0, step_rows=600)
    first: dict[tuple[int, int], Tensor] = {}
    for index, text in enumerate(texts):
        for slot, row in enumerate(reader.draft_logits(list(text))):
            first[index, slot + 1] = row
    rows = {index: len(text) - 1 for index, text in enumerate(texts)}
    reasons = tuple(completion.finish_reason for completion in done)
    return Truth(texts, tuple(map(tuple, prompts)), record.target, first, rows, reasons)


def recorded(engine: Engine, prompts: Sequence[Sequence[int]], **sampling: Any) -> tuple[list[Completion], Record]:
    """Run the prompts in one batch and record what judged each token."""
    with engine.record() as record:
        return engine.generate([list(prompt) for prompt in prompts], **sampling), record


def assert_identical(truth: Truth, done: Sequence[Completion], record: Record, *, drafts: bool = True) -> None:
    """Tokens, finish reasons, number of committed rows, the bits of every judged row and of every first draft."""
    assert [completion.token_ids for completion in done] == truth.made
    assert tuple(completion.finish_reason for completion in done) == truth.finish
    assert record.rows == truth.rows
    assert record.target.keys() == truth.judged.keys()
    for key, row in record.target.items():
        assert torch.equal(row, truth.judged[key]), f"logits of (text, position) {key} differ"
    assert bool(record.first_draft) == drafts
    for key, row in record.first_draft.items():
        assert torch.equal(row, truth.first[key]), f"first-draft logits of (text, position) {key} differ"


def assert_promise(model: Model, truth: Truth, engine: Engine, *, drafts: bool = True, **sampling: Any) -> Record:
    """Run ``truth``'s prompts in one batch on ``engine``: identical, and nothing left behind."""
    done, record = recorded(engine, truth.prompts, **sampling)
    assert_identical(truth, done, record, drafts=drafts)
    assert_idle(engine)
    return record


def assert_idle(engine: Engine) -> None:
    """Every slot and page is free."""
    engine.parts.cache.check_integrity([])
    assert engine.scheduler.idle


def fresh_score(model: Model, ids: Sequence[int], chunk: int = 600) -> Tensor:
    """Logits ``[T, vocab]`` on a cache of its own."""
    engine = make_engine(model, "none", 0, max_batch=1, step_rows=600, page_tokens=8)
    return score(engine.parts.model, engine.parts.cache, ids, chunk)[0]


def stateless_logits(model: Model, ids: Sequence[int]) -> Tensor:
    """The reference that has no state at all: for each position one pass over the whole prefix, nothing committed."""
    engine = make_engine(model, "none", 0, max_batch=1, step_rows=600)
    rows = [score(engine.parts.model, engine.parts.cache, ids[: n + 1], 600)[0][-1] for n in range(len(ids))]
    return torch.stack(rows)


def stateless_drafts(model: Model, ids: Sequence[int]) -> Tensor:
    """MTP logits ``[T-1, vocab]`` of one pass."""
    engine = make_engine(model, "mtp", 0, max_batch=1, step_rows=600)
    return draft_logits(engine.parts.model, engine.parts.drafter, engine.parts.cache, ids, 600)
