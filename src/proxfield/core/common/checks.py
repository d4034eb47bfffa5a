"""What arguments may be: numbers, whole numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from operator import index
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.errors import InputError, shown


def is_real(value: object) -> bool:
    """Whether a value is a number that a float can hold: NaN is one, True, "1" and 10**400 aren't.

    Example:
        >>> is_real(1), is_real(float("nan")), is_real(True), is_real(10**400)
        (True, True, False, False)
    """
    kinds = (int, float, np.integer, np.floating)
    if not isinstance(value, kinds) or isinstance(value, bool):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def is_whole(value: Any) -> bool:
    """Whether a value is a whole number: 3.0 is one, True isn't."""
    return is_real(value) and math.isfinite(value) and int(value) == value


LARGEST = 2**63 - 1
"""The largest int64."""
EXACT = 2**53
"""The largest whole number below which a float holds all others."""


def is_exact(value: Any) -> bool:
    """Whether a value is a whole number that survives as a float and as an int64."""
    return is_whole(value) and abs(int(value)) <= EXACT


def whole_count(value: Any, what: str, least: int) -> int:
    """A whole number from ``least`` to 2^63 − 1, as an int; 3.0 is one, unlike `whole_number`."""
    plain = value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value
    if not is_whole(plain) or plain < least:
        raise InputError(f"{what}={shown(plain)}, expected a whole number, {least} or more")
    if plain > LARGEST:
        raise InputError(f"{what}={shown(plain)}, expected a whole number below 2^63")
    return int(plain)


def whole_numbers(values: ArrayLike, what: str) -> NDArray[np.int64]:
    """Whole numbers as int64, also such as were floats.

    Raises:
        InputError: For fractions, NaN, infinity and numbers beyond ±2^53, with the first of these.
    """
    try:
        raw = np.asarray(values)
        numbers = raw if raw.dtype.kind in "iu" else np.asarray(raw, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{what} must be whole numbers") from None
    with np.errstate(invalid="ignore"):
        wrong = ~((numbers >= -EXACT) & (numbers <= EXACT))
        if numbers.dtype.kind == "f":
            wrong |= numbers != np.rint(numbers)
    if wrong.any():
        first = numbers[wrong].ravel()[0]
        raise InputError(f"{what} hold {first:.17g}, expected whole numbers up to 2^53")
    return numbers.astype(np.int64)


def whole_number(value: Any, what: str, least: int | None) -> int:
    """A whole number, at least ``least``."""
    try:
        number = index(value)
    except TypeError:
        raise InputError(f"{what}={shown(value)}, expected a whole number") from None
    if isinstance(value, bool) or (least is not None and number < least):
        raise InputError(f"{what}={shown(value)}, expected a whole number, {least} or more")
    return number


def check_real(what: str, value: Any, fits: Callable[[float], bool], expected: str) -> None:
    """Raise unless the value is a number that fits, as the words for it say."""
    if not is_real(value) or not fits(value):
        raise InputError(f"{what}={shown(value)}, expected {expected}")


def above_zero(what: str, value: Any) -> None:
    """Raise unless the value is a finite number above 0."""
    check_real(what, value, lambda v: 0 < v < math.inf, "a number above 0")


def one_of(what: str, value: object, known: Collection[str]) -> None:
    """Raise unless the value is one of those known."""
    if value not in known:
        raise InputError(f"{what}={shown(value)}, expected one of: {', '.join(known)}")
