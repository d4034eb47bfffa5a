"""Computations of one tab: off the event loop, and only the latest settings to the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from proxfield.studio.session import StudioOutcome, StudioSession


class Worker:
    """Runs a session's jobs one after another.

    While settings change, each preview is finished and shown, so that the page follows; a
    computation at full resolution is given up as soon as there are newer settings.

    Args:
        session: The session.
        show: Called with each outcome and the number of its request, in the event loop.
        progress: Called with the iteration and F at full resolution, in the thread that computes.
        fail: Called with an exception, in the event loop.
    """

    def __init__(
        self,
        session: StudioSession,
        show: Callable[[StudioOutcome, int], object],
        progress: Callable[[int, float], object],
        fail: Callable[[Exception], object],
    ) -> None:
        self.session, self.show, self.progress, self.fail = session, show, progress, fail
        self.version = 0
        """Number of the latest request."""
        self.closed = False
        self._task: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether something is being computed."""
        return self._task is not None and not self._task.done()

    def request(self) -> None:
        """The session has changed: compute it, soon."""
        self.version += 1
        if not self.busy and not self.closed:
            self._task = asyncio.get_running_loop().create_task(self._work())

    def close(self) -> None:
        """Give up what is running, and start nothing more."""
        self.closed = True

    async def wait(self) -> None:
        """Until nothing is being computed."""
        while self.busy and self._task is not None:
            await self._task

    async def _work(self) -> None:
        done = -1
        while done != self.version and not self.closed:
            done = self.version
            try:
                await self._stages(done)
            except Exception as error:  # the page says so, and the next request is computed
                if not self.closed:
                    self.fail(error)

    async def _stages(self, version: int) -> None:
        job = self.session.job()
        steps = self.session.steps(job)
        for number, step in enumerate(steps):
            last = number == len(steps) - 1
            preview = not last or len(steps) == 1  # short: always finished

            def stale(preview: bool = preview) -> bool:
                return self.closed or (not preview and self.version != version)

            outcome = await asyncio.to_thread(
                self.session.compute, job.at(step), stale, self.progress if last else None
            )
            if outcome is None or self.closed:
                return
            self.show(outcome, version)
            if self.version != version:
                return
