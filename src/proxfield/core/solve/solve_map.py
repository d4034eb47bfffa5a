"""`solve_map`: the labelling of lowest energy that a search can find, and its `MapResult`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from dataclasses import field as field_of
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.interrupts import finish_first
from proxfield.core.common.logs import log
from proxfield.core.common.records import plain
from proxfield.core.engines.base import Program
from proxfield.core.engines.plan import Chains
from proxfield.core.engines.registry import program_for
from proxfield.core.lowering.lowered import Lowered, graph_of, interaction_scale
from proxfield.core.solve.forbidden import search_forbidden, spreads
from proxfield.core.solve.history import Callback, Progress
from proxfield.core.solve.infer import infer_one
from proxfield.core.solve.progress import watching
from proxfield.core.solve.request import Request, Start, check, choose_kernels, device_memory
from proxfield.core.solve.rounding import MAX_SWEEPS, improved_singly, rounding_program
from proxfield.core.solve.rules.auto import Auto
from proxfield.core.solve.search import tuned
from proxfield.core.solve.search.labelling import MapSearch
from proxfield.core.solve.session import Session
from proxfield.core.terms.base import Doubles, Ints, as_indices
from proxfield.errors import InputError, InputTypeError, shown
from proxfield.field import Field
from proxfield.result import Result, Status, names_of, one_hot

if TYPE_CHECKING:
    from proxfield.io.files import Target

TOLERANCE = 1e-6
"""Of the minimum of F that is rounded where variables can't be visited one by one."""
SMALLEST_SIZE, LARGEST_SIZE = 2.0**-20, 2.0**100
"""Typical energies below and above which all are scaled before the search."""


class MapStatus(Enum):
    """Why a search for a labelling stopped; the value says what to do about it."""

    OPTIMAL = "no labelling has a lower energy: the interactions form a forest"
    SETTLED = (
        "the search came to rest; there may be a better labelling, which a budget or another seed "
        "may find"
    )
    MAX_ITERS = "max_iters reached; raise max_iters, or continue with init=result"
    BUDGET = "the budget was used up; raise budget, or continue with init=result"
    INTERRUPTED = Status.INTERRUPTED.value
    STOPPED = Status.STOPPED.value
    NO_FEASIBLE = (
        "no labelling of positive probability was found, so the energy is infinite; raise "
        "max_iters or budget, change the seed, or check the zeros of the model"
    )
    INFEASIBLE = Status.INFEASIBLE.value

    @property
    def label(self) -> str:
        """The status as lower-case words, as files and the command line print it."""
        return self.name.lower().replace("_", "-")


@dataclass(eq=False)
class MapTrace:
    """The lowest energy so far, with a row for the start, each improvement and the end.

    Attributes:
        iteration: Sweeps made so far, of all chains together.
        seconds: Seconds of inference so far.
        energy: Energy of the best labelling so far; +inf while none is feasible.
    """

    iteration: NDArray[np.int64] = field_of(default_factory=lambda: np.zeros(0, dtype=np.int64))
    seconds: NDArray[np.float64] = field_of(default_factory=lambda: np.zeros(0))
    energy: NDArray[np.float64] = field_of(default_factory=lambda: np.zeros(0))

    def __len__(self) -> int:
        return len(self.iteration)

    def to_csv(self) -> str:
        """The trace as CSV text with a header."""
        rows = zip(self.iteration, self.seconds, self.energy, strict=True)
        lines = [f"{t},{s:.9f},{float(e)!r}" for t, s, e in rows]
        return "\n".join(["iteration,seconds,energy", *lines, ""])


