"""Curvature of the energy: λ, μ, λ_i and L, and the steps they certify.

H is the Hessian of E, P the projection that centers each variable's block. A proximal
step with damping d lowers F whenever d ≥ max(0, λ/4 − ½), where λ is the largest signed
eigenvalue of P H P; the same holds per variable with λ_i = Σ_j ‖P H_ij P‖₂.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from dataclasses import field as field_of
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Array, Doubles
from proxfield.core.engines import compile_program
from proxfield.core.engines.plan import certifiable, damping_for, relative_damping
from proxfield.core.engines.registry import program_for
from proxfield.core.lowering.lowered import Lowered, lower
from proxfield.core.solve.lanczos import (
    HOST,
    PRODUCTS,
    TOLERANCE,
    HostVectors,
    Lanczos,
    StepRefinement,
    iterations_between,
)
from proxfield.core.terms.base import Floats, Term, missing, offers
from proxfield.core.terms.factor import Factor
from proxfield.errors import UnsupportedError

if TYPE_CHECKING:
    from proxfield.core.engines.base import Program
    from proxfield.field import Field

LANCZOS_MARGIN = 1e-3
"""Lanczos approaches eigenvalues from inside; what it finds is enlarged by this share."""
LANCZOS_PRODUCTS = 25
"""Products that Lanczos takes at least; where there is no time for them it isn't begun."""
MAX_DENSE_SIZE = 64
"""Operators up to this size are diagonalized directly."""
MIN_DEVICE_SIZE = 1 << 17
"""Entries of a field from which on the device that iterates multiplies faster than the host."""


