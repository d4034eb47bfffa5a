"""Terms that a kernel set could mistake for ours, and one with implementations of its own."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

import proxfield as pf
from helpers import Array, random_marginals
from proxfield.core.engines import compile_program, terms
from proxfield.core.engines.base import Program
from proxfield.core.engines.reference import ReferenceProgram
from proxfield.core.terms.base import Ints, Layout

POINTS = np.random.default_rng(3).normal(size=(40, 2))
"""Features for the Gaussian terms."""


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    monkeypatch.setattr(terms, "_ENTRIES", dict(terms._ENTRIES))


class Spread(pf.Term):
    """E = weight · Σ_i Σ_l (l + 1) q_il², which isn't multilinear and can't be lowered."""

    name = "spread"

    def __init__(self, weight: float = 0.7) -> None:
        self.weight = weight

    def validate(self, layout: Layout) -> None: ...

    def labelling_energy(self, layout: Layout, labels: Ints) -> float:
        return self.weight * float((labels + 1).sum())

    def energy(self, layout: Layout, q: Array) -> float:
        return self.weight * float(((layout.label + 1) * np.float64(q) ** 2).sum())

    def add_gradient(self, layout: Layout, q: Array, out: Array) -> None:
        out += (2 * self.weight * (layout.label + 1) * q).astype(out.dtype)


class Renamed(pf.Gaussian):
    """Nothing overridden but what kernels never replace."""

    name = "renamed"

    def magnitude(self, layout: Layout) -> float:
        return 2 * super().magnitude(layout)


class Halved(pf.Gaussian):
    """Half of the energy: the gradient is overridden."""

    def add_gradient(self, layout: Layout, q: Array, out: Array) -> None:
        whole = np.zeros_like(out)
        super().add_gradient(layout, q, whole)
        out += 0.5 * whole


class HalfTheSums(pf.Gaussian):
    """Half of the energy: the operator in the gradient is overridden."""

    def operate(self, values: Array) -> Array:
        return 0.5 * super().operate(values)


class _HalvedByMixin:
    def add_gradient(self, layout: Layout, q: Array, out: Array) -> None:
        whole = np.zeros_like(out)
        super().add_gradient(layout, q, whole)  # type: ignore[misc]
        out += 0.5 * whole


class HalvedByMixin(_HalvedByMixin, pf.Gaussian):  # type: ignore[misc]
    """The override comes from a class that isn't a term."""


def named(name: str, base: type[pf.Term]) -> Any:
    """A class of the user's own under a name that one of ours has."""
    return type(name, (base,), {"__module__": __name__})


OVERRIDDEN: dict[str, type[pf.Gaussian]] = {
    "override": Halved,
    "override-in-our-name": named("Gaussian", Halved),
    "inherited-override": type("Again", (Halved,), {}),
    "override-by-a-mixin": HalvedByMixin,
    "override-of-the-operator": HalfTheSums,
}
"""Subclasses whose gradient isn't that of `Gaussian`."""


def field_with(term: pf.Term, n: int = len(POINTS)) -> pf.Field:
    """A field of three labels with this term and a unary one."""
    unary = pf.Unary(np.random.default_rng(5).normal(size=(n, 3)))
    return pf.Field(n, n_labels=3, terms=[unary, term])


def compiled(field: pf.Field, kernels: str, dtype: str = "float64") -> Program:
    return compile_program(field.lower(), kernels, dtype)


def marginals(field: pf.Field) -> Array:
    return random_marginals(field.layout, np.random.default_rng(1))


def check_as_reference(field: pf.Field, kernels: str, dtype: str = "float64") -> Program:
    """Gradient and F are those that the terms themselves give."""
    program = compiled(field, kernels, dtype)
    q = marginals(field)
    if kernels == "cuda":  # its filters are attached to copies of the terms
        reference = ReferenceProgram(program.lowered)
    else:
        reference = ReferenceProgram(field.lower())
    tol = 1e-6 if dtype == "float64" else 1e-4
    g, expected = (field.layout.center(p.gradient(q)) for p in (program, reference))
    np.testing.assert_allclose(g, expected, atol=tol)
    f = program.free_energy(program.start(q))
    assert f == pytest.approx(reference.free_energy(reference.start(q)), rel=tol, abs=tol)
    return program


