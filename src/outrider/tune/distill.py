"""The second phase: the draft head learns the frozen trunk's own distributions, over a whole draft round.

The trunk is what the checkpoint will hold (quantised), so the head learns the model that will judge it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outrider.config.model import ModelConfig
from outrider.tune.chain import unroll
from outrider.tune.context import Context, Params
from outrider.tune.data import batch_windows, spaced_windows
from outrider.tune.forward import MTP, head_input, logits, trunk
from outrider.tune.grad.heads import head_divergence
from outrider.tune.optim import Optimiser, Schedule
from outrider.tune.owntext import own_text
from outrider.tune.settings import Callback, DistilSettings, Progress
from outrider.tune.shards import SHARDS, Shards
from outrider.tune.state import save_state
from outrider.tune.stored import as_stored
from outrider.tune.trainer import REPORT_EVERY, SAVE_SECONDS, trained_names

OWN_TEXT_KEY = 1
"""Tells the random numbers of own text from those of the joint phase under one seed."""


@dataclass
class DistilState:
    """All that changes in this phase: the head's parameters, its optimiser and the next step's number; and the texts
    that the trunk wrote at its beginning."""

    head: dict[str, Tensor]
    optimiser: Optimiser
    own: Tensor
    step: int = 0
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Tensors and plain numbers only, for ``save_state``."""
        return {
            "head": self.head, "optimiser": self.optimiser.state_dict(), "own": self.own, "step": self.step,
            "seconds": self.seconds, "history": self.history,
        }  # fmt: skip

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from what ``to_dict`` gave."""
        for name, value in saved["head"].items():
            self.head[name].copy_(value)
        self.optimiser.load_state_dict(saved["optimiser"])
        self.own = saved["own"]
        self.step, self.seconds, self.history = saved["step"], saved["seconds"], list(saved["history"])


def head_names(params: Params) -> list[str]:
    """The head's own parameters that gradients drive."""
    return [name for name in trained_names(params) if name.startswith(MTP)]


def begin(params: Params, settings: DistilSettings) -> DistilState:
    """A fresh state from the joint phase's parameters; own text is still to be written."""
    head = {name: params[name].detach().clone() for name in head_names(params)}
    return DistilState(head, Optimiser(head, settings.rates), torch.empty(0, 0, dtype=torch.int64))


