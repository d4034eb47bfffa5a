"""Classes that occur together in a picture, as an energy over all its pixels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.arrays import Arrays
from proxfield.core.common.checks import whole_number
from proxfield.core.terms.base import Floats, Ints, Layout, Tables, Term, as_floats, as_indices
from proxfield.errors import InputError, shown

if TYPE_CHECKING:
    from typing_extensions import Self

    from proxfield.core.lowering.builder import Builder

MAX_EXACT_CLASSES = 12
"""Maximum number m of undecided classes whose 2^m states are summed one by one."""
SATURATION_ENERGY = 50.0
"""Energy difference above which a class counts as decided: the error is below e^-50."""
MAX_SWEEPS = 200
"""Maximum number of sweeps of coordinate descent where there are too many states to sum."""
ROWS = 64
"""Pixels that one numpy pass takes side by side: rows of a few labels are slow to add up."""

SAVED_NAMES = {"n_labels": "labels"}
"""What files call attributes that had another name when the format was fixed."""


@runtime_checkable
class Statistics(Protocol):
    """What the term asks of counts; `proxfield.CooccurrenceStatistics` answers it."""

    @property
    def n_labels(self) -> int:
        """The number of classes L."""

    def pair_probability(self) -> NDArray[np.float64]:
        """How easily two classes occur together, above 0 and up to 1.  # (L, L)"""


