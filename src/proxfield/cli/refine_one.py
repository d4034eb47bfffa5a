"""One image of ``proxfield refine`` in three steps: read, compute, write.

Each step is a function of its own, so that images can be read and written while others are
computed. What a later step needs travels in `PairInputs` and `RefinedImage`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from proxfield.cli import signals
from proxfield.cli.main import describe
from proxfield.cli.refine_files import Pair, record_path, write_record
from proxfield.cli.refine_inputs import in_options
from proxfield.cli.running import status_line
from proxfield.core.common.arrays import Pixels
from proxfield.core.common.records import Record, plain
from proxfield.core.jobs import ends_the_run
from proxfield.core.solve.history import Callback
from proxfield.errors import InputError, ProxfieldError
from proxfield.images import densecrf
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
from proxfield.io.remote import AnyPath
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

NOT_PARAMETERS = ("threads",)
"""What doesn't change a result."""
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
        run = {k: v for k, v in self.run.items() if k not in NOT_PARAMETERS}
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


def refine_one(pair: Pair, work: ImageWork, callback: Callback | None = None) -> Record:
    """Refine one image and write the result; a failure becomes an entry of the record."""
    record = new_record(pair)
    with_failures(pair, record, lambda: _refine(pair, work, callback, record))
    return record


def _refine(pair: Pair, work: ImageWork, callback: Callback | None, record: Record) -> None:
    inputs = read_one(pair, work, record["notes"])
    refined = compute_one(pair, work, inputs, callback)
    record.update(write_one(pair, work, inputs, refined))


def read_one(pair: Pair, work: ImageWork, notes: list[str]) -> PairInputs:
    """Step 1: read the files of a pair; needs neither numba nor a device.

    Args:
        pair: The files.
        work: What to do with them.
        notes: Gets lines about what was dropped.
    """
    image, reference, spacing = _read_image(pair.image, notes)
    unary, palette, other = _read_unary(pair.unary, work.what)
    if reference is not None and other is not None and not reference.same_place(other):
        notes.append(f"{display_name(pair.unary)}: lies in another place than the image")
    scribbles = None if pair.scribbles is None else _read_unary(pair.scribbles, "labels")[0]
    return PairInputs(image, unary, palette, scribbles, reference, spacing, notes)


def _read_image(path: AnyPath, notes: list[str]) -> tuple[Pixels, Any, tuple[float, ...] | None]:
    """The pixels of an image, where it is, and the size of a voxel."""
    if ending(path) in NIFTI:
        placed = read_nifti(path)
        return placed.values, placed.reference, placed.spacing
    if is_geotiff(path):
        if has_rasterio():
            placed = read_geotiff(path, notes)
            return placed.values, placed.reference, None
        notes.append(f"{display_name(path)}: its place on Earth isn't kept: {GEO_REMEDY}")
    return read_image(path, notes), None, None


def _read_unary(path: AnyPath, what: str) -> tuple[Pixels, list[int] | None, Any]:
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
    callback: Callback | None = None,
    built: DenseCRF | None = None,
) -> RefinedImage:
    """Step 2: build the field, unless it is given, and infer; reads and writes no files."""
    crf = build_one(pair, work, inputs) if built is None else built
    if pair.overlay is not None and len(crf.pixels) != 2:
        raise InputError(f"an overlay needs a flat image, not {len(crf.pixels)} axes")
    # without a warning: the report says how many pixels changed, and what to try
    result = densecrf.infer_dense(crf, **work.run, callback=callback)
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


# ---- failures ----


def new_record(pair: Pair) -> Record:
    """The record of an image before it is refined."""
    return {"image": display_name(pair.image), "error": None, "notes": []}


def with_failures(pair: Pair, record: Record, step: Any) -> Any:
    """The result of a step; None after a failure, which becomes an entry of the record."""
    try:
        return step()
    except Exception as error:
        if signals.interrupted():  # what a library made of Ctrl-C
            raise KeyboardInterrupt from error
        if ends_the_run(error):
            raise
        record["error"] = _explain(error, display_name(pair.image))
    return None


def _explain(error: Exception, name: str) -> str:
    """Why an image failed, in one line; unexpected errors are raised for debugging."""
    if isinstance(error, InputError):
        if error.path is not None:
            return str(error)
        return str(InputError(in_options(error.message), path=name))
    if isinstance(error, (ProxfieldError, OSError, MemoryError)):
        return f"{name}: {in_options(describe(error))}"
    # one image in a thousand must not end the run
    if os.environ.get("PROXFIELD_DEBUG", "0") not in ("", "0"):
        raise error
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{name}: {what}; this is a bug, PROXFIELD_DEBUG=1 shows more"
