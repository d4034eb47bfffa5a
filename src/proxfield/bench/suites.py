"""The instances of the benchmark: the paper's own from a folder, or generated ones."""

from __future__ import annotations

import csv
import hashlib
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from proxfield.bench.published import DIGESTS, SUITES
from proxfield.bench.store import naming
from proxfield.core.terms.pairwise import Ising, Pairwise, Potts
from proxfield.core.terms.unary import Unary
from proxfield.errors import InputError, shown
from proxfield.field import Field
from proxfield.generate import grid, rbm, segmentation
from proxfield.io.files import display_name, read_bytes
from proxfield.io.results import read_evidence, read_mar, read_pr
from proxfield.io.uai import read_model
from proxfield.testing import enumerate_field

SEED = 2016
RECIPE = "generated-1"
"""Changes whenever a change here changes a field, so that old results aren't taken for new."""
PIXELS = 28
SEGMENTATIONS = 50

GRIDS = [
    (side, strength, wrap)
    for side in (20, 40, 80)
    for strength in (2, 5, 10, 15)
    for wrap in (False, True)
    # the paper's set lacks these
    if (side, strength, wrap) not in [(20, 2, False), (20, 2, True), (20, 5, False)]
]
# hidden units: (how many instances the paper has in spin form and in 0/1 form, and the
# standard deviations of the weights above the pixels, between the hidden layers, below the top)
NETWORKS = {
    20: ((30, 30), (0.72, 1.00, 2.14)),
    50: ((11, 19), (0.55, 0.68, 1.60)),
    100: ((8, 10), (0.41, 0.43, 1.27)),
}

Maker = Callable[[], Field]


def generated(suite: str) -> Iterator[tuple[str, int, Maker]]:
    """Name, weight and maker of each instance of a suite; fields are made when asked for."""
    for side, strength, wrap in GRIDS if suite == "GRID" else ():
        name = f"grid{side}x{side}.f{strength}" + (".wrap" if wrap else "")
        # as in the paper's set, grids of one shape differ only by the factor
        seed = SEED + 2 * side + wrap
        yield name, 1, partial(grid, side, side, strength=strength, wrap=wrap, seed=seed)
    for hidden, (counts, _) in NETWORKS.items() if suite == "DBN" else ():
        for spins, weight in zip((True, False), counts, strict=True):
            name = f"{'rus' if spins else 'rus2'}_{hidden}_{2 * hidden}"
            yield name, weight, partial(network, hidden, spins=spins, seed=SEED + hidden)
    for k in range(SEGMENTATIONS if suite == "SEG" else 0):
        yield f"segmentation{k:02d}", 1, partial(superpixels, seed=SEED + k)


def network(hidden: int, *, spins: bool, seed: int) -> Field:
    """A deep belief network: 784 pixels and layers of ``hidden``, 2·``hidden`` and 10 units.

    Every unit is joined to every unit of the next layer. Pixels have no energy of their own,
    and those near the border hardly any coupling.

    Args:
        hidden: Units of the first hidden layer: 20, 50 or 100.
        spins: Energies b·s and w·s·t with s, t = ±1; otherwise b·x and w·x·y with x, y = 0 or 1.
        seed: Random seed; the weights are the same in both forms.
    """
    rng = np.random.default_rng(seed)
    sizes = (PIXELS * PIXELS, hidden, 2 * hidden, 10)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    edges, weights = [], []
    for layer, scale in enumerate(NETWORKS[hidden][1]):
        shape = (sizes[layer], sizes[layer + 1])
        ends = np.indices(shape) + starts[layer : layer + 2, None, None]
        edges.append(ends.reshape(2, -1).T)
        if layer == 0:  # heavy tails: most pixels hardly matter to most units
            y, x = np.mgrid[0:PIXELS, 0:PIXELS] - (PIXELS - 1) / 2
            center = np.where(np.hypot(x, y) < 0.47 * PIXELS, 1.0, 0.05).ravel()
            drawn = rng.laplace(0.05, scale / np.sqrt(2 * np.mean(center**2)), shape)
            weights.append((drawn * center[:, None]).ravel())
        else:
            weights.append(rng.normal(0.05, scale, shape).ravel())
    first = np.clip(rng.normal(-0.5, 4.5, sizes[1]), -14, 11)
    second = np.clip(rng.normal(1.7, 2.0, sizes[2]), -5, 7.5)
    bias = np.concatenate([np.zeros(sizes[0]), first, second, rng.normal(0.0, 0.4, sizes[3])])
    pairs, w = np.concatenate(edges), np.concatenate(weights)
    field = Field(int(starts[-1]), n_labels=2)
    if spins:
        return field.add(Unary(np.stack([-bias, bias], axis=1))).add(Ising(pairs, w))
    tables = np.zeros((len(w), 2, 2))
    tables[:, 1, 1] = w
    field.add(Unary(np.stack([np.zeros_like(bias), bias], axis=1)))
    return field.add(Pairwise(pairs, tables))


