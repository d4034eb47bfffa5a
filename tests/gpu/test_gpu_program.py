"""The program of the kernel set "cuda" against the reference, update by update.

Without a CUDA device the tests run in Triton's interpreter, in a process of their own, because
the interpreter has to be chosen before Triton is imported.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from examples import FINITE_TABLES, HARD_TABLES
from numpy.typing import NDArray
from triton_setup import direct, indirect, run_interpreted, torch

import proxfield as pf
from proxfield.core.engines import compile_program
from proxfield.core.engines.base import Rows
from proxfield.core.engines.plan import Custom, Kind, Order, Update
from proxfield.core.engines.reference import ReferenceProgram
from proxfield.core.lowering.lowered import Lowered
from proxfield.errors import UnsupportedError
from proxfield.generate import grid, grid_edges

EXACT = {"float64": 1e-8, "float32": 1e-4}
"""How far rows and marginals may be from the reference's."""
SPARSE = [name for name, e in FINITE_TABLES.items() if not e.field().lower().extras]
BINARY = ("ising-grid", "ising-scattered", "strong-repulsion-binary", "inf-unary-binary")
GENERAL = ("potts-mixed-cardinalities", "pairwise-nonsquare", "all-terms", "inf-unary")


@indirect
def test_interpreted() -> None:
    run_interpreted(__file__)


def program_of(lowered: Lowered, dtype: str = "float64", form: str | None = None) -> Any:
    """A `GpuProgram`; imported late, so that collecting needs no interpreter."""
    from proxfield.core.engines.triton.program import GpuProgram

    return GpuProgram(lowered, dtype, form=form)


def lowered_of(name: str) -> Lowered:
    return {**FINITE_TABLES, **HARD_TABLES}[name].field().lower()


def marginals_of(lowered: Lowered, seed: int = 0) -> NDArray[np.float64]:
    """Random marginals, with weight on impossible labels too."""
    rng = np.random.default_rng(seed)
    q: NDArray[np.float64] = lowered.layout.normalize(rng.random(lowered.layout.size) + 0.05)
    return q


def plan_of(kind: Kind, n: int, adaptive: bool = False, flat: bool = False) -> Update:
    steps = np.full(n, 0.6) if flat else np.random.default_rng(n).uniform(0.3, 0.9, n)
    safe = np.full(n, 0.2) if adaptive else None
    return Update(kind, steps, 0.8, 0.9, 1e-3, adaptive, safe, 0.7)


def assert_same(found: NDArray[Any], expected: NDArray[Any], tolerance: float) -> None:
    """Equal shapes, infinities in the same places, the rest close."""
    assert found.shape == expected.shape
    wide = np.isinf(expected)
    np.testing.assert_array_equal(np.isinf(found), wide)
    scale = 1.0 + np.abs(expected[~wide]).max(initial=0.0)
    np.testing.assert_allclose(found[~wide], expected[~wide], rtol=0, atol=tolerance * scale)


def assert_rows(found: Rows, expected: Rows, tolerance: float) -> None:
    assert_same(found.free_energy, expected.free_energy, tolerance)
    assert_same(found.change, expected.change, tolerance)
    assert found.period2 == pytest.approx(expected.period2, abs=tolerance)


def compare(lowered: Lowered, plan: Update, dtype: str, form: str | None, n: int = 4) -> None:
    """A program and the reference over ``n`` updates, in two calls."""
    q = marginals_of(lowered)
    slow, fast = ReferenceProgram(lowered, dtype), program_of(lowered, dtype, form)
    a, b = slow.start(q), fast.start(q)
    for some in (1, n - 1):
        expected = slow.advance(a, plan, some, 1e-12, True)
        assert_rows(fast.advance(b, plan, some, 1e-12, True), expected, EXACT[dtype])
    assert_same(fast.marginals(b), slow.marginals(a), EXACT[dtype])
    assert_same(fast.tensor(b).cpu().numpy(), slow.marginals(a), EXACT["float32"])
    assert fast.free_energy(b) == pytest.approx(slow.free_energy(a), rel=EXACT[dtype])


