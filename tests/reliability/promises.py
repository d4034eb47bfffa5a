"""What proxfield promises, each as a check on one seeded case.

A check takes a seed and returns how many claims it tested (0 where the case makes none), or raises
`BrokenPromiseError` with what to run to see it again. `test_promises` runs some seeds of each in
CI, `soak` many.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import proxfield as pf
from clock import CountedClock
from proxfield.errors import ProxfieldError, UnsupportedError
from proxfield.testing import enumerate_field, fixed_point_residual, random_field

KERNELS = tuple(os.environ.get("PROXFIELD_TEST_KERNELS", "reference,cpu").split(","))
RULES = tuple(name for name, rule in pf.RULES.items() if not rule.special)
MONOTONE = tuple(name for name in RULES if pf.RULES[name].monotone)
LEAVING = tuple(name for name in RULES if pf.RULES[name].solve is not pf.Rule.solve)
"""Rules that leave saddles."""
INITS = ("uniform", "possible", "unary", "random", "corner", "saturated")
TOL = 1e-6
SPIN_KINDS = ("constant", "unary", "pairwise", "potts", "ising", "factor")


class BrokenPromiseError(AssertionError):
    """A claim that doesn't hold."""


@dataclass(frozen=True)
class Promise:
    """A sentence of the documentation and its check.

    Attributes:
        says: The sentence.
        check: Takes a seed; returns the number of claims tested.
        ci: Number of seeds in CI.
        soak: Number of seeds in the long run.
    """

    says: str
    check: Callable[[int], int]
    ci: int
    soak: int


def claim(holds: bool, what: str) -> None:
    if not holds:
        raise BrokenPromiseError(what)


def draw(seed: int, **options: Any) -> tuple[pf.Field, Any]:
    return random_field(seed, **options)


def start(field: pf.Field, init: str, rng: np.random.Generator) -> Any:
    """A named start, or marginals near the corners of the simplices."""
    if init not in ("corner", "saturated"):
        return init
    layout = field.layout
    q = np.full(layout.size, 0.0 if init == "corner" else 1e-12)
    q[layout.offsets[:-1] + rng.integers(layout.cardinalities)] = 1.0
    return layout.normalize(q)


def run(field: pf.Field, rule: str, **options: Any) -> pf.Result | None:
    """Infer; None where the field's terms don't offer what the rule needs."""
    try:
        return pf.infer(field, rule, **options)
    except UnsupportedError:
        return None


def rounding(field: pf.Field, q: NDArray[Any], dtype: str) -> float:
    """What rounding of energies may add to a residual: theirs is relative to the largest sum."""
    total = sum(float(np.abs(v[np.isfinite(v)]).max(initial=0.0)) for v in energies_of(field))
    return 64 * float(np.finfo(dtype).eps) * total


def energies_of(field: pf.Field) -> list[NDArray[Any]]:
    out = []
    for term in field.terms:
        for value in vars(term).values():
            if isinstance(value, np.ndarray) and value.dtype.kind == "f":
                out.append(value)
            elif isinstance(value, float):
                out.append(np.array([value]))
    return out


# ---- statuses ----


def fixed_points(seed: int, decades: tuple[float, float] = (-1.0, 2.0)) -> int:
    """One field of scale 0.1 to 100, one rule, one start, one kernel set."""
    rng = np.random.default_rng([seed, 1])
    field, about = draw(seed, scale=float(10 ** rng.uniform(*decades)))
    rule, init = RULES[seed % len(RULES)], INITS[int(rng.integers(len(INITS)))]
    kernels = KERNELS[int(rng.integers(len(KERNELS)))]
    dtype = "float32" if rng.random() < 0.25 else "float64"
    first = start(field, init, rng)
    limit = 200 if kernels == "reference" or rule == "auto" else 1000
    limit = 40 if kernels == "cuda" else limit  # an interpreter may run them
    result = run(field, rule, init=first, kernels=kernels, dtype=dtype, max_iters=limit, seed=seed)
    if result is None or result.status not in (pf.Status.CONVERGED, pf.Status.SADDLE):
        return 0
    gap = fixed_point_residual(field, result.q)
    allowed = TOL + rounding(field, result.q, dtype)
    what = f"{about}, {rule}, {init}, {kernels}, {dtype}: residual {gap:.3g}"
    claim(gap <= allowed, what)
    return 1


