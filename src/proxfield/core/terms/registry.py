"""The terms by name, which kinds can be saved, and terms as arrays by name.

A new kind is one file beside this one and one line here.

A term is saved as what its `to_arrays` gives, under a name that stands for its class, and made
again by that class's `from_arrays`. Files hold names, never code: only registered classes are made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, overload

import numpy as np

from proxfield.core.common.arrays import Arrays
from proxfield.core.common.registry import Registry, import_applications, place
from proxfield.core.terms.base import Term
from proxfield.errors import InputError, ProxfieldError, shown

TERMS: Registry[type[Term]] = Registry(
    {
        "constant": "unary:Constant",
        "unary": "unary:Unary",
        "pairwise": "pairwise:Pairwise",
        "potts": "pairwise:Potts",
        "ising": "pairwise:Ising",
        "factor": "factor:Factor",
        "gaussian": "gaussian:Gaussian",
        "consistency": "consistency:Consistency",
        "cooccurrence": "cooccurrence:Cooccurrence",
        "grid-pairwise": "grid:GridPairwise",
    },
    package="proxfield.core.terms",
)

T = TypeVar("T", bound=type[Term])

KINDS: Registry[type[Term]] = Registry(
    {
        **TERMS.places,
        # forms of a term that are classes of their own
        "consistency-tables": "proxfield.core.terms.consistency:TabledConsistency",
        "cooccurrence-variables": "proxfield.core.terms.cooccurrence:LatentCooccurrence",
        "cooccurrence-tables": "proxfield.core.terms.cooccurrence:TabledCooccurrence",
    }
)
"""Classes of terms that can be saved, by the names that files call them."""
PLAIN = "fiubU"
"""Kinds of arrays that files hold: numbers, truth values and text."""


@overload
def saveable(term: T) -> T: ...
@overload
def saveable(*, kind: str) -> Callable[[T], T]: ...


def saveable(term: T | None = None, *, kind: str | None = None) -> T | Callable[[T], T]:
    """Register a class of terms, so that fields with such terms can be saved, loaded and compared.

    The class offers `Term.to_arrays` and `Term.from_arrays`; a dataclass whose fields are arrays,
    numbers or text has both. Subclasses aren't registered with it.

    Args:
        term: The class.
        kind: What files call it; by default its ``name``.

    Returns:
        The class: use it as a decorator.

    Raises:
        InputError: If another class has that name.

    Example:
        >>> import proxfield as pf
        >>> @pf.saveable(kind="doc.bias")
        ... class Bias(pf.Unary):
        ...     name = "bias"
        >>> pf.saveable is saveable
        True
    """
    import_applications()  # their names are taken
    if term is None:
        return lambda cls: saveable_as(cls, kind)
    return saveable_as(term, kind)


def saveable_as(term: T, kind: str | None) -> T:
    """Register a class that an application brings, or a user; `saveable` with both arguments."""
    if not (isinstance(term, type) and issubclass(term, Term)):
        raise InputError(f"saveable takes a class of terms, not {shown(term)}")
    name = getattr(term, "name", term.__name__) if kind is None else kind
    there = place(KINDS.data[name]) if name in KINDS.data else KINDS.places.get(name)
    if there not in (None, place(term)):  # a notebook's cell may run again
        known = there.replace(":", ".")
        raise InputError(
            f"{known} is already saved as {shown(name)}; pass another kind= for {term.__name__}"
        )
    KINDS[name] = term
    return term


def library_form(kind: str) -> Callable[[T], T]:
    """Register an application's class that a kind's constructor chooses: files call it ``kind``."""
    return lambda term: saveable_as(term, kind)


def term_arrays(term: Term) -> tuple[str, Arrays]:
    """A term's registered kind, and what it consists of; an error names its class."""
    kind = KINDS.name_of(type(term))
    name = type(term).__name__
    if kind is None:
        raise InputError(
            f"a term of the class {name} can't be saved; give it to_arrays and from_arrays, and "
            "register it with @proxfield.saveable"
        )
    try:
        parts = {key: np.asarray(part) for key, part in term.to_arrays().items()}
    except ProxfieldError as error:
        raise InputError(f"a term of the class {name} can't be saved: {error}") from None
    for key, part in parts.items():
        if not key.isidentifier():
            raise InputError(f"{name}.to_arrays() names an array {shown(key)}, expected a word")
        if part.dtype.kind not in PLAIN:
            raise InputError(
                f"{name}.to_arrays() gives {key} as {part.dtype}, expected numbers or text"
            )
    return kind, parts


def make_term(kind: str, arrays: Arrays) -> Term:
    """The term of a kind that consists of these arrays."""
    if kind not in KINDS:
        raise InputError(
            f"a term of the kind {shown(kind)} isn't known; import what registers it with "
            "@proxfield.saveable first"
        )
    term = KINDS[kind].from_arrays(arrays)
    if type(term) is not KINDS[kind]:
        name = KINDS[kind].__name__
        raise InputError(f"{name}.from_arrays gave a {type(term).__name__}, expected a {name}")
    return term


def same_term(a: Term, b: Term) -> bool:
    """Whether two terms are the same: of one class, with equal arrays.

    Terms that can't be saved are the same if they are one object, or if they say so.
    """
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    try:
        (_, left), (_, right) = term_arrays(a), term_arrays(b)
    except InputError:
        return bool(a == b)
    return left.keys() == right.keys() and all(np.array_equal(left[k], right[k]) for k in left)
