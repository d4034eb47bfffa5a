"""Images of ``proxfield refine``: one in three steps, many at once, and the pipeline of a GPU.

The steps are read, compute and write. What a later step needs travels in `PairInputs` and
`RefinedImage`. A GPU refines an image faster than a file is decoded or written. So threads read
some images ahead and build their fields, and others write, while the main thread computes one
after the other. Records come in the order of the images; an image that fails has its error there.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from proxfield.cli.progress import Counter
from proxfield.cli.refine_files import FilePath, Pair, affordable_jobs, record_path, write_record
from proxfield.cli.running import attempt, in_options, status_line
from proxfield.core.common.arrays import Pixels
from proxfield.core.common.memory import available_cores
from proxfield.core.common.records import Record, plain
from proxfield.core.devices.base import find
from proxfield.core.jobs.running import open_workers
from proxfield.core.solve.history import Callback
from proxfield.errors import InputError
from proxfield.images.cooccurrence import CooccurrenceStatistics
from proxfield.images.densecrf import DenseCRF
from proxfield.images.inputs import confidence_note
from proxfield.images.settings import DEFAULT_PRESET, DenseSettings
from proxfield.io.files import display_name, ending
from proxfield.io.images import (
    ARRAYS,
    as_labels,
    as_logits,
    as_probabilities,
    read_image,
    read_labels,
    read_logits,
    read_probabilities,
    write_labels,
    write_probabilities,
)
from proxfield.io.overlay import write_overlay
from proxfield.io.tiff import (
    GEO_REMEDY,
    GEOTIFF,
    NIFTI,
    GeoReference,
    NiftiReference,
    has_rasterio,
    is_geotiff,
    read_geotiff,
    read_nifti,
)

T = TypeVar("T")
MAX_THREADS = 8
"""Maximum number of threads that read, and that write."""
DEEP = 16384
"""Values below it leave most of 16 bits unused: what a standard deviation of colors means then is
for the user to say."""


@dataclass(frozen=True)
class ImageWork:
    """What to do with each pair; it travels to other processes."""

    kind: str = "labels"
    """"labels" or "probabilities": the output."""
    what: str = "probabilities"
    """"probabilities", "logits" or "labels": the input."""
    from_labels: Record | None = None
    """Options for label maps; None: the input is something else."""
    build: Record = field(default_factory=dict)
    run: Record = field(default_factory=dict)
    dtype: str = "float32"
    names: tuple[str, ...] | None = None
    spacing_given: bool = False
    """Whether the user says how large a voxel is; otherwise the header of a NIfTI file does."""
    tiles: Record | None = None
    """Length and halo of tiles; None: images in one piece."""

    @property
    def parameters(self) -> Record:
        """All that decides on a result, beside the files; as JSON has it, presets as numbers."""
        run = {k: v for k, v in self.run.items() if k != "threads"}
        rule = run.pop("rule", None)
        given = dict(self.build)
        terms: Record = {"compatibility": "potts"}
        terms.update(DenseSettings.of(given.pop("preset", DEFAULT_PRESET)).to_dict())
        run.setdefault("max_iters", terms.pop("max_iters", None))
        if isinstance(counts := given.get("cooccurrence"), CooccurrenceStatistics):
            given["cooccurrence"] = {"presence": counts.presence, "pairs": counts.pairs}
        terms.update(given, spacing_from_header=not self.spacing_given)
        found: Record = plain(
            {
                "output": self.kind,
                "input": self.what,
                "dtype": self.dtype if self.kind == "probabilities" else None,
                "labels": self.from_labels,
                **({} if self.tiles is None else {"tiles": self.tiles}),
                "terms": terms,
                "rule": None if rule is None else {"name": rule.name, **rule.params},
                **run,
            }
        )
        return found


@dataclass
class PairInputs:
    """What the files of one pair hold."""

    image: Pixels
    unary: Pixels
    """Probabilities, logits or a label map."""
    palette: list[int] | None = None
    scribbles: Pixels | None = None
    reference: NiftiReference | GeoReference | None = None
    """Where the image is; results are written with it."""
    spacing: tuple[float, ...] | None = None
    notes: list[str] = field(default_factory=list)
    """Lines for people about what was read otherwise than they may expect."""


@dataclass
class RefinedImage:
    """What is written for one pair."""

    values: Any
    """Labels or probabilities."""
    labels: Any
    """The label map, for the overlay."""
    ignored: int | None
    """The label of pixels that were left as they are."""
    summary: Record
    """Entries of the record: number of labels, status, iterations, …"""


Read = tuple[PairInputs, DenseCRF]
"""What the files of one pair hold, and the field of it."""


def refine_one(pair: Pair, work: ImageWork, callback: Callback | None = None) -> Record:
    """Refine one image and write the result; a failure becomes an entry of the record."""
    record = new_record(pair)

    def steps() -> None:
        inputs, crf = load_one(pair, work, record)
        refined = compute_one(pair, work, inputs, crf, callback)
        record.update(write_one(pair, work, inputs, refined))

    try_step(record, steps)
    return record


def new_record(pair: Pair) -> Record:
    """The record of an image before it is refined."""
    return {"image": display_name(pair.image), "error": None, "notes": []}


def try_step(record: Record, step: Callable[[], T]) -> T | None:
    """The result of a step; None after a failure, which becomes an entry of the record."""
    return attempt(record, record["image"], step, is_file=True)


def load_one(pair: Pair, work: ImageWork, record: Record) -> Read:
    """Step 1: read the files of a pair and build its field."""
    inputs = read_one(pair, work, record["notes"])
    return inputs, build_one(pair, work, inputs)


def read_one(pair: Pair, work: ImageWork, notes: list[str]) -> PairInputs:
    """What the files of a pair hold; notes get lines about what was dropped."""
    reference: Any = None
    spacing: tuple[float, ...] | None = None
    path, placed = pair.image, None
    if ending(path) in NIFTI:
        placed = read_nifti(path)
        spacing = placed.spacing
    elif is_geotiff(path) and has_rasterio():
        placed = read_geotiff(path, notes)
    elif is_geotiff(path):
        notes.append(f"{display_name(path)}: its place on Earth isn't kept: {GEO_REMEDY}")
    image = read_image(path, notes) if placed is None else placed.values
    reference = None if placed is None else placed.reference
    unary, palette, other = _read_unary(pair.unary, work.what)
    if reference is not None and other is not None and not reference.same_place(other):
        notes.append(f"{display_name(pair.unary)}: lies in another place than the image")
    scribbles = None if pair.scribbles is None else _read_unary(pair.scribbles, "labels")[0]
    return PairInputs(image, unary, palette, scribbles, reference, spacing, notes)


def _read_unary(path: FilePath, what: str) -> tuple[Pixels, list[int] | None, Any]:
    """What is known about pixels, the palette of a label map, and where the file says it is."""
    name = display_name(path)
    placed = None
    if ending(path) in NIFTI:
        placed = read_nifti(path)
    elif ending(path) in GEOTIFF and has_rasterio() and (what != "labels" or is_geotiff(path)):
        placed = read_geotiff(path)
    if placed is None:
        if what == "labels":
            return (*read_labels(path), None)
        read = read_logits if what == "logits" else read_probabilities
        return read(path), None, None
    convert = {"labels": as_labels, "logits": as_logits}.get(what, as_probabilities)
    return convert(placed.values, name), None, placed.reference


def compute_one(
    pair: Pair,
    work: ImageWork,
    inputs: PairInputs,
    crf: DenseCRF,
    callback: Callback | None = None,
) -> RefinedImage:
    """Step 2: infer; reads and writes no files."""
    if pair.overlay is not None and len(crf.pixels) != 2:
        raise InputError(f"an overlay needs a flat image, not {len(crf.pixels)} axes")
    # without a warning: the report says how many pixels changed, and what to try
    crf.tells = False
    result = crf.infer(**work.run, callback=callback)
    if result.status.name == "INTERRUPTED":  # never pass for finished
        raise KeyboardInterrupt
    changed = int(result.changed.sum())
    summary = {
        "pixels": list(crf.pixels),
        "n_labels": crf.n_labels,
        "status": result.status.label,
        "message": status_line(result.status, result.message if result.asked else ""),
        "iterations": result.iterations,
        "free_energy": result.free_energy,
        "seconds": result.seconds,
        "changed": changed,
        "confidence": crf.confidence,
        "one_label": changed == 0 and bool(np.ptp(result.labels) == 0),
    }
    labels = result.labels if work.kind == "labels" or pair.overlay is not None else None
    values: Any = labels if work.kind == "labels" else result.probabilities
    if work.kind == "probabilities" and inputs.reference is not None:  # bands, in any case
        maps = result.q.reshape(*crf.pixels, crf.n_labels)
        values = maps if crf.labels_axis is not None else maps[..., 1]
    ignored = None if crf.ignored is None else crf.ignored[0]
    return RefinedImage(values, labels, ignored, summary)


def build_one(pair: Pair, work: ImageWork, inputs: PairInputs) -> DenseCRF:
    """The field of one image; notes what was read otherwise than people may expect."""
    build: Record = dict(work.build)
    build["batch"] = None if len(inputs.unary) == 1 else False  # a file is one image
    build["scribbles"] = inputs.scribbles
    if inputs.spacing is not None and not work.spacing_given:
        build["spacing"] = inputs.spacing
    if work.from_labels is None:
        build[work.what] = inputs.unary
        crf = DenseCRF(inputs.image, **build)
    else:
        crf = DenseCRF.from_labels(inputs.image, inputs.unary, **work.from_labels, **build)
    name, there = display_name(pair.unary), inputs.unary.shape
    if work.from_labels is None and crf.shape != there:
        inputs.notes.append(f"{name}: {work.what} are enlarged from {there} to {crf.shape}")
    if crf.confidence is not None and work.from_labels is None:
        note = in_options(confidence_note(work.what, crf.confidence))
        inputs.notes.append(f"{name}: {note}")
    elif work.what == "probabilities" and crf.labels_axis is None and not inputs.unary.max() > 0.5:
        inputs.notes.append(
            f"{name}: foreground has at most probability {float(inputs.unary.max()):.2g}, so there "
            "is none (label maps are given as --labels)"
        )
    if len(crf.pixels) > 2 and ending(pair.image) in ARRAYS:
        inputs.notes.append(f"{display_name(pair.image)}: read as a volume, {crf.pixels}")
    image = inputs.image
    color = work.build.get("bilateral_color")
    if image.dtype == np.uint16 and color is None and 255 < (top := int(image.max())) < DEEP:
        inputs.notes.append(
            f"{display_name(pair.image)}: 16-bit, but no value above {top}; choose "
            "--bilateral-color in these units"
        )
    return crf


def write_one(pair: Pair, work: ImageWork, inputs: PairInputs, refined: RefinedImage) -> Record:
    """Step 3: write the files of a pair; returns the entries of its record."""
    target = pair.targets[0 if len(refined.summary["pixels"]) == 2 else -1]
    if pair.overlay is not None:  # first: the result says that all is there
        write_overlay(
            pair.overlay, inputs.image, refined.labels, palette=inputs.palette, names=work.names
        )
    record_path(target).unlink(missing_ok=True)  # it speaks of the result before this one
    if inputs.reference is not None and ending(target) in (*NIFTI, *GEOTIFF):
        values = refined.values
        values = values if work.kind == "labels" else np.asarray(values, dtype=np.float32)
        inputs.reference.write(target, values, refined.ignored)
    elif work.kind == "labels":
        n_labels = refined.summary["n_labels"]
        write_labels(target, refined.values, n_labels, palette=inputs.palette)
    else:
        write_probabilities(target, refined.values, dtype=work.dtype)
    write_record(pair, work.what, work.parameters, target, refined.summary)
    return {
        "output": str(target),
        "overlay": None if pair.overlay is None else str(pair.overlay),
        **refined.summary,
    }


# ---- all images ----


def run_all(
    pairs: Sequence[Pair], work: ImageWork, jobs: int | None, display: Counter
) -> Iterator[Record]:
    """Records of all images, as they are finished; jobs None: as many as the cluster has room."""
    if jobs == 1 and len(pairs) > 1 and find(work.run["device"]).separate:
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
        threads = work.run["threads"]
        local = any(not path.is_absolute() for p in pairs for path in (*p.inputs, *p.outputs))
        with open_workers(jobs, threads, paths=local) as workers:
            display.working(f"{workers.jobs} jobs")
            yield from workers.run(
                partial(refine_one, work=work), pairs[alone:], lambda pair: display_name(pair.image)
            )


def run_on_gpu(pairs: Sequence[Pair], work: ImageWork, display: Counter) -> Iterator[Record]:
    """The records of all images, computed on a GPU while files are read and written."""
    from proxfield.core.devices.cuda import torch

    torch.set_num_threads(1)  # copies by many threads wait for cores that readers and writers use
    ahead, _ = affordable_jobs(2 * threads_for(len(pairs)), pairs, None)
    # readers switch warnings off and on, which threads can't do each for itself
    with display.announcing_compilation(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from run_pipeline(pairs, work, ahead, display)


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
                step = partial(load_one, pair, work, record)
                reading.append((pair, record, readers.submit(try_step, record, step)))
            if reading:
                pair, record, read = reading.popleft()
                display.working(pair.image.name)
                found = read.result()
                wrote = None
                if found is not None:
                    inputs, crf = found
                    refined = try_step(record, partial(compute_one, pair, work, inputs, crf))
                    if refined is not None:
                        wrote = writers.submit(_write, pair, work, record, inputs, refined)
                    del found, inputs, crf, refined  # freed before the next one is computed
                writing.append((record, wrote))
            elif not writing:
                return
            while writing:
                record, written = writing[0]
                if written is not None:
                    if reading and len(writing) <= ahead and not written.done():
                        break
                    written.result()
                writing.popleft()
                yield record
    finally:  # what is being written is written to the end, what waits is not begun
        readers.shutdown(wait=False, cancel_futures=True)
        writers.shutdown(wait=True, cancel_futures=True)


def _write(
    pair: Pair, work: ImageWork, record: Record, inputs: PairInputs, refined: RefinedImage
) -> None:
    step = partial(write_one, pair, work, inputs, refined)
    record.update(try_step(record, step) or {})
