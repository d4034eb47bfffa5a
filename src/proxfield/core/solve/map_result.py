"""What `solve_map` gives back: a labelling, its energy, the trace and a status."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from proxfield.core.terms.base import Ints
from proxfield.errors import InputError
from proxfield.field import Field
from proxfield.result import names_of

if TYPE_CHECKING:
    from proxfield.io.files import Target


class MapStatus(Enum):
    """Why a search for a labelling stopped; the value says what to do about it."""

    OPTIMAL = "no labelling has a lower energy: the interactions form a forest"
    SETTLED = (
        "the search came to rest; there may be a better labelling, which a budget or another seed "
        "may find"
    )
    MAX_ITERS = "max_iters reached; raise max_iters, or continue with init=result"
    BUDGET = "the budget was used up; raise budget, or continue with init=result"
    INTERRUPTED = "interrupted; this is the best so far, continue with init=result"
    STOPPED = "the callback asked to stop"
    NO_FEASIBLE = (
        "no labelling of positive probability was found, so the energy is infinite; raise "
        "max_iters or budget, change the seed, or check the zeros of the model"
    )
    INFEASIBLE = (
        "no labelling has positive probability: the zeros of the model contradict each other"
    )

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

    iteration: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    seconds: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    energy: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))

    def __len__(self) -> int:
        return len(self.iteration)

    def to_csv(self) -> str:
        """The trace as CSV text with a header."""
        out = io.StringIO()
        write = csv.writer(out, lineterminator="\n")
        write.writerow(["iteration", "seconds", "energy"])
        for t, s, e in zip(self.iteration, self.seconds, self.energy, strict=True):
            write.writerow([int(t), f"{s:.9f}", repr(float(e))])
        return out.getvalue()


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
        return {
            "n_vars": self.field.n_vars,
            "status": self.status.label,
            "message": self.message,
            "energy": self.energy,
            "feasible": self.feasible,
            "optimal": self.optimal,
            "stable": self.stable,
            "iterations": self.iterations,
            "seconds": self.seconds,
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
        data = self.summary()
        if not self.feasible:
            data["energy"] = None
        return json.dumps(data, allow_nan=False)

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