@direct
@pytest.mark.parametrize("name", SPARSE)
def test_every_field(name: str) -> None:
    lowered = lowered_of(name)
    if lowered.layout.n_vars:
        compare(lowered, plan_of(Kind.PROXIMAL, lowered.layout.n_vars), "float64", None)


@direct
@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("name", [*BINARY[::3], *GENERAL])
def test_every_kind(name: str, kind: Kind) -> None:
    lowered = lowered_of(name)
    compare(lowered, plan_of(kind, lowered.layout.n_vars), "float64", None, 3)


@direct
@pytest.mark.parametrize("kind", [Kind.PROXIMAL, Kind.MEAN, Kind.ADAM])
@pytest.mark.parametrize("name", [BINARY[0], GENERAL[0]])
def test_single_precision_and_one_step_for_all(name: str, kind: Kind) -> None:
    lowered = lowered_of(name)
    compare(lowered, plan_of(kind, lowered.layout.n_vars, flat=True), "float32", None)


@direct
@pytest.mark.parametrize("form", ["small", "slices", "diagonals"])
@pytest.mark.parametrize("name", BINARY)
def test_forms_of_binary_fields(name: str, form: str) -> None:
    lowered = lowered_of(name)
    for plan in (plan_of(Kind.MOMENTUM, lowered.layout.n_vars), adaptive_plan(lowered)):
        compare(lowered, plan, "float64", form)


def adaptive_plan(lowered: Lowered) -> Update:
    """Steps so long that some have to be made again."""
    n = lowered.layout.n_vars
    return Update(Kind.PROXIMAL, np.full(n, 0.95), adaptive=True, fallback=np.full(n, 0.2))


@direct
@pytest.mark.parametrize("form", ["small", "tiles"])
@pytest.mark.parametrize("name", [*GENERAL, "strong-repulsion"])
def test_forms_of_other_fields(name: str, form: str) -> None:
    lowered = lowered_of(name)
    compare(lowered, adaptive_plan(lowered), "float64", form)


def potts_grid(rows: int, cols: int, n_labels: int, hard: bool = False) -> Lowered:
    """A grid of Potts energies; with some impossible labels, if hard."""
    rng = np.random.default_rng(rows)
    edges = grid_edges(rows, cols)
    unary = rng.normal(size=(rows * cols, n_labels))
    if hard:
        unary[3, 1] = unary[5, :-1] = np.inf
    field = pf.Field(rows * cols, n_labels=n_labels, terms=[pf.Unary(unary)])
    return field.add(pf.Potts(edges, rng.normal(size=len(edges)))).lower()


@direct
@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("hard", [False, True])
def test_labels_in_planes(kind: Kind, hard: bool) -> None:
    """Two blocks, of which the last isn't full; numbers of labels that aren't powers of two."""
    lowered = potts_grid(13, 11, 5, hard)
    compare(lowered, plan_of(kind, 143), "float64", "planes", 3)


@direct
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_labels_in_planes_with_one_step_for_all_or_adaptive_ones(dtype: str) -> None:
    lowered = potts_grid(12, 11, 3)
    compare(lowered, plan_of(Kind.PROXIMAL, 132, flat=True), dtype, "planes")
    compare(lowered, adaptive_plan(lowered), dtype, "planes")


@direct
def test_labels_in_planes_where_degrees_differ() -> None:
    """A hub with more neighbors than all blocks look at."""
    edges = np.array([[0, k] for k in range(1, 140)] + [[k, k + 1] for k in range(1, 139)])
    field = pf.Field(140, n_labels=3, terms=[pf.Potts(edges, np.linspace(-0.4, 0.5, len(edges)))])
    lowered = field.add(pf.Unary(np.random.default_rng(0).normal(size=(140, 3)))).lower()
    compare(lowered, plan_of(Kind.MOMENTUM, 140), "float64", "planes")
    assert program_of(lowered, form="planes").batch.pack.degree == 0


