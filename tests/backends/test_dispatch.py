"""From a term to its implementation: the registry, and the CPU programs that ask it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from dispatch_cases import (
    POINTS,
    Halved,
    OnCpu,
    Renamed,
    Spread,
    check_as_reference,
    check_inference,
    check_registered,
    compiled,
    every_override,
    field_with,
    marginals,
    named,
    own_registry,
)
from proxfield.core.engines.numba.dense_program import DenseProgram
from proxfield.core.engines.numba.dense_views import Views
from proxfield.core.engines.terms import implementation, replaced_by_default
from proxfield.core.terms.cooccurrence import LatentCooccurrence
from proxfield.errors import InputError, InputTypeError, UnsupportedError

__all__ = ["own_registry"]  # a fixture


def on_lattice(kind: type[pf.Gaussian]) -> pf.Gaussian:
    return kind(POINTS, 1.3, filter="lattice")


# ---- the CPU ----


@every_override
def test_an_override_is_called_not_our_kernels(kind: type[pf.Gaussian]) -> None:
    program = check_as_reference(field_with(on_lattice(kind)), "cpu")
    assert not isinstance(program, DenseProgram)


def test_an_override_beside_a_term_on_the_lattice() -> None:
    field = field_with(on_lattice(pf.Gaussian)).add(on_lattice(Halved))
    program = check_as_reference(field, "cpu")
    assert isinstance(program, DenseProgram) and len(program.terms) == 1


def test_a_subclass_that_overrides_nothing_has_our_kernels() -> None:
    assert isinstance(compiled(field_with(on_lattice(Renamed)), "cpu"), DenseProgram)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_registered_for_the_cpu(dtype: str) -> None:
    check_registered("cpu", dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_registered_beside_a_dense_field(dtype: str) -> None:
    pf.register(Spread, "cpu", OnCpu)
    field = (
        field_with(on_lattice(pf.Gaussian)).add(Spread()).add(pf.Consistency([0] * 3 + [1] * 37))
    )
    OnCpu.calls = 0
    assert isinstance(check_as_reference(field, "cpu", dtype), DenseProgram)
    traced = pf.infer(field, "full-parallel", dtype=dtype, max_iters=3, tol=0.0)
    again = pf.infer(field, "full-parallel", kernels="reference", max_iters=3, tol=0.0)
    np.testing.assert_allclose(traced.trace.free_energy, again.trace.free_energy, rtol=1e-4)


def test_inference_with_a_registered_implementation() -> None:
    check_inference("cpu")


class Firmer(pf.Potts):
    """Twice the energy, by its gradient alone: `Potts.lower` would say the plain one."""

    def labelling_energy(self, layout: Any, labels: Any) -> float:
        return 2 * super().labelling_energy(layout, labels)

    def add_gradient(self, layout: Any, q: Any, out: Any) -> None:
        super().add_gradient(layout, q, out)
        super().add_gradient(layout, q, out)


class Lowerable(Firmer):
    """The same with a lowering of its own."""

    def lower(self, layout: Any, builder: Any) -> None:
        builder.add_potts(self.edges, 2 * self.weights)


def test_an_inherited_lowering_does_not_speak_for_an_override() -> None:
    plain, firm, lowered = (
        field_with(kind([[0, 1], [1, 2]], [0.5, 0.8]), 3) for kind in (pf.Potts, Firmer, Lowerable)
    )
    plain.add(pf.Potts([[0, 1], [1, 2]], [0.5, 0.8]))
    assert firm.lower().extras and not lowered.lower().extras
    expected = plain.layout.center(compiled(plain, "cpu").gradient(marginals(plain)))
    for field in (firm, lowered):
        found = check_as_reference(field, "cpu").gradient(marginals(plain))
        np.testing.assert_allclose(plain.layout.center(found), expected, atol=1e-12)
    pf.register(Firmer, "cpu", make_a)
    with pytest.raises(InputError, match="offers lower"):
        pf.register(Lowerable, "cpu", make_a)


def test_terms_without_an_implementation() -> None:
    for term in (Spread(), named("Consistency", Spread)(), pf.Consistency([0, 0, 1, 1, 1])):
        assert implementation(term, "cpu") is None
        check_as_reference(field_with(term, 5), "cpu")


# ---- the registry ----


def make_a(term: Any, layout: Any, dtype: Any) -> Any: ...
def make_b(term: Any, layout: Any, dtype: Any) -> Any: ...


def test_the_most_specific_class_wins() -> None:
    first, second, third = Spread, named("Second", Spread), named("Third", named("Between", Spread))
    pf.register(first, "cpu", make_a)
    pf.register(second, "cpu", make_b)
    assert implementation(first(), "cpu") is make_a
    assert implementation(second(), "cpu") is make_b
    assert implementation(third(), "cpu") is make_a
    assert implementation(first(), "torch") is None
    pf.register(first, "cpu", make_b)
    assert implementation(first(), "cpu") is make_b


def test_what_an_implementation_replaces_can_be_said() -> None:
    class Weighed(Spread):
        def energy(self, layout: Any, q: Any) -> float:
            return 0.0

    pf.register(Spread, "cpu", make_a, replaces=["add_gradient"])
    assert implementation(Weighed(), "cpu") is make_a
    pf.register(Spread, "cpu", make_a)
    assert implementation(Weighed(), "cpu") is None


def test_what_is_replaced_by_default() -> None:
    names = replaced_by_default(pf.Gaussian)
    assert {"add_gradient", "energy", "degree", "operate", "scales", "filter"} <= names
    assert not {"name", "validate", "curvature", "magnitude", "labelling_energy"} & names
    assert not [name for name in names if name.startswith("__") or name == "_abc_impl"]


def test_an_implementation_may_decline() -> None:
    assert implementation(on_lattice(pf.Gaussian), "cpu") is Views
    assert implementation(pf.Gaussian(POINTS, filter="exact"), "cpu") is None
    assert implementation(pf.Gaussian(POINTS, filter="lattice", first=2), "cpu") is None


def test_the_forms_of_cooccurrence_have_their_own() -> None:
    pytest.importorskip("torch")
    seen = pf.CooccurrenceStatistics(9, [9, 5, 4], [[9, 5, 4], [5, 5, 0], [4, 0, 4]])
    made = implementation(pf.Cooccurrence(seen, pixels=2), "cuda")
    latent = pf.Cooccurrence(seen, pixels=2, latent="variables")
    assert isinstance(latent, LatentCooccurrence)
    other = implementation(latent, "cuda")
    assert made is not None and other is not None
    assert (made.__name__, other.__name__) == ("CooccurrenceOnDevice", "LatentOnDevice")


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((Spread(), "cpu", make_a), InputTypeError, "takes a class of terms"),
        ((Spread, "reference", make_a), InputError, "expected one of: cpu, cuda, torch"),
        ((Spread, "cuda:1", make_a), InputError, "expected one of: cpu, cuda, torch"),
        ((Spread, "cpu", "no_colon"), InputTypeError, "module:name"),
        ((Spread, "cpu", 3), InputTypeError, "module:name"),
        ((pf.Potts, "cpu", make_a), InputError, "offers lower"),
    ],
)
def test_errors(arguments: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        pf.register(*arguments)


def test_an_unknown_attribute_is_an_error() -> None:
    with pytest.raises(InputError, match="no such attribute"):
        pf.register(Spread, "cpu", make_a, replaces=["add_gradients"])


LAZY = """
import sys
import proxfield as pf
from proxfield.core.engines.terms import implementation
pf.register(pf.Consistency, "torch", "not_there:Thing")
heavy = {"torch", "triton"} & set(sys.modules)
assert not heavy, heavy
try:
    implementation(pf.Consistency([0, 0]), "torch")
