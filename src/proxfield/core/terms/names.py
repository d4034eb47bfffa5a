"""Names of variables and of their labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from operator import index
from typing import Any

import numpy as np

from proxfield.errors import InputError, cut_middle, shown

LONGEST_LIST = 60
"""Maximum number of characters of a list of names in a message or a repr."""


@dataclass(frozen=True)
class Names:
    """Names of a field's variables, of their labels, or of both.

    Numbers stay valid everywhere: a name is another way to say a number.
    """

    variables: tuple[str, ...] | None = None
    """One name per variable, all different; None without."""
    shared: tuple[str, ...] | None = None
    """Names of the labels, the same for all variables; None without."""
    each: tuple[tuple[str, ...], ...] | None = None
    """Names of the labels, variable by variable; None without, and where they are shared."""

    @classmethod
    def read(cls, names: Any, label_names: Any, cardinalities: Sequence[int] | Any) -> Names | None:
        """Names as a user gives them, checked against the numbers of labels; None if none is given.

        Args:
            names: One per variable, or None.
            label_names: A list of names for all variables, a list of such lists with one per
                variable, or None.
            cardinalities: Labels per variable.
        """
        if names is None and label_names is None:
            return None
        n = len(cardinalities)
        variables = None if names is None else _texts(names, "names")
        if variables is not None and len(variables) != n:
            raise InputError(f"{len(variables)} names for {n} variables, expected one per variable")
        _distinct(variables or (), "names hold {name} twice, expected different names")
        if label_names is None:
            return cls(variables)
        given = _list(label_names, "label_names")
        if any(isinstance(name, str) for name in given):
            shared = _texts(given, "label_names")
            _distinct(shared, "label_names hold {name} twice, expected different names")
            wrong = np.flatnonzero(np.asarray(cardinalities) != len(shared))
            if len(wrong):
                v = int(wrong[0])
                raise InputError(
                    f"{len(shared)} label_names, but variable {v} has {cardinalities[v]} labels; "
                    "give one list of names per variable where these differ"
                )
            return cls(variables, shared)
        each = tuple(_texts(row, f"label_names of variable {v}") for v, row in enumerate(given))
        if len(each) != n:
            raise InputError(f"label_names has {len(each)} lists for {n} variables")
        for v, (row, c) in enumerate(zip(each, cardinalities, strict=True)):
            if len(row) != c:
                raise InputError(f"{len(row)} label_names for variable {v}, which has {c} labels")
            _distinct(row, f"label_names of variable {v} hold {{name}} twice")
        if each and all(row == each[0] for row in each):
            return cls(variables, each[0])
        return cls(variables, None, each)

    @cached_property
    def number(self) -> dict[str, int]:
        """The number of each name."""
        return {name: v for v, name in enumerate(self.variables or ())}

    def labels(self, variable: int) -> tuple[str, ...] | None:
        """Names of a variable's labels; None without."""
        return self.shared if self.each is None else self.each[variable]

    def show(self, variable: int) -> str:
        """A variable as messages call it."""
        if self.variables is None or not 0 <= variable < len(self.variables):
            return f"variable {variable}"
        return f"variable {shown(self.variables[variable])}"


def find_variable(names: Names | None, n_vars: int, key: object) -> int:
    """The number of a variable given by number or name, checked."""
    if isinstance(key, str):
        if names is None or names.variables is None:
            raise InputError(f"variable {shown(key)}, but the variables have no names")
        if key not in names.number:
            raise InputError(
                f"no variable is named {shown(key)}, expected one of: {listed(names.variables)}"
            )
        return names.number[key]
    return _number(key, n_vars, f"variable {shown(key)}", "there is no variable")


def find_label(names: Names | None, variable: int, n_labels: int, key: object) -> int:
    """The number of a variable's label given by number or name, checked."""
    here = (names or Names()).show(variable)
    if isinstance(key, str):
        known = None if names is None else names.labels(variable)
        if known is None:
            raise InputError(f"label {shown(key)} of {here}, but its labels have no names")
        if key not in known:
            raise InputError(f"{here} has no label {shown(key)}, expected one of: {listed(known)}")
        return known.index(key)

    return _number(key, n_labels, f"label {shown(key)} of {here}", f"{here} has label")


def _number(key: object, count: int, what: str, beyond: str) -> int:
    """A number from 0 to ``count`` − 1; ``what`` and ``beyond`` name others."""
    try:
        number = index(key)  # type: ignore[arg-type]  # anything else raises
    except TypeError:
        raise InputError(f"{what}, expected a whole number or a name") from None
    if not 0 <= number < count:
        raise InputError(f"{beyond} {number}, expected 0 to {count - 1}")
    return number


def listed(names: Iterable[str], longest: int = LONGEST_LIST) -> str:
    """Some names, separated by commas, on one line of limited length."""
    out: list[str] = []
    size = 0
    for name in names:
        plain = name if name.isprintable() else repr(name)
        text = cut_middle(plain, longest)
        size += len(text) + 2
        if out and size > longest + 2:
            return ", ".join([*out, "…"])
        out.append(text)
    return ", ".join(out)


def _list(values: Any, what: str) -> list[Any]:
    with suppress(TypeError):
        if not isinstance(values, str | bytes):
            return list(values)
    raise InputError(f"{what}={shown(values)}, expected a list of names")


def _texts(values: Any, what: str) -> tuple[str, ...]:
    given = _list(values, what)
    for name in given:
        if not isinstance(name, str):
            raise InputError(f"{what} hold {shown(name)}, expected text")
    return tuple(map(str, given))


def _distinct(names: Sequence[str], message: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(message.format(name=shown(name)))
        seen.add(name)
