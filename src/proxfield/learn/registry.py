"""Methods of learning by name. To add one: a function of the same form, and a line here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from proxfield.errors import InputError, shown
from proxfield.learn.blocks import Parameters
from proxfield.learn.chains import fit_chains
from proxfield.learn.marginals import fit_marginals
from proxfield.learn.pseudo import fit_pseudo

Method = Callable[..., Parameters]

METHODS: dict[str, Method] = {
    "pseudo": fit_pseudo,
    "chains": fit_chains,
    "marginals": fit_marginals,
}
"""Methods: ``method(instances, parameters, *, l2, callback, …)`` returns parameters."""


def find_method(name: Any) -> Method:
    """A method by name."""
    if name not in METHODS:
        raise InputError(f"method={shown(name)}, expected one of: {', '.join(METHODS)}")
    return METHODS[name]
