"""Occupancy maps: which locations are occupied, given masks of the foreground in some cameras.

One binary variable per location; label 1 says that somebody is there. Write q_i for its
probability, p_i = 1 − q_i, and per camera N_x = Π_{i: x ∈ R_i} p_i, the probability that nobody
covers the pixel x, where R_i is the silhouette of location i. B_x is the mask: 1 where the
camera sees foreground.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.arrays import Arrays
from proxfield.core.common.checks import above_zero, check_real, one_of, whole_number
from proxfield.core.engines.terms import register
from proxfield.core.terms.base import Floats, Ints, Layout, Tables, Term, as_floats
from proxfield.core.terms.registry import TERMS, library_form
from proxfield.errors import InputError, UnsupportedError
from proxfield.people.numba import DIRECT, SMALLEST
from proxfield.people.silhouettes import Boxes, Runs, Silhouettes

if TYPE_CHECKING:
    from typing_extensions import Self

PIXEL_BYTES = 64
"""Of arrays per pixel: weights, shares, integral images and what numpy needs to make them."""
MAX_TABLE_LOCATIONS = 12
"""Maximum number of locations over a pixel for tables (`Term.as_tables`)."""
MODELS = ("exact", "ratio")
STRENGTH = 20.0
"""Independent observations that a body counts for."""


class Occupancy(Term):
    """Explains the masks of several cameras by people at some locations.

    Energies come in two forms, chosen by ``model``:

    - "exact": pixels are independent given where people are: a pixel that somebody covers is
      foreground with probability 1 − ``miss``, any other with probability ``false_alarm``.
      E = Σ_c Σ_x w_x N_x + constant with w_x = κ/a_x · [B_x log((1 − m)/f) + (1 − B_x)
      log(m/(1 − f))], where a_x is the mean area of the silhouettes over x: neighboring pixels
      aren't independent, and a whole body counts as κ observations (``strength``). Multilinear, so
      that −F is a bound on log Z.
    - "ratio": the objective of the original program, Σ_c Ψ_c²/(2 ``variance``), where Ψ_c is the
      difference between the mask and the expected image, relative to the expected foreground.
      It isn't an expectation, so −F is no bound on log Z.

    Prior probabilities are a `Unary` term.

    Curvature of the exact energy: H_ij = Σ_c Σ_{x ∈ R_i ∩ R_j} w_x N_x/(p_i p_j). Relative to the
    entropy's curvature 1/(q_i p_i), one pixel contributes w N (vvᵀ − diag(o)), where o_i = q_i/p_i
    are the odds of the locations that cover it, v_i = √o_i, and N = Π 1/(1 + o_i). Its eigenvalues
    are at most w/e for w > 0 and ``|w|/4`` for w < 0, however many silhouettes overlap:

    - If λ > 0 is one of vvᵀ − diag(o), then t_i = o_i/(λ + o_i) add up to 1, and −log N =
      Σ log(1 + (λ − 1) t_i) − Σ log(1 − t_i). For λ ≥ 1 the first sum is at least log λ and the
      second at least 1; for λ < 1 every summand of both is convex in t_i, hence at least λ t_i
      together, and λ ≥ 1 + log λ. So λ N ≤ 1/e.
    - If −s < 0 is the smallest, then s lies between the two largest odds, and for given s the
      product Π (1 + o_i) is least with two locations, where s = √(o_1 o_2) and
      (1 + o_1)(1 + o_2) ≥ (1 + s)² ≥ 4 s. So s N ≤ 1/4.

    Hence ΔᵀHΔ ≤ Σ_i L_i Δ_i²/(q_i p_i) with L_i = Σ_c Σ_{x ∈ R_i} (w⁺/e + w⁻/4): see
    `relative_curvature`.

    Args:
        silhouettes: Of each camera; all for the same locations.
        masks: Of each camera, 0 (background) to 1 (foreground), booleans or 8-bit values; None
            for a camera without one, which counts for nothing.  # (height, width) each
        model: "exact" or "ratio".
        miss: Probability that a pixel of a person is missing in the mask ("exact").
        false_alarm: Probability that a pixel of the background is in the mask ("exact").
        strength: κ, how many independent observations a body counts for ("exact").
        variance: σ² of the original program ("ratio").
        floor: Share of the image that is added to both sides of the ratio ("ratio").
        first: Number of the variable of the first location; the others follow it.

    Example:
        >>> import proxfield as pf
        >>> boxes = pf.Boxes(2, 4, [[0, 0, 2, 2], [2, 0, 4, 2]])
        >>> mask = [[1, 1, 0, 0], [1, 1, 0, 0]]
        >>> field = pf.Field(2, 2, [Occupancy([boxes], [mask]), pf.Unary([[0, 3], [0, 3]])])
        >>> (pf.infer(field).marginals[:, 1] > 0.5).tolist()
        [True, False]
    """

    name = "occupancy"
    model: str

    def __new__(cls, *_: object, model: str = "exact", **__: object) -> Occupancy:
        # what a term offers is a matter of its class
        if cls is Occupancy:
            one_of("model", model, MODELS)
            cls = RatioOccupancy if model == "ratio" else ExactOccupancy
        return object.__new__(cls)

    def __init__(
        self,
        silhouettes: Sequence[Silhouettes],
        masks: Sequence[ArrayLike | None],
        *,
        model: str = "exact",
        miss: float = 0.3,
        false_alarm: float = 0.05,
        strength: float = STRENGTH,
        variance: float = 0.01,
        floor: float = 0.01,
        first: int = 0,
    ) -> None:
        if len(silhouettes) == 0:
            raise InputError("an occupancy map needs at least one camera")
        if len(silhouettes) != len(masks):
            raise InputError(f"{len(silhouettes)} cameras but {len(masks)} masks")
        counts = {s.n_locations for s in silhouettes}
        if len(counts) > 1:
            raise InputError(f"cameras with different numbers of locations: {sorted(counts)}")
        for key, value in (("miss", miss), ("false_alarm", false_alarm)):
            check_real(key, value, lambda v: 0 < v < 1, "above 0 and below 1")
        if miss + false_alarm >= 1:
            raise InputError(
                f"miss={miss:g} and false_alarm={false_alarm:g} add up to 1 or more: "
                "foreground would be a sign that nobody is there"
            )
        for key, value in (("strength", strength), ("variance", variance), ("floor", floor)):
            above_zero(key, value)
        self.n_locations, self.first = counts.pop(), whole_number(first, "first", 0)
        found = [
            (s, *_read_mask(m, s, k))
            for k, (s, m) in enumerate(zip(silhouettes, masks, strict=True))
            if m is not None
        ]
        self.silhouettes = tuple(s for s, _, _ in found)
        self.masks = tuple(mask for _, mask, _ in found)
        self.compact = tuple(compact for _, _, compact in found)
        self.miss, self.false_alarm = float(miss), float(false_alarm)
        self.strength, self.variance, self.floor = float(strength), float(variance), float(floor)

    def validate(self, layout: Layout) -> None:
        last = self.first + self.n_locations
        if last > layout.n_vars:
            after = f" after variable {self.first}" if self.first else ""
            raise InputError(
                f"{self.n_locations} locations but {layout.n_vars - self.first} variables{after}"
            )
        wrong = np.flatnonzero(layout.cardinalities[self.first : last] != 2)
        if len(wrong):
            v = self.first + int(wrong[0])
            raise InputError(
                f"{layout.show(v)} has {layout.cardinalities[v]} labels; "
                "a location has 2: 0 nobody, 1 somebody"
            )

    @property
    def nbytes(self) -> int:
        return sum(m.nbytes for m in self.masks) + sum(s.nbytes for s in self.silhouettes)

    def workspace(self, layout: Layout) -> int:
        pixels = sum((s.height + 1) * (s.width + 1) for s in self.silhouettes)
        return PIXEL_BYTES * pixels + 2 * sum(s.nbytes for s in self.silhouettes)

    def scope(self, layout: Layout) -> Ints:
        return np.arange(self.first, self.first + self.n_locations)

    def images(self) -> Iterator[tuple[Silhouettes, Floats]]:
        """Each camera that has a mask: its silhouettes and its mask."""
        yield from zip(self.silhouettes, self.masks, strict=True)

    def bounds_log_z(self, layout: Layout) -> bool:
        return self.model == "exact"

    def energy_at(self, logs: Floats) -> float:
        """The energy.  # logs: (n,)"""
        raise NotImplementedError

    def slopes_at(self, logs: Floats) -> NDArray[np.float64]:
        """∂E/∂p_i.  # (n,) -> (n,)"""
        raise NotImplementedError

    def labelling_energy(self, layout: Layout, labels: Ints) -> float:
        mine = labels[self.first : self.first + self.n_locations]
        return self.energy_at(np.where(mine == 1, np.log(SMALLEST), 0.0))

    def energy(self, layout: Layout, q: Floats) -> float:
        return self.energy_at(log_empty(q[self.entries(layout)]))

    def add_gradient(self, layout: Layout, q: Floats, out: Floats) -> None:
        at = self.entries(layout)
        out[at] += self.slopes_at(log_empty(q[at])).astype(out.dtype)

    def entries(self, layout: Layout) -> slice:
        """Where p_i of each location is in a flat array."""
        start = 2 * self.first if layout.common == 2 else int(layout.offsets[self.first])
        return slice(start, start + 2 * self.n_locations, 2)

    def to_arrays(self) -> dict[str, ArrayLike]:
        keys = ("n_locations", "first", "miss", "false_alarm", "strength", "variance", "floor")
        parts: dict[str, ArrayLike] = {key: getattr(self, key) for key in keys}
        for k, (s, mask) in enumerate(self.images()):
            parts[f"mask_{k}"] = mask
            parts.update({f"{name}_{k}": part for name, part in s.to_arrays().items()})
        return parts

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> Self:
        parts = dict(arrays)
        n = whole_number(parts.pop("n_locations").item(), "n_locations", 0)
        silhouettes: list[Silhouettes] = []
        masks: list[NDArray[np.float64] | None] = []
        while f"mask_{len(masks)}" in parts:
            k = len(masks)
            mask = as_floats(parts.pop(f"mask_{k}"), f"the mask of camera {k}")
            if mask.ndim != 2:
                raise InputError(f"the mask of camera {k} has shape {mask.shape}, expected rows")
            boxes, runs, starts = (parts.pop(f"{n}_{k}", None) for n in ("boxes", "runs", "starts"))
            height, width = mask.shape
            if boxes is not None:
                silhouettes.append(Boxes(height, width, boxes))
            elif runs is not None and starts is not None:
                silhouettes.append(Runs(height, width, runs, starts))
            else:
                raise InputError("silhouettes need boxes, or runs and where they start")
            masks.append(mask)
        if not masks:  # none of the cameras had a mask
            silhouettes, masks = [Boxes(1, 1, np.zeros((n, 4), dtype=np.int64))], [None]
        out = cls(silhouettes, masks, **{key: part.item() for key, part in parts.items()})
        if out.n_locations != n:
            raise InputError(f"silhouettes of {out.n_locations} locations, expected {n}")
        return out


