"""Differentiable pieces whose backward pass is written by hand, because autograd's own keeps or writes far too much.

Each is a pure function of tensors; ``compute`` is the dtype that matrix products take their inputs in (float32, or
bfloat16 for speed: results are widened again, so that sums over layers stay in the tensors' own dtype).
Everything kept for the backward pass goes through ``save_for_backward``: a tensor kept as an attribute of ``ctx`` that
is also an output makes a cycle that is never freed.
"""

from __future__ import annotations

from torch import Tensor

Grads = tuple[Tensor | None, ...]
