"""Fields and results as files: arrays in npz form, described by a JSON header inside.

The member ``header`` of the archive holds UTF-8 text: what the file is, the version of the format,
the kinds of terms with the names of their arrays, names of variables, and whatever isn't an array.
Nothing is pickled. The checksums of the archive find damage; what can be read is checked again by
the constructors of fields and terms.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from proxfield._version import __version__
from proxfield.core.common.arrays import Arrays, Pixels
from proxfield.core.common.memory import check_memory
from proxfield.core.common.records import Record
from proxfield.core.terms.base import as_indices
from proxfield.core.terms.registry import make_term, term_arrays
from proxfield.errors import InputError, ProxfieldError, shown
from proxfield.io.files import (
    Source,
    Target,
    atomic_write,
    display_name,
    naming,
    naming_damage,
    read_bytes,
)
from proxfield.io.windows import read_member
from proxfield.mixture import Clamp, Mode, make_modes

if TYPE_CHECKING:
    from proxfield.field import Field
    from proxfield.result import Result

F = TypeVar("F", bound="Field")
R = TypeVar("R", bound="Result")

FORMAT = "proxfield"
VERSION = 2
"""Of the format; a file of a higher one is refused. Version 2 may lack the terms of a result's
field; all other files are of version 1."""
CLASSES = ("Field", "DenseCRF", "Result", "DenseResult")
"""What a file may hold: public classes of the package."""
NUMBERS = ("free_energy", "seconds", "setup_seconds")
"""Numbers of a result, kept as arrays: JSON has no infinity."""
TRACE = ("iteration", "seconds", "free_energy", "change")
DAMAGE = (
    *(KeyError, IndexError, TypeError, AttributeError),
    *(ValueError, OverflowError, RecursionError),
)
"""What a header that isn't as it should be leads to."""


# ---- writing ----


def save_field(field: Field, path: Target) -> None:
    """Write a field; see `Field.save`."""
    arrays: Arrays = {}
    header = _describe_field(field, arrays)
    _write(path, type(field).__name__, {"field": header}, arrays)


def save_result(result: Result, path: Target, with_field: bool = True) -> None:
    """Write a result and its field; see `Result.save`."""
    arrays: Arrays = {}
    whole = with_field and result.field.has_terms
    field = _describe_field(result.field if whole else result.field.outline(), arrays)
    arrays["q"] = result.q
    if result.feasible is not None:
        arrays["feasible"] = result.feasible
    for key in NUMBERS:
        arrays[key] = np.float64(getattr(result, key))
    for key in TRACE:
        arrays[f"trace/{key}"] = getattr(result.trace, key)
    members = result.trace.member
    if members is not None:
        known = list(dict.fromkeys(members))
        place = {member: k for k, member in enumerate(known)}
        arrays["trace/member"] = np.array([place[m] for m in members], dtype=np.int64)
    if result.modes:  # their weights follow from F
        arrays["modes/q"] = np.stack([mode.q for mode in result.modes])
        arrays["modes/free_energy"] = np.array([mode.free_energy for mode in result.modes])
        clamps = [
            (k, clamp.variable, clamp.label, int(clamp.held))
            for k, mode in enumerate(result.modes)
            for clamp in mode.clamps
        ]
        arrays["modes/clamps"] = np.array(clamps, dtype=np.int64).reshape(-1, 4)
    about = {
        "status": result.status.name,
        "iterations": int(result.iterations),
        "rule": result.rule,
        "params": {k: v for k, v in result.params.items() if not callable(v)},
        "members": None if members is None else known,
        **({"asked": result.asked} if result.asked else {}),
        **({} if whole else {"bounds_log_z": bool(result.bounds_log_z)}),
    }
    _write(path, type(result).__name__, {"field": field, "result": about}, arrays)


