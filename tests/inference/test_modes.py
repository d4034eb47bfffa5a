"""Modes: mixtures of mean fields over disjoint cells."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

import proxfield as pf
from clock import CountedClock
from helpers import Chain, log_sum_exp, random_marginals, repulsive_grid
from proxfield.core.solve.request import Request
from proxfield.core.solve.rules.registry import make_rule
from proxfield.core.solve.search.cells import Cell, CellWork, Pool, user_clamps
from proxfield.core.solve.search.modes import Splitter
from proxfield.generate import grid
from proxfield.mixture import Clamp, mixture_free_energy, mixture_weights
from proxfield.result import Status
from proxfield.testing import Exact, enumerate_field
from random_fields import random_field

TABLES = ["constant", "unary", "pairwise", "potts", "ising", "factor"]
CHUNK = 100


def slack(*numbers: float) -> float:
    """What rounding may cause."""
    return 1e-9 * (1.0 + max(abs(x) for x in numbers))


def within(x: np.ndarray, clamps: tuple[Clamp, ...]) -> np.ndarray:
    """Which labellings agree with some decisions."""
    inside = np.ones(len(x), dtype=bool)
    for clamp in clamps:
        inside &= (x[:, clamp.variable] == clamp.label) == clamp.held
    return inside


def probabilities_of(result: pf.Result, x: np.ndarray) -> np.ndarray:
    """Q(x) of the mixture, labelling by labelling."""
    at = result.field.layout.offsets[:-1] + x
    return sum(mode.weight * mode.q[at].prod(axis=1) for mode in result.modes)


def check(result: pf.Result, exact: Exact) -> None:
    """Everything that is promised about a mixture, against enumeration."""
    field = result.field
    if not exact.feasible:
        assert result.free_energy == np.inf
        return
    if result.free_energy == np.inf:  # no labelling of positive probability was found
        return
    f = [mode.free_energy for mode in result.modes]
    assert result.log_z_bound <= exact.log_z + slack(exact.log_z, result.free_energy)
    assert -result.free_energy >= -min(f)
    assert result.free_energy == pytest.approx(mixture_free_energy(f), abs=slack(*f[:1]))
    inside = np.array([within(exact.labellings, mode.clamps) for mode in result.modes])
    assert (inside.sum(axis=0) == 1).all()  # the cells are a partition
    for mode, mine in zip(result.modes, inside, strict=True):
        if not np.isfinite(mode.free_energy):
            continue
        assert mode.free_energy == pytest.approx(field.free_energy(mode.q), abs=slack(*f, 1e3))
        weight = mode.q[field.layout.offsets[:-1] + exact.labellings].prod(axis=1)
        assert weight[~mine].max(initial=0.0) == 0.0
        part = log_sum_exp(-exact.energies[mine])
        assert -mode.free_energy <= part + slack(part, mode.free_energy)
    assert result.map_energy <= min(field.energy(mode.labels) for mode in result.modes) + slack(*f)


@pytest.mark.parametrize("first", range(0, 2000, CHUNK))
def test_bounds_and_cells_against_enumeration(first: int) -> None:
    """Mixed numbers of labels, attraction and repulsion, evidence, higher order and zeros."""
    above = 0
    for seed in range(first, first + CHUNK):
        scale = (0.3, 1.0, 3.0, 10.0)[seed % 4]
        field, about = random_field(seed, kinds=TABLES, scale=scale)
        exact = enumerate_field(field)
        result = pf.infer(field, modes=(2, 3, 6, 16)[seed // 4 % 4], max_iters=120, seed=seed)
        assert 1 <= len(result.modes) <= 16 or not np.isfinite(result.free_energy), about
        assert result.iterations <= 120
        check(result, exact)
        above += len(result.modes) > 1
    assert above > CHUNK / 3


@pytest.mark.parametrize("seed", range(60))
def test_terms_without_tables(seed: int) -> None:
    """All kinds of terms at all scales: fields whose variables can't be visited one by one too."""
    field, _ = random_field(seed)
    try:
        result = pf.infer(field, modes=3, max_iters=60, seed=seed)
    except pf.UnsupportedError:  # forbidden configurations beside a term without tables
        return
    exact = enumerate_field(field)
    if np.isfinite(result.free_energy) and np.isfinite(result.log_z_bound):
        assert result.log_z_bound <= exact.log_z + slack(exact.log_z, result.free_energy)
        inside = np.array([within(exact.labellings, mode.clamps) for mode in result.modes])
        assert (inside.sum(axis=0) == 1).all()
    assert np.isfinite(result.q).all()


