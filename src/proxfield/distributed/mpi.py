"""Ranks connected by MPI, through mpi4py."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Floats
from proxfield.distributed.transport import TIMEOUT, Transport
from proxfield.errors import MissingDependencyError


class MpiTransport(Transport):
    """See `Transport`. Time limits are those of the MPI library: a lost rank ends the job."""

    def __init__(self, timeout: float = TIMEOUT) -> None:
        try:
            from mpi4py import MPI
        except ImportError:
            raise MissingDependencyError("backend 'mpi' needs mpi4py: pip install mpi4py") from None
        self.mpi, self.comm, self.timeout = MPI, MPI.COMM_WORLD, timeout
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()

    def exchange(
        self, messages: Mapping[int, Floats], lengths: Mapping[int, int]
    ) -> dict[int, Floats]:
        if not messages:
            return {}
        kind = next(iter(messages.values())).dtype
        sent = {r: np.ascontiguousarray(values) for r, values in messages.items()}
        out: dict[int, Floats] = {r: np.empty(n, dtype=kind) for r, n in lengths.items()}
        work = [self.comm.Irecv(values, r) for r, values in out.items()]
        work += [self.comm.Isend(values, r) for r, values in sent.items()]
        self.mpi.Request.Waitall(work)
        self.bytes_sent += sum(values.nbytes for values in sent.values())
        return out

    def reduce(self, values: Floats, how: str = "sum") -> NDArray[np.float64]:
        out = np.array(values, dtype=np.float64)
        self.comm.Allreduce(self.mpi.IN_PLACE, out, self.mpi.MAX if how == "max" else self.mpi.SUM)
        return out

    def broadcast(self, values: Floats) -> NDArray[np.float64]:
        out = np.array(values, dtype=np.float64)
        self.comm.Bcast(out, 0)
        return out
