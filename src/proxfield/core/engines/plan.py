"""Plans: how a state moves. Rules make them; every engine carries them out.

`Update` (all variables at once, the paper's unification), `Order` (one variable at a time, or a
color at a time) or `Custom` (a Python function). `Chains` are run by `Program.explore`.

The certified step is the largest 1 / (1 + d) that is known never to raise F.

λ is the largest signed eigenvalue of P H P, where H is the Hessian of the expected energy and P
centers each variable's block; λ_i is its bound for one variable. A proximal step with damping
d ≥ max(0, λ/4 − ½) lowers F.

Where the curvature is bounded relative to that of the entropy, ΔᵀHΔ ≤ Σ_i L_i Σ_l Δ_il²/q_il, the
energy of a term stays below its linear approximation plus Σ_i L_i KL(q⁺_i‖q_i). With
F(q⁺) ≤ F(q) + Σ_i [(L_i − d_i) KL(q⁺_i‖q_i) − (1 + d_i) KL(q_i‖q⁺_i)] + ½ λ‖Δ‖², where λ is
the curvature of all other terms, and both KLs at least ‖Δ_i‖², a step lowers F if d_i ≥ L_i and
(d_i − L_i) + (1 + d_i) ≥ λ/2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.arrays import Array, Floats, Ints
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.terms.base import offers

if TYPE_CHECKING:
    from proxfield.core.solve.lanczos import StepRefinement


class Space(Enum):
    """Where an update averages."""

    NATURAL = "natural"
    """θ moves; q = softmax(−θ)."""
    MEAN = "mean"
    """q moves: (1 − s) q + s softmax(−θ), where θ is the target or, with moments, made of it."""


class Kind(IntEnum):
    """The averages of which all parallel rules are made.

    Each says what kernels have to know about it; its formula is in one function per engine (see
    CONTRIBUTING). Numbers are consecutive from 0.

    Attributes:
        moments: Averages kept from one update to the next: 0, 1 (``u``) or 2 (``u`` and ``v``).
        space: Where it averages.
        centered: Whether its formula subtracts each variable's mean over the possible labels.
            One that isn't linear in θ, θ* and u has to: adding a constant to all energies of a
            variable must not change q.
    """

    moments: int
    space: Space
    centered: bool

    PROXIMAL = 0, 0  # θ ← θ − s (θ − θ*)
    MEAN = 1, 0, Space.MEAN  # q ← (1 − s) q + s q*
    MOMENTUM = 2, 1  # u ← γu + (1−γ)(θ − θ*);  θ ← θ − s u
    MOMENTUM_PRINTED = 3, 1  # u ← γu + (1−γ) θ*;  θ ← θ − s (θ − u)
    # moments of the centered θ − θ*;  θ ← θ − s u / (√v + ε)
    ADAM = 4, 2, Space.NATURAL, True
    # moments of the centered θ*, v's weights swapped;  θ ← θ − s (θ − u) / (√v + ε)
    ADAM_PRINTED = 5, 2, Space.NATURAL, True

    def __new__(
        cls, number: int, moments: int, space: Space = Space.NATURAL, centered: bool = False
    ) -> Kind:
        kind = int.__new__(cls, number)
        kind._value_ = number
        kind.moments, kind.space, kind.centered = moments, space, centered
        return kind

    @property
    def moment_names(self) -> tuple[str, ...]:
        """The moments that it keeps, by their names in a state.

        Example:
            >>> Kind.MOMENTUM.moment_names
            ('u',)
        """
        return ("u", "v")[: self.moments]

    @property
    def averages_marginals(self) -> bool:
        """Whether q moves, so that θ doesn't say all about it."""
        return self.space is Space.MEAN


@dataclass(frozen=True)
class Search:
    """A step that is found as the iteration goes, by looking at F after each update.

    An update that raises F is made again from where it began, with a smaller step.
    """

    first: float = 0.2  # the step of the first update
    growth: float = 1.1  # factor by which the step grows after an update
    shrinkage: float = 0.5  # factor by which it shrinks where F rose
    largest: float = 0.7  # maximum step


