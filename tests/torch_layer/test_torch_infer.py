"""Differentiable inference in sparse and mixed fields, and the kernel set "torch"."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import proxfield as pf  # noqa: E402
import proxfield.torch as pt  # noqa: E402
from proxfield.core.engines.plan import Custom, Kind, Order, Update  # noqa: E402
from proxfield.core.engines.reference import ReferenceProgram  # noqa: E402
from proxfield.core.engines.torch import energy  # noqa: E402
from proxfield.errors import InputError, UnsupportedError  # noqa: E402

GRID = [[i, i + 1] for i in range(6) if i != 2 and i < 5] + [[i, i + 3] for i in range(3)]


def fields() -> dict[str, pf.Field]:
    """One field of each kind of structure."""
    rng = np.random.default_rng(7)
    points = rng.normal(size=(6, 2))
    mixed = pf.Field([2, 3, 2, 4, 3, 2])
    mixed.add(pf.Potts(GRID, rng.normal(size=len(GRID))))
    mixed.add(pf.Factor([1, 3], rng.normal(size=(3, 4))))
    mixed.add(pf.Factor([0, 2, 5], rng.normal(size=(2, 2, 2))))
    own = pf.Field(6, n_labels=3).add(pf.Unary(rng.normal(size=(6, 3))))
    own.add(pf.Pairwise(GRID, rng.normal(size=(len(GRID), 3, 3))))
    return {
        "ising": pf.Field(6, n_labels=2).add(pf.Ising(GRID, rng.normal(size=len(GRID)))),
        "potts": pf.Field(6, n_labels=3).add(pf.Potts(GRID, rng.normal(size=len(GRID)))),
        "tables": own,
        "shared": pf.Field(6, n_labels=3).add(pf.Pairwise(GRID, rng.normal(size=(3, 3)))),
        "k-ary": pf.Field(6, n_labels=2).add(
            pf.Factor([[0, 1, 2, 3], [2, 3, 4, 5]], rng.normal(size=(2, 2, 2, 2)))
        ),
        "mixed": mixed,
        "observed": mixed.condition({1: 2, 5: 0}),
        "dense": pf.Field(6, n_labels=3)
        .add(pf.Gaussian(points, 0.7))
        .add(pf.Potts(GRID, 0.3))
        .add(pf.Gaussian(points[1:5], 0.5, -np.eye(3), normalization="none", first=1)),
        "unaries": pf.Field([2, 3]).add(pf.Unary([[0.0, 1.0]], [0])),
        "hub": pf.Field(8, n_labels=2).add(pf.Ising([[0, i] for i in range(1, 8)], -0.3)),
    }


every_field = pytest.mark.parametrize("name", fields())


def extra(field: pf.Field, device: str, batch: int | None = 2) -> Any:
    size = (field.layout.size,) if batch is None else (batch, field.layout.size)
    return torch.randn(size, dtype=torch.float64, device=device)


# ---- infer ----


@every_field
def test_same_marginals_as_infer(name: str, device: str) -> None:
    field = fields()[name]
    unary = extra(field, device)
    out = pt.infer(field, unary, tol=1e-10)
    assert out.shape == unary.shape
    assert out.device == unary.device
    for mine, more in zip(out.cpu().numpy(), unary.cpu().numpy(), strict=True):
        other = pf.Field(field.cardinalities)
        other.terms, other.evidence = list(field.terms), field.evidence
        for v, at in enumerate(field.layout.offsets[:-1]):
            count = field.cardinalities[v]
            other.add(pf.Unary(more[None, at : at + count], [v]))
        expected = pf.infer(other, "fixed", tol=1e-10, kernels="reference").q
        assert np.abs(mine - expected).max() < 1e-6


@every_field
@pytest.mark.parametrize("gradient", ["exact", "implicit"])
def test_gradcheck_at_convergence(name: str, gradient: str, device: str) -> None:
    field = fields()[name]
    unary = extra(field, device, 2).requires_grad_()

    def run(u: Any) -> Any:
        return pt.infer(field, u, tol=1e-13, max_iters=5000, gradient=gradient)

    assert torch.autograd.gradcheck(run, unary, fast_mode=True, atol=1e-6)


@pytest.mark.parametrize("kind", [pf.Potts, pf.Ising])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("gradient", ["exact", "implicit"])
def test_gradients_of_weights(kind: Any, batched: bool, gradient: str, device: str) -> None:
    n_labels = 2 if kind is pf.Ising else 3
    field = pf.Field(6, n_labels=n_labels).add(pf.Pairwise([[0, 5]], np.eye(n_labels)))
    field = field.add(kind(GRID, 1.0))
    unary = extra(field, device, 2).requires_grad_()
    size = (2, len(GRID)) if batched else (len(GRID),)
    weights = torch.randn(size, dtype=torch.float64, device=device).requires_grad_()

    def run(u: Any, w: Any) -> Any:
        return pt.infer(field, u, weights=w, tol=1e-13, max_iters=5000, gradient=gradient)

    assert torch.autograd.gradcheck(run, (unary, weights), fast_mode=True, atol=1e-6)
    row = weights[0] if batched else weights
    other = pf.Field(6, n_labels=n_labels).add(pf.Pairwise([[0, 5]], np.eye(n_labels)))
    other = other.add(kind(GRID, row.detach().cpu().numpy()))
    expected = pt.infer(other, unary[0], tol=1e-12)
    assert torch.allclose(run(unary, weights)[0], expected, atol=1e-8)


def tied(name: str) -> tuple[pf.Field, list[int]]:
    """A field whose edges share tables, and how many tables each of its table terms has."""
    rng = np.random.default_rng(3)
    if name == "pairwise":
        index = rng.integers(0, 2, size=len(GRID))
        field = pf.Field(6, n_labels=3).add(pf.Pairwise(GRID, np.zeros((2, 3, 3)), index))
        return field.add(pf.Potts(GRID, 0.2)), [2]
    if name == "grid":
        field = pf.Field(7, n_labels=2).add(pf.Ising([[0, 1]], 0.4))
        index = rng.integers(0, 3, size=4)
        field.add(pf.GridPairwise((2, 3), (0, 1), np.zeros((3, 2, 2)), index, first=1))
        return field.add(pf.GridPairwise((2, 3), (1, -1), np.zeros((2, 2)), first=1)), [3, 1]
    field = pf.Field([2, 3, 2, 4, 3, 2])
    field.add(pf.Factor([[1, 3], [4, 3]], np.zeros((3, 4))))
    return field.add(pf.Factor([[0, 2, 5], [5, 0, 2]], np.zeros((2, 2, 2, 2)), [1, 1])), [1, 2]


@pytest.mark.parametrize("name", ["pairwise", "grid", "factor"])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("gradient", ["exact", "implicit", "few-updates", "unrolled"])
def test_gradients_of_tied_tables(name: str, batched: bool, gradient: str, device: str) -> None:
    """Against finite differences: at convergence, and after three updates with a given step."""
    field, counts = tied(name)
    unary = extra(field, device, 2).requires_grad_()
    terms = [t for t in field.terms if isinstance(t, (pf.Factor, pf.GridPairwise))]
    assert [len(t.tables) for t in terms] == counts
    tables = []
    for term in terms:
        size = (2, *term.tables.shape) if batched else term.tables.shape
        mine = 0.7 * torch.randn(size, dtype=torch.float64, device=device)
        tables.append(mine.requires_grad_())
    options = {"tol": 1e-13, "max_iters": 5000, "gradient": gradient}
    if gradient == "few-updates":
        options = {"tol": 0.0, "max_iters": 3, "step": 0.6, "init": "unary"}
    if gradient == "unrolled":
        options = {"max_iters": 4, "step": 0.6, "gradient": "unrolled"}

    def run(u: Any, *given: Any) -> Any:
        one = given[0] if len(given) == 1 else given
        return pt.infer(field, u, tables=one, **options)

    assert torch.autograd.gradcheck(run, (unary, *tables), fast_mode=True, atol=1e-6)
    if "init" in options:  # lowering moves parts of tables into the field's own unary energies
        return
    other = pf.Field(field.cardinalities)
    held = iter(tables)
    for term in field.terms:
        if isinstance(term, (pf.Factor, pf.GridPairwise)):
            values = next(held).detach().cpu().numpy()
            scopes, _, index = next(iter(term.as_tables(field.layout)))
            term = pf.Factor(scopes, values[0] if batched else values, index)
        other.add(term)
    expected = pt.infer(other, unary[0], **options)
    assert torch.allclose(run(unary, *tables)[0], expected, atol=1e-8)


def test_weights_and_tables_together(device: str) -> None:
    """Some tables may keep their values; structure is prepared once."""
    field, _ = tied("grid")
    grids = [t for t in field.terms if isinstance(t, pf.GridPairwise)]
    weights = torch.tensor([0.4], dtype=torch.float64, device=device).requires_grad_()
    table = torch.randn(1, 2, 2, dtype=torch.float64, device=device).requires_grad_()

    def run(w: Any, t: Any) -> Any:
        return pt.infer(field, weights=w, tables=[None, t], step=0.5, max_iters=5, init="unary")

    assert torch.autograd.gradcheck(run, (weights, table), fast_mode=True, atol=1e-6)
    squeezed = pt.infer(
        field, weights=weights, tables=[None, table[0]], step=0.5, max_iters=5, init="unary"
    )
    assert torch.equal(squeezed, run(weights, table))
    held = field._kept.without
    assert len(held) == 1
    rest = next(iter(held.values()))
    run(weights, table)
    assert next(iter(field._kept.without.values())) is rest
    assert not grids[0].tables.any()


def test_impossible_labels_observe_variables_of_tied_tables(device: str) -> None:
    """+inf in the unary energies clamps a variable; gradients stay finite and right."""
    field, _ = tied("pairwise")
    unary = extra(field, device, None).reshape(6, 3)
    unary[2, :2] = torch.inf
    tables = torch.randn(2, 3, 3, dtype=torch.float64, device=device).requires_grad_()

    def run(t: Any) -> Any:
        return pt.infer(field, unary, tables=t, step=0.5, max_iters=4)

    assert float(run(tables).detach()[2, 2]) == 1.0
    assert torch.autograd.gradcheck(run, tables, fast_mode=True, atol=1e-6)


def test_tables_that_do_not_fit() -> None:
    field, _ = tied("grid")
    good = torch.zeros(3, 2, 2)
    for tables, error, what in (
        (good, InputError, r"tables for 1 term\(s\), expected 2"),
        ([good, torch.zeros(2, 2, 2)], InputError, r"table term 1 \(GridPairwise\), expected"),
        ([good, torch.full((2, 2), torch.inf)], UnsupportedError, "aren't finite"),
        ([good.expand(2, 3, 2, 2), torch.zeros(3, 1, 2, 2)], InputError, "batches of 2, 3"),
    ):
        with pytest.raises(error, match=what):
            pt.infer(field, tables=tables)
    three = torch.zeros(3, field.n_vars, 2)
    with pytest.raises(InputError, match="a batch of 2 but unary energies for 3"):
        pt.infer(field, three, tables=[good.expand(2, 3, 2, 2), None])
    with pytest.raises(UnsupportedError, match="without evidence"):
        pt.infer(field.condition({0: 1}), tables=[good, None])


@every_field
def test_unrolled_equals_implicit(name: str, device: str) -> None:
    field = fields()[name]
    unary = extra(field, device, None).requires_grad_()
    weigh = torch.randn_like(unary)
    grads = []
    for kind in ({"tol": 1e-13, "gradient": "implicit"}, {"gradient": "unrolled"}):
        q = pt.infer(field, unary, max_iters=400, **kind)
        grads.append(torch.autograd.grad((q * weigh).sum(), unary)[0])
    assert torch.allclose(*grads, atol=1e-6)


@pytest.mark.parametrize("rule", ["adaptive", "full-parallel", "momentum", "sweep", "colored"])
def test_gradients_do_not_depend_on_the_rule(rule: str, device: str) -> None:
    field = pf.Field(6, n_labels=3).add(pf.Potts(GRID, 0.4))
    unary = extra(field, device, None).requires_grad_()
    grads = []
    for name in ("fixed", rule):
        q = pt.infer(field, unary, name, tol=1e-12)
        grads.append(torch.autograd.grad(q[::3].square().sum(), unary)[0])
    assert torch.allclose(*grads, atol=1e-7)


def test_shapes(device: str) -> None:
    field = fields()["potts"]
    flat = extra(field, device, 2)
    expected = pt.infer(field, flat)
    rows = pt.infer(field, flat.reshape(2, 6, 3))
    assert torch.equal(rows, expected.reshape(2, 6, 3))
    assert torch.allclose(pt.infer(field, flat[0].reshape(6, 3)), rows[0], atol=1e-5)
    assert pt.infer(field, device=device).shape == (6, 3)
    again = pt.infer(field, flat, init=expected, max_iters=1)
    assert torch.allclose(again, expected, atol=1e-5)
    assert pt.infer(field, flat.float()).dtype == torch.float32
    assert pt.infer(field, flat, init="unary").shape == flat.shape


def test_impossible_labels(device: str) -> None:
    field = fields()["potts"]
    unary = extra(field, device, None).reshape(6, 3)
    unary[2, 1] = torch.inf
    unary.requires_grad_()
    q = pt.infer(field, unary)
    assert q[2, 1] == 0
    q.square().sum().backward()
    assert torch.isfinite(unary.grad).all()
    assert unary.grad[2, 1] == 0


def test_observed_variables_have_no_gradient(device: str) -> None:
    field = fields()["observed"]
    unary = extra(field, device, None).requires_grad_()
    q = pt.infer(field, unary)
    assert q[2:5].tolist() == [0.0, 0.0, 1.0]
    q.square().sum().backward()
    assert (unary.grad[2:5] == 0).all()
    assert unary.grad[:2].abs().max() > 0


def test_what_has_no_derivative(monkeypatch: Any) -> None:
    field = fields()["potts"]
    for bad, kwargs, error, what in (
        (field, {"rule": "auto"}, UnsupportedError, "runs other rules"),
        (field, {"unary": torch.zeros(5, 3)}, InputError, "expected"),
        (field, {"weights": torch.zeros(3)}, InputError, "one for each edge"),
        (field, {"gradient": "guess"}, InputError, "gradient"),
        (field, {"init": "guess"}, InputError, "init"),
        (field, {"gradient": "unrolled", "rule": "sweep"}, UnsupportedError, "unrolled"),
        (field.condition({0: 1}), {"weights": torch.zeros(7)}, UnsupportedError, "evidence"),
        (
            pf.Field(2, 2).add(pf.Pairwise([[0, 1]], [[np.inf, 0], [0, 0]])),
            {},
            UnsupportedError,
            "forbid",
        ),
    ):
        with pytest.raises(error, match=what):
            pt.infer(bad, **kwargs)
    with monkeypatch.context() as patched:
        patched.setattr(energy, "maker_of", lambda term, exact: None)
        with pytest.raises(UnsupportedError, match="no derivatives through Gaussian"):
            pt.infer(fields()["dense"])


# ---- the kernel set ----


PLANS = {
    "proximal": lambda n: Update(Kind.PROXIMAL, np.full(n, 0.6)),
    "mean": lambda n: Update(Kind.MEAN, np.full(n, 0.5)),
    "momentum": lambda n: Update(Kind.MOMENTUM, np.full(n, 0.9), gamma1=0.8),
    "momentum-printed": lambda n: Update(Kind.MOMENTUM_PRINTED, np.full(n, 0.9), gamma1=0.8),
    "adam": lambda n: Update(Kind.ADAM, np.full(n, 0.5), 0.9, 0.99, 1e-8),
    "adam-printed": lambda n: Update(Kind.ADAM_PRINTED, np.full(n, 0.5), 0.9, 0.99, 1e-3),
    "adaptive": lambda n: Update(
        Kind.PROXIMAL, np.full(n, 0.9), adaptive=True, fallback=np.full(n, 0.2)
    ),
    "hot": lambda n: Update(Kind.PROXIMAL, np.full(n, 0.6), inverse_temperature=0.3),
    "order": lambda n: Order(np.arange(n)[::-1]),
    "shuffled": lambda n: Order(np.arange(n), shuffle=np.random.default_rng(3)),
    "custom": lambda n: Custom(lambda theta, q, g, memory: theta - 0.5 * (theta - g), 0.5),
}


@every_field
@pytest.mark.parametrize("kind", PLANS)
def test_program_does_what_the_reference_does(name: str, kind: str, device: str) -> None:
    lowered = fields()[name].lower()
    if lowered.extras and kind in ("order", "shuffled"):
        pytest.skip("terms that only iterate as a whole")
    q = np.random.default_rng(0).exponential(size=lowered.layout.size)
    q = lowered.layout.normalize(q)
    found = []
    for program in (ReferenceProgram(lowered), pt.TorchProgram(lowered, device=device)):
        state = program.start(q)
        rows = program.advance(state, PLANS[kind](lowered.layout.n_vars), 6, 0.0, True)
        found.append((rows, program.marginals(state), program.free_energy(state)))
    (rows, q, f), (other, p, e) = found
    np.testing.assert_allclose(other.free_energy, rows.free_energy, atol=1e-9)
    np.testing.assert_allclose(other.change, rows.change, atol=1e-9)
    assert other.period2 == pytest.approx(rows.period2, abs=1e-9)
    np.testing.assert_allclose(p, q, atol=1e-9)
    assert e == pytest.approx(f, abs=1e-9)


def test_program_with_terms_it_does_not_know(device: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(energy, "maker_of", lambda term, exact: None)
    field = fields()["dense"]
    lowered = field.lower()
    q = np.full(18, 1 / 3)
    mine = pt.TorchProgram(lowered, device=device)
    assert mine.field.unknown
    np.testing.assert_allclose(mine.gradient(q), ReferenceProgram(lowered).gradient(q), atol=1e-6)
    assert mine.free_energy(mine.start(q)) == pytest.approx(field.free_energy(q), abs=1e-6)


@pytest.mark.parametrize(
    "limits",
    [{"max_iters": -1}, {"tol": float("nan")}, {"adjoint_tol": -1.0}, {"adjoint_max_iters": 0}],
)
def test_limits_that_make_no_sense(limits: dict[str, float]) -> None:
    field = pf.Field(2, n_labels=2, terms=[pf.Ising([[0, 1]], 1.0)])
    with pytest.raises(InputError, match=next(iter(limits))):
        pt.infer(field, torch.zeros(2, 2), **limits)
