"""Methods of learning by name: pseudo-likelihood, a loss of marginals, and persistent chains.

Every method starts where the parameters given are. To add one: a function of the same form, and a
line in `METHODS`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from proxfield.core.common.arrays import Doubles, Ints
from proxfield.core.common.checks import is_real, one_of, whole_number
from proxfield.core.engines.recorded import Recorded
from proxfield.core.solve.loop import make_updates
from proxfield.errors import InputError, shown
from proxfield.learn.optimize import Callback, fit_chains, minimize, stages, stoppable
from proxfield.learn.structure import Examples, Structure, class_weights, prepare
from proxfield.learn.tied import Parameters, TiedField

S = TypeVar("S")

FACTORS = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.0)
"""What interactions are multiplied by before marginals are learned."""


# ---- losses of marginals: means over variables or classes, whose sizes don't depend on how many
# variables there are; labels of -1 are unknown and count for nothing ----

FLOOR = 1e-290
"""Smallest probability whose logarithm is taken."""


@dataclass(frozen=True, eq=False)
class Targets:
    """True labels of variables, and weights of classes.

    Args:
        labels: One per variable, -1 where unknown.  # (n,)
        offsets: First entry of each variable in flat arrays.  # (n + 1,)
        weights: One per class.  # (classes,)
    """

    labels: Ints
    offsets: Ints
    weights: Doubles

    @property
    def known(self) -> Ints:
        """Variables whose label is known."""
        return np.flatnonzero(self.labels >= 0)


Loss = Callable[[Doubles, Targets], tuple[float, Doubles]]


def log_loss(q: Doubles, targets: Targets) -> tuple[float, Doubles]:
    """The mean of −log q_i(y_i), weighted by class.

    Args:
        q: Flat marginals.  # (size,)
        targets: What they should be.

    Returns:
        The loss, and its gradient in q.  # (size,)

    Example:
        >>> targets = Targets(np.array([1]), np.array([0, 2]), np.ones(2))
        >>> loss, gradient = log_loss(np.array([0.5, 0.5]), targets)
        >>> round(loss, 3), gradient
        (0.693, array([ 0., -2.]))
    """
    known = targets.known
    y = targets.labels[known]
    at, weight = targets.offsets[known] + y, targets.weights[y]
    total = weight.sum()
    p = np.maximum(q[at], FLOOR)
    out = np.zeros_like(q)
    out[at] = -weight / (total * p)
    return float(-(weight * np.log(p)).sum() / total), out


def overlap_loss(
    q: Doubles, targets: Targets, factor: float, joint: float
) -> tuple[float, Doubles]:
    """1 − ``factor`` Σ q·y / Σ (q + y − ``joint`` q·y), averaged over classes that occur.

    Sums are over all variables of all instances; results as for `log_loss`.
    """
    owner = np.repeat(np.arange(len(targets.labels)), np.diff(targets.offsets))
    at = np.flatnonzero(targets.labels[owner] >= 0)
    label = at - targets.offsets[owner[at]]
    truth = np.asarray(targets.labels[owner[at]] == label, dtype=np.float64)
    n = len(targets.weights)
    inside, occurs = np.bincount(label, q[at] * truth, n), np.bincount(label, truth, n)
    union = np.bincount(label, q[at], n) + occurs - joint * inside
    weight = np.where(occurs > 0, targets.weights, 0.0)
    weight /= weight.sum()
    safe = np.where(union > 0, union, 1.0)
    loss = 1.0 - float((weight * factor * inside / safe).sum())
    slope = factor * truth / safe[label]
    slope -= (factor * inside / safe**2)[label] * (1.0 - joint * truth)
    out = np.zeros_like(q)
    out[at] = -weight[label] * slope
    return loss, out


LOSSES: dict[str, Loss] = {
    "log": log_loss,
    "dice": partial(overlap_loss, factor=2.0, joint=0.0),
    "iou": partial(overlap_loss, factor=1.0, joint=1.0),
}
"""Losses by name; the last two are 1 − the soft Dice coefficient and 1 − the soft intersection over
union. To add one: a function of the same arguments, and a line here."""


def find_loss(loss: str | Loss) -> Loss:
    """A loss by name, or the function itself."""
    if callable(loss):
        return loss
    one_of("loss", loss, LOSSES)
    return LOSSES[loss]


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
    weights = class_weights(class_weight, structure)
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
    weights = class_weights(class_weight, structure)

    def objective(p: Parameters) -> tuple[float, Parameters]:
        return marginal_loss(
            structure, p, chosen, n_updates=n_updates, step=step, weights=weights, device=device
        )

    with stages() as interrupted:
        names = [name for name in structure.interactions if name not in fixed]
        if weaken and any(start[name].any() for name in names):
            # pseudo-likelihood may find interactions that are much too strong for mean field; there
            # the marginals are certain, often wrong, and no small change of parameters matters
            best, least = start, np.inf
            with stoppable():
                for factor in FACTORS:
                    tried = {k: factor * v if k in names else v for k, v in start.items()}
                    value = objective(tried)[0]
                    value += 0.5 * l2 * sum(float((v * v).sum()) for v in tried.values())
                    if value < least:
                        best, least = tried, value
                start = best
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
    one_of("method", name, METHODS)
    return METHODS[name]
