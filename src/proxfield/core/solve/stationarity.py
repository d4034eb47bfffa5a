"""The tests behind CONVERGED and SADDLE: is a state a fixed point, and is that a minimum?

A fixed point satisfies q = softmax(−g(q)). A small change of q by an update is not enough: where
q is close to a corner of the simplex, θ can be far from its target while q hardly moves.

A fixed point is a local minimum of F if the Hessian of F on the simplices has no negative
eigenvalue. With S the covariance of q (block by block diag(q_i) − q_i q_iᵀ, the inverse of the
entropy's curvature) and R such that S = R Rᵀ, that is the case if no eigenvalue of Rᵀ H R is
below −1, where H is the Hessian of E. R = diag(√q)(I − √q √qᵀ) is known in closed form, and
products with H are differences of gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Array, Doubles, Floats
from proxfield.core.engines.base import Batch, Program, State, Tangent
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.terms.base import Layout, offers

RESIDUAL_FACTOR = 2.0
"""A Ritz value counts as the lowest if it is above −1 by so many times its residual."""
MIN_PRODUCTS = 10
"""Products with H before a fixed point may be called a minimum, and half a product more for each
doubling of the number of entries: a direction that concerns few variables takes as many to show."""
MAX_PRODUCTS = 60
RELATIVE_STEP = 0.5
"""Largest relative change of a marginal in a difference of gradients."""
EIGENVALUE_MARGIN = {"float64": 1e-7, "float32": 1e-2}
MIN_MARGINAL = {"float64": 1e-10, "float32": 1e-4}
"""Marginals below this are left out of the second-order test."""
PROOF_PRODUCTS, PROOF_MARGIN, SMALLEST_SHARE = 8, 1e-2, 1e-4
"""Of `proves_minimum`: how often it tries, what rounding may take, the least entry of v."""
DIRECTION, OFFSET = 0x5ADD1E, 0x0FF5E7
"""Parts of seeds: of the first direction of the test, and of the noise that breaks symmetries."""
NOISE_SCALE = 1e-2
"""Standard deviation of the noise on θ that breaks what symmetries are left."""


class Verdict(Enum):
    """What the second-order test found."""

    MINIMUM = "no direction of negative curvature"
    SADDLE = "F falls along a direction"
    UNDECIDED = "time or products ran out"


@dataclass(frozen=True)
class Judgement:
    """A verdict and, for a saddle, marginals nearby where F is lower."""

    verdict: Verdict
    lower: Doubles | None = None
    free_energy: float = np.inf


def fixed_points(program: Batch[Any, Any], state: object, tol: float) -> NDArray[np.bool_]:
    """Whether softmax(−g(q)) of each field is within ``tol`` of q, up to rounding.  # (fields,)"""
    residual, rounding = program.residual_each(state)
    return np.asarray(residual <= tol + rounding)


def judge(
    program: Program,
    state: State,
    *,
    seed: int = 0,
    max_products: int = MAX_PRODUCTS,
    min_products: int = 0,
    late: Callable[[], bool] = lambda: False,
    space: Scaled | None = None,
) -> Judgement:
    """Test whether a fixed point is a minimum of F; its state doesn't change.

    Args:
        program: The field.
        state: A fixed point.
        seed: Random seed of the first direction.
        max_products: Maximum number of products with H.
        min_products: Products that are made even if it is late.
        late: Is it time to give up?
        space: The scaled Hessian, if it is another than that of the program's field.

    Returns:
        A saddle is only called so if a point of lower F was found.
    """
    lowered, dtype = program.lowered, program.dtype.name
    if space is None:
        if lowered.layout.size == 0 or not any(True for _ in lowered.terms):
            return Judgement(Verdict.MINIMUM)
        quadratic = not lowered.hard and all(t.degree == 2 for t in lowered.terms)
        space = Scaled(program.tangent(state), quadratic, MIN_MARGINAL[dtype])
    if not space.free:
        return Judgement(Verdict.MINIMUM)
    products = min_products, max_products
    verdict, direction = lowest_curvature(space, seed, EIGENVALUE_MARGIN[dtype], products, late)
    if direction is None:
        return Judgement(verdict)
    relative = space.relative(direction)
    unit = space.tangent.to_host(relative / space.largest(relative))
    return descend_along(program, state, unit)