@library_form("occupancy")
class ExactOccupancy(Occupancy):
    """`Occupancy` with ``model="exact"``."""

    model = "exact"

    @cached_property
    def weights(self) -> tuple[NDArray[np.float64], ...]:
        """w_x of each camera: what it costs if nobody covers the pixel.  # (height, width) each"""
        unseen, seen = self.observed
        weights = []
        for s, mask in self.images():
            w: NDArray[np.float64] = mask * np.float64(seen - unseen)
            w += unseen
            w *= s.per_area
            weights.append(w)
        return tuple(weights)

    @property
    def observed(self) -> tuple[float, float]:
        """w_x a_x of a pixel of the background and of one of the foreground."""
        unseen = float(np.log(self.miss / (1 - self.false_alarm)))
        seen = float(np.log((1 - self.miss) / self.false_alarm))
        return self.strength * unseen, self.strength * seen

    @cached_property
    def constant(self) -> float:
        """The energy where somebody covers every pixel that can be covered."""
        seen, unseen = np.log(1 - self.miss), np.log(self.miss)
        total = 0.0
        for s, mask in self.images():
            covered = float(np.einsum("yx,yx->", s.per_area, mask))  # vdot would start threads
            total += (seen - unseen) * covered + unseen * s.shares
        return -self.strength * total

    def energy_at(self, logs: Floats) -> float:
        pairs = zip(self.silhouettes, self.weights, strict=True)
        return self.constant + float(sum((w * np.exp(s.cover(logs))).sum() for s, w in pairs))

    def slopes_at(self, logs: Floats) -> NDArray[np.float64]:
        """∂E/∂p_i = Σ_c Σ_{x ∈ R_i} w_x N_x/p_i."""
        total = np.zeros(self.n_locations)
        for s, w in zip(self.silhouettes, self.weights, strict=True):
            total += without(s, s.cover(logs), logs, w)
        return total

    def visits(self, layout: Layout, q: Floats) -> OccupancyVisits:
        return OccupancyVisits(self, layout, log_empty(q[self.entries(layout)]))

    def _spread(self, images: Sequence[Floats]) -> NDArray[np.float64]:
        """Sums of an image per camera over each location's silhouettes, over all cameras."""
        total = np.zeros(self.n_locations)
        for s, image in zip(self.silhouettes, images, strict=True):
            total += s.collect(image)
        return total

    def magnitude(self, layout: Layout) -> float:
        most = max(map(abs, self.observed))
        return abs(self.constant) + most * sum(s.shares for s in self.silhouettes)

    def relative_curvature(self, layout: Layout) -> Floats:
        bounds = [np.maximum(w, 0) / math.e + np.maximum(-w, 0) / 4 for w in self.weights]
        return self._widen(layout, self._spread(bounds))

    def curvature(self, layout: Layout) -> Floats:
        return self._widen(layout, 0.5 * self._overlaps)

    def _widen(self, layout: Layout, values: Floats) -> NDArray[np.float64]:
        """A number per location as one per variable, 0 for others.  # (n,) -> (n_vars,)"""
        out = np.zeros(layout.n_vars)
        out[self.first : self.first + self.n_locations] = values
        return out

    def lipschitz(self, layout: Layout) -> float:
        return float(self._overlaps.max(initial=0.0))

    @cached_property
    def _overlaps(self) -> NDArray[np.float64]:
        """Σ_j |H_ij| is at most Σ_c Σ_{x ∈ R_i} |w_x| · (silhouettes over x, without i).  # (n,)"""
        images = []
        for s, w in zip(self.silhouettes, self.weights, strict=True):
            others = np.maximum(0.0, np.rint(s.cover(s.visible.astype(float))) - 1)
            images.append(np.abs(w) * others)
        return self._spread(images)

    def as_tables(self, layout: Layout) -> Iterator[Tables]:
        """One table for each set of locations that some pixels share: for small scenes."""
        weights: dict[tuple[int, ...], float] = {}
        for s, w in zip(self.silhouettes, self.weights, strict=True):
            if s.cover(s.visible.astype(float)).max(initial=0) > MAX_TABLE_LOCATIONS + 0.5:
                raise UnsupportedError(
                    f"more than {MAX_TABLE_LOCATIONS} locations cover one pixel: "
                    "their table would be too large"
                )
            over: dict[int, list[int]] = {}
            for i in range(self.n_locations):
                for x in s.pixels(i).tolist():
                    over.setdefault(x, []).append(i + self.first)
            for x, locations in over.items():
                scope = tuple(locations)
                weights[scope] = weights.get(scope, 0.0) + float(w.flat[x])
        yield np.zeros((1, 0), dtype=np.int64), np.array([self.constant]), None
        for scope, weight in weights.items():
            table = np.zeros((1, *[2] * len(scope)))
            table.flat[0] = weight
            yield np.array([scope], dtype=np.int64), table, None