@dataclass(frozen=True, eq=False)
class Cooccurrence(Term):
    """Few classes per image, and classes that occur together: latent class presence.

    Beside the pixels X_i there is a latent Y_l for each class l that isn't always there: is it
    present? A pixel pays κ for a class that isn't, two classes that are pay for not going together:
    E(x, y) = κ Σ_i Σ_l [x_i = l][y_l = 0] + Σ_{a<b} w_ab [y_a = 1][y_b = 1], w_ab = −β log p_ab,
    where p_ab is the statistics' `pair_probability`.
    There are two forms of it:

    - ``latent="implicit"``: the field holds the pixels alone. The energy is the least that a
      distribution r of the presences achieves, E(q) = min_r ⟨E(q, y)⟩_r − H(r) =
      −log Σ_y exp(−E(q, y)), and for a labelling y is summed out. Its gradient is
      ∂E/∂q_il = κ P_r(Y_l = 0). As a minimum of linear functions E is concave in q: its
      curvature is at most 0 and the full parallel step is certified. −F bounds the log Z of x
      and y together. Presences that an energy difference of 50 or more decides are fixed (the
      error is far below rounding), up to 12 others are summed exactly. If more are undecided, r is
      minimized over independent presences, from two starts. Any r gives an upper bound on
      the minimum, so −F still bounds log Z, but F may rise where another r takes over.
    - ``latent="variables"``: as in the paper, the Y_l are binary variables of the field.

    Args:
        statistics: Counts of classes and of pairs of classes.
        pixels: Number N of pixels: a block of variables with a label for each class.
        n_labels: The number of classes, for checking; it must be that of the statistics.
        first: The variable that is the first pixel.
        latent: The form.
        presence: With variables, the first Y; they follow each other in the order of their
            classes, right after the pixels by default.
        kappa: κ, what a pixel pays for a class that isn't present.
        beta: β, the scale of the pairs' energies; 0.005 N by default.
        always: Classes that are always present: without Y and without energies of pairs.
        tables: With variables, express the energy as N · m pairwise tables. Rules that visit single
            variables then work (sweep, colored, the search of auto), but iterations
            are slower and certified local steps smaller: for small fields.

    Example:
        >>> import proxfield as pf
        >>> seen = pf.CooccurrenceStatistics(9, [9, 5, 4], [[9, 5, 4], [5, 5, 0], [4, 0, 4]])
        >>> term = Cooccurrence(seen, pixels=2, latent="variables", beta=1.0)
        >>> field = pf.Field([3, 3, 2, 2], terms=[term])
        >>> field.energy([0, 1, 0, 1])  # the second pixel shows class 1, which isn't present
        20.0
        >>> round(field.energy([2, 1, 1, 1]), 4)  # both are, and never were together
        1.0986
    """

    name = "cooccurrence"
    pixels: int
    n_labels: int
    first: int
    presence: int
    kappa: float
    classes: Ints
    """Classes that have a Y.  # (m,)"""
    weights: Floats
    """w_ab; 0 on the diagonal, since a class goes with itself.  # (m, m)"""

    def __new__(
        cls, *_: object, latent: str = "implicit", tables: bool = False, **__: object
    ) -> Cooccurrence:
        # what a term offers is a matter of its class, so each form is one
        if latent not in ("implicit", "variables"):
            raise InputError(f"latent={shown(latent)}, expected implicit or variables")
        if tables and latent == "implicit":
            raise InputError('tables=True needs latent="variables"')
        if cls is Cooccurrence and latent == "variables":
            return object.__new__(TabledCooccurrence if tables else LatentCooccurrence)
        return object.__new__(cls)

    def __init__(
        self,
        statistics: Statistics,
        *,
        pixels: int,
        n_labels: int | None = None,
        first: int = 0,
        latent: str = "implicit",
        presence: int | None = None,
        kappa: float = 20.0,
        beta: float | None = None,
        always: Iterable[int] = (0,),
        tables: bool = False,
    ) -> None:
        if not isinstance(statistics, Statistics):
            kind = type(statistics).__name__
            raise InputError(f"statistics must be CooccurrenceStatistics, not {kind}")
        count = statistics.n_labels
        if n_labels is not None and n_labels != count:
            given = shown(n_labels)
            raise InputError(f"n_labels={given}, but the statistics count {count} classes")
        if presence is not None and latent == "implicit":
            raise InputError('presence= needs latent="variables"')
        fixed = as_indices(list(always), "always", 1)
        if ((fixed < 0) | (fixed >= count)).any():
            raise InputError(f"always={fixed.tolist()}, expected classes from 0 to {count - 1}")
        classes = np.setdiff1d(np.arange(count), fixed)
        n, start = whole_number(pixels, "pixels", 0), whole_number(first, "first", 0)
        scale = _size(0.005 * n if beta is None else beta, "beta")
        chance = statistics.pair_probability()[np.ix_(classes, classes)]
        with np.errstate(over="ignore"):  # lowering refuses what is too large
            weights = -scale * np.log(chance)
        after = start + n if presence is None else whole_number(presence, "presence", 0)
        pairs = weights + 0.0  # + 0.0 turns −0 into 0
        self._hold(n, count, start, after, _size(kappa, "kappa"), classes, pairs)

    def to_arrays(self) -> dict[str, ArrayLike]:
        return {SAVED_NAMES.get(key, key): part for key, part in super().to_arrays().items()}

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        pixels, count, first, presence = (
            whole_number(arrays[key].item(), key, 0)
            for key in ("pixels", SAVED_NAMES["n_labels"], "first", "presence")
        )
        classes = as_indices(arrays["classes"], "classes", 1)
        inside = (classes >= 0) & (classes < count)
        weights = as_floats(arrays["weights"], "energies of pairs", allow_inf=True)
        if not inside.all() or (np.diff(classes) < 1).any():
            raise InputError(f"classes {shown(classes.tolist())}, expected 0 to {count - 1}")
        if weights.shape != (len(classes),) * 2 or (weights < 0).any():
            raise InputError(f"energies of pairs of shape {weights.shape}, expected one per pair")
        kappa = _size(arrays["kappa"], "kappa")
        return cls.trusted(pixels, count, first, presence, kappa, classes, weights)

    def validate(self, layout: Layout) -> None:
        _check_block(layout, self.first, self.pixels, self.n_labels, "pixels")

    def scope(self, layout: Layout) -> Ints:
        return np.arange(self.first, self.first + self.pixels)

    # ---- the block of pixels ----

    def _block(self, layout: Layout, flat: Floats) -> tuple[Floats, Floats]:
        """The pixels' entries: `ROWS` pixels a row, and the few that are left over."""
        start = int(layout.offsets[self.first])
        wide = self.pixels - self.pixels % ROWS
        middle, end = start + wide * self.n_labels, start + self.pixels * self.n_labels
        return (
            flat[start:middle].reshape(-1, ROWS * self.n_labels),
            flat[middle:end].reshape(-1, self.n_labels),
        )

    def _absent(self, layout: Layout, q: Floats) -> NDArray[np.float64]:
        """κ Σ_i q_il: what it costs that a class isn't present.  # (m,)"""
        wide, rest = self._block(layout, q)
        total = np.add.reduce(wide, axis=0, dtype=np.float64).reshape(ROWS, -1).sum(axis=0)
        total += rest.sum(axis=0, dtype=np.float64)
        return np.asarray(self.kappa * total[self.classes])

    def _absent_in(self, labels: Ints) -> NDArray[np.float64]:
        """κ times the pixels that show each class in a labelling.  # (m,)"""
        shown = labels[self.first : self.first + self.pixels]
        return np.asarray(self.kappa * np.bincount(shown, minlength=self.n_labels)[self.classes])

    def _add_to_pixels(self, layout: Layout, energies: Floats, out: Floats) -> None:
        """Add an energy per class to every pixel.  energies: (m,)"""
        row = np.zeros(self.n_labels, dtype=out.dtype)
        row[self.classes] = energies
        wide, rest = self._block(layout, out)
        wide += np.tile(row, ROWS)
        rest += row

    # ---- the implicit form; the other one overrides all of it ----

    def labelling_energy(self, layout: Layout, labels: Ints) -> float:
        return envelope(self._absent_in(labels), self.weights)[0]

    def energy(self, layout: Layout, q: Floats) -> float:
        return envelope(self._absent(layout, q), self.weights)[0]

    def add_gradient(self, layout: Layout, q: Floats, out: Floats) -> None:
        off = envelope(self._absent(layout, q), self.weights)[1]
        self._add_to_pixels(layout, self.kappa * off, out)

    def magnitude(self, layout: Layout) -> float:
        pairs = self.weights.size * float(self.weights.max(initial=0.0))
        return self.pixels * self.kappa + pairs

    def curvature(self, layout: Layout) -> Floats:
        return np.zeros(layout.n_vars)  # concave

    def lipschitz(self, layout: Layout) -> float:
        return -self.spectrum(layout)[0]

    def spectrum(self, layout: Layout) -> tuple[float, float]:
        """Bounds on the eigenvalues of P H P at any q: (−κ² N m / 4, 0).

        With Z_l = [Y_l = 0] the Hessian is −κ² Cov_r(Z) ⊗ 11ᵀ (over pixels), so that
        ΔᵀHΔ = −κ² Var_r(Σ a_l Z_l) with a_l = Σ_i Δ_il. What lies in an interval of length
        ``Σ |a_l|`` varies by at most ``(Σ |a_l|)² / 4`` ≤ m ‖a‖² / 4, and ‖a‖² ≤ N ‖Δ‖².
        """
        return -0.25 * self.kappa * self.kappa * self.pixels * len(self.classes), 0.0


