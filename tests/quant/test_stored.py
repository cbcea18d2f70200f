from __future__ import annotations

import pytest
import torch

from outrider.errors import CheckpointError
from outrider.quant import fp4, fp8
from outrider.quant.stored import Format, Stored


def test_b5_the_format_is_the_tensors_own() -> None:
    """A body in FP8 and FP4 beside a head in bf16: each dequantises by what it is stored in."""
    w = torch.randn(130, 64)
    plain = Stored("mtp.0.e_proj.weight", w.bfloat16())
    body = Stored("layers.0.attn.wkv.weight", *fp8.quantise_weight(w), "fp8")
    expert = Stored("layers.0.ffn.experts.0.w1.weight", *fp4.quantise_weight(w), "fp4")
    for stored, error in ((plain, 0.02), (body, 0.3), (expert, 1.0)):
        assert stored.shape == (130, 64)
        assert stored.dequantise().dtype == torch.float32
        assert (stored.dequantise() - w).abs().max() < error
    assert torch.equal(plain.dequantise(), w.bfloat16().float())
    assert torch.equal(body.dequantise(), fp8.dequantise_weight(*fp8.quantise_weight(w)))
    assert torch.equal(expert.dequantise(), fp4.dequantise_weight(*fp4.quantise_weight(w)))


def test_plain_tensors_of_any_rank_and_dtype() -> None:
    assert Stored("norm.weight", torch.ones(7, dtype=torch.bfloat16)).shape == (7,)
    table = Stored("tid2eid", torch.arange(6).view(3, 2))
    assert table.shape == (3, 2)


def test_a_stored_tensor_is_frozen() -> None:
    stored = Stored("norm.weight", torch.ones(7))
    with pytest.raises(AttributeError):
        stored.name = "other"  # type: ignore[misc]


Q = torch.ones(130, 64).to(torch.float8_e4m3fn)
PACKED = torch.zeros(4, 32, dtype=torch.int8)


@pytest.mark.parametrize(
    ("data", "scale", "kind", "what"),
    [
        (torch.ones(2, 2), torch.ones(1, 1), "plain", "has scales"),
        (Q, None, "fp8", "no scales"),
        (PACKED, None, "fp4", "no scales"),
        (Q, torch.ones(1, 1), "fp8", r"scales \(1, 1\) where \(2, 1\) was expected"),
        (PACKED, torch.ones(4, 1), "fp4", r"scales \(4, 1\) where \(4, 2\) was expected"),
        (torch.ones(130, 64), torch.ones(2, 1), "fp8", "float32"),
        (Q, torch.ones(130, 4), "fp4", "float8_e4m3fn"),
        (Q[0], torch.ones(1), "fp8", "1 dims"),
    ],
)
def test_data_and_scale_that_do_not_fit_are_refused(
    data: torch.Tensor, scale: torch.Tensor | None, kind: Format, what: str
) -> None:
    with pytest.raises(CheckpointError, match=what) as error:
        Stored("some.weight", data, scale, kind)
    assert error.value.tensor == "some.weight"
    assert "some.weight" in str(error.value)
