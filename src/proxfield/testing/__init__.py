"""Tools for testing inference: random fields of every kind, and exact answers for small ones.

They need numpy alone and no test framework. The project's own tests use them, and they serve to
test a term, a rule or an engine of one's own:

    >>> from proxfield.testing import enumerate_field, random_field
    >>> field, about = random_field(7)
    >>> exact = enumerate_field(field)
    >>> exact.feasible == about.feasible
    True
"""

from __future__ import annotations

from proxfield.testing.exact import (
    Exact,
    enumerate_field,
    exact_hessian,
    explicit_tables,
    fixed_point_residual,
    labelling_energies,
    labellings,
    log_sum_exp,
    probabilities,
    projected,
    random_marginals,
)
from proxfield.testing.random_fields import FEATURES, Description, RandomField, random_field

__all__ = [
    "FEATURES",
    "Description",
    "Exact",
    "RandomField",
    "enumerate_field",
    "exact_hessian",
    "explicit_tables",
    "fixed_point_residual",
    "labelling_energies",
    "labellings",
    "log_sum_exp",
    "probabilities",
    "projected",
    "random_field",
    "random_marginals",
]
