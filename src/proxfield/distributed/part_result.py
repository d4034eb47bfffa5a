"""What `infer` over several ranks gives each of them."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import field as field_of
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxfield.core.terms.base import Ints
from proxfield.distributed.partition import Partition
from proxfield.distributed.program import Seconds
from proxfield.errors import UnsupportedError
from proxfield.result import Result


@dataclass(eq=False, repr=False)
class PartResult(Result):
    """One rank's result: marginals of its own variables, and figures of the whole field.

    ``free_energy``, ``status``, ``iterations``, ``trace`` and ``log_z_bound`` are of the whole
    field and the same on every rank; ``q`` and ``labels`` are of this rank's variables.

    Attributes:
        partition: The partition.
        wall_seconds: Where this rank's time went.
        cpu_seconds: The same in CPU time of its main thread.
        bytes_sent: Bytes that this rank sent to neighbors.
    """

    partition: Partition | None = None
    wall_seconds: Seconds = field_of(default_factory=Seconds)
    cpu_seconds: Seconds = field_of(default_factory=Seconds)
    bytes_sent: int = 0

    def __repr__(self) -> str:
        where = "" if self.partition is None else f"{self.partition!r}: "
        return super().__repr__().replace("Result(", f"PartResult({where}", 1)

    @property
    def log_z_bound(self) -> float:
        bound = self.partition is None or self.partition.bounds_log_z
        return -self.free_energy if bound else -np.inf

    @cached_property
    def map_labels(self) -> Ints:
        """The most probable label of each variable by itself: there is no rounding over ranks."""
        return self._most_probable()

    @property
    def map_energy(self) -> float:
        """Not known: it takes terms of other ranks."""
        raise UnsupportedError("map_energy needs the whole field; gather the labels first")

    @property
    def expected_energy(self) -> float:
        """Not known: it takes terms of other ranks."""
        raise UnsupportedError("expected_energy needs the whole field; gather the marginals first")

    def summary(self) -> dict[str, Any]:
        """The figures of the whole field as a plain dictionary."""
        assert self.partition is not None
        return {
            "n_vars": self.partition.n_vars,
            "ranks": self.partition.size,
            "rule": self.rule,
            "params": {k: v for k, v in self.params.items() if not callable(v)},
            "status": self.status.label,
            "message": self.message,
            "iterations": self.iterations,
            "seconds": self.seconds,
            "setup_seconds": self.setup_seconds,
            "free_energy": self.free_energy,
            "log_z_bound": self.log_z_bound,
        }

    def gather(self) -> NDArray[np.float64] | None:
        """Marginals of the whole field on rank 0, None on the others. Collective.

        For partitions of a field that every rank held.
        """
        part = self.partition
        assert part is not None
        if part.owner is None or part.variables is None or part.whole is None:
            raise UnsupportedError("gather needs a partition made by Partition.from_field")
        full = part.whole.reduction.full
        out = np.zeros(full.size)
        out[(part.owner == part.rank)[full.owner]] = self.q
        out = part.transport.reduce(out)
        return out if part.rank == 0 else None
