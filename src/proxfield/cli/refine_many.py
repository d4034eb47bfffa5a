"""Many images of ``proxfield refine``: several at once, memory for them, and the pipeline of a GPU.

A GPU refines an image faster than a file is decoded or written. So threads read some images ahead
and build their fields, and others write, while this thread computes one after the other. Records
come in the order of the images; an image that fails has its error in its record, as everywhere.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice

from proxfield.cli.progress import Counter
from proxfield.cli.refine_files import Pair
from proxfield.cli.refine_one import (
    ImageWork,
    PairInputs,
    RefinedImage,
    build_one,
    compute_one,
    new_record,
    read_one,
    refine_one,
    with_failures,
    write_one,
)
from proxfield.core.common import memory
from proxfield.core.common.memory import available_cores, human_bytes
from proxfield.core.common.records import Record
from proxfield.core.devices.base import find
from proxfield.core.jobs import import_joblib, open_workers
from proxfield.images.densecrf import DenseCRF
from proxfield.io import npy
from proxfield.io.files import display_name, ending
from proxfield.io.images import ARRAYS, PICTURES, import_pillow
from proxfield.io.remote import AnyPath
from proxfield.io.tiff import NIFTI, import_nibabel

SAMPLED_FILES = 200
"""Files, the largest ones, whose sizes decide how many images are refined at once."""
ENTRY_BYTES = 60
PIXEL_BYTES = 650
PROCESS_BYTES = 300 * 2**20
"""Memory that an image takes for each pixel and label, for each pixel, and in any case: measured
on images of 0.3 megapixels with 3 and with 21 labels."""


Read = tuple[PairInputs, DenseCRF]
"""What the files of one pair hold, and the field of it."""
MAX_THREADS = 8
"""Maximum number of threads that read, and that write."""


# ---- memory ----


def bytes_needed(pair: Pair, n_labels: int | None) -> int:
    """About how much memory one image takes, from the headers of its files."""
    try:
        shape = stored_shape(pair.unary)
    except Exception:  # of many libraries: the file will be reported when its turn comes
        return PROCESS_BYTES
    size = 1
    for length in shape:
        size *= length
    if ending(pair.unary) in ARRAYS and n_labels is None:
        pixels = size // max(1, min(shape[0], shape[-1])) if shape else 1
    else:
        pixels, size = size, size * (n_labels or 32)
    return PROCESS_BYTES + PIXEL_BYTES * pixels + ENTRY_BYTES * size


def stored_shape(path: AnyPath) -> tuple[int, ...]:
    """The shape of an array or a picture, without reading it."""
    suffix = ending(path)
    if suffix in NIFTI:
        return tuple(import_nibabel().load(path).shape)
    if suffix not in ARRAYS:
        with import_pillow().open(path) as picture:
            return (picture.height, picture.width)
    return npy.stored_shape(path)


def affordable_jobs(wanted: int, pairs: Sequence[Pair], n_labels: int | None) -> tuple[int, str]:
    """How many images to refine at once, and why if these are fewer than wanted."""
    jobs = max(1, min(wanted, len(pairs)))
    left = memory.available_memory()
    if jobs == 1 or left is None:
        return jobs, ""
    largest = sorted(pairs, key=lambda pair: pair.unary.stat().st_size)[-SAMPLED_FILES:]
    worst = max(bytes_needed(pair, n_labels) for pair in largest)
    fitting = max(1, int(0.8 * left) // worst)
    if fitting >= jobs:
        return jobs, ""
    return fitting, (
        f"{fitting} instead of {jobs} jobs: an image takes about {human_bytes(worst)}, and "
        f"{human_bytes(left)} are available"
    )


# ---- all images ----


def run_all(
    pairs: Sequence[Pair], work: ImageWork, jobs: int | None, display: Counter
) -> Iterator[Record]:
    """The records of all images, as they are finished.

    Args:
        pairs: The images.
        work: What to do with them.
        jobs: Number of images at a time; None: as many as the cluster has room for.
        display: Is told how it goes.
    """
    if jobs == 1 and len(pairs) > 1 and on_gpu(work):
        yield from run_on_gpu(pairs, work, display)
        return
    # the first image compiles what is missing: once, not in every process
    alone = len(pairs) if jobs == 1 else 1 if jobs is not None and len(pairs) > jobs else 0
    if alone:
        with display.announcing_compilation():
            for pair in pairs[:alone]:
                display.working(pair.image.name)
                yield refine_one(pair, work, display.update)
    if alone < len(pairs):
        threads, local = work.run["threads"], any(has_relative_path(p) for p in pairs)
        with open_workers(jobs, threads, paths=local) as workers:
            display.working(f"{workers.jobs} jobs")
            yield from workers.run(partial(refine_one, work=work), pairs[alone:], name_of)


def name_of(pair: Pair) -> str:
    """What to call an image in an error."""
    return display_name(pair.image)


def has_relative_path(pair: Pair) -> bool:
    """Whether a file of a pair depends on the current folder."""
    paths = (pair.image, pair.unary, *pair.targets, pair.overlay, pair.scribbles)
    return any(path is not None and not path.is_absolute() for path in paths)


def on_gpu(work: ImageWork) -> bool:
    """Whether images are computed on a device of their own, beside which the host is idle."""
    return find(work.run["device"]).separate


def run_on_gpu(pairs: Sequence[Pair], work: ImageWork, display: Counter) -> Iterator[Record]:
    """The same on a GPU, with files read and written meanwhile."""
    from proxfield.core.devices.cuda import torch

    torch.set_num_threads(1)  # copies by many threads wait for cores that readers and writers use
    ahead, _ = affordable_jobs(2 * threads_for(len(pairs)), pairs, None)
    # readers switch warnings off and on, which threads can't do each for itself
    with display.announcing_compilation(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from run_pipeline(pairs, work, ahead, display)


def check_packages(pairs: Sequence[Pair], jobs: int | None) -> None:
    """Name a package that is missing before the work begins, not once for each image."""
    if jobs is None or jobs > 1:
        import_joblib()
    paths = [
        path
        for x in pairs
        for path in (x.image, x.unary, x.overlay, x.scribbles)
        if path is not None
    ]
    kinds = {ending(path) for path in paths}
    if kinds & {*PICTURES}:
        import_pillow()
    if kinds & {*NIFTI}:
        import_nibabel()


# ---- on a GPU ----


def threads_for(images: int) -> int:
    """Threads that read, and as many that write.

    Example:
        >>> threads_for(1)
        1
    """
    return max(1, min(MAX_THREADS, available_cores() // 2, images))


def run_pipeline(
    pairs: Sequence[Pair], work: ImageWork, ahead: int, display: Counter
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
                    refined: RefinedImage | None = with_failures(pair, record, step)
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


def _read(pair: Pair, work: ImageWork, record: Record) -> Read | None:
    def step() -> Read:
        inputs = read_one(pair, work, record["notes"])
        return inputs, build_one(pair, work, inputs)

    found: Read | None = with_failures(pair, record, step)
    return found


def _write(
    pair: Pair, work: ImageWork, record: Record, inputs: PairInputs, refined: RefinedImage
) -> None:
    step = partial(write_one, pair, work, inputs, refined)
    record.update(with_failures(pair, record, step) or {})