def any_scale(seed: int) -> int:
    return fixed_points(seed, (-8.0, 8.0))


def warm_starts(seed: int) -> int:
    """Continue from a result after the unary energies have changed."""
    rng = np.random.default_rng([seed, 2])
    n, n_labels = int(rng.integers(2, 30)), int(rng.integers(2, 5))
    edges = np.sort(rng.integers(n, size=(2 * n, 2)), axis=1)
    edges = edges[edges[:, 0] < edges[:, 1]]
    scale = float(10 ** rng.uniform(-1, 2))
    weights = scale * rng.normal(size=len(edges))

    def field() -> pf.Field:
        unary = pf.Unary(scale * rng.normal(size=(n, n_labels)))
        return pf.Field(n, n_labels).add(unary).add(pf.Potts(edges, weights))

    made = 0
    before, after = field(), field()
    for rule in ("fixed", "adaptive", "momentum", "adam", "sweep", "adhoc"):
        result = pf.infer(after, rule, init=pf.infer(before, rule), max_iters=1000)
        if result.status is pf.Status.CONVERGED:
            gap = fixed_point_residual(after, result.q)
            claim(gap <= TOL + 1e-9 * scale, f"warm start, seed {seed}, {rule}: {gap:.3g}")
            made += 1
    return made


def lowest_eigenvalue(field: pf.Field, q: NDArray[Any]) -> float:
    """Of Rᵀ H R at q, from differences of the field's own gradient."""
    layout = field.layout
    owner = layout.owner

    def gradient(p: NDArray[Any]) -> NDArray[Any]:
        g = np.zeros(layout.size)
        for term in field.terms:
            term.add_gradient(layout, p, g)
        return np.where(np.isfinite(g), g, 0.0)

    seen = (np.asarray(field.evidence) >= 0)[owner]
    q = np.where((q > 1e-10) & ~seen, q, 0.0)
    root = np.sqrt(q)
    r = np.diag(root) @ (np.eye(len(q)) - (owner[:, None] == owner) * np.outer(root, root))
    h = np.zeros((len(q), len(q)))
    whole = np.where(seen, 0.0, q)
    fixed_part = np.zeros(len(q))
    at = np.flatnonzero(np.asarray(field.evidence) >= 0)
    fixed_part[layout.offsets[at] + field.evidence[at]] = 1.0
    for k in np.flatnonzero(q > 0):
        eps = 1e-4 * q[k]
        step = eps * (np.arange(len(q)) == k)
        base = whole + fixed_part
        h[:, k] = (gradient(base + step) - gradient(base - step)) / (2 * eps)
    matrix = r.T @ h @ r
    return float(np.linalg.eigvalsh((matrix + matrix.T) / 2)[0])


def minima(seed: int) -> int:
    """Where rules that leave saddles say CONVERGED, the Hessian of F has no negative eigenvalue."""
    rng = np.random.default_rng([seed, 3])
    symmetric = bool(rng.random() < 0.5)
    scale = float(10 ** rng.uniform(-1, 1.5))
    if symmetric:
        field, about = symmetric_field(rng, scale), f"symmetric field {seed}"
    else:
        field, about = draw(seed, scale=scale)
    rule = LEAVING[seed % len(LEAVING)]
    options: dict[str, Any] = [{}, {"max_iters": 20}, {"budget": 0.001}][int(rng.integers(3))]
    result = run(field, rule, kernels="cpu", seed=seed, **options)
    if result is None:
        return 0
    what = f"{about}, {rule}, {options}: {result}"
    claim(result.status is not pf.Status.SADDLE, what)
    if result.status is not pf.Status.CONVERGED:
        return 0
    lowest = lowest_eigenvalue(field, result.q)
    claim(lowest >= -1.0 - 1e-3, f"{what}, eigenvalue {lowest:.6g}")
    return 1


