"""A field over 2 to 4 ranks gives what one process gives. Ranks are threads here."""

from __future__ import annotations

import numpy as np
import pytest

import proxfield as pf
from helpers import KERNELS
from proxfield.core.engines import compile_program
from proxfield.distributed import Partition, Transport, grid_partition, infer, run_threads
from proxfield.distributed.grid import Tiling
from proxfield.distributed.spectrum import SpreadCurvature
from proxfield.generate import grid
from random_fields import random_field

RULES = {
    "fixed": 1e-12,
    "momentum": 1e-12,
    "adaptive": 1e-12,
    "adhoc": 1e-12,
    "full-parallel": 1e-12,
    "backtracking": 1e-12,
    "colored": 1e-12,
    "anneal": 1e-12,
    "adam": 1e-9,
}
ONE_THREAD = {"threads": 1}


def suitable(field: pf.Field) -> bool:
    """No Gaussian terms, and no forbidden configurations are left."""
    if any(t.name == "gaussian" and not t.omitted for t in field.terms):
        return False
    lowered = field.lower()
    return not (lowered.hard or lowered.infeasible)


SEEDS = [s for s in range(40) if suitable(random_field(s, scale=1.0).field)]
EVERY_KIND = (9, 22, 24, 25, 31)
"""Seeds that have terms of every kind between them: tried on 2, 3 and 4 ranks."""


def ranks(field, owner, size, rule, **settings):
    """What ranks find, of which the first has all marginals."""

    def work(transport: Transport):
        result = infer(
            Partition.from_field(transport, field, owner), rule, reduce_every=1, **ONE_THREAD,
            **settings,
        )  # fmt: skip
        return result.gather(), result

    return run_threads(size, work)


def both(field, owner, size, rule, **settings):
    """Results of one process and of several ranks."""
    one = pf.infer(field, rule, **ONE_THREAD, **settings)
    return one, ranks(field, owner, size, rule, **settings)


@pytest.mark.parametrize("seeds", [SEEDS, EVERY_KIND], ids=["all", "every kind"])
def test_the_seeds_hold_every_kind_of_term_zeros_and_evidence(seeds):
    names, evidence, zeros = set(), False, False
    for seed in seeds:
        field = random_field(seed, scale=1.0).field
        names |= {t.name for t in field.terms}
        evidence |= bool((field.evidence >= 0).any())
        zeros |= field.lower().forbids
    expected = set(pf.TERMS) - {"gaussian"}
    assert names >= expected, sorted(expected - names)
    assert evidence and zeros


def test_every_rule_that_can_is_tried():
    able = {name for name, rule in pf.RULES.items() if not rule().mover.needs_whole_field}
    assert able == {*RULES, "auto"}


@pytest.mark.parametrize("rule", RULES)
def test_random_fields_are_as_on_one_process(rule):
    tried = 0
    for seed in SEEDS:
        field = random_field(seed, scale=1.0).field
        settings = {
            "max_iters": 7,
            "tol": 0.0,
            "seed": seed,
            "init": ["uniform", "random"][seed % 2],
        }
        try:
            one = pf.infer(field, rule, **ONE_THREAD, **settings)
        except pf.UnsupportedError:
            continue  # a rule that this field doesn't allow
        for size in (2, 3, 4) if seed in EVERY_KIND else (2 + seed % 3,):
            owner = np.random.default_rng(seed).integers(0, size, field.n_vars)
            several = ranks(field, owner, size, rule, **settings)
            compare(one, several, rule, f"seed {seed} on {size} ranks")
            tried += 1
    assert tried > 8


def compare(one, several, rule, name):
    """One process and several ranks."""
    q, result = several[0]
    np.testing.assert_allclose(q, one.q, rtol=0, atol=RULES[rule], err_msg=name)
    if rule != "adam":  # its q differ by more
        np.testing.assert_allclose(
            result.trace.free_energy, one.trace.free_energy, rtol=1e-13, atol=1e-13, err_msg=name
        )
    assert result.iterations == one.iterations, name
    assert all(r.free_energy == result.free_energy for _, r in several), name


def test_stops_where_one_process_stops():
    field = pf.generate.grid(8, 9, strength=0.4, seed=3)
    one, several = both(field, None, 3, "fixed", tol=1e-7)
    for _, result in several:
        assert result.status is one.status is pf.Status.CONVERGED
        assert result.iterations == one.iterations
    np.testing.assert_allclose(several[0][0], one.q, rtol=0, atol=1e-12)
    shown = repr(several[1][1])
    assert shown.startswith("PartResult(Partition(rank 1 of 3, ")
    assert f"converged after {one.iterations} iterations of fixed" in shown and len(shown) < 250


RING = [[i, (i + 1) % 12] for i in range(12)]


