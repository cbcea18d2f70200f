"""``outrider.load``: options and a checkpoint → an engine. Everything that can be refused is refused here."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from outrider.cache.cache import Cache
from outrider.cache.spec import LogSpec, check_specs
from outrider.config.draft import AUTO_LENGTH, DRAFT_OPTIONS, DraftConfig
from outrider.config.engine import EngineConfig
from outrider.draft.base import Drafter
from outrider.draft.controller import FixedLength
from outrider.draft.mtp import MtpDrafter
from outrider.draft.none import NoDrafter
from outrider.engine.llm import Engine
from outrider.engine.memory import available_memory
from outrider.engine.results import CacheInfo, Info
from outrider.engine.step import Parts
from outrider.errors import CapacityError, ConfigError, OutriderWarning, UnsupportedError
from outrider.model.build import Progress, build_mtp, build_transformer
from outrider.model.logs import trunk_specs
from outrider.model.transformer import Transformer
from outrider.ops.dispatch import choose_backend
from outrider.ops.table import Blocks
from outrider.text.tokenizer import Tokenizer
from outrider.verify.base import Verifier
from outrider.verify.coupled import Coupled
from outrider.verify.everything import CommitEverything
from outrider.weights import Checkpoint, expected_tensors, open_checkpoint

_ENGINE_OPTIONS = frozenset(field.name for field in fields(EngineConfig))
_LATER = {"prefix_cache": (None, False), "memory": (None,), "cache_dtype": ("auto", "float32")}
"""Options whose feature isn't there yet, and the plain values that ask for nothing."""
_PROPOSERS = ("auto", "mtp", "none")
_PROPOSERS_LATER = ("dspark", "ngram")


def load(
    path: str | Path,
    *,
    device: str = "cpu",
    backend: str = "auto",
    dtype: str = "auto",
    draft: str | Drafter = "auto",
    draft_length: int | str = "auto",
    progress: Progress | None = None,
    _verifier: str = "coupled",
    **options: Any,
) -> Engine:
    """Open the checkpoint in folder ``path`` and make an engine of it.

    ``draft``: "auto" drafts with the MTP head where the checkpoint has one, "mtp" insists on it, "none" decodes
    plainly, or a ``Drafter`` of your own. ``draft_length``: drafts a step, "auto" for now 3. Other options are those of
    ``EngineConfig`` (max_batch, max_length, prefill_chunk, step_rows, threads) and ``DraftConfig`` (chain, feed,
    prompt_feed, drafts). ``progress`` is called with (layers read, layers in all).

    Raises ConfigError (``.key``), CheckpointError (``.tensor``), UnsupportedError or CapacityError, each one sentence.
    """
    engine_config, draft_config = _configs(options, draft_length)
    if progress is not None and not callable(progress):
        raise ConfigError(f"progress is {progress!r}; expected a function of two numbers, or None.", key="progress")
    _check_device(device, dtype)
    if not isinstance(path, str | Path):
        raise ConfigError(f"path is a {type(path).__name__}; expected the checkpoint's folder.", key="path")
    checkpoint = open_checkpoint(path)
    length = engine_config.length(checkpoint.config.max_position_embeddings)
    proposer = _proposer(checkpoint, draft, draft_length)
    _check_memory(checkpoint)
    ops = choose_backend(backend, device)
    _check_threads(ops, engine_config)
    model = build_transformer(checkpoint.config, checkpoint, ops, progress)
    tokenizer = Tokenizer.load(checkpoint.path)
    drafter = _make_drafter(proposer, model, checkpoint, draft_config, tokenizer)
    drafts = 0 if isinstance(drafter, NoDrafter) and drafter.name == "none" else draft_config.length
    _check_width(drafter, drafts, engine_config)
    cache = _make_cache(model, drafter, engine_config, length, device)
    verifier: Verifier = CommitEverything() if _verifier == "everything" else Coupled()
    parts = Parts(model, cache, drafter, verifier, frozenset(checkpoint.config.eos_token_ids))
    info = _info(checkpoint, parts, drafts, length, engine_config)
    for sentence in info.warnings:
        warnings.warn(sentence, OutriderWarning, stacklevel=2)
    return Engine(parts, engine_config, FixedLength(drafts), info, tokenizer)


