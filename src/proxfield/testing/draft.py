"""A random field in the making: its variables, and one function per kind of term."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxfield.core.terms.base import Ints, Term
from proxfield.core.terms.consistency import Consistency
from proxfield.core.terms.cooccurrence import Cooccurrence
from proxfield.core.terms.factor import Factor
from proxfield.core.terms.gaussian import Gaussian
from proxfield.core.terms.grid import GridPairwise
from proxfield.core.terms.occupancy import Occupancy
from proxfield.core.terms.pairwise import Ising, Pairwise, Potts
from proxfield.core.terms.silhouettes import Boxes, Runs, Silhouettes
from proxfield.core.terms.unary import Constant, Unary
from proxfield.images.cooccurrence import CooccurrenceStatistics

MAX_TABLE = 1024
"""Maximum number of entries of a table."""
SYMMETRIC = frozenset({"constant", "potts", "ising", "gaussian", "consistency"})
"""Kinds that can treat all labels alike."""


class Draft:
    """Variables and terms drawn so far.

    A labelling is drawn first. Whatever is forbidden later leaves it possible, so that the field
    is feasible by construction unless a contradiction is added on purpose.

    Args:
        rng: Source of random numbers.
        scale: Typical size of the energies.
        size: About how many variables; None for a few.
    """

    def __init__(self, rng: np.random.Generator, scale: float, size: int | None) -> None:
        self.rng, self.scale, self.size = rng, scale, size
        self.symmetric = self.hard = self.covering = False
        self.sign = int(rng.choice([-1, 0, 1]))
        self.mixed_scales = bool(rng.random() < 0.3)
        self.terms: list[Term] = []
        self.features: set[str] = set()
        self.always: tuple[int, ...] = ()
        self.classes: Ints = np.zeros(0, dtype=np.int64)
        self.latent = "implicit"
        self.runs: dict[str, tuple[int, int]] = {}
        """First variable and length of the runs made for something."""
        self.cards = self.labels = self.free = np.zeros(0, dtype=np.int64)

    # ---- variables ----

    def plan_presence(self, n_labels: int) -> None:
        """Decide on the form of a co-occurrence term over this many classes."""
        self.latent = str(self.rng.choice(["implicit", "variables", "tables"]))
        fixed = self.rng.random(n_labels) < 0.3
        fixed[self.rng.integers(n_labels)] = False  # some class must have a presence
        self.always = tuple(np.flatnonzero(fixed).tolist())
        self.classes = np.flatnonzero(~fixed)[: n_labels if self.latent != "implicit" else 0]

    def lay_out(self, runs: list[tuple[str, int, int]]) -> None:
        """Number the variables of some runs, and draw the labelling that stays possible."""
        start = 0
        isolated: list[int] = []
        for what, n, _ in runs:
            self.runs[what] = (start, n)
            isolated += range(start, start + n) if what == "isolated" else []
            start += n
        self.cards = np.repeat([c for _, _, c in runs], [n for _, n, _ in runs]).astype(np.int64)
        self.labels = self.rng.integers(0, self.cards)
        self.free = np.setdiff1d(np.arange(start), isolated)
        self.features.update(["isolated-variable"] if isolated else [])

    def note_variables(self) -> None:
        """Features that follow from the variables, the scale and the sign."""
        if any(isinstance(t, (Pairwise, Potts, Ising, Gaussian, GridPairwise)) for t in self.terms):
            self.features.add({-1: "repulsive", 0: "mixed-signs", 1: "attractive"}[self.sign])
        kinds = np.unique(self.cards)
        self.features.update(f"labels-{c}" for c in kinds)
        self.features.update(["mixed-cardinalities"] if len(kinds) > 1 else [])
        self.features.update(["all-binary"] if kinds.tolist() == [2] else [])
        self.features.update(["scale<1e-4"] if self.scale < 1e-4 else [])
        self.features.update(["scale>1e4"] if self.scale > 1e4 else [])
        self.features.update(["symmetric"] if self.symmetric else [])
        self.features.update(["mixed-scales"] if self.mixed_scales else [])

    # ---- energies ----

    def magnitude(self) -> float:
        """The size of one term's energies: the scale, or with mixed scales any smaller one."""
        if not self.mixed_scales:
            return self.scale
        top = float(np.log10(self.scale))
        return float(10 ** self.rng.uniform(min(-8.0, top), top))

    def normal(self, *shape: int) -> NDArray[np.float64]:
        """Energies without a preference."""
        return self.magnitude() * self.rng.normal(size=shape)

    def couplings(self, *shape: int) -> NDArray[np.float64]:
        """Weights that attract if positive, all of one sign or of both."""
        noise = self.normal(*shape)
        return noise if self.sign == 0 else self.sign * np.abs(noise)

    def forbid(self, table: NDArray[np.float64], scopes: Ints, share: float = 0.3) -> None:
        """Make some entries of a table +inf, none that the labelling uses.  # scopes: (m, k)"""
        if not self.hard or self.rng.random() < 0.3:
            return
        mask = self.rng.random(table.shape) < share
        mask[tuple(self.labels[scopes].T)] = False
        table[mask] = np.inf
        if mask.any():
            self.features.add("impossible-label" if table.ndim == 1 else "forbidden-configuration")

    # ---- scopes ----

    def edges(self, among: Ints | None = None) -> Ints:
        """Random edges, some of them parallel.  # (m, 2)"""
        free, rng = self.free if among is None else among, self.rng
        n = len(free)
        if n < 2:
            return np.zeros((0, 2), dtype=np.int64)
        if self.size is None:
            i, j = np.triu_indices(n, 1)
            chosen = rng.random(len(i)) < rng.uniform(0.3, 1.0)
            chosen[rng.integers(len(i))] = True
            i, j = i[chosen], j[chosen]
        else:
            i = rng.integers(0, n, size=2 * n)
            j = (i + rng.integers(1, n, size=2 * n)) % n
        pairs = free[np.stack([i, j], axis=1)]
        flip = rng.random(len(pairs)) < 0.5
        pairs[flip] = pairs[flip, ::-1]
        if rng.random() < 0.25:
            again = pairs[rng.integers(0, len(pairs), size=1 + len(pairs) // 4)]
            pairs = np.concatenate([pairs, again[:, ::-1], again])
            self.features.add("parallel-edges")
        return np.asarray(pairs, dtype=np.int64)

    def scope(self, arity: int) -> Ints | None:
        """A few different variables whose table isn't too large."""
        if len(self.free) < arity:
            return None
        scope = self.rng.choice(self.free, size=arity, replace=False)
        return scope if np.prod(self.cards[scope]) <= MAX_TABLE else None


# ---- one function per kind of term ----


def make_constant(draft: Draft) -> None:
    draft.terms.append(Constant(float(draft.normal())))


def make_unary(draft: Draft) -> None:
    """Energies for most variables; a row per variable may be named twice."""
    rng = draft.rng
    some = draft.free[rng.random(len(draft.free)) < rng.choice([0.5, 1.0])]
    if rng.random() < 0.2 and len(some):
        some = np.append(some, some[0])
    for c in np.unique(draft.cards[some]):
        variables = some[draft.cards[some] == c]
        rows = draft.normal(len(variables), int(c))
        for row, v in zip(rows, variables, strict=True):
            draft.forbid(row, np.array([[v]]), 0.25)
        draft.terms.append(Unary(rows, variables))


def make_pairwise(draft: Draft) -> None:
    pairs = draft.edges()
    for shape in np.unique(draft.cards[pairs], axis=0):
        edges = pairs[(draft.cards[pairs] == shape).all(axis=1)]
        differ = 1.0 - np.eye(int(shape[0]), int(shape[1]))
        if draft.rng.random() < 0.3:
            table = draft.couplings(1)[0] * differ + 0.3 * draft.normal(*differ.shape)
            draft.forbid(table, edges)
            draft.features.update(["shared-table"] if len(edges) > 1 else [])
            draft.terms.append(Pairwise(edges, table))
            continue
        tables = draft.couplings(len(edges))[:, None, None] * differ
        tables += 0.3 * draft.normal(*tables.shape)
        for table, edge in zip(tables, edges, strict=True):
            draft.forbid(table, edge[None], 0.15)
        draft.terms.append(Pairwise(edges, tables))


def make_potts(draft: Draft) -> None:
    pairs = draft.edges()
    if draft.symmetric:  # labels that only one end has would be told apart
        pairs = pairs[draft.cards[pairs[:, 0]] == draft.cards[pairs[:, 1]]]
    draft.terms.append(Potts(pairs, draft.couplings(len(pairs))))


def make_ising(draft: Draft) -> None:
    edges = draft.edges(draft.free[draft.cards[draft.free] == 2])
    if len(edges):
        draft.terms.append(Ising(edges, -0.5 * draft.couplings(len(edges))))


def make_factor(draft: Draft) -> None:
    """Tables over one to five variables; some of them parity checks."""
    rng = draft.rng
    count = int(rng.integers(1, 4)) if draft.size is None else max(1, draft.size // 5)
    groups: dict[tuple[int, ...], list[tuple[Ints, NDArray[np.float64]]]] = {}
    for _ in range(count):
        scope = draft.scope(int(rng.integers(1, 6)))
        if scope is None:
            continue
        shape = tuple(draft.cards[scope].tolist())
        if draft.hard and len(shape) > 1 and set(shape) == {2} and rng.random() < 0.3:
            odd = (np.indices(shape).sum(axis=0) - draft.labels[scope].sum()) % 2
            table = np.where(odd == 0, 0.0, np.inf)
            draft.features.add("forbidden-configuration")
        else:
            table = draft.normal(*shape)
            draft.forbid(table, scope[None])
        groups.setdefault(shape, []).append((scope, table))
        draft.features.add(f"factor-{len(shape)}")
    for rows in groups.values():
        scopes, tables = zip(*rows, strict=True)
        draft.terms.append(Factor(np.stack(scopes), np.stack(tables)))


def make_gaussian(draft: Draft) -> None:
    if "points" not in draft.runs:
        return
    rng = draft.rng
    first, n = draft.runs["points"]
    n_labels = int(draft.cards[first])
    for _ in range(int(rng.integers(1, 3))):
        features = rng.normal(size=(n, int(rng.integers(1, 6)))) * 10 ** rng.uniform(-1.5, 0.5)
        if rng.random() < 0.2:
            features[n // 2 :] = features[: n - n // 2]  # points in the same place
        form = "potts" if draft.symmetric else str(rng.choice(["potts", "vector", "matrix"]))
        shape = {"potts": None, "vector": (n_labels,), "matrix": (n_labels, n_labels)}[form]
        filter = str(rng.choice(["exact", "lattice"]))
        normalization = str(rng.choice(["none", "before", "after", "symmetric"]))
        own = bool(rng.random() < 0.5)
        draft.terms.append(
            Gaussian(
                features,
                float(draft.couplings(1)[0]),
                None if shape is None else rng.normal(size=shape),
                normalization=normalization,
                self_message=own,
                filter=filter,
                first=first,
            )
        )
        which = f"gaussian-{filter}-{normalization}-{'self' if own else 'others'}"
        draft.features.update([which, f"gaussian-{form}"])


def make_consistency(draft: Draft) -> None:
    """Segments of variables with equal numbers of labels."""
    rng = draft.rng
    kinds, counts = np.unique(draft.cards[draft.free], return_counts=True)
    n_labels = int(kinds[counts.argmax()])
    able = draft.free[draft.cards[draft.free] == n_labels]
    if rng.random() < 0.3:
        number = np.full(len(draft.cards), -1)
        number[able] = rng.integers(-1, max(1, len(able) // 3), size=len(able))
        weights = np.abs(draft.normal(int(number.max()) + 1))
        draft.terms.append(Consistency(number, weights))
        draft.features.add("consistency-segments")
        return
    tables = bool(rng.random() < 0.4)
    top = min(len(able), 5 if tables or draft.size is None else 40)
    count = int(rng.integers(1, 4)) if draft.size is None else max(1, len(able) // 8)
    segments = [
        rng.choice(able, size=int(rng.integers(1, top + 1)), replace=False) for _ in range(count)
    ]
    tables = tables and n_labels ** max(len(s) for s in segments) <= 4 * MAX_TABLE
    by_label = not draft.symmetric and bool(rng.random() < 0.4)
    weights = np.abs(draft.normal(*((count, n_labels) if by_label else (count,))))
    draft.terms.append(Consistency(segments, weights, tables=tables))
    members = np.concatenate(segments)
    draft.features.update(["consistency-tables"] if tables else [])
    draft.features.update(["consistency-label-weights"] if by_label else [])
    draft.features.update(["consistency-overlap"] if len(np.unique(members)) < len(members) else [])


def make_cooccurrence(draft: Draft) -> None:
    if "pixels" not in draft.runs or (len(draft.classes) and "presence" not in draft.runs):
        return
    first, n = draft.runs["pixels"]
    n_labels = int(draft.cards[first])
    shown = draft.rng.random((12, n_labels)) < 0.5
    counts = shown.T.astype(np.int64) @ shown
    statistics = CooccurrenceStatistics(12, np.diag(counts), counts)
    options: dict[str, Any] = {}
    if draft.latent != "implicit":
        options = {"latent": "variables", "presence": draft.runs["presence"][0]}
        options["tables"] = draft.latent == "tables"
    draft.terms.append(
        Cooccurrence(
            statistics,
            pixels=n,
            first=first,
            kappa=float(np.abs(draft.normal())),
            beta=float(np.abs(draft.normal())),
            always=draft.always,
            **options,
        )
    )
    draft.features.add(f"cooccurrence-{draft.latent}")


def make_occupancy(draft: Draft) -> None:
    """One to three cameras of different sizes; some may lack a mask, some locations are unseen."""
    if "locations" not in draft.runs:
        return
    rng = draft.rng
    first, n = draft.runs["locations"]
    silhouettes: list[Silhouettes] = []
    masks: list[NDArray[np.float64] | None] = []
    for camera in range(int(rng.integers(1, 4))):
        height, width = (int(side) for side in rng.integers(3, 9, size=2))
        top, left = rng.integers(0, height, size=n), rng.integers(0, width, size=n)
        bottom = np.minimum(height, top + rng.integers(0, 5, size=n))
        right = np.minimum(width, left + rng.integers(1, 4, size=n))
        boxes = Boxes(height, width, np.stack([left, top, right, bottom], axis=1))
        if rng.random() < 0.4:
            inside = np.zeros((n, height * width), dtype=bool)
            for i in range(n):
                inside[i, boxes.pixels(i)] = True
            shapes = inside.reshape(n, height, width) & (rng.random((height, width)) < 0.8)
            silhouettes.append(Runs.from_masks(shapes))
            draft.features.add("occupancy-runs")
        else:
            silhouettes.append(boxes)
            draft.features.add("occupancy-boxes")
        soft = rng.random((height, width))
        absent = camera > 0 and rng.random() < 0.3
        masks.append(None if absent else soft if rng.random() < 0.5 else np.rint(soft))
        draft.features.update(["occupancy-missing-mask"] if absent else [])
    model = str(rng.choice(["exact", "ratio"]))
    size = max(float(np.abs(draft.normal())), 1e-30)
    options: dict[str, Any] = {"strength": size} if model == "exact" else {"variance": 1 / size}
    draft.terms.append(Occupancy(silhouettes, masks, model=model, first=first, **options))
    draft.features.add(f"occupancy-{model}")


def make_grid_pairwise(draft: Draft) -> None:
    """A grid of one to three axes, with one to three offsets between its pixels."""
    if "grid" not in draft.runs:
        return
    rng = draft.rng
    first, n = draft.runs["grid"]
    n_labels = int(draft.cards[first])
    axes = int(rng.integers(1, 4))
    shape = [1] * axes
    for _ in range(8):  # the largest of some random grids that fit
        sides = rng.integers(1, max(2, int(n ** (1 / axes)) + 2), size=axes).tolist()
        shape = sides if np.prod(shape) < np.prod(sides) <= n else shape
    if np.prod(shape) < 2:
        shape = [n] + [1] * (axes - 1)
    for _ in range(int(rng.integers(1, 4))):
        offset = np.array([rng.integers(1 - side, side) for side in shape])
        if not offset.any():
            offset[int(np.argmax(shape))] = 1
        count = int(np.prod(np.maximum(0, np.array(shape) - np.abs(offset))))
        tables = int(rng.integers(1, 4))
        differ = 1.0 - np.eye(n_labels)
        energies = draft.couplings(tables)[:, None, None] * differ
        energies += 0.3 * draft.normal(*energies.shape)
        index = None if tables == 1 else rng.integers(0, tables, size=count)
        draft.terms.append(GridPairwise(shape, offset, energies, index, first))
        draft.features.update(["shared-table"] if count > 1 else [])


MAKERS: dict[str, Callable[[Draft], None]] = {
    "constant": make_constant,
    "unary": make_unary,
    "pairwise": make_pairwise,
    "potts": make_potts,
    "ising": make_ising,
    "factor": make_factor,
    "gaussian": make_gaussian,
    "consistency": make_consistency,
    "cooccurrence": make_cooccurrence,
    "occupancy": make_occupancy,
    "grid-pairwise": make_grid_pairwise,
}
"""A maker for every registered kind of term (a test fails where one is missing)."""


def plant_contradiction(draft: Draft, evidence: dict[int, int], allowed: tuple[str, ...]) -> bool:
    """Make every labelling impossible, in one of five ways; False if none is at hand."""
    rng, cards = draft.rng, draft.cards
    v = int(rng.choice(draft.free))
    binary = draft.free[cards[draft.free] == 2]
    ways: dict[str, list[Term]] = {}
    if "constant" in allowed:
        ways["constant"] = [Constant(np.inf)]
    if "unary" in allowed:
        ways["variable"] = [Unary(np.full((1, cards[v]), np.inf), [v])]
        row = np.where(np.arange(cards[v]) == draft.labels[v], np.inf, 0.0)
        if cards[v] > 1:
            ways["evidence"] = [Unary(row[None], [v])]
    if "factor" in allowed:
        ways["table"] = [Factor([v], np.full(int(cards[v]), np.inf))]
    if "pairwise" in allowed and len(binary) > 2:  # propagation alone doesn't see this one
        a, b, c = rng.choice(binary, size=3, replace=False)
        differ = np.where(np.eye(2, dtype=bool), np.inf, 0.0)
        ways["cycle"] = [Pairwise([[a, b], [b, c], [c, a]], differ)]
    if not ways:
        return False
    how = str(rng.choice(list(ways)))
    if how == "evidence":
        evidence[v] = int(draft.labels[v])
    draft.terms += ways[how]
    draft.features.update(["infeasible", f"infeasible-{how}"])
    return True