def _read_modes(field: Field, archive: _Archive) -> tuple[Mode, ...]:
    """The parts of a mixture, checked."""
    q, f = archive["modes/q"], archive["modes/free_energy"]
    clamps = as_indices(archive["modes/clamps"], "clamps of modes", 2)
    if q.shape != (len(f), field.layout.size) or f.ndim != 1 or q.dtype.kind != "f":
        raise InputError(f"modes of shape {q.shape}, expected ({len(f)}, {field.layout.size})")
    if not np.isfinite(q).all() or np.isnan(f).any() or len(f) == 0:
        raise InputError("modes hold NaN or infinite values")
    if clamps.shape[1] != 4 or not np.isin(clamps[:, 3], (0, 1)).all():
        raise InputError("clamps of modes aren't (mode, variable, label, held)")
    known = (clamps >= 0).all() and (clamps[:, 0] < len(f)).all()
    if not (known and (clamps[:, 1] < field.n_vars).all()):
        raise InputError("clamps of modes name a mode or a variable that isn't there")
    if (clamps[:, 2] >= field.cardinalities[clamps[:, 1]]).any():
        raise InputError("clamps of modes name a label that isn't there")
    cells: list[tuple[Clamp, ...]] = [()] * len(f)
    for k, v, label, held in clamps.tolist():
        cells[k] = (*cells[k], Clamp(v, label, bool(held)))
    return make_modes(field.layout, list(zip(f.tolist(), q, cells, strict=True)))


def _describe_field(field: Field, arrays: Arrays) -> Record:
    """What the header says about a field; its arrays are added to those given."""
    kind = type(field).__name__
    if kind not in CLASSES or type(field) is not getattr(import_module("proxfield"), kind):
        raise InputError(
            f"a {kind} can't be saved, expected a Field or a DenseCRF; make a plain "
            "Field(cardinalities, terms=field.terms) of it"
        )
    common = field.layout.common
    if common is None:
        arrays["cardinalities"] = field.cardinalities
    seen = np.flatnonzero(field.evidence >= 0)
    if len(seen):
        arrays["evidence/variables"], arrays["evidence/labels"] = seen, field.evidence[seen]
    terms = []
    for number, term in enumerate(field.terms if field.has_terms else ()):
        name, parts = term_arrays(term)
        terms.append({"kind": name, "arrays": list(parts)})
        arrays.update({f"term/{number}/{key}": part for key, part in parts.items()})
    names = field.layout.names
    return {
        "class": kind,
        "attributes": {
            key: getattr(field, key) for key in (*field.saved_attributes, *field.saved_notes)
        },
        "n_vars": field.n_vars,
        "n_labels": common,
        "names": None if names is None else names.variables,
        "label_names": field.label_names,
        "terms": terms if field.has_terms else None,
    }


