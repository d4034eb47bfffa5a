"""Which terms the kernel set "torch" and the differentiable API compute by themselves."""

from __future__ import annotations

from typing import Any

import pytest

from dispatch_cases import (
    IMPLEMENTATIONS,
    POINTS,
    Renamed,
    Spread,
    check_as_reference,
    check_inference,
    check_registered,
    every_override,
    field_with,
    named,
    own_registry,
)

torch = pytest.importorskip("torch", reason="torch is not installed")

import proxfield as pf  # noqa: E402
import proxfield.torch as pt  # noqa: E402
from proxfield.errors import UnsupportedError  # noqa: E402

__all__ = ["own_registry"]  # a fixture


def unknown(program: Any) -> list[pf.Term]:
    """Terms that are computed on the host."""
    return list(program.field.unknown)


@every_override
def test_an_override_is_called_not_ours(kind: type[pf.Gaussian]) -> None:
    assert unknown(check_as_reference(field_with(kind(POINTS, 1.3)), "torch"))
    with pytest.raises(UnsupportedError, match="no derivatives through"):
        pt.infer(field_with(kind(POINTS, 1.3)), max_iters=1)


def test_a_subclass_that_overrides_nothing_is_ours() -> None:
    field = field_with(Renamed(POINTS, 1.3))
    assert not unknown(check_as_reference(field, "torch"))
    pt.infer(field, max_iters=1)


def test_terms_over_a_lattice_stay_on_the_host() -> None:
    field = field_with(Renamed(POINTS, 1.3, filter="lattice"))
    assert unknown(check_as_reference(field, "torch"))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_registered_for_torch(dtype: str) -> None:
    check_registered("torch", dtype)


def test_inference_with_a_registered_implementation() -> None:
    check_inference("torch")


def test_derivatives_through_a_registered_implementation() -> None:
    pf.register(Spread, "torch", IMPLEMENTATIONS["torch"])
    field = field_with(Spread(), 4)
    more = torch.randn((1, field.layout.size), dtype=torch.float64, requires_grad=True)

    def marginals(unary: Any) -> Any:
        return pt.infer(field, unary, "fixed", step=0.5, max_iters=4)

    assert torch.autograd.gradcheck(marginals, (more,))


def test_terms_without_an_implementation() -> None:
    for term in (Spread(), named("Consistency", Spread)(), named("Gaussian", Spread)()):
        field = field_with(term, 5)
        assert unknown(check_as_reference(field, "torch"))
        with pytest.raises(UnsupportedError, match=type(term).__name__):
            pt.infer(field, max_iters=1)
