"""Which fields, rules, kernel sets and floating-point types the conformance tests put together.

Every test runs on a covering (see `covering`) of its axes: the kernels of a field follow from the
form that it is lowered to, so every variant of a rule is paired with every form, and every example
with every kernel set and floating-point type; an example needn't run with every variant. In
Triton's interpreter rules are paired with forms where kernel sets are compared; elsewhere it is
enough that every value occurs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cache

import numpy as np
import pytest
from covering import Case, cover
from examples import CONTRADICTIONS, NOT_EXPECTED, POSSIBLE, Example

from helpers import INTERPRETED, KERNELS, SINGLE, VARIANTS, Array, repulsive_grid
from proxfield import RULES, Problem
from proxfield.core.solve.curvature import Curvature
from proxfield.core.terms.base import offers

TESTED = KERNELS if "cpu" in KERNELS else KERNELS[1:]
"""Kernel sets under test. The main suite tests the reference kernels, other sets only use them."""
STARTS = ("uniform", "possible", "unary", "random")
EVERY = {**POSSIBLE, **NOT_EXPECTED, **CONTRADICTIONS}


@cache
def form_of(name: str) -> str:
    """What the field of an example is lowered to, as far as kernels see it.

    "nothing" where no update changes the uniform start.
    """
    lowered = EVERY[name].field().lower()
    arities = {f.scopes.shape[1] for f in lowered.factors}
    parts = {
        "potts": lowered.potts is not None,
        "pairs": 2 in arities,
        "tables": max(arities, default=0) > 2,
    }
    present = [part for part, there in parts.items() if there]
    if lowered.extras:
        kinds = {getattr(t, "filter", t).__class__.__name__ for t in lowered.extras}
        return "+".join([*sorted(kinds), *present])
    if present:
        return present[0] if len(present) == 1 else "mixed"
    if lowered.ising is not None:
        return "spins"
    return "alone" if lowered.unary.any() else "nothing"


@cache
def is_refused(name: str, variant: str) -> bool:
    """Whether the rule needs what a term of the field doesn't offer.

    That is single variables of a term that iterates as a whole, or a bound on the curvature.
    """
    terms = EVERY[name].field().lower().extras
    if variant in SINGLE:
        return bool(terms) and (variant == "colored" or not all(offers(t, "visits") for t in terms))
    return needs_curvature(variant) and not all(offers(t, "curvature") for t in terms)


@cache
def needs_curvature(variant: str) -> bool:
    """Whether the steps of a variant come from a bound on the curvature, or fall back on it."""
    rule, params = VARIANTS[variant]
    asked: list[float | str] = []

    class Asked(Curvature):
        def steps(self, step: float | str) -> Array:
            asked.append(step)
            return np.ones(4)

    lowered = repulsive_grid(2).lower()
    RULES[rule](**params).plan(Problem(lowered, Asked(lowered)))
    return any(isinstance(step, str) for step in asked)


def term_of(name: str) -> str:
    """The one term that an example shows, or "several"."""
    terms = EVERY[name].terms
    return terms[0] if len(terms) == 1 else "several"


def cases_over(
    group: dict[str, Example] | None = None,
    *,
    variants: Sequence[str] = (),
    allowed: Callable[[Case], bool] = lambda case: True,
    by: str = "rule",
    **axes: Sequence[Hashable],
) -> list[Case]:
    """A covering of some examples, variants of rules and other axes.

    Args:
        group: Examples; None for a test that makes its own field.
        variants: Variants of rules.
        allowed: Whether a combination makes sense; those that rules refuse never do.
        by: What is paired with every form and every kind of term: "rule" or "variant". With
            "nothing" it is enough that every value of every axis occurs.
        **axes: Other axes.
    """
    if group is not None:
        axes["name"] = list(group)
    if variants:
        axes["variant"] = list(variants)
    features: dict[str, Callable[[Case], Hashable]] = {}
    apart = [("name", "variant"), ("name", "init")]
    if group is not None and variants:
        features["form"] = lambda case: form_of(str(case["name"]))
        features["term"] = lambda case: term_of(str(case["name"]))
        features["rule"] = lambda case: VARIANTS[str(case["variant"])][0]
        apart += [("name", "rule"), ("term", "variant")]
        apart += [("form", "variant")] if by == "rule" else []

    def makes_sense(case: Case) -> bool:
        if "name" in case and "variant" in case:
            return allowed(case) and not is_refused(str(case["name"]), str(case["variant"]))
        return allowed(case)

    return cover(
        axes,
        allowed=makes_sense,
        features=features,
        apart=apart,
        strength=1 if by == "nothing" else 2,
    )


def over(
    group: dict[str, Example] | None = None, *, by: str = "rule", **axes: Sequence[Hashable]
) -> pytest.MarkDecorator:
    """Run a test on a covering of some axes. Arguments as of `cases_over`."""
    return parametrized(cases_over(group, by="nothing" if INTERPRETED else by, **axes))


def parametrized(cases: list[Case]) -> pytest.MarkDecorator:
    """Run a test on some cases."""
    names = sorted(cases[0])
    rows = [tuple(case[name] for name in names) for case in cases]
    return pytest.mark.parametrize(
        names, sorted(rows), ids=["-".join(map(str, r)) for r in sorted(rows)]
    )