def _configs(options: Mapping[str, Any], draft_length: Any) -> tuple[EngineConfig, DraftConfig]:
    """Sort keywords into the two configs; refuse unknown ones, and later ones that ask for something."""
    engine, draft = {}, {}
    for name, value in options.items():
        if name in _LATER:
            if not any(value is plain for plain in _LATER[name]) and not (
                isinstance(value, str) and value in _LATER[name]
            ):
                raise UnsupportedError(f"{name}={value!r} isn't there yet.", hint=f"Leave {name} out.")
        elif name in _ENGINE_OPTIONS:
            engine[name] = value
        elif name in DRAFT_OPTIONS:
            draft[name] = value
        else:
            named = ("device", "backend", "dtype", "draft", "draft_length", "progress")
            known = ", ".join(sorted(_ENGINE_OPTIONS | DRAFT_OPTIONS | set(_LATER) | set(named)))
            raise ConfigError(f"load has no option {name!r}; it knows {known}.", key=name)
    if isinstance(draft_length, Mapping):
        raise UnsupportedError("a table of draft lengths isn't there yet.", hint="Give one number of drafts.")
    return EngineConfig(**engine), DraftConfig(length=AUTO_LENGTH if draft_length == "auto" else draft_length, **draft)


def _check_device(device: str, dtype: str) -> None:
    if dtype not in ("auto", "float32"):
        raise UnsupportedError(f"dtype={dtype!r} isn't there yet.", hint="Use dtype='auto', which computes in float32.")
    try:
        kind = torch.device(device).type
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ConfigError(
            f"device is {device!r}, which PyTorch can't use here.", key="device", hint="Use 'cpu'."
        ) from error
    if kind != "cpu":
        warnings.warn(f"device={device!r} was never tested: nothing is promised for it.", OutriderWarning, stacklevel=3)


def _check_threads(ops: Blocks, config: EngineConfig) -> None:
    if config.threads is not None and config.threads != ops.threads:
        said = f"threads={config.threads}: the {ops.name} backend computes on {ops.threads}, so that bits are the same."
        warnings.warn(said, OutriderWarning, stacklevel=3)


def _proposer(checkpoint: Checkpoint, draft: str | Drafter, draft_length: object) -> str | Drafter:
    """Which drafter to make. Raises where drafting was asked for and can't be had; "auto" falls back to none."""
    if not isinstance(draft, str):
        if isinstance(draft, Drafter) and not isinstance(draft, type):
            return draft
        raise ConfigError(
            f"draft is of type {type(draft).__name__}, which lacks the protocol outrider.draft.Drafter.", key="draft"
        )
    if draft in _PROPOSERS_LATER:
        raise UnsupportedError(f"draft={draft!r} isn't there yet.", hint="Use 'mtp', 'none' or 'auto'.")
    if draft not in _PROPOSERS:
        raise ConfigError(f"draft is {draft!r}; expected one of {', '.join(_PROPOSERS)} or a Drafter.", key="draft")
    asked = draft == "mtp" or (draft == "auto" and draft_length not in ("auto", 0))
    if draft == "none":
        return draft
    if asked:
        checkpoint.require_head()
    if checkpoint.mtp_blocks > 1 and checkpoint.head == "mtp" and asked:
        raise UnsupportedError(
            f"the head has {checkpoint.mtp_blocks} MTP blocks; drafting knows one.", hint="Use draft='none'."
        )
    return "mtp" if checkpoint.head == "mtp" and checkpoint.mtp_blocks == 1 else "none"