@pytest.mark.parametrize("seed", range(100))
def test_a_split_never_makes_the_bound_worse(seed: int) -> None:
    """From any marginals, without a single sweep: F of the two children's mixture isn't above F."""
    field, _ = random_field(seed, kinds=TABLES, scale=2.0)
    lowered = field.lower()
    if lowered.infeasible or lowered.hard or lowered.layout.n_vars == 0:
        return
    rng = np.random.default_rng(seed)
    request = Request(make_rule("auto"), max_iters=0, threads=1)
    session = request.open(field)
    work = CellWork(session, request.rule, Pool(lowered.layout, 4))
    possible = np.isfinite(lowered.unary)
    q = random_marginals(lowered.layout, rng) * possible
    q = lowered.layout.normalize(q)
    cell = Cell(possible, (), q, session.measure(q), Status.MAX_ITERS)
    splitter = Splitter(work, None)
    decisions = splitter.decisions(cell, 3)
    assert decisions or not session.problem.curvature.local.any()  # no variable depends on others
    for decision in decisions:
        split = splitter.try_split(cell, decision)
        f = mixture_free_energy([child.free_energy for child in split.children])
        assert f <= cell.free_energy + slack(cell.free_energy)
        assert split.children[0].keep.sum() + split.children[1].keep.sum() > possible.sum()
    assert session.loop.iterations == 0


@pytest.mark.parametrize("seed", range(10))
def test_free_energy_of_the_mixture_itself(seed: int) -> None:
    """Σ Q (E + log Q) and the marginals of Q, summed over all labellings."""
    field = grid(3, 4, strength=1.5, seed=seed)
    result = pf.infer(field, modes=6, max_iters=1000, seed=seed)
    assert len(result.modes) == 6
    exact = enumerate_field(field)
    q = probabilities_of(result, exact.labellings)
    assert q.sum() == pytest.approx(1.0)
    f = float((q * (exact.energies + np.log(np.where(q > 0, q, 1.0)))).sum())
    assert result.free_energy == pytest.approx(f, abs=1e-9)
    assert result.expected_energy == pytest.approx(float((q * exact.energies).sum()), abs=1e-9)
    entries = (field.layout.offsets[:-1] + exact.labellings).ravel()
    sums = np.bincount(entries, np.repeat(q, field.n_vars), minlength=field.layout.size)
    np.testing.assert_allclose(result.q, sums, atol=1e-12)
    assert sum(mode.weight for mode in result.modes) == pytest.approx(1.0)
    weights = [mode.weight for mode in result.modes]
    assert weights == sorted(weights, reverse=True)
    alone = pf.infer(field, max_iters=500, seed=seed)
    assert result.log_z_bound > alone.log_z_bound
    assert np.abs(result.q - exact.marginals).mean() < np.abs(alone.q - exact.marginals).mean()