@dataclass(eq=False)
class Curvature:
    """Curvature of one field, each number computed when first used.

    Args:
        lowered: The lowered field.
        field: The field itself, for L (which looks at the tables as they were given).
        kernels: The engine to multiply with.
        seconds: Maximum seconds to spend on an eigenvalue, or on the norms of all tables;
            after that a bound from the tables serves, which is certified too.
        now: The clock.
        program: Makes the program of a lowered field on the device on which it iterates; products
            of large fields are made there.
        stepwise: Is a certified step looked for while iterations go on? It is where seconds count,
            unless iterations run on another device, which would wait.
    """

    lowered: Lowered
    field: Field | None = None
    kernels: str = "cpu"
    seconds: float = np.inf
    now: Callable[[], float] = field_of(default_factory=lambda: time.perf_counter)
    stepwise: bool = False
    program: Callable[[Lowered], Program] | None = None
    product_seconds: float = field_of(default=0.0, init=False, repr=False)
    """Duration of one product with P H P, measured by `prepare`."""

    def prepare(self) -> None:
        """Do the part that counts as building the field, so that the rest can be timed.

        Compiles what is needed, and takes the bounds from the tables.
        """
        if all(offers(t, "curvature") for t in self.lowered.terms):  # else there is no bound
            _ = self.local
        if self.relative_terms and certifiable(self.lowered):
            _ = self.relative
        if any(by_lanczos(t) for t in self.lowered.terms) and not self.lowered.hard:
            apply, size, vectors = self._projected
            vectors.length(apply(vectors.zeros(size)))  # compiles, which must not count
            begun = self.now()
            vectors.length(apply(vectors.zeros(size)))  # and waits
            self.product_seconds = self.now() - begun

    @cached_property
    def local(self) -> NDArray[np.float64]:
        """λ_i, from the tables.  # (n_vars,)"""
        return self._local_of(list(self.lowered.terms))

    def _local_of(self, terms: list[Term]) -> Doubles:
        total = np.zeros(self.lowered.layout.n_vars)
        late = self._late()
        for term in terms:
            if not offers(term, "curvature"):
                raise missing(term, "curvature", "a certified step")
            # many norms: after the deadline, bounds on them
            more = (late,) if isinstance(term, Factor) else ()
            total += term.curvature(self.lowered.layout, *more)
        return total

    def _late(self) -> Callable[[], bool]:
        """Tells, from now on, whether the time is over."""
        deadline = self.now() + self.seconds
        return lambda: self.now() >= deadline

    @cached_property
    def largest(self) -> float:
        """λ: the largest signed eigenvalue of P H P, at least 0 (a bound: rounded up)."""
        return self._end(+1)

    @cached_property
    def smallest(self) -> float:
        """μ: minus the smallest eigenvalue of P H P, at least 0 (a bound: rounded up)."""
        return self._end(-1)

    def _end(self, sign: int) -> float:
        """The largest eigenvalue of sign · P H P."""
        low = self.lowered
        known = [t for t in low.extras if offers(t, "spectrum")]
        ends = (term.spectrum(low.layout) for term in known)
        closed = sum(max(0.0, high if sign > 0 else -least) for least, high in ends)
        others = [t for t in low.terms if t not in known]
        local = self._local_of(others) if known else self.local
        bound = float(local.max(initial=0.0))
        larger = [t for t in others if not by_lanczos(t)]
        if bound == 0.0 or not np.isfinite(bound) or len(larger) == len(others):
            return closed + bound
        rest = closed + float(self._local_of(larger).max(initial=0.0))
        if LANCZOS_PRODUCTS * self.product_seconds > self.seconds:
            return closed + bound
        apply, size, vectors = self._projected
        top = largest_eigenvalue(lambda v: sign * apply(v), size, bound, self._late(), vectors)
        return min(closed + bound, max(0.0, top) + rest)

    @cached_property
    def _projected(self) -> tuple[Callable[[Array], Array], int, HostVectors]:
        """P H P of the pairwise part, its dimension, and where its vectors are."""
        low = self.lowered
        if self.program is not None and low.layout.size >= MIN_DEVICE_SIZE:
            program = self.program(low)
            if hasattr(program, "products") and not any(by_lanczos(t) for t in low.extras):
                products = program.products()
                return products.apply, products.size, products
        if not (low.potts or low.factors or low.extras) and low.ising is not None:
            # spins: the block J·[[1, −1], [−1, 1]] has the one eigenvector (1, −1)/√2, with 2J
            program = program_for(low, self.kernels)
            couple: Callable[[Floats], Floats] | None = getattr(program, "couple", None)
            if couple is not None:
                return lambda v: 0.5 * couple(v), low.layout.n_vars, HOST
        center, apply = low.layout.center, pairwise_operator(low, self.kernels)
        return lambda v: center(apply(center(v))), low.layout.size, HOST

    def refinement(self) -> StepRefinement | None:
        """The search for a step above the one from λ_i, to be made as iterations go on.

        None where λ is known, or no λ_i certify a step, or λ takes no products with H.
        """
        low, terms = self.lowered, list(self.lowered.terms)
        pairs = [t for t in terms if by_lanczos(t)]
        bounded = all(offers(t, "curvature") and not offers(t, "spectrum") for t in terms)
        known = "largest" in vars(self) or self.relative_terms
        if not (self.stepwise and pairs and bounded) or known or not np.isfinite(self.local).all():
            return None
        others = [t for t in terms if not by_lanczos(t)]
        scaled = self._local_of(pairs) if others else self.local
        apply, size, _ = self._projected
        scale = np.sqrt(np.divide(1.0, scaled, out=np.zeros_like(scaled), where=scaled > 0))
        if size != low.layout.n_vars:
            scale = scale[low.layout.owner]
        lanczos = Lanczos(lambda v: scale * apply(scale * v), size, TOLERANCE)
        rest, every = self._local_of(others), iterations_between(low)
        ended = not scaled.any() or PRODUCTS * self.product_seconds > self.seconds
        return StepRefinement(lanczos, scaled, rest, every, self.seconds, self.now, ended)

    @cached_property
    def lipschitz(self) -> float:
        """L of the paper: ‖H‖₂ of the tables as they were given, without projection.

        Without the field as it was given, ‖P H P‖₂ (which does as well on the simplices).
        """
        if self.field is None:
            return max(self.largest, self.smallest)
        raw = lower(self.field.layout, self.field.terms, self.field.evidence, plain=True)
        for term in raw.terms:
            if not offers(term, "lipschitz"):
                raise missing(term, "lipschitz", 'step="lipschitz"')
        bound = sum(t.lipschitz(raw.layout) for t in raw.terms if by_lanczos(t))
        rest = sum(t.lipschitz(raw.layout) for t in raw.terms if not by_lanczos(t))
        if bound == 0.0 or not np.isfinite(bound + rest):
            return float(bound + rest)
        apply, size = pairwise_operator(raw, self.kernels), raw.layout.size
        up = largest_eigenvalue(apply, size, bound, self._late())
        down = largest_eigenvalue(lambda v: -apply(v), size, bound, self._late())
        return float(min(bound, max(up, down)) + rest)

    @property
    def relative_terms(self) -> list[Term]:
        """Terms that bound their curvature relative to the entropy's."""
        return [t for t in self.lowered.extras if offers(t, "relative_curvature")]

    @cached_property
    def relative(self) -> tuple[NDArray[np.float64], float]:
        """L_i of the terms that offer it, and λ of all others.  # (n_vars,)"""
        low = self.lowered
        bound = np.zeros(low.layout.n_vars)
        for term in self.relative_terms:
            bound += term.relative_curvature(low.layout)
        extras = tuple(t for t in low.extras if not offers(t, "relative_curvature"))
        rest = replace(self, lowered=replace(low, extras=extras), field=None)
        return bound, rest.largest

    def damping(self, scale: float = 1.0) -> NDArray[np.float64]:
        """The smallest certified d: from λ, or from relative bounds where that is less.

        Args:
            scale: Factor of the energy: 1/T at the temperature T.

        Returns:
            One number, or one per variable.  # () or (n_vars,)
        """
        if not self.relative_terms:
            return damping_for(scale * self.largest)
        bound, others = self.relative
        relative = relative_damping(scale * bound, scale * others)
        if not all(offers(t, "curvature") for t in self.relative_terms):
            return relative
        plain = damping_for(scale * self.largest)
        steps = 1 / (1 + plain), 1 / (1 + relative)
        return relative if steps[1].mean() > steps[0].mean() else plain

    def steps(self, step: float | str) -> NDArray[np.float64]:
        """A rule's ``step`` as one number per variable.  # (n_vars,)"""
        n = self.lowered.layout.n_vars
        if step == "certified":
            d = self.damping()
        elif step == "certified-relative":
            if not self.relative_terms:
                names = dict.fromkeys(type(t).__name__ for t in self.lowered.terms)
                raise UnsupportedError(
                    'step="certified-relative" needs a term with the method relative_curvature; '
                    f"of those here ({', '.join(names) or 'none'}) none has it; use "
                    'step="certified"'
                )
            d = relative_damping(*self.relative)
        elif step == "certified-local":
            d = damping_for(self.local)
        elif step == "lipschitz":
            d = np.asarray(self.lipschitz)
        else:
            return np.broadcast_to(float(step), n)
        if not np.isfinite(d).all():
            raise UnsupportedError(
                f"step={step!r} needs finite tables, but configurations are forbidden"
            )
        return np.broadcast_to(1.0 / (1.0 + d), n)