# ---- implementations of a user's own, which count their calls ----


class Counted:
    """Implementations of `Spread`; ``calls`` counts what was asked of them."""

    calls: ClassVar[int] = 0


class OnCpu(Counted):
    def __init__(self, term: Spread, layout: Layout, dtype: str) -> None:
        self.w = (term.weight * (layout.label + 1)).astype(dtype)

    def add_gradient(self, q: Array, out: Array) -> float:
        Counted.calls += 1
        assert q.dtype == out.dtype == self.w.dtype
        out += 2 * self.w * q
        return float((self.w * q.astype(np.float64) ** 2).sum())


class OnDevice(Counted):
    def __init__(self, term: Spread, layout: Layout, dtype: str, device: Any) -> None:
        import torch

        w = torch.as_tensor(term.weight * (layout.label + 1))
        self.w = w.to(device, getattr(torch, dtype))

    def add_gradient(self, q: Any, out: Any) -> Any:
        Counted.calls += 1
        out += 2 * self.w * q
        return (self.w * q.double() ** 2).sum()


class InTorch(Counted):
    def __init__(self, term: Spread, layout: Layout, dtype: Any, device: Any) -> None:
        import torch

        most = int(layout.cardinalities.max())
        self.w = term.weight * torch.arange(1, most + 1, dtype=dtype, device=device)

    def gradient(self, q: Any) -> Any:
        Counted.calls += 1
        return 2 * self.w * q

    def energy(self, q: Any) -> Any:
        return (self.w * q.double() ** 2).sum(dim=(1, 2))


IMPLEMENTATIONS: dict[str, type[Counted]] = {"cpu": OnCpu, "cuda": OnDevice, "torch": InTorch}


def check_registered(kernels: str, dtype: str = "float64") -> None:
    """A registered implementation runs, a subclass inherits it, and an override ends that."""
    maker = IMPLEMENTATIONS[kernels]
    assert pf.register(Spread, kernels)(maker) is maker
    heir: Any = type("Heir", (Spread,), {})
    other: Any = type("Other", (Spread,), {"energy": Spread.energy, "add_gradient": _tripled})
    for kind, counted in ((Spread, True), (heir, True), (other, False)):
        Counted.calls = 0
        field = field_with(kind(), 7)
        program = compiled(field, kernels, dtype)
        q = marginals(field)
        expected = ReferenceProgram(field.lower()).gradient(q)
        found = program.gradient(q)
        np.testing.assert_allclose(
            field.layout.center(found), field.layout.center(expected), atol=1e-4
        )
        assert (Counted.calls > 0) == counted
        if counted:
            check_as_reference(field, kernels, dtype)
    pf.register(other, kernels, maker)  # its own word for it: ours is what it computes
    Counted.calls = 0
    compiled(field_with(other(), 7), kernels, dtype).gradient(marginals(field))
    assert Counted.calls > 0


def _tripled(self: Spread, layout: Layout, q: Array, out: Array) -> None:
    for _ in range(3):
        Spread.add_gradient(self, layout, q, out)


def check_inference(kernels: str) -> None:
    """Inference with a registered implementation ends where the reference does."""
    field = field_with(Spread(), 7)
    options: dict[str, Any] = {"max_iters": 60, "tol": 1e-10}
    expected = pf.infer(field, "fixed", step=0.5, kernels="reference", **options)
    pf.register(Spread, kernels, IMPLEMENTATIONS[kernels])
    Counted.calls = 0
    found = pf.infer(field, "fixed", step=0.5, kernels=kernels, dtype="float64", **options)
    assert Counted.calls > 0
    np.testing.assert_allclose(found.marginals, expected.marginals, atol=1e-8)
    assert found.free_energy == pytest.approx(expected.free_energy, abs=1e-8)


every_override = pytest.mark.parametrize("kind", OVERRIDDEN.values(), ids=OVERRIDDEN)