@dataclass(eq=False)
class MapResult:
    """The outcome of `solve_map`, in the user's numbering.

    Attributes:
        field: The field it is about, with its evidence.
        labels: The label of each variable.  # (n_vars,)
        energy: Its energy, −log of its unnormalized probability; +inf if no labelling of finite
            energy was found.
        status: Why the search stopped, with a remedy.
        stable: Whether it is known that no change of a single variable lowers the energy.
        iterations: Sweeps made, of all chains together.
        seconds: Seconds of inference: what a budget limits.
        setup_seconds: All other seconds of the call.
        trace: How the energy fell.
    """

    field: Field
    labels: Ints
    energy: float
    status: MapStatus
    stable: bool
    iterations: int
    seconds: float
    trace: MapTrace
    setup_seconds: float = 0.0

    @property
    def feasible(self) -> bool:
        """Whether the labelling has a finite energy."""
        return bool(np.isfinite(self.energy))

    @property
    def optimal(self) -> bool:
        """Whether it is proved that no labelling has a lower energy."""
        return self.status is MapStatus.OPTIMAL

    @property
    def message(self) -> str:
        """The status in words, with the remedy."""
        return self.status.value

    def __repr__(self) -> str:
        return (
            f"MapResult({self.status.label} after {self.iterations} sweeps, "
            f"{self.seconds:.3g} s, energy {self.energy:.9g})"
        )

    def named_labels(self) -> dict[int | str, int | str]:
        """The labelling with the field's names; numbers stand for what has none.

        Example:
            >>> import proxfield as pf
            >>> field = pf.Field([2, 2], names=["a", "b"], label_names=["off", "on"])
            >>> pf.solve_map(field.add(pf.Unary([[1.0, 0.0], [0.0, 2.0]]))).named_labels()
            {'a': 'on', 'b': 'off'}
        """
        named = zip(names_of(self.field), self.labels.tolist(), strict=True)
        return {name: words[label] for (name, words), label in named}

    def summary(self) -> dict[str, Any]:
        """The result's numbers as a plain dictionary (what ``map --json`` prints)."""
        names = ("energy", "feasible", "optimal", "stable", "iterations", "seconds")
        return {
            "n_vars": self.field.n_vars,
            "status": self.status.label,
            "message": self.message,
            **{name: getattr(self, name) for name in names},
            "setup_seconds": self.setup_seconds,
            "labels": self.labels.tolist(),
        }

    def to_json(self) -> str:
        """`summary` as one line of JSON; an infinite energy is null.

        Example:
            >>> import json
            >>> import proxfield as pf
            >>> result = pf.solve_map(pf.Field([2]).add(pf.Unary([[3.0, 1.0]])))
            >>> json.loads(result.to_json())["labels"]
            [1]
        """
        return json.dumps(plain(self.summary()), allow_nan=False)

    def save(self, path: Target) -> None:
        """Write the labelling as a UAI MAP file, whole or not at all; `io.read_map` reads it.

        Raises:
            InputError: If it can't be written, or the labelling isn't feasible.
        """
        from proxfield.io.files import atomic_write
        from proxfield.io.results import format_map

        if not self.feasible:
            raise InputError(f"there is no labelling to write: {self.message}")
        atomic_write(path, format_map(self.labels))


def solve_map(
    field: Field,
    *,
    evidence: Mapping[int | str, int | str] | None = None,
    init: ArrayLike | Result | MapResult | None = None,
    max_iters: int | None = None,
    budget: float | None = None,
    callback: Callback | None = None,
    seed: int = 0,
    threads: int | None = None,
    device: str = "cpu",
    kernels: str | None = None,
    dtype: str | None = None,
    progress: bool = False,
) -> MapResult:
    """Search for the labelling of lowest energy (MAP, or MPE).

    Chains sample labellings at falling temperatures, down to 0, and are combined with the best
    labelling so far part by part (docs/concepts/methods.md). Where the interactions form a
    forest, the result is optimal, and the status says so. Otherwise no change of a single
    variable lowers its energy, if `MapResult.stable` says so: with terms over all pairs it may
    not be known.

    Args:
        field: The field.
        evidence: Observed variables, as for `Field.condition`.
        init: A labelling to start from, or a result, whose labelling is improved; by default labels
            are drawn at random.
        max_iters: Maximum number of sweeps, of all chains together; by default unlimited if there
            is a budget, else enough for a second or two.
        budget: Time budget in seconds, excluding what `MapResult.setup_seconds` holds.
        callback: Called about 20 times a second with a `Progress`, whose ``free_energy`` is the
            lowest energy so far; returning something true stops the search.
        seed: Random seed. Limited by ``max_iters`` alone, the same seed gives the same result.
        threads: Maximum number of threads; all cores by default.
        device: As for `infer`.
        kernels: As for `infer`.
        dtype: As for `infer`; energies of results are computed in float64.
        progress: Show a bar: in a notebook, or on stderr if that is a terminal.

    Returns:
        A `MapResult`. Ctrl-C returns the best labelling so far, with the status INTERRUPTED; while
        the field is still being built there is none, and KeyboardInterrupt is raised.

    Example:
        >>> import proxfield as pf
        >>> field = pf.Field(4, n_labels=2).add(pf.Unary([[0, 1.0], [0, 0], [0, 0], [0, 0]]))
        >>> field = field.add(pf.Potts([[0, 1], [1, 2], [2, 3]], -2.0))
        >>> result = pf.solve_map(field)
        >>> result.labels.tolist(), result.energy, result.status.name
        ([0, 1, 0, 1], -6.0, 'OPTIMAL')
    """
    if not isinstance(field, Field):
        raise InputTypeError(f"solve_map takes a Field, not {type(field).__name__}")
    field = field.snapshot() if evidence is None else field.condition(evidence)
    start: Start = "uniform"
    if isinstance(init, str):
        raise InputError(f"init={shown(init)}, expected a labelling or a result")
    if init is not None:
        known = init.map_labels if isinstance(init, Result) else init
        known = known.labels if isinstance(known, MapResult) else as_indices(known, "init", 1)
        field.check_labels(known)
        start = one_hot(field.layout.offsets, known)
    request = Request(
        MapSearch(),
        *choose_kernels(device, kernels, dtype),
        kernels is not None,
        init=start,
        max_iters=max_iters,
        tol=0.0,
        budget=budget,
        callback=callback,
        seed=seed,
        threads=threads,
    )
    check(progress=progress)
    return answer(field, request, bool(progress))


