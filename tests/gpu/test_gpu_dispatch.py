"""Which terms run on the device: in Triton's interpreter where there is none."""

from __future__ import annotations

from typing import Any

import pytest
from triton_setup import direct, indirect, run_interpreted

import proxfield as pf
from dispatch_cases import (
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

__all__ = ["own_registry"]  # a fixture


@indirect
def test_interpreted() -> None:
    run_interpreted(__file__)


def made(program: Any) -> str:
    """The class of the field's only term on the device."""
    (term,) = program.batch.terms
    return type(term).__name__


@direct
@every_override
def test_an_override_is_called_not_our_kernels(kind: type[pf.Gaussian]) -> None:
    program = check_as_reference(field_with(kind(POINTS, 1.3)), "cuda")
    assert made(program) == "HostTerm"


@direct
def test_a_subclass_that_overrides_nothing_has_our_kernels() -> None:
    assert made(check_as_reference(field_with(Renamed(POINTS, 1.3)), "cuda")) == "GaussianOnDevice"
    segments = named("Regions", pf.Consistency)([0, 0, 1, 1, 1])
    assert made(check_as_reference(field_with(segments, 5), "cuda")) == "ConsistencyOnDevice"


@direct
@pytest.mark.parametrize("name", ["Consistency", "Gaussian", "Cooccurrence", "Spread"])
def test_a_class_of_the_same_name_is_not_ours(name: str) -> None:
    assert made(check_as_reference(field_with(named(name, Spread)(), 5), "cuda")) == "HostTerm"


@direct
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_registered_for_cuda(dtype: str) -> None:
    check_registered("cuda", dtype)


@direct
def test_inference_with_a_registered_implementation() -> None:
    check_inference("cuda")
