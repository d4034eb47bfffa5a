"""Seeded random fields that cover every kind of term and every awkward situation."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from proxfield.core.terms.base import Ints
from proxfield.core.terms.registry import TERMS
from proxfield.errors import InputError, shown
from proxfield.field import Field
from proxfield.testing.draft import MAKERS, SYMMETRIC, Draft, plant_contradiction

MAX_ENUMERATED = 4096
"""Maximum number of labellings of a field whose size isn't given."""
DECADES = (-8.0, 8.0)
"""Scales are drawn log-uniformly from 10^-8 to 10^8."""
MAX_LABELS = 5
LATER = ("occupancy", "grid-pairwise")
"""Kinds chosen by a generator of their own, so that fields without them stay as they were."""

SITUATIONS = (
    "evidence",
    "impossible-label",
    "forbidden-configuration",
    "infeasible",
    "mixed-cardinalities",
    "attractive",
    "repulsive",
    "mixed-signs",
    "scale<1e-4",
    "scale>1e4",
    "mixed-scales",
)
"""Features that occur together with every kind of term."""

FEATURES: frozenset[str] = frozenset(
    [
        *TERMS,
        *SITUATIONS,
        *(f"factor-{k}" for k in range(1, 6)),
        *(
            f"gaussian-{filter}-{normalization}-{own}"
            for filter in ("exact", "lattice")
            for normalization in ("none", "before", "after", "symmetric")
            for own in ("self", "others")
        ),
        *(f"gaussian-{form}" for form in ("potts", "vector", "matrix")),
        *(f"cooccurrence-{form}" for form in ("implicit", "variables", "tables")),
        *(f"consistency-{form}" for form in ("segments", "tables", "overlap", "label-weights")),
        *(f"occupancy-{form}" for form in ("exact", "ratio", "boxes", "runs", "missing-mask")),
        *(f"labels-{c}" for c in range(1, MAX_LABELS + 1)),
        "all-binary",
        "isolated-variable",
        "parallel-edges",
        "shared-table",
        "symmetric",
        "all-observed",
        *(f"infeasible-{how}" for how in ("constant", "variable", "table", "evidence", "cycle")),
    ]
)
"""Everything that a `Description` may claim; a few hundred seeds show all of it."""


@dataclass(frozen=True)
class Description:
    """What a random field holds.

    Example:
        >>> print(random_field(3, kinds=["potts"], scale=1.0).about)  # doctest: +ELLIPSIS
        random_field(3): scale 1, ... potts...
    """

    seed: int
    scale: float
    """Typical size of the energies."""
    features: frozenset[str]
    """A subset of `FEATURES`."""
    feasible: bool
    """Whether some labelling has a finite energy, by construction."""
    labels: Ints | None
    """A labelling of finite energy that agrees with the evidence, if feasible.  # (n_vars,)"""

    def __str__(self) -> str:
        names = ", ".join(sorted(self.features))
        return f"random_field({self.seed}): scale {self.scale:.3g}, {names}"


class RandomField(NamedTuple):
    """A field and its description."""

    field: Field
    about: Description


def random_field(
    seed: int,
    *,
    scale: float | None = None,
    size: int | None = None,
    kinds: Iterable[str] | None = None,
) -> RandomField:
    """Draw a field; the same arguments always give the same field.

    Fields have variables with 1 to 5 labels, terms of a few kinds, energies of any scale that
    attract, repel or do both, and now and then evidence, impossible labels, forbidden
    configurations, contradictions, parallel edges or variables without terms. Symmetric fields
    have no unary energies, so that uniform marginals are a fixed point.

    Args:
        seed: Random seed, 0 or more.
        scale: Typical size of the energies; by default log-uniform from 1e-8 to 1e8.
        size: About how many variables; by default few enough that there are at most 4096
            labellings.
        kinds: Kinds of terms to choose from, names from `proxfield.TERMS`; all by default.

    Returns:
        The field and a description of what is in it.

    Example:
        >>> field, about = random_field(11)
        >>> bool(np.prod(field.cardinalities) <= 4096)
        True
        >>> field, about = random_field(11, size=300, kinds=["potts", "unary"], scale=2.0)
        >>> {term.name for term in field.terms} <= {"potts", "unary"}
        True
    """
    allowed = tuple(MAKERS) if kinds is None else tuple(dict.fromkeys(kinds))
    unknown = [kind for kind in allowed if kind not in MAKERS]
    if unknown or not allowed:
        raise InputError(f"kinds={unknown or allowed}, expected names from {', '.join(MAKERS)}")
    if scale is not None and not (0 < scale < math.inf):
        raise InputError(f"scale={shown(scale)}, expected a positive number")
    if size is not None and size < 1:
        raise InputError(f"size={shown(size)}, expected at least 1")
    rng = np.random.default_rng(seed)
    drawn = float(10 ** rng.uniform(*DECADES))
    draft = Draft(rng, drawn if scale is None else float(scale), size)
    symmetric = bool(rng.random() < 0.12) and bool(SYMMETRIC & set(allowed))
    draft.symmetric = symmetric
    used = _choose_kinds(rng, [k for k in allowed if not symmetric or k in SYMMETRIC], seed)
    _draw_variables(draft, used, MAX_ENUMERATED if size is None else None)
    draft.hard = not symmetric and bool(rng.random() < 0.4)
    for kind in used:
        MAKERS[kind](draft)
    return _finish(draft, seed, allowed)


