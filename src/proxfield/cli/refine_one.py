"""One image of ``proxfield refine`` in three steps: read, compute, write.

Each step is a function of its own, so that images can be read and written while others are
computed. What a later step needs travels in `Inputs` and `Refined`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from proxfield.cli.refine_files import Pair
from proxfield.common.records import Record
from proxfield.errors import InputError, ProxfieldError
from proxfield.io.files import display_name

if TYPE_CHECKING:
    from proxfield.common.arrays import Pixels
    from proxfield.images.densecrf import DenseCRF
    from proxfield.inference.history import Callback


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


@dataclass
class Inputs:
    """What the files of one pair hold."""

    image: Pixels
    unary: Pixels
    """Probabilities, or a label map if the work has options for these."""
    palette: list[int] | None = None
    notes: list[str] = field(default_factory=list)
    """Lines for people about what was read otherwise than they may expect."""


@dataclass
class Refined:
    """What is written for one pair."""

    values: Any
    """Labels or probabilities."""
    labels: Any
    """The label map, for the overlay."""
    summary: Record
    """Entries of the record: number of labels, status, iterations, …"""


def refine_one(pair: Pair, work: Work, callback: Callback | None = None) -> Record:
    """Refine one image and write the result; a failure becomes an entry of the record."""
    record = new_record(pair)
    with_failures(pair, record, lambda: _refine(pair, work, callback, record))
    return record


def _refine(pair: Pair, work: Work, callback: Callback | None, record: Record) -> None:
    inputs = read_one(pair, work, record["notes"])
    refined = compute_one(pair, work, inputs, callback)
    record.update(write_one(pair, work, inputs, refined))


def read_one(pair: Pair, work: Work, notes: list[str]) -> Inputs:
    """Step 1: read the files of a pair; needs neither numba nor a device.

    Args:
        pair: The files.
        work: What to do with them.
        notes: Gets lines about what was dropped.
    """
    from proxfield.io.images import read_image, read_labels, read_probabilities

    image = read_image(pair.image, notes)
    if work.from_labels is None:
        return Inputs(image, read_probabilities(pair.unary), None, notes)
    return Inputs(image, *read_labels(pair.unary), notes)


def build_one(work: Work, inputs: Inputs) -> DenseCRF:
    """The first half of step 2: the field of what was read."""
    from proxfield.images.densecrf import DenseCRF

    if work.from_labels is None:
        return DenseCRF(inputs.image, inputs.unary, **work.build)
    return DenseCRF.from_labels(inputs.image, inputs.unary, **work.from_labels, **work.build)


def compute_one(
    pair: Pair,
    work: Work,
    inputs: Inputs,
    callback: Callback | None = None,
    built: DenseCRF | None = None,
) -> Refined:
    """Step 2: build the field, unless it is given, and infer; reads and writes no files."""
    crf = build_one(work, inputs) if built is None else built
    if pair.overlay is not None and len(crf.pixels) != 2:
        raise InputError(f"an overlay needs a flat image, not {len(crf.pixels)} axes")
    result = crf.infer(**work.run, callback=callback)
    if result.status.name == "INTERRUPTED":  # never pass for finished
        raise KeyboardInterrupt
    summary = {
        "pixels": list(crf.pixels),
        "n_labels": crf.n_labels,
        "status": result.status.label,
        "iterations": result.iterations,
        "free_energy": result.free_energy,
        "seconds": result.seconds,
    }
    labels = result.labels if work.kind == "labels" or pair.overlay is not None else None
    return Refined(labels if work.kind == "labels" else result.probabilities, labels, summary)


def write_one(pair: Pair, work: Work, inputs: Inputs, refined: Refined) -> Record:
    """Step 3: write the files of a pair; returns the entries of its record."""
    from proxfield.io.images import write_labels, write_probabilities
    from proxfield.io.overlay import write_overlay

    target = pair.targets[0 if len(refined.summary["pixels"]) == 2 else -1]
    if pair.overlay is not None:  # first: the result says that all is there
        write_overlay(
            pair.overlay, inputs.image, refined.labels, palette=inputs.palette, names=work.names
        )
    if work.kind == "labels":
        n_labels = refined.summary["n_labels"]
        write_labels(target, refined.values, n_labels, palette=inputs.palette)
    else:
        write_probabilities(target, refined.values, dtype=work.dtype)
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
    from proxfield.cli.signals import interrupted

    try:
        return step()
    except Exception as error:
        if interrupted():  # what a library made of Ctrl-C
            raise KeyboardInterrupt from error
        record["error"] = _explain(error, display_name(pair.image))
    return None


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