def test_two_modes_of_a_symmetric_field() -> None:
    edges = [(i, j) for i in range(9) for j in (i + 1, i + 3) if j < 9 and (j != i + 1 or j % 3)]
    field = pf.Field(9, 2).add(pf.Ising(edges, -2.0))
    alone, two = (pf.infer(field, modes=k, max_iters=500) for k in (1, 2))
    assert alone.modes == ()
    assert two.log_z_bound == pytest.approx(alone.log_z_bound + np.log(2), abs=1e-3)
    np.testing.assert_allclose(two.q, 0.5, atol=1e-3)
    assert [mode.weight for mode in two.modes] == pytest.approx([0.5, 0.5], abs=1e-3)
    first, second = two.modes
    assert (first.labels != second.labels).all()
    assert two.converged
    samples = two.sample(400, seed=1)
    same = (samples == samples[:, :1]).mean()  # variables agree, as they wouldn't in a product
    assert same > 0.98
    assert 0.4 < samples.mean() < 0.6
    np.testing.assert_array_equal(samples, two.sample(400, seed=1))


def test_every_mode_is_a_local_minimum_of_its_cell() -> None:
    field = grid(6, 6, strength=1.5, seed=4)
    result = pf.infer(field, modes=8, max_iters=4000)
    assert result.converged and len(result.modes) == 8
    for mode in result.modes:
        held = {c.variable: c.label for c in mode.clamps}
        assert all(c.held for c in mode.clamps)  # of two labels, one is held
        again = pf.infer(field.condition(held), "sweep", init=mode.q)
        assert again.free_energy == pytest.approx(mode.free_energy, abs=1e-6)


def test_more_modes_than_labellings() -> None:
    field = pf.Field([3]).add(pf.Unary([[0.0, 1.0, 2.0]]))
    result = pf.infer(field, modes=50)
    assert 1 <= len(result.modes) <= 3
    assert result.log_z_bound == pytest.approx(enumerate_field(field).log_z)
    assert pf.infer(pf.Field([]), modes=3).free_energy == 0.0
    assert pf.infer(pf.Field([1, 1]), modes=3).log_z_bound == 0.0


def test_several_labels_are_excluded_one_after_another() -> None:
    field = pf.Field(4, 4).add(pf.Potts([[0, 1], [1, 2], [2, 3], [3, 0]], 4.0))
    result = pf.infer(field, modes=4, max_iters=1000)
    exact = enumerate_field(field)
    check(result, exact)
    assert len(result.modes) == 4
    assert sorted(mode.labels[0] for mode in result.modes) == [0, 1, 2, 3]
    assert any(not clamp.held for mode in result.modes for clamp in mode.clamps)
    np.testing.assert_allclose(result.q, 0.25, atol=0.02)


def test_infeasible_fields() -> None:
    result = pf.infer(pf.Field([2], terms=[pf.Constant(np.inf)]), modes=3)
    assert result.status is Status.INFEASIBLE and result.modes == ()


def test_evidence_and_the_users_numbering() -> None:
    field = grid(3, 3, strength=2.0, seed=1)
    field = field.named([f"x{i}" for i in range(9)], ["off", "on"]).condition({4: 1})
    result = pf.infer(field, modes=4, max_iters=500)
    check(result, enumerate_field(field))
    for mode in result.modes:
        assert 4 not in {clamp.variable for clamp in mode.clamps}
        assert mode.q[8:10].tolist() == [0.0, 1.0]
        assert mode.cell.startswith("x") and mode.cell.split(" = ")[1][:2] in ("of", "on")
    assert result["x4", "on"] == 1.0


def test_clamps_that_later_ones_imply_are_left_out() -> None:
    reduction = pf.Field([3, 2]).add(pf.Potts([[0, 1]], 1.0)).lower().reduction
    clamps = (Clamp(0, 0, False), Clamp(1, 1, False), Clamp(0, 2, True))
    assert user_clamps(reduction, clamps) == (Clamp(1, 0, True), Clamp(0, 2, True))
    assert user_clamps(reduction, clamps[:1]) == (Clamp(0, 0, False),)


# ---- limits, seeds, statuses ----


