"""The joint loss: next token, the draft head's token after next, and the indexers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider.tune.context import Context, Tally
from outrider.tune.forward import MTP, draft, head_input, trunk
from outrider.tune.grad.heads import head_loss

MTP_WEIGHT = 0.3
INDEX_WEIGHT = 0.3


@dataclass(frozen=True)
class JointLoss:
    """``total`` is differentiable; the parts are detached."""

    total: Tensor
    main: Tensor
    mtp: Tensor
    index: Tensor


def joint_loss(context: Context, windows: Tensor, tally: Tally) -> JointLoss:
    """Windows of token ids ``[B, T+2]``: the trunk reads the first T, slot i of the head streams i and token i+1."""
    ids, following, after = windows[:, :-2], windows[:, 1:-1], windows[:, 2:]
    streams = trunk(context, ids, tally)
    main = token_loss(context, streams, following)
    mtp = token_loss(context, draft(context, streams, following, tally), after, MTP)
    index = torch.stack(tally.index_losses).mean() if tally.index_losses else torch.zeros(())
    total = main + MTP_WEIGHT * mtp + INDEX_WEIGHT * index
    return JointLoss(total, main.detach(), mtp.detach(), index.detach())


def token_loss(context: Context, streams: Tensor, targets: Tensor, prefix: str = "") -> Tensor:
    """Mean cross-entropy of the predictions from streams ``[B, T, S, d]`` against targets ``[B, T]``."""
    x = head_input(context, streams, prefix).flatten(0, 1)
    return head_loss(x, context.params["head.weight"], targets.flatten(), context.compute)
