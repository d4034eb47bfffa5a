"""Products with the Hessian on the device, and λ by them, against the host's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from triton_setup import direct, indirect, run_interpreted

import proxfield as pf
from proxfield.core.engines.registry import program_for
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.solve import curvature as module
from proxfield.core.solve.curvature import Curvature
from proxfield.generate import grid, grid_edges


@indirect
def test_interpreted() -> None:
    run_interpreted(__file__)


def potts(n_labels: int = 5) -> Lowered:
    """A grid with weights of both signs."""
    edges = grid_edges(13, 11)
    weights = np.random.default_rng(0).normal(size=len(edges))
    return pf.Field(143, n_labels=n_labels, terms=[pf.Potts(edges, weights)]).lower()


def mixed() -> Lowered:
    """Potts edges, tables and a factor, which has no part in it, between mixed labels."""
    rng = np.random.default_rng(1)
    field = pf.Field([2, 3, 5, 2, 4, 3] * 6)
    field.add(pf.Potts([[i, i + 1] for i in range(35)], rng.normal(size=35)))
    field.add(pf.Pairwise([[0, 6], [6, 12], [12, 18]], rng.normal(size=(3, 2, 2))))
    field.add(pf.Pairwise([[2, 4], [8, 10], [14, 16]], rng.normal(size=(5, 4))))
    return field.add(pf.Factor([[1, 2, 3]], rng.normal(size=(3, 5, 2)))).lower()


def tables(own: bool, n: int = 70) -> Lowered:
    """A ring of tables, one for each edge or two for all."""
    rng = np.random.default_rng(2)
    edges = [[i, (i + 1) % n] for i in range(n)]
    index = np.arange(n) if own else np.arange(n) % 2
    term = pf.Pairwise(edges, rng.normal(size=(n if own else 2, 5, 5)), index)
    return pf.Field(n, n_labels=5, terms=[term]).lower()


FIELDS = {
    "own tables": lambda: tables(True),
    "shared tables": lambda: tables(False),
    "grid": lambda: grid(9, 7, strength=2.0, seed=1).lower(),
    "long": lambda: grid(3, 130, strength=2.0, seed=2).lower(),
    "potts": potts,
    "mixed": mixed,
}
FORMS = [
    ("grid", "small"), ("grid", "team"), ("grid", "slices"), ("grid", "diagonals"),
    ("long", "diagonals"), ("potts", "tiles"), ("potts", "planes"), ("potts", "small"),
    ("mixed", "tiles"), ("mixed", "small"), ("own tables", "tiles"), ("shared tables", "tiles"),
]  # fmt: skip


@direct
@pytest.mark.parametrize(("name", "form"), FORMS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products(name: str, form: str, dtype: str) -> None:
    from proxfield.core.engines.triton.program import GpuProgram

    lowered = FIELDS[name]()
    products: Any = GpuProgram(lowered, dtype, form=form).products()
    apply, size, _ = Curvature(lowered)._projected
    assert products.size == size
    for seed in range(2):
        v = np.random.default_rng(seed).normal(size=size)
        found = products.get(products.apply(products.put(v)))
        np.testing.assert_allclose(found, apply(v), rtol=1e-10, atol=1e-10)


@direct
@pytest.mark.parametrize("name", list(FIELDS))
def test_both_ends_of_the_spectrum(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same vectors up to rounding, so the same λ far below the tolerance of Lanczos."""
    # a long ring of two tables has close eigenvalues, for which Lanczos needs many products
    lowered = tables(False, n=12) if name == "shared tables" else FIELDS[name]()

    def make(low: Lowered) -> Any:
        return program_for(low, "cuda", "float32")

    host = Curvature(lowered)
    assert Curvature(lowered, program=make).largest == host.largest  # small: on the host
    monkeypatch.setattr(module, "MIN_DEVICE_SIZE", 1)
    there = Curvature(lowered, program=make)
    there.prepare()
    assert there._projected[2] is not module.HOST and there.product_seconds > 0
    assert there.largest == pytest.approx(host.largest, rel=1e-9)
    assert there.smallest == pytest.approx(host.smallest, rel=1e-9)


@direct
def test_vectors() -> None:
    products: Any = program_for(FIELDS["grid"](), "cuda", "float32").products()
    assert products.length(products.put(np.array([3e200, 4e200]))) == pytest.approx(5e200)
    assert products.length(products.zeros(3)) == 0.0
    assert products.length(products.put(np.array([np.inf, 1.0]))) == np.inf
    assert np.isnan(products.length(products.put(np.array([np.nan, 1.0]))))


@direct
def test_infer_takes_the_step_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    from proxfield.core.engines.triton.program import DeviceProducts

    made = []
    plain = DeviceProducts.apply

    def counted(self: Any, v: Any) -> Any:
        made.append(len(v))
        return plain(self, v)

    monkeypatch.setattr(DeviceProducts, "apply", counted)
    field = grid(9, 9, strength=2.0, seed=1)
    expected = pf.infer(field, "fixed", max_iters=3, device="cuda")
    assert not made
    monkeypatch.setattr(module, "MIN_DEVICE_SIZE", 1)
    found = pf.infer(field, "fixed", max_iters=3, device="cuda")
    assert made and set(made) == {81}
    assert found.free_energy == pytest.approx(expected.free_energy, rel=1e-9)
