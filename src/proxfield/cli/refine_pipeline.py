"""Many images of ``proxfield refine`` on a GPU: read, computed and written at the same time.

A GPU refines an image faster than a file is decoded or written. So threads read some images ahead
and build their fields, and others write, while this thread computes one after the other. Records
come in the order of the images; an image that fails has its error in its record, as everywhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from proxfield.cli.progress import Counter
from proxfield.cli.refine_files import Pair
from proxfield.cli.refine_one import (
    Inputs,
    Refined,
    Work,
    build_one,
    compute_one,
    new_record,
    read_one,
    with_failures,
    write_one,
)
from proxfield.core.common.records import Record

if TYPE_CHECKING:
    from proxfield.images.densecrf import DenseCRF

Read = tuple[Inputs, "DenseCRF"]
"""What the files of one pair hold, and the field of it."""
MAX_THREADS = 8
"""Maximum number of threads that read, and that write."""


def threads_for(images: int) -> int:
    """Threads that read, and as many that write.

    Example:
        >>> threads_for(1)
        1
    """
    from proxfield.core.common.cores import available_cores

    return max(1, min(MAX_THREADS, available_cores() // 2, images))


def run_pipeline(
    pairs: Sequence[Pair], work: Work, ahead: int, display: Counter
) -> Iterator[Record]:
    """The records of all images, in their order.

    Args:
        pairs: The files.
        work: What to do with them; they are computed in this thread.
        ahead: Maximum number of images that are read but not computed yet, and likewise of those
            that wait to be written.
        display: Shows which one is computed.
    """
    count = max(1, min(threads_for(len(pairs)), ahead))
    readers, writers = ThreadPoolExecutor(count), ThreadPoolExecutor(count)
    todo = iter(pairs)
    reading: deque[tuple[Pair, Record, Future[Read | None]]] = deque()
    writing: deque[tuple[Record, Future[None] | None]] = deque()
    try:
        while True:
            for pair in islice(todo, max(0, ahead - len(reading))):
                record = new_record(pair)
                reading.append((pair, record, readers.submit(_read, pair, work, record)))
            if reading:
                pair, record, read = reading.popleft()
                display.working(pair.image.name)
                found = read.result()
                wrote = None
                if found is not None:
                    inputs, crf = found
                    step = partial(compute_one, pair, work, inputs, built=crf)
                    refined: Refined | None = with_failures(pair, record, step)
                    if refined is not None:
                        wrote = writers.submit(_write, pair, work, record, inputs, refined)
                    del found, inputs, crf, step, refined  # freed before the next one is computed
                writing.append((record, wrote))
            elif not writing:
                return
            while writing and (_done(writing[0][1]) or len(writing) > ahead or not reading):
                record, written = writing.popleft()
                if written is not None:
                    written.result()
                yield record
    finally:  # what is being written is written to the end, what waits is not begun
        readers.shutdown(wait=False, cancel_futures=True)
        writers.shutdown(wait=True, cancel_futures=True)


def _done(written: Future[None] | None) -> bool:
    return written is None or written.done()


def _read(pair: Pair, work: Work, record: Record) -> Read | None:
    def step() -> Read:
        inputs = read_one(pair, work, record["notes"])
        return inputs, build_one(pair, work, inputs)

    found: Read | None = with_failures(pair, record, step)
    return found


def _write(pair: Pair, work: Work, record: Record, inputs: Inputs, refined: Refined) -> None:
    step = partial(write_one, pair, work, inputs, refined)
    record.update(with_failures(pair, record, step) or {})
