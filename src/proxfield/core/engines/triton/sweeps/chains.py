"""Cooling chains on a GPU, all at once: a program for each block of variables of each chain.

The same chains as `proxfield.core.engines.numba.chains`. Chains that visit single variables do so
color by color instead of in the order of their numbers; those that move by forests (`forests`) do
the same as in every engine. A chain's random number for a variable and a sweep is the same in
all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from proxfield.core.devices.cuda import torch
from proxfield.core.devices.tensors import Tensor
from proxfield.core.engines.plan import Chains, Explored
from proxfield.core.engines.triton.sweeps.sweep_kernels import Luck, VisitKind, begin
from proxfield.core.engines.triton.sweeps.sweeps import CHECK_EVERY, THREADS, Sweeper, VisitOrder

MAX_CHAINS = 32_768
"""Chains in one launch; CUDA's grids end at 65,535."""
RECORD_FROM = 4_000
"""Launches from which recording a sweep once and replaying it pays."""


def explore(sweeper: Sweeper, chains: Chains, order: VisitOrder | None = None) -> Explored:
    """Run independent cooling chains, each polished into a local minimum of F.

    While they cool, nothing waits for the device; a chain that needs fewer sweeps than others
    rests. When polishing, each chain stops by itself, and the host looks every few sweeps.

    Args:
        sweeper: The field.
        chains: What to run.
        order: Groups of variables to visit; graph colors by default.

    Returns:
        Marginals, their F (evaluated anew, in float64) and sweeps.

    Example:
        >>> explore(sweeper, Chains.make(starts, hot=4.0, sweeps=50, drawn=True))  # doctest: +SKIP
    """
    visits = sweeper.colors if order is None else order
    ends = [
        _explore(sweeper, _some(chains, slice(k, k + MAX_CHAINS)), visits)
        for k in range(0, max(1, len(chains.hot)), MAX_CHAINS)
    ]
    q, f, sweeps = (np.concatenate(parts) for parts in zip(*ends, strict=True))
    return Explored(q, f, sweeps)


def _some(chains: Chains, at: slice) -> Chains:
    return Chains(
        chains.starts[at], chains.hot[at], chains.sweeps[at], chains.seeds[at], chains.drawn[at],
        chains.cold[at], chains.forests[at], chains.polish, chains.tol, chains.metropolis,
    )  # fmt: skip


def _explore(
    sweeper: Sweeper, chains: Chains, visits: VisitOrder
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Run chains that fit into one launch; their marginals, F and sweeps."""
    count = len(chains.hot)
    q = torch.tensor(chains.starts, dtype=sweeper.dtype, device=sweeper.device)
    polished = torch.zeros(count, dtype=torch.int64, device=sweeper.device)
    if q.numel():
        luck = None
        if chains.drawn.any():
            seeds = np.ascontiguousarray(chains.seeds, dtype=np.uint64).view(np.int64)
            luck = Luck(
                torch.tensor(seeds, device=sweeper.device),
                torch.tensor(chains.drawn.astype(np.int8), device=sweeper.device),
            )
        _begin(sweeper, q, luck)
        by_forests = chains.drawn & chains.forests
        if by_forests.any():
            which = np.flatnonzero(by_forests)
            betas = torch.tensor(inverse_temperatures(chains), device=sweeper.device)
            assert luck is not None, "some are drawn"
            sweeper.forests.run(q, which, betas, chains.sweeps, luck.seeds)
        if not by_forests.all():
            _cool(sweeper, q, resting(chains, by_forests), visits, luck)
        _polish(sweeper, q, chains, visits, polished)
    f = sweeper.free_energy(q)
    return (
        q.to(torch.float64).cpu().numpy(),
        f.cpu().numpy(),
        chains.sweeps + polished.cpu().numpy(),
    )


def resting(chains: Chains, which: NDArray[np.bool_]) -> Chains:
    """The chains, some of them without sweeps that cool."""
    return replace(chains, sweeps=np.where(which, 0, chains.sweeps))


def _begin(sweeper: Sweeper, q: Tensor, luck: Luck | None) -> None:
    """Take impossible labels out of the starts, and draw."""
    labels = sweeper.working.labels
    block = max(1, THREADS // labels)
    with sweeper.here():
        begin[(-(-sweeper.n // block), len(q))](
            q, luck, sweeper.n, sweeper.size, sweeper.energies, BV=block, L=labels,
            num_warps=THREADS // 32, num_stages=1,
        )  # fmt: skip


def inverse_temperatures(chains: Chains) -> NDArray[np.float64]:
    """β of each chain in each sweep, from 1/hot to 1/cold geometrically; 0 where it rests.

    Returns:
        # (largest number of sweeps, chains)

    Example:
        >>> start = np.full((2, 1), 1.0)
        >>> inverse_temperatures(Chains.make(start, hot=4.0, sweeps=[3, 1]))
        array([[0.25, 1.  ],
               [0.5 , 0.  ],
               [1.  , 0.  ]])
    """
    t = np.arange(int(chains.sweeps.max(initial=0)))[:, None]
    last = chains.sweeps - 1
    way = np.where(last > 0, t / np.maximum(last, 1), 1.0)
    way = np.minimum(way, 1.0)
    return np.where(t <= last, chains.hot ** (way - 1.0) * chains.cold**-way, 0.0)


def _cool(
    sweeper: Sweeper, q: Tensor, chains: Chains, visits: VisitOrder, luck: Luck | None
) -> None:
    """All sweeps that cool, without a look back."""
    schedule = inverse_temperatures(chains)
    betas = torch.tensor(schedule, device=sweeper.device)
    clock = torch.zeros(1, dtype=torch.int64, device=sweeper.device)
    parts = sweeper.room(visits, len(q))
    moving = VisitKind(draw=luck is not None, metropolis=chains.metropolis)

    def step() -> None:
        sweeper.visit(q, visits, betas, clock, parts, luck=luck, moving=moving)
        clock.add_(1)

    repeat(step, len(schedule), len(visits.parts), sweeper)


def _polish(
    sweeper: Sweeper, q: Tensor, chains: Chains, visits: VisitOrder, polished: Tensor
) -> None:
    """Sweeps at temperature 1 until each chain has settled; counts them."""
    betas = torch.ones((1, len(q)), dtype=torch.float64, device=sweeper.device)
    clock = torch.zeros(1, dtype=torch.int64, device=sweeper.device)
    parts = sweeper.room(visits, len(q))

    def step() -> None:
        sweeper.visit(q, visits, betas, clock, parts)
        polished.add_((betas[0] > 0).to(torch.int64))
        betas.mul_(parts[..., 1].amax(1) > chains.tol)  # those that have settled rest

    for first in range(0, chains.polish, CHECK_EVERY):
        repeat(step, min(CHECK_EVERY, chains.polish - first), len(visits.parts), sweeper)
        if not bool(betas.any()):
            break


def repeat(step: Callable[[], None], times: int, launches: int, sweeper: Sweeper) -> None:
    """Call ``step`` so many times; recorded as a CUDA graph where launching would dominate.

    Args:
        step: Launches kernels on fixed tensors and asks nothing of the host.
        times: How often.
        launches: Kernels in a step.
        sweeper: Whose device.
    """
    record = sweeper.device.type == "cuda" and (times - 1) * launches >= RECORD_FROM
    for _ in range(min(times, 1) if record else times):  # the first compiles, too
        step()
    if record:
        with sweeper.here():
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                step()
            for _ in range(times - 1):
                graph.replay()
            torch.cuda.current_stream().synchronize()  # before the graph is gone