@direct
def test_planes_are_for_potts_fields_whose_neighbors_lie_side_by_side() -> None:
    assert program_of(potts_grid(80, 80, 3)).batch.pack.form == "planes"
    near = potts_grid(80, 80, 3)
    order = np.random.default_rng(1).permutation(6400)
    far = pf.Field(6400, n_labels=3, terms=[pf.Potts(order[near.potts.edges], 0.3)])
    assert program_of(far.lower()).batch.pack.form == "tiles"
    assert program_of(potts_grid(80, 80, 40)).batch.pack.form == "tiles"


def table_graph(n: int, n_labels: int, own: bool, forbidden: bool = False) -> Lowered:
    """A ring with chords; a table for each edge, or three that all share."""
    rng = np.random.default_rng(n)
    edges = np.array([[i, (i + 1) % n] for i in range(n)] + [[0, i] for i in range(3, n, 9)])
    count = len(edges) if own else 3
    tables = rng.normal(size=(count, n_labels, n_labels))
    if forbidden:
        tables[:, 1, 0] = np.inf
    index = np.arange(len(edges)) if own else rng.integers(3, size=len(edges))
    field = pf.Field(n, n_labels=n_labels, terms=[pf.Pairwise(edges, tables, index)])
    return field.add(pf.Unary(rng.normal(size=(n, n_labels)))).lower()


@direct
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("n_labels", [3, 5])
def test_tables_in_tiles(n_labels: int, own: bool) -> None:
    """Of their own, in the order in which blocks read them; or shared."""
    lowered = table_graph(70, n_labels, own)
    assert program_of(lowered, form="tiles").batch.pack.own == own
    for plan in (plan_of(Kind.MOMENTUM, 70), adaptive_plan(lowered)):
        compare(lowered, plan, "float64", "tiles", 3)
    compare(lowered, plan_of(Kind.PROXIMAL, 70, flat=True), "float32", "tiles", 3)


@direct
@pytest.mark.parametrize("own", [True, False])
def test_forbidden_configurations_in_tiles(own: bool) -> None:
    """Energies of +inf that labels without weight don't feel."""
    lowered = table_graph(12, 3, own, forbidden=True)
    q = marginals_of(lowered).reshape(-1, 3)
    q[:, 0] = 0.0  # nobody has the label that forbids another
    flat = (q / q.sum(1, keepdims=True)).ravel()
    slow, fast = ReferenceProgram(lowered), program_of(lowered, "float64", "tiles")
    assert_same(fast.gradient(flat), slow.gradient(flat), 1e-8)


@direct
def test_some_adaptive_steps_are_made_again() -> None:
    """Otherwise the tests above show nothing about them."""
    lowered = lowered_of("strong-repulsion-binary")
    plan = adaptive_plan(lowered)
    program = program_of(lowered)
    once = Update(Kind.PROXIMAL, plan.step, adaptive=True, fallback=plan.step)
    a, b = program.start(marginals_of(lowered)), program.start(marginals_of(lowered))
    program.advance(a, plan, 4, 0.0, True)
    program.advance(b, once, 4, 0.0, True)
    assert np.abs(program.marginals(a) - program.marginals(b)).max() > 1e-3


def grid_of(rows: int, cols: int) -> Lowered:
    return grid(rows, cols, strength=2.0, seed=3).lower()


@direct
@pytest.mark.parametrize("shape", [(5, 130), (4, 128), (17, 3)])
def test_walking_along_rows(shape: tuple[int, int]) -> None:
    """Rows as long as a column of variables, longer, and too short to walk along."""
    lowered = grid_of(*shape)
    compare(lowered, plan_of(Kind.PROXIMAL, lowered.layout.n_vars), "float64", "diagonals", 3)
    program = program_of(lowered, "float64", "diagonals")
    assert program.batch.pack.roll == (shape[1] >= 128)
    if shape == (4, 128):  # cut so that nothing is outside
        program.batch.pack.cut(128, 2, 4)
        assert program.batch.pack.even
        plan = plan_of(Kind.ADAM, lowered.layout.n_vars, flat=True)
        slow, q = ReferenceProgram(lowered), marginals_of(lowered)
        a, b = slow.start(q), program.start(q)
        rows = program.advance(b, plan, 3, 0.0, True)
        assert_rows(rows, slow.advance(a, plan, 3, 0.0, True), 1e-8)


