"""`infer` over several ranks: every rank runs this, and all take the same decisions."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from dataclasses import field as field_of
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.checks import is_real, is_whole
from proxfield.core.common.records import Record
from proxfield.core.solve.history import Callback
from proxfield.core.solve.request import Request, Start, choose_kernels
from proxfield.core.solve.rules.base import Rule
from proxfield.core.solve.rules.registry import make_rule
from proxfield.core.terms.base import Ints
from proxfield.distributed.checkpoint import Checkpoints
from proxfield.distributed.partition import Partition
from proxfield.distributed.program import Seconds
from proxfield.distributed.session import explored, noted_interrupt, open_part
from proxfield.distributed.transport import agree
from proxfield.errors import InputError, InputTypeError, UnsupportedError, shown
from proxfield.result import Result, Status, Trace


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

    partition: Partition = field_of(kw_only=True)
    wall_seconds: Seconds = field_of(default_factory=Seconds)
    cpu_seconds: Seconds = field_of(default_factory=Seconds)
    bytes_sent: int = 0

    def __repr__(self) -> str:
        return super().__repr__().replace("Result(", f"PartResult({self.partition!r}: ", 1)

    @property
    def log_z_bound(self) -> float:
        return -self.free_energy if self.partition.bounds_log_z else -np.inf

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

    def summary(self) -> Record:
        """The figures of the whole field as a plain dictionary."""
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
        if part.whole is None:
            raise UnsupportedError("gather needs a partition made by Partition.from_field")
        full = part.whole.lowered.reduction.full
        out = np.zeros(full.size)
        out[part.whole.given[full.owner]] = self.q
        out = part.transport.reduce(out)
        return out if part.rank == 0 else None


def infer(
    partition: Partition,
    rule: str | Rule | type[Rule] = "fixed",
    *,
    init: Start = "uniform",
    max_iters: int | None = None,
    tol: float = 1e-6,
    budget: float | None = None,
    callback: Callback | None = None,
    seed: int = 0,
    threads: int | None = None,
    device: str = "cpu",
    kernels: str | None = None,
    dtype: str | None = None,
    keep: str = "last",
    trace: bool = True,
    reduce_every: int = 10,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_seconds: float = 600.0,
    **params: Any,
) -> PartResult:
    """Mean-field inference on a field over several ranks. Collective: every rank calls it.

    Args:
        partition: This rank's part.
        rule: A rule that moves all variables at once, or "colored".
        init: As in `proxfield.infer`; marginals are those of this rank's variables.
        max_iters: Maximum number of updates.
        tol: As in `proxfield.infer`.
        budget: Time budget in seconds; rank 0's clock decides.
        callback: Called on each rank after a reduction; returning something true on any of them
            stops the inference on all.
        seed: Random seed.
        threads: Maximum number of threads of each rank.
        device: As in `proxfield.infer`; with several GPUs, each rank's own.
        kernels: As in `proxfield.infer`.
        dtype: As in `proxfield.infer`.
        keep: "last" or "best".
        trace: Keep F of every state.
        reduce_every: Updates between reductions of F and of changes: the run may end that many
            updates later than a run on one process. With ``keep="best"``, 1.
        checkpoint: A folder for checkpoints. A run that finds one of its own there continues it.
        checkpoint_seconds: Seconds between checkpoints.
        **params: Parameters of the rule.

    Returns:
        A `PartResult`. Ctrl-C on any rank ends the run on all, with the status INTERRUPTED.
    """
    if not isinstance(partition, Partition):
        raise InputTypeError(f"infer takes a Partition, not {type(partition).__name__}")
    if not is_whole(reduce_every) or reduce_every < 1:
        raise InputError(f"reduce_every={shown(reduce_every)}, expected a whole number above 0")
    if not is_real(checkpoint_seconds) or not checkpoint_seconds >= 0:
        raise InputError(f"checkpoint_seconds={shown(checkpoint_seconds)}, expected 0 or more")
    request = Request(
        make_rule(rule, params),
        *choose_kernels(device, kernels, dtype),
        kernels is not None,
        init=init,
        max_iters=max_iters,
        tol=tol,
        budget=budget,
        callback=callback,
        seed=seed,
        threads=threads,
        keep=keep,
        trace=trace,
    )
    name, mover = request.rule.name, request.rule.mover
    if mover.needs_whole_field:
        reason = "" if mover is request.rule else " to be annealed"
        raise UnsupportedError(
            f"rule {mover.name!r} isn't available over several ranks{reason}: "
            f"{mover.needs_whole_field}"
        )
    start = init if isinstance(init, str) else "given"
    asked = [
        name, sorted((k, repr(v)) for k, v in request.rule.params.items() if not callable(v)),
        start, request.max_iters, request.tol, request.budget, request.seed, request.dtype, keep,
        int(reduce_every), checkpoint is None, callback is None, checkpoint_seconds,
    ]  # fmt: skip
    transport, lowered = partition.transport, partition.lowered
    agree(transport, f"{name} {digest(asked)}", "arguments of infer")
    partition.reset()
    begun = request.now()
    common: Record = {
        "field": partition.field, "rule": name, "params": request.rule.params,
        "kernels": request.kernels, "partition": partition,
    }  # fmt: skip
    if transport.maximum(lowered.infeasible):
        cards = partition.field.layout.cardinalities
        return PartResult(
            q=np.repeat(1.0 / cards, cards), free_energy=np.inf, status=Status.INFEASIBLE,
            iterations=0, seconds=0.0, trace=Trace(), **common,
        )  # fmt: skip
    session = open_part(partition, request, 1 if keep == "best" else int(reduce_every))
    if checkpoint is not None:
        key = [name, asked[1], start, request.seed, request.dtype, request.kernels, keep]
        if mover is not request.rule:  # its temperatures follow from the limits
            key += [request.max_iters, request.budget]
        own = hashlib.sha256(np.ascontiguousarray(lowered.unary).data).hexdigest()[:16]
        key_text = digest([*key, partition.field.n_vars, own])
        session.checkpoints = Checkpoints(Path(checkpoint), transport, key_text)
        session.checkpoint_seconds = float(checkpoint_seconds)
        session.resume()
    loop, program = session.loop, session.program
    with noted_interrupt(program.interrupted):
        explores = request.rule.explores
        outcome = explored(session, request.rule) if explores else request.rule.solve(session)
    return PartResult(
        q=lowered.reduction.expand(outcome.q),
        free_energy=float(outcome.free_energy),
        status=outcome.status,
        iterations=loop.iterations,
        seconds=loop.elapsed,
        setup_seconds=max(0.0, request.now() - begun - loop.elapsed),
        trace=loop.make_trace(),
        wall_seconds=program.seconds,
        cpu_seconds=program.cpu_seconds,
        bytes_sent=transport.bytes_sent,
        **common,
    )


def digest(values: object) -> str:
    """A short name for values."""
    return hashlib.sha256(json.dumps(values, default=repr).encode()).hexdigest()[:16]
