"""Methods of learning by name: pseudo-likelihood, a loss of marginals, and persistent chains.

Every method starts where the parameters given are. To add one: a function of the same form, and a
line in `METHODS`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from proxfield.core.common.arrays import Doubles
from proxfield.core.common.checks import is_real, whole_number
from proxfield.core.engines.recorded import Recorded
from proxfield.core.solve.loop import make_updates
from proxfield.errors import InputError, shown
from proxfield.learn.chains import fit_chains
from proxfield.learn.losses import Loss, Targets, find_loss
from proxfield.learn.optimize import Callback, Objective, minimize, stages, stoppable
from proxfield.learn.structure import Examples, Structure, prepare
from proxfield.learn.tied import Parameters, TiedField

S = TypeVar("S")

FACTORS = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.0)
"""What interactions are multiplied by before marginals are learned."""


# ---- pseudo-likelihood ----


def pseudo_likelihood(
    structure: Structure, parameters: Parameters, weights: Doubles | None = None
) -> tuple[float, Parameters]:
    """−Σ_i log p(y_i | all other labels), and its gradient.

    A variable whose label isn't known contributes nothing, and neither does a factor with one to
    the conditionals of its other variables.

    Args:
        structure: The instances.
        parameters: The parameters.
        weights: One per class, 1 by default.  # (classes,)
    """
    from proxfield.core.engines.numba import tied
    from proxfield.learn import kernels

    s = structure
    weights = s.unweighted if weights is None else weights
    w = s.tables(parameters)
    energy, dw = np.zeros(s.offsets[-1]), np.zeros_like(w)
    one, several = s.order(1), [f for k, f in sorted(s.factors.items()) if k > 1]
    tied.add_gradient(w, one, s.offsets, energy, energy)
    for f in several:
        kernels.add_conditionals(w, f, s.offsets, s.labels, energy, False)
    d = np.empty_like(energy)
    loss = kernels.conditional_loss(energy, s.offsets, s.labels, weights, d)
    tied.add_adjoint(w, one, s.offsets, energy, d, energy, dw)
    for f in several:
        kernels.add_conditionals(d, f, s.offsets, s.labels, dw, True)
    return float(loss), s.pull(dw)


def fit_pseudo(
    instances: Iterable[TiedField] | Structure,
    parameters: Parameters,
    *,
    l2: float = 1.0,
    max_iters: int = 100,
    tol: float = 1e-6,
    class_weight: ArrayLike | str | None = None,
    fixed: Collection[str] = (),
    callback: Callback | None = None,
) -> Parameters:
    """Parameters of largest pseudo-likelihood: minimize −Σ log p(y_i | rest) + ½ l2 ‖V‖².

    The function is convex, so the result doesn't depend on the start. Every other method starts
    from it.

    Args:
        instances: Instances with labels, or what `prepare` made of them.
        parameters: Where to start.
        l2: Weight of the squared norm of the parameters.
        max_iters: Maximum number of iterations.
        tol: Stop where an iteration lowers the objective by less than this share of it.
        class_weight: Weights of the true labels: numbers, "balanced", or None for 1.
        fixed: Names of parameters that stay as they are.
        callback: Called with a `FitProgress` after each iteration; true ends the fit.

    Returns:
        The best parameters; Ctrl-C returns the best so far.

    Example:
        >>> from proxfield.learn import Block
        >>> chain = Block("smooth", [[0, 1], [1, 2], [2, 3]], index=[0, 0, 0], form="potts")
        >>> instance = TiedField([2, 2, 2, 2], [chain], labels=[0, 0, 1, 1])
        >>> fit_pseudo([instance], {"smooth": np.zeros(1)})["smooth"] > 0
        array([ True])
    """
    structure = prepare(instances)
    start = structure.start(parameters)
    weights = structure.class_weights(class_weight)
    return minimize(
        lambda p: pseudo_likelihood(structure, p, weights), start, l2=l2, max_iters=max_iters,
        tol=tol, method="pseudo", fixed=fixed, callback=callback,
    )  # fmt: skip


# ---- marginals ----


class Unrolled(Generic[S]):
    """Damped updates of a program from uniform marginals, with their exact adjoint.

    ``q`` are the marginals after the last update.  # (size,)
    """

    def __init__(self, updates: Recorded[S], n_updates: int, step: float) -> None:
        check_updates(n_updates, step)
        self.updates, self.step, self.state = updates, float(step), updates.start()
        make_updates(updates, self.step, self.state, n_updates)
        self.q: Doubles = updates.marginals(self.state)

    @property
    def change(self) -> float:
        """Mean change of a label's probability by the last update, divided by the step."""
        return self.updates.moved(self.state) / self.step

    def backward(self, d: Doubles) -> Doubles:
        """From the gradient of a loss in q to the one in the parameters.  # (size,) -> (any,)"""
        return self.updates.pull_back(self.state, self.step, d)


def check_updates(n_updates: int, step: float) -> None:
    """Raise `InputError` unless these are a number of updates and a step."""
    whole_number(n_updates, "n_updates", 1)
    if not is_real(step) or not 0 < step <= 1:
        raise InputError(f"step={shown(step)}, expected a number above 0, at most 1")