@direct
@pytest.mark.parametrize("name", [BINARY[0], GENERAL[0]])
@pytest.mark.parametrize("form", [None, "other"])
def test_stops_at_the_right_iteration(name: str, form: str | None) -> None:
    lowered = lowered_of(name)
    if form is not None:
        form = "slices" if name in BINARY else "tiles"
    n = lowered.layout.n_vars
    plan = Update(Kind.PROXIMAL, np.full(n, 0.5))
    slow, fast = ReferenceProgram(lowered), program_of(lowered, "float64", form)
    q = marginals_of(lowered)
    a, b = slow.start(q), fast.start(q)
    expected = slow.advance(a, plan, 60, 0.05, True)
    found = fast.advance(b, plan, 60, 0.05, False)
    assert 3 < len(expected) < 60
    assert len(found) == len(expected)
    assert np.isnan(found.free_energy).all()
    assert_same(fast.marginals(b), slow.marginals(a), 1e-8)


@direct
def test_more_rows_than_the_device_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    from proxfield.core.engines.triton import device_pack

    monkeypatch.setattr(device_pack, "CAPACITY", 3)
    for name in (BINARY[0], GENERAL[0]):
        lowered = lowered_of(name)
        compare(lowered, adaptive_plan(lowered), "float64", None, 9)


@direct
def test_two_runs_give_the_same_bits() -> None:
    for name in (BINARY[0], "all-terms"):
        lowered = lowered_of(name)
        program = program_of(lowered, "float32")
        plan = plan_of(Kind.ADAM, lowered.layout.n_vars)
        ends = []
        for _ in range(2):
            state = program.start(marginals_of(lowered))
            rows = program.advance(state, plan, 3, 0.0, True)
            ends.append((rows.free_energy, rows.change, program.marginals(state)))
        for one, other in zip(*ends, strict=True):
            np.testing.assert_array_equal(one, other)


@direct
@pytest.mark.parametrize("name", SPARSE[::3])
def test_gradients(name: str) -> None:
    """Up to a number for each variable, which no rule sees."""
    lowered = lowered_of(name)
    if not lowered.layout.n_vars:
        return
    q = marginals_of(lowered, 1)
    q[np.isinf(lowered.unary)] = 0.0
    q = lowered.layout.normalize(q)
    found, expected = program_of(lowered).gradient(q), ReferenceProgram(lowered).gradient(q)
    possible = np.isfinite(expected)
    if not possible.all():  # what is possible of a variable is compared with its least
        found, expected = found[possible], expected[possible]
        assert np.isfinite(found).all() or name.endswith("binary")
        return
    center = lowered.layout.center
    assert_same(center(found), center(expected), 1e-10)


@direct
@pytest.mark.parametrize("name", HARD_TABLES)
def test_forbidden_configurations(name: str) -> None:
    """F is infinite where they have weight, finite in feasible corners; nothing is NaN."""
    lowered = lowered_of(name)
    if not lowered.layout.n_vars:
        return
    slow, fast = ReferenceProgram(lowered), program_of(lowered)
    rng = np.random.default_rng(4)
    for _ in range(6):
        labels = rng.integers(0, lowered.layout.cardinalities)
        q = np.zeros(lowered.layout.size)
        q[lowered.layout.offsets[:-1] + labels] = 1.0
        assert fast.free_energy(fast.start(q)) == pytest.approx(slow.free_energy(slow.start(q)))
    state = fast.start(marginals_of(lowered))
    plan = Update(Kind.PROXIMAL, np.full(lowered.layout.n_vars, 0.5))
    fast.advance(state, plan, 2, 0.0, True)
    assert not np.isnan(fast.marginals(state)).any()