def superpixels(*, seed: int) -> Field:
    """A segmentation of 221 to 237 superpixels with the paper's ranges of energies.

    Potts weights are about 1.2; unary energies are 0 for the likelier label.
    """
    rng = np.random.default_rng(seed)
    picture = segmentation(int(rng.integers(221, 238)), seed=seed)
    unary, potts = picture.terms
    assert isinstance(unary, Unary) and isinstance(potts, Potts)
    view = unary.energies[:, 1] - unary.energies[:, 0]
    view = 1.56 * (view / view.std()) + rng.normal(0.4, 0.6)
    weights = np.clip(rng.normal(1.215, 0.1, len(potts.edges)), 0.99, 1.45)
    field = Field(picture.n_vars, n_labels=2)
    field.add(Unary(np.stack([np.maximum(-view, 0), np.maximum(view, 0)], axis=1)))
    return field.add(Potts(potts.edges, weights))


ENDINGS = (".uai", ".uai.gz", ".uai.xz", ".uai.bz2")
WEIGHTS = "multiplicity.csv"


class Reference(NamedTuple):
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
    names = tuple(dict.fromkeys(name.upper() for name in wanted or SUITES))
    for name in names:
        if name not in SUITES:
            raise InputError(f"unknown suite {shown(name)}, expected some of: {', '.join(SUITES)}")
    if data is None:
        made: dict[str, list[FieldInstance]] = {}
        for suite in names:
            rows = sorted(generated(suite), key=lambda row: natural_key(row[0]))
            made[suite] = [Instance(suite, n, RECIPE, make, None, w) for n, w, make in rows]
        return made
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
            what = f"the model {shown(name)} is there twice, expected it once"
            raise InputError(what, path=display_name(folder))
        if weights is not None and name not in weights:
            what = f"no row for the model {path.name}, expected one"
            raise InputError(what, path=display_name(folder / WEIGHTS))
        weight = 1 if weights is None else weights[name]
        out[name] = Instance(
            suite, name, file_digest(path), partial(read_model, path), weight=weight
        )
    return list(out.values())


def _list_folder(folder: Path) -> list[Path]:
    """What a folder holds, or one clear line."""
    with naming("can't read", "a readable folder", folder):
        if not folder.is_dir():
            what = "not a folder" if folder.exists() else "no such folder"
            raise InputError(f"{what}, expected one with models", path=display_name(folder))
        return sorted(folder.iterdir())


def _read_weights(path: Path) -> dict[str, int] | None:
    """How many instances each model stands for; None without the file."""
    if not path.exists():
        return None
    content, name = read_bytes(path)
    rows = list(csv.reader(io.StringIO(content.decode("utf-8", "replace"))))
    if rows and [c.strip() for c in rows[0]] != ["model", "instances"]:
        raise InputError("expected the header model,instances", path=name, line=1)
    weights: dict[str, int] = {}
    for line, row in enumerate(rows[1:], start=2):
        count = row[1].strip() if len(row) == 2 else ""
        if row and (not re.fullmatch(r"[0-9]{1,9}", count) or int(count) == 0):
            what = f"{shown(','.join(row))}, expected a model and a whole number above 0"
            raise InputError(what, path=name, line=line)
        if row:
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
        what = "no models with exact answers, expected <family>/X.uai beside X.uai.PR"
        raise InputError(what, path=display_name(folder))
    return [_exact_instance(path) for path in paths]


def generated_exact() -> list[FieldInstance]:
    """Small seeded models whose exact answers are found by enumerating all labellings."""
    made: list[tuple[str, str, Maker]] = []
    for sign, strength in product(("attractive", "repulsive", "mixed"), (1, 3)):
        make: Maker = partial(grid, 4, 4, strength=strength, sign=sign, seed=SEED)
        made.append((f"grids 4×4, {sign}", f"grid4x4.f{strength}", make))
    for k in range(3):
        make = partial(segmentation, 15, seed=SEED + k)
        made.append(("networks 9 + 6", f"rbm{k}", partial(rbm, 9, 6, strength=1.0, seed=SEED + k)))
        made.append(("pictures of 15 parts", f"picture{k}", make))
    return [Instance(f, name, RECIPE, make, partial(_enumerate, make)) for f, name, make in made]


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
    return re.sub(r"(?i)(\.uai)?(\.(gz|xz|bz2))*$", "", name)


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