def answer(field: Field, request: Request, progress: bool = False) -> MapResult:
    """The result of a request whose rule is `MapSearch`."""
    with watching(progress, request.rule.name, request.callback) as showing:
        begun = request.now()
        request = replace(request, callback=showing)
        session = request.open(field)
        with device_memory(request.kernels, session.problem.lowered):
            result = search(field, request, session)
        request.note_compiled(session)
        result.setup_seconds = max(0.0, request.now() - begun - result.seconds)
    log.debug("%r", result)
    return result


def search(field: Field, request: Request, session: Session) -> MapResult:
    """Search in the way that suits the field."""
    session, exponent = in_range(session)
    lowered, loop = session.problem.lowered, session.loop
    if lowered.infeasible:
        labels, ended = np.where(field.evidence >= 0, field.evidence, 0), MapStatus.INFEASIBLE
        return MapResult(field, labels, np.inf, ended, False, 0, loop.elapsed, MapTrace())
    if lowered.extras:
        found, status, stable = by_rounding(field, request, session)
    elif is_forest(lowered):
        with loop.clock():
            found, status, stable = exactly(lowered), MapStatus.OPTIMAL, True
    else:
        outcome = search_forbidden(session) if lowered.hard else request.rule.solve(session)
        assert outcome.labels is not None
        found, status = outcome.labels, MapStatus[outcome.status.name]
        stable = bool(np.isfinite(outcome.free_energy))
        if stable:  # then no change of a single variable lowers the energy
            program = rounding_program(lowered, session.kernels)
            start = one_hot(lowered.layout.offsets, found)
            program.descend(start, 0)  # compile outside the clock
            with finish_first(), loop.clock():
                found = descend_fully(program, start)
    labels = lowered.reduction.expand_labels(found)
    energy = field.energy(labels)
    if energy == np.inf and status is MapStatus.OPTIMAL:
        status = MapStatus.INFEASIBLE
    elif energy == np.inf and status not in (MapStatus.INFEASIBLE, MapStatus.INTERRUPTED):
        status = MapStatus.NO_FEASIBLE
    # the trace: rows at which the energy fell, the first and the last
    rows = loop.make_trace()
    e = np.append(np.ldexp(np.minimum.accumulate(rows.free_energy), exponent), energy)
    keep = np.append(True, e[1:] < e[:-1])
    keep[-1] = True
    trace = MapTrace(
        np.append(rows.iteration, loop.iterations)[keep],
        np.append(rows.seconds, loop.elapsed)[keep],
        e[keep],
    )
    stable = stable and bool(np.isfinite(energy))
    return MapResult(field, labels, energy, status, stable, loop.iterations, loop.elapsed, trace)


