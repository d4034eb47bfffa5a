"""What an inference gives back: marginals, labels, bounds, the trace and a status."""

from __future__ import annotations

from copy import copy, deepcopy
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.records import Record
from proxfield.core.terms.base import Floats, Ints
from proxfield.errors import InputError, MissingDependencyError, shown
from proxfield.mixture import Mode, draw, draw_mixture

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Sequence

    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike
    from pandas import DataFrame
    from typing_extensions import Self

    from proxfield.field import Field
    from proxfield.io.files import Source, Target


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
    SETTLED = (
        "the rule's own criterion was met, but this isn't a fixed point of F; for one, continue "
        "with init=result and rule='backtracking'"
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
        """Whether the run ended at a fixed point that isn't known to be a saddle."""
        return self is Status.CONVERGED

    @property
    def label(self) -> str:
        """The status as lower-case words, as files and the command line print it."""
        return self.name.lower().replace("_", "-")


@dataclass(eq=False)
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
        rows = zip(self.iteration, self.seconds, self.free_energy, self.change, strict=True)
        lines = [f"{t},{s:.9f},{float(f)!r},{float(c)!r}" for t, s, f, c in rows]
        return "\n".join(["iteration,seconds,free_energy,change", *lines, ""])

    def to_frame(self) -> DataFrame:
        """The trace as a pandas table: one column per attribute, one row per state.

        Raises:
            MissingDependencyError: If pandas isn't installed.
        """
        try:
            from pandas import DataFrame
        except ImportError:
            raise MissingDependencyError(
                "Trace.to_frame needs pandas: pip install pandas (to_csv needs no pandas)"
            ) from None
        return DataFrame({name: x for name, x in vars(self).items() if x is not None})


@dataclass(eq=False)
class Result:
    """The outcome of `infer`, in the user's numbering.

    ``result["x"]`` are the marginals of one variable, by name or number; ``result["x", "on"]`` is
    the probability of one of its labels.

    Attributes:
        field: The field it is about, as it was: terms added to it later don't count here.
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
        modes: With ``modes=K`` the parts of the mixture, the heaviest first; empty without. Then q
            are the mixture's marginals, and F is the mixture's too.
    """

    field: Field
    q: NDArray[np.float64]
    free_energy: float
    status: Status
    iterations: int
    seconds: float
    rule: str
    params: Record
    trace: Trace
    setup_seconds: float = 0.0
    feasible: Ints | None = None
    """A labelling that the search came across, in the lowered field's numbering: one of finite
    energy for fields with hard constraints, else one of low energy; see ``map_labels``."""
    kernels: str = "cpu"
    """The engine, and its device, that found it; ``map_labels`` is computed there too."""
    best: Ints | None = None
    """The most probable label of each variable, where that was found along with q."""
    modes: tuple[Mode, ...] = ()
    asked: str = ""
    """Why so many updates were made, where a number of them was asked for and made (``tol=None``,
    or a preset's own number): "as asked", for example. Empty where ``max_iters`` is a limit."""
    with_field: bool = False
    """Whether a pickle holds the terms of the field, too. Without them a result takes little more
    than its marginals; what needs terms (``map_labels``, ``expected_energy``) then raises
    `UnsupportedError`, unless it was computed before."""
    __iter__: ClassVar[None] = None
    """Not a sequence: what to iterate over is ``marginals``, ``labels`` or a dictionary."""

    def __post_init__(self) -> None:
        self.field = self.field.snapshot()

    def __getstate__(self) -> Record:
        state = {k: v for k, v in self.__dict__.items() if k != "labels"}
        if not self.with_field and self.field.has_terms:
            state.update(field=self.field.outline(), bounds_log_z=self.bounds_log_z)
        return state

    def __copy__(self) -> Self:
        out = object.__new__(type(self))
        out.__dict__.update(self.__dict__)
        return out

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        out = memo[id(self)] = copy(self)
        out.__dict__.update(deepcopy(self.__dict__, memo))
        return out

    def __repr__(self) -> str:
        ended = f"{self.status.label} after {self.iterations} iterations of {self.rule}"
        if self.asked:
            ended = f"{self.rule}: {self.message}"
        return f"Result({ended}, {self.seconds:.3g} s, free energy {self.free_energy:.6g})"

    def _repr_html_(self) -> str:
        from proxfield.viz.notebook import result_html

        return result_html(self)

    def __getitem__(self, key: int | str | tuple[int | str, int | str]) -> Any:
        """Marginals of a variable, or the probability of one of its labels.

        Example:
            >>> import proxfield as pf
            >>> field = pf.Field([2], names=["lamp"], label_names=["off", "on"])
            >>> result = pf.infer(field.add(pf.Unary.from_probabilities([[0.25, 0.75]])))
            >>> result["lamp"].round(3), round(result["lamp", "on"], 3)
            (array([0.25, 0.75]), 0.75)
        """
        variable, *label = key if isinstance(key, tuple) else (key,)
        v = self.field.variable_index(variable)
        start, end = self.field.layout.offsets[v : v + 2]
        if not label:
            return self.q[start:end]
        if len(label) > 1:
            raise InputError(f"result[{shown(key)}], expected a variable, or that and a label")
        return float(self.q[start + self.field.label_index(v, label[0])])

    @property
    def log_z_bound(self) -> float:
        """A certified lower bound on log Z: −F, or −inf where F isn't certain to give one.

        That is where a Gaussian term keeps the self-message and repels.
        """
        return -self.free_energy if self.bounds_log_z else -np.inf

    @cached_property
    def bounds_log_z(self) -> bool:
        """Whether −F is certain to be a lower bound on log Z."""
        return all(term.bounds_log_z(self.field.layout) for term in self.field.terms)

    @property
    def message(self) -> str:
        """The status in words, with the remedy; what was asked for needs none."""
        if self.asked:
            return f"{self.iterations} update{'s' * (self.iterations != 1)}, {self.asked}"
        return self.status.value

    @property
    def converged(self) -> bool:
        """Whether q is a fixed point within ``tol``, and not a saddle."""
        return self.status.converged

    @property
    def marginals(self) -> Floats | list[Floats]:
        """(n_vars, n_labels) where all variables have as many labels, else one array each."""
        return self.field.layout.split(self.q)

    @cached_property
    def labels(self) -> Ints:
        """The most probable label of each variable by itself (plain rounding).  # (n_vars,)"""
        return self._most_probable()

    def _most_probable(self) -> Ints:
        """A new array.  # (n_vars,)"""
        return self.field.layout.best_labels(self.q) if self.best is None else self.best.copy()

    @cached_property
    def map_labels(self) -> Ints:
        """Coordinate-wise rounding: variables take their cheapest label one after another.

        The expected energy never rises on the way, so E(map_labels) ≤ E(q). Of several modes, the
        best labelling; and if the search came across one of lower energy, that one.  # (n_vars,)
        """
        from proxfield.core.solve.rounding import round_marginals

        return round_marginals(self)

    @cached_property
    def map_energy(self) -> float:
        """Energy of ``map_labels``."""
        return self.field.energy(self.map_labels)

    @cached_property
    def expected_energy(self) -> float:
        """E(q); of a mixture the mean over its modes."""
        if self.modes:
            heavy = [mode for mode in self.modes if mode.weight > 0]
            return sum(mode.weight * self.field.expected_energy(mode.q) for mode in heavy)
        return self.field.expected_energy(self.q)

    def named_labels(self, labels: ArrayLike | None = None) -> dict[int | str, int | str]:
        """A labelling with the field's names; numbers stand for what has none.

        Args:
            labels: One label per variable; by default ``map_labels``.

        Example:
            >>> import proxfield as pf
            >>> field = pf.Field([2, 2], names=["a", "b"], label_names=["off", "on"])
            >>> pf.infer(field.add(pf.Unary([[1.0, 0.0], [0.0, 2.0]]))).named_labels()
            {'a': 'on', 'b': 'off'}
        """
        x = np.ravel(self.map_labels if labels is None else np.asarray(labels))
        self.field.check_labels(x)
        named = zip(names_of(self.field), x, strict=True)
        return {name: words[label] for (name, words), label in named}

    def named_marginals(self) -> dict[int | str, dict[int | str, float]]:
        """The probability of each label of each variable, with the field's names."""
        rows = zip(names_of(self.field), self.field.layout.split(self.q), strict=True)
        return {name: dict(zip(words, q.tolist(), strict=True)) for (name, words), q in rows}

    def sample(self, count: int = 1, seed: int = 0) -> Ints:
        """Independent labellings drawn from Q: a product, or a mixture.  # (count, n_vars)

        Example:
            >>> import proxfield as pf
            >>> pf.infer(pf.Field([2]).add(pf.Unary([[0.0, 50.0]]))).sample(3)[:, 0]
            array([0, 0, 0])
        """
        if count < 0:
            raise InputError(f"count={count!r}, expected 0 or more")
        rng = np.random.default_rng(seed)
        if self.modes:
            return draw_mixture(self.modes, count, rng)
        return draw(self.field.layout, self.q, count, rng)

    def summary(self) -> Record:
        """The result's numbers as a plain dictionary (what ``solve --json`` prints)."""
        names = ("message", "iterations", "seconds", "setup_seconds", "free_energy", "log_z_bound")
        return {
            "n_vars": self.field.n_vars,
            "rule": self.rule,
            "params": {k: v for k, v in self.params.items() if not callable(v)},
            "status": self.status.label,
            **{name: getattr(self, name) for name in (*names, "map_energy")},
            **({"modes": [mode.summary() for mode in self.modes]} if self.modes else {}),
        }

    def plot(self, path: str | os.PathLike[str] | None = None, title: str | None = None) -> Figure:
        """How F fell, against iterations and against seconds. Needs matplotlib.

        Args:
            path: Also save the figure, as .png, .svg or .pdf.
            title: A title.

        Returns:
            A matplotlib figure of two panels.

        Raises:
            MissingDependencyError: If matplotlib isn't installed.
        """
        from proxfield.viz import convergence_figure, save_figure

        figure = convergence_figure({self.rule: self}, title)
        if path is not None:
            save_figure(figure, path)
        return figure

    def save(self, path: Target, *, with_field: bool = True) -> None:
        """Write the result and its field to a file, whole or not at all; see `Field.save`.

        Parameters of the rule that are functions are left out.

        Args:
            path: Where to: an npz archive with a JSON header.
            with_field: Also write the terms of the field; without them it is as after a pickle.

        Example:
            >>> import pathlib, tempfile
            >>> import proxfield as pf
            >>> result = pf.infer(pf.Field([2]).add(pf.Unary([[0.0, 1.0]])))
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     path = pathlib.Path(folder, "result.npz")
            ...     result.save(path)
            ...     again = Result.load(path)
            >>> (again.q == result.q).all(), again.field == result.field
            (np.True_, True)
        """
        from proxfield.io.store import save_result

        save_result(self, path, with_field)

    @classmethod
    def load(cls, source: Source, *, max_bytes: int | None = None) -> Self:
        """Read a result that `save` wrote; the same in every bit.

        Args:
            source: A path or an open binary file.
            max_bytes: Maximum number of bytes of content, 4 GiB by default; see `read_uai`.

        Returns:
            A result of the class that was saved (`DenseResult`, for example).

        Raises:
            InputError: If the file is damaged, or holds something else.
        """
        from proxfield.io.store import load_result

        return load_result(cls, source, max_bytes)


def one_hot(offsets: Ints, labels: Ints) -> NDArray[np.float64]:
    """A labelling as flat marginals."""
    q = np.zeros(int(offsets[-1]))
    q[offsets[:-1] + labels] = 1.0
    return q


def names_of(field: Field) -> Iterator[tuple[int | str, Sequence[int | str]]]:
    """What to call each variable of a field and its labels; numbers stand for what has no name."""
    given = field.layout.names
    for v, c in enumerate(field.cardinalities.tolist()):
        words = None if given is None else given.labels(v)
        name = v if field.names is None else field.names[v]
        yield name, range(c) if words is None else words