def _check_memory(checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint that this machine can't hold as float32."""
    needed, there = 4 * _parameters(checkpoint), available_memory()
    if there is not None and needed > there:
        raise CapacityError(
            f"{checkpoint.path} needs {needed / 1e9:.1f} GB as float32 (it is {checkpoint.stored_bytes / 1e9:.1f} GB "
            f"stored), and {there / 1e9:.1f} GB of memory are free.",
            hint="Use a machine with more memory, or a smaller checkpoint.",
        )


def _parameters(checkpoint: Checkpoint) -> int:
    blocks = checkpoint.mtp_blocks if checkpoint.head == "mtp" else 0
    return sum(math.prod(want.shape) for want in expected_tensors(checkpoint.config, blocks).values())


def _make_drafter(
    proposer: str | Drafter,
    model: Transformer,
    checkpoint: Checkpoint,
    options: DraftConfig,
    tokenizer: Tokenizer | None,
) -> Drafter:
    if not isinstance(proposer, str):
        return proposer
    if proposer == "none":
        return NoDrafter()
    drafter = MtpDrafter(build_mtp(model, checkpoint), model.config, options)
    if options.vocab_limit is None and tokenizer is not None and tokenizer.vocab_size < model.config.vocab_size:
        drafter.vocab_limit = tokenizer.vocab_size  # a padded head: its last columns were never trained (case C7)
    return drafter


def _check_width(drafter: Drafter, drafts: int, config: EngineConfig) -> None:
    """The bounds on a fixed number of drafts, known before anything runs."""
    most = config.step_rows - 1
    if drafts > most:
        message = f"draft_length is {drafts}; a step has {config.step_rows} rows, so it can be {most} at most."
        raise ConfigError(message, key="draft_length", hint="Lower draft_length or raise step_rows.")
    if drafter.max_width is not None and drafts > drafter.max_width:
        raise ConfigError(
            f"draft_length is {drafts}; the drafter {drafter.name} makes {drafter.max_width} at most.",
            key="draft_length",
            hint="Lower draft_length.",
        )


def _make_cache(model: Transformer, drafter: Drafter, config: EngineConfig, length: int, device: str) -> Cache:
    specs: tuple[LogSpec, ...] = (*trunk_specs(model.config), *drafter.logs)
    check_specs(specs, config.page_tokens)
    slots = config.max_batch + 1  # one more for score and draft_logits beside a full batch
    pages = config.max_pages or slots * -(-length // config.page_tokens)
    if pages * config.page_tokens < length:
        raise ConfigError(
            f"max_pages is {pages}: {pages * config.page_tokens} tokens; one text may hold {length}.",
            key="max_pages",
            hint="Raise max_pages or lower max_length.",
        )
    _check_cache_memory(specs, slots, config)
    return Cache(
        specs,
        model.ops,
        slots=slots,
        max_pages=pages,
        step_rows=config.step_rows,
        page_tokens=config.page_tokens,
        device=device,
        poison=config.poison,
    )


def _check_cache_memory(specs: tuple[LogSpec, ...], slots: int, config: EngineConfig) -> None:
    """Refuse rings and staging that memory can't hold; pages are taken as they are needed."""
    needed = sum(4 * spec.layers * spec.width * (slots * spec.capacity + config.step_rows) for spec in specs)
    there = available_memory()
    if there is not None and needed > there:
        raise CapacityError(
            f"{config.max_batch} texts and {config.step_rows} rows a step need {needed / 1e9:.1f} GB of cache, and "
            f"{there / 1e9:.1f} GB of memory are free.",
            hint="Lower max_batch or step_rows.",
        )


def _info(checkpoint: Checkpoint, parts: Parts, drafts: int, length: int, config: EngineConfig) -> Info:
    cache = parts.cache
    told = list(checkpoint.warnings)
    if checkpoint.mtp_blocks > 1 and checkpoint.head == "mtp":
        told.append(f"the head has {checkpoint.mtp_blocks} MTP blocks; drafting knows one: it runs undrafted.")
    return Info(
        path=checkpoint.path,
        backend=parts.model.ops.name,
        device=cache.device,
        dtype="float32",
        threads=parts.model.ops.threads,
        promise=parts.model.ops.promise(),
        parameters=_parameters(checkpoint),
        stored_bytes=checkpoint.stored_bytes,
        weight_bytes=4 * _parameters(checkpoint),
        drafter=parts.drafter.name,
        draft_length=drafts,
        cache=CacheInfo(
            slots=config.max_batch,
            pages=cache.pages.limit,
            page_tokens=cache.page_tokens,
            longest=length,
            bytes=cache.bytes,
            bytes_per_sequence=sum(log.slot_bytes for log in cache.logs.values()),
            bytes_per_page=sum(log.page_bytes for log in cache.logs.values()),
        ),
        config=checkpoint.config,
        warnings=tuple(told),
    )