def symmetric_field(rng: np.random.Generator, scale: float) -> pf.Field:
    """Without unary energies: uniform marginals are a fixed point, often a saddle."""
    n, n_labels = int(rng.integers(2, 25)), int(rng.integers(2, 4))
    edges = np.sort(rng.integers(n, size=(2 * n, 2)), axis=1)
    edges = np.unique(edges[edges[:, 0] < edges[:, 1]], axis=0)
    field = pf.Field(n, n_labels)
    if rng.random() < 0.3:
        points = rng.normal(size=(n, 2))
        field.add(pf.Gaussian(points, scale * float(rng.normal())))
    return field.add(pf.Potts(edges, scale * rng.normal(size=len(edges))))


def saddles(seed: int) -> int:
    """SADDLE is said only where F really falls; a plain CONVERGED isn't a clear saddle."""
    rng = np.random.default_rng([seed, 4])
    field = symmetric_field(rng, float(10 ** rng.uniform(-1, 1.5)))
    rule = ("fixed", "adaptive", "momentum", "adam", "sweep", "adhoc")[seed % 6]
    result = run(field, rule, kernels=KERNELS[seed % len(KERNELS)], seed=seed)
    if result is None or result.status not in (pf.Status.CONVERGED, pf.Status.SADDLE):
        return 0
    lowest = lowest_eigenvalue(field, result.q)
    said = result.status is pf.Status.SADDLE
    clear = abs(lowest + 1.0) > 1e-3
    what = f"symmetric field {seed}, {rule}: {result}, eigenvalue {lowest:.6g}"
    claim(said == (lowest < -1.0) or not clear, what)
    return 1


# ---- numbers ----


def bounds(seed: int) -> int:
    """−F ≤ log Z, and F is the field's own F at q."""
    rng = np.random.default_rng([seed, 5])
    field, about = draw(seed)
    exact = enumerate_field(field)
    rule = RULES[seed % len(RULES)]
    kernels = KERNELS[int(rng.integers(len(KERNELS)))]
    result = run(field, rule, init=INITS[int(rng.integers(4))], kernels=kernels, max_iters=30)
    if result is None:
        return 0
    what = f"{about}, {rule}, {kernels}: {result}"
    slack = 1e-9 * (1 + abs(exact.log_z) if np.isfinite(exact.log_z) else 1.0)
    slack += 1e-12 * float(sum(np.abs(v[np.isfinite(v)]).sum() for v in energies_of(field)))
    claim(result.log_z_bound <= exact.log_z + slack, f"{what}, log Z {exact.log_z:.12g}")
    claim(not np.isnan(result.q).any() and not np.isnan(result.free_energy), what)
    if np.isfinite(result.free_energy):
        own = field.free_energy(result.q)
        claim(
            abs(own - result.free_energy) <= slack + 1e-9 * abs(own), f"{what}, F(q) = {own:.12g}"
        )
    if result.status is pf.Status.INFEASIBLE:
        claim(not exact.feasible, what)
    claim(exact.feasible or result.status in NOT_FEASIBLE, what)
    return 1


NOT_FEASIBLE = (pf.Status.INFEASIBLE, pf.Status.NO_FEASIBLE)


def descent(seed: int) -> int:
    """Rules that promise it never raise F."""
    rng = np.random.default_rng([seed, 6])
    field, about = draw(seed, scale=float(10 ** rng.uniform(-3, 3)))
    rule, kernels = MONOTONE[seed % len(MONOTONE)], KERNELS[int(rng.integers(len(KERNELS)))]
    init = start(field, INITS[int(rng.integers(len(INITS)))], rng)
    options: dict[str, Any] = {"max_iters": 40, "seed": seed, "dtype": "float64"}
    result = run(field, rule, init=init, kernels=kernels, **options)
    if result is None:
        return 0
    f = result.trace.free_energy[np.isfinite(result.trace.free_energy)]
    rise = np.diff(f) - 1e-9 * (1 + np.abs(f[:-1]))
    claim(
        len(rise) == 0 or rise.max() <= 0,
        f"{about}, {rule}, {kernels}: F rose by {rise.max(initial=0):.3g}",
    )
    return 1


