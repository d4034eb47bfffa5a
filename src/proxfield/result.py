"""What an inference gives back: marginals, labels, bounds, the trace and a status."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from proxfield.errors import InputError
from proxfield.terms.base import Floats, Ints

if TYPE_CHECKING:
    from proxfield.field import Field


class Status(Enum):
    """Why an inference stopped; the value says what to do about it."""

    CONVERGED = "a fixed point: softmax(-g(q)) is within tol of q"
    SADDLE = (
        "a fixed point, but a saddle of F and not a minimum; use init='random' or rule='auto', "
        "which leaves saddles"
    )
    OVERSHOT = (
        "the state of lowest F seen, as keep='best' asks; the rule went on from it and converged "
        "where F is higher; continue with init=result and rule='fixed'"
    )
    MAX_ITERS = "max_iters reached before tol; raise max_iters or tol, or continue with init=result"
    BUDGET = "the budget was used up before tol; raise budget, or continue with init=result"
    OSCILLATING = (
        "q oscillates and won't converge with this rule; use rule='fixed' or 'adaptive', "
        "which can't oscillate, or a smaller step"
    )
    DIVERGED = (
        "the iteration left the range of numbers; this is the last good state; "
        "use a smaller step, or rule='fixed' or 'adaptive'"
    )
    INTERRUPTED = "interrupted; this is the best so far, continue with init=result"
    STOPPED = "the callback asked to stop"
    NO_FEASIBLE = (
        "no labelling of positive probability was found, so the bound is -inf; "
        "raise max_iters or budget, change the seed, or check the zeros of the model"
    )
    INFEASIBLE = (
        "no labelling has positive probability: the zeros of the model contradict each other"
    )

    @property
    def converged(self) -> bool:
        """Is the end a fixed point, and not known to be a saddle?"""
        return self is Status.CONVERGED

    @property
    def label(self) -> str:
        """The status as lower-case words, as files and the command line print it."""
        return self.name.lower().replace("_", "-")


@dataclass
class Trace:
    """One row per state: row t is the state after t updates, row 0 the start.

    Attributes:
        iteration: t.
        seconds: Time since the start (within a batch of iterations: interpolated).
        free_energy: F; +inf while q still gives weight to a forbidden configuration.
        change: Largest change of q by update t, divided by the step; NaN in row 0.
        member: For rules that run several others: which of them a row belongs to, and
            there rows may stand for many iterations and show the best F so far.
    """

    iteration: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    seconds: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    free_energy: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    change: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    member: list[str] | None = None

    def __len__(self) -> int:
        return len(self.iteration)

    def to_csv(self) -> str:
        """The trace as CSV text with a header."""
        out = io.StringIO()
        write = csv.writer(out, lineterminator="\n")
        write.writerow(["iteration", "seconds", "free_energy", "change"])
        for t, s, f, c in zip(
            self.iteration, self.seconds, self.free_energy, self.change, strict=True
        ):
            write.writerow([int(t), f"{s:.9f}", repr(float(f)), repr(float(c))])
        return out.getvalue()


@dataclass
class Result:
    """The outcome of `infer`, in the user's numbering.

    Attributes:
        field: The field it is about.
        q: Marginals, flat.  # (field.layout.size,)
        free_energy: F(q) = E(q) − H(q); +inf if no feasible labelling was found.
        status: Why it stopped, with a remedy.
        iterations: Updates made.
        seconds: Seconds of inference: what a budget limits.
        setup_seconds: All other seconds of the call: lowering and packing the field, loading and
            compiling kernels.
        rule: The rule's name.
        params: The rule's parameters.
        trace: F and the change of q, state by state.
    """

    field: Field
    q: NDArray[np.float64]
    free_energy: float
    status: Status
    iterations: int
    seconds: float
    rule: str
    params: dict[str, Any]
    trace: Trace
    setup_seconds: float = 0.0
    feasible: Ints | None = None
    """A labelling of finite energy known to the search, for fields with hard constraints."""

    def __repr__(self) -> str:
        return (
            f"Result({self.status.label} after {self.iterations} iterations of {self.rule}, "
            f"{self.seconds:.3g} s, free energy {self.free_energy:.6g})"
        )

    @property
    def log_z_bound(self) -> float:
        """A certified lower bound on log Z: −F, or −inf where F isn't certain to give one.

        That is where a Gaussian term keeps the self-message and repels.
        """
        field = self.field
        if not all(term.bounds_log_z(field.layout) for term in field.terms):
            return -np.inf
        return -self.free_energy

    @property
    def message(self) -> str:
        """The status in words, with the remedy."""
        return self.status.value

    @property
    def converged(self) -> bool:
        """Is q a fixed point within ``tol``, and not a saddle?"""
        return self.status.converged

    @property
    def marginals(self) -> NDArray[Any] | list[NDArray[Any]]:
        """(n_vars, n_labels) where all variables have as many labels, else one array each."""
        return self.field.layout.split(self.q)

    @cached_property
    def labels(self) -> Ints:
        """The most probable label of each variable by itself (plain rounding).  # (n_vars,)"""
        return self.field.layout.best_labels(self.q)

    @cached_property
    def map_labels(self) -> Ints:
        """Coordinate-wise rounding: variables take their cheapest label one after another.

        The expected energy never rises on the way, so E(map_labels) ≤ E(q).  # (n_vars,)
        """
        from proxfield.inference.rounding import round_marginals

        return round_marginals(self)

    @cached_property
    def map_energy(self) -> float:
        """Energy of ``map_labels``."""
        return self.field.energy(self.map_labels)

    @cached_property
    def expected_energy(self) -> float:
        """E(q)."""
        return self.field.expected_energy(self.q)

    def sample(self, count: int = 1, seed: int = 0) -> Ints:
        """Independent labellings drawn from Q.  # (count, n_vars)

        Example:
            >>> import proxfield as pf
            >>> pf.infer(pf.Field([2]).add(pf.Unary([[0.0, 50.0]]))).sample(3)[:, 0]
            array([0, 0, 0])
        """
        if count < 0:
            raise InputError(f"count={count!r}, expected 0 or more")
        layout = self.field.layout
        rng = np.random.default_rng(seed)
        cumulative = np.cumsum(self.q)
        before = np.concatenate([[0.0], cumulative])[layout.offsets[:-1]]
        out = np.empty((count, layout.n_vars), dtype=np.int64)
        for row in out:
            u = rng.random(layout.n_vars)
            # first entry of the variable whose running sum exceeds u
            passed = (cumulative - before[layout.owner]) <= u[layout.owner]
            row[:] = np.minimum(
                layout.sum_by_variable(passed).astype(np.int64), layout.cardinalities - 1
            )
        return out

    def summary(self) -> dict[str, Any]:
        """The result's numbers as a plain dictionary (what ``solve --json`` prints)."""
        return {
            "n_vars": self.field.n_vars,
            "rule": self.rule,
            "params": {k: v for k, v in self.params.items() if not callable(v)},
            "status": self.status.label,
            "message": self.message,
            "iterations": self.iterations,
            "seconds": self.seconds,
            "setup_seconds": self.setup_seconds,
            "free_energy": self.free_energy,
            "log_z_bound": self.log_z_bound,
            "map_energy": self.map_energy,
        }


def one_hot(offsets: Ints, labels: Ints) -> Floats:
    """A labelling as flat marginals."""
    q = np.zeros(int(offsets[-1]))
    q[offsets[:-1] + labels] = 1.0
    return q