@direct
def test_a_symmetric_field_stays_at_its_saddle() -> None:
    ising = pf.Ising([[0, 1], [1, 2], [2, 3], [3, 0]], [1.5, -2.0, 0.7, 1.1])
    lowered = pf.Field(4, n_labels=2, terms=[ising]).lower()
    for form in ("small", "slices", "diagonals"):
        program = program_of(lowered, "float32", form)
        state = program.start(np.full(8, 0.5))
        rows = program.advance(state, plan_of(Kind.PROXIMAL, 4), 3, -1.0, True)
        assert (rows.change == 0).all()
        assert (program.marginals(state) == 0.5).all()


@direct
@pytest.mark.parametrize("name", [BINARY[0], GENERAL[0]])
def test_new_unary_energies(name: str) -> None:
    from dataclasses import replace

    lowered = lowered_of(name)
    program = program_of(lowered)
    q = marginals_of(lowered)
    program.free_energy(program.start(q))
    other = replace(lowered, unary=lowered.unary + np.arange(lowered.layout.size) / 7)
    program.set_unary(torch.as_tensor(other.unary))
    slow, plan = ReferenceProgram(other), plan_of(Kind.PROXIMAL, lowered.layout.n_vars)
    a, b = slow.start(q), program.start(q)
    assert_rows(program.advance(b, plan, 3, 0.0, True), slow.advance(a, plan, 3, 0.0, True), 1e-8)
    assert program.free_energy(b) == pytest.approx(slow.free_energy(a))


@direct
def test_python_rules() -> None:
    lowered = lowered_of("potts-both-signs")

    def half(theta: Any, q: Any, gradient: Any, memory: dict[str, Any]) -> Any:
        memory["calls"] = memory.get("calls", 0) + 1
        return 0.5 * theta + 0.5 * gradient

    slow, fast = ReferenceProgram(lowered), program_of(lowered)
    q = marginals_of(lowered)
    a, b = slow.start(q), fast.start(q)
    plan = Custom(half, 0.5)
    expected = slow.advance(a, plan, 3, 0.0, True)
    found = fast.advance(b, plan, 3, 0.0, True)
    assert_same(found.free_energy, expected.free_energy, 1e-8)
    assert_same(found.change, expected.change, 1e-8)
    assert_same(fast.marginals(b), slow.marginals(a), 1e-8)
    assert b.memory == {"calls": 3}


@direct
@pytest.mark.parametrize("name", ["ising-grid", "all-terms"])
def test_sweeps_and_descent(name: str) -> None:
    lowered = lowered_of(name)
    slow, fast = ReferenceProgram(lowered), program_of(lowered)
    q = marginals_of(lowered)
    a, b = slow.start(q), fast.start(q)
    order = Order(np.arange(lowered.layout.n_vars))
    expected = slow.advance(a, order, 2, 0.0, True)
    found = fast.advance(b, order, 2, 0.0, True)
    assert_same(found.free_energy, expected.free_energy, 1e-8)
    assert_same(found.change, expected.change, 1e-8)
    assert fast.free_energy(b) == pytest.approx(slow.free_energy(a))
    assert_same(fast.descend(q, 5), slow.descend(q, 5), 1e-12)


@direct
def test_terms_that_iterate_on_their_own() -> None:
    for name in ("gaussian-and-tables", "gaussian"):
        lowered = FINITE_TABLES[name].field().lower()
        n = lowered.layout.n_vars
        plan = Update(Kind.PROXIMAL, np.full(n, 0.5))
        slow, fast = ReferenceProgram(lowered), program_of(lowered)
        q = marginals_of(lowered)
        a, b = slow.start(q), fast.start(q)
        expected = slow.advance(a, plan, 3, 0.0, True)
        found = fast.advance(b, plan, 3, 0.0, True)
        assert_same(found.free_energy, expected.free_energy, 2e-3)
        assert_same(fast.marginals(b), slow.marginals(a), 2e-3)
        with pytest.raises(UnsupportedError, match=r"neighbors|visits|every term"):
            fast.advance(b, Order(np.arange(n)), 1, 0.0, True)


