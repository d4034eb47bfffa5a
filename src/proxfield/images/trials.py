"""Trials of settings of dense CRFs on images with known labels: made, counted, and stored."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxfield._version import __version__
from proxfield.core.common.arrays import Pixels
from proxfield.core.common.records import Record
from proxfield.core.terms.gaussian import Gaussian
from proxfield.errors import InputError
from proxfield.images.densecrf import DenseCRF
from proxfield.images.metrics import Counts, find_metric, read_truth
from proxfield.images.presets import FULL_RANGE
from proxfield.io.files import display_name, read_bytes
from proxfield.io.images import read_image, read_labels, read_probabilities

MARKS = (1, 2, 3, 5, 10)
"""Numbers of updates after which labels are compared: all of them come from one run."""
DIGITS = 4
"""Significant digits of a setting."""


@dataclass(frozen=True)
class Point:
    """Settings of a dense CRF, apart from the number of updates; colors for a range of 255."""

    spatial_sigma: float
    spatial_weight: float
    bilateral_sigma: float
    bilateral_color: float
    bilateral_weight: float
    filter: str = "auto"

    def moved(self, name: str, value: float | str) -> Point:
        """The same with another value of one setting, rounded.

        Example:
            >>> Point(3, 3, 80, 13, 10).moved("bilateral_sigma", 56.5685).bilateral_sigma
            56.57
        """
        if not isinstance(value, str):
            value = float(f"{value:.{DIGITS}g}")
        return Point(**{**asdict(self), name: value})

    @property
    def key(self) -> str:
        """The settings that count: those of a term of weight 0 don't."""
        values: Record = {k: v if isinstance(v, str) else float(v) for k, v in asdict(self).items()}
        for term in ("spatial", "bilateral"):
            if values[f"{term}_weight"] == 0:
                values.update({k: 0.0 for k in values if k.startswith(term)})
        return json.dumps(values, sort_keys=True)


NO_CRF = "none"
"""The key of the labels that the probabilities have by themselves."""


@dataclass(frozen=True)
class Case:
    """One image with probabilities and true labels: arrays, or files to read when needed."""

    name: str
    image: Any
    probabilities: Any
    truth: Any
    digest: str


def make_case(number: int, image: Any, probabilities: Any, truth: Any) -> Case:
    """A case with the digest of its content."""
    parts = (image, probabilities, truth)
    made = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, str | PathLike):
            made.update(read_bytes(part)[0])
        elif part is not None:
            array = np.ascontiguousarray(part)
            made.update(f"{array.dtype.str}{array.shape}".encode())
            made.update(array.tobytes())
        made.update(b"|")
    name = display_name(image) if isinstance(image, str | PathLike) else f"image {number}"
    return Case(name, *parts, made.hexdigest())


def load_case(case: Case) -> tuple[Pixels | None, Pixels, Pixels]:
    """The arrays of a case."""

    def read(part: Any, reader: Any) -> Any:
        return reader(part) if isinstance(part, str | PathLike) else part

    return (
        read(case.image, read_image),
        np.asarray(read(case.probabilities, read_probabilities)),
        np.asarray(read(case.truth, lambda path: read_labels(path)[0])),
    )


# ---- one image ----


@dataclass(frozen=True)
class Measure:
    """How trials are made and counted; together with the data it says what a trial is."""

    metric: str = "miou"
    tolerance: float = 2.0
    ignore: tuple[int, ...] = (255,)
    color_range: float | None = None
    build: Record = field(default_factory=dict)
    """Options of `DenseCRF` about its inputs."""

    @property
    def key(self) -> str:
        """What two measures must have in common to give the same counts."""
        metric = find_metric(self.metric)
        kind = f"boundaries {self.tolerance:g}" if metric.boundaries else "regions"
        parts = [kind, sorted(self.ignore), self.color_range, sorted(self.build.items())]
        return json.dumps([*parts, MARKS, __version__])


