"""Parameters of a field that come as tensors: weights of edges, and tables.

All of them travel as one flat tensor, so that autograd sees a single input; the field is lowered
once without the terms they belong to, which are computed in torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from proxfield.core.devices.cuda import torch
from proxfield.core.devices.tensors import Tensor, TorchDtype
from proxfield.core.lowering.lowered import Lowered, lower
from proxfield.core.terms.base import Term
from proxfield.core.terms.factor import Factor
from proxfield.core.terms.grid import GridPairwise
from proxfield.core.terms.pairwise import Ising, Pairwise, Potts
from proxfield.errors import InputError, UnsupportedError
from proxfield.field import Field

WEIGHTED = (Potts, Ising)
"""Terms whose weights can be given."""
TABLED = (Factor, Pairwise, GridPairwise)
"""Terms whose tables can be given."""

TablesGiven = Tensor | Sequence[Tensor | None] | None


@dataclass
class Parameters:
    """The terms whose parameters are given, and the parameters.

    Attributes:
        positions: Which of the field's terms these are.
        terms: These terms.
        flat: Their weights and tables, one after another.  # (P,) or (B, P)
    """

    positions: tuple[int, ...]
    terms: list[Term]
    flat: Tensor

    @classmethod
    def read(
        cls, field: Field, weights: Tensor | None, tables: TablesGiven, dtype: TorchDtype
    ) -> Parameters | None:
        """What was given, checked; None if nothing was."""
        positions: list[int] = []
        parts: list[Tensor] = []
        if weights is not None:
            weighted = [k for k, t in enumerate(field.terms) if type(t) in WEIGHTED]
            count = sum(parameter_count(field.terms[k]) for k in weighted)
            if not weighted or weights.ndim not in (1, 2) or weights.shape[-1] != count:
                raise InputError(
                    f"weights of shape {tuple(weights.shape)}, expected ({count},): one for each "
                    "edge of the field's Potts and Ising terms"
                )
            positions += weighted
            parts.append(weights)
        for k, given, batched in _tables(field, tables):
            positions.append(k)
            parts.append(given.flatten(1) if batched else given.flatten())
        if not positions:
            return None
        batches = {len(part) for part in parts if part.ndim == 2} - {1}
        if len(batches) > 1:
            several = ", ".join(map(str, sorted(batches)))
            raise InputError(f"weights and tables for batches of {several}, expected one number")
        if any(part.ndim == 2 for part in parts):
            rows = batches.pop() if batches else 1
            parts = [p.expand(rows, -1) if p.ndim == 2 else p[None].expand(rows, -1) for p in parts]
        flat = torch.cat([part.to(dtype) for part in parts], dim=-1)
        return cls(tuple(positions), [field.terms[k] for k in positions], flat)

    def rest(self, field: Field) -> Lowered:
        """The field without these terms, kept with the field until a term is added."""
        memory = field._kept.without
        if self.positions not in memory:
            others = [t for k, t in enumerate(field.terms) if k not in self.positions]
            memory[self.positions] = lower(field.layout, others, field.evidence)
        found = memory[self.positions]
        if not found.reduction.untouched.all():
            raise UnsupportedError(
                "weights= and tables= need a field without evidence or decided variables; "
                "+inf in unary observes a variable"
            )
        return found

    def fulls(self, field: Field) -> list[Lowered]:
        """The field with each row of the parameters."""
        bounds = np.cumsum([0, *(parameter_count(t) for t in self.terms)])
        flat = self.flat.detach().double()
        out = []
        for row in flat.reshape(-1, flat.shape[-1]).cpu().numpy():
            if not np.isfinite(row).all():
                raise UnsupportedError(
                    "weights or tables that aren't finite have no derivative; use proxfield.infer"
                )
            terms = list(field.terms)
            for k, (a, b) in zip(self.positions, pairwise(bounds), strict=True):
                terms[k] = with_parameters(terms[k], row[a:b])
            out.append(lower(field.layout, terms, field.evidence))
        return out


def parameter_count(term: Term) -> int:
    """How many numbers can be given for a term."""
    if isinstance(term, (Potts, Ising)):
        return len(term.weights)
    assert isinstance(term, (Factor, GridPairwise))
    return int(term.tables.size)


def with_parameters(term: Term, values: NDArray[np.float64]) -> Term:
    """The same term with other weights or tables.  # (P,)"""
    if isinstance(term, (Potts, Ising)):
        return type(term).trusted(term.edges, values)
    if isinstance(term, GridPairwise):
        tables = values.reshape(term.tables.shape)
        return GridPairwise(term.shape, term.offset, tables, term.index, term.first)
    assert isinstance(term, Factor)
    return type(term).trusted(term.scopes, values.reshape(term.tables.shape), term.index)


def _tables(field: Field, tables: TablesGiven) -> list[tuple[int, Tensor, bool]]:
    """Positions of terms, the tables that were given for them, and whether these are a batch."""
    if tables is None:
        return []
    able = [k for k, t in enumerate(field.terms) if type(t) in TABLED]
    given = [tables] if isinstance(tables, torch.Tensor) else list(tables)
    if len(given) != len(able):
        raise InputError(
            f"tables for {len(given)} term(s), expected {len(able)}: one tensor for each Pairwise, "
            "Factor and GridPairwise term of the field (None keeps its own)"
        )
    out = []
    for number, (k, mine) in enumerate(zip(able, given, strict=True)):
        term = field.terms[k]
        assert isinstance(term, (Factor, GridPairwise))
        if mine is None:
            continue
        shape, wanted = tuple(mine.shape), term.tables.shape
        single = wanted[1:] if len(term.tables) == 1 else wanted
        if not (shape in (wanted, single) or shape[1:] == wanted):
            raise InputError(
                f"tables of shape {shape} for table term {number} ({type(term).__name__}), "
                f"expected {wanted}, or a batch of these"
            )
        out.append((k, mine, shape not in (wanted, single)))
    return out
