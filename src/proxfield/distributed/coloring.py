"""Colors of a field over several ranks: variables that share no term move together."""

from __future__ import annotations

import numpy as np

from proxfield.core.terms.base import Ints
from proxfield.core.terms.factor import Factor
from proxfield.distributed.partition import Partition


def shared_colors(part: Partition) -> tuple[Ints, Ints]:
    """This rank's variables by color, and where each color of the whole field starts.  Collective.

    Where every rank holds the whole field, the colors are those of one process. Else each rank
    colors its own variables, and ranks take turns for borders: variables of the border that share a
    term with a rank before this one get colors that no other rank uses.
    """
    transport = part.transport
    if part.whole is not None and part.owner is not None:
        colors = part.whole.color()
        count = int(colors.max(initial=-1)) + 1
        mine = colors[part.owner[part.whole.reduction.free] == part.rank]
    else:
        mine = part.lowered.color()
        used = int(transport.reduce(np.array([float(mine.max(initial=-1))]), "max")[0]) + 1
        cut, late = part.cut, np.zeros(part.lowered.layout.n_vars, dtype=bool)
        width = len(cut.border)
        for term in (*cut.pairs, *cut.larger):
            scopes = term.scopes if isinstance(term, Factor) else term.neighbors(cut.layout)
            ghosts = np.where(scopes >= width, scopes - width, -1)
            rank = np.where(ghosts >= 0, cut.owners[ghosts], part.size)
            before = rank.min(axis=1) < part.rank
            ends = scopes[before]
            late[cut.border[ends[ends < width]]] = True
        mine = np.where(late, mine + used * part.rank, mine)
        count = used * part.size
    order = np.argsort(mine, kind="stable")
    counts = np.bincount(mine, minlength=count)
    return order, np.concatenate([[0], np.cumsum(counts)])
