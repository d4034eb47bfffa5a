"""Learning: fit the parameters of fields from examples.

`TiedField` and `Block` describe an energy that is linear in shared parameters; the methods in
`METHODS` learn them.
"""

from proxfield.learn.blocks import Block as Block
from proxfield.learn.blocks import Parameters as Parameters
from proxfield.learn.chains import fit_chains as fit_chains
from proxfield.learn.decision_tree_field import DecisionTreeField as DecisionTreeField
from proxfield.learn.losses import LOSSES as LOSSES
from proxfield.learn.marginals import fit_marginals as fit_marginals
from proxfield.learn.optimize import FitProgress as FitProgress
from proxfield.learn.pseudo import fit_pseudo as fit_pseudo
from proxfield.learn.registry import METHODS as METHODS
from proxfield.learn.structure import Structure as Structure
from proxfield.learn.structure import prepare as prepare
from proxfield.learn.tied import TiedField as TiedField
from proxfield.learn.tied import zero_parameters as zero_parameters