def _choose_kinds(rng: np.random.Generator, allowed: list[str], seed: int) -> list[str]:
    """Some kinds, at least one, in the order of the registry."""
    chance = {"unary": 0.75, "gaussian": 0.4, "cooccurrence": 0.3}
    early = [kind for kind in allowed if kind not in LATER]
    some = {kind for kind in early if rng.random() < chance.get(kind, 0.35)}
    some.update([early[int(rng.integers(len(early)))]] if early else [])
    other = np.random.default_rng([seed, 1])
    some.update(kind for kind in allowed if kind in LATER and (not early or other.random() < 0.2))
    return [kind for kind in allowed if kind in some]


def _draw_variables(draft: Draft, used: list[str], limit: int | None) -> None:
    """Runs of variables with equal numbers of labels, in random order, as the terms need them."""
    rng = draft.rng
    profile = "equal" if draft.symmetric else str(rng.choice(["mixed", "mixed", "equal", "binary"]))
    common = 2 if profile == "binary" or "ising" in used else int(rng.integers(2, MAX_LABELS + 1))
    left = math.inf if limit is None else float(limit)
    total, wanted = 0, draft.size or int(rng.integers(2, 9))
    runs: list[tuple[str, int, int]] = []  # what for, how many, with how many labels

    def labels(low: int = 1) -> int:
        return common if profile != "mixed" else int(rng.integers(low, MAX_LABELS + 1))

    def run(what: str, low: int, high: int, count: int, share: float) -> int:
        """Add a run of as many variables as fit; 0 if too few do."""
        nonlocal left, total
        room = high if limit is None else int(share * math.log(left) / math.log(max(2, count)))
        if min(room, high) < low:
            return 0
        n = int(rng.integers(low, min(room, high) + 1))
        runs.append((what, n, count))
        left = left if limit is None else left / count**n
        total += n
        return n

    many = draft.size is not None
    part = max(2, wanted // 4)
    if "cooccurrence" in used:
        classes = min(labels(2), 3 if not many else MAX_LABELS)
        draft.plan_presence(classes)
        run("presence", len(draft.classes), len(draft.classes), 2, 1.0)
        run("pixels", 1, part if many else 4, classes, 0.5)
    if "gaussian" in used:
        alone = profile != "mixed" and not runs and rng.random() < 0.4
        draft.covering = bool(alone)
        top = (min(wanted, 2000) if alone else part) if many else 6
        run("points", top if many else 2, top, labels(2), 1.0 if alone else 0.7)
    if "ising" in used:
        run("spins", 2, part if many else 5, 2, 1.0)
    if "consistency" in used:
        run("members", 2, part if many else 4, labels(2), 0.8)
    if "occupancy" in used:
        run("locations", 2, part if many else 5, 2, 0.8)
    if "grid-pairwise" in used:
        run("grid", 2, part if many else 6, labels(2), 0.8)
    if not draft.covering:
        while total < wanted and run("any", 1, 1 if not many else wanted - total, labels(), 1.0):
            pass
    if not runs:
        run("any", 1, 1, 2, 1.0)
    if not many and not draft.covering and rng.random() < 0.25:
        run("isolated", 1, 1, labels(), 1.0)
    elif many and rng.random() < 0.25:
        run("isolated", 1, 3, labels(), 1.0)
    draft.lay_out([runs[int(k)] for k in rng.permutation(len(runs))])


def _finish(draft: Draft, seed: int, allowed: tuple[str, ...]) -> RandomField:
    """Evidence and contradictions, and a description of it all."""
    rng, labels = draft.rng, draft.labels
    evidence: dict[int, int] = {}
    n = len(draft.cards)
    if not draft.symmetric and rng.random() < 0.3:
        every = rng.random() < 0.12
        count = n if every else int(rng.integers(1, max(2, n // 2 + 1)))
        evidence = {int(v): int(labels[v]) for v in rng.choice(n, size=count, replace=False)}
    feasible = draft.symmetric or rng.random() >= 0.12
    if not feasible:
        feasible = not plant_contradiction(draft, evidence, allowed)
    field = Field(draft.cards)
    for k in rng.permutation(len(draft.terms)):
        field.add(draft.terms[int(k)])
    if evidence:
        field = field.condition(evidence)
        draft.features.add("evidence")
        draft.features.update(["all-observed"] if len(evidence) == n else [])
    draft.note_variables()
    features = frozenset(draft.features | {term.name for term in draft.terms})
    assert features <= FEATURES, sorted(features - FEATURES)
    about = Description(seed, draft.scale, features, feasible, labels if feasible else None)
    return RandomField(field, about)
