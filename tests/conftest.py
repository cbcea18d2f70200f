"""What every test runs under: one torch thread, and property tests that draw the same examples each time."""

from __future__ import annotations

import hypothesis
import torch

# Thread counts must not matter to a result, and on a shared machine one thread is the fastest for tiny models.
torch.set_num_threads(1)

hypothesis.settings.register_profile("quick", deadline=None, derandomize=True, max_examples=25, print_blob=True)
hypothesis.settings.register_profile("slow", deadline=None, derandomize=True, max_examples=500, print_blob=True)
hypothesis.settings.load_profile("quick")
