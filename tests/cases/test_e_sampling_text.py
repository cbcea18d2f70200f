"""Case E3, the sampler's part: one idea of "greedy", and mixed batches."""

from __future__ import annotations

import math

import pytest
import torch

from outrider.core import Sampling
from outrider.sampling.pick import pick
from outrider.sampling.shape import shape

TEMPERATURES = (0.0, 1e-6, 0.7, None)
SAMPLINGS = [Sampling(temperature=t) for t in TEMPERATURES]


def rows(scale: float) -> torch.Tensor:
    return torch.randn(4, 97, generator=torch.Generator().manual_seed(4)) * scale


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e30])
def test_e3_greedy_and_sampled_rows_in_one_batch(scale: float) -> None:
    logits = rows(scale)
    chosen = pick(logits, SAMPLINGS, [5, 6, 7, 8], [0, 1, 2, 3])
    best = [row.index(max(row)) for row in logits.tolist()]
    assert [chosen[r] for r in (0, 1, 3)] == [best[r] for r in (0, 1, 3)]
    assert 0 <= chosen[2] < 97
    assert not shape(logits, SAMPLINGS).isnan().any()
    alone = [pick(logits[r : r + 1], [SAMPLINGS[r]], [5 + r], [r])[0] for r in range(4)]
    assert alone == chosen == pick(logits, SAMPLINGS, [5, 6, 7, 8], [0, 1, 2, 3])


def test_e3_greedy_draws_no_noise_below_the_one_threshold() -> None:
    logits = torch.zeros(2, 50)
    logits[:, 20] = 1e-9
    greedy, sampled = Sampling(temperature=math.nextafter(1e-5, 0.0)), Sampling(temperature=1e-5)
    assert greedy.greedy and not sampled.greedy
    picks = {seed: pick(logits, [greedy, sampled], [seed] * 2, [0, 0]) for seed in range(20)}
    assert {chosen[0] for chosen in picks.values()} == {20}
    assert len({chosen[1] for chosen in picks.values()}) > 5
