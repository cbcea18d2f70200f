"""Every reference primitive under one name: what the blocks of this folder are composed of.

All take and give float32 and are row-invariant bit for bit: a row's result doesn't depend on how many rows are in the
call, on their order, on its neighbours or on the number of threads (design promise 1).
"""

from __future__ import annotations

from outrider.ops.reference.attend import LANES, attend
from outrider.ops.reference.hyper_split import hyper_split
from outrider.ops.reference.numerics import (
    TILE,
    activation,
    hadamard,
    linear,
    rms_norm,
    sigmoid,
    silu,
    softmax_over,
    softplus,
    top_k_by_rule,
    tree_sum,
)
from outrider.ops.reference.rope import apply_rope, inverse_frequencies, rope_angles

__all__ = [
    "LANES",
    "TILE",
    "activation",
    "apply_rope",
    "attend",
    "hadamard",
    "hyper_split",
    "inverse_frequencies",
    "linear",
    "rms_norm",
    "rope_angles",
    "sigmoid",
    "silu",
    "softmax_over",
    "softplus",
    "top_k_by_rule",
    "tree_sum",
]
