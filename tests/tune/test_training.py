"""The run as a whole, on a micro model: split, determinism, resuming, progress, the checkpoint that comes out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as Library
from torch import Tensor

import outrider
from outrider.errors import ConfigError
from outrider.tune import run as run_module
from outrider.tune.context import Context
from outrider.tune.data import batch_windows, encode_stream, read_files, spaced_windows, split_files, standard_library
from outrider.tune.forward import MTP, draft, logits, trunk
from outrider.tune.initial import TINY, initial_parameters
from outrider.tune.optim import Schedule, is_muon, orthogonalised
from outrider.tune.run import STATE, train
from outrider.tune.settings import DistilSettings, JointSettings, Progress, Recipe
from outrider.tune.state import load_state
from outrider.tune.stored import as_stored
from outrider.tune.tokenizer_training import BOS_ID, EOS_ID, train_tokenizer
from outrider.weights import expected_tensors, open_checkpoint

MICRO = replace(
    TINY, hidden_size=64, num_hidden_layers=3, vocab_size=300, num_attention_heads=2, head_dim=64, q_lora_rank=32,
    o_lora_rank=32, sliding_window=16, compress_ratios=(0, 4, 128, 0), index_topk=4, n_routed_experts=4,
    moe_intermediate_size=32, max_position_embeddings=512, index_head_dim=32,
)  # fmt: skip
RECIPE = Recipe(
    MICRO,
    JointSettings(
        steps=6, batch=2, length=132, warm_up=2, quantised_from=0.6, dense_until=0.5, evaluate_every=3,
        evaluate_windows=2,
    ),
    DistilSettings(
        steps=3, corpus_windows=2, own_windows=2, length=24, own_texts=4, prompt=8, evaluate_windows=2,
        measured_windows=2,
    ),
)  # fmt: skip


class Interrupted(Exception):
    """Stands for a power cut."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty small files of varied code, and folders that must not be read."""
    root = tmp_path_factory.mktemp("sources")
    for i in range(60):
        lines = [f"def name_{i}_{j}(x):\n    return x * {i * j} + {j % 7}\n" for j in range(110)]
        (root / f"module_{i}.py").write_text("\n".join(lines))
    for excluded in ("test", "site-packages/pkg"):
        (root / excluded).mkdir(parents=True)
        (root / excluded / "hidden.py").write_text("SECRET = 1\n" * 1000)
    (root / "latin.py").write_bytes("café".encode("latin-1") * 2000)
    return root


@pytest.fixture(scope="module")
def finished(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[Progress]]]:
    """One uninterrupted run, and all that its callback was told."""
    output = tmp_path_factory.mktemp("runs") / "whole"
    told: list[Progress] = []
    train(output, recipe=RECIPE, data=sources, progress=told.append)
    yield output, told


@cache
def library_split() -> Any:
    return split_files(read_files(standard_library()))


def test_no_file_of_the_standard_library_is_in_both_halves() -> None:
    split = library_split()
    train_paths, held_paths = ({file.path for file in part} for part in (split.train, split.held_out))
    assert len(held_paths) == 28 and not train_paths & held_paths
    train_texts = {file.text for file in split.train}
    assert not any(file.text in train_texts for file in split.held_out)
    assert not any("/test/" in f"/{path}" or "/tests/" in f"/{path}" for path in train_paths | held_paths)
    assert not any("site-packages" in path for path in train_paths | held_paths)


def test_excluded_folders_and_other_encodings_are_left_out(sources: Path) -> None:
    paths = [file.path for file in read_files(sources)]
    assert len(paths) == 60 and paths == sorted(paths)


def test_holding_out_depends_on_paths_alone(sources: Path) -> None:
    files = read_files(sources)
    chosen = [file.path for file in split_files(files).held_out]
    assert chosen == [file.path for file in split_files(list(reversed(files))).held_out[::-1]]
    with pytest.raises(ConfigError, match=r"has 10 \.py files .* at least 56 are needed"):
        split_files(files[:10])