@dataclass(frozen=True)
class Task:
    """One image and the settings to try on it; it travels to other processes."""

    case: Case
    points: tuple[Point, ...]
    measure: Measure
    threads: int | None = None


def run_task(task: Task) -> Record:
    """Counts of one image: ``{"digest": …, "counts": {key: {updates: counts}}, "error": …}``.

    ``certain`` says whether its probabilities were labels, see `DenseCRF`. The labels without a CRF
    are always among the counts.
    """
    record: Record = {"digest": task.case.digest, "counts": {}, "error": None, "certain": False}
    try:
        record["counts"] = dict(_try_points(task, record))
    except InputError as error:
        where = task.case.name if error.path is None else error.path
        record["error"] = (error.message, where)
    return record


def _try_points(task: Task, record: Record) -> Iterator[tuple[str, dict[str, list[list[int]]]]]:
    measure = task.measure
    image, probabilities, given = load_case(task.case)
    metric = find_metric(measure.metric)
    bare: Record = {"spatial_weight": 0.0, "bilateral_weight": 0.0}
    base = DenseCRF(image, probabilities, **bare, **measure.build)
    record["certain"] = base.confidence is not None
    truth = read_truth(given, base.pixels, base.n_labels, measure.ignore)
    terms: dict[tuple[Any, ...], Gaussian] = {}

    def term(kind: str, *values: Any) -> Gaussian:
        """A Gaussian term of weight 1, whose lattice serves all weights."""
        key = (kind, *values)
        if key not in terms:
            for old in [k for k in terms if k[0] == kind]:  # points come in order: one is enough
                del terms[old]
            names = ("spatial_sigma",) if kind == "spatial" else ("bilateral_sigma", "color")
            options: Record = {
                **bare,
                f"{kind}_weight": 1.0,
                **dict(zip(names, values, strict=False)),
            }
            color = options.pop("color", None)
            if color is not None and measure.color_range is not None:
                options["bilateral_color"] = color * (measure.color_range / FULL_RANGE)
            elif color is not None:
                options["preset"] = {"bilateral_color": color, "color_range": FULL_RANGE}
            crf = DenseCRF(image, probabilities, **options, **measure.build, filter=values[-1])
            made = crf.terms[-1]
            assert isinstance(made, Gaussian)
            terms[key] = made
        return terms[key]

    def count(labels: NDArray[np.int64]) -> list[list[int]]:
        maps = labels.reshape(base.pixels)
        return metric.count(truth, maps, base.n_labels, measure.tolerance).tolist()  # type: ignore[no-any-return]

    yield NO_CRF, {"0": count(base.terms[0].energies.argmin(axis=1))}  # type: ignore[attr-defined]
    for point in sorted(task.points, key=lambda p: (p.filter, p.bilateral_sigma, p.key)):
        pairwise = []
        if point.spatial_weight:
            shared = term("spatial", point.spatial_sigma, point.filter)
            pairwise.append(shared.reweighted(point.spatial_weight))
        if point.bilateral_weight and image is not None:
            values = (point.bilateral_sigma, point.bilateral_color, point.filter)
            pairwise.append(term("bilateral", *values).reweighted(point.bilateral_weight))
        found = labels_after(base, pairwise, MARKS, task.threads)
        yield point.key, {str(n): count(x) for n, x in zip(MARKS, found, strict=True)}