def test_one_mode_is_what_there_is_without_modes() -> None:
    field = repulsive_grid(6, weight=1.5, bias=0.2)
    plain, one = pf.infer(field, max_iters=300), pf.infer(field, max_iters=300, modes=1)
    np.testing.assert_array_equal(plain.q, one.q)
    assert plain.free_energy == one.free_energy and one.modes == ()
    assert "modes" not in one.summary()


def test_same_seed_same_bits() -> None:
    field = repulsive_grid(12, weight=1.5, bias=0.2)
    runs = [pf.infer(field, modes=5, max_iters=1500, seed=5, threads=k) for k in (1, 1, 2)]
    for other in runs[1:]:
        np.testing.assert_array_equal(runs[0].q, other.q)
        assert runs[0].free_energy == other.free_energy
        assert runs[0].iterations == other.iterations
        assert [m.clamps for m in runs[0].modes] == [m.clamps for m in other.modes]
    assert len(runs[0].modes) == 5


@pytest.mark.parametrize("limit", [0, 1, 7, 40, 300])
def test_iterations_are_limited(limit: int) -> None:
    field = grid(8, 8, strength=1.5, seed=0)
    result = pf.infer(field, modes=4, max_iters=limit)
    assert result.iterations <= max(limit, 16)
    assert result.free_energy == pytest.approx(
        mixture_free_energy([m.free_energy for m in result.modes])
    )
    assert result.trace.free_energy[-1] == pytest.approx(result.free_energy)


def test_sweeps_of_descents_count() -> None:
    field = repulsive_grid(4, weight=1.5, bias=0.2)
    request = Request(make_rule("auto"), max_iters=500, threads=1)
    session = request.open(field)
    work = CellWork(session, request.rule, Pool(field.layout, 4))
    cell = Cell(np.ones(32, dtype=bool), (), session.start, np.inf, Status.MAX_ITERS)
    rough = session.nudged(session.start)
    q, f = work.descend(cell, rough[None])
    assert f == pytest.approx(field.free_energy(q)) and f < field.free_energy(rough)
    assert 1 < session.loop.iterations <= 30


def test_the_budget_is_shared_and_kept() -> None:
    field = grid(10, 10, strength=1.5, seed=0)
    pf.infer(field, modes=4, budget=0.05)  # compiles
    with CountedClock(update=1e-4, look=1e-6) as clock:
        result = pf.infer(field, modes=4, budget=0.5)
    assert 0.3 < result.seconds < 0.53
    assert clock.now < 0.55
    assert len(result.modes) > 1


def test_the_trace_of_the_mixture_never_rises() -> None:
    result = pf.infer(grid(10, 10, strength=1.5, seed=0), modes=8, max_iters=3000)
    assert result.trace.member is not None
    rows = [
        f
        for f, m in zip(result.trace.free_energy, result.trace.member, strict=True)
        if m == "modes"
    ]
    assert len(rows) >= 8
    assert (np.diff(rows) <= slack(*rows)).all()


@pytest.mark.parametrize("after", [1, 5, 12, 25])
def test_interrupts_return_what_is_known(after: int) -> None:
    calls: list[int] = []

    def interrupt(progress: pf.Progress) -> None:
        calls.append(1)
        if len(calls) == after:
            signal.raise_signal(signal.SIGINT)

    field = grid(10, 10, strength=1.5, seed=0)
    with CountedClock(update=1e-4, look=1e-5):
        result = pf.infer(field, modes=4, budget=0.5, callback=interrupt)
    assert result.status is Status.INTERRUPTED and len(calls) >= after
    f = [mode.free_energy for mode in result.modes]
    assert result.free_energy == pytest.approx(mixture_free_energy(f))
    for mode in result.modes:
        assert mode.free_energy == pytest.approx(field.free_energy(mode.q), abs=1e-8)


