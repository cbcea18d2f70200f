"""How good the trained model is on text that it has never seen, computed as the checkpoint will compute."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from outrider.config.model import ModelConfig
from outrider.tune.context import Context, Params
from outrider.tune.data import spaced_windows
from outrider.tune.forward import MTP, draft, logits, trunk


@torch.no_grad()
def measure(config: ModelConfig, params: Params, stream: np.ndarray, length: int, count: int) -> dict[str, float]:
    """Losses (nats a token), perplexity and top-1 of the trunk and of the draft head over ``count`` windows, and how
    often head and trunk agree on the same token. ``params`` as stored; activations are simulated, products float32."""
    context = Context(config, params, simulate=config.quantised)
    totals = torch.zeros(5)
    for part in spaced_windows(stream, length + 2, count).split(2):
        totals += _counts(context, part)
    main, right, mtp, drafted, agreed = (totals / (count * length)).tolist()
    return {
        "loss": main, "perplexity": math.exp(main), "top_1": right, "mtp_loss": mtp, "mtp_top_1": drafted,
        "mtp_agrees": agreed,
    }  # fmt: skip


def _counts(context: Context, windows: Tensor) -> Tensor:
    """Sums over all positions of windows ``[B, T+2]``: trunk loss and hits, head loss, hits and agreements."""
    streams = trunk(context, windows[:, :-1])
    scores, following, after = logits(context, streams), windows[:, 1:-1], windows[:, 2:]
    drafted = logits(context, draft(context, streams[:, :-1], following), MTP)
    best, guess = scores.argmax(-1), drafted.argmax(-1)
    return torch.stack(
        [
            functional.cross_entropy(scores[:, :-1].flatten(0, 1), following.flatten(), reduction="sum"),
            (best[:, :-1] == following).sum(),
            functional.cross_entropy(drafted.flatten(0, 1), after.flatten(), reduction="sum"),
            (guess == after).sum(),
            (guess == best[:, 1:]).sum(),
        ]
    )
