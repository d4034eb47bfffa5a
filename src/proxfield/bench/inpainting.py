"""The benchmark on inpainting: fields that are trained here or read, Table 2, and pictures."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.io import loadmat

from proxfield.bench.published import INPAINTING, INPAINTING_BEST_KNOWN, INPAINTING_BUDGETS
from proxfield.bench.runner import Settings, Task, outcome, timed_run, traced_run
from proxfield.bench.store import naming, number_of
from proxfield.bench.suites import Instance, file_digest, natural_key
from proxfield.bench.table import (
    BEST,
    RuleRuns,
    ShownValue,
    Table,
    budget_name,
    counted,
    group_last,
    make_cells,
    show,
    standard_error,
)
from proxfield.core.common.records import Record
from proxfield.core.solve.rules.base import Rule
from proxfield.core.solve.rules.registry import make_rule
from proxfield.core.terms.base import Ints
from proxfield.core.terms.factor import Factor
from proxfield.core.terms.unary import Unary
from proxfield.errors import InputError
from proxfield.field import Field
from proxfield.io.files import display_name, read_bytes
from proxfield.io.images import import_pillow, png_bytes
from proxfield.result import Result
from proxfield.viz.sheets import inpainting_sheet

if TYPE_CHECKING:
    from proxfield.learn.characters import CharacterSets
    from proxfield.learn.decision_tree_field import DecisionTreeField

METHODS = ("chains", "marginals")
"""How the models are trained: maximum likelihood, and through the marginals."""
GIVEN = "given models"
"""The suite of models that are read."""
BEST_KNOWN = ("DTF-names.mat", "DTF-OPT.mat")
"""Names of models, and their best-known energies, beside the models."""


@dataclass(frozen=True, eq=False)
class Inpainting:
    """A field with what is known about it."""

    field: Field
    hidden: Ints
    """Variables in the hole.  # (m,)"""
    truth: Ints | None = None
    """Their true labels.  # (m,)"""
    best_known: float | None = None
    """The lowest known energy of a labelling."""
    labels: Ints | None = None
    """The image, with the truth in the hole.  # (height, width)"""


@dataclass(frozen=True)
class Training:
    """How the models are trained.

    Attributes:
        hole: "small" or "large".
        train: Number of training characters.
        seed: Random seed.
    """

    hole: str = "large"
    train: int = 300
    seed: int = 0

    def path(self, folder: str, method: str) -> Path:
        """Where a model is kept."""
        return Path(folder) / f"{method}-{self.hole}-{self.train}-{self.seed}.npz"


def trained_instances(
    folder: str, training: Training, count: int, tell: Callable[[str], None]
) -> list[Instance[Inpainting]]:
    """Fields of test characters under models that are trained unless they are in a folder.

    There is a suite for each of `METHODS`.

    Args:
        folder: Where models are kept; made if need be.
        training: How they are trained.
        count: Number of test characters.
        tell: Is told what is being done.

    Raises:
        InputError: If fonts are missing, or the folder can't be used.
    """
    from proxfield.learn.characters import make_characters

    tell(f"drawing {training.train + count} characters")
    sets = make_characters(training.train, count, hole=training.hole, seed=training.seed)
    out = []
    for method in METHODS:
        model = load_or_fit(training.path(folder, method), method, sets, tell)
        known = hashlib.sha256(training.path(folder, method).read_bytes()).hexdigest()
        for k in range(count):
            image, mask = sets.test.images[k], sets.test.masks[k]
            data = f"{known} {hashlib.sha256(image.tobytes() + mask.tobytes()).hexdigest()}"
            digest = hashlib.sha256(data.encode()).hexdigest()[:16]
            name = f"U+{ord(sets.test.text[k]):04X} {sets.test.fonts[k]}"
            out.append(Instance(method, name, digest, partial(_hole, model, image, mask)))
    return out


def _hole(model: DecisionTreeField, image: Ints, mask: NDArray[np.bool_]) -> Inpainting:
    hidden = np.flatnonzero(mask)
    return Inpainting(model.field(image, mask), hidden, image.ravel()[hidden], labels=image)


def untrained(method: str) -> DecisionTreeField:
    """A model before it is trained."""
    from proxfield.learn.decision_tree_field import DecisionTreeField

    return DecisionTreeField(method=method)


