"""Learning through marginals: a loss of q after damped mean-field updates, by an exact adjoint."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
from numpy.typing import ArrayLike

from proxfield.core.common.arrays import Doubles
from proxfield.learn.adjoint import unroll
from proxfield.learn.blocks import Parameters
from proxfield.learn.losses import Loss, Targets, class_weights, find_loss
from proxfield.learn.optimize import Callback, Objective, minimize, stages, stoppable
from proxfield.learn.structure import Structure, checked
from proxfield.learn.tied import TiedField

FACTORS = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.0)
"""What interactions are multiplied by before marginals are learned."""


def marginal_loss(
    structure: Structure,
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
    if weights is None:
        weights = np.ones(int(np.diff(s.offsets).max()))
    run = unroll(s, s.tables(parameters), n_updates, step, device)
    value, d = find_loss(loss)(run.q, Targets(s.labels, s.offsets, weights))
    scale = float(s.n_known)
    return scale * value, s.pull(run.backward(scale * d))


def weakened(
    parameters: Parameters, names: Collection[str], objective: Objective, l2: float
) -> Parameters:
    """The best of some parameters whose interactions are multiplied by 1, ½, ¼, … and 0.

    Pseudo-likelihood may find interactions that are much too strong for mean field; there the
    marginals are certain, often wrong, and no small change of parameters matters.

    Args:
        parameters: The parameters.
        names: Those of interactions.
        objective: What the best has the least of.
        l2: Weight of ½ ‖parameters‖², which is added to it.
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
    instances: Iterable[TiedField] | Structure,
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
    structure, start = checked(instances, parameters)
    chosen = find_loss(loss)
    weights = class_weights(class_weight, structure.labels, int(np.diff(structure.offsets).max()))

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