SMALLEST_STEP = 1e-10
"""A `Search` stops shrinking here: what is left of a rise is rounding."""


@dataclass(frozen=True)
class Update:
    """Move all variables at once.

    Args:
        kind: Which average.
        step: Step of each variable, 1 / (1 + d).  # (n_vars,)
        gamma1: Decay of the first moment.
        gamma2: Decay of the second moment.
        epsilon: Added to the root of the second moment.
        adaptive: Scale each variable's damping d by its uncertainty max_l 4 q_l (1 − q_l), and
            redo a step with ``fallback`` if F rose.
        fallback: A step that is certified not to raise F.  # (n_vars,)
        inverse_temperature: Targets are multiplied by this.
        search: Take one step for all variables, found like this, instead of ``step``.
        refinement: Certified steps that are found as the iteration goes; see `refined`.
    """

    kind: Kind
    step: NDArray[np.float64]
    gamma1: float = 0.0
    gamma2: float = 0.0
    epsilon: float = 0.0
    adaptive: bool = False
    fallback: NDArray[np.float64] | None = None
    inverse_temperature: float = 1.0
    search: Search | None = None
    refinement: StepRefinement | None = None

    @classmethod
    def damped(cls, step: NDArray[np.float64]) -> Update:
        """The proximal update with these steps: θ ← θ − s (θ − θ*).  # (n_vars,)"""
        return cls(Kind.PROXIMAL, step)

    def refined(self) -> Update:
        """The update with the step that its refinement has found; itself if there is none."""
        step = None if self.refinement is None else self.refinement.step
        if step is None:
            return self
        return replace(self, step=step, fallback=None if self.fallback is None else step)

    @property
    def watches(self) -> bool:
        """Whether F is looked at after each update, which may be made again."""
        return self.adaptive or self.search is not None

    @property
    def proximal(self) -> bool:
        """Whether this is θ ← θ − s (θ − θ*), with nothing kept from one update to the next."""
        return self.kind is Kind.PROXIMAL

    @property
    def full(self) -> bool:
        """Whether every variable takes its target: θ ← θ*."""
        return self.proximal and self.search is None and bool((self.step == 1.0).all())


@dataclass(frozen=True)
class Order:
    """Visit variables one after another and minimize F over each exactly.

    Args:
        variables: The order; every variable once.  # (n_vars,)
        starts: Bounds of groups whose members don't interact and may move together
            (graph colors), or None.  # (n_groups + 1,)
        shuffle: A generator: take a new random order before each sweep.
        inverse_temperature: Minimize E − H/β instead of F.
    """

    variables: Ints
    starts: Ints | None = None
    shuffle: np.random.Generator | None = None
    inverse_temperature: float = 1.0

    def drawn(self) -> Ints:
        """The order of one sweep."""
        return self.variables if self.shuffle is None else self.shuffle.permutation(self.variables)


UpdateFunction = Callable[[Floats, Floats, Floats, dict[str, Any]], Floats]


@dataclass(frozen=True)
class Custom:
    """Move all variables at once by a Python function.

    Args:
        function: ``function(theta, q, gradient, memory) -> new theta``; flat arrays in,
            a flat array out; ``memory`` is a dictionary that lasts.
        step: Divides the change of q before it is compared with ``tol``.
    """

    function: UpdateFunction
    step: float = 1.0


Plan = Update | Order | Custom


