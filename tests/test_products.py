"""Products with constant weights: the same numbers as the plain one, on every path."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from orpheus_serving import products
from orpheus_serving.products import int8_product, one_by_one, product, quantise, rows_are_alike


@pytest.fixture(params=["packed", "plain"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With torch's fast operators (where it has them) and without."""
    if request.param == "plain":
        monkeypatch.setattr(products, "_has_packed", lambda: False)
        monkeypatch.setattr(products, "_has_int8", lambda: False)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("shape", [(1, 48), (3, 48), (2, 5, 48)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("biased", [False, True])
def test_product_is_linear(shape: tuple[int, ...], dtype: torch.dtype, biased: bool) -> None:
    weight, x = torch.randn(40, 48).to(dtype), torch.randn(shape).to(dtype)
    bias = torch.randn(40).to(dtype) if biased else None
    torch.testing.assert_close(product(weight, bias)(x), F.linear(x, weight, bias))


@pytest.mark.usefixtures("path")
def test_int8_errs_by_no_more_than_its_step() -> None:
    torch.manual_seed(1)
    weight, x = torch.randn(64, 96) * torch.logspace(-3, 3, 64)[:, None], torch.randn(7, 96)
    error = (int8_product(*quantise(weight))(x) - F.linear(x, weight)).abs()
    step = weight.abs().amax(1) / 127
    rounding = F.linear(x, weight).abs() * 2**-7 + x.abs().sum(1, keepdim=True) * weight.abs().amax(1) * 2**-8  # of x and y
    assert (error <= 0.5 * step * x.abs().sum(1, keepdim=True) + rounding).all()
    assert (error.mean(0) / F.linear(x, weight).abs().mean(0)).max() < 0.05


@pytest.mark.usefixtures("path")
def test_int8_of_nothing_is_nothing() -> None:
    assert torch.equal(int8_product(*quantise(torch.zeros(32, 32)))(torch.randn(2, 32)), torch.zeros(2, 32))


def test_rows_are_alike_notices_place_and_company() -> None:
    weight = torch.randn(32, 16)
    plain = lambda x: (x.double() @ weight.double().T).float()  # noqa: E731
    assert rows_are_alike(one_by_one(plain), 16, 8)
    assert not rows_are_alike(lambda x: plain(x) * (1 + torch.arange(len(x))[:, None] * 1e-6), 16, 8)
    assert not rows_are_alike(lambda x: plain(x) * (1 + len(x) * 1e-6), 16, 8)
