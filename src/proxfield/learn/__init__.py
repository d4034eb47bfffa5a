"""Learning: fit the parameters of fields from examples.

`CRF` and `DecisionTreeField` are estimators with scikit-learn's conventions, `fit_weights` learns
the weights of the terms of any fields, and `TiedField` with `Block` describes any energy that is
linear in shared parameters, which the methods in `METHODS` learn. Names are loaded when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxfield.learn.blocks import Block as Block
    from proxfield.learn.blocks import Parameters as Parameters
    from proxfield.learn.chains import fit_chains as fit_chains
    from proxfield.learn.crf import CRF as CRF
    from proxfield.learn.crf import Graph as Graph
    from proxfield.learn.decision_tree_field import DecisionTreeField as DecisionTreeField
    from proxfield.learn.estimator import Estimator as Estimator
    from proxfield.learn.losses import LOSSES as LOSSES
    from proxfield.learn.marginals import fit_marginals as fit_marginals
    from proxfield.learn.marginals import marginal_loss as marginal_loss
    from proxfield.learn.optimize import FitProgress as FitProgress
    from proxfield.learn.pseudo import fit_pseudo as fit_pseudo
    from proxfield.learn.pseudo import pseudo_likelihood as pseudo_likelihood
    from proxfield.learn.registry import METHODS as METHODS
    from proxfield.learn.snakes import make_snakes as make_snakes
    from proxfield.learn.snakes import read_snakes as read_snakes
    from proxfield.learn.snakes import snake_graph as snake_graph
    from proxfield.learn.structure import Structure as Structure
    from proxfield.learn.structure import prepare as prepare
    from proxfield.learn.tied import TiedField as TiedField
    from proxfield.learn.tied import zero_parameters as zero_parameters
    from proxfield.learn.weights import fit_weights as fit_weights
    from proxfield.learn.weights import tie as tie

_HOME = {
    "Block": "blocks",
    "CRF": "crf",
    "DecisionTreeField": "decision_tree_field",
    "Estimator": "estimator",
    "FitProgress": "optimize",
    "Graph": "crf",
    "LOSSES": "losses",
    "METHODS": "registry",
    "Parameters": "blocks",
    "Structure": "structure",
    "TiedField": "tied",
    "fit_chains": "chains",
    "fit_marginals": "marginals",
    "fit_pseudo": "pseudo",
    "fit_weights": "weights",
    "make_snakes": "snakes",
    "marginal_loss": "marginals",
    "prepare": "structure",
    "pseudo_likelihood": "pseudo",
    "read_snakes": "snakes",
    "snake_graph": "snakes",
    "tie": "weights",
    "zero_parameters": "tied",
}

COMPILING = "learning", 10
"""What the kernels are for, and seconds that all of a first call take."""

__all__ = list(_HOME)  # names above, in the same order


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'proxfield.learn' has no attribute {name!r}")
    return getattr(import_module(f"proxfield.learn.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
