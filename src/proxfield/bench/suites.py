"""The instances of the benchmark: the paper's own from a folder, or generated ones."""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from proxfield.bench.generated import RECIPE, generated, small_models
from proxfield.bench.published import DIGESTS, SUITES
from proxfield.errors import InputError, shown
from proxfield.field import Field
from proxfield.io.files import display_name, read_bytes
from proxfield.io.results import read_evidence, read_mar, read_pr
from proxfield.io.uai import read_model
from proxfield.testing import enumerate_field

ENDINGS = (".uai", ".uai.gz", ".uai.xz", ".uai.bz2")
WEIGHTS = "multiplicity.csv"


@dataclass(frozen=True)
class Reference:
    """Exact answers.

    Attributes:
        log_z: The exact log Z.
        marginals: The exact marginals, flat; None where they aren't known.
    """

    log_z: float
    marginals: NDArray[np.float64] | None


ModelT = TypeVar("ModelT")


@dataclass(frozen=True)
class Instance(Generic[ModelT]):
    """One model of a benchmark: a field, or what fields are made of.

    Attributes:
        suite: The suite (or family) it belongs to.
        name: Its name, without folder and endings.
        digest: Tells its content apart from other models of the same name.
        make: Reads or makes the model.
        reference: Reads the exact answers, where there are any.
        weight: How many instances of the paper it stands for.
    """

    suite: str
    name: str
    digest: str
    make: Callable[[], ModelT] = field(compare=False, repr=False)
    reference: Callable[[], Reference] | None = field(default=None, compare=False, repr=False)
    weight: int = 1


FieldInstance = Instance[Field]


def load_suites(data: str | None, wanted: Sequence[str] | None) -> dict[str, list[FieldInstance]]:
    """The instances by suite.

    Args:
        data: A folder with ``DBN``, ``GRID`` and ``SEG``; None generates instances.
        wanted: The suites to have; by default all that the folder has.

    Raises:
        InputError: If the folder has no models, or not those of a suite that is wanted.
    """
    names = tuple(wanted or SUITES)
    for name in names:
        if name not in SUITES:
            raise InputError(f"unknown suite {shown(name)}, expected some of: {', '.join(SUITES)}")
    if data is None:
        return {name: _generated_suite(name) for name in names}
    folder = Path(data)
    _list_folder(folder)  # says clearly what is wrong with it
    found = {name: _read_suite(folder / name, name) for name in names}
    missing = [name for name, instances in found.items() if not instances]
    if len(missing) == len(names) or (wanted and missing):
        what = " and ".join(f"{name}/*.uai" for name in missing)
        raise InputError(
            f"no models, expected {what} (or .uai.gz, .uai.xz, .uai.bz2)", path=display_name(folder)
        )
    return {name: instances for name, instances in found.items() if instances}


def _generated_suite(suite: str) -> list[FieldInstance]:
    found = (Instance(suite, name, RECIPE, make, None, w) for name, w, make in generated(suite))
    return sorted(found, key=lambda i: natural_key(i.name))


def _read_suite(folder: Path, suite: str) -> list[FieldInstance]:
    """The models in a folder, in natural order; none if there is no such folder."""
    if not folder.exists():
        return []
    paths = [p for p in _list_folder(folder) if p.name.lower().endswith(ENDINGS)]
    weights = _read_weights(folder / WEIGHTS)
    out: dict[str, FieldInstance] = {}
    for path in sorted(paths, key=lambda p: natural_key(stem(p.name))):
        name = stem(path.name)
        if name in out:
            raise InputError(
                f"the model {shown(name)} is there twice, expected it once",
                path=display_name(folder),
            )
        if weights is not None and name not in weights:
            raise InputError(
                f"no row for the model {path.name}, expected one",
                path=display_name(folder / WEIGHTS),
            )
        weight = 1 if weights is None else weights[name]
        out[name] = Instance(
            suite, name, file_digest(path), partial(read_model, path), weight=weight
        )
    return list(out.values())


def _list_folder(folder: Path) -> list[Path]:
    """What a folder holds, or one clear line."""
    name = display_name(folder)
    try:
        return sorted(folder.iterdir())
    except FileNotFoundError:
        raise InputError("no such folder, expected one with models", path=name) from None
    except NotADirectoryError:
        raise InputError("not a folder, expected one with models", path=name) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"can't read ({why}), expected a readable folder", path=name) from None


