"""Compiled iterations of dense fields: against the general kernels, which iterate the same terms
through their own gradients, and in all the ways a state can be driven.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from helpers import SINGLE, VARIANTS, Array, random_marginals
from proxfield.core.compiled.jit import max_threads, thread_count
from proxfield.core.engines import compile_program
from proxfield.core.engines.base import Rows, State
from proxfield.core.engines.numba import dense_views
from proxfield.core.engines.numba.cpu import CpuProgram
from proxfield.core.engines.numba.dense_program import DenseProgram
from proxfield.core.engines.numba.programs import BinaryProgram
from proxfield.core.engines.plan import Custom, Kind, Plan, Update
from proxfield.core.filters.numba.lattice import CHUNK
from proxfield.core.solve.curvature import Curvature
from proxfield.core.solve.rules.base import Problem
from proxfield.core.solve.rules.registry import make_rule

TOGETHER = [v for v in VARIANTS if v not in SINGLE]
HEIGHT, WIDTH = 125, 160
N = HEIGHT * WIDTH
SMALL = CHUNK + 300
"""Points of two chunks, the second one odd."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Cores may be busy; tests of threads say so themselves."""
    with thread_count(1):
        yield


def picture(n: int = N, seed: int = 0) -> tuple[Array, Array]:
    """Places and colors of the first n pixels of a picture with four regions."""
    rng = np.random.default_rng(seed)
    yx = np.stack(np.mgrid[:HEIGHT, :WIDTH], axis=-1).reshape(-1, 2)[:n].astype(float)
    region = (yx[:, 0] // 41 + 2 * (yx[:, 1] // 70)).astype(int)
    colors = rng.random(size=(8, 3))[region] * 255 + rng.normal(scale=5, size=(n, 3))
    return yx, colors


def dense_field(
    n_labels: int = 3,
    n: int = N,
    *,
    own: bool = False,
    color: dict[str, Any] | None = None,
    cards: list[int] | None = None,
    sign: float = 1.0,
) -> pf.Field:
    """Places under Potts, and places with colors under whatever ``color`` says.

    own: keep self-messages; cards: labels of variables after the pixels.
    """
    rng = np.random.default_rng(n_labels)
    yx, colors = picture(n)
    field = pf.Field([n_labels] * n + (cards or []))
    field.add(pf.Unary(rng.normal(size=(n, n_labels)), np.arange(n)))
    options: dict[str, Any] = {"filter": "lattice", "self_message": own}
    field.add(pf.Gaussian(yx / 4, 1.5 * sign, **options))
    if color is not None:
        near = np.hstack([yx / 60, colors / 20])
        field.add(pf.Gaussian(near, 2.0 * sign, **{**options, **color}))
    return field


def full_table(n_labels: int) -> Array:
    return np.random.default_rng(99).normal(size=(n_labels, n_labels)) - np.eye(n_labels)


@pytest.fixture(scope="module")
def field() -> pf.Field:
    """Four chunks, three labels, two terms, one with two scales and a full table."""
    return dense_field(color={"normalization": "after", "compatibility": full_table(3)})


def plan_of(field: pf.Field, variant: str) -> Plan:
    lowered = field.lower()
    rule, params = VARIANTS[variant]
    return make_rule(rule, params).plan(Problem(lowered, Curvature(lowered, field), 0))


def start_of(field: pf.Field, seed: int = 1) -> Array:
    return random_marginals(field.layout, np.random.default_rng(seed))


def full(
    field: pf.Field, step: float = 1.0, kind: Kind = Kind.PROXIMAL, beta: float = 1.0
) -> Update:
    return Update(kind, np.full(field.n_vars, step), inverse_temperature=beta)


def general(field: pf.Field) -> CpuProgram:
    return CpuProgram(field.lower(), "float64", 1)


def dense(field: pf.Field, dtype: str = "float64", threads: int = 1) -> DenseProgram:
    program = compile_program(field.lower(), "cpu", dtype, threads)
    assert isinstance(program, DenseProgram)
    return program


def assert_same_rows(a: Rows, b: Rows, tolerance: float = 1e-9) -> None:
    np.testing.assert_allclose(a.free_energy, b.free_energy, rtol=tolerance)
    np.testing.assert_allclose(a.change, b.change, rtol=1e3 * tolerance, atol=tolerance)


def assert_same_state(a: DenseProgram, s: State, b: CpuProgram, t: State) -> None:
    np.testing.assert_allclose(a.marginals(s), b.marginals(t), rtol=0, atol=1e-9)
    assert a.free_energy(s) == pytest.approx(b.free_energy(t), rel=1e-11)


def assert_same_steps(field: pf.Field, *plans: Plan, steps: int = 3, trace: bool = True) -> None:
    """Plan after plan on one state, by both programs."""
    ours, theirs = dense(field), general(field)
    q = start_of(field)
    s, t = ours.start(q), theirs.start(q)
    for plan in plans:
        a, b = (p.advance(x, plan, steps, 0.0, trace) for p, x in ((ours, s), (theirs, t)))
        assert len(a) == len(b) == steps
        if trace:
            assert_same_rows(a, b)
            np.testing.assert_allclose(a.period2, b.period2, rtol=1e-6, atol=1e-9)
        assert_same_state(ours, s, theirs, t)


# ---- against the general kernels ----


def test_there_are_several_chunks(field: pf.Field) -> None:
    program = dense(field)
    assert program.n_blocks == 4
    assert program.views.chunks.begin[1] == WIDTH  # blocks of the picture
    assert len(program.views.views) == 3  # one scale, and two for the normalization "after"


@pytest.mark.parametrize("variant", TOGETHER)
def test_every_rule_does_what_the_general_kernels_do(field: pf.Field, variant: str) -> None:
    assert_same_steps(field, plan_of(field, variant))


def test_free_energy_and_gradient(field: pf.Field) -> None:
    q = start_of(field, 2)
    ours, theirs = dense(field), general(field)
    assert ours.free_energy(ours.start(q)) == pytest.approx(field.free_energy(q), rel=1e-11)
    np.testing.assert_allclose(ours.gradient(q), theirs.gradient(q), rtol=0, atol=1e-9)


@pytest.mark.parametrize("n_labels", [1, 2, 7, 8, 9, 21, 40])
@pytest.mark.parametrize("step", [1.0, 0.6])
def test_any_number_of_labels(n_labels: int, step: float) -> None:
    """Around a multiple of eight: rows are padded to whole groups of lanes."""
    field = dense_field(n_labels, SMALL)
    assert_same_steps(field, full(field, step), steps=2 if n_labels > 1 else 1)


@pytest.mark.parametrize("n_labels", [2, 9])
@pytest.mark.parametrize("compatibility", ["potts", "diagonal", "full"])
@pytest.mark.parametrize("own", [False, True])
def test_any_compatibility(n_labels: int, compatibility: str, own: bool) -> None:
    table = full_table(n_labels)
    given = {"potts": None, "diagonal": np.diag(table), "full": table}[compatibility]
    field = dense_field(n_labels, SMALL, own=own)
    features = np.hstack([x / s for x, s in zip(picture(SMALL), (60, 20), strict=True)])
    field.add(
        pf.Gaussian(features, 0.02, given, normalization="none", filter="lattice", self_message=own)
    )
    assert_same_steps(field, full(field), full(field, 0.5), steps=2)


@pytest.mark.parametrize("variant", TOGETHER)
def test_impossible_labels(variant: str) -> None:
    field = dense_field(3, SMALL)
    gone = np.zeros((SMALL, 3))
    which = np.random.default_rng(3).integers(0, 3, size=SMALL)
    gone[np.arange(SMALL), which] = np.where(np.arange(SMALL) % 3 == 0, np.inf, 0.0)
    gone[5] = [np.inf, 0.0, np.inf]
    field.add(pf.Unary(gone))
    plan = plan_of(field, variant)
    ours, theirs = dense(field), general(field)
    q = start_of(field)
    s, t = ours.start(q), theirs.start(q)
    assert ours.free_energy(s) == theirs.free_energy(t) == np.inf
    a, b = ours.advance(s, plan, 4, 0.0, True), theirs.advance(t, plan, 4, 0.0, True)
    assert a.free_energy[0] == np.inf
    assert np.isfinite(a.free_energy[1:]).all()
    assert_same_rows(a, b)
    assert_same_state(ours, s, theirs, t)
    assert (ours.marginals(s)[np.isinf(gone).ravel()] == 0).all()


def with_tail(n_labels: int = 3, n: int = SMALL) -> pf.Field:
    """Variables after the pixels: some alone, some under a term of their own."""
    rng = np.random.default_rng(4)
    field = dense_field(n_labels, n, cards=[2, 2, 2, 5])
    field.add(pf.Unary(rng.normal(size=(2, 2)), [n, n + 2]))
    field.add(pf.Unary([[0.3, np.inf, 1.0, -0.2, 0.0]], [n + 3]))
    return field.add(pf.Gaussian(rng.normal(size=(3, 2)), -2.0, filter="exact", first=n))


@pytest.mark.parametrize("variant", TOGETHER)
def test_variables_after_the_pixels(variant: str) -> None:
    field = with_tail()
    plan = plan_of(field, variant)
    ours, theirs = dense(field), general(field)
    assert ours.tail == 4
    q = start_of(field)
    s, t = ours.start(q), theirs.start(q)
    a, b = ours.advance(s, plan, 4, 0.0, True), theirs.advance(t, plan, 4, 0.0, True)
    assert_same_rows(a, b)
    assert_same_state(ours, s, theirs, t)
    assert ours.marginals(s)[-4] == 0.0
    np.testing.assert_allclose(ours.gradient(q), theirs.gradient(q), rtol=0, atol=1e-9)


def test_variables_after_the_pixels_without_a_trace() -> None:
    field = with_tail(2)
    assert_same_steps(field, full(field), full(field, 0.5), trace=False)


def test_a_term_that_is_not_on_the_lattice_among_the_pixels() -> None:
    field = dense_field(3, SMALL)
    field.add(pf.Gaussian(picture(SMALL)[0][:200] / 3, -2.0, filter="exact", first=100))
    assert_same_steps(field, full(field), full(field, 0.7), full(field, 0.5, Kind.MEAN))


def test_lattices_share_the_chunks_that_the_one_with_most_features_needs() -> None:
    """Rows are numbered by 16 bits, so nine features have smaller chunks than two."""
    field = dense_field(3, SMALL)
    many = np.random.default_rng(5).random(size=(SMALL, 9)) * 0.4
    field.add(pf.Gaussian(many, 1.0, filter="lattice", self_message=True))
    program = dense(field)
    sizes = [len(view.filter.chunk) for view in program.views]
    assert sizes == [len(program.views.chunks.run)] * 2
    assert all(len(term.filter.chunk) <= sizes[0] for term in program.terms)
    assert_same_steps(field, full(field), full(field, 0.5))


@pytest.mark.parametrize("n_labels", [2, 3])
@pytest.mark.parametrize("places_first", [True, False])
def test_a_lattice_that_knows_no_image_takes_the_chunks_of_one_that_does(
    n_labels: int, places_first: bool
) -> None:
    yx, colors = picture()
    field = pf.Field(N, n_labels=n_labels)
    field.add(pf.Unary(np.random.default_rng(4).normal(size=(N, n_labels)), np.arange(N)))
    for features in (yx / 4, colors / 20)[:: 1 if places_first else -1]:
        field.add(pf.Gaussian(features, 1.5, filter="lattice", self_message=True))
    program = dense(field)
    assert [view.filter.width for view in program.views] == [WIDTH, WIDTH]
    assert_same_steps(field, full(field), full(field, 0.7))
    assert_same_steps(field, full(field), trace=False)


# ---- driving a state ----


def test_one_kind_of_step_after_another() -> None:
    """A state keeps no more than its rules need; what it lacks is made when it is needed."""
    field = dense_field(3, SMALL)
    for last in ("momentum", "adam-slow"):  # their moments are not for each other
        plans = [full(field), full(field, 0.5), full(field), plan_of(field, "adaptive")]
        plans += [full(field, 0.3), plan_of(field, last), full(field)]
        assert_same_steps(field, *plans, steps=2)


def test_averaged_marginals_are_where_the_next_rule_starts() -> None:
    """Averaging marginals moves no natural parameters: those are made anew from them."""
    field = dense_field(3, SMALL)
    program = dense(field)
    state = program.start(start_of(field))
    program.advance(state, full(field, 0.5, Kind.MEAN), 2, 0.0, True)
    fresh = dense(field)
    other = fresh.start(program.marginals(state))
    a = program.advance(state, full(field, 0.5), 2, 0.0, True)
    b = fresh.advance(other, full(field, 0.5), 2, 0.0, True)
    assert_same_rows(a, b)
    np.testing.assert_allclose(program.marginals(state), fresh.marginals(other), atol=1e-9)


@pytest.mark.parametrize("beta", [0.3, 2.0])
@pytest.mark.parametrize("kind", [Kind.PROXIMAL, Kind.MEAN])
@pytest.mark.parametrize("trace", [False, True])
def test_temperatures(beta: float, kind: Kind, trace: bool) -> None:
    field = dense_field(2, SMALL, own=True)
    plans = [full(field, step, kind, beta) for step in (1.0, 0.5)]
    assert_same_steps(field, *plans, trace=trace)


def test_steps_that_differ() -> None:
    field = dense_field(3, SMALL)
    steps = np.random.default_rng(6).uniform(0.2, 1.0, size=SMALL)
    plans = [Update(kind, steps) for kind in (Kind.PROXIMAL, Kind.MEAN)]
    for plan in plans:
        assert_same_steps(field, plan)


def test_a_rule_in_python() -> None:
    field = dense_field(3, SMALL)

    def halfway(theta: Array, q: Array, gradient: Array, memory: dict[str, Any]) -> Array:
        return 0.5 * (theta + gradient)

    assert_same_steps(field, full(field), Custom(halfway, 0.5), full(field, 0.5), trace=False)


def test_states_of_one_program_do_not_mix() -> None:
    """Rows on the lattices belong to one state at a time."""
    field = dense_field(3, SMALL, color={})
    program, plan = dense(field), full(field, 0.7)
    starts = [start_of(field, seed) for seed in (7, 8)]
    alone = [program.advance(program.start(q), plan, 4, 0.0, True) for q in starts]
    states = [program.start(q) for q in starts]
    taken: list[list[float]] = [[], []]
    for _ in range(4):
        for k, state in enumerate(states):
            taken[k] += program.advance(state, plan, 1, 0.0, True).free_energy.tolist()
            program.free_energy(state)
    for k in range(2):
        np.testing.assert_allclose(taken[k], alone[k].free_energy, rtol=1e-13)


def test_it_stops_at_tol() -> None:
    field = dense_field(3, SMALL)
    plan = full(field)
    for trace in (False, True):
        program = dense(field)
        state = program.start(start_of(field))
        rows = program.advance(state, plan, 1000, 1e-4, trace)
        assert 3 < len(rows) < 1000
        assert rows.change[-1] <= 1e-4 < rows.change[-2]


def test_taking_an_array_works_in_it(dtype: str) -> None:
    field = dense_field(3, SMALL, own=True)
    program, plan = dense(field, dtype), full(field)
    q = start_of(field).astype(dtype)
    copied = program.start(q)
    before = q.copy()
    program.advance(copied, plan, 3, 0.0, False)
    np.testing.assert_array_equal(q, before)
    taken = program.take(q[None])
    program.advance(taken, plan, 3, 0.0, False)
    assert np.shares_memory(program.view(taken), q)
    assert not np.shares_memory(program.marginals(taken), q)
    assert program.view(taken).dtype == dtype
    np.testing.assert_array_equal(program.view(taken), program.marginals(copied))
    np.testing.assert_array_equal(q, program.marginals(taken))


# ---- shortcuts ----


@pytest.mark.parametrize("n_labels", [2, 3, 9])
@pytest.mark.parametrize("normalization", ["symmetric", "before"])
def test_what_is_not_asked_for_changes_nothing(
    n_labels: int, normalization: str, dtype: str
) -> None:
    """With a trace, without, and without even a change: two labels have a path of their own."""
    field = dense_field(n_labels, own=True, color={"normalization": normalization})
    q, plan = start_of(field), full(field)
    seen = []
    for trace, tol in ((True, 0.0), (False, 0.0), (False, -1.0)):
        program = dense(field, dtype)
        state = program.start(q)
        rows = program.advance(state, plan, 4, tol, trace)
        assert len(rows) == 4
        assert np.isfinite(rows.free_energy).all() == trace
        assert np.isfinite(rows.change).all() == (tol == 0)
        seen.append((program.marginals(state), rows.change, program.free_energy(state)))
    atol = 1e-12 if dtype == "float64" else 2e-5
    for p, change, f in seen[1:]:
        np.testing.assert_allclose(p, seen[0][0], rtol=0, atol=atol)
        assert f == pytest.approx(seen[0][2], rel=1e-12 if dtype == "float64" else 1e-5)
        if np.isfinite(change).all():
            np.testing.assert_allclose(change, seen[0][1], atol=10 * atol)
    np.testing.assert_array_equal(seen[1][0], seen[2][0])
    t = general(field)
    state = t.start(q)
    t.advance(state, plan, 4, 0.0, False)
    np.testing.assert_allclose(seen[1][0], t.marginals(state), rtol=0, atol=1e3 * atol)


def test_two_labels_go_on_from_any_path() -> None:
    """The short path leaves nothing behind that the long one would trust, and the reverse."""
    field = dense_field(2, SMALL, own=True)
    ours, theirs, plan = dense(field), general(field), full(field)
    q = start_of(field)
    s, t = ours.start(q), theirs.start(q)
    for trace, tol in ((True, 0.0), (False, 0.0), (True, 0.0), (False, -1.0), (True, 0.0)):
        a = ours.advance(s, plan, 2, tol, trace)
        b = theirs.advance(t, plan, 2, tol, True)
        if trace:
            assert_same_rows(a, b)
        assert_same_state(ours, s, theirs, t)


def test_two_labels_that_repel() -> None:
    field = dense_field(2, SMALL, own=True, sign=-4.0)
    assert_same_steps(field, full(field), steps=4, trace=False)


def test_two_labels_with_huge_energies() -> None:
    """exp of a large difference is 0, not an overflow."""
    field = dense_field(2, SMALL, own=True)
    rows = np.zeros((SMALL, 2))
    rows[::2, 1], rows[1::3, 0], rows[7] = 1e4, 1e30, [-1e30, 1e30]
    field.add(pf.Unary(rows))
    program, plan = dense(field), full(field)
    state = program.start(start_of(field))
    program.advance(state, plan, 3, 0.0, False)
    q = program.marginals(state).reshape(-1, 2)
    assert np.isfinite(q).all()
    np.testing.assert_allclose(q.sum(axis=1), 1.0)
    assert (q[rows[:, 1] - rows[:, 0] > 1000, 1] == 0).all()
    assert (q[rows[:, 0] - rows[:, 1] > 1000, 0] == 0).all()
    assert_same_steps(field, plan, trace=False)


@pytest.mark.parametrize("n_labels", [2, 3, 9])
@pytest.mark.parametrize("compatibility", ["potts", "table"])
def test_lattices_of_any_size(
    n_labels: int, compatibility: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large ones are blurred by all threads together, small ones by a thread each."""
    table = full_table(n_labels) if compatibility == "table" else None
    field = dense_field(n_labels, own=True, color={"compatibility": table})
    q, found = start_of(field), []
    for small in (True, False):
        monkeypatch.setattr(dense_views.lattice, "CACHE_BYTES", 2**24 if small else 0)
        monkeypatch.setattr(dense_views.lattice, "FEW_VERTICES", 10**6 if small else 0)
        program = dense(field, dtype, threads=2)
        assert program.views.apart == program.views.few == small
        state = program.start(q)
        program.advance(state, full(field), 4, 0.0, False)
        found.append(program.marginals(state))
    np.testing.assert_allclose(*found, rtol=0, atol=1e-12 if dtype == "float64" else 1e-5)


@pytest.mark.parametrize("rule", ["full-parallel", "fixed", "adhoc", "adaptive"])
@pytest.mark.parametrize("n_labels", [2, 3])
def test_infer_without_a_trace(rule: str, n_labels: int, dtype: str) -> None:
    field = dense_field(n_labels, SMALL, own=True, color={})
    options: dict[str, Any] = {"max_iters": 6, "tol": 0.0, "dtype": dtype}
    kept, lean = (pf.infer(field, rule, trace=t, **options) for t in (True, False))
    assert lean.iterations == kept.iterations == 6
    np.testing.assert_allclose(lean.q, kept.q, rtol=0, atol=1e-11 if dtype == "float64" else 1e-4)
    assert lean.free_energy == pytest.approx(
        kept.free_energy, rel=1e-11 if dtype == "float64" else 1e-5
    )
    again = pf.infer(field, rule, trace=False, **options)
    np.testing.assert_array_equal(again.q, lean.q)


# ---- threads and precision ----


@pytest.mark.skipif(max_threads() < 2, reason="needs two threads")
@pytest.mark.parametrize("variant", ["full-parallel", "fixed", "adhoc", "adaptive", "adam"])
@pytest.mark.parametrize("n_labels", [2, 3])
@pytest.mark.parametrize("trace", [False, True])
def test_the_same_bits_on_any_number_of_threads(variant: str, n_labels: int, trace: bool) -> None:
    own = variant == "full-parallel"  # with two labels and no trace, the short path
    field = dense_field(n_labels, own=own)
    plan, q = plan_of(field, variant), start_of(field)
    seen = []
    for threads in (1, 2):
        with thread_count(max_threads()):
            program = DenseProgram(field.lower(), "float64", threads)
            program.threads = threads  # whatever the size of the field
            state = program.start(q)
            rows = program.advance(state, plan, 4, 0.0, trace)
            f = program.free_energy(state)
        seen.append((rows.free_energy, rows.change, program.marginals(state), f))
    for one, two in zip(*seen, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("variant", TOGETHER)
def test_float32_follows_float64(field: pf.Field, variant: str) -> None:
    plan, q = plan_of(field, variant), start_of(field)
    found = []
    for dtype in ("float64", "float32"):
        program = dense(field, dtype)
        state = program.start(q)
        rows = program.advance(state, plan, 4, 0.0, True)
        found.append((program.marginals(state), rows.free_energy))
    assert found[1][0].dtype == np.float32
    apart = abs(found[1][0] - found[0][0])
    if "adam" in variant:  # divides by its gradients, some of which are rounding alone
        assert (apart > 1e-2).mean() < 1e-4
    else:
        assert apart.max() <= 2e-4
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-4)


# ---- which program ----


def test_which_fields_are_dense() -> None:
    yx, _ = picture(100)

    def kind(*terms: pf.Term) -> type:
        lowered = pf.Field(100, n_labels=2, terms=list(terms)).lower()
        return type(compile_program(lowered, "cpu", "float64"))

    on = pf.Gaussian(yx, filter="lattice")
    assert kind(on) is DenseProgram
    assert kind(on, pf.Gaussian(yx)) is DenseProgram  # the other is exact
    assert kind(on, pf.Potts([[0, 1]], 1.0)) is BinaryProgram  # two labels
    assert kind(on, pf.Gaussian(yx[:50], filter="lattice")) is BinaryProgram
    assert kind(pf.Gaussian(yx[:50], filter="lattice", first=50)) is BinaryProgram
    assert kind(pf.Gaussian(yx)) is BinaryProgram
