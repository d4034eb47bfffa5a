"""Many images, each by itself: one after another or in several processes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from proxfield.core.common.arrays import Array
from proxfield.core.common.records import Record
from proxfield.core.jobs.running import check_jobs, run_jobs, slots_of, threads_per_item
from proxfield.errors import InputError, InputWarning, ProxfieldError, shown
from proxfield.images.densecrf import DenseCRF, divided
from proxfield.images.inputs import CONFIDENCE, ArrayKind, confidence_note, to_host
from proxfield.images.settings import DenseSettings

Item = tuple[int, Array, Array]
"""The number of an image, its pixels and what is known about them."""
OUTPUTS = ("probabilities", "labels", "results")


def refine_batch(
    images: Iterable[ArrayLike] | None,
    probabilities: Iterable[ArrayLike] | None = None,
    *,
    logits: Iterable[ArrayLike] | None = None,
    output: str = "probabilities",
    jobs: int | None = None,
    **options: Any,
) -> Array:
    """Several images, each by itself: a dense CRF, inference, and one map for each.

    Args:
        images: Images in a list, or an array whose first axis counts them; None without images.
        probabilities: As many, likewise.
        logits: Scores of a network in their place.
        output: "probabilities" or "labels" (maps), or "results" (`DenseResult`, which keep the
            whole field and so much memory; those of other processes come without its terms).
        jobs: Number of images to refine at a time, in processes of their own (needs joblib); by
            default 1, or as ``joblib.parallel_config`` says (see `core.jobs.run_jobs`). They
            share the cores, unless ``threads`` says how many each of them may use.
        **options: Of `DenseCRF` and of `DenseCRF.infer`.

    Returns:
        One array with a first axis that counts images if all maps have the same shape, else a
        list; for results always a list. An array of torch, cupy or xarray gives one of the same
        kind, a list of such arrays a list of the same kind.

    Example:
        >>> import numpy as np
        >>> p = np.full((2, 4, 5, 3), 1 / 3)
        >>> refine_batch(np.zeros((2, 4, 5), dtype=np.uint8), p, max_iters=3).shape
        (2, 4, 5, 3)
    """
    if output not in OUTPUTS:
        raise InputError(f"output={shown(output)}, expected probabilities, labels or results")
    jobs = check_jobs(jobs)
    if (probabilities is None) == (logits is None):
        raise InputError("a batch needs probabilities or logits, one of them")
    given = logits if probabilities is None else probabilities
    whole = ArrayKind.of(given)
    unaries = list(to_host(given))
    pictures = [None] * len(unaries) if images is None else list(to_host(images))
    if len(pictures) != len(unaries):
        raise InputError(f"{len(pictures)} images, but probabilities for {len(unaries)}")
    build, run = divided(options)
    what = "probabilities" if logits is None else "logits"
    kinds = [ArrayKind.of(x) for x in unaries]
    items = list(zip(range(len(unaries)), pictures, unaries, strict=True))
    confidence = DenseSettings.chosen(build).confidence
    said = confidence is not None
    build["confidence"] = confidence if said else CONFIDENCE
    one = partial(_refine, what=what, output=output, build=build, run=run)
    jobs = None if jobs is None else max(1, min(jobs, len(items)))
    if slots_of(jobs) == 1:
        records = [one(item) for item in items]
    else:
        threads = threads_per_item(jobs, run.get("threads"))
        one = partial(one, run={**run, "threads": threads})
        on_host = ((number, to_host(image), to_host(unary)) for number, image, unary in items)
        some = run_jobs(
            partial(_keep_error, one=one), on_host, jobs, threads, name=_name_of, paths=False
        )
        records = sorted(some, key=lambda record: int(record["number"]))
        for record in records:  # of several errors that of the first image
            if "error" in record:
                raise record["kind"](record["error"])
    found = [record["result"] for record in records]
    certain = sum(record["certain"] for record in records)
    if certain and not said:
        of = f" of {certain} of {len(records)} images"
        warnings.warn(confidence_note(what, CONFIDENCE, of), InputWarning, stacklevel=2)
    if output == "results":
        return found
    axis = records[0]["labels_axis"] if records and output == "labels" else None
    if any(kind.given is not None for kind in kinds):
        return [kind.restore(x, axis) for kind, x in zip(kinds, found, strict=True)]
    if len({np.shape(x) for x in found}) != 1:
        return found
    return whole.restore(np.stack(found), None if axis is None else axis + 1)


def _refine(item: Item, what: str, output: str, build: Record, run: Record) -> Record:
    """One image; both go to other processes and come back."""
    number, image, unary = item
    try:
        crf = DenseCRF(image, **{what: unary}, **build)
        result = crf.infer(**run)
    except InputError as error:
        raise InputError(f"{_name_of(item)}: {error}") from None
    record: Record = {"number": number, "certain": crf.confidence is not None}
    if output == "results":
        return {**record, "result": result}
    values = np.asarray(to_host(getattr(result, output)))
    return {**record, "result": values, "labels_axis": crf.labels_axis}


def _keep_error(item: Item, one: Callable[..., Record]) -> Record:
    """An error as an entry: exceptions with arguments of their own don't travel."""
    try:
        return dict(one(item))
    except ProxfieldError as error:
        return {"number": item[0], "error": str(error), "kind": type(error)}


def _name_of(item: Item) -> str:
    """An image in messages."""
    return f"image {item[0]} of the batch"