def in_range(session: Session) -> tuple[Session, int]:
    """The session with energies of ordinary size, and the power of 2 that they were divided by.

    Very small or large ones under- and overflow in squares of energies, and tell no gain from
    rounding. Whatever the callback is told stays in the user's unit.
    """
    lowered, loop = session.problem.lowered, session.loop
    exponent, callback = exponent_of(lowered), session.loop.callback
    if exponent == 0 or lowered.extras:
        return session, 0

    def told(seen: Progress) -> object:
        energy = float(np.ldexp(seen.free_energy, exponent))
        return None if callback is None else callback(replace(seen, free_energy=energy))

    if callback is not None:
        loop = replace(loop, callback=told)
    return replace(session.with_energies(lowered.scaled(-exponent)), loop=loop), exponent


def exponent_of(lowered: Lowered) -> int:
    """The power of 2 that energies are of, where all kinds of them are unusual; else 0.

    A few very large ones, as people write them for what they forbid, change nothing.
    """
    arrays = [lowered.unary, *(f.tables for f in lowered.factors)]
    arrays += [t.weights for t in (lowered.ising, lowered.potts) if t is not None]
    if lowered.extras:
        arrays = [np.array([lowered.magnitude / max(1, lowered.layout.n_vars)])]
    known = (np.abs(a[np.isfinite(a) & (a != 0)]) for a in arrays)
    sizes = [float(np.median(size)) for size in known if len(size)]
    if sizes and max(sizes) < SMALLEST_SIZE:
        return int(np.frexp(max(sizes))[1])
    if sizes and min(sizes) > LARGEST_SIZE:
        return int(np.frexp(min(sizes))[1])
    return 0


def is_forest(lowered: Lowered) -> bool:
    """Whether all interactions are pairwise, and their graph has no cycle."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    if any(f.degree > 2 for f in lowered.factors):
        return False
    graph, n = graph_of(lowered), lowered.layout.n_vars
    edges = len(graph.column) // 2
    if edges >= n:
        return n == 0
    joined = csr_matrix((np.ones(2 * edges, dtype=np.int8), graph.column, graph.row), shape=(n, n))
    return bool(edges == n - connected_components(joined, directed=False, return_labels=False))


def exactly(lowered: Lowered) -> Ints:
    """The labelling of lowest energy in a forest: one forest move at temperature 0."""
    layout = lowered.layout
    if lowered.hard:  # the penalty outweighs all differences of finite energies
        lowered = lowered.soften(1.0 + float(spreads(lowered).sum()))
    start = np.repeat(1.0 / layout.cardinalities, layout.cardinalities)
    zero = tuned.ZERO * (interaction_scale(lowered) or 1.0)
    chains = Chains.make(
        start[None], hot=zero, cold=zero, sweeps=1, drawn=True, forests=True, polish=0
    )
    program = program_for(lowered)
    return descend_fully(program, program.explore(chains, 1).q[0])


def descend_fully(program: Program, q: Doubles) -> Ints:
    """The labelling after sweeps at temperature 0, until a whole one changes nothing."""
    while True:
        new = program.descend(q, MAX_SWEEPS)
        if np.array_equal(new, q):
            return program.lowered.layout.best_labels(new)
        q = new


def by_rounding(field: Field, request: Request, session: Session) -> tuple[Ints, MapStatus, bool]:
    """Where variables can't be visited one by one: a minimum of F, rounded and improved."""
    session = session.within(replace(session.limits, tol=TOLERANCE))
    result = infer_one(field, replace(request, rule=Auto()), session)
    lowered, loop = session.problem.lowered, session.loop
    with finish_first(), loop.clock():
        rounded = one_hot(field.layout.offsets, np.ravel(result.map_labels))
        labels = lowered.layout.best_labels(lowered.reduction.restrict(rounded))
        unit = float(np.ldexp(1.0, exponent_of(lowered)))
        program = rounding_program(lowered, session.kernels)
        labels, stable = improved_singly(program, labels, unit)
    ended = (Status.INTERRUPTED, Status.STOPPED, Status.MAX_ITERS, Status.BUDGET)
    known = result.status in ended
    return labels, MapStatus[result.status.name] if known else MapStatus.SETTLED, stable
