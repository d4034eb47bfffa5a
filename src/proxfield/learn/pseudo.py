"""Pseudo-likelihood: each variable's label given the true labels of all others. Convex."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
from numpy.typing import ArrayLike

from proxfield.core.common.arrays import Doubles
from proxfield.learn.blocks import Parameters
from proxfield.learn.losses import class_weights
from proxfield.learn.optimize import Callback, minimize
from proxfield.learn.structure import Structure, checked
from proxfield.learn.tied import TiedField


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
    if weights is None:
        weights = np.ones(int(np.diff(s.offsets).max()))
    w = s.tables(parameters)
    energy, dw = np.zeros(s.offsets[-1]), np.zeros_like(w)
    one, several = s.order(1), [f for k, f in sorted(s.factors.items()) if k > 1]
    tied.add_gradient(w, one, s.offsets, energy, energy)
    for f in several:
        kernels.add_conditionals(w, f, s.offsets, s.labels, energy)
    d = np.empty_like(energy)
    loss = kernels.conditional_loss(energy, s.offsets, s.labels, weights, d)
    tied.add_adjoint(w, one, s.offsets, energy, d, energy, dw)
    for f in several:
        kernels.pull_conditionals(d, f, s.offsets, s.labels, dw)
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
    structure, start = checked(instances, parameters)
    weights = class_weights(class_weight, structure.labels, int(np.diff(structure.offsets).max()))
    return minimize(
        lambda p: pseudo_likelihood(structure, p, weights), start, l2=l2, max_iters=max_iters,
        tol=tol, method="pseudo", fixed=fixed, callback=callback,
    )  # fmt: skip
