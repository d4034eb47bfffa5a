"""What arguments may be: numbers, whole numbers."""

from __future__ import annotations

import math
from operator import index
from typing import Any

import numpy as np

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
    """Whether a value is a whole number: 3.0 is one, True isn't.

    Example:
        >>> is_whole(3), is_whole(3.0), is_whole(2.5), is_whole(float("inf"))
        (True, True, False, False)
    """
    return is_real(value) and math.isfinite(value) and int(value) == value


def whole_number(value: Any, what: str, least: int | None) -> int:
    """A whole number, at least ``least``."""
    try:
        number = index(value)
    except TypeError:
        raise InputError(f"{what}={shown(value)}, expected a whole number") from None
    if isinstance(value, bool) or (least is not None and number < least):
        raise InputError(f"{what}={shown(value)}, expected a whole number, {least} or more")
    return number
