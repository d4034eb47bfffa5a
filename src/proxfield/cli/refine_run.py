"""The work of ``proxfield refine``: one image, many images, and memory for them."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxfield.cli.progress import Counter
from proxfield.cli.refine_files import Pair
from proxfield.common.interrupts import deferred
from proxfield.common.pool import import_joblib, run_in_processes
from proxfield.common.records import Record
from proxfield.errors import InputError, ProxfieldError
from proxfield.io.files import display_name
from proxfield.io.images import ARRAYS, PICTURES, import_pillow

if TYPE_CHECKING:
    from proxfield.common.arrays import Pixels
    from proxfield.images.densecrf import DenseCRF
    from proxfield.inference.history import Callback

SAMPLED_FILES = 200
"""Files, the largest ones, whose sizes decide how many images are refined at once."""
ENTRY_BYTES = 60
PIXEL_BYTES = 650
PROCESS_BYTES = 300 * 2**20
"""Memory that an image takes for each pixel and label, for each pixel, and in any case: measured
on images of 0.3 megapixels with 3 and with 21 labels."""


@dataclass(frozen=True)
class Work:
    """What to do with each pair; it travels to other processes."""

    kind: str = "labels"
    """"labels" or "probabilities": the output."""
    from_labels: Record | None = None
    """Options for label maps; None: the input is probabilities."""
    build: Record = field(default_factory=dict)
    run: Record = field(default_factory=dict)
    dtype: str = "float32"
    names: tuple[str, ...] | None = None


# ---- one image ----


def refine_one(pair: Pair, work: Work, callback: Callback | None = None) -> Record:
    """Refine one image and write the result; a failure becomes an entry of the record."""
    from proxfield.cli.signals import interrupted

    name = display_name(pair.image)
    record: Record = {"image": name, "error": None, "notes": []}
    try:
        record.update(_refine(pair, work, callback, record["notes"]))
    except Exception as error:
        if interrupted():  # what a library made of Ctrl-C
            raise KeyboardInterrupt from error
        record["error"] = _explain(error, name)
    return record


def _explain(error: Exception, name: str) -> str:
    """Why an image failed, in one line; unexpected errors are raised for debugging."""
    from proxfield.cli.main import describe

    if isinstance(error, InputError):
        return str(error) if error.path is not None else f"{name}: {error.message}"
    if isinstance(error, (ProxfieldError, OSError, MemoryError)):
        return f"{name}: {describe(error)}"
    # one image in a thousand must not end the run
    if os.environ.get("PROXFIELD_DEBUG", "0") not in ("", "0"):
        raise error
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{name}: {what}; this is a bug, PROXFIELD_DEBUG=1 shows more"


def _refine(pair: Pair, work: Work, callback: Callback | None, notes: list[str]) -> Record:
    from proxfield.io.images import read_image, write_labels, write_probabilities
    from proxfield.io.overlay import write_overlay

    image = read_image(pair.image, notes)
    crf, palette = _build(pair, work, image)
    if pair.overlay is not None and len(crf.pixels) != 2:
        raise InputError(f"an overlay needs a flat image, not {len(crf.pixels)} axes")
    result = crf.infer(**work.run, callback=callback)
    if result.status.name == "INTERRUPTED":  # never pass for finished
        raise KeyboardInterrupt
    target = pair.targets[0 if len(crf.pixels) == 2 else -1]
    if pair.overlay is not None:  # first: the result says that all is there
        write_overlay(pair.overlay, image, result.labels, palette=palette, names=work.names)
    if work.kind == "labels":
        write_labels(target, result.labels, crf.n_labels, palette=palette)
    else:
        write_probabilities(target, result.probabilities, dtype=work.dtype)
    return {
        "output": str(target),
        "overlay": None if pair.overlay is None else str(pair.overlay),
        "pixels": list(crf.pixels),
        "n_labels": crf.n_labels,
        "status": result.status.label,
        "iterations": result.iterations,
        "free_energy": result.free_energy,
        "seconds": result.seconds,
    }


def _build(pair: Pair, work: Work, image: Pixels) -> tuple[DenseCRF, list[int] | None]:
    """The field of one image, and the palette of its label map."""
    from proxfield.images.densecrf import DenseCRF
    from proxfield.io.images import read_labels, read_probabilities

    if work.from_labels is None:
        return DenseCRF(image, read_probabilities(pair.unary), **work.build), None
    labels, palette = read_labels(pair.unary)
    return DenseCRF.from_labels(image, labels, **work.from_labels, **work.build), palette


# ---- memory ----


def bytes_needed(pair: Pair, n_labels: int | None) -> int:
    """About how much memory one image takes, from the headers of its files."""
    try:
        shape = stored_shape(pair.unary)
    except (OSError, ValueError, KeyError, SyntaxError, zipfile.BadZipFile, ProxfieldError):
        return PROCESS_BYTES  # the file will be reported when its turn comes
    size = 1
    for length in shape:
        size *= length
    if pair.unary.suffix.lower() in ARRAYS and n_labels is None:
        pixels = size // max(1, min(shape[0], shape[-1])) if shape else 1
    else:
        pixels, size = size, size * (n_labels or 32)
    return PROCESS_BYTES + PIXEL_BYTES * pixels + ENTRY_BYTES * size


def stored_shape(path: Path) -> tuple[int, ...]:
    """The shape of an array or a picture, without reading it."""
    suffix = path.suffix.lower()
    if suffix not in ARRAYS:
        with import_pillow().open(path) as picture:
            return (picture.height, picture.width)
    import numpy as np

    if suffix == ".npy":
        return tuple(np.load(path, mmap_mode="r", allow_pickle=False).shape)
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as stream:
        form: Any = np.lib.format
        first = form.read_magic(stream) == (1, 0)
        read = form.read_array_header_1_0 if first else form.read_array_header_2_0
        return tuple(read(stream)[0])


def affordable_jobs(wanted: int, pairs: Sequence[Pair], n_labels: int | None) -> tuple[int, str]:
    """How many images to refine at once, and why if these are fewer than wanted."""
    from proxfield.common.memory import available_memory, human_bytes

    jobs = max(1, min(wanted, len(pairs)))
    left = available_memory()
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


def run_all(pairs: Sequence[Pair], work: Work, jobs: int, display: Counter) -> Iterator[Record]:
    """The records of all images, as they are finished."""
    # the first image compiles what is missing: once, not in every process
    alone = len(pairs) if jobs == 1 else 1 if len(pairs) > jobs else 0
    if alone:
        with deferred():  # numba, cut off while it is imported, may swallow Ctrl-C
            import_module("proxfield.images.densecrf")
        with display.announcing_compilation():
            for pair in pairs[:alone]:
                display.working(pair.image.name)
                yield refine_one(pair, work, display.update)
    if alone < len(pairs):
        display.working(f"{jobs} jobs")
        one = partial(refine_one, work=work)
        yield from run_in_processes(one, pairs[alone:], jobs, work.run["threads"])


def check_packages(pairs: Sequence[Pair], jobs: int) -> None:
    """Name a package that is missing before the work begins, not once for each image."""
    if jobs > 1:
        import_joblib()
    paths = [path for x in pairs for path in (x.image, x.unary, x.overlay) if path is not None]
    if any(path.suffix.lower() in PICTURES for path in paths):
        import_pillow()