class Distiller:
    """Runs the phase. ``frozen`` are all parameters as stored; the state's head stands in for its own."""

    def __init__(
        self, config: ModelConfig, settings: DistilSettings, frozen: Params, state: DistilState, stream: np.ndarray,
        held_out: np.ndarray, seed: int,
    ) -> None:  # fmt: skip
        self.config, self.settings, self.frozen, self.state, self.seed = config, settings, frozen, state, seed
        self.stream, self.held_out = stream, held_out
        self.names = list(state.head)
        self.schedule = Schedule(settings.steps, settings.warm_up, settings.constant_until)

    def run(self, save_to: Path, extra: dict[str, Any], progress: Callback) -> None:
        """Write the own text if there is none yet, then run the steps that are left."""
        if not self.state.own.numel():
            self.state.own = self.write_own_text()
            self.state.history.append({"step": 0.0, "seconds": 0.0, **self.evaluate()})
            save_state(save_to, {**extra, "distil": self.state.to_dict()})
        saved = begun = time.monotonic()
        before, first = self.state.seconds, self.state.step
        with Shards() as shards:
            while self.state.step < self.settings.steps:
                losses = self.step(shards)
                elapsed = time.monotonic() - begun
                self.state.seconds = before + elapsed
                self._report(losses, elapsed / (self.state.step - first), progress)
                if time.monotonic() - saved > SAVE_SECONDS:
                    save_state(save_to, {**extra, "distil": self.state.to_dict()})
                    saved = time.monotonic()
        save_state(save_to, {**extra, "distil": self.state.to_dict()})

    def write_own_text(self) -> Tensor:
        """``[own_texts, length + 3]`` token ids: the trunk's continuations of training text."""
        settings, count = self.settings, self.settings.own_texts
        prompts = batch_windows(self.stream, settings.prompt, count, self.seed + OWN_TEXT_KEY, 0)
        temperature = torch.where(torch.arange(count) % 2 == 0, 0.0, settings.temperature)
        context = Context(self.config, self.frozen, compute=torch.bfloat16)
        length = settings.length + len(settings.weights)
        parts = []
        for index, (part, heat) in enumerate(zip(prompts.split(64), temperature.split(64), strict=True)):
            generator = torch.Generator().manual_seed(self.seed * 1000 + index)
            parts.append(own_text(context, part, length, heat, generator))
        return torch.cat(parts)

    def step(self, shards: Shards) -> dict[str, Tensor]:
        """One optimiser step; the state's step number moves on. Returns the mean divergence at each place."""
        state = self.state
        leaves = {n: v.requires_grad_() for n, v in as_stored(self.config, state.head, self.names).items()}
        result = shards.gradients(self._work, {**self.frozen, **leaves}, self.names, self._batch())
        state.optimiser.step(state.head, result.grads, self.schedule.factor(state.step))
        state.step += 1
        return result.losses

    def _batch(self) -> Tensor:
        """Corpus and own windows ``[B, length + 3]``, the same mix in each shard."""
        settings, step = self.settings, self.state.step
        window = settings.length + len(settings.weights)
        corpus = batch_windows(self.stream, window, settings.corpus_windows, self.seed + OWN_TEXT_KEY, step)
        chosen = (torch.arange(settings.own_windows) + step * settings.own_windows) % self.state.own.shape[0]
        parts = zip(corpus.chunk(SHARDS), self.state.own[chosen].chunk(SHARDS), strict=True)
        return torch.cat([torch.cat(pair) for pair in parts])

    def _work(self, params: Params, windows: Tensor) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        context = Context(self.config, params, compute=torch.bfloat16)
        steps, length = len(self.settings.weights), self.settings.length
        with torch.no_grad():
            streams = trunk(context, windows)
            target = torch.softmax(logits(context, streams), -1)
        losses = []
        for place, drafted in enumerate(unroll(context, streams[:, :length], windows, steps), start=1):
            x = head_input(context, drafted, MTP).flatten(0, 1)
            wanted = target[:, place : place + length].flatten(0, 1)
            losses.append(head_divergence(x, params["head.weight"], wanted, context.compute))
        total = torch.stack([w * loss for w, loss in zip(self.settings.weights, losses, strict=True)]).sum()
        return total, {f"kl_{i}": loss.detach() for i, loss in enumerate(losses, start=1)}, {}

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """How often the head's best token is the trunk's, by place of the round, on held-out text (teacher-forced)."""
        settings, steps = self.settings, len(self.settings.weights)
        windows = spaced_windows(self.held_out, settings.length + steps, settings.evaluate_windows)
        params = {**self.frozen, **as_stored(self.config, self.state.head, self.names)}
        context = Context(self.config, params, compute=torch.bfloat16)
        right = torch.zeros(steps)
        for part in windows.split(4):
            streams = trunk(context, part)
            best = logits(context, streams).argmax(-1)
            for place, drafted in enumerate(unroll(context, streams[:, : settings.length], part, steps), start=1):
                drafts = logits(context, drafted, MTP).argmax(-1)
                right[place - 1] += (drafts == best[:, place : place + settings.length]).float().mean() * len(part)
        return {f"agreement_{i}": float(x) / len(windows) for i, x in enumerate(right, start=1)}

    def _report(self, losses: dict[str, Tensor], seconds_a_step: float, progress: Callback) -> None:
        step, settings = self.state.step, self.settings
        last = step == settings.steps
        if step % REPORT_EVERY and not last:
            return
        numbers = {name: float(value) for name, value in losses.items()}
        held_out = self.evaluate() if last else None
        self.state.history.append({"step": float(step), "seconds": self.state.seconds, **numbers, **(held_out or {})})
        tokens = (settings.corpus_windows + settings.own_windows) * settings.length
        left = (settings.steps - step) * seconds_a_step
        progress(Progress("distil", step, settings.steps, numbers, tokens / seconds_a_step, left, held_out))
