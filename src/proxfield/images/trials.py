"""Trials of settings of dense CRFs on images with known labels: made, counted, and stored."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from proxfield._version import __version__
from proxfield.core.common.arrays import Array, Pixels
from proxfield.core.common.records import Record
from proxfield.core.engines import compile_program
from proxfield.core.engines.base import State
from proxfield.core.solve.curvature import Curvature
from proxfield.core.solve.loop import make_updates
from proxfield.core.solve.request import starting_point
from proxfield.core.solve.rules.base import Problem
from proxfield.core.solve.rules.registry import make_rule
from proxfield.core.terms.gaussian import Gaussian
from proxfield.errors import InputError
from proxfield.field import Field
from proxfield.images.densecrf import DenseCRF
from proxfield.images.metrics import (
    Counts,
    count_boundaries,
    count_regions,
    find_metric,
    read_truth,
)
from proxfield.images.settings import TERM_SETTINGS, DenseSettings
from proxfield.io.files import display_name, naming, read_bytes
from proxfield.io.images import read_image, read_labels, read_probabilities

MARKS = (1, 2, 3, 5, 10)
"""Numbers of updates after which labels are compared: all of them come from one run."""


def key_of(settings: DenseSettings) -> str:
    """The settings that count, but for the number of updates: those of a term of weight 0 don't."""
    names = (*itertools.chain(*TERM_SETTINGS.values()), "filter")
    values = {name: getattr(settings, name) for name in names}
    values = {k: v if isinstance(v, str) else float(v) for k, v in values.items()}
    for term, own in TERM_SETTINGS.items():
        if settings.weight(term) == 0:
            values.update(dict.fromkeys(own, 0.0))
    return json.dumps(values, sort_keys=True)


Given = Array | str | PathLike[str]
"""An array, or the name of a file."""
NO_CRF = "none"
"""The key of the labels that the probabilities have by themselves."""


@dataclass(frozen=True)
class LabelledImage:
    """One image with probabilities and true labels: arrays, or files to read when needed."""

    name: str
    image: Given
    probabilities: Given
    truth: Given
    digest: str


def make_case(number: int, image: Given, probabilities: Given, truth: Given) -> LabelledImage:
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
    return LabelledImage(name, *parts, made.hexdigest())


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
class TrialTask:
    """One image and the settings to try on it; it travels to other processes."""

    case: LabelledImage
    points: tuple[DenseSettings, ...]
    measure: Measure
    threads: int | None = None


def run_task(task: TrialTask) -> Record:
    """The counts of one image, see `_try_points`; an error names the image."""
    with naming(task.case.name):
        return _try_points(task)


def _try_points(task: TrialTask) -> Record:
    """Counts of one image: ``{"digest": …, "counts": {key: {updates: counts}}, "certain": …}``.

    ``certain`` says whether its probabilities were labels, see `DenseCRF`. The labels without a CRF
    are always among the counts.
    """
    measure, case = task.measure, task.case

    def read(part: Given, reader: Callable[[str | PathLike[str]], Pixels]) -> Array:
        return reader(part) if isinstance(part, str | PathLike) else part

    image = read(case.image, read_image)
    probabilities = np.asarray(read(case.probabilities, read_probabilities))
    given = read(case.truth, lambda path: read_labels(path)[0])
    metric = find_metric(measure.metric)
    base = DenseCRF(image, probabilities, spatial_weight=0.0, bilateral_weight=0.0, **measure.build)
    truth = read_truth(given, base.pixels, base.n_labels, measure.ignore)
    terms: dict[str, tuple[str, Gaussian]] = {}

    def term(kind: str, settings: DenseSettings) -> Gaussian:
        """A Gaussian term of weight 1, whose lattice serves all weights."""
        key = settings.kernel(kind)
        if terms.get(kind, ("",))[0] != key:
            terms.pop(kind, None)  # settings come in order: one is enough
            one = settings.only(kind).in_range(measure.color_range)
            made = DenseCRF(image, probabilities, preset=one, **measure.build).terms[-1]
            assert isinstance(made, Gaussian)
            terms[kind] = key, made
        return terms[kind][1].reweighted(settings.weight(kind))

    def count(labels: NDArray[np.int64]) -> list[list[int]]:
        given = truth, labels.reshape(base.pixels), base.n_labels
        counts = (
            count_boundaries(*given, measure.tolerance)
            if metric.boundaries
            else count_regions(*given)
        )
        return counts.tolist()  # type: ignore[no-any-return]

    tried = {NO_CRF: {"0": count(base.terms[0].energies.argmin(axis=1))}}  # type: ignore[attr-defined]
    for point in sorted(task.points, key=lambda p: (p.filter, p.bilateral_sigma, key_of(p))):
        pairwise = [term(kind, point) for kind in point.kinds(image is not None)]
        whole = Field(base.n_vars, base.n_labels, [base.terms[0], *pairwise])
        updates = FieldUpdates(whole, task.threads)
        state, counts = updates.start(), {}
        for done, n in itertools.pairwise((0, *MARKS)):
            q = updates.make(state, n - done if pairwise else 0)
            counts[str(n)] = count(q.reshape(base.n_vars, -1).argmax(axis=1))
        tried[key_of(point)] = counts
        del updates, state, whole, q  # before the next program is compiled
    return {"digest": case.digest, "counts": tried, "certain": base.confidence is not None}


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
                what = f"can't write ({error.strerror}), expected a writable file"
                raise InputError(what, path=display_name(self.path)) from None

    def missing(
        self, cases: Iterable[LabelledImage], points: Sequence[DenseSettings]
    ) -> list[tuple[LabelledImage, tuple[DenseSettings, ...]]]:
        """What is left to try: cases with their points."""
        out = []
        for case in cases:
            left = tuple(p for p in points if (case.digest, key_of(p)) not in self.counts)
            if left or (case.digest, NO_CRF) not in self.counts:
                out.append((case, left))
        return out

    def total(self, cases: Iterable[LabelledImage], settings: str, updates: int) -> Counts:
        """Counts summed over images."""
        found = [self.counts[case.digest, settings][updates] for case in cases]
        return np.sum(found, axis=0)  # type: ignore[no-any-return]


class FieldUpdates:
    """A field, compiled for the CPU, and its certified update (that of the rule "fixed").

    Args:
        field: The field.
        threads: Maximum number of threads.
    """

    def __init__(self, field: Field, threads: int | None) -> None:
        self.field, self.lowered = field, field.lower()
        self.program = compile_program(self.lowered, "cpu", "float32", threads)
        curvature = Curvature(self.lowered, field, "cpu")
        self.plan = make_rule("fixed", {}).plan(Problem(self.lowered, curvature))

    def start(self) -> State:
        """The state in which a label is as probable as its unary energies say."""
        return self.program.start(starting_point(self.field, self.lowered, "unary", 0))

    def make(self, state: State, count: int) -> NDArray[np.float32]:
        """Make some updates of a state; returns its marginals.  # (N · L,)"""
        if count > 0:
            make_updates(self.program, self.plan, state, count)
        return np.asarray(self.program.view(state), dtype=np.float32)