def proves_minimum(lowered: Lowered, q: Floats, late: Callable[[], bool] = lambda: False) -> bool:
    """Whether a bound shows that all eigenvalues of Rᵀ H R are above −1, for any fixed point q.

    ‖(Rᵀ H R)_ij‖₂ is at most s_i a_ij s_j, where s_i² bounds the largest eigenvalue of S_i and
    a_ij is that of `Term.coupling_norms`. The largest eigenvalue of such a matrix without negative
    entries is at most the largest (B v)_i / v_i, for any v > 0 (Collatz and Wielandt); v is found
    by power iteration. One number per variable instead of one per label: where most marginals are
    close to 0 or 1, as those of images, this takes a small part of the time of `judge`.

    Once it is late, nothing is proved.
    """
    terms, layout = list(lowered.terms), lowered.layout
    if not layout.size or not all(offers(term, "coupling_norms") for term in terms):
        return False
    starts = layout.offsets[:-1]
    q = np.asarray(q, dtype=np.float64)
    spread = np.maximum.reduceat(2.0 * q * (1.0 - q), starts)  # Gershgorin, and the trace
    spread = np.minimum(spread, 1.0 - np.add.reduceat(q * q, starts))
    s = np.sqrt(np.maximum(spread, 0.0))
    v = s + SMALLEST_SHARE
    for _ in range(PROOF_PRODUCTS):
        if late():
            return False
        product = s * sum(term.coupling_norms(layout, s * v) for term in terms)
        if np.max(product / v) < 1.0 - PROOF_MARGIN:
            return True
        if product @ v >= v @ v:  # an eigenvalue of the bound is 1 or more: no v can prove it
            return False
        v = product / product.max() + SMALLEST_SHARE
    return False


class Scaled:
    """Rᵀ H R at a fixed point; see the module's text.

    Args:
        tangent: The fixed point.
        quadratic: Whether all terms are pairwise, so that the gradient is affine.
        negligible: Marginals below this are left out.
    """

    def __init__(self, tangent: Tangent, quadratic: bool, negligible: float) -> None:
        self.tangent = tangent
        q = tangent.q
        self.kept = q > negligible
        self.q = q * self.kept
        self.root = self.q**0.5
        self.free = self.largest(self.q * (1.0 - self.q)) > negligible
        self.g = tangent.gradient(q) if quadratic else None

    @property
    def entries(self) -> int:
        """Length of a vector."""
        return int(self.q.shape[0])

    def noise(self, seed: int) -> Doubles:
        """A random vector, on the host."""
        return np.random.default_rng([seed, DIRECTION]).normal(size=self.entries)

    def dot(self, a: Array, b: Array) -> float:
        """⟨a, b⟩."""
        return float((a * b).sum())

    def norm(self, a: Array) -> float:
        """‖a‖₂, also where the squares of entries overflow."""
        with np.errstate(over="ignore"):
            square = self.dot(a, a)
        if square < np.inf:
            return float(square**0.5)
        largest = self.largest(a)
        return float(largest * self.dot(a / largest, a / largest) ** 0.5)

    def largest(self, a: Array) -> float:
        """The largest absolute value of an entry."""
        return float(abs(a).max())

    def project(self, v: Array) -> Array:
        """Take out what R maps to 0: each variable's multiple of √q."""
        return (v - self.root * self.tangent.sums(self.root * v)) * self.kept

    def relative(self, v: Array) -> Array:
        """R v divided by q: the relative change of each marginal."""
        safe = self.root + (1.0 - 1.0 * self.kept)
        return (v / safe - self.tangent.sums(self.root * v)) * self.kept

    def apply(self, v: Array) -> Array:
        """Rᵀ H R v."""
        q, w = self.tangent.q, self.relative(v)
        largest = self.largest(w)
        if largest == 0.0:
            return 0.0 * v
        eps = RELATIVE_STEP / largest
        up = self.tangent.gradient(q + eps * (self.q * w))
        with np.errstate(invalid="ignore"):  # +inf of impossible labels
            if self.g is not None:  # the gradient is affine: one difference is exact
                h = (up - self.g) / eps
            else:
                h = (up - self.tangent.gradient(q - eps * (self.q * w))) / (2.0 * eps)
            h = self.tangent.where(self.kept & (abs(h) < np.inf), h, 0.0)
        return self.root * (h - self.tangent.sums(self.q * h)) * self.kept


