"""The coupled pick: exact against float64, distributed as softmax, greedy where asked, each row for itself."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from outrider.core import Sampling
from outrider.sampling import pick as module
from outrider.sampling.noise import Purpose, gumbel64
from outrider.sampling.pick import NO_TOKEN, pick
from outrider.sampling.shape import shape
from tests.sampling.test_shape import MIXED

SAMPLED = Sampling(temperature=1.0)
GREEDY = Sampling(temperature=0.0)
INF = math.inf


def exact_pick(logits: torch.Tensor, sampling: Sampling, seed: int, position: int, sample: int = 0) -> int:
    """All noise, all in float64; no two scores are equal here."""
    (shaped,) = shape(logits[None], [sampling])
    noise = gumbel64(seed, sample, position, Purpose.TARGET, torch.arange(len(logits)))
    return int((shaped.double() + noise).argmax())


def random_rows(rows: int, vocab: int, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(vocab)) * spread


@pytest.mark.parametrize("vocab", [1, 2, 5, 64, 1027])
@pytest.mark.parametrize("sampling", [s for s in MIXED if not s.greedy], ids=str)
def test_it_is_the_argmax_over_all_ids_in_float64(vocab: int, sampling: Sampling) -> None:
    logits = random_rows(40, vocab)
    seeds, positions, samples = [r * 977 for r in range(40)], [r * r for r in range(40)], [r % 3 for r in range(40)]
    expected = [exact_pick(logits[r], sampling, seeds[r], positions[r], samples[r]) for r in range(40)]
    assert pick(logits, [sampling] * 40, seeds, positions, samples) == expected


@pytest.mark.parametrize("spread", [0.0, 1e-3, 10.0, 40.0, 1e4])
def test_it_is_exact_for_flat_and_for_steep_rows(spread: float) -> None:
    logits = random_rows(30, 300, spread)
    expected = [exact_pick(logits[r], SAMPLED, 3, r) for r in range(30)]
    assert pick(logits, [SAMPLED] * 30, [3] * 30, list(range(30))) == expected


def test_near_ties_are_settled_in_float64() -> None:
    """Logits chosen so that the perturbed scores of many ids agree to within float32 rounding."""
    for position in range(60):
        noise = gumbel64(5, 0, position, Purpose.TARGET, torch.arange(64))
        logits = (noise.max() - noise).float()
        assert pick(logits[None], [SAMPLED], [5], [position]) == [exact_pick(logits, SAMPLED, 5, position)]


def test_an_unlikely_id_still_wins_with_the_largest_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that could win is left out: the best word for id 6, the worst for all others, 26 nats apart."""
    worst_but_one = torch.zeros(2, 4, dtype=torch.int64)
    worst_but_one[1, 2] = 2**32 - 1
    monkeypatch.setattr(module, "words", lambda keys, blocks: worst_but_one[blocks])
    for gap, winner in ((-26.0, 6), (-26.01, 0)):
        logits = torch.full((1, 8), -INF)
        logits[0, 0], logits[0, 6] = 0.0, gap
        assert pick(logits, [SAMPLED], [1], [1]) == [winner]


def test_equal_scores_go_to_the_lowest_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "words", lambda keys, blocks: torch.full((len(blocks), 4), 12345))
    logits = torch.zeros(2, 11)
    logits[0, 3] = logits[0, 9] = logits[1, 7] = logits[1, 10] = 2.0
    assert pick(logits, [SAMPLED] * 2, [1, 2], [3, 4]) == [3, 7]


def test_greedy_takes_the_lowest_id_of_the_largest_logit() -> None:
    for vocab in (1, 7, 64, 3001):
        logits = random_rows(20, vocab).round()
        expected = [row.index(max(row)) for row in logits.tolist()]
        assert pick(logits, [GREEDY] * 20, [0] * 20, [0] * 20) == expected