class LatentCooccurrence(Cooccurrence):
    """`Cooccurrence` with ``latent="variables"``: the presences are variables of the field."""

    degree = 2

    def validate(self, layout: Layout) -> None:
        super().validate(layout)
        start, m = self.presence, len(self.classes)
        _check_block(layout, start, m, 2, "class presences")
        if start < self.first + self.pixels and self.first < start + m:
            raise InputError(
                f"class presences (variables {start} to {start + m - 1}) overlap the pixels "
                f"(variables {self.first} to {self.first + self.pixels - 1})"
            )

    def scope(self, layout: Layout) -> Ints:
        presences = self.presence + np.arange(len(self.classes))
        return np.unique(np.append(super().scope(layout), presences))

    def _off(self, layout: Layout) -> Ints:
        """The entries Y_l = 0; each one's Y_l = 1 follows it.  # (m,)"""
        return np.asarray(layout.offsets[self.presence : self.presence + len(self.classes)])

    def labelling_energy(self, layout: Layout, labels: Ints) -> float:
        y = labels[self.presence : self.presence + len(self.classes)]
        return float(self._absent_in(labels) @ (1 - y) + 0.5 * (y @ self.weights @ y))

    def energy(self, layout: Layout, q: Floats) -> float:
        at = self._off(layout)
        on = q[at + 1].astype(np.float64)
        return float(self._absent(layout, q) @ q[at] + 0.5 * (on @ self.weights @ on))

    def add_gradient(self, layout: Layout, q: Floats, out: Floats) -> None:
        at = self._off(layout)
        self._add_to_pixels(layout, self.kappa * q[at], out)
        out[at] += self._absent(layout, q).astype(out.dtype)
        out[at + 1] += (self.weights @ q[at + 1].astype(np.float64)).astype(out.dtype)

    def curvature(self, layout: Layout) -> Floats:
        """Per-variable bounds; pixels get at most 1, which never damps them.

        With δ_l the change of [Y_l = 0], pixels add 2κ Σ_i Σ_l Δ_il δ_l to ΔᵀHΔ, and
        2κ |Δ_il δ_l| ≤ s Δ_il² + κ² δ_l² / s for any s > 0. Centered changes of Y_l have
        ‖Δ‖² = 2 δ_l², so s goes to each pixel and κ² N / (2s) to each Y. Pairs add
        2 w_ab δ_a δ_b, of which each end gets w_ab / 2.
        """
        out = np.zeros(layout.n_vars)
        reach = self.kappa * np.sqrt(0.5 * self.pixels)
        share = min(1.0, reach)
        out[self.first : self.first + self.pixels] = share if len(self.classes) else 0.0
        y = slice(self.presence, self.presence + len(self.classes))
        with np.errstate(over="ignore"):  # no step is certified then
            out[y] = (reach**2 / share if share else 0.0) + 0.5 * self.weights.sum(axis=1)
        return out

    def lipschitz(self, layout: Layout) -> float:
        """max(κ √N, ‖w‖₂): pixels couple to entries Y = 0 alone, pairs to entries Y = 1 alone."""
        if len(self.classes) == 0:
            return 0.0
        return float(max(self.kappa * np.sqrt(self.pixels), np.linalg.norm(self.weights, 2)))

    def spectrum(self, layout: Layout) -> tuple[float, float]:
        """The smallest and the largest eigenvalue of P H P.

        H sees only what all pixels have in common, so one pixel with κ √N in place of κ stands
        for all; a centered binary variable has one direction, (1, −1)/√2.
        """
        c = self.n_labels
        couple = self.kappa * np.sqrt(0.5 * self.pixels) * (np.eye(c) - 1.0 / c)[:, self.classes]
        whole = np.block([[np.zeros((c, c)), couple], [couple.T, 0.5 * self.weights]])
        ends = np.linalg.eigvalsh(whole)
        margin = 1e-12 * float(np.abs(ends).max())  # rounding must not break a bound
        return min(0.0, float(ends[0]) - margin), max(0.0, float(ends[-1]) + margin)

    def as_tables(self, layout: Layout) -> Iterator[Tables]:
        m = len(self.classes)
        pixel = np.repeat(np.arange(self.first, self.first + self.pixels), m)
        which = np.tile(np.arange(m), self.pixels)
        tables = np.zeros((m, self.n_labels, 2))
        tables[np.arange(m), self.classes, 0] = self.kappa
        yield np.stack([pixel, self.presence + which], axis=1), tables, which
        a, b = np.triu_indices(m, 1)
        pairs = np.zeros((len(a), 2, 2))
        pairs[:, 1, 1] = self.weights[a, b]
        yield self.presence + np.stack([a, b], axis=1), pairs, np.arange(len(a))


