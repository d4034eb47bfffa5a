"""Numbers that are cast to whole ones: what can't be is refused with the value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from proxfield.core.common.checks import is_exact, whole_count, whole_numbers
from proxfield.errors import InputError

BAD = [0.5, np.nan, np.inf, -np.inf, 1e19, 1e300, 2.0**53 + 2]


@pytest.mark.parametrize("bad", BAD)
def test_floats_that_no_int64_holds_exactly_are_refused(bad: float) -> None:
    assert not is_exact(bad)
    with pytest.raises(InputError, match=rf"ids hold {bad:.17g}".replace("+", r"\+")):
        whole_numbers([[1.0, bad]], "ids")


@pytest.mark.parametrize("bad", ["x", None, [[1], [1, 2]], [10**400], object()])
def test_other_things_are_no_whole_numbers(bad: Any) -> None:
    with pytest.raises(InputError, match="ids"):
        whole_numbers(bad, "ids")


def test_whole_numbers_come_as_int64() -> None:
    for given in ([1, -2], [1.0, -2.0], np.array([1, -2], np.int8), np.float32([1, -2])):
        found = whole_numbers(given, "ids")
        assert found.dtype == np.int64
        assert found.tolist() == [1, -2]
    assert whole_numbers([2**53], "ids").tolist() == [2**53]
    assert whole_numbers([], "ids").tolist() == []


@pytest.mark.parametrize("bad", [0.5, np.nan, np.inf, -1, True, "3", None, [3], np.array([3])])
def test_other_counts_are_refused(bad: Any) -> None:
    with pytest.raises(InputError, match=r"n=.*, expected a whole number, 0 or more"):
        whole_count(bad, "n", 0)


def test_counts_may_be_of_any_numeric_type() -> None:
    for given in (3, 3.0, np.int8(3), np.float32(3), np.array(3)):
        found = whole_count(given, "n", 1)
        assert (type(found), found) == (int, 3)