def labellings(seed: int) -> int:
    """E(map_labels) ≤ E(q) for every field whose −F is a bound."""
    rng = np.random.default_rng([seed, 7])
    field, about = draw(seed, scale=float(10 ** rng.uniform(-2, 2)))
    init = start(field, ("random", "uniform", "corner")[seed % 3], rng)
    result = run(
        field, ("fixed", "adhoc", "momentum")[seed % 3], init=init, max_iters=int(rng.integers(4))
    )
    certain = all(term.bounds_log_z(field.layout) for term in field.terms)
    if result is None or not certain or not np.isfinite(result.free_energy):
        return 0
    e, expected = result.map_energy, result.expected_energy
    claim(
        e <= expected + 1e-9 * (1 + abs(expected)),
        f"{about}: E(map) {e:.12g}, E(q) {expected:.12g}",
    )
    return 1


def evidence(seed: int) -> int:
    """Observed variables are observed, whatever the limits."""
    rng = np.random.default_rng([seed, 8])
    field, about = draw(seed)
    free = np.flatnonzero(np.asarray(field.evidence) < 0)
    if not about.feasible or len(free) == 0:
        return 0
    i = int(rng.choice(free))
    seen = field.condition({i: int(about.labels[i])})
    result = run(seen, RULES[seed % len(RULES)], max_iters=int(rng.choice([0, 1, 20])))
    if result is None:
        return 0
    observed = np.flatnonzero(np.asarray(seen.evidence) >= 0)
    for v in observed:
        mine = result.q[seen.layout.offsets[v] : seen.layout.offsets[v + 1]]
        claim(mine[seen.evidence[v]] == 1.0 and mine.sum() == 1.0, f"{about}, variable {v}: {mine}")
    return 1


# ---- limits ----


def limits(seed: int) -> int:
    """Iterations, the callback and the budget hold, where an update takes a millisecond."""
    rng = np.random.default_rng([seed, 9])
    field, about = draw(seed, scale=float(10 ** rng.uniform(-1, 2)))
    rule = RULES[seed % len(RULES)]
    most = int(rng.choice([0, 1, 2, 3, 5, 8, 20, 50]))
    result = run(field, rule, max_iters=most, tol=0.0, seed=seed)
    if result is None:
        return 0
    claim(result.iterations <= most, f"{about}, {rule}: {result.iterations} of {most} iterations")
    calls: list[float] = []

    def stop(progress: pf.Progress) -> bool:
        calls.append(progress.seconds)
        return True

    stopped = pf.infer(field, rule, tol=0.0, callback=stop, seed=seed)
    claim(len(calls) <= 1, f"{about}, {rule}: called {len(calls)} times after it said stop")
    claim(not calls or stopped.status is pf.Status.STOPPED, f"{about}, {rule}: {stopped}")
    with CountedClock(update=1e-3, look=1e-5) as clock:
        brief = pf.infer(field, rule, budget=0.02, tol=0.0, seed=seed)
    spent = f"{brief.seconds:.3f} s of 0.02, {clock.now:.3f} s in all"
    claim(brief.seconds <= 0.03 and clock.now <= 0.1, f"{about}, {rule}: {brief}, {spent}")
    return 3


def repeats(seed: int) -> int:
    """The same call gives the same bits."""
    rng = np.random.default_rng([seed, 10])
    field, about = draw(seed, scale=float(10 ** rng.uniform(-2, 2)))
    rule, kernels = RULES[seed % len(RULES)], KERNELS[int(rng.integers(len(KERNELS)))]
    options: dict[str, Any] = {"init": "random", "max_iters": 60, "seed": seed, "kernels": kernels}
    a, b = (run(field, rule, **options) for _ in range(2))
    if a is None or b is None:
        return 0
    same = np.array_equal(a.q, b.q) and a.free_energy == b.free_energy and a.status is b.status
    claim(same, f"{about}, {rule}, {kernels}: {a} and {b}")
    return 1