class TabledCooccurrence(LatentCooccurrence):
    """`Cooccurrence` with ``tables=True``, lowered to pairwise tables."""

    def lower(self, layout: Layout, builder: Builder) -> None:
        for scopes, tables, which in self.as_tables(layout):
            assert which is not None
            builder.add_tables(scopes, tables, which)

    def neighbors(self, layout: Layout) -> Ints:
        return np.concatenate([scopes for scopes, _, _ in self.as_tables(layout)])


# ---- the envelope ----


def envelope(absent: Floats, weights: Floats) -> tuple[float, NDArray[np.float64]]:
    """min_r ⟨absent·(1 − y) + ½ yᵀ w y⟩_r − H(r) over distributions r of y, and P_r(y_l = 0).

    With more than `MAX_EXACT_CLASSES` undecided y, an upper bound on the minimum.

    Args:
        absent: What each y_l = 0 costs, 0 or more.  # (m,)
        weights: What pairs y_a = y_b = 1 cost, 0 or more; symmetric.  # (m, m)

    Example:
        >>> e, off = envelope(np.array([0.0, 100.0]), np.array([[0.0, 3.0], [3.0, 0.0]]))
        >>> round(e, 4), off.round(4)  # the second is there, the first may be: −log(1 + e⁻³)
        (-0.0486, array([0.9526, 0.    ]))
    """
    on = off = np.zeros(len(absent), dtype=bool)  # decided, whatever the undecided ones are
    before = None
    while before is None or (on != before[0]).any() or (off != before[1]).any():  # both only grow
        price = weights @ ~off - absent, weights @ on - absent  # of presence: at most, at least
        before = on, off
        on, off = on | (price[0] <= -SATURATION_ENERGY), off | (price[1] >= SATURATION_ENERGY)
    left = np.flatnonzero(~(on | off))
    least = float(absent[off].sum() + 0.5 * weights[np.ix_(on, on)].sum())
    out = off.astype(np.float64)
    if len(left):
        present = weights[np.ix_(left, on)].sum(axis=1)
        solve = _summed if len(left) <= MAX_EXACT_CLASSES else _factorized
        more, out[left] = solve(absent[left], present, weights[np.ix_(left, left)])
        least += more
    return least, out


