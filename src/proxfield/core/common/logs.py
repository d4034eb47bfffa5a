"""The logger "proxfield": silent unless the program that uses the library listens to it.

import logging
logging.basicConfig()
logging.getLogger("proxfield").setLevel(logging.DEBUG)
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proxfield.core.lowering.lowered import Lowered

log = logging.getLogger("proxfield")
log.addHandler(logging.NullHandler())  # else Python prints warnings that nobody listens to


@dataclass
class Described:
    """A lowered field in words; made only if a line is really written."""

    lowered: Lowered

    def __str__(self) -> str:
        low = self.lowered
        if low.infeasible:
            return "nothing: no labelling is possible"
        parts = [f"{low.layout.n_vars} variables"]
        parts += [f"{len(t.edges)} {t.name} edges" for t in (low.ising, low.potts) if t is not None]
        parts += [f"{len(t.scopes)} tables of {t.degree} variables" for t in low.factors]
        parts += [f"{t.name} as it is" for t in low.extras]
        return ", ".join(parts)
