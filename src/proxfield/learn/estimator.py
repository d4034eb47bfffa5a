"""What estimators of this package share: scikit-learn's conventions, files and model cards.

Files hold arrays in npz form with a JSON header inside; nothing is pickled.
"""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import zipfile
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from proxfield._version import __version__
from proxfield.core.common.arrays import Array, Arrays, Doubles, Ints
from proxfield.core.common.memory import check_memory
from proxfield.core.common.records import Record
from proxfield.core.solve.infer import infer
from proxfield.core.solve.rules.base import Rule
from proxfield.errors import InputError, ProxfieldError, shown
from proxfield.field import Field
from proxfield.io.files import Source, Target, atomic_write, display_name, naming_damage, read_bytes
from proxfield.io.store import as_plain
from proxfield.io.windows import read_member
from proxfield.learn.tied import Parameters
from proxfield.result import Result, Status

if TYPE_CHECKING:
    from typing_extensions import Self

FORMAT = "proxfield-learn"
VERSION = 1
"""Of the format; a file of another one is refused."""


def write_arrays(path: Target, holds: str, header: Record, arrays: Arrays) -> None:
    """Write arrays and a header to a file, whole or not at all.

    ``holds`` says what it holds, the name of a class for instance.
    """
    about: Record = {"format": FORMAT, "version": VERSION, "holds": holds, "library": __version__}
    for name, array in arrays.items():
        if np.asarray(array).dtype.hasobject:
            raise InputError(f"array {name!r} holds objects, expected numbers or text")
    try:
        text = json.dumps({**about, "arrays": list(arrays), **header}, default=as_plain)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"a parameter can't be saved ({error}), expected numbers, text or lists",
            path=display_name(path),
        ) from None
    buffer = io.BytesIO()
    content: Record = {"header": np.frombuffer(text.encode(), np.uint8), **arrays}
    np.savez_compressed(buffer, **content)
    atomic_write(path, buffer.getvalue())


def read_arrays(
    source: Source, holds: str, *, max_bytes: int | None = None
) -> tuple[Record, Arrays]:
    """The header and the arrays of a file that `write_arrays` wrote, checked."""
    data, path = read_bytes(source, max_bytes)
    if not data.startswith(b"PK"):
        raise InputError("isn't an npz archive, expected a file that save() wrote", path=path)
    try:
        with naming_damage(None), zipfile.ZipFile(io.BytesIO(data)) as archive:
            check_memory(sum(m.file_size for m in archive.infolist()), f"reading {path}")
            if "header.npy" not in archive.namelist():
                raise InputError("has no header, expected a file that save() wrote")
            header = json.loads(read_member(archive, "header").tobytes().decode())
            if not isinstance(header, dict) or header.get("format") != FORMAT:
                raise InputError("isn't a file of proxfield.learn, expected one that save() wrote")
            version, found = header.get("version"), header.get("holds")
            if version != VERSION:
                raise InputError(f"has version {shown(version)} of the format, expected {VERSION}")
            if found != holds:
                raise InputError(f"holds {shown(found)}, expected {shown(holds)}")
            names = [str(name) for name in header["arrays"]]
            if {f"{name}.npy" for name in ("header", *names)} != set(archive.namelist()):
                raise InputError("the file is damaged: its arrays aren't those of the header")
            return header, {name: read_member(archive, name) for name in names}
    except InputError as error:
        raise InputError(error.message, path=path) from None


Instance: TypeAlias = Any
"""What an estimator takes; see its `fit`."""


class NotFittedError(ProxfieldError, ValueError, AttributeError):
    """An estimator was used before `fit`."""


def whole(result: Result) -> Result:
    """The result; KeyboardInterrupt if Ctrl-C has ended it, so that no other one is begun."""
    if result.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    return result