def labels_after(
    base: DenseCRF, pairwise: Sequence[Gaussian], updates: Sequence[int], threads: int | None
) -> Iterator[NDArray[np.int64]]:
    """Labels after some numbers of updates, in one run: those of ``infer(max_iters=…)``.

    Args:
        base: The field of the unary energies.
        pairwise: The other terms.
        updates: Numbers of updates, in ascending order.
        threads: Maximum number of threads.
    """
    from proxfield.core.engines import compile_program
    from proxfield.core.solve.curvature import Curvature
    from proxfield.core.solve.loop import make_updates
    from proxfield.core.solve.problem import Problem
    from proxfield.core.solve.rules.registry import make_rule
    from proxfield.core.solve.starts import starting_point
    from proxfield.field import Field

    model = Field(base.n_vars, base.n_labels, [base.terms[0], *pairwise])
    lowered = model.lower()
    program = compile_program(lowered, "cpu", "float32", threads)
    plan = make_rule("fixed", {}).plan(Problem(lowered, Curvature(lowered, model, "cpu")))
    state = program.start(starting_point(model, lowered, "unary", 0))
    done = 0
    for n in updates:
        if pairwise:
            make_updates(program, plan, state, n - done)
        done = n
        yield np.asarray(program.view(state)).reshape(base.n_vars, -1).argmax(axis=1)


# ---- all trials ----


class Trials:
    """Counts by image and settings, kept in memory and, as they come, in a file.

    Args:
        path: A file of JSON lines; lines in it that are about the same data, measured in the same
            way, count as done. None: nothing is stored.
        measure: How trials are counted.
        fresh: Don't use what the file holds; it is written anew.
    """

    def __init__(self, path: str | PathLike[str] | None, measure: Measure, fresh: bool) -> None:
        self.path = None if path is None else Path(path)
        self.measure = hashlib.blake2b(measure.key.encode(), digest_size=8).hexdigest()
        self.counts: dict[tuple[str, str], dict[int, Counts]] = {}
        self.found = 0
        """Number of trials that the file held."""
        if self.path is None:
            return
        if fresh:
            self.path.unlink(missing_ok=True)
        elif self.path.exists():
            self._read(self.path)

    def _read(self, path: Path) -> None:
        data, name = read_bytes(path)
        lines = data.decode("utf-8", "replace").split("\n")
        for number, line in enumerate(lines[:-1], 1):  # the last was cut off, or is empty
            if not line.strip():
                continue
            try:
                record = json.loads(line)
                counts = {int(n): np.array(x) for n, x in record["counts"].items()}
                key = (str(record["image"]), str(record["settings"]))
                measure = record["measure"]
            except (ValueError, KeyError, TypeError, AttributeError):
                raise InputError(
                    "is no trial of proxfield tune; move the file away, or start anew with --force",
                    path=name,
                    line=number,
                ) from None
            if measure == self.measure:
                self.counts[key] = counts
                self.found += 1
        if lines[-1]:  # the next line must not continue the one that was cut off
            os.truncate(path, data.rindex(b"\n") + 1 if b"\n" in data else 0)

    def add(self, record: Record) -> None:
        """Take over what `run_task` returned."""
        lines = []
        for settings, counts in record["counts"].items():
            key = (record["digest"], settings)
            if key in self.counts:
                continue
            self.counts[key] = {int(n): np.array(x) for n, x in counts.items()}
            line = {"measure": self.measure, "image": key[0], "settings": settings}
            lines.append(json.dumps({**line, "counts": counts}) + "\n")
        if self.path is not None and lines:
            try:
                with self.path.open("a", encoding="utf-8") as stream:
                    stream.write("".join(lines))
            except OSError as error:
                raise InputError(
                    f"can't write ({error.strerror}), expected a writable file",
                    path=display_name(self.path),
                ) from None

    def missing(self, cases: Iterable[Case], points: Sequence[Point]) -> list[tuple[Case, Any]]:
        """What is left to try: cases with their points."""
        out = []
        for case in cases:
            left = tuple(p for p in points if (case.digest, p.key) not in self.counts)
            if left or (case.digest, NO_CRF) not in self.counts:
                out.append((case, left))
        return out

    def total(self, cases: Iterable[Case], settings: str, updates: int) -> Counts:
        """Counts summed over images."""
        found = [self.counts[case.digest, settings][updates] for case in cases]
        return np.sum(found, axis=0)  # type: ignore[no-any-return]
