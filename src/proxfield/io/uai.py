"""Models in the UAI format: MARKOV and BAYES files to arrays, and arrays to a field.

A file holds a header word, the number of variables, their cardinalities, the number of
factors, the scope of each factor (``k v1 .. vk``) and then the table of each factor
(``size e1 .. esize``, the last variable of the scope running fastest). Line breaks
mean nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from proxfield.core.common.arrays import Doubles, Ints
from proxfield.errors import InputError, shown
from proxfield.io.files import Source, Target, atomic_write
from proxfield.io.tokens import Text, Tokens, read_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proxfield.field import Field

MAX_LABELS = 2**31 - 1
# numpy 1 arrays have at most 32 axes, one of which counts the tables.
MAX_ARITY = 30


@dataclass(frozen=True, eq=False)
class UaiModel:
    """The content of a model file, factors in file order.

    Factor i has scope ``scope_vars[scope_ptr[i]:scope_ptr[i + 1]]`` and the
    non-negative table ``values[table_ptr[i]:table_ptr[i + 1]]``, last variable fastest.

    Args:
        kind: ``"MARKOV"`` or ``"BAYES"``.
        cardinalities: Number of labels of each variable, int64 (n,).
        scope_ptr: Where each scope begins, int64 (m + 1,).
        scope_vars: The scopes one after the other, int64.
        table_ptr: Where each table begins, int64 (m + 1,).
        values: The tables one after the other, float64.

    Example:
        >>> parse_model(b"MARKOV 1 2 1 1 0 2 0.25 0.75").values.tolist()
        [0.25, 0.75]
    """

    kind: str
    cardinalities: Ints
    scope_ptr: Ints
    scope_vars: Ints
    table_ptr: Ints
    values: Doubles

    @property
    def num_factors(self) -> int:
        """Number of factors, m."""
        return self.scope_ptr.size - 1


def parse_model(data: bytes | Text, name: str = "<model>") -> UaiModel:
    """Read the text of a MARKOV or BAYES model.

    Everything is checked: counts, ranges, repeated variables, table sizes and signs. Tables
    needn't be normalized. Numbers too small for a double are read as 0.

    Args:
        data: The content of the file, already decompressed, or from `read_text`.
        name: The name of the file for messages.

    Returns:
        The model.

    Raises:
        InputError: If anything is wrong; the message names the line.

    Example:
        >>> parse_model(b"MARKOV 2 2 3 1 2 0 1 6 1 2 3 4 5 6").scope_vars.tolist()
        [0, 1]
    """
    tokens = Tokens(data, name, headers=("MARKOV", "BAYES"), required=True)
    count = tokens.integer(0, "the number of variables", 0)
    if count > tokens.count - 1:
        raise tokens.error(
            f"{tokens.word(0)[:40]} variables are declared, but the file has only "
            f"{tokens.count - 1} numbers left, expected a cardinality for each variable",
            0,
        )
    found = tokens.numbers[1 : 1 + count]
    tokens.check_integers(found, np.arange(1, 1 + found.size), "a cardinality", 1, MAX_LABELS)
    cardinalities = found.astype(np.int64)
    at = count + 1
    factors = tokens.integer(at, "the number of factors", 0)
    left = tokens.count - at - 1
    if 3 * factors > left:  # even an empty scope takes "0" and then "1 value"
        raise tokens.error(
            f"{tokens.word(at)[:40]} factors are declared, but the file has only {left} numbers "
            "left, expected at least 3 for each factor",
            at,
        )
    heads, end = tokens.records(at + 1, factors, "the size of a scope", 0, count)
    scope_ptr = np.append(heads, end) - at - 1 - np.arange(heads.size + 1)
    places = np.delete(np.arange(at + 1, end), heads - at - 1)
    found = tokens.numbers[places]
    tokens.check_integers(found, places, "a variable in a scope", 0, count - 1)
    scope_vars = found.astype(np.int64)
    sizes = np.ones(factors)
    for arity, rows in _by_arity(scope_ptr):
        scopes = scope_vars[scope_ptr[rows][:, None] + np.arange(arity)]
        _refuse_repeats(tokens, scopes, heads[rows])
        with np.errstate(over="ignore"):  # infinite means more than any file holds
            sizes[rows] = cardinalities[scopes].astype(np.float64).prod(axis=1)
    table_ptr, values = _tables(tokens, end, sizes, cardinalities, scope_ptr, scope_vars)
    return UaiModel(tokens.header, cardinalities, scope_ptr, scope_vars, table_ptr, values)


def _by_arity(scope_ptr: Ints) -> Iterator[tuple[int, Ints]]:
    """The factors of each arity, in file order."""
    arities = np.diff(scope_ptr)
    for arity in np.flatnonzero(np.bincount(arities)).tolist():
        yield arity, np.flatnonzero(arities == arity)


def _refuse_repeats(tokens: Tokens, scopes: Ints, heads: Ints) -> None:
    """Refuse a scope that has the same variable twice."""
    if scopes.shape[1] < 2:
        return
    ordered = np.sort(scopes, axis=1)
    twice = ordered[:, 1:] == ordered[:, :-1]
    if twice.any():
        row, column = (int(i[0]) for i in np.nonzero(twice))
        variable = int(ordered[row, column])
        second = int(np.flatnonzero(scopes[row] == variable)[1])
        raise tokens.error(
            f"variable {variable} occurs twice in the scope of a factor, "
            "expected distinct variables",
            int(heads[row]) + 1 + second,
        )


def _tables(
    tokens: Tokens,
    begin: int,
    sizes: Doubles,
    cardinalities: Ints,
    scope_ptr: Ints,
    scope_vars: Ints,
) -> tuple[Ints, Doubles]:
    """Read the tables, whose sizes follow from the scopes and are only checked here."""
    with np.errstate(over="ignore"):
        ends = begin + np.cumsum(sizes + 1)
    # Sums stay exact as long as they're below the length of the file, i.e. where it matters.
    fits = int(np.searchsorted(ends, tokens.count, side="right"))
    heads = np.append(float(begin), ends[:fits])[: sizes.size].astype(np.int64)
    # heads[fits], where it exists, belongs to the first table that runs past the end.
    inside = heads[heads < tokens.count]
    wrong = tokens.numbers[inside] != sizes[: inside.size]
    if wrong.any() or fits < sizes.size:
        bad = int(np.argmax(wrong)) if wrong.any() else fits
        scope = scope_vars[scope_ptr[bad] : scope_ptr[bad + 1]]
        raise _table_error(tokens, bad, int(heads[bad]), scope, cardinalities)
    end = int(ends[-1]) if sizes.size else begin
    if end < tokens.count:
        raise tokens.error(
            f"{tokens.count - end} more numbers after the last table, expected the end of the file",
            end,
        )
    values = np.delete(tokens.numbers[begin:end], heads - begin)
    # NaN fails both comparisons, since min and max hand it on.
    if values.size and not (values.min() >= 0 and values.max() < np.inf):
        bad = int(np.argmin((values >= 0) & (values < np.inf)))
        place = int(np.delete(np.arange(begin, end), heads - begin)[bad])
        raise tokens.error(
            f"table entry {tokens.word(place)[:40]!r}, expected a finite number >= 0", place
        )
    values += 0.0  # turns -0 into 0
    table_ptr = np.zeros(sizes.size + 1, dtype=np.int64)
    np.cumsum(sizes.astype(np.int64), out=table_ptr[1:])
    return table_ptr, values


def _table_error(
    tokens: Tokens, factor: int, place: int, scope: Ints, cardinalities: Ints
) -> InputError:
    """What to say about a table of the wrong size, or cut off by the end of the file."""
    size = math.prod(cardinalities[scope].tolist())  # Python integers can't overflow
    # Integers of thousands of digits can't be printed, nor would anybody read them.
    wanted = str(size) if size < 10**30 else f"about 10^{math.floor(math.log10(size))}"
    if place >= tokens.count:
        return tokens.error(
            f"the file ends before the table of factor {factor}, expected {wanted} entries", place
        )
    declared = tokens.integer(place, f"the table size of factor {factor}", 1)
    start = f"the table of factor {factor} declares {tokens.word(place)[:40]} entries"
    left = tokens.count - place - 1
    # Large sizes are compared as the doubles they were read into.
    if declared != size and not (size < 2**1000 and float(declared) == float(size)):
        shown = " ".join(map(str, scope[:8].tolist())) + (" .." if scope.size > 8 else "")
        return tokens.error(
            f"{start} and the file has {left} numbers left, expected {wanted} entries, the "
            f"product of the cardinalities of its scope ({shown})",
            place,
        )
    return tokens.error(
        f"{start}, but the file has only {left} numbers left, expected a longer file", place
    )


def _by_shape(shapes: Ints) -> Iterator[Ints]:
    """Rows of equal shape, as index arrays."""
    shapes = shapes[:, (shapes != shapes[0]).any(axis=0)]  # most often none
    order = np.lexsort(shapes.T[::-1]) if shapes.size else np.arange(len(shapes))
    other = (np.diff(shapes[order], axis=0) != 0).any(axis=1)
    yield from np.split(order, np.flatnonzero(other) + 1)


def _drop_single_labels(model: UaiModel) -> UaiModel:
    """Take variables with one label out of the longest scopes, where they change nothing."""
    arities = np.diff(model.scope_ptr)
    if not arities.size or arities.max() <= MAX_ARITY:
        return model
    owner = np.repeat(np.arange(arities.size), arities)
    keep = (arities[owner] <= MAX_ARITY) | (model.cardinalities[model.scope_vars] > 1)
    arities = np.bincount(owner[keep], minlength=arities.size)
    if arities.max() > MAX_ARITY:
        raise InputError(
            f"factor {int(np.argmax(arities))} has {arities.max()} variables, "
            f"expected at most {MAX_ARITY} with more than one label"
        )
    scope_ptr = np.append(0, np.cumsum(arities))
    return replace(model, scope_ptr=scope_ptr, scope_vars=model.scope_vars[keep])


def model_to_field(model: UaiModel) -> Field:
    """Turn a model into a field of energies, one term for each shape of factor.

    The energy of an entry v is -log v, so the weight of a labelling is exp(-energy);
    v = 0 gives +inf, a forbidden labelling. All empty scopes become one constant.

    Args:
        model: The content of a model file.

    Returns:
        The field.

    Example:
        >>> field = model_to_field(parse_model(b"MARKOV 1 2 1 1 0 2 0.25 0.75"))
        >>> field.cardinalities.tolist()
        [2]
    """
    from proxfield.core.terms.factor import Factor
    from proxfield.core.terms.unary import Constant, Unary
    from proxfield.field import Field

    model = _drop_single_labels(model)
    with np.errstate(divide="ignore"):
        energies = -np.log(model.values) + 0.0  # + 0 turns -0 into 0
    field = Field(model.cardinalities)
    for arity, rows in _by_arity(model.scope_ptr):
        if arity == 0:
            field.add(Constant(float(energies[model.table_ptr[rows]].sum())))
            continue
        scopes = model.scope_vars[model.scope_ptr[rows][:, None] + np.arange(arity)]
        shapes = model.cardinalities[scopes]
        for group in _by_shape(shapes):
            shape = tuple(shapes[group[0]].tolist())
            size = int(np.prod(shapes[group[0]]))
            starts = model.table_ptr[rows[group]]
            if (np.diff(starts) == size).all():  # neighbors, taken as one slice
                tables = energies[starts[0] : starts[0] + size * starts.size].reshape(-1, size)
            else:
                tables = energies[starts[:, None] + np.arange(size)]
            if arity == 1:
                field.add(Unary(tables, scopes[group, 0]))
            else:
                field.add(Factor(scopes[group], tables.reshape(-1, *shape)))
    return field


def read_model(source: Source, *, max_bytes: int | None = None) -> Field:
    """Read a model file, plain or compressed, as a field.

    Args:
        source: A path, ``"-"`` for standard input, or an open binary file.
        max_bytes: Maximum number of bytes of content. By default 4 GiB, and for a compressed file
            at most 64 MiB or 250 times its own size, whichever is more.

    Returns:
        The field; see :func:`model_to_field`.

    Raises:
        InputError: If the file can't be read, is larger than allowed or isn't a valid model.

    Example:
        >>> import io
        >>> read_model(io.BytesIO(b"MARKOV 1 2 1 1 0 2 1 3")).cardinalities.tolist()
        [2]
    """
    return model_to_field(parse_model(*read_text(source, max_bytes)))


# ---- writing ----


# exp(-700) and exp(700) are normal doubles with room to spare.
_REACH = 700.0
_CONSTANT_REACH = 600.0
_MAX_CONSTANTS = 100_000
_BLOCK = 1 << 16


def _rows(template: str, width: int, flat: Doubles | Ints) -> list[str]:
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


def _values(energies: Doubles) -> tuple[Doubles, Doubles]:
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
            index = None if raw_index is None else np.asarray(raw_index, dtype=np.int64)
            if index is not None and np.array_equal(index, np.arange(len(energies))):
                index = None  # in order, each once
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
