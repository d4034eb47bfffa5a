"""Updates whose exact derivative is known: they keep their states, and go back over them.

θ_0 = 0, q_t = softmax(−θ_t) and θ_{t+1} = (1 − s) θ_t + s g(q_t), with g the gradient of the
expected energy. With a_t = dL/dθ_t and S(q) = diag(q) − q qᵀ of each variable, going back:
dL/dg_t = s a_{t+1}, and a_t = (1 − s) a_{t+1} − S(q_t) (dg/dq)ᵀ (s a_{t+1}).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Doubles, Ints
from proxfield.core.engines.base import Rows, Updates

S = TypeVar("S")


class Factors(NamedTuple):
    """Factors with equally many variables, over tables that lie one after another in an array w.

    The energy of factor e over the variables v_1 … v_k is w[base_e + Σ_p strides_p y_p], with the
    strides of its kind.
    """

    variables: NDArray[np.int32]  # (m, k)
    base: NDArray[np.int32]  # (m,)
    kind: NDArray[np.int16]  # (m,)
    strides: Ints  # (kinds, k or more)
    ptr: Ints  # factors of each instance  # (n_instances + 1,)


class Recorded(Updates[float, S], Generic[S]):
    """Proximal updates of given parameters, with their adjoint; the plan is the step s."""

    @abstractmethod
    def start(self) -> S:
        """The state of uniform marginals, θ = 0."""

    @abstractmethod
    def marginals(self, state: S) -> Doubles:
        """Marginals after the last update.  # (size,)"""

    @abstractmethod
    def moved(self, state: S) -> float:
        """The mean change of a label's probability by the last update."""

    @abstractmethod
    def pull_back(self, state: S, step: float, d: Doubles) -> Doubles:
        """The gradient of a loss in the parameters, from the one in the marginals.

        Args:
            state: The state after the updates.
            step: Their step.
            d: # (size,)
        """


@dataclass
class KeptStates:
    """Where updates have led, and what they came by."""

    theta: Doubles  # energies after the last update  # (size,)
    q: Doubles  # softmax(−θ)
    before: list[Doubles] = field(default_factory=list)  # marginals before each update
    parts: list[list[Doubles]] = field(default_factory=list)
    """What each update's gradient was made of, as `ArrayUpdates.gradient` returned it."""


class ArrayUpdates(Recorded[KeptStates]):
    """Updates of flat arrays whose energy a subclass defines.

    Args:
        size: Number of entries, labels of all variables.
        n_parameters: Number of parameters.
    """

    def __init__(self, size: int, n_parameters: int) -> None:
        self.size, self.n_parameters = size, n_parameters

    @abstractmethod
    def softmax(self, theta: Doubles) -> Doubles:
        """softmax(−θ), variable by variable.  # (size,)"""

    @abstractmethod
    def covariance(self, q: Doubles, d: Doubles) -> Doubles:
        """S(q) d.  # (size,)"""

    @abstractmethod
    def gradient(self, q: Doubles) -> tuple[Doubles, list[Doubles]]:
        """g(q), and what `pull` needs of it again.  # (size,)"""

    @abstractmethod
    def pull(self, q: Doubles, parts: list[Doubles], dg: Doubles, out: Doubles) -> Doubles:
        """From dL/dg at q to dL/dq; adds the gradient in the parameters to ``out``."""

    def pull_constant(self, total: Doubles, out: Doubles) -> None:
        """Add the gradient in the parameters of what g has in common at all q, from Σ dL/dg."""

    def start(self) -> KeptStates:
        theta = np.zeros(self.size)
        return KeptStates(theta, self.softmax(theta))

    def advance_each(
        self, state: KeptStates, plan: float, n: int, tol: float, trace: bool,
        wanted: NDArray[np.bool_] | None = None,
    ) -> list[Rows]:  # fmt: skip
        """As in `Updates`; F is never evaluated, and without a ``tol`` only the last change."""
        changes = np.full(n, np.nan)
        for k in range(n):
            g, parts = self.gradient(state.q)
            state.before.append(state.q)
            state.parts.append(parts)
            state.theta = (1.0 - plan) * state.theta + plan * g
            state.q = self.softmax(state.theta)
            if tol > 0 or k == n - 1:
                changes[k] = np.abs(state.q - state.before[-1]).max(initial=0.0) / plan
                if not changes[k] > tol:
                    changes = changes[: k + 1]
                    break
        return [Rows(np.full(len(changes), np.nan), changes)]

    def marginals(self, state: KeptStates) -> Doubles:
        return state.q

    def moved(self, state: KeptStates) -> float:
        return float(np.abs(state.q - state.before[-1]).mean())

    def pull_back(self, state: KeptStates, step: float, d: Doubles) -> Doubles:
        total, out = np.zeros(self.size), np.zeros(self.n_parameters)
        a = -self.covariance(state.q, np.ascontiguousarray(d))
        for q, parts in zip(reversed(state.before), reversed(state.parts), strict=True):
            dg = step * a
            total += dg
            a = (1.0 - step) * a - self.covariance(q, self.pull(q, parts, dg, out))
        self.pull_constant(total, out)
        return out