@lru_cache(maxsize=MAX_EXACT_CLASSES + 1)
def _states(m: int) -> NDArray[np.float64]:
    """Every y.  # (2^m, m)"""
    return ((np.arange(2**m)[:, None] >> np.arange(m)) & 1).astype(np.float64)


def _summed(absent: Floats, present: Floats, weights: Floats) -> tuple[float, NDArray[np.float64]]:
    """The sum over all states; only differences of energies are exponentiated."""
    y = _states(len(absent))
    energies = (1 - y) @ absent + y @ present + 0.5 * ((y @ weights) * y).sum(axis=1)
    low = energies.min()
    p = np.exp(low - energies)
    return float(low - np.log(p.sum())), np.asarray(((1 - y).T @ p) / p.sum())


def _factorized(
    absent: Floats, present: Floats, weights: Floats
) -> tuple[float, NDArray[np.float64]]:
    """The better of two coordinate descents over independent y, from all and from none."""
    order = np.argsort(-absent, kind="stable")  # classes of many pixels choose first
    found = []
    for on in (np.ones(len(absent)), np.zeros(len(absent))):
        for _ in range(MAX_SWEEPS):
            before = on.copy()
            for k in order:
                on[k] = np.exp(-np.logaddexp(0.0, present[k] + weights[k] @ on - absent[k]))
            if np.abs(on - before).max() <= 1e-13:
                break
        price = present + weights @ on - absent
        log_on, log_off = -np.logaddexp(0.0, price), -np.logaddexp(0.0, -price)
        on, off = np.exp(log_on), np.exp(log_off)
        energy = absent @ off + present @ on + 0.5 * (on @ weights @ on)
        found.append((float(energy + on @ log_on + off @ log_off), off))
    return min(found, key=lambda pair: pair[0])


# ---- checking arguments ----


def _check_block(layout: Layout, start: int, count: int, n_labels: int, what: str) -> None:
    if start + count > layout.n_vars:
        raise InputError(
            f"{what} are variables {start} to {start + count - 1}, but there are {layout.n_vars}"
        )
    wrong = np.flatnonzero(layout.cardinalities[start : start + count] != n_labels)
    if len(wrong):
        v = start + int(wrong[0])
        c = int(layout.cardinalities[v])
        raise InputError(f"{layout.show(v)} has {c} labels, but {what} have {n_labels}")


def _size(value: Any, what: str) -> float:
    number = as_floats(value, what)
    if number.ndim or not number >= 0:
        raise InputError(f"{what}={shown(value)}, expected a number, 0 or more")
    return float(number)
