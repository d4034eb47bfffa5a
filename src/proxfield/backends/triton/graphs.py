"""CUDA graphs: a block of iterations recorded once and replayed by one call."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from proxfield.devices.cuda import torch
from proxfield.devices.tensors import CudaGraph, TorchDevice

LENGTHS = (64, 8)
"""Iterations in one graph; fewer are launched one by one."""
MIN_ITERATIONS = 32
"""Iterations asked for from which recording pays: it takes as long as launching about a hundred."""
ENABLED = True
"""Whether to record graphs at all; for measuring what they bring."""


class Graphs:
    """Recorded blocks of iterations of one state, of each kind of iteration.

    What changes between plans (steps, temperature, tolerances) lives in tensors that the kernels
    read, so that a graph stays right when these change; what it is recorded for is in its key.
    """

    def __init__(self, device: TorchDevice) -> None:
        self.device = device
        self.found: dict[tuple[Hashable, int], CudaGraph] = {}
        self.seen: set[Hashable] = set()

    def repeat(self, key: Hashable, once: Callable[[], None], n: int, capturable: bool) -> None:
        """Call ``once`` n times, through graphs where that can be."""
        if not capturable or not ENABLED or self.device.type != "cuda":
            for _ in range(n):
                once()
            return
        if key not in self.seen and n:  # compiles kernels and fills caches, outside of recording
            once()
            self.seen.add(key)
            n -= 1
        for length in LENGTHS:
            if n < MIN_ITERATIONS and (key, length) not in self.found:
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