def agreement(seed: int) -> int:
    """Kernel sets make the same updates."""
    rng = np.random.default_rng([seed, 11])
    field, about = draw(seed, scale=float(10 ** rng.uniform(-2, 1)))
    rule = ("full-parallel", "adhoc", "fixed", "adaptive", "momentum", "sweep")[seed % 6]
    found = [
        run(field, rule, init="random", max_iters=5, kernels=k, dtype="float64") for k in KERNELS
    ]
    if len(found) < 2 or any(r is None for r in found):
        return 0
    for kernels, other in zip(KERNELS[1:], found[1:], strict=True):
        gap = float(np.abs(found[0].q - other.q).max(initial=0.0))
        claim(gap <= 1e-6, f"{about}, {rule}, {kernels}: marginals differ by {gap:.3g}")
    return 1


# ---- files ----


def files(seed: int) -> int:
    """A damaged model file gives a field or an `InputError`, nothing else."""
    import tempfile
    from pathlib import Path

    from proxfield.io import read_model, write_model

    rng = np.random.default_rng([seed, 12])
    field, _ = random_field(seed % 200, kinds=SPIN_KINDS, scale=1.0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.uai"
        try:
            write_model(field, path)
        except ProxfieldError:
            return 0
        text = path.read_bytes()
        for _ in range(20):
            path.write_bytes(damaged(text, rng))
            try:
                read_model(path)
            except ProxfieldError as error:
                line = str(error)
                claim("\n" not in line and len(line) < 200 + len(folder), f"seed {seed}: {line!r}")
    return 20


def damaged(text: bytes, rng: np.random.Generator) -> bytes:
    """Text with bytes changed, cut, repeated, or tokens replaced by awkward ones."""
    data = bytearray(text)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(len(data))) if data else 0
        how = int(rng.integers(5))
        if how == 0 and data:
            data[at] = int(rng.integers(256))
        elif how == 1:
            del data[at : at + int(rng.integers(1, 30))]
        elif how == 2:
            data[at:at] = data[at : at + int(rng.integers(1, 30))]
        elif how == 3:
            data = data[:at]
        else:
            odd = [
                b" -1 ",
                b" 1e999 ",
                b" nan ",
                b" inf ",
                b" 99999999999999999999 ",
                b" x ",
                b" 0 ",
            ]
            data[at:at] = odd[int(rng.integers(len(odd)))]
    return bytes(data)


PROMISES: dict[str, Promise] = {
    "fixed-points": Promise(
        "CONVERGED and SADDLE: softmax(−g(q)) is within tol of q (scales 0.1 to 100, all rules, "
        "starts and kernel sets)", fixed_points, 600, 40_000),
    "any-scale": Promise("the same at scales 1e-8 to 1e8", any_scale, 200, 10_000),
    "warm-starts": Promise(
        "the same when continuing from a result after the unary energies changed",
        warm_starts, 60, 3_000),
    "minima": Promise(
        "where auto, anneal, restarts and portfolio say CONVERGED, the Hessian of F has no "
        "negative eigenvalue; they never say SADDLE", minima, 200, 5_000),
    "saddles": Promise(
        "SADDLE is said where, and only where, F falls along some direction", saddles, 200, 8_000),
    "bounds": Promise("log_z_bound ≤ log Z by enumeration; F is F(q); infeasible means infeasible",
        bounds, 400, 20_000),
    "descent": Promise("sweep, colored, fixed and adaptive never raise F", descent, 300, 20_000),
    "labellings": Promise("E(map_labels) ≤ E(q) where −F is a bound", labellings, 300, 20_000),
    "evidence": Promise("observed variables keep their label, also with max_iters=0",
        evidence, 200, 10_000),
    "limits": Promise("max_iters, callback and budget hold for every rule", limits, 120, 3_000),
    "repeats": Promise("the same call gives the same bits", repeats, 120, 6_000),
    "agreement": Promise("kernel sets make the same updates", agreement, 200, 10_000),
    "files": Promise("damaged model files give a field or one line", files, 60, 4_000),
}  # fmt: skip