except ModuleNotFoundError as error:
    print(error)
"""


def test_nothing_is_imported_before_it_is_needed() -> None:
    done = subprocess.run([sys.executable, "-c", LAZY], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "not_there" in done.stdout
    code = "import sys, proxfield; proxfield.register; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_inherited_bounds_do_not_speak_for_an_override() -> None:
    """Twice the energy has twice the curvature: the inherited λ would certify too large steps."""
    field = field_with(Firmer([[0, 1], [1, 2]], [-5.0, -8.0]), 3)
    for step, method in (("certified", "curvature"), ("lipschitz", "lipschitz")):
        with pytest.raises(UnsupportedError, match=f"no method '{method}'.*overrides the gradient"):
            pf.infer(field, "fixed", step=step)
    assert pf.infer(field, "fixed", step=0.1).converged

    class Bounded(Firmer):
        def curvature(self, layout: Any) -> Any:
            return 2 * super().curvature(layout)

    bounded = field_with(Bounded([[0, 1], [1, 2]], [-5.0, -8.0]), 3)
    assert pf.infer(bounded, "fixed").converged
    twice = field_with(pf.Potts([[0, 1], [1, 2]], [-10.0, -16.0]), 3)
    lambdas = [pf.Curvature(f.lower()).local for f in (bounded, twice)]
    np.testing.assert_allclose(lambdas[0], lambdas[1])
