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
from proxfield.core.solve.request import Request
from proxfield.core.solve.rules.anneal import Anneal
from proxfield.core.solve.rules.auto import Auto
from proxfield.core.solve.rules.base import Rule
from proxfield.core.solve.starts import Start
from proxfield.distributed.checkpoint import Checkpoints
from proxfield.distributed.part_result import PartResult
from proxfield.distributed.partition import Partition
from proxfield.distributed.stages import Inference
from proxfield.distributed.transport import agree
from proxfield.errors import InputError, InputTypeError, UnsupportedError, shown

RULES = ("fixed", "adaptive", "full-parallel", "adhoc", "momentum", "adam", "backtracking")
"""Rules that move all variables at once; `colored` moves them by color."""


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
    request = Request.make(
        rule, params, device, init=init, max_iters=max_iters, tol=tol, budget=budget,
        callback=callback, seed=seed, threads=threads, kernels=kernels, dtype=dtype, keep=keep,
        trace=trace,
    )  # fmt: skip
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
    run = Inference(partition, request, 1 if keep == "best" else int(reduce_every))
    if checkpoint is not None:
        key = [name, asked[1], start, request.seed, request.dtype, request.kernels, keep]
        if isinstance(request.rule, (Anneal, Auto)):  # its temperatures follow from the limits
            key += [request.max_iters, request.budget]
        own = hashlib.sha256(np.ascontiguousarray(partition.lowered.unary).data).hexdigest()[:16]
        key_text = digest([*key, partition.field.n_vars, own])
        run.checkpoints = Checkpoints(Path(checkpoint), partition.transport, key_text)
        run.checkpoint_seconds = float(checkpoint_seconds)
    return run.solve()


def refuse(rule: Rule) -> None:
    """Raise `UnsupportedError` for rules that need all variables in one process."""
    name, reason = rule.name, ""
    if isinstance(rule, Anneal):
        name = rule.inner
        reason = " to be annealed"
    if name in (*RULES, "colored", "custom") or isinstance(rule, Auto):
        return
    if name == "sweep":
        why = "a rank would wait for all variables of the ranks before it: use colored"
    elif name == "original":
        why = "it needs the images of all locations in one process: use fixed"
    else:
        why = "it runs others on the whole field: use auto or anneal"
    raise UnsupportedError(f"rule {name!r} isn't available over several ranks{reason}: {why}")


def digest(values: object) -> str:
    """A short name for values."""
    return hashlib.sha256(json.dumps(values, default=repr).encode()).hexdigest()[:16]
