"""Writing a field as a UAI model file."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from proxfield.errors import InputError, shown
from proxfield.io.files import Target, atomic_write
from proxfield.io.tokens import Floats, Ints

if TYPE_CHECKING:
    from proxfield.field import Field

# exp(-700) and exp(700) are normal doubles with room to spare.
_REACH = 700.0
_CONSTANT_REACH = 600.0
_MAX_CONSTANTS = 100_000
_BLOCK = 1 << 16


def _rows(template: str, width: int, flat: Floats | Ints) -> list[str]:
    """Text of many rows of ``width`` numbers each, a block of rows for each call of %."""
    if width == 0:
        return []
    count = flat.size // width
    step = max(1, _BLOCK // width)
    pieces = []
    for first in range(0, count, step):
        part = flat[first * width : (first + step) * width].tolist()
        pieces.append((template * (len(part) // width)) % tuple(part))
    return pieces


def _sharing(raw_index: Ints | None, tables: int) -> Ints | None:
    """Which table each scope uses; None if they're simply used in order, once each."""
    if raw_index is None:
        return None
    index = np.asarray(raw_index, dtype=np.int64)
    return None if np.array_equal(index, np.arange(tables)) else index


def _values(energies: Floats) -> tuple[Floats, Floats]:
    """Entries exp(-energy) of flat tables (T, size), and the shift taken out of each."""
    if np.isnan(energies).any() or (energies == -np.inf).any():
        raise InputError(
            "a table of the field has the energy NaN or -inf, expected finite numbers or +inf"
        )
    finite = np.isfinite(energies)
    low = np.where(finite, energies, np.inf).min(axis=1, initial=np.inf)
    high = np.where(finite, energies, -np.inf).max(axis=1, initial=-np.inf)
    some = low <= high
    low, high = np.where(some, low, 0.0), np.where(some, high, 0.0)
    with np.errstate(over="ignore"):
        span = high - low
    widest = int(np.argmax(span)) if span.size else 0
    if span.size and not span[widest] <= 2 * _REACH:
        raise InputError(
            f"the finite energies of a table run from {low[widest]:.6g} to {high[widest]:.6g}, "
            f"a span of {span[widest]:.6g} nats, expected at most {2 * _REACH:g}, which "
            "exp(-energy) as a double can hold (use +inf for forbidden labellings)"
        )
    outside = (low < -_REACH) | (high > _REACH)
    shift = np.where(outside, low / 2 + high / 2, 0.0)
    return np.exp(-(energies - shift[:, None])), shift


def _constants(total: float) -> list[float]:
    """Entries of constant factors whose product is exp(-total)."""
    if total == np.inf:
        return [0.0]
    if total == 0.0:
        return []
    if not abs(total) <= _CONSTANT_REACH * _MAX_CONSTANTS:
        raise InputError(
            f"the constant part of the energy is {total:.6g} nats, expected at most "
            f"{_CONSTANT_REACH * _MAX_CONSTANTS:g} in size (subtract a constant from the tables)"
        )
    count = math.ceil(abs(total) / _CONSTANT_REACH)
    return [math.exp(-total / count)] * count


def format_model(field: Field, *, kind: str = "MARKOV") -> str:
    """The text of a UAI model file for a field, evidence left out.

    Entries are exp(-energy), in the shortest form that reads back as the same
    double. A table with energies beyond +-700 is shifted; the shifts and all constants are
    collected in factors with an empty scope, so the weights are those of the field.

    Args:
        field: The field.
        kind: The header word, ``"MARKOV"`` or ``"BAYES"``.

    Returns:
        The text.

    Raises:
        InputError: If a table spans more than a double can hold (1400 nats).

    Example:
        >>> from proxfield.field import Field
        >>> format_model(Field([2, 3]))
        'MARKOV\\n2\\n2 3\\n0\\n'
    """
    if kind not in ("MARKOV", "BAYES"):
        raise InputError(f"model kind {shown(kind)}, expected 'MARKOV' or 'BAYES'")
    cardinalities = np.asarray(field.cardinalities, dtype=np.int64)
    count = 0
    constant = 0.0
    scope_text: list[str] = []
    table_text: list[str] = []
    for term in field.terms:
        for raw_scopes, tables, raw_index in term.as_tables(field.layout):
            scopes = np.asarray(raw_scopes, dtype=np.int64)
            number, arity = scopes.shape
            if number == 0:
                continue
            energies = np.asarray(tables, dtype=np.float64).reshape(len(tables), -1)
            index = _sharing(raw_index, len(energies))
            if arity == 0:
                used = energies[:, 0] if index is None else energies[index, 0]
                constant += float(used.sum())
                continue
            values, shift = _values(energies)
            if shift.any():
                constant += float((shift if index is None else shift[index]).sum())
            count += number
            scope_text += _rows(f"{arity}{' %d' * arity}\n", arity, scopes.reshape(-1))
            size = values.shape[1]
            text = _rows(f"{size}{' %r' * size}\n", size, values.reshape(-1))
            if index is not None:
                # Each distinct table is formatted once, however many factors share it.
                lines = "".join(text).splitlines(keepends=True)
                text = [lines[i] for i in index.tolist()]
            table_text += text
    if math.isnan(constant) or constant == -np.inf:
        raise InputError(
            f"the constant part of the energy is {constant}, expected a finite number or +inf"
        )
    extra = _constants(constant)
    head = f"{kind}\n{cardinalities.size}\n{' '.join(map(str, cardinalities.tolist()))}\n"
    return "".join(
        [
            head,
            f"{count + len(extra)}\n",
            *scope_text,
            "0\n" * len(extra),
            *table_text,
            *(f"1 {value!r}\n" for value in extra),
        ]
    )


def write_model(field: Field, target: Target, *, kind: str = "MARKOV") -> None:
    """Write a field as a UAI model file, compressed if the name ends in .gz, .xz or .bz2.

    Evidence isn't part of a model file: write it with ``write_evidence``.

    Args:
        field: The field.
        target: Where to write.
        kind: The header word, ``"MARKOV"`` or ``"BAYES"``.

    Raises:
        InputError: If the field can't be represented or the target can't be written.

    Example:
        >>> from proxfield.field import Field
        >>> write_model(Field([2, 3]), "-")
        MARKOV
        2
        2 3
        0
    """
    atomic_write(target, format_model(field, kind=kind))