@pytest.mark.parametrize("rule", ["fixed", "momentum", "colored"])
@pytest.mark.parametrize("n_labels", [2, 3])
def test_a_symmetric_field_ends_on_a_saddle_as_on_one_process(rule, n_labels):
    field = pf.Field(12, n_labels).add(pf.Potts(RING, 3.0))
    one, several = both(field, None, 3, rule)
    assert one.status is pf.Status.SADDLE
    assert all(r.status is one.status and r.iterations == one.iterations for _, r in several)
    np.testing.assert_allclose(several[0][0], one.q, rtol=0, atol=1e-12)


def test_a_symmetric_grid_made_in_parts_ends_on_a_saddle():
    def work(transport):
        part = grid_partition(transport, (5, 6), lambda box: np.zeros((*sizes(box), 2)), 2.0)
        return infer(part, "fixed").status

    assert run_threads(3, work) == [pf.Status.SADDLE] * 3


def sizes(box):
    return tuple(s.stop - s.start for s in box)


@pytest.mark.parametrize("inner", ["fixed", "colored", "momentum"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_annealing_is_as_on_one_process(inner, size):
    field = pf.generate.grid(6, 7, strength=2.0, seed=3, n_labels=2 + size % 2)
    one, several = both(field, None, size, "anneal", inner=inner, levels=20, max_iters=150)
    compare(one, several, "anneal", inner)
    assert all(r.status is one.status for _, r in several)


def test_annealing_leaves_saddles_as_on_one_process():
    field = pf.Field(12, 2).add(pf.Potts(RING, 3.0))
    one, several = both(field, None, 3, "anneal", max_iters=200, levels=10)
    compare(one, several, "anneal", "ring")
    assert one.free_energy < 4.5  # at the saddle, 9.7


def test_annealing_a_grid_made_in_parts():
    rng = np.random.default_rng(4)
    energies, weights = rng.normal(size=(6, 7, 2)), {o: rng.normal(size=(6, 7)) for o in FOUR}
    field = grid_field((6, 7), energies, weights)
    settings = {"hot": 3.0, "levels": 20, "max_iters": 100}
    one = pf.infer(field, "anneal", **settings)

    def work(transport):
        by_box = {o: (lambda box, w=w: w[box]) for o, w in weights.items()}
        part = grid_partition(transport, (6, 7), energies, by_box)
        return infer(part, "anneal", **settings)

    for result in run_threads(4, work):  # λ is found by another method
        assert result.free_energy == pytest.approx(one.free_energy, rel=1e-6)


def test_annealing_within_a_budget_ends_on_all_ranks_alike():
    field = pf.generate.grid(6, 6, strength=2.0, seed=1)

    def work(transport):
        result = infer(Partition.from_field(transport, field), "anneal", budget=0.1, tol=0.0)
        return result.iterations, result.free_energy, result.status

    found = run_threads(3, work)
    assert len(set(found)) == 1 and found[0][1] < 0


@pytest.mark.parametrize("n_labels", [2, 3])
def test_chains_over_ranks_end_in_a_better_minimum_than_a_descent(n_labels):
    def work(transport):
        part = Partition.from_field(transport, field)
        found = [infer(part, r, max_iters=300, **ONE_THREAD) for r in ("fixed", "auto", "auto")]
        assert (found[1].q == found[2].q).all()  # a seed gives the same bits
        return found[0].free_energy, found[1].free_energy

    gained = []
    for seed in range(2):
        field = pf.generate.grid(10, 10, strength=3.0, seed=seed, n_labels=n_labels)
        found = run_threads(3, work)
        assert len(set(found)) == 1
        gained.append(found[0][0] - found[0][1])
    assert min(gained) > -0.1 and (n_labels == 3 or sum(gained) > 5.0)


def test_the_descent_after_a_chain_lowers_f():
    field = pf.generate.grid(10, 10, strength=3.0, seed=1)
    energies = run_threads(
        2, lambda t: infer(Partition.from_field(t, field), "auto", max_iters=400)
    )
    f = energies[0].trace.free_energy
    assert f[320] < f[81] - 50 and energies[0].free_energy < f[320]


def test_a_convex_field_is_descended_at_once():
    field = pf.generate.grid(6, 6, strength=0.1, seed=1)
    one, several = both(field, None, 2, "fixed", tol=1e-9)
    found = run_threads(2, lambda t: infer(Partition.from_field(t, field), "auto", tol=1e-9))
    assert found[0].status is pf.Status.CONVERGED
    assert found[0].free_energy == pytest.approx(one.free_energy, rel=1e-9)
    assert several[0][1].free_energy == pytest.approx(one.free_energy, rel=1e-13)


def test_reductions_every_few_updates_stop_at_most_that_much_later():
    field = pf.generate.grid(8, 9, strength=0.4, seed=3)
    one = pf.infer(field, "fixed", tol=1e-7)

    def work(transport):
        return infer(Partition.from_field(transport, field), "fixed", tol=1e-7, reduce_every=10)

    late = run_threads(2, work)[0]
    assert one.iterations <= late.iterations < one.iterations + 10
    assert late.status is pf.Status.CONVERGED


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("n_labels", [2, 3])
def test_replaced_unary_energies_are_as_a_new_field(kernels, n_labels):
    field = pf.generate.grid(4, 5, n_labels=n_labels, seed=1)
    lowered = field.lower()
    before = lowered.unary.copy()
    program = compile_program(lowered, kernels, "float64", 1)
    rng = np.random.default_rng(0)
    at = np.sort(rng.choice(lowered.layout.size, 7, replace=False))
    new = rng.normal(size=7)
    q = lowered.layout.normalize(rng.exponential(size=lowered.layout.size))
    state = program.start(q)
    program.free_energy(state)
    for values in (new, 2 * new):
        program.set_unary(values, at)
    changed = before.copy()
    changed[at] = 2 * new
    other = compile_program(
        type(lowered)(**{**vars_of(lowered), "unary": changed}), "reference", "float64", 1
    )
    assert program.free_energy(state) == pytest.approx(other.free_energy(other.start(q)), rel=1e-12)
    np.testing.assert_allclose(
        lowered.layout.center(program.gradient(q)), lowered.layout.center(other.gradient(q)),
        atol=1e-12,
    )  # fmt: skip
    np.testing.assert_allclose(program.marginals_at(state, at), q[at], atol=1e-15)
    assert (lowered.unary == before).all()  # the field that was given stays


def vars_of(lowered):
    names = ("reduction", "constant", "unary", "ising", "potts", "factors", "extras", "magnitude")
    return {name: getattr(lowered, name) for name in names}


def grid_field(shape, energies, weights):
    """The same grid as a field."""
    n, number = int(np.prod(shape)), np.arange(np.prod(shape)).reshape(shape)
    field = pf.Field(n, energies.shape[-1]).add(pf.Unary(energies.reshape(n, -1)))
    for offset, w in weights.items():
        here = tuple(slice(max(0, -o), min(s, s - o)) for o, s in zip(offset, shape, strict=True))
        first, distance = number[here].ravel(), 0
        for o, s in zip(offset, shape, strict=True):
            distance = distance * s + o
        field.add(pf.Potts(np.stack([first, first + distance], axis=1), w[here].ravel()))
    return field


FOUR, EIGHT = [(1, 0), (0, 1)], [(1, 0), (0, 1), (1, 1), (1, -1)]
GRIDS = [
    ((5, 7), 2, 2, None, FOUR, "fixed", {"step": 0.5}),
    ((5, 7), 2, 4, (2, 2), EIGHT, "momentum", {}),
    ((6, 5), 3, 3, (3, 1), EIGHT, "fixed", {"step": 0.5}),
    ((4, 3, 5), 2, 4, (1, 2, 2), [(1, 0, 0), (0, 1, 0), (0, 0, 1)], "momentum", {}),
    ((9,), 3, 3, None, [(1,), (3,)], "adaptive", {"step": 0.7}),
    ((4, 4), 2, 4, (4, 1), [(3, 0), (2, -1), (0, 1)], "fixed", {"step": 0.3}),
]


@pytest.mark.parametrize("case", GRIDS, ids=lambda case: f"{case[0]}x{case[1]} over {case[2]}")
def test_grids_built_in_parts_are_as_on_one_process(case):
    shape, n_labels, size, parts, offsets, rule, settings = case
    rng = np.random.default_rng(len(offsets))
    energies = rng.normal(size=(*shape, n_labels))
    energies[(1,) * len(shape)][0] = np.inf
    weights = {o: rng.normal(size=shape) for o in offsets}
    field = grid_field(shape, energies, weights)
    one = pf.infer(field, rule, max_iters=8, tol=0.0, **ONE_THREAD, **settings)

    def work(transport):
        by_box = {o: (lambda box, w=w: w[box]) for o, w in weights.items()}
        part = grid_partition(transport, shape, energies, by_box, n_labels=n_labels, parts=parts)
        result = infer(part, rule, max_iters=8, tol=0.0, **ONE_THREAD, **settings)
        return (
            Tiling.make(transport, shape, parts).box,
            result,
            SpreadCurvature(part.lowered, partition=part).largest,
        )

    several = run_threads(size, work)
    q = np.zeros((*shape, n_labels))
    for box, result, _ in several:
        q[box] = result.q.reshape(q[box].shape)
    np.testing.assert_allclose(q.ravel(), one.q, rtol=0, atol=1e-12)
    f = several[0][1].trace.free_energy
    np.testing.assert_allclose(f, one.trace.free_energy, rtol=1e-13, atol=1e-13)
    exact = pf.Curvature(field.lower(), field).largest
    assert exact * (1 - 1e-6) <= several[0][2] <= exact * 1.0011


def test_lambda_of_a_larger_grid_is_that_of_one_process():
    rng = np.random.default_rng(6)
    energies, weights = np.zeros((30, 20, 3)), {o: rng.normal(size=(30, 20)) for o in EIGHT}
    field = grid_field((30, 20), energies, weights)

    def work(transport):
        by_box = {o: (lambda box, w=w: w[box]) for o, w in weights.items()}
        part = grid_partition(transport, (30, 20), energies, by_box, n_labels=3)
        return SpreadCurvature(part.lowered, partition=part).largest

    exact = pf.Curvature(field.lower(), field).largest
    np.testing.assert_allclose(run_threads(4, work), exact, rtol=1e-6)


def test_tables_of_three_variables_across_the_cut_from_parts():
    rng = np.random.default_rng(2)
    cards, table = [2, 3, 2], rng.normal(size=(2, 3, 2))
    unary = [rng.normal(size=(1, c)) for c in cards]
    pair = rng.normal(size=(2, 2))
    field = pf.Field(cards)
    for v, u in enumerate(unary):
        field.add(pf.Unary(u, [v]))
    field.add(pf.Factor([0, 1, 2], table)).add(pf.Pairwise([[0, 2]], pair))
    field = field.condition({1: 2})
    one = pf.infer(field, "fixed", step=0.5, max_iters=9, tol=0.0)

    def work(transport):
        r = transport.rank
        own = pf.Field([cards[r]]).add(pf.Unary(unary[r]))
        own = own.condition({0: 2}) if r == 1 else own
        others = [v for v in range(3) if v != r]
        cut = pf.Field([cards[r], *(cards[v] for v in others)])
        at = {v: k for k, v in enumerate([r, *others])}
        cut.add(pf.Factor([at[0], at[1], at[2]], table))
        if r != 1:
            cut.add(pf.Pairwise([[at[0], at[2]]], pair))
        part = Partition.from_parts(transport, own, cut, [0], {v: [0] for v in others})
        return infer(part, "fixed", step=0.5, max_iters=9, tol=0.0)

    several = run_threads(3, work)
    np.testing.assert_allclose(np.concatenate([r.q for r in several]), one.q, rtol=0, atol=1e-12)
    assert several[0].free_energy == pytest.approx(one.free_energy, rel=1e-13)


def test_colors_of_parts_never_raise_f():
    rng = np.random.default_rng(5)
    energies, w = rng.normal(size=(7, 8, 2)), 3 * rng.normal(size=(7, 8))

    def work(transport):
        part = grid_partition(
            transport, (7, 8), energies, {(1, 0): lambda b: w[b], (1, 1): lambda b: w[b]}
        )
        return infer(part, "colored", max_iters=30, tol=0.0)

    f = run_threads(3, work)[0].trace.free_energy
    assert (np.diff(f) <= 1e-12 * abs(f[-1])).all() and f[-1] < f[0]


def test_one_clock_decides():
    """Ranks whose own clocks disagree end after the same number of updates."""
    import time

    field = pf.generate.grid(6, 6, seed=1)

    def work(transport):
        part = Partition.from_field(transport, field)
        if transport.rank:
            time.sleep(0.02)
        return infer(part, "momentum", budget=0.05, tol=0.0).iterations

    found = run_threads(3, work)
    assert len(set(found)) == 1


def test_a_callback_on_one_rank_stops_all():
    field = pf.generate.grid(6, 6, seed=1)

    def work(transport):
        part = Partition.from_field(transport, field)
        stop = lambda progress: transport.rank == 1 and progress.iteration >= 4  # noqa: E731
        return infer(part, "momentum", callback=stop, reduce_every=2, tol=0.0)

    for result in run_threads(2, work):
        assert (result.status, result.iterations) == (pf.Status.STOPPED, 4)


def test_what_oscillates_is_told_as_on_one_process():
    """And what overshoots isn't, though F goes up and down."""
    field = grid(4, 4, strength=3.0, sign="repulsive", seed=2)
    owner = np.arange(16) // 8
    for rule, expected in (
        ("full-parallel", pf.Status.OSCILLATING),
        ("momentum", pf.Status.MAX_ITERS),
        ("adam", pf.Status.MAX_ITERS),
    ):
        one, several = both(field, owner, 2, rule, max_iters=150)
        assert one.status is expected, rule
        assert all(result.status is expected for _, result in several), rule