@direct
def test_by_name() -> None:
    lowered = lowered_of("ising-grid")
    program = compile_program(lowered, "cuda", "float32")
    assert type(program).__name__ == "GpuProgram"
    state = program.start(np.full(lowered.layout.size, 0.5))
    program.warm_up(plan_of(Kind.ADAM, lowered.layout.n_vars), state, True)
    assert (program.marginals(state) == 0.5).all()


@direct
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [BINARY[0], GENERAL[0], "gaussian-lattice-repulsive"])
def test_f_is_that_of_the_present_state_and_energies(name: str, dtype: str) -> None:
    """It is computed once for a state that is asked twice, and anew when something has changed."""
    lowered = lowered_of(name)
    program, slow = program_of(lowered, dtype), ReferenceProgram(lowered, "float64")
    looks: list[int] = []
    look = program.batch.look
    program.batch.look = lambda q: (looks.append(1), look(q))[1]
    q, n = marginals_of(lowered), lowered.layout.n_vars
    a, b = program.start(q), slow.start(q)
    close = 1e-8 if dtype == "float64" else 1e-5
    assert program.free_energy(a) == pytest.approx(slow.free_energy(b), rel=close)
    assert program.free_energy(a) == program.free_energy(a)
    assert len(looks) == 1
    for p, s in ((program, a), (slow, b)):
        p.advance(s, plan_of(Kind.PROXIMAL, n), 2, 0.0, False)
    assert program.free_energy(a) == pytest.approx(slow.free_energy(b), rel=close)
    shift = np.linspace(0, 1, lowered.layout.size)
    before, kept = program.free_energy(a), lowered.unary.copy()
    given = torch.as_tensor(lowered.unary + shift)
    for size in (1.0, 2.0):
        program.set_unary(given if size == 1.0 else given + torch.as_tensor(shift))
        gained = size * float(shift @ program.marginals(a))
        assert program.free_energy(a) == pytest.approx(before + gained, rel=close)
        np.testing.assert_array_equal(given, kept + shift)  # the caller's tensor, untouched
    np.testing.assert_array_equal(lowered.unary, kept)
    assert len(looks) == 4


@direct
def test_warming_up_is_left_out_only_where_kernels_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Grids of several sizes and plans with one step or several: each is another kind."""
    from proxfield.core.engines import base

    monkeypatch.setattr(base.Program, "warm", set())

    def kinds(n: int, flat: bool, seed: int = 0, trace: bool = True) -> int:
        program = program_of(grid(n, n, seed=seed).lower())
        start = program.start(np.full(2 * n * n, 0.5))
        program.warm_up(plan_of(Kind.PROXIMAL, n * n, flat=flat), start, trace)
        return len(base.Program.warm)

    assert [kinds(4, True), kinds(4, False), kinds(20, True)] == [1, 2, 3]
    assert [kinds(4, True, seed=5), kinds(4, True, trace=False)] == [3, 4]


@direct
@pytest.mark.parametrize("name", ["ising-grid", "potts-mixed-cardinalities", "gaussian"])
def test_labellings_are_found_on_the_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a result found there, with the promise that E doesn't rise."""
    from proxfield.core.engines.triton.program import GpuProgram

    asked: list[str] = []
    for method in ("descend", "gradient"):
        plain = getattr(GpuProgram, method)

        def seen(*args: Any, plain: Any = plain, method: str = method) -> Any:
            asked.append(method)
            return plain(*args)

        monkeypatch.setattr(GpuProgram, method, seen)
    field = FINITE_TABLES[name].field()
    result = pf.infer(field, "fixed", device="cuda", max_iters=2, init="random")
    asked.clear()
    assert result.map_energy <= result.expected_energy + 1e-9
    assert asked[0] == ("gradient" if field.lower().extras else "descend")
    assert result.map_energy == field.energy(result.map_labels)
