"""CUDA graphs: a block of iterations recorded once and replayed by one call."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from proxfield.core.devices.cuda import torch
from proxfield.core.devices.tensors import CudaGraph, TorchDevice

LENGTHS = (64, 8)
"""Iterations in one graph; fewer are launched one by one."""
LENGTHS_WITH_TERMS = (64, 8, 1)
"""The same where an iteration takes many launches."""
MIN_ITERATIONS = 32
"""Iterations asked for so far from which recording pays: it takes as long as launching about a
hundred."""
ENABLED = True
"""Whether to record graphs at all; for measuring what they bring."""


class Graphs:
    """Recorded blocks of iterations of one state, of each kind of iteration.

    What changes between plans (steps, temperature, tolerances) lives in tensors that the kernels
    read, so that a graph stays right when these change; what it is recorded for is in its key.

    Args:
        device: A device of torch.
        lengths: Iterations in one graph, the longest first.
    """

    def __init__(self, device: TorchDevice, lengths: tuple[int, ...] = LENGTHS) -> None:
        self.device, self.lengths = device, lengths
        self.found: dict[tuple[Hashable, int], CudaGraph] = {}
        self.asked: dict[Hashable, int] = {}
        """Iterations so far, by key."""

    def repeat(self, key: Hashable, once: Callable[[], None], n: int, capturable: bool) -> None:
        """Call ``once`` n times, through graphs where that can be."""
        if not capturable or not ENABLED or self.device.type != "cuda":
            for _ in range(n):
                once()
            return
        before = self.asked.get(key, 0)
        self.asked[key] = before + n
        if before == 0 and n:  # compiles kernels and fills caches, outside of recording
            once()
            n -= 1
        for length in self.lengths:
            if self.asked[key] < MIN_ITERATIONS and (key, length) not in self.found:
                continue
            while n >= length:
                self._graph(key, once, length).replay()
                n -= length
        for _ in range(n):
            once()

    def _graph(self, key: Hashable, once: Callable[[], None], length: int) -> CudaGraph:
        if (key, length) not in self.found:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(length):
                    once()
            self.found[key, length] = graph
        return self.found[key, length]
