"""A Dask cluster on this machine, for tests that need one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

WORKERS = 2
RESTART_SECONDS = 8.0
"""How long killed workers may take to come back, before another cluster is started."""


class Clusters:
    """A cluster of two worker processes with one thread each, renewed where tests have broken it.

    Dask starts killed workers again, but on a busy machine it gives some of them up.
    """

    def __init__(self) -> None:
        self._stack, self._client = ExitStack(), None

    def client(self) -> Any:
        """A client of a cluster with all its workers."""
        if self._client is not None and not self._complete():
            self.close()
        if self._client is None:
            self._client = self._start()
        return self._client

    def _start(self) -> Any:
        import distributed

        local = self._stack.enter_context(
            distributed.LocalCluster(
                n_workers=WORKERS, threads_per_worker=1, dashboard_address=None, silence_logs=50
            )
        )
        return self._stack.enter_context(distributed.Client(local, set_as_default=False))

    def _complete(self) -> bool:
        end = time.monotonic() + RESTART_SECONDS
        while len(self._client.nthreads()) < WORKERS:
            if time.monotonic() > end:
                return False
            time.sleep(0.1)
        return True

    def close(self) -> None:
        """End it."""
        self._client = None
        self._stack.close()


@pytest.fixture(scope="session")
def clusters() -> Iterator[Clusters]:
    pytest.importorskip("distributed", reason="needs proxfield[cluster]")
    held = Clusters()
    yield held
    held.close()


@pytest.fixture
def cluster(clusters: Clusters) -> Any:
    """The client of a cluster of two worker processes with one thread each."""
    return clusters.client()