def test_a_row_is_picked_alike_alone_and_anywhere_in_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = len(MIXED) * 5
    logits, samplings = random_rows(rows, 129), MIXED * 5
    seeds, positions = [r // 3 for r in range(rows)], [r * 7 for r in range(rows)]
    together = pick(logits, samplings, seeds, positions)
    alone = [pick(logits[r : r + 1], [samplings[r]], [seeds[r]], [positions[r]])[0] for r in range(rows)]
    assert alone == together
    monkeypatch.setattr(module, "_ENTRIES_AT_ONCE", 129 * 4)
    backwards = pick(logits.flip(0), samplings[::-1], seeds[::-1], positions[::-1])
    assert backwards[::-1] == together


def test_rows_without_a_distribution_give_no_token_and_leave_others_alone() -> None:
    logits = random_rows(8, 33)
    samplings = [SAMPLED, GREEDY] * 4
    clean = pick(logits, samplings, [1] * 8, list(range(8)))
    logits[0, 5] = logits[1, 32] = math.nan
    logits[2, 0] = logits[3, 7] = INF
    logits[4] = logits[5] = -INF
    assert pick(logits, samplings, [1] * 8, list(range(8))) == [NO_TOKEN] * 6 + clean[6:]


def test_masked_ids_are_never_picked_and_one_left_always_is() -> None:
    logits = torch.full((50, 40), -INF)
    logits[:, 17] = -1e30
    assert set(
        pick(
            logits,
            [replace(SAMPLED, temperature=t) for t in (0.0, 0.01, 1.0, 1e6, None)] * 10,
            list(range(50)),
            [0] * 50,
        )
    ) == {17}


def test_a_vocabulary_limit_restricts_the_choice() -> None:
    logits = random_rows(30, 100)
    logits[:, 60:] += 50.0
    logits[5, 99] = math.nan
    arguments = [SAMPLED, GREEDY] * 15, list(range(30)), list(range(30))
    assert pick(logits, *arguments, vocab_limit=60) == pick(logits[:, :60].clone(), *arguments)
    assert pick(logits, *arguments, vocab_limit=1000) == pick(logits, *arguments)


def test_no_rows_give_no_tokens() -> None:
    assert pick(torch.zeros(0, 10), [], [], []) == []


def test_the_same_noise_at_a_position_couples_two_distributions() -> None:
    """Acceptance of a coupled draft is at least (1 - TV) / (1 + TV)."""
    logits = random_rows(2, 12, 1.0)
    target, draft = logits[0], logits[0] * 0.8 + logits[1] * 0.3
    distance = (torch.softmax(target, 0) - torch.softmax(draft, 0)).abs().sum().item() / 2
    many, where = [SAMPLED] * 4000, list(range(4000))
    picks = [pick(row.expand(4000, -1), many, [9] * 4000, where) for row in (target, draft)]
    agreed = sum(a == b for a, b in zip(*picks, strict=True)) / 4000
    assert agreed >= (1 - distance) / (1 + distance) - 0.03


def chi_square(picks: list[int], chance: torch.Tensor) -> tuple[float, float]:
    """The statistic, and a bound that it passes once in about a million times if the picks are as they should be."""
    counts = torch.bincount(torch.tensor(picks), minlength=len(chance)).double()
    assert counts[chance == 0].sum() == 0
    expected = chance[chance > 0] * len(picks)
    statistic = ((counts[chance > 0] - expected) ** 2 / expected).sum().item()
    free = max(len(expected) - 1, 1)
    return statistic, free * (1 - 2 / (9 * free) + 4.75 * math.sqrt(2 / (9 * free))) ** 3


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("cuts", [{}, {"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.15}, {"top_k": 6, "top_p": 0.9}])
def test_picks_are_distributed_as_softmax(temperature: float, cuts: dict[str, float]) -> None:
    sampling = Sampling(temperature=temperature, **cuts)  # type: ignore[arg-type]
    logits = torch.tensor([0.3, -0.6, 1.1, 0.9, -1.2, 0.0, 0.55, -0.4])
    chance = torch.softmax(shape(logits[None], [sampling])[0].double(), 0)
    many = 2000
    picks = pick(logits.expand(many, -1), [sampling] * many, [17] * many, list(range(many)))
    statistic, bound = chi_square(picks, chance)
    assert statistic < bound


@pytest.mark.parametrize("vary", ["seed", "position", "sample"])
def test_neighbouring_picks_are_independent(vary: str) -> None:
    many = 6000
    count, same = list(range(many)), [1] * many
    values = {name: count if name == vary else same for name in ("seed", "position", "sample")}
    picks = pick(torch.zeros(many, 4), [SAMPLED] * many, values["seed"], values["position"], values["sample"])
    pairs = [a * 4 + b for a, b in zip(picks[::2], picks[1::2], strict=True)]
    statistic, bound = chi_square(pairs, torch.full((16,), 1 / 16, dtype=torch.float64))
    assert statistic < bound