def by_lanczos(term: Term) -> bool:
    """Whether the term's H is constant, and its spectrum not known in closed form."""
    return term.degree == 2 and not offers(term, "spectrum")


def pairwise_operator(lowered: Lowered, kernels: str) -> Callable[[Floats], Floats]:
    """v ↦ H v for the pairwise part of a field, without forming H."""
    native = replace(
        lowered,
        unary=np.zeros(lowered.layout.size),
        factors=tuple(f for f in lowered.factors if f.degree == 2),
        extras=(),
    )
    program = compile_program(native, kernels)
    zero = program.gradient(np.zeros(lowered.layout.size))
    extras = [t for t in lowered.extras if by_lanczos(t)]
    for term in extras:  # a term may be affine: what it gives at 0 isn't curvature
        term.add_gradient(lowered.layout, np.zeros(lowered.layout.size), zero)

    def apply(v: Floats) -> Floats:
        out = program.gradient(v) - zero
        for term in extras:
            term.add_gradient(lowered.layout, v, out)
        return out

    return apply


def largest_eigenvalue(
    apply: Callable[[Array], Array],
    size: int,
    bound: float,
    late: Callable[[], bool] = lambda: False,
    vectors: HostVectors = HOST,
) -> float:
    """The largest eigenvalue of a symmetric operator, rounded up.

    ``bound``, which no eigenvalue exceeds, is returned where Lanczos doesn't converge in time.
    """
    if size <= MAX_DENSE_SIZE:
        dense = np.stack([vectors.get(apply(vectors.put(e))) for e in np.eye(size)])
        top = float(np.linalg.eigvalsh((dense + dense.T) / 2)[-1])
        return top + 1e-12 * abs(top)
    lanczos = Lanczos(apply, size, LANCZOS_MARGIN / 2, vectors=vectors)
    while not lanczos.exhausted and not late():
        lanczos.advance(PRODUCTS, late)
    if not lanczos.converged:
        return bound
    top = lanczos.value
    return top + LANCZOS_MARGIN * abs(top)
