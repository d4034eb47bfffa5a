"""Learning: fit the parameters of fields from examples.

`CRF` and `DecisionTreeField` are estimators with scikit-learn's conventions, `fit_weights` learns
the weights of the terms of any fields, and `TiedField` with `Block` describes any energy that is
linear in shared parameters, which the methods in `METHODS` learn.
"""

from proxfield.learn.crf import CRF, Graph
from proxfield.learn.decision_tree_field import DecisionTreeField
from proxfield.learn.estimator import Estimator
from proxfield.learn.methods import (
    LOSSES,
    METHODS,
    fit_marginals,
    fit_pseudo,
    marginal_loss,
    pseudo_likelihood,
)
from proxfield.learn.optimize import FitProgress, fit_chains
from proxfield.learn.snakes import make_snakes, read_snakes, snake_graph
from proxfield.learn.structure import Structure, prepare
from proxfield.learn.tied import Block, Parameters, TiedField, zero_parameters
from proxfield.learn.weights import fit_weights, tie

COMPILING = "learning", 10
"""What the kernels are for, and seconds that all of a first call take."""

__all__ = [
    "CRF",
    "LOSSES",
    "METHODS",
    "Block",
    "DecisionTreeField",
    "Estimator",
    "FitProgress",
    "Graph",
    "Parameters",
    "Structure",
    "TiedField",
    "fit_chains",
    "fit_marginals",
    "fit_pseudo",
    "fit_weights",
    "make_snakes",
    "marginal_loss",
    "prepare",
    "pseudo_likelihood",
    "read_snakes",
    "snake_graph",
    "tie",
    "zero_parameters",
]