@dataclass(frozen=True)
class Chains:
    """Independent chains to run together; see `Program.explore`."""

    starts: NDArray[np.float64]  # marginals that each chain starts from  # (chains, layout.size)
    hot: NDArray[np.float64]  # temperature of each at first; all cool geometrically  # (chains,)
    sweeps: NDArray[np.int64]  # of each while cooling; a single one is at ``cold``  # (chains,)
    seeds: NDArray[np.uint64]  # random seed of each  # (chains,)
    drawn: NDArray[np.bool_]
    """Does a chain sample labels (heat bath), or cool marginals?  # (chains,)"""
    cold: NDArray[np.float64]
    """Temperature at which each ends, usually 1; close to 0 in a search for the labelling of lowest
    energy.  # (chains,)"""
    forests: NDArray[np.bool_]
    """Does a drawn chain sample a whole induced forest at each sweep (eight in turn), or one
    variable after another?  # (chains,)"""
    polish: int = 50
    """Maximum number of sweeps at temperature 1 afterwards. Without any, a drawn chain ends at a
    labelling (one-hot marginals), whose F is its energy."""
    tol: float = 1e-3  # polishing ends when no marginal changes by more than this
    metropolis: bool = False
    """Do drawn chains that visit one variable after another make Metropolis moves, which leave a
    label more often, or draw one whatever it was (heat bath)? Near temperature 0 the former find
    lower energies."""

    @classmethod
    def make(
        cls, starts: NDArray[np.float64], *, polish: int = 50, tol: float = 1e-3,
        metropolis: bool = False, **each: ArrayLike,
    ) -> Chains:  # fmt: skip
        """Chains from values for each, or one for all; ``hot`` and ``cold`` are 1, others 0."""
        kinds = {"sweeps": "i8", "seeds": "u8", "drawn": "?", "forests": "?"}
        values = {**dict.fromkeys(kinds, 0), "hot": 1.0, "cold": 1.0, **each}
        arrays = {
            name: np.broadcast_to(np.asarray(value), len(starts)).astype(kinds.get(name, "f8"))
            for name, value in values.items()
        }
        begin = np.ascontiguousarray(starts)
        return cls(begin, **arrays, polish=polish, tol=tol, metropolis=metropolis)


@dataclass(frozen=True)
class Explored:
    """Where chains ended."""

    q: NDArray[np.float64]  # marginals  # (chains, layout.size)
    free_energy: NDArray[np.float64]  # F  # (chains,)
    sweeps: NDArray[np.int64]  # sweeps made, polishing included  # (chains,)


# ---- the certified step ----


@overload
def damping_for(curvature: Floats | float) -> NDArray[np.float64]: ...
@overload
def damping_for(curvature: Array) -> Array: ...
def damping_for(curvature: Array) -> Array:
    """The certified damping d = max(0, λ/4 − ½), entry by entry.

    Args:
        curvature: λ: a number, a numpy array or a torch tensor (whose gradient is kept).

    Returns:
        d: float64 for numbers and numpy arrays, a tensor of the same type for tensors.

    Example:
        >>> float(damping_for(6.0))
        1.0
    """
    if isinstance(curvature, (float, int, np.ndarray, np.generic)):
        curvature = np.asarray(curvature, dtype=np.float64)
    return (curvature / 4 - 0.5).clip(0.0)


def certifiable(lowered: Lowered) -> bool:
    """Whether every term bounds its curvature, so that there is a certified step."""
    return all(offers(t, "curvature") or offers(t, "relative_curvature") for t in lowered.terms)


def prefers_search(lowered: Lowered) -> bool:
    """Whether a step found by looking at F is better than a certified one, or all there is.

    Relative bounds hold for states that don't occur: they are cautious.
    """
    relative = any(offers(t, "relative_curvature") for t in lowered.terms)
    return relative or not certifiable(lowered)


def relative_damping(relative: Floats, others: float) -> NDArray[np.float64]:
    """The certified damping where some terms bound their curvature relative to the entropy's.

    Args:
        relative: L_i of those terms.  # (n_vars,)
        others: λ of all others.

    Example:
        >>> relative_damping(np.array([0.0, 2.0, 20.0]), 6.0).tolist()
        [1.0, 2.0, 20.0]
    """
    bound = np.asarray(relative, dtype=np.float64)
    return np.maximum(bound, others / 4 - 0.5 + bound / 2)