class OccupancyVisits:
    """`Visits` of the exact energy: log N of every pixel, kept up to date."""

    def __init__(self, term: ExactOccupancy, layout: Layout, logs: NDArray[np.float64]) -> None:
        self.term, self.layout, self.logs = term, layout, logs
        self.covers = [s.cover(logs).ravel() for s in term.silhouettes]
        self.weights = [w.ravel() for w in term.weights]

    def gradient(self, variable: int) -> Floats:
        location = variable - self.term.first
        if not 0 <= location < self.term.n_locations:
            return np.zeros(int(self.layout.cardinalities[variable]))
        total = 0.0
        for s, w, cover in zip(self.term.silhouettes, self.weights, self.covers, strict=True):
            at = s.pixels(location)
            total += float((w[at] * np.exp(cover[at] - self.logs[location])).sum())
        return np.array([total, 0.0])

    def move(self, variable: int, q: Floats) -> None:
        location = variable - self.term.first
        if not 0 <= location < self.term.n_locations:
            return
        new = float(log_empty(q[:1])[0])
        for s, cover in zip(self.term.silhouettes, self.covers, strict=True):
            cover[s.pixels(location)] += new - self.logs[location]
        self.logs[location] = new


@library_form("occupancy-ratio")
class RatioOccupancy(Occupancy):
    """`Occupancy` with ``model="ratio"``.

    Ψ = num/den with den = εG + Σ_x A_x and num = εG + Σ_x [A_x (1 − B_x) + (1 − A_x) B_x], where
    A = 1 − N, G is the number of pixels and ε the ``floor``.
    """

    model = "ratio"

    def sums(self, mask: Floats, empty: Floats) -> tuple[float, float]:
        """num and den of one camera.  # empty: N, (height, width)"""
        ground = self.floor * mask.size
        den = ground + float((1 - empty).sum())
        return ground + float((mask + (1 - empty) * (1 - 2 * mask)).sum()), den

    def energy_at(self, logs: Floats) -> float:
        total = 0.0
        for s, mask in self.images():
            num, den = self.sums(mask, np.exp(s.cover(logs)))
            total += (num / den) ** 2 / (2 * self.variance)
        return total

    def slopes_at(self, logs: Floats) -> NDArray[np.float64]:
        """∂E/∂p_i = −Σ_c Ψ/(σ² den) · (d_i − Ψ a_i)/p_i, a_i = Σ_R N, d_i = Σ_R N (1 − 2B)."""
        total = np.zeros(self.n_locations)
        for s, mask in self.images():
            cover = s.cover(logs)
            num, den = self.sums(mask, np.exp(cover))
            psi = num / den
            slope = psi / (self.variance * den)
            total -= slope * without(s, cover, logs, 1 - 2 * mask - psi)
        return total

    def changes_at(self, logs: Floats, ignored: float = 1.0) -> NDArray[np.float64]:
        """The energy with somebody at i minus that with nobody, all others as expected.

        D_i = Σ_c (Ψ1² − Ψ0²)/(2σ²), with Ψ1 = (num + d_i)/(den + a_i) and, for λ = 1 − 1/p_i,
        Ψ0 = (num + λ d_i)/(den + λ a_i). Not a gradient; see the rule "original".

        Args:
            logs: log p_i.  # (n,)
            ignored: Locations with a larger p_i don't count in the expected images.

        Returns:
            D_i.  # (n,)
        """
        total = np.zeros(self.n_locations)
        p = np.exp(logs)
        counted = np.where(p <= ignored * (1 + 1e-12), logs, 0.0)  # p may have been rounded up
        for s, mask in self.images():
            cover = s.cover(counted)
            num, den = self.sums(mask, np.exp(cover))
            images = np.ones_like(mask), 1 - 2 * mask
            a, d = (without(s, cover, logs, image) for image in images)  # a_i/p_i and d_i/p_i
            there = (num + p * d) / (den + p * a)
            empty = (num + p * d - d) / (den + p * a - a)
            total += (there**2 - empty**2) / (2 * self.variance)
        return total

    def magnitude(self, layout: Layout) -> float:
        worst = ((m.size * (1 + self.floor)) / (self.floor * m.size) for m in self.masks)
        return float(sum(ratio**2 / (2 * self.variance) for ratio in worst))