def test_training_windows_never_hold_held_out_tokens() -> None:
    """Ids of the two halves are made disjoint: a window of one can't come from the other."""
    stream = np.arange(1000, dtype=np.uint16)
    seen = torch.cat([batch_windows(stream, 10, 4, seed=3, step=step).flatten() for step in range(24)])
    counts = torch.bincount(seen, minlength=1000)
    assert int(counts.max()) == 1 and int(counts.sum()) == 960
    assert not torch.equal(batch_windows(stream, 10, 4, 3, 0), batch_windows(stream, 10, 4, 3, 24))
    assert spaced_windows(stream, 10, 3)[:, 0].tolist() == [0, 495, 990]
    with pytest.raises(ConfigError, match="has 50 tokens; a step of 4 windows needs 60"):
        batch_windows(stream[:50], 10, 4, 0, 0)


def test_tokenizer_writes_every_byte_and_marks_files(sources: Path) -> None:
    files = read_files(sources)
    tokenizer = train_tokenizer((file.text for file in files), 300)
    again = train_tokenizer((file.text for file in files), 300)
    assert tokenizer.to_str() == again.to_str() and 258 < tokenizer.get_vocab_size() <= 300
    for text in ("é\t\x00\x7f ﬀ 你\n\n  x_y = 10", "   \n\t \n", "".join(map(chr, range(256)))):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    stream = encode_stream(tokenizer, tuple(files[:2]))
    assert stream[0] == BOS_ID and stream[-1] == EOS_ID
    assert (stream == BOS_ID).sum() == (stream == EOS_ID).sum() == 2
    loaded = Library.from_str(tokenizer.to_str())
    assert loaded.encode(files[0].text).ids == tokenizer.encode(files[0].text).ids


def test_initial_parameters_are_those_that_the_config_calls_for() -> None:
    params, expected = initial_parameters(TINY, 0), expected_tensors(TINY, 1)
    assert set(params) == set(expected)
    assert all(tuple(params[name].shape) == want.shape for name, want in expected.items())
    same, other = initial_parameters(TINY, 0), initial_parameters(TINY, 1)
    assert all(torch.equal(params[name], same[name]) for name in params)
    assert not torch.equal(params["embed.weight"], other["embed.weight"])
    assert not is_muon("layers.0.ffn.gate.weight", params["layers.0.ffn.gate.weight"])
    assert is_muon("layers.0.attn.wq_a.weight", params["layers.0.attn.wq_a.weight"])


def test_schedule_warms_up_stays_and_falls() -> None:
    schedule = Schedule(steps=101, warm_up=4, constant_until=0.4, last=0.02)
    factors = [schedule.factor(step) for step in range(101)]
    assert factors[:5] == [0.25, 0.5, 0.75, 1.0, 1.0] and factors[40] == 1.0
    assert factors[-1] == pytest.approx(0.02) and factors == sorted(factors[:4]) + sorted(factors[4:], reverse=True)


@pytest.mark.parametrize("shape", ((2, 24, 48), (2, 48, 24), (1, 32, 32)))
def test_newton_schulz_brings_singular_values_near_one(shape: tuple[int, ...]) -> None:
    updates = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    sizes = torch.linalg.svdvals(orthogonalised(updates))
    assert sizes.min() > 0.4 and sizes.max() < 1.4


def test_run_reports_progress_and_learns(finished: tuple[Path, list[Progress]]) -> None:
    output, told = finished
    assert [(item.phase, item.step) for item in told] == [("joint", 3), ("joint", 6), ("distil", 3)]
    assert all(item.tokens_per_second > 0 and item.seconds_left >= 0 for item in told)
    assert told[-1].seconds_left == 0 and set(told[-1].held_out or {}) == {f"agreement_{i}" for i in (1, 2, 3)}
    assert told[1].losses["main"] < told[0].losses["main"] < 6
    record = json.loads((output / "training.json").read_text())
    assert record["seed"] == 0 and len(record["data"]["held_out_files"]) == 28
    assert record["held_out"]["perplexity"] == pytest.approx(np.exp(record["held_out"]["loss"]))
    assert [entry["step"] for entry in record["joint"]] == [3, 6]


def test_checkpoint_holds_the_trained_values_and_runs(finished: tuple[Path, list[Progress]]) -> None:
    output, _ = finished
    checkpoint, state = open_checkpoint(output), load_state(output / STATE)
    assert checkpoint.warnings == () and checkpoint.head == "mtp"
    trained = {**state["joint"]["params"], **state["distil"]["head"]}
    stored = as_stored(MICRO, trained, list(trained))
    for name, want in stored.items():
        item = checkpoint[name]
        assert torch.equal(item.data if name.endswith("tid2eid") else item.dequantise(), want), name
    moved = [n for n in state["distil"]["head"] if not torch.equal(trained[n], state["joint"]["params"][n])]
    assert len(moved) > 30
    with outrider.load(str(output), draft="mtp", draft_length=2) as engine:
        assert engine.generate("def name", max_tokens=4, temperature=0.0).token_ids


