"""What a training run is made of: one frozen record a phase, with the values that made ``models/tiny`` as defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from outrider.config.model import ModelConfig
from outrider.errors import ConfigError
from outrider.tune.initial import TINY
from outrider.tune.optim import Rates


@dataclass(frozen=True)
class JointSettings:
    """Trunk and draft head together, from scratch."""

    steps: int = 1050
    batch: int = 8
    length: int = 512
    rates: Rates = field(default_factory=Rates)
    warm_up: int = 40
    constant_until: float = 0.4
    dense_until: float = 0.4
    """Part of the steps in which CSA queries see every entry while the indexer learns from that attention."""
    quantised_from: float = 0.75
    """Part of the steps after which the forward sees the weights as they will be stored (FP4 experts, FP8)."""
    balance: float = 0.01
    """Step of the router's biases against uneven load."""
    evaluate_every: int = 100
    evaluate_windows: int = 16


@dataclass(frozen=True)
class DistilSettings:
    """The draft head alone, against the frozen trunk's distributions, over a draft round of three steps."""

    steps: int = 480
    corpus_windows: int = 8
    own_windows: int = 4
    """Windows a step of the trunk's own text. With ``corpus_windows`` an even number, since two threads share them."""
    length: int = 256
    weights: tuple[float, ...] = (1.0, 0.8, 0.6)
    """One a step of the round; how many there are is the length of the round."""
    rates: Rates = field(default_factory=lambda: Rates(muon=0.006, other=1e-3))
    warm_up: int = 10
    constant_until: float = 0.4
    own_texts: int = 256
    prompt: int = 64
    """Tokens of training text that the trunk continues; half of the texts greedily, half at ``temperature``."""
    temperature: float = 0.8
    evaluate_windows: int = 16
    measured_windows: int = 64
    """Held-out windows that the finished model is measured on."""


@dataclass(frozen=True)
class Recipe:
    """A whole run: the model's shape and both phases."""

    config: ModelConfig = TINY
    joint: JointSettings = field(default_factory=JointSettings)
    distil: DistilSettings = field(default_factory=DistilSettings)

    def with_steps(self, steps: int) -> Recipe:
        """The same recipe with ``steps`` joint steps and distillation steps in proportion (at least one).

        Raises ConfigError for less than one step.
        """
        if steps < 1:
            raise ConfigError(f"steps is {steps}; at least 1 was expected.", key="steps")
        distil = max(1, round(self.distil.steps * steps / self.joint.steps))
        return replace(self, joint=replace(self.joint, steps=steps), distil=replace(self.distil, steps=distil))


@dataclass(frozen=True)
class Progress:
    """What the callback of a run is told, every few steps. ``held_out`` only where it was just measured."""

    phase: str
    step: int
    steps: int
    losses: dict[str, float]
    tokens_per_second: float
    seconds_left: float
    held_out: dict[str, float] | None = None


Callback = Callable[[Progress], None]