def test_the_callback_sees_the_whole_and_may_stop_it() -> None:
    seen: list[pf.Progress] = []
    field = grid(10, 10, strength=1.5, seed=0)
    with CountedClock(update=1e-4, look=1e-5):
        result = pf.infer(
            field, modes=4, budget=0.5, callback=lambda p: seen.append(p) or p.seconds > 0.4
        )
    assert result.status is Status.STOPPED
    assert [p.seconds for p in seen] == sorted(p.seconds for p in seen)
    assert [p.iteration for p in seen] == sorted(p.iteration for p in seen)
    assert all(p.budget == pytest.approx(0.5) for p in seen[-3:])
    assert len(result.modes) > 1


def test_float32_bounds_are_bounds() -> None:
    field = grid(4, 4, strength=2.0, seed=2)
    result = pf.infer(field, modes=5, max_iters=800, dtype="float32")
    check(result, enumerate_field(field))


def test_reference_kernels() -> None:
    field = grid(3, 3, strength=2.0, seed=2)
    result = pf.infer(field, modes=3, max_iters=200, kernels="reference")
    check(result, enumerate_field(field))
    assert len(result.modes) == 3


def test_terms_of_ones_own() -> None:
    field = pf.Field(3, n_labels=2, terms=[Chain(1.0), pf.Unary([[0, 1], [1, 0], [0, 1]])])
    result = pf.infer(field, modes=3, max_iters=100)
    f = [mode.free_energy for mode in result.modes]
    assert result.free_energy == pytest.approx(mixture_free_energy(f))
    assert [field.free_energy(mode.q) for mode in result.modes] == pytest.approx(f)


# ---- what users give and get ----


@pytest.mark.parametrize("modes", [0, -1, 2.5, "two", True, None])
def test_senseless_numbers_of_modes(modes: object) -> None:
    with pytest.raises(pf.InputError, match=r"modes=.*expected a whole number, 1 or more"):
        pf.infer(pf.Field([2]), modes=modes)  # type: ignore[arg-type]


def test_other_rules_are_refused() -> None:
    with pytest.raises(pf.InputError, match="modes=2 needs the rule auto, not sweep"):
        pf.infer(pf.Field([2]), "sweep", modes=2)
    assert pf.infer(pf.Field([2]), "sweep", modes=1).converged


def test_a_mixture_is_continued_from_its_heaviest_mode() -> None:
    field = grid(6, 6, strength=1.5, seed=4)
    result = pf.infer(field, modes=4, max_iters=2000)
    start = pf.infer(field, "sweep", init=result, max_iters=0)
    np.testing.assert_allclose(start.q, result.modes[0].q, atol=1e-12)


def test_saved_and_shown(tmp_path: Path) -> None:
    field = grid(4, 4, strength=2.0, seed=3)
    result = pf.infer(field, modes=4, max_iters=500)
    result.save(tmp_path / "result.npz")
    again = pf.Result.load(tmp_path / "result.npz")
    assert again.free_energy == result.free_energy
    for one, other in zip(result.modes, again.modes, strict=True):
        assert one.q.tobytes() == other.q.tobytes() and one.clamps == other.clamps
        assert (one.weight, one.free_energy) == (other.weight, other.free_energy)
    np.testing.assert_array_equal(result.sample(9, seed=2), again.sample(9, seed=2))
    assert "mode 4" in result._repr_html_()
    assert repr(result.modes[0]).startswith("Mode(free energy")
    assert result.summary()["modes"][0]["weight"] == result.modes[0].weight
    rows = result.modes[0].marginals
    assert isinstance(rows, np.ndarray) and rows.shape == (16, 2)


def test_weights_and_free_energies_of_mixtures() -> None:
    assert mixture_free_energy([]) == np.inf
    assert mixture_free_energy([np.inf, np.inf]) == np.inf
    assert mixture_free_energy([1e4, 1e4]) == pytest.approx(1e4 - np.log(2))
    np.testing.assert_allclose(mixture_weights([np.inf, np.inf]), 0.5)
    np.testing.assert_allclose(mixture_weights([0.0, np.log(3.0)]), [0.75, 0.25])