def test_simulated_forward_is_what_the_engine_computes(finished: tuple[Path, list[Progress]]) -> None:
    """Row by row and short, so that no tie of a rounding can flip far from where it starts."""
    output, _ = finished
    state = load_state(output / STATE)
    trained = {**state["joint"]["params"], **state["distil"]["head"]}
    context = Context(MICRO, as_stored(MICRO, trained, list(trained)), simulate=True)
    ids = [5, 77, 130, 42, 42, 17, 200, 3, 99]
    with torch.no_grad(), outrider.load(str(output), draft="mtp") as engine:
        streams = trunk(context, torch.tensor([ids]))
        near(logits(context, streams)[0], engine.score(ids))
        drafted = draft(context, streams[:, :-1], torch.tensor([ids[1:]]))
        near(logits(context, drafted, MTP)[0], engine.draft_logits(ids))


def near(found: Tensor, expected: Tensor) -> None:
    rows = (found - expected).abs().amax(-1)
    assert (rows < 1e-3).float().mean() >= 0.5 and rows.median() < 1e-3 and rows.max() < 0.5, rows


@pytest.mark.parametrize(("phase", "step"), (("joint", 3), ("distil", 1)))
def test_resumed_run_equals_an_uninterrupted_one(
    phase: str, step: int, sources: Path, tmp_path: Path, finished: tuple[Path, list[Progress]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    module = f"outrider.tune.{'trainer' if phase == 'joint' else 'distill'}"
    monkeypatch.setattr(f"{module}.SAVE_SECONDS", -1.0)
    monkeypatch.setattr(f"{module}.REPORT_EVERY", 1)

    def cut(progress: Progress) -> None:
        if (progress.phase, progress.step) == (phase, step + 1):
            raise Interrupted

    with pytest.raises(Interrupted):
        train(tmp_path, recipe=RECIPE, data=sources, progress=cut)
    saved = load_state(tmp_path / STATE)
    assert saved[phase]["step"] == step
    assert not (tmp_path / "model.safetensors").exists()
    train(tmp_path, recipe=RECIPE, data=sources, resume=True)
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / name).read_bytes() == (finished[0] / name).read_bytes(), name
    begun = [json.loads((folder / "training.json").read_text())["distil"][0] for folder in (tmp_path, finished[0])]
    assert begun[0] == begun[1] and begun[0]["step"] == 0
    assert len([x for x in json.loads((tmp_path / "training.json").read_text())["distil"] if x["step"] == 0]) == 1


def test_runs_are_kept_apart(sources: Path, finished: tuple[Path, list[Progress]], tmp_path: Path) -> None:
    output, _ = finished
    with pytest.raises(ConfigError, match="lies in"):
        train(output, recipe=RECIPE, data=sources)
    with pytest.raises(ConfigError, match="there is no training state"):
        train(tmp_path, recipe=RECIPE, data=sources, resume=True)
    with pytest.raises(ConfigError, match="begun with another seed"):
        train(output, recipe=RECIPE, data=sources, resume=True, seed=1)
    with pytest.raises(ConfigError, match="begun with another recipe"):
        train(output, recipe=RECIPE.with_steps(7), data=sources, resume=True)
    (tmp_path / STATE).write_bytes(b"not a state")
    with pytest.raises(ConfigError, match="can't be read"):
        train(tmp_path, recipe=RECIPE, data=sources, resume=True)


def test_recipe_scales_both_phases() -> None:
    recipe = Recipe().with_steps(Recipe().joint.steps // 10)
    assert recipe.distil.steps == Recipe().distil.steps // 10
    assert Recipe().with_steps(1).distil.steps == 1
    with pytest.raises(ConfigError, match="steps is 0"):
        Recipe().with_steps(0)


def test_the_quiet_callback_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    run_module.quiet(Progress("joint", 1, 1, {}, 1.0, 0.0))
    assert capsys.readouterr().out == ""
