"""`infer` over several ranks: every rank runs this, and all take the same decisions."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from proxfield.core.common.checks import is_real, is_whole
from proxfield.core.solve.history import Callback
from proxfield.core.solve.request import Request, Start, choose_place
from proxfield.core.solve.rules.base import Outcome, Rule
from proxfield.core.solve.rules.registry import make_rule
from proxfield.distributed.chains import explored
from proxfield.distributed.checkpoint import Checkpoints
from proxfield.distributed.part_result import PartResult
from proxfield.distributed.partition import Partition
from proxfield.distributed.session import PartSession, noted_interrupt, open_part
from proxfield.distributed.transport import agree
from proxfield.errors import InputError, InputTypeError, UnsupportedError, shown
from proxfield.result import Status, Trace


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
        *choose_place(device, kernels, dtype),
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
    name = request.rule.name
    refuse(request.rule)
    start = init if isinstance(init, str) else "given"
    asked = [
        name, sorted((k, repr(v)) for k, v in request.rule.params.items() if not callable(v)),
        start, request.max_iters, request.tol, request.budget, request.seed, request.dtype, keep,
        int(reduce_every), checkpoint is None, callback is None, checkpoint_seconds,
    ]  # fmt: skip
    agree(partition.transport, f"{name} {digest(asked)}", "arguments of infer")
    partition.reset()
    begun, transport = request.now(), partition.transport
    size = min(partition.lowered.constant, 1e300)
    if partition.lowered.infeasible or np.isinf(transport.reduce(np.array([size]), "max")[0]):
        return infeasible(partition, request)
    session = open_part(partition, request, 1 if keep == "best" else int(reduce_every))
    if checkpoint is not None:
        key = [name, asked[1], start, request.seed, request.dtype, request.kernels, keep]
        if request.rule.mover is not request.rule:  # its temperatures follow from the limits
            key += [request.max_iters, request.budget]
        own = hashlib.sha256(np.ascontiguousarray(partition.lowered.unary).data).hexdigest()[:16]
        key_text = digest([*key, partition.field.n_vars, own])
        session.checkpoints = Checkpoints(Path(checkpoint), transport, key_text)
        session.checkpoint_seconds = float(checkpoint_seconds)
        session.resume()
    with noted_interrupt(session.program.interrupted):
        if request.rule.explores:
            outcome = explored(session, request.rule)
        else:
            outcome = request.rule.solve(session)
    result = finish(session, request, outcome)
    result.setup_seconds = max(0.0, request.now() - begun - result.seconds)
    return result


def finish(session: PartSession, request: Request, outcome: Outcome) -> PartResult:
    """The result of an outcome, in the user's numbering."""
    part, loop, program = session.partition, session.loop, session.program
    return PartResult(
        field=part.field,
        q=part.lowered.reduction.expand(outcome.q),
        free_energy=float(outcome.free_energy),
        status=outcome.status,
        iterations=loop.iterations,
        seconds=loop.elapsed,
        rule=request.rule.name,
        params=request.rule.params,
        trace=loop.make_trace(),
        kernels=request.kernels,
        partition=part,
        wall_seconds=program.seconds,
        cpu_seconds=program.cpu_seconds,
        bytes_sent=part.transport.bytes_sent,
    )


def infeasible(part: Partition, request: Request) -> PartResult:
    """The result where no labelling is possible."""
    layout = part.field.layout
    return PartResult(
        field=part.field,
        q=np.repeat(1.0 / layout.cardinalities, layout.cardinalities),
        free_energy=np.inf,
        status=Status.INFEASIBLE,
        iterations=0,
        seconds=0.0,
        rule=request.rule.name,
        params=request.rule.params,
        trace=Trace(),
        kernels=request.kernels,
        partition=part,
    )


def refuse(rule: Rule) -> None:
    """Raise `UnsupportedError` for rules that need all variables in one process."""
    moved = rule.mover
    reason = "" if moved is rule else " to be annealed"
    if moved.needs_whole_field:
        raise UnsupportedError(
            f"rule {moved.name!r} isn't available over several ranks{reason}: "
            f"{moved.needs_whole_field}"
        )


def digest(values: object) -> str:
    """A short name for values."""
    return hashlib.sha256(json.dumps(values, default=repr).encode()).hexdigest()[:16]
