"""The joint phase: trunk and draft head from scratch."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outrider.config.model import ModelConfig
from outrider.tune.context import Context, Params, Tally
from outrider.tune.data import batch_windows, spaced_windows
from outrider.tune.losses import joint_loss
from outrider.tune.optim import Optimiser, Schedule
from outrider.tune.settings import Callback, JointSettings, Progress
from outrider.tune.shards import Shards
from outrider.tune.state import save_state
from outrider.tune.stored import as_stored

REPORT_EVERY = 10
SAVE_SECONDS = 180.0


@dataclass
class JointState:
    """All that changes in the joint phase; ``step`` is the next one to run."""

    params: dict[str, Tensor]
    optimiser: Optimiser
    step: int = 0
    seconds: float = 0.0
    history: list[dict[str, float]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Tensors and plain numbers only, for ``save_state``."""
        params = {name: value.detach() for name, value in self.params.items()}
        return {
            "params": params, "optimiser": self.optimiser.state_dict(), "step": self.step, "seconds": self.seconds,
            "history": self.history,
        }  # fmt: skip

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from what ``to_dict`` gave."""
        for name, value in saved["params"].items():
            self.params[name].data.copy_(value)
        self.optimiser.load_state_dict(saved["optimiser"])
        self.step, self.seconds, self.history = saved["step"], saved["seconds"], list(saved["history"])


def trained_names(params: Params) -> list[str]:
    """The parameters that gradients drive: not the router's biases and tables."""
    return [name for name, value in params.items() if value.is_floating_point() and not name.endswith("gate.bias")]


class JointTrainer:
    """Runs the joint phase over ``stream`` (uint16 token ids). A step is a pure function of the state, the seed and
    its number, so an interrupted run continues to the same parameters."""

    def __init__(
        self, config: ModelConfig, settings: JointSettings, state: JointState, stream: np.ndarray, held_out: np.ndarray,
        seed: int,
    ) -> None:  # fmt: skip
        self.config, self.settings, self.state, self.seed = config, settings, state, seed
        self.stream, self.held_out = stream, held_out
        self.names = trained_names(state.params)
        self.schedule = Schedule(settings.steps, settings.warm_up, settings.constant_until)

    def run(self, save_to: Path, extra: dict[str, Any], progress: Callback) -> None:
        """Run the steps that are left. The state (with ``extra`` beside it) is saved every few minutes
        and at the end."""
        saved = begun = time.monotonic()
        before, first = self.state.seconds, self.state.step
        with Shards() as shards:
            while self.state.step < self.settings.steps:
                losses = self.step(shards)
                elapsed = time.monotonic() - begun
                self.state.seconds = before + elapsed
                self._report(losses, elapsed / (self.state.step - first), progress)
                if time.monotonic() - saved > SAVE_SECONDS:
                    save_state(save_to, {**extra, "joint": self.state.to_dict()})
                    saved = time.monotonic()
        save_state(save_to, {**extra, "joint": self.state.to_dict()})

    def step(self, shards: Shards) -> dict[str, Tensor]:
        """One optimiser step; the state's step number moves on. Returns the mean losses."""
        state, settings = self.state, self.settings
        part = state.step / settings.steps
        window = settings.length + 2
        ids = batch_windows(self.stream, window, settings.batch, self.seed, state.step)
        params = self._seen(quantised=part >= settings.quantised_from)
        dense = part < settings.dense_until

        def work(params: Params, windows: Tensor) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
            tally = Tally()
            loss = joint_loss(Context(self.config, params, compute=torch.bfloat16, dense=dense), windows, tally)
            return loss.total, {"main": loss.main, "mtp": loss.mtp, "index": loss.index}, tally.loads

        result = shards.gradients(work, params, self.names, ids)
        factor = self.schedule.factor(state.step)
        state.optimiser.step({name: state.params[name] for name in self.names}, result.grads, factor)
        self._balance(result.loads, settings.balance * max(factor, 0.1))
        state.step += 1
        return result.losses

    def _seen(self, *, quantised: bool) -> dict[str, Tensor]:
        """Leaves for this step's forward: the parameters themselves, or as they will be stored."""
        params = self.state.params
        leaves = (
            as_stored(self.config, params, self.names)
            if quantised
            else {name: params[name].detach() for name in self.names}
        )
        return {**params, **{name: leaf.requires_grad_() for name, leaf in leaves.items()}}

    def _balance(self, loads: dict[str, Tensor], amount: float) -> None:
        """Raise the bias of experts below the mean load, lower it above."""
        for prefix, counts in loads.items():
            bias = self.state.params.get(prefix + "gate.bias")
            if bias is not None:
                bias.add_(torch.sign(1 - counts / counts.float().mean()), alpha=amount)

    def _report(self, losses: dict[str, Tensor], seconds_a_step: float, progress: Callback) -> None:
        step, settings = self.state.step, self.settings
        measured = step % settings.evaluate_every == 0 or step == settings.steps
        if not measured and step % REPORT_EVERY:
            return
        numbers = {name: float(value) for name, value in losses.items()}
        held_out = self.evaluate() if measured else None
        record = {"step": float(step), "seconds": self.state.seconds, **numbers}
        if held_out:
            record |= {"held_out_" + name: value for name, value in held_out.items()}
        self.state.history.append(record)
        tokens = settings.batch * settings.length
        left = (settings.steps - step) * seconds_a_step
        progress(Progress("joint", step, settings.steps, numbers, tokens / seconds_a_step, left, held_out))

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Losses over a few evenly spaced held-out windows, with the weights as a step would see them."""
        settings = self.settings
        windows = spaced_windows(self.held_out, settings.length + 2, settings.evaluate_windows)
        part = (self.state.step - 1) / settings.steps
        params = self._seen(quantised=part >= settings.quantised_from)
        context = Context(self.config, params, compute=torch.bfloat16, dense=part < settings.dense_until)
        losses = [joint_loss(context, piece, Tally()) for piece in windows.split(4)]
        count = len(losses)
        return {"main": sum(float(x.main) for x in losses) / count, "mtp": sum(float(x.mtp) for x in losses) / count}