def _read_weights(path: Path) -> dict[str, int] | None:
    """How many instances each model stands for; None without the file."""
    if not path.exists():
        return None
    content, name = read_bytes(path)
    rows = csv.reader(io.StringIO(content.decode("utf-8", "replace")))
    weights: dict[str, int] = {}
    for line, row in enumerate(rows, start=1):
        if line == 1:
            if [c.strip() for c in row] != ["model", "instances"]:
                raise InputError("expected the header model,instances", path=name, line=1)
        elif row:
            count = row[1].strip() if len(row) == 2 else ""
            if not re.fullmatch(r"[0-9]{1,9}", count) or int(count) == 0:
                raise InputError(
                    f"{shown(','.join(row))}, expected a model and a whole number above 0",
                    path=name,
                    line=line,
                )
            weights[stem(row[0].strip())] = int(count)
    return weights


def load_exact(folder_name: str) -> list[FieldInstance]:
    """Models with exact answers: ``DIR/<family>/X.uai`` beside ``X.uai.PR``, and where there are
    any ``X.uai.MAR`` (marginals) and ``X.uai.evid`` (evidence)."""
    folder = Path(folder_name)
    _list_folder(folder)
    paths = sorted(folder.glob("*/*.uai"), key=lambda p: natural_key(f"{p.parent.name}/{p.name}"))
    paths = [p for p in paths if beside(p, "PR").exists()]
    if not paths:
        raise InputError(
            "no models with exact answers, expected <family>/X.uai beside X.uai.PR",
            path=display_name(folder),
        )
    return [_exact_instance(path) for path in paths]


def generated_exact() -> list[FieldInstance]:
    """Small seeded models whose exact answers are found by enumerating all labellings."""
    return [
        Instance(family, name, RECIPE, make, partial(_enumerate, make))
        for family, name, make in small_models()
    ]


def _enumerate(make: Callable[[], Field]) -> Reference:
    exact = enumerate_field(make())
    return Reference(exact.log_z, exact.marginals)


def beside(path: Path, ending: str) -> Path:
    """The file of the same name with one more ending."""
    return path.with_name(f"{path.name}.{ending}")


def _exact_instance(path: Path) -> FieldInstance:
    evidence, marginals = beside(path, "evid"), beside(path, "MAR")

    def make() -> Field:
        model = read_model(path)
        if evidence.exists():
            model = model.condition(read_evidence(evidence, model.cardinalities))
        return model

    def reference() -> Reference:
        log_z = read_pr(beside(path, "PR"))
        exact = np.concatenate(read_mar(marginals)) if marginals.exists() else None
        return Reference(log_z, exact)

    return Instance(path.parent.name, stem(path.name), file_digest(path), make, reference)


def stem(name: str) -> str:
    """A model's name without its endings.

    Example:
        >>> stem("grid40x40.f10.uai.xz")
        'grid40x40.f10'
    """
    for ending in (".gz", ".xz", ".bz2"):
        if name.lower().endswith(ending):
            name = name[: -len(ending)]
    return name[:-4] if name.lower().endswith(".uai") else name


def natural_key(name: str) -> list[tuple[int, str]]:
    """A sorting key that takes digits as numbers.

    Example:
        >>> sorted(["f10", "f2", "f2.wrap"], key=natural_key)
        ['f2', 'f2.wrap', 'f10']
    """
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return [(int(p), "") if p.isdigit() else (-1, p) for p in parts]


def file_digest(path: Path) -> str:
    """Of the content once decompressed, so that packing a file anew changes nothing."""
    return hashlib.sha256(read_bytes(path)[0]).hexdigest()[:16]


def suite_digest(instances: Iterable[FieldInstance]) -> str:
    """Of the models and weights of a suite, in any order."""
    parts = sorted(f"{i.digest} {i.weight}" for i in instances)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def is_the_papers(suite: str, instances: Iterable[FieldInstance]) -> bool:
    """Whether these are the paper's own instances."""
    return suite_digest(instances) == DIGESTS.get(suite)


def representative(instances: Sequence[FieldInstance]) -> FieldInstance:
    """The instance whose curves are drawn: the middle one of those with the largest weight."""
    top = max(i.weight for i in instances)
    heavy = [i for i in instances if i.weight == top]
    return heavy[len(heavy) // 2]