class Estimator:
    """Base of estimators whose parameters are those of a `TiedField`.

    A subclass has a constructor that stores its arguments, `fit`, which sets ``parameters_``,
    ``n_labels_`` and ``about_``, and `field`.
    """

    parameters_: Parameters
    """Learnt parameters, by name."""
    n_labels_: int
    """Number of labels."""
    about_: Record
    """What the model card says of the fit: data, method, versions."""
    saved_attributes: ClassVar[tuple[str, ...]] = ("n_labels_", "about_")
    """Fitted attributes that aren't arrays, kept in files."""
    rule: str | Rule | type[Rule]
    seed: int

    # ---- scikit-learn's conventions ----

    def get_params(self, deep: bool = True) -> Record:
        """Arguments of the constructor, by name."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: object) -> Self:
        """Change arguments of the constructor; returns the estimator."""
        names = self.get_params()
        for name, value in params.items():
            if name not in names:
                raise InputError(
                    f"{type(self).__name__} has no parameter {shown(name)}, expected one of: "
                    f"{', '.join(names)}"
                )
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> object:
        from sklearn.utils import Tags, TargetTags

        kinds = ("estimator_type", "transformer_tags", "classifier_tags", "regressor_tags")
        return Tags(target_tags=TargetTags(required=True), **dict.fromkeys(kinds))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "parameters_")

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self)).parameters
        changed = [
            f"{name}={value!r}"
            for name, value in self.get_params().items()
            if repr(value) != repr(defaults[name].default)  # == of arrays is an array
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    def check_fitted(self) -> None:
        """Raise `NotFittedError` before `fit`."""
        if not hasattr(self, "parameters_"):
            raise NotFittedError(f"this {type(self).__name__} isn't fitted yet, call fit first")

    def tell_about(self, facts: Record, data: Iterable[Array | None]) -> Self:
        """Keep for the model card what the estimator was fitted to; returns the estimator."""
        versions = f"proxfield {__version__}, numpy {np.__version__}, scipy {scipy.__version__}"
        self.about_ = {**facts, "data digest": digest(data), "versions": versions}
        return self

    # ---- prediction ----

    def field(self, instance: Instance) -> Field:
        """An instance as an ordinary field, with the learned parameters."""
        raise NotImplementedError

    def marginals(self, X: Sequence[Instance]) -> list[Doubles]:
        """Marginals of the nodes of each instance, by the estimator's rule.

        Args:
            X: Instances.

        Returns:
            One array per instance.  # (nodes, labels)
        """
        self.check_fitted()
        out = []
        for instance in as_sequence(X):
            field = self.field(instance)
            result = whole(infer(field, self.rule, seed=self.seed, trace=False))
            out.append(np.asarray(result.q, dtype=np.float64).reshape(field.n_vars, -1))
        return out

    predict_proba = marginals
    """`marginals` under scikit-learn's name."""

    def predict(self, X: Sequence[Instance]) -> list[Ints]:
        """The most probable label of each node.

        Args:
            X: Instances.

        Returns:
            One array per instance.  # (nodes,)
        """
        return [q.argmax(axis=1) for q in self.marginals(X)]

    def score(self, X: Sequence[Instance], y: Sequence[ArrayLike]) -> float:
        """Share of nodes whose label is predicted, of those with a known label that isn't given."""
        X, y = as_sequence(X), as_sequence(y, "y")
        if len(X) != len(y):
            raise InputError(f"{len(X)} instances but {len(y)} labellings")
        right = total = 0
        for k, (instance, labels) in enumerate(zip(self.predict(X), y, strict=True)):
            truth = np.asarray(labels).ravel()
            if truth.shape != instance.shape:
                raise InputError(f"instance {k}: {len(truth)} labels for {len(instance)} nodes")
            counted = (truth >= 0) & self.is_target(X[k], len(truth))
            right += int((instance == truth)[counted].sum())
            total += int(counted.sum())
        if total == 0:
            raise InputError("no label is known, expected at least one that isn't -1")
        return right / total

    def is_target(self, instance: Instance, n: int) -> NDArray[np.bool_]:
        """Nodes whose labels aren't given as inputs.  # (n,)"""
        return np.ones(n, dtype=bool)

    # ---- files ----

    def save(self, path: Target) -> None:
        """Write the estimator to a file, whole or not at all: arrays and a JSON header, no pickle.

        Args:
            path: Where to write, usually with the ending .npz.

        Raises:
            InputError: If it can't be written; a file that was there stays as it is.
        """
        self.check_fitted()
        header = {
            "params": self.get_params(),
            "fitted": {name: getattr(self, name) for name in self.saved_attributes},
            "card": self.card(),
        }
        write_arrays(path, type(self).__name__, header, self.to_arrays())

    @classmethod
    def load(cls, source: Source, *, max_bytes: int | None = None) -> Self:
        """Read an estimator that `save` wrote.

        Args:
            source: A path or an open binary file.
            max_bytes: Maximum number of bytes of content, 4 GiB by default.

        Raises:
            InputError: If the file is damaged, of another version, or holds something else.
        """
        header, arrays = read_arrays(source, cls.__name__, max_bytes=max_bytes)
        try:
            out = cls(**header["params"])
            for name in cls.saved_attributes:
                setattr(out, name, header["fitted"][name])
            if not isinstance(out.about_, dict):
                raise TypeError("about_ isn't a dictionary")
            out.from_arrays(arrays)
        except InputError as error:
            raise InputError(error.message, path=display_name(source)) from None
        except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise InputError(
                f"the header is damaged ({reason})", path=display_name(source)
            ) from None
        return out

    def to_arrays(self) -> Arrays:
        """Arrays of a fitted estimator, for files."""
        return {f"parameters/{name}": value for name, value in self.parameters_.items()}

    def from_arrays(self, arrays: Arrays) -> None:
        """Take arrays from a file."""
        found: Parameters = {}
        for name, value in arrays.items():
            if name.startswith("parameters/"):
                if value.dtype.kind != "f" or not np.isfinite(value).all():
                    raise InputError(f"parameters {name!r} hold NaN, infinite values or no numbers")
                found[name.removeprefix("parameters/")] = value.astype(np.float64)
        self.parameters_ = found

    def card(self) -> str:
        """A model card in text: what was learned, from which data, how, and with which versions."""
        self.check_fitted()
        lines = [f"# {type(self).__name__}", ""]
        lines += [f"- {key}: {value}" for key, value in self.about_.items()]
        lines += ["", "## Settings", ""]
        lines += [f"- {key}: {value!r}" for key, value in self.get_params().items()]
        lines += ["", "## Parameters", "", "| name | shape | mean | smallest | largest |"]
        lines += ["|---|---|---|---|---|"]
        for name, v in self.parameters_.items():
            low, high = (v.min(), v.max()) if v.size else (0.0, 0.0)
            mean = v.mean() if v.size else 0.0
            lines.append(f"| {name} | {v.shape} | {mean:.4g} | {low:.4g} | {high:.4g} |")
        return "\n".join(lines) + "\n"


def as_sequence(X: Instance, what: str = "X") -> Sequence[Instance]:
    """Instances as a sequence of at least one."""
    if isinstance(X, (str, bytes)) or not isinstance(X, Iterable):
        raise InputError(f"{what} is a {type(X).__name__}, expected a list of instances")
    out = list(X)
    if not out:
        raise InputError(f"{what} is empty, expected at least one instance")
    return out


def digest(parts: Iterable[Array | None]) -> str:
    """A short digest of arrays, which says whether two sets of data are the same."""
    out = hashlib.sha256()
    for part in parts:
        if part is None:
            out.update(b"-")
            continue
        if sparse.issparse(part):
            for array in (part.indptr, part.indices, part.data):
                out.update(np.ascontiguousarray(array).tobytes())
            continue
        array = np.ascontiguousarray(part)
        out.update(f"{array.shape}{array.dtype}".encode())
        out.update(array.tobytes())
    return out.hexdigest()[:16]
