"""Fields of the benchmark on inpainting: trained here from characters, or read from files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.io import loadmat

from proxfield.bench.suites import Instance, file_digest, natural_key
from proxfield.core.common.records import Record
from proxfield.core.terms.base import Ints
from proxfield.core.terms.factor import Factor
from proxfield.core.terms.unary import Unary
from proxfield.errors import InputError
from proxfield.field import Field
from proxfield.io.files import display_name, read_bytes

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
    """A field with what is known about it.

    Attributes:
        field: The field.
        hidden: Variables in the hole.  # (m,)
        truth: Their true labels; None if unknown.  # (m,)
        best_known: The lowest known energy of a labelling; None if unknown.
        labels: The image, with the truth in the hole; None if unknown.  # (height, width)
    """

    field: Field
    hidden: Ints
    truth: Ints | None = None
    best_known: float | None = None
    labels: Ints | None = None


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
    folder: str,
    training: Training,
    count: int,
    methods: Sequence[str] = METHODS,
    tell: Callable[[str], None] | None = None,
) -> list[Instance[Inpainting]]:
    """Fields of test characters under models that are trained unless they are in a folder.

    Args:
        folder: Where models are kept; made if need be.
        training: How they are trained.
        count: Number of test characters.
        methods: Methods of training, one suite each.
        tell: Is told what is being done.

    Raises:
        InputError: If fonts are missing, or the folder can't be used.
    """
    from proxfield.learn.characters import make_characters

    tell = tell or (lambda _: None)
    tell(f"drawing {training.train + count} characters")
    sets = make_characters(training.train, count, hole=training.hole, seed=training.seed)
    out = []
    for method in methods:
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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"can't make the folder ({error.strerror or error}), expected a writable place",
            path=display_name(path.parent),
        ) from None
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
