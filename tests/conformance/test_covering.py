"""Coverings hold every pair that they should, in few cases."""

from __future__ import annotations

import itertools

import pytest
from covering import Case, combinations, cover

SIZES: list[tuple[int, ...]] = [(2, 2), (3, 3, 3), (2, 5, 1, 3), (7, 4, 2, 2, 2), (19, 9, 2, 2)]


def axes_of(sizes: tuple[int, ...]) -> dict[str, list[int]]:
    return {f"axis {k}": list(range(size)) for k, size in enumerate(sizes)}


def tuples_of(cases: list[Case], strength: int = 2) -> set[tuple[tuple[str, object], ...]]:
    """All that some cases hold, counted in the plainest way."""
    return {held for case in cases for held in itertools.combinations(case.items(), strength)}


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("strength", [1, 2, 3])
def test_all_that_can_occur_together_does(sizes: tuple[int, ...], strength: int) -> None:
    axes = axes_of(sizes)
    expected = tuples_of(combinations(axes), strength)
    assert tuples_of(cover(axes, strength=strength), strength) == expected


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_pairs_need_few_cases(sizes: tuple[int, ...]) -> None:
    """No covering is smaller than the pairs of the two longest axes."""
    longest, second = sorted(sizes)[:-3:-1]
    assert longest * second <= len(cover(axes_of(sizes))) <= 1.4 * longest * second


def test_forbidden_pairs_do_not_occur_and_the_others_do() -> None:
    axes = axes_of((4, 3, 2))

    def allowed(case: Case) -> bool:
        return (case["axis 0"], case["axis 2"]) != (3, 1)

    cases = cover(axes, allowed=allowed)
    assert all(allowed(case) for case in cases)
    possible = [case for case in combinations(axes) if allowed(case)]
    assert tuples_of(cases) == tuples_of(possible)
    assert tuples_of(possible) < tuples_of(combinations(axes))


def test_features_take_part_in_pairs() -> None:
    """Ten fields of two kinds: each kind is paired with every rule, not each field."""
    axes = {"field": list(range(10)), "rule": list(range(8))}
    features = {"kind": lambda case: case["field"] < 3}
    cases = cover(axes, features=features, apart=[("rule", "field")])
    assert {case["field"] for case in cases} == set(range(10))
    paired = {(features["kind"](case), case["rule"]) for case in cases}
    assert paired == set(itertools.product([True, False], range(8)))
    assert len(cases) == 16
    assert all(set(case) == {"field", "rule"} for case in cases)


def test_axes_apart_need_not_meet() -> None:
    axes = axes_of((9, 9, 2))
    assert len(cover(axes, apart=[("axis 1", "axis 0")])) <= 20
    assert len(cover(axes)) >= 81


def test_the_same_cases_come_every_time() -> None:
    axes = axes_of((6, 5, 4))
    assert cover(axes) == cover(axes)
    assert cover(axes, seed=1) != cover(axes, seed=2)


def test_nothing_is_covered_by_nothing() -> None:
    assert cover({"a": [1], "b": []}) == []
    assert cover(axes_of((3, 3)), allowed=lambda case: False) == []
