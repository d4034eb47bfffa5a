"""The loop: stopping, starting, callbacks, interrupts, traces, threads, terms of one's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from clock import CountedClock
from helpers import (
    KERNELS,
    VARIANTS,
    Array,
    Chain,
    CurvedChain,
    grid_edges,
    infer,
    random_field,
    random_marginals,
    repulsive_grid,
)
from proxfield.core.compiled import jit
from proxfield.core.engines import compile_program
from proxfield.core.engines.numba import binary, cpu
from proxfield.core.engines.reference import ReferenceProgram

every_variant = pytest.mark.parametrize("variant", VARIANTS)
PARALLEL = [v for v in VARIANTS if not v.startswith(("sweep", "colored"))]


def mixed_field(seed: int = 5) -> pf.Field:
    """Five variables, every kind of term, more than two labels."""
    return random_field(np.random.default_rng(seed), n_labels=(2, 3), n_vars=(5, 5))


FIELDS: dict[str, Callable[[], pf.Field]] = {
    "binary": lambda: repulsive_grid(4, weight=2.0),
    "strong": lambda: repulsive_grid(4, weight=6.0, bias=1.0),
    "general": mixed_field,
}
every_field = pytest.mark.parametrize("kind", FIELDS)


# ---- stopping ----


def test_without_a_tolerance_all_updates_are_made(kernels: str) -> None:
    field = pf.Field(3, 2).add(pf.Unary([[0.0, 1.0]] * 3))  # the first update is the last
    result = pf.infer(field, "fixed", tol=None, max_iters=7, kernels=kernels)
    assert (result.iterations, result.status.name, len(result.trace)) == (7, "MAX_ITERS", 8)
    early = pf.infer(field, "fixed", max_iters=7, kernels=kernels)
    assert early.converged and early.iterations < 7
    np.testing.assert_array_equal(result.q, early.q)


def test_stops_when_the_change_is_below_tol(kernels: str) -> None:
    result = pf.infer(repulsive_grid(), "fixed", tol=1e-5, kernels=kernels)
    assert result.status is pf.Status.CONVERGED
    assert result.converged
    assert result.trace.change[-1] <= 1e-5
    assert (result.trace.change[1:-1] > 1e-5).all()
    assert result.iterations == len(result.trace) - 1 < 1000


def test_stops_at_max_iters(kernels: str) -> None:
    result = pf.infer(repulsive_grid(), "fixed", max_iters=7, kernels=kernels)
    assert result.status is pf.Status.MAX_ITERS
    assert not result.converged
    assert result.iterations == 7
    assert "max_iters" in result.message


def test_no_iterations_at_all(kernels: str) -> None:
    result = pf.infer(mixed_field(), "fixed", max_iters=0, kernels=kernels)
    assert result.status is pf.Status.MAX_ITERS
    assert result.iterations == 0
    assert len(result.trace) == 1
    assert result.free_energy == pytest.approx(mixed_field().free_energy(result.q))


def test_stops_at_the_budget(kernels: str) -> None:
    options: dict[str, Any] = {"step": 1e-4, "tol": 0.0, "max_iters": 10**9, "kernels": kernels}
    field = repulsive_grid(10)
    pf.infer(field, "fixed", **{**options, "max_iters": 1})  # loads what the clock has to count
    with CountedClock(update=1e-3):
        result = pf.infer(field, "fixed", budget=0.2, **options)
    assert result.status is pf.Status.BUDGET
    assert 195 <= result.iterations <= 199  # it ends before an iteration that would be too long
    assert 0.195 <= result.seconds <= 0.2
    assert result.trace.seconds[-1] == pytest.approx(result.seconds, abs=1e-4)
    assert "budget" in result.message


def test_budget_leaves_compiling_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warming up may take as long as it wants."""
    from proxfield.core.solve import loop

    warm_up = loop.warm_up

    with CountedClock(update=1e-4) as clock:

        def slowly(*args: Any) -> None:
            warm_up(*args)
            clock.now += 0.3

        monkeypatch.setattr(loop, "warm_up", slowly)
        result = pf.infer(repulsive_grid(), "fixed", budget=0.2, tol=1e-4)
    assert clock.now > 0.3
    assert result.converged
    assert result.seconds < 0.2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_iters": -1}, "max_iters=-1"),
        ({"max_iters": 1.5}, "max_iters=1.5, expected a whole number"),
        ({"max_iters": True}, "max_iters=True"),
        ({"tol": -1e-3}, "tol=-0.001"),
        ({"tol": float("nan")}, "tol=nan"),
        ({"budget": 0}, "budget=0, expected seconds above 0"),
        ({"threads": 0}, "threads=0"),
        ({"keep": "first"}, "keep='first', expected last or best"),
        ({"init": "zeros"}, "init='zeros', expected uniform"),
        ({"kernels": "gpu"}, "unknown kernels 'gpu', expected one of: reference, cpu, cuda, torch"),
        ({"dtype": "float16"}, "unknown dtype 'float16'"),
        ({"rule": "fast"}, "unknown rule 'fast', expected one of: sweep"),
        ({"rule": "fixed", "step": 0.0}, "fixed: step=0.0, expected above 0 and at most 2"),
        ({"rule": "fixed", "step": 3}, "fixed: step=3"),
        ({"rule": "fixed", "step": True}, "fixed: step=True"),
        ({"rule": "fixed", "step": "big"}, "step='big', expected a number or one of: certified"),
        ({"rule": "fixed", "eta": 0.5}, "fixed has no parameter 'eta', expected one of: step"),
        (
            {"rule": "full-parallel", "eta": 0.5},
            "no parameter 'eta', it has none",
        ),
        ({"rule": "adhoc", "eta": 1.5}, "adhoc: eta=1.5, expected above 0 and at most 1"),
        ({"rule": "sweep", "order": "best"}, "order='best', expected natural or random"),
        ({"rule": "momentum", "gamma": 1.0}, "momentum: gamma=1.0, expected 0 or more and below 1"),
        ({"rule": "momentum", "variant": "x"}, "variant='x', expected default or printed"),
        ({"rule": "adam", "gamma2": -0.1}, "adam: gamma2=-0.1"),
        ({"rule": "adam", "epsilon": 0.0}, "adam: epsilon=0.0, expected above 0"),
        ({"rule": pf.RULES["fixed"](), "step": 0.5}, "parameters go with a rule's name"),
        ({"rule": pf.CustomRule, "function": 3}, "function must be callable"),
    ],
)
def test_bad_options_get_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(pf.InputError) as caught:
        pf.infer(pf.Field(2, n_labels=2), **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("rule", ["momentum", pf.RULES["momentum"], pf.RULES["momentum"]()])
def test_rules_by_name_class_or_instance(rule: Any) -> None:
    result = pf.infer(mixed_field(), rule, max_iters=5)
    assert (result.rule, result.params["gamma"]) == ("momentum", 0.95)


# ---- starting ----


def start_of(field: pf.Field, **options: Any) -> Array:
    return pf.infer(field, "fixed", max_iters=0, **options).q


def test_init_forms(kernels: str) -> None:
    field = pf.Field([2, 3], terms=[pf.Unary([[0.0, 1.0]], [0]), pf.Unary([[0, np.inf, 0]], [1])])
    third, half = 1 / 3, 1 / 2
    options: dict[str, Any] = {"kernels": kernels}
    np.testing.assert_allclose(start_of(field, **options), [half, half, third, third, third])
    np.testing.assert_allclose(
        start_of(field, init="possible", **options), [half, half, half, 0, half]
    )
    p = np.exp(-1) / (1 + np.exp(-1))
    np.testing.assert_allclose(start_of(field, init="unary", **options), [1 - p, p, half, 0, half])
    rows = [[0.25, 0.75], [0.5, 0.25, 0.25]]
    np.testing.assert_allclose(start_of(field, init=rows, **options), np.concatenate(rows))
    flat = np.concatenate(rows)
    np.testing.assert_allclose(start_of(field, init=flat, **options), flat)


def test_random_starts_follow_the_seed() -> None:
    a, b, c = (start_of(mixed_field(), init="random", seed=s) for s in (1, 1, 2))
    np.testing.assert_array_equal(a, b)
    assert np.abs(a - c).max() > 0.01
    np.testing.assert_allclose(mixed_field().layout.sum_by_variable(a), 1.0)


@pytest.mark.parametrize("rule", ["fixed", "adhoc", "sweep", "full-parallel", "colored"])
@every_field
def test_warm_start_continues(kind: str, rule: str, kernels: str) -> None:
    """Rules without memory: 6 + 9 iterations are 15."""
    field = FIELDS[kind]()
    options: dict[str, Any] = {"tol": 0.0, "kernels": kernels}
    first = pf.infer(field, rule, max_iters=6, **options)
    then = pf.infer(field, rule, max_iters=9, init=first, **options)
    whole = pf.infer(field, rule, max_iters=15, **options)
    np.testing.assert_allclose(then.q, whole.q, atol=1e-9)
    assert then.free_energy == pytest.approx(whole.free_energy)
    assert then.trace.free_energy[0] == pytest.approx(first.free_energy)


def test_warm_start_of_a_converged_result_ends_at_once() -> None:
    first = pf.infer(repulsive_grid(), "fixed", tol=1e-6)
    again = pf.infer(repulsive_grid(), "fixed", tol=1e-6, init=first)
    assert again.converged
    assert again.iterations <= 2


def test_warm_start_from_a_sharp_result() -> None:
    """Probabilities far below rounding of 1 survive: the continuation is at the same point."""
    field = pf.Field(2, n_labels=2, terms=[pf.Unary([[0.0, 60.0], [80.0, 0.0]])])
    first = pf.infer(field, "fixed")
    assert first.q[1] == pytest.approx(np.exp(-60), rel=1e-9)
    assert pf.infer(field, "fixed", init=first).iterations == 1


def test_warm_start_with_other_evidence() -> None:
    field = repulsive_grid(3)
    first = pf.infer(field, "sweep")
    seen = pf.infer(field.condition({4: 0}), "sweep", init=first)
    assert seen.marginals[4].tolist() == [1.0, 0.0]
    back = pf.infer(field, "fixed", init=seen, tol=1e-7, max_iters=20_000)
    assert back.converged  # a label without weight can come back


@pytest.mark.parametrize("cards", [[2, 2, 2], [3, 2]])
def test_warm_start_from_another_field_is_refused(cards: list[int]) -> None:
    """Also where the number of entries happens to agree: variables would get others' labels."""
    with pytest.raises(pf.InputError, match="init"):
        pf.infer(pf.Field(cards), init=pf.infer(pf.Field([2, 3])))


# ---- callbacks and interrupts ----


def test_callback_sees_progress_and_stops(kernels: str) -> None:
    seen: list[pf.Progress] = []

    def callback(progress: pf.Progress) -> bool:
        seen.append(progress)
        return len(seen) == 3

    field = repulsive_grid()
    result = pf.infer(field, "fixed", tol=0.0, budget=60, callback=callback, kernels=kernels)
    assert result.status is pf.Status.STOPPED
    assert len(seen) == 3
    assert result.iterations == seen[-1].iteration
    assert min(p.max_iters for p in seen) > 10**9  # a budget, so no limit on iterations
    assert [p.budget for p in seen] == [60] * 3
    assert np.diff([p.iteration for p in seen]).min() > 0
    assert np.diff([p.seconds for p in seen]).min() >= 0
    np.testing.assert_array_equal(seen[-1].marginals(), result.q)
    trace = result.trace
    for p in seen:
        assert p.free_energy == pytest.approx(trace.free_energy[p.iteration - 1])
        assert p.change == trace.change[p.iteration]


def test_callback_marginals_are_in_the_users_numbering() -> None:
    found = []
    field = repulsive_grid(3).condition({4: 1})
    pf.infer(field, "adhoc", max_iters=5, callback=lambda p: found.append(p.marginals()))
    assert found[0].shape == (18,)
    assert found[0][8:10].tolist() == [0.0, 1.0]


def interrupt(progress: pf.Progress) -> None:
    if progress.iteration >= 20:
        raise KeyboardInterrupt


@every_field
@every_variant
def test_interrupt_in_a_callback(kind: str, variant: str) -> None:
    field = FIELDS[kind]()
    with CountedClock(update=1.0):  # so slow that the callback is called after each of them
        result = infer(field, variant, tol=0.0, callback=interrupt)
    if result.status is pf.Status.CONVERGED:
        assert result.iterations <= 20  # it was done before
        return
    assert result.status is pf.Status.INTERRUPTED
    assert "init=result" in result.message
    assert result.free_energy == pytest.approx(field.free_energy(result.q), abs=1e-8)
    assert result.free_energy <= result.trace.free_energy[0] + 1e-9


@pytest.mark.parametrize("program", [ReferenceProgram, cpu.CpuProgram])
def test_interrupt_between_updates(program: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C during the fourth call of advance (the first one warms up)."""
    calls = []
    advance = program.advance

    def interrupted(self: Any, *args: Any) -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return advance(self, *args)

    monkeypatch.setattr(program, "advance", interrupted)
    kernels = "reference" if program is ReferenceProgram else "cpu"
    result = pf.infer(repulsive_grid(), "full-parallel", kernels=kernels)
    assert result.status is pf.Status.INTERRUPTED
    assert result.iterations == len(result.trace) - 1 > 0
    # full-parallel goes up here: the best state seen at a look is the start or a later one
    assert result.free_energy <= result.trace.free_energy[0]


@every_field
@pytest.mark.parametrize("trace", [True, False])
@pytest.mark.parametrize("rule", ["full-parallel", "momentum", "adam"])
def test_keep_best(kind: str, rule: str, trace: bool, kernels: str) -> None:
    field = FIELDS[kind]()
    options: dict[str, Any] = {
        "max_iters": 50, "tol": 0.0, "trace": trace, "init": "random", "kernels": kernels,
    }  # fmt: skip
    best, last = (pf.infer(field, rule, keep=k, **options) for k in ("best", "last"))
    start = field.free_energy(start_of(field, init="random"))
    assert best.free_energy <= min(last.free_energy, start) + 1e-9
    assert best.free_energy == pytest.approx(field.free_energy(best.q), abs=1e-8)


def test_keep_best_keeps_the_start_when_everything_else_is_worse() -> None:
    field = repulsive_grid()
    good = pf.infer(field, "sweep")
    for trace in (True, False):
        worse = pf.infer(field, "adam", step=2.0, init=good, max_iters=8, tol=0.0, trace=trace)
        assert worse.free_energy > good.free_energy + 1e-3, "the premise"
        kept = pf.infer(
            field, "adam", step=2.0, init=good, max_iters=8, tol=0.0, trace=trace, keep="best"
        )
        assert kept.free_energy == pytest.approx(good.free_energy)


# ---- rules of one's own ----


@every_field
def test_custom_rule_is_the_rule_it_says(kind: str, kernels: str) -> None:
    field = FIELDS[kind]()
    half = pf.CustomRule(lambda theta, q, g, memory: theta - 0.5 * (theta - g), step=0.5)
    ours = pf.infer(field, half, max_iters=12, tol=0.0, kernels=kernels)
    theirs = pf.infer(field, "fixed", step=0.5, max_iters=12, tol=0.0, kernels=kernels)
    np.testing.assert_allclose(ours.q, theirs.q, atol=1e-9)
    np.testing.assert_allclose(ours.trace.free_energy, theirs.trace.free_energy, atol=1e-8)
    np.testing.assert_allclose(ours.trace.change, theirs.trace.change, atol=1e-8)


def test_custom_rules_memory_lasts(kernels: str) -> None:
    def momentum(theta: Array, q: Array, g: Array, memory: dict[str, Any]) -> Array:
        memory["u"] = 0.95 * memory.get("u", 0.0) + 0.05 * (theta - g)
        return theta - memory["u"]

    field = mixed_field()
    ours = pf.infer(field, pf.CustomRule(momentum), max_iters=30, tol=0.0, kernels=kernels)
    theirs = pf.infer(field, "momentum", max_iters=30, tol=0.0, kernels=kernels)
    np.testing.assert_allclose(ours.q, theirs.q, atol=1e-8)


@pytest.mark.parametrize("cards", [[2, 2], [3, 2]])
def test_nan_is_never_called_converged(cards: list[int], kernels: str) -> None:
    """The printed ADAM divides by the size of the gradient, which is 0 here: it blows up."""
    result = pf.infer(pf.Field(cards), "adam", variant="printed", init="random", kernels=kernels)
    assert result.status is pf.Status.DIVERGED
    assert np.isfinite(result.q).all()
    assert np.isfinite(result.free_energy)
    assert not np.isnan(result.trace.free_energy).any()
    assert result.trace.iteration[-1] == result.iterations


# ---- the trace ----


@every_field
@every_variant
def test_row_t_is_the_state_after_t_updates(kind: str, variant: str) -> None:
    field = FIELDS[kind]()
    options: dict[str, Any] = {"tol": 0.0, "init": "random", "seed": 4}
    if kind == "strong":
        options["init"] = "uniform"  # from where undamped steps go up
    whole = infer(field, variant, max_iters=14, **options).trace
    assert whole.iteration.tolist() == list(range(len(whole)))
    assert np.isnan(whole.change[0])
    for t in range(min(14, len(whole))):
        part = infer(field, variant, max_iters=t, **options)
        assert part.iterations == t
        assert part.free_energy == pytest.approx(whole.free_energy[t], abs=1e-8), t
        assert part.free_energy == pytest.approx(field.free_energy(part.q), abs=1e-8)
        np.testing.assert_allclose(part.trace.change, whole.change[: t + 1], atol=1e-8)


def test_seconds_grow() -> None:
    result = pf.infer(repulsive_grid(), "fixed", tol=0.0, max_iters=200)
    assert result.trace.seconds[0] == 0.0
    assert (np.diff(result.trace.seconds) >= 0).all()
    assert result.trace.seconds[-1] <= result.seconds + 1e-6


@every_field
@every_variant
def test_without_a_trace_the_result_is_the_same(kind: str, variant: str) -> None:
    field = FIELDS[kind]()
    with_, without = (infer(field, variant, max_iters=25, trace=t) for t in (True, False))
    np.testing.assert_allclose(without.q, with_.q, atol=1e-12)
    assert without.free_energy == pytest.approx(with_.free_energy)
    assert without.iterations == with_.iterations
    assert not np.isnan(without.trace.change[1:]).any()


# ---- bits and threads ----

needs_threads = pytest.mark.skipif(jit.max_threads() < 2, reason="this machine has one core")


def large_binary(seed: int = 0) -> pf.Field:
    """Large enough for threads: the edges' ends alone are."""
    rng, edges = np.random.default_rng(seed), grid_edges(100, 100)
    terms = [pf.Unary(rng.normal(size=(10_000, 2))), pf.Ising(edges, rng.normal(size=len(edges)))]
    return pf.Field(10_000, n_labels=2, terms=terms)


def large_general(seed: int = 0) -> pf.Field:
    """The same with three labels and some tables over three variables."""
    rng, edges = np.random.default_rng(seed), grid_edges(65, 65)
    scopes = rng.permutation(65 * 65)[:390].reshape(-1, 3)
    return pf.Field(
        65 * 65,
        n_labels=3,
        terms=[
            pf.Unary(rng.normal(size=(65 * 65, 3))),
            pf.Potts(edges, rng.normal(size=len(edges))),
            pf.Factor(scopes, rng.normal(size=(130, 3, 3, 3))),
        ],
    )


LARGE = {"binary": large_binary(), "general": large_general()}
# fixed-lipschitz runs the kernels of fixed, and its eigenvalue takes longer than all other variants
every_kernel = pytest.mark.parametrize("variant", [v for v in VARIANTS if v != "fixed-lipschitz"])


@pytest.fixture(autouse=True)
def threads_pay_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fields of a size for tests count as large."""
    monkeypatch.setattr(jit, "PARALLEL_WORK", 35_000)


@pytest.mark.parametrize("kind", LARGE)
def test_large_fields_are_large(kind: str) -> None:
    program = compile_program(LARGE[kind].lower(), threads=2)
    assert program.work >= jit.PARALLEL_WORK and program.n_blocks > 1


@needs_threads
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("variant", ["fixed", "adam", "adhoc", "sweep-random", "colored"])
@pytest.mark.parametrize("kind", LARGE)
def test_same_seed_same_bits(kind: str, variant: str, threads: int) -> None:
    a, b = (
        infer(LARGE[kind], variant, max_iters=12, tol=0.0, threads=threads, seed=3, init="random")
        for _ in range(2)
    )
    np.testing.assert_array_equal(a.q, b.q)
    np.testing.assert_array_equal(a.trace.free_energy, b.trace.free_energy)
    np.testing.assert_array_equal(a.trace.change, b.trace.change)


@needs_threads
@every_kernel
@pytest.mark.parametrize("kind", LARGE)
def test_threads_do_not_change_bits(kind: str, variant: str) -> None:
    """One thread takes the serial path: marginals agree to the bit, F up to the order of sums."""
    one, two = (infer(LARGE[kind], variant, max_iters=12, tol=0.0, threads=t) for t in (1, 2))
    np.testing.assert_array_equal(one.q, two.q)
    np.testing.assert_allclose(one.trace.free_energy, two.trace.free_energy, rtol=1e-12)
    np.testing.assert_allclose(one.trace.change, two.trace.change, rtol=1e-9)


@needs_threads
@every_kernel
@pytest.mark.parametrize("kind", ["binary", "general", "impossible-labels"])
def test_parallel_path_does_what_reference_does(
    kind: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parallel kernels on small fields, over more than one block."""
    monkeypatch.setattr(jit, "PARALLEL_WORK", 0)
    if kind == "binary":
        field = repulsive_grid(int(np.sqrt(binary.BLOCK)) + 3, weight=1.5)
    else:
        rng = np.random.default_rng(6)
        rows = rng.normal(size=(900, 3))
        if kind == "impossible-labels":
            rows[::7, 1] = np.inf
        field = pf.Field(900, n_labels=3, terms=[pf.Unary(rows)])
        field.add(pf.Potts(grid_edges(30, 30), -1.0))
        field.add(pf.Factor(np.arange(900).reshape(-1, 3)[:200], rng.normal(size=(200, 3, 3, 3))))
    options: dict[str, Any] = {"max_iters": 6, "tol": 0.0, "seed": 2}
    if VARIANTS[variant][0] in ("sweep", "colored"):
        options["max_iters"] = 1  # a sweep of the reference takes a second
    program = compile_program(field.lower(), threads=2)
    assert program.parallel
    assert program.n_blocks > 1
    ours = infer(field, variant, threads=2, **options)
    theirs = infer(field, variant, kernels="reference", **options)
    np.testing.assert_allclose(ours.q, theirs.q, atol=1e-7)
    np.testing.assert_allclose(ours.trace.free_energy, theirs.trace.free_energy, rtol=1e-9)
    np.testing.assert_allclose(ours.trace.change, theirs.trace.change, atol=1e-7)


# ---- terms of one's own ----


def chain_field(term: pf.Term, n_labels: int = 3, n: int = 6) -> pf.Field:
    unary = pf.Unary(np.random.default_rng(7).normal(size=(n, n_labels)))
    return pf.Field(n, n_labels=n_labels, terms=[unary, term])


@pytest.mark.parametrize("n_labels", [2, 3])
@pytest.mark.parametrize("variant", PARALLEL)
def test_terms_without_lower_work_with_parallel_rules(
    variant: str, n_labels: int, kernels: str
) -> None:
    own = CurvedChain(-1.2)
    ours = chain_field(own, n_labels)
    lowered = chain_field(own.as_potts(6), n_labels)
    options: dict[str, Any] = {"max_iters": 15, "tol": 0.0, "kernels": kernels}
    if "certified" in str(VARIANTS[variant]) or variant in ("fixed", "adaptive", "fixed-lipschitz"):
        assert (
            infer(ours, variant, **options).free_energy
            <= infer(ours, variant, max_iters=0, kernels=kernels).free_energy
        )  # steps may differ: the two terms know their curvature differently well
        return
    a, b = infer(ours, variant, **options), infer(lowered, variant, **options)
    np.testing.assert_allclose(a.q, b.q, atol=1e-6)
    np.testing.assert_allclose(a.trace.free_energy, b.trace.free_energy, atol=1e-6)


def test_terms_without_lower_with_evidence_and_one_label(kernels: str) -> None:
    """Such a term needs its variables as they are, numbers included."""

    class Between(CurvedChain):
        """w·[x_1 ≠ x_2]."""

        def validate(self, layout: Any) -> None:
            pass

        def labelling_energy(self, layout: Any, labels: Array) -> float:
            return self.weight * float(labels[1] != labels[2])

        def add_gradient(self, layout: Any, q: Array, out: Array) -> None:
            one, two = (slice(layout.offsets[i], layout.offsets[i + 1]) for i in (1, 2))
            out[one] += self.weight * (1 - q[two])
            out[two] += self.weight * (1 - q[one])

    for cards, seen in (([2, 2, 2], {0: 1}), ([1, 2, 2], {})):
        unary = pf.Unary([[0.0, 1.0]], [1])
        field = pf.Field(cards, terms=[Between(1.5), unary]).condition(seen)
        same = pf.Field(cards, terms=[pf.Potts([[1, 2]], 1.5), unary]).condition(seen)
        options: dict[str, Any] = {"kernels": kernels, "max_iters": 10, "tol": 0.0}
        a, b = (pf.infer(f, "adhoc", **options) for f in (field, same))
        np.testing.assert_allclose(a.q, b.q, atol=1e-9)
        assert a.free_energy == pytest.approx(b.free_energy)


@pytest.mark.parametrize("rule", ["sweep", "colored"])
def test_sweeps_name_the_method_that_a_term_lacks(rule: str) -> None:
    with pytest.raises(TypeError, match=r"Chain has no method '(visits|neighbors)'"):
        pf.infer(chain_field(Chain(1.0)), rule)


@pytest.mark.parametrize("rule", ["fixed", "adaptive"])
def test_certified_steps_name_the_method_that_a_term_lacks(rule: str, kernels: str) -> None:
    with pytest.raises(TypeError, match="Chain has no method 'curvature'"):
        pf.infer(chain_field(Chain(1.0)), rule, kernels=kernels)
    with pytest.raises(TypeError, match="Chain has no method 'lipschitz'"):
        pf.infer(chain_field(Chain(1.0)), "fixed", step="lipschitz", kernels=kernels)
    assert pf.infer(chain_field(Chain(1.0)), "fixed", step=0.5, kernels=kernels).converged


def test_a_term_that_is_not_multilinear(kernels: str) -> None:
    """degree None: the term gives its own energy, here Σ_i q_i(0)²."""

    class Square(Chain):
        degree = None

        def add_gradient(self, layout: Any, q: Array, out: Array) -> None:
            out[layout.offsets[:-1]] += 2 * q[layout.offsets[:-1]]

        def energy(self, layout: Any, q: Array) -> float:
            return float((q[layout.offsets[:-1]] ** 2).sum())

    field = pf.Field(2, n_labels=2, terms=[Square(1.0)])
    result = pf.infer(field, "fixed", step=0.5, tol=1e-10, kernels=kernels)
    m = result.q[0]
    assert np.log((1 - m) / m) == pytest.approx(2 * m, abs=1e-8)
    assert result.free_energy == pytest.approx(field.free_energy(result.q))


def test_kernel_sets_are_the_ones_tested() -> None:
    from proxfield.core import engines

    suites = Path(__file__).parents[1] / "gpu/run_all.py"  # the sets that need torch
    there = [name for name in engines.ENGINES if f"reference,{name}" in suites.read_text()]
    assert {*KERNELS, *there} == set(engines.ENGINES)


@pytest.mark.parametrize("rule", ["fixed", "sweep", "adhoc", "auto"])
def test_float32_bounds_are_bounds(rule: str) -> None:
    """F is that of the marginals returned, in float64, whatever was iterated with."""
    for seed in range(3):
        u = 5 * np.random.default_rng(seed).normal(size=(200, 3))
        field = pf.Field(200, n_labels=3).add(pf.Unary(u))
        result = pf.infer(field, rule, dtype="float32", max_iters=50)
        exact = float(np.log(np.exp(-u).sum(axis=1)).sum())
        assert result.log_z_bound <= exact + 1e-10 * abs(exact)
        assert result.free_energy == pytest.approx(field.free_energy(result.q), rel=1e-13)


@pytest.mark.parametrize("rule", ["auto", "portfolio"])
def test_terms_with_nothing_optional_still_run(rule: str) -> None:
    class Zero(pf.Term):
        name = "zero"
        degree = 1

        def validate(self, layout: Any) -> None:
            pass

        def labelling_energy(self, layout: Any, labels: Any) -> float:
            return float((labels == 0).sum())

        def add_gradient(self, layout: Any, q: Any, out: Any) -> None:
            out[layout.offsets[:-1]] += 1

    result = pf.infer(pf.Field(4, n_labels=2).add(Zero()), rule)
    assert result.free_energy == pytest.approx(-4 * np.log(1 + np.exp(-1)), abs=1e-6)
    assert result.trace.free_energy[-1] == pytest.approx(result.free_energy)


def test_spins_of_a_grid_have_the_energy_of_the_reference() -> None:
    lowered = repulsive_grid(4, weight=2.0, bias=1.0).lower()
    q = random_marginals(lowered.layout, np.random.default_rng(2))
    ours, theirs = (compile_program(lowered, kernels) for kernels in ("cpu", "reference"))
    expected = theirs.free_energy(theirs.start(q))
    assert ours.free_energy(ours.start(q)) == pytest.approx(expected, rel=1e-12)
