"""``outrider train``: from source text to a checkpoint with a distilled draft head."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from outrider.errors import ConfigError
from outrider.tune.data import Split, encode_stream, read_files, split_files, standard_library
from outrider.tune.distill import Distiller, DistilState, begin
from outrider.tune.export import export
from outrider.tune.initial import initial_parameters
from outrider.tune.measure import measure
from outrider.tune.optim import Optimiser
from outrider.tune.settings import Callback, Progress, Recipe
from outrider.tune.state import load_state
from outrider.tune.stored import as_stored
from outrider.tune.tokenizer_training import train_tokenizer
from outrider.tune.trainer import JointState, JointTrainer, trained_names

STATE = "state.pt"


def quiet(progress: Progress) -> None:
    """The callback that shows nothing."""


def train(
    output: Path,
    *,
    seed: int = 0,
    recipe: Recipe | None = None,
    data: Path | None = None,
    resume: bool = False,
    progress: Callback = quiet,
) -> dict[str, Any]:
    """Train a tiny V4 with its draft head and write the checkpoint to the folder ``output``.

    ``data`` is a folder of ``.py`` files; None takes the running interpreter's standard library. ``recipe`` None is the
    one that made ``models/tiny`` (``Recipe().with_steps(n)`` for a shorter or longer run). While it runs,
    ``output/state.pt`` is saved every few minutes; with ``resume`` a run continues from it, to the same result on the
    same machine and library versions. ``progress`` is called every ten steps, on the caller's thread. Two threads of
    work are used.

    Returns the record that is also written to ``output/training.json``. Raises ConfigError where the data can't serve,
    where a run lies in ``output`` already and ``resume`` is off, or where it was begun with other data, seed or recipe.
    """
    recipe = recipe or Recipe()
    state_path = output / STATE
    if state_path.exists() and not resume:
        raise ConfigError(
            f"a training run lies in {output} already.", key="output", hint="Resume it, or give another folder."
        )
    text = _prepare(data, recipe)
    identity = {"digest": text.split.digest(), "seed": seed, "recipe": repr(recipe)}
    saved = _resumed(state_path, identity) if resume else {}
    output.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    first = _joint(recipe, text, saved, state_path, identity, progress)
    second = _distil(recipe, text, saved, first, state_path, identity, progress)
    final = {**first.params, **second.head}
    record = _record(recipe, seed, text, first, second, final)
    export(output, recipe.config, final, text.tokenizer, record)
    return record


@dataclass(frozen=True)
class _Text:
    """The data of a run, encoded."""

    split: Split
    tokenizer: Tokenizer
    stream: np.ndarray
    held_out: np.ndarray


def _prepare(data: Path | None, recipe: Recipe) -> _Text:
    split = split_files(read_files(data or standard_library()))
    tokenizer = train_tokenizer((file.text for file in split.train), recipe.config.vocab_size)
    return _Text(split, tokenizer, encode_stream(tokenizer, split.train), encode_stream(tokenizer, split.held_out))


def _resumed(path: Path, identity: Mapping[str, Any]) -> dict[str, Any]:
    """The saved state, if it belongs to this run."""
    saved = load_state(path)
    for key, what in (("digest", "other training text"), ("seed", "another seed"), ("recipe", "another recipe")):
        if saved[key] != identity[key]:
            raise ConfigError(f"the run in {path.parent} was begun with {what}.", key=key, hint="Begin a new run.")
    return saved


def _joint(
    recipe: Recipe, text: _Text, saved: Mapping[str, Any], path: Path, identity: dict[str, Any], progress: Callback
) -> JointState:
    """The first phase, from the beginning or from where it was left; its parameters as plain tensors."""
    params = initial_parameters(recipe.config, identity["seed"])
    state = JointState(params, Optimiser({name: params[name] for name in trained_names(params)}, recipe.joint.rates))
    if "joint" in saved:
        state.load(saved["joint"])
    if "distil" not in saved:
        trainer = JointTrainer(recipe.config, recipe.joint, state, text.stream, text.held_out, identity["seed"])
        trainer.run(path, identity, progress)
    return state


def _distil(
    recipe: Recipe, text: _Text, saved: Mapping[str, Any], joint: JointState, path: Path, identity: dict[str, Any],
    progress: Callback,
) -> DistilState:  # fmt: skip
    """The second phase, likewise."""
    frozen = as_stored(recipe.config, joint.params, list(joint.params))
    state = begin(joint.params, recipe.distil)
    if "distil" in saved:
        state.load(saved["distil"])
    distiller = Distiller(recipe.config, recipe.distil, frozen, state, text.stream, text.held_out, identity["seed"])
    distiller.run(path, {**identity, "joint": joint.to_dict()}, progress)
    return state


def _record(
    recipe: Recipe, seed: int, text: _Text, joint: JointState, distil: DistilState, params: dict[str, Tensor]
) -> dict[str, Any]:
    """What a reader of the checkpoint should know of its making; plain JSON values."""
    held_out_bytes = sum(len(file.text.encode()) for file in text.split.held_out)
    stored = as_stored(recipe.config, params, list(params))
    windows = recipe.distil.measured_windows
    return {
        "seed": seed,
        "settings": {"joint": asdict(recipe.joint), "distil": asdict(recipe.distil)},
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "seconds": {"joint": joint.seconds, "distil": distil.seconds},
        "data": {
            "digest": text.split.digest(),
            "files": len(text.split.train),
            "tokens": int(text.stream.shape[0]),
            "held_out_tokens": int(text.held_out.shape[0]),
            "held_out_files": [file.path for file in text.split.held_out],
        },
        "bytes_per_token": held_out_bytes / text.held_out.shape[0],
        "held_out": measure(recipe.config, stored, text.held_out, recipe.joint.length, windows),
        "joint": joint.history,
        "distil": distil.history,
    }