def as_plain(value: object) -> object:
    """Numpy's numbers and arrays as Python's, for JSON."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no number, text or list")


def _write(path: Target, kind: str, header: Record, arrays: Arrays) -> None:
    version = 1 if header["field"]["terms"] is not None else VERSION
    about: Record = {"format": FORMAT, "version": version, "holds": kind}
    about.update(library=__version__, arrays=list(arrays))
    try:
        text = json.dumps({**about, **header}, ensure_ascii=False, default=as_plain)
    except (TypeError, ValueError) as error:
        raise InputError(f"a parameter can't be saved ({error})", path=display_name(path)) from None
    buffer = io.BytesIO()
    content = {"header": np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8), **arrays}
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in content.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
    atomic_write(path, buffer.getvalue())


# ---- reading ----


def load_field(wanted: type[F], source: Source, max_bytes: int | None = None) -> F:
    """Read a field; see `Field.load`."""
    with _opened(wanted, source, max_bytes) as (cls, header, archive):
        if header["field"]["terms"] is None:
            raise InputError("the file is damaged: the field has no terms")
        field: F = _read_field(cls, header["field"], archive)
        return field


def load_result(wanted: type[R], source: Source, max_bytes: int | None = None) -> R:
    """Read a result and its field; see `Result.load`."""
    from proxfield.field import Field
    from proxfield.result import Status, Trace

    with _opened(wanted, source, max_bytes) as (cls, header, archive):
        field: Field = _read_field(
            _class(header["field"]["class"], Field), header["field"], archive
        )
        about, q = header["result"], archive["q"]
        if q.shape != (field.layout.size,) or q.dtype.kind != "f":
            raise InputError(f"marginals of shape {q.shape}, expected ({field.layout.size},)")
        if not np.isfinite(q).all():
            raise InputError("marginals hold NaN or infinite values")
        columns = [archive[f"trace/{key}"] for key in TRACE]
        if any(column.shape != columns[0].shape or column.ndim != 1 for column in columns):
            raise InputError("columns of the trace differ in length")
        member = None
        if about["members"] is not None:
            member = [str(about["members"][k]) for k in archive["trace/member"]]
        feasible = None
        if "feasible" in archive:
            feasible = as_indices(archive["feasible"], "a feasible labelling", 1)
        result: R = cls(
            field=field,
            q=q,
            status=Status[about["status"]],
            iterations=int(about["iterations"]),
            rule=str(about["rule"]),
            params=dict(about["params"]),
            trace=Trace(**dict(zip(TRACE, columns, strict=True)), member=member),
            feasible=feasible,
            modes=_read_modes(field, archive) if "modes/q" in archive else (),
            asked=str(about.get("asked", "")),
            **{key: float(archive[key]) for key in NUMBERS},
        )
        if not field.has_terms:
            result.bounds_log_z = bool(about["bounds_log_z"])
        return result


def _read_field(cls: type[F], header: Record, archive: _Archive) -> F:
    from proxfield.field import Field

    out = cls.__new__(cls)  # not every class is made from variables
    given: Record = {"names": header["names"], "label_names": header["label_names"]}
    n, common = header["n_vars"], header["n_labels"]
    if common is None:
        Field.__init__(out, archive["cardinalities"], **given)
    else:
        Field.__init__(out, n, common, **given)
    if out.n_vars != n:
        raise InputError(f"{out.n_vars} variables, but the header says {shown(n)}")
    for number, term in enumerate(header["terms"] or ()):
        parts = {str(key): archive[f"term/{number}/{key}"] for key in term["arrays"]}
        out.add(make_term(str(term["kind"]), parts))
    notes = [key for key in cls.saved_notes if key in header["attributes"]]  # older files lack some
    for key in (*cls.saved_attributes, *notes):
        setattr(out, key, _as_tuples(header["attributes"][key]))
    if header["terms"] is None:
        out = out.outline()
    if "evidence/variables" not in archive:
        return out
    variables = as_indices(archive["evidence/variables"], "observed variables", 1)
    labels = as_indices(archive["evidence/labels"], "observed labels", 1)
    return out.condition(dict(zip(variables.tolist(), labels.tolist(), strict=True)))


def _as_tuples(value: object) -> object:
    """Lists, as JSON has them, as tuples."""
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def _class(name: str, base: type[Field | Result]) -> Any:
    if not isinstance(name, str) or name not in CLASSES:
        raise InputError(f"it holds a {shown(name)}, which isn't known here")
    cls = getattr(import_module("proxfield"), name)
    if not issubclass(cls, base):
        raise InputError(f"it holds a {name}, expected a {base.__name__} (try {name}.load)")
    return cls


class _Archive(zipfile.ZipFile):
    """Arrays by name."""

    def __contains__(self, name: str) -> bool:
        return f"{name}.npy" in self.NameToInfo

    def __getitem__(self, name: str) -> Pixels:
        return read_member(self, name)


@contextmanager
def _opened(
    wanted: type[Field | Result], source: Source, max_bytes: int | None
) -> Iterator[tuple[Any, Record, _Archive]]:
    """The class that a file holds, its header and its arrays; problems become one line."""
    data, path = read_bytes(source, max_bytes)
    refused = f"isn't a file that {wanted.__name__}.save wrote"
    if not data.startswith(b"PK"):
        raise InputError(f"{refused}, expected an npz archive", path=path)
    with naming(path):
        try:
            with naming_damage(None):
                archive = _Archive(io.BytesIO(data))
            check_memory(sum(part.file_size for part in archive.infolist()), f"reading {path}")
            if "header" not in archive:
                raise InputError(f"{refused}: it has no header")
            header = json.loads(archive["header"].tobytes().decode("utf-8", "surrogatepass"))
            if not isinstance(header, dict) or header.get("format") != FORMAT:
                raise InputError(refused)
            version = header["version"]
            if not isinstance(version, int) or version > VERSION:
                raise InputError(
                    f"the file has version {shown(version)} of the format, expected at most "
                    f"{VERSION}; read it with a newer proxfield"
                )
            names = {name.removesuffix(".npy") for name in archive.namelist()}
            if {"header", *header["arrays"]} != names:  # names aren't under a checksum
                raise InputError(
                    "the file is damaged: its arrays aren't those that the header lists"
                )
            yield _class(header["holds"], wanted), header, archive
        except ProxfieldError:
            raise
        except DAMAGE as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise InputError(f"the file is damaged or cut short ({reason})") from None