def log_empty(p: Floats) -> NDArray[np.float64]:
    """log p_i from p_i.  # (n,) -> (n,)"""
    return np.log(np.maximum(np.asarray(p, dtype=np.float64), SMALLEST))


def without(s: Silhouettes, cover: Floats, logs: Floats, image: Floats) -> NDArray[np.float64]:
    """Σ_{x ∈ R_i} image_x N_x/p_i: sums over each silhouette as if its location were empty.

    Args:
        s: Silhouettes of one camera.
        cover: log N.  # (height, width)
        logs: log p_i.  # (n,)
        image: What is summed.  # (height, width)
    """
    sums = s.collect(image * np.exp(cover)) / np.exp(logs)
    for i in np.flatnonzero(logs < np.log(DIRECT)):
        at = s.pixels(int(i))
        sums[i] = (image.ravel()[at] * np.exp(cover.ravel()[at] - logs[i])).sum()
    return np.asarray(sums)


def _read_mask(
    mask: ArrayLike, s: Silhouettes, camera: int
) -> tuple[NDArray[np.float64], NDArray[np.generic]]:
    """A mask from 0 to 1, and the same in 8 bits if it was given so: an eighth to copy."""
    raw = np.asarray(mask)
    compact: NDArray[np.generic] = np.array(raw)
    if raw.dtype == np.bool_:
        compact = np.where(raw, np.uint8(255), np.uint8(0))
        out = raw.astype(np.float64)
    elif raw.dtype == np.uint8:
        out = raw / 255.0
    else:
        compact = out = as_floats(raw, f"the mask of camera {camera}")
    if out.shape != (s.height, s.width):
        size = "×".join(map(str, out.shape[::-1]))
        raise InputError(
            f"the mask of camera {camera} has {size} pixels, its silhouettes are for "
            f"{s.width}×{s.height}"
        )
    if compact is out and (out.min() < 0 or out.max() > 1):
        raise InputError(f"the mask of camera {camera} has values outside of 0 to 1")
    return out, compact


TERMS[Occupancy.name] = Occupancy
for _form in (ExactOccupancy, RatioOccupancy):
    register(_form, "cpu", "proxfield.people.numba.occupancy:OccupancyOnCpu")
register(ExactOccupancy, "cuda", "proxfield.people.triton.occupancy:OccupancyOnDevice")
register(RatioOccupancy, "cuda", "proxfield.people.triton.occupancy:RatioOnDevice")