def lowest_curvature(
    space: Scaled, seed: int, margin: float, products: tuple[int, int], late: Callable[[], bool]
) -> tuple[Verdict, Array | None]:
    """Look for an eigenvalue of Rᵀ H R below −1, by locally optimal conjugate gradients.

    Keeps three vectors and their products, however many steps it takes. A Ritz value below
    −1 proves a negative eigenvalue. One that stays above −1 by more than its residual is
    taken for the lowest after enough products. A saddle comes with the direction.
    """
    min_products, max_products = products
    dot, norm = space.dot, space.norm
    least = MIN_PRODUCTS + int(0.5 * np.log2(max(2, space.entries)))
    x = space.project(space.tangent.from_host(space.noise(seed)))
    if not norm(x) > 0.0:  # no direction is left
        return Verdict.MINIMUM, None
    x = x / norm(x)
    ax = space.apply(x)
    p = ap = None
    for made in range(1, max_products + 1):
        rho = dot(x, ax)
        r = ax - rho * x
        error = norm(r)
        if not np.isfinite(rho):
            return Verdict.UNDECIDED, None
        if rho < -1.0 - margin:
            return Verdict.SADDLE, x
        small = error <= 1e-9 * (1.0 + abs(rho))
        if small or (made >= least and rho - RESIDUAL_FACTOR * error > -1.0):
            return Verdict.MINIMUM, None
        if made == max_products or (made >= min_products and late()):
            return Verdict.UNDECIDED, None
        w = space.project(r)
        w = w - dot(x, w) * x
        if not norm(w) > 0.0:  # x is an eigenvector
            return Verdict.MINIMUM, None
        w = w / norm(w)
        basis, images = [x, w], [ax, space.apply(w)]
        if p is not None and ap is not None:
            for b, ab in zip(basis, images, strict=True):
                c = dot(b, p)
                p, ap = p - c * b, ap - c * ab
            length = norm(p)
            if length > 1e-8:
                basis.append(p / length)
                images.append(ap / length)
        small_matrix = np.array([[dot(b, a) for a in images] for b in basis])
        mix = np.linalg.eigh((small_matrix + small_matrix.T) / 2)[1][:, 0]
        p, ap = mix[1] * basis[1], mix[1] * images[1]
        if len(basis) > 2:
            p, ap = p + mix[2] * basis[2], ap + mix[2] * images[2]
        x, ax = mix[0] * x + p, mix[0] * ax + ap
        length = norm(x)
        x, ax = x / length, ax / length
        spread = norm(p)
        if spread > 0:
            p, ap = p / spread, ap / spread
    return Verdict.UNDECIDED, None


def descend_along(program: Program, state: State, unit: Doubles) -> Judgement:
    """Follow a direction of negative curvature, both ways, as long as F falls.

    The direction is given by relative changes of marginals, at most 1.  # (layout.size,)
    """
    layout = program.lowered.layout
    q = program.marginals(state).astype(np.float64)
    f = program.free_energy(state)
    slack = 1e-12 * (1.0 + abs(f))

    def at(t: float) -> tuple[float, Doubles]:
        moved = layout.normalize(q * np.exp(np.clip(t * unit, -50.0, 50.0)))
        return program.free_energy(program.start(moved)), moved

    for first in (0.5, 0.05, 0.005):
        tried = [(*at(sign * first), sign) for sign in (1.0, -1.0)]
        low, point, sign = min(tried, key=lambda item: item[0])
        if low < f - slack:
            break
    else:  # within rounding of F there is nothing to gain
        return Judgement(Verdict.MINIMUM)
    t = first
    while t < 8.0:
        t *= 2.0
        further, moved = at(sign * t)
        if not further < low:
            break
        low, point = further, moved
    return Judgement(Verdict.SADDLE, point, low)


def shifted(layout: Layout, q: Floats, by: Floats) -> Doubles:
    """Marginals with θ lowered by so much."""
    return layout.normalize(np.asarray(q, dtype=np.float64) * np.exp(by))