def marginal_loss(
    structure: Examples,
    parameters: Parameters,
    loss: str | Loss = "log",
    *,
    n_updates: int = 20,
    step: float = 0.5,
    weights: Doubles | None = None,
    device: str = "cpu",
) -> tuple[float, Parameters]:
    """A loss of the marginals after damped updates, times the number of known labels; its gradient.

    Args:
        structure: The instances.
        parameters: The parameters.
        loss: A name in `proxfield.learn.LOSSES`, or a function like those.
        n_updates: Number of updates θ ← (1 − step)·θ − step·∇E(q), from uniform q.
        step: Their step, above 0 and at most 1.
        weights: One per class, 1 by default.  # (classes,)
        device: "cpu" for compiled kernels, otherwise a device of torch, such as "cuda".
    """
    s = structure
    weights = s.unweighted if weights is None else weights
    run = Unrolled(s.updates(s.tables(parameters), device), n_updates, step)
    value, d = find_loss(loss)(run.q, Targets(s.labels, s.offsets, weights))
    scale = float(s.n_known)
    return scale * value, s.pull(run.backward(scale * d))


def weakened(
    parameters: Parameters, names: Collection[str], objective: Objective, l2: float
) -> Parameters:
    """The best of some parameters whose interactions are multiplied by 1, ½, ¼, … and 0.

    Pseudo-likelihood may find interactions that are much too strong for mean field; there the
    marginals are certain, often wrong, and no small change of parameters matters.
    """
    best, least = parameters, np.inf
    if not any(parameters[name].any() for name in names):
        return parameters
    for factor in FACTORS:
        tried = {k: factor * v if k in names else v for k, v in parameters.items()}
        value = objective(tried)[0]
        value += 0.5 * l2 * sum(float((v * v).sum()) for v in tried.values())
        if value < least:
            best, least = tried, value
    return best


def fit_marginals(
    instances: Iterable[TiedField] | Examples,
    parameters: Parameters,
    *,
    loss: str | Loss = "log",
    n_updates: int = 20,
    step: float = 0.5,
    l2: float = 1.0,
    max_iters: int = 50,
    tol: float = 1e-5,
    weaken: bool = True,
    class_weight: ArrayLike | str | None = None,
    device: str = "cpu",
    fixed: Collection[str] = (),
    callback: Callback | None = None,
) -> Parameters:
    """Minimize a loss of the marginals that mean field computes, + ½ l2 ‖V‖².

    Args:
        instances: Instances with labels, or what `prepare` made of them.
        parameters: Where to start; those of `fit_pseudo` are usual.
        loss: A name in `proxfield.learn.LOSSES`, or a function like those. It is multiplied by the
            number of known labels, so that ``l2`` means the same as for the other methods.
        n_updates: Number of updates θ ← (1 − step)·θ − step·∇E(q), from uniform q.
        step: Their step, above 0 and at most 1.
        l2: Weight of the squared norm of the parameters.
        max_iters: Maximum number of iterations of L-BFGS.
        tol: Stop where an iteration lowers the objective by less than this share of it.
        weaken: Start with interactions multiplied by the best of 1, ½, ¼, … and 0.
        class_weight: Weights of the true labels: numbers, "balanced", or None for 1.
        device: "cpu" for compiled kernels, otherwise a device of torch, such as "cuda".
        fixed: Names of parameters that stay as they are.
        callback: Called with a `FitProgress` after each iteration; true ends the fit.

    Returns:
        The best parameters; Ctrl-C returns the best so far.

    Example:
        >>> from proxfield.learn import Block
        >>> bias = Block("bias", [0, 1, 2, 3], index=[0, 0, 0, 0])
        >>> instance = TiedField([2, 2, 2, 2], [bias], labels=[0, 0, 0, 1])
        >>> fit_marginals([instance], {"bias": np.zeros((1, 2))})["bias"] < 0
        array([[ True, False]])
    """
    structure = instances if isinstance(instances, Examples) else prepare(instances)
    start = structure.start(parameters)
    chosen = find_loss(loss)
    weights = structure.class_weights(class_weight)

    def objective(p: Parameters) -> tuple[float, Parameters]:
        return marginal_loss(
            structure, p, chosen, n_updates=n_updates, step=step, weights=weights, device=device
        )

    with stages() as interrupted:
        if weaken:
            names = [name for name in structure.interactions if name not in fixed]
            with stoppable():
                start = weakened(start, names, objective, l2)
        if interrupted():
            return start
        return minimize(
            objective, start, l2=l2, max_iters=max_iters, tol=tol, method="marginals",
            fixed=fixed, callback=callback,
        )  # fmt: skip


# ---- by name ----

Method = Callable[..., Parameters]

METHODS: dict[str, Method] = {
    "pseudo": fit_pseudo,
    "chains": fit_chains,
    "marginals": fit_marginals,
}
"""Methods: ``method(instances, parameters, *, l2, callback, …)`` returns parameters."""


def find_method(name: str) -> Method:
    """A method by name."""
    if name not in METHODS:
        raise InputError(f"method={shown(name)}, expected one of: {', '.join(METHODS)}")
    return METHODS[name]