def load_or_fit(
    path: Path, method: str, sets: CharacterSets, tell: Callable[[str], None]
) -> DecisionTreeField:
    """The model of a file; without the file or with other settings, it is trained and written."""
    from proxfield.learn.optimize import stages

    wanted = untrained(method)
    if path.exists():
        model = type(wanted).load(path)
        if model.get_params() == wanted.get_params():
            return model
        tell(f"{path} was trained with other settings")
    with naming("can't make the folder", "a writable place", path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    tell(f"training by {method} on {len(sets.train)} characters (once; kept in {path})")
    with stages() as interrupted:
        wanted.fit(sets.train.images, sets.train.masks)
    if interrupted():  # what is kept is trained to the end
        raise KeyboardInterrupt
    wanted.save(path)
    return wanted


# ---- models in files ----


def given_instances(data: str) -> list[Instance[Inpainting]]:
    """Models of decision tree fields in MATLAB files.

    A file ``TST_test_<number>_<height>_<width>.mat`` holds one binary field: ``D`` are the unary
    energies (variables, 2), ``E`` is a sparse matrix with an entry per edge, and ``W``
    (edges, 2, 2) the tables of the edges in the column-major order of ``E``; rows of a table are
    the labels of the edge's row in ``E``.

    Args:
        data: A folder with such files, or one file; ``DTF-OPT.mat`` beside them has the best-known
            energies, in the order of ``DTF-names.mat``.

    Raises:
        InputError: If there are none.
    """
    place = Path(data)
    if place.is_dir():
        paths = [p for p in place.glob("*.mat") if p.name.startswith("TST_")]
    else:
        paths = [place] if place.exists() else []
    if not paths:
        raise InputError("no models, expected TST_*.mat", path=display_name(data))
    paths.sort(key=lambda p: natural_key(p.stem))
    return [Instance(GIVEN, p.stem, file_digest(p), partial(_given, p)) for p in paths]


def _given(path: Path) -> Inpainting:
    model = read_model(path)
    return Inpainting(model, np.arange(model.n_vars), None, best_known(path))


def read_model(path: str | Path, *, distinct: bool = True) -> Field:
    """Read one model.

    Args:
        path: A ``.mat`` file as described in `given_instances`.
        distinct: Store equal tables once, with an index (what a decision tree gives); else one
            table per edge, as in the file.

    Returns:
        A binary field, its variables numbered by columns of the image.

    Raises:
        InputError: If the file can't be read or holds something else.
    """
    data = read_matlab(path)
    name = display_name(path)
    try:
        unary = np.ascontiguousarray(data["D"], dtype=np.float64)
        edges = data["E"].tocsc()
        edges.sort_indices()
        columns = np.repeat(np.arange(edges.shape[1]), np.diff(edges.indptr))
        scopes = np.stack([edges.indices.astype(np.int64), columns], axis=1)
        tables = np.ascontiguousarray(data["W"], dtype=np.float64)
        if unary.shape[1:] != (2,) or tables.shape != (len(scopes), 2, 2):
            raise ValueError(f"D is {unary.shape}, W is {tables.shape}, E has {len(scopes)} edges")
    except (KeyError, AttributeError, TypeError, ValueError) as error:
        raise InputError(
            f"no decision tree field ({error}), expected D, E and W", path=name
        ) from None
    index = None
    if distinct:
        flat, index = np.unique(tables.reshape(-1, 4), axis=0, return_inverse=True)
        tables, index = flat.reshape(-1, 2, 2), index.ravel()
    return Field(len(unary), n_labels=2).add(Unary(unary)).add(Factor(scopes, tables, index))


def best_known(path: str | Path) -> float | None:
    """The best-known MAP energy of a model, by the tables beside it; None without these."""
    path = Path(path)
    names, energies = (path.with_name(name) for name in BEST_KNOWN)
    if not (names.exists() and energies.exists()):
        return None
    try:
        listed = read_matlab(names)["lP"].ravel()
        stems = [Path(str(name["filename"].item())).stem for name in listed]
        known = read_matlab(energies)["eng"].ravel()
        return float(known[stems.index(path.stem)]) if path.stem in stems else None
    except (KeyError, AttributeError, TypeError, ValueError, IndexError) as error:
        raise InputError(
            f"no best-known energies ({error}), expected lP here and eng in {energies.name}",
            path=display_name(names),
        ) from None


def read_matlab(path: str | Path) -> Record:
    """The variables of a MATLAB file (before version 7.3)."""
    content, name = read_bytes(path)
    try:
        data: Record = loadmat(BytesIO(content))
    except Exception as error:  # whatever a damaged file makes scipy raise
        raise InputError(f"no MATLAB file ({error}), expected .mat", path=name) from None
    return data


# ---- work ----


PICTURED = "adam"
"""The rule whose labels are drawn."""


def inpainting_tasks(
    instances: list[Instance[Inpainting]], rules: list[Rule], budgets: list[float]
) -> list[Task[Inpainting]]:
    """All runs, field by field; the first field of each suite also has traces."""
    firsts = {i.suite: i for i in reversed(instances)}
    tasks = []
    for instance in instances:
        for rule in rules:
            tasks += [inpainting_task("inpainting", instance, rule, b) for b in budgets]
            if firsts[instance.suite] is instance:
                tasks.append(inpainting_task("trace", instance, rule, max(budgets)))
    return tasks


def inpainting_task(
    kind: str, instance: Instance[Inpainting], rule: Rule, budget: float
) -> Task[Inpainting]:
    """A rule on a field, timed ("inpainting") or traced ("trace")."""
    return Task(
        kind, instance, _complete if kind == "inpainting" else traced_run, rule, budget,
        make_field=attrgetter("field"),
    )  # fmt: skip


def _complete(task: Task[Inpainting], model: Inpainting, settings: Settings) -> Record:
    """F, and how many pixels of the hole are right."""
    result = timed_run(task, model, settings)
    return {
        **outcome(result),
        "pixels": len(model.hidden),
        **score_hole(model, result),
        "best_known": model.best_known,
    }


def score_hole(model: Inpainting, result: Result) -> Record:
    """Right pixels of the hole, and Σ log q of the true labels there; None without the truth."""
    if model.truth is None:
        return {"correct": None, "log_truth": None}
    q = np.asarray(result.marginals)
    right = q[model.hidden].argmax(axis=1) == model.truth
    p = np.maximum(q[model.hidden, model.truth], 1e-12)
    return {"correct": int(right.sum()), "log_truth": float(np.log(p).sum())}


# ---- Table 2 ----


def make_inpainting_tables(records: Iterable[Record]) -> list[Table]:
    """The tables of what is stored, one for each suite; the last of equal runs counts.

    Cells have: "free_energy", the mean F, above the best-known energy in a table of `GIVEN` models
    where that is known, with its "standard_error" over the fields; "accuracy", the correct pixels
    in the hole in percent, and "log_truth", the mean log q of the true labels there, both None
    without the truth; "iterations", a mean.
    """
    suites = group_last(records, "inpainting", lambda r: (str(r["suite"]), float(r["budget"])))
    return [_table(suite, runs) for suite, runs in suites.items()]


def _table(suite: str, runs: RuleRuns) -> Table:
    given = suite == GIVEN
    above = given and all(r.get("best_known") is not None for r in runs.all)

    def measure(rule: str, budget: float) -> Record:
        found = runs.of(rule, budget)
        return {"above_best_known": above, **_measure(found, runs.count, above)}

    cells = make_cells(runs.rules, runs.columns, measure)
    accuracy = any(c["accuracy"] is not None for row in cells.values() for c in row)
    name = suite if given else f"trained by {suite}"
    quantity = "mean F − E*" if above else "mean F"
    size = counted(runs.count, "field")
    title = f"{name}: {quantity}{' and accuracy in the hole' * accuracy} over {size}"
    percent = (ShownValue("accuracy", show, "%"),) if accuracy else ()
    lower = INPAINTING_BEST_KNOWN if above else 0.0
    return Table(
        name, f"{title}; lower F is better, * is lowest", suite, runs.rules, runs.columns, cells,
        (ShownValue("free_energy", show), *percent, BEST),
        ("above_best_known", "free_energy", "accuracy", "log_truth", "iterations"), "budget",
        {"suite": suite, "models": runs.count}, runs.count, size,
        {
            rule: tuple((f - lower, share) for f, share in theirs)
            for rule, theirs in INPAINTING.items()
        },
        tuple(map(budget_name, INPAINTING_BUDGETS)), (("", show), ("%", show)),
        more={"quantity": quantity, "has_accuracy": accuracy},
    )  # fmt: skip


def _measure(runs: Sequence[Record], expected: int, above: bool) -> Record:
    names = ("free_energy", "standard_error", "accuracy", "log_truth")
    cell: Record = {**dict.fromkeys(names), "iterations": 0.0}
    if len(runs) < expected:
        return cell
    each = [number_of(r, "free_energy") - (r["best_known"] if above else 0.0) for r in runs]
    cell["free_energy"], cell["standard_error"] = sum(each) / len(runs), standard_error(each)
    cell["iterations"] = sum(r["iterations"] for r in runs) / len(runs)
    if all(r["correct"] is not None for r in runs):
        pixels = sum(r["pixels"] for r in runs)
        cell["accuracy"] = 100.0 * sum(r["correct"] for r in runs) / pixels
        cell["log_truth"] = sum(r["log_truth"] for r in runs) / pixels
    return cell


# ---- pictures ----


def draw_characters(
    instances: Sequence[Instance[Inpainting]], settings: Settings
) -> list[tuple[str, str, bytes]]:
    """The first character of each suite whose truth is known, completed by a rule."""
    out = []
    for suite in dict.fromkeys(i.suite for i in instances):
        instance = next(i for i in instances if i.suite == suite)
        model = instance.make()
        if model.truth is None or model.labels is None:
            continue
        task = inpainting_task("inpainting", instance, make_rule(PICTURED), 0.0)
        result = task.infer(model, settings, max_iters=1000, trace=False)
        mask = np.zeros(model.labels.size, dtype=bool)
        mask[model.hidden] = True
        q = result.q.reshape(*model.labels.shape, -1)
        sheet = inpainting_sheet(model.labels, mask.reshape(model.labels.shape), q, truth=True)
        what = f"{instance.name}, trained by {suite}: before, after, uncertainty, truth and errors"
        what += f" ({PICTURED}, at most 1000 iterations)."
        png = png_bytes(import_pillow().fromarray(sheet))
        out.append((f"inpainting-{suite}", what, png))
    return out
