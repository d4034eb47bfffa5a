"""One instance of a learning problem: variables, blocks over tied parameters, and labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from proxfield.core.common.arrays import Doubles, Ints
from proxfield.core.terms.base import Layout, Term, as_indices, check_scopes
from proxfield.core.terms.factor import Factor
from proxfield.core.terms.pairwise import Ising, Pairwise, Potts
from proxfield.core.terms.unary import Unary
from proxfield.errors import InputError
from proxfield.field import Field
from proxfield.learn.blocks import Block, Parameters


@dataclass(frozen=True, eq=False)
class TiedField:
    """A field whose energy is linear in parameters that instances share.

    Args:
        cardinalities: Labels per variable.  # (n_vars,)
        blocks: Blocks of factors; names may occur more than once.
        labels: The truth, -1 where it isn't known.  # (n_vars,)
        observed: Labels that are given as inputs, in learning and in prediction, -1 for all other
            variables; they are no targets.  # (n_vars,)

    Example:
        >>> chain = Block("smooth", [[0, 1], [1, 2]], index=[0, 0], form="potts")
        >>> instance = TiedField([2, 2, 2], [chain], labels=[0, 0, 1])
        >>> instance.field({"smooth": np.array([0.7])}).energy([0, 0, 1])
        0.7
        >>> instance.counts([0, 0, 1])
        {'smooth': array([1.])}
    """

    cardinalities: Ints
    blocks: tuple[Block, ...]
    labels: Ints | None = None
    observed: Ints | None = None

    def __init__(
        self,
        cardinalities: ArrayLike,
        blocks: Sequence[Block],
        labels: ArrayLike | None = None,
        observed: ArrayLike | None = None,
    ) -> None:
        cards = as_indices(cardinalities, "cardinalities", 1)
        if len(cards) == 0:
            raise InputError("an instance has no variables, expected at least one")
        if (cards < 1).any():
            v = int(np.flatnonzero(cards < 1)[0])
            raise InputError(f"variable {v} has {int(cards[v])} labels, expected at least 1")
        layout = Layout(cards)
        for block in blocks:
            check_scopes(layout, block.variables, f"factor of block {block.name!r}")
        object.__setattr__(self, "cardinalities", cards)
        object.__setattr__(self, "blocks", tuple(blocks))
        object.__setattr__(self, "labels", checked_labels(labels, cards, "labels"))
        object.__setattr__(self, "observed", checked_labels(observed, cards, "observed labels"))
        _ = self.shapes

    @property
    def n_vars(self) -> int:
        """Number of variables, observed ones included."""
        return len(self.cardinalities)

    @cached_property
    def layout(self) -> Layout:
        """The layout of flat arrays over the variables."""
        return Layout(self.cardinalities)

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Labels of the variables of each block's factors."""
        out = []
        for block in self.blocks:
            if len(block) == 0:
                cards = np.full(block.arity, self.cardinalities[0])
            else:
                cards = self.cardinalities[block.variables[0]]
                wrong = (self.cardinalities[block.variables] != cards).any(axis=1)
                if wrong.any():
                    row = int(np.flatnonzero(wrong)[0])
                    raise InputError(
                        f"factors 0 and {row} of block {block.name!r} have different numbers of "
                        "labels; give each its own block"
                    )
            out.append(tuple(int(c) for c in cards))
        return tuple(out)

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of the parameters of each block, by name."""
        out: dict[str, tuple[int, ...]] = {}
        for block, shape in zip(self.blocks, self.shapes, strict=True):
            want = block.parameter_shape(shape)
            if out.setdefault(block.name, want) != want:
                raise InputError(
                    f"blocks named {block.name!r} have parameters of shapes {out[block.name]} "
                    f"and {want}, expected the same"
                )
        return out

    def field(self, parameters: Parameters) -> Field:
        """An ordinary field with these parameters, with the observed variables as evidence."""
        check_parameters(parameters, self.parameter_shapes())
        out = Field(self.cardinalities)
        for block, shape in zip(self.blocks, self.shapes, strict=True):
            if len(block):
                out.add(_term(block, np.asarray(parameters[block.name], dtype=np.float64), shape))
        if self.observed is None or (self.observed < 0).all():
            return out
        seen = np.flatnonzero(self.observed >= 0)
        return out.condition(dict(zip(seen.tolist(), self.observed[seen].tolist(), strict=True)))

    def counts(self, q: ArrayLike) -> Parameters:
        """Expected sufficient statistics: the derivative of the energy in each parameter.

        Args:
            q: Marginals, flat or (n_vars, labels); or a labelling.  # (size,) or (n_vars,)

        Returns:
            One array per name, shaped like the parameters.
        """
        given = np.asarray(q)
        if given.dtype.kind in "iu" and given.shape == (self.n_vars,):
            flat = np.zeros(self.layout.size)
            flat[self.layout.offsets[:-1] + given] = 1.0
        else:
            flat = np.asarray(given, dtype=np.float64).ravel()
            if len(flat) != self.layout.size:
                raise InputError(f"marginals have {len(flat)} entries, expected {self.layout.size}")
        out = {name: np.zeros(shape) for name, shape in self.parameter_shapes().items()}
        for block, shape in zip(self.blocks, self.shapes, strict=True):
            out[block.name] += block.pull(self._table_counts(block, shape, flat), shape)
        return out

    def _table_counts(self, block: Block, shape: tuple[int, ...], flat: Doubles) -> Doubles:
        """Σ_e x_ef Π_p q_p[y_p] for every table and configuration.  # (F, K_1, …)"""
        joint = np.ones((len(block), 1))
        for p, labels in enumerate(shape):
            own = flat[self.layout.entries(block.variables[:, p], labels)]
            joint = (joint[:, :, None] * own[:, None, :]).reshape(len(block), -1)
        if block.index is None:
            total = block.features.T @ joint
        else:
            size = joint.shape[1]
            at = block.index.astype(np.int64)[:, None] * size + np.arange(size)
            total = np.bincount(at.ravel(), joint.ravel(), block.n_tables * size)
        return np.asarray(total, dtype=np.float64).reshape(block.n_tables, *shape)


def _term(block: Block, parameters: Doubles, shape: tuple[int, ...]) -> Term:
    scopes = block.variables.astype(np.int64)
    if isinstance(block.form, str) and block.form != "table":
        block.basis(shape)  # checks the number of labels
        kind = Potts if block.form == "potts" else Ising
        if block.index is None:
            return kind(scopes, np.asarray(block.features @ parameters))
        return kind(scopes, parameters[block.index])
    tables = block.tables(parameters, shape)
    if block.index is None:
        flat = np.asarray(block.features @ tables.reshape(len(tables), -1))
        tables, index = flat.reshape(-1, *shape), None
    else:
        index = block.index.astype(np.int64)
    if block.arity == 1:
        return Unary(tables if index is None else tables[index], scopes[:, 0])
    if index is None:
        index = np.arange(len(scopes))
    return (Pairwise if block.arity == 2 else Factor)(scopes, tables, index)


def checked_labels(labels: ArrayLike | None, cards: Ints, what: str) -> Ints | None:
    """Labels of variables, checked; -1 is allowed.  # (n_vars,)"""
    if labels is None:
        return None
    out = as_indices(labels, what, 1)
    if len(out) != len(cards):
        raise InputError(f"{len(out)} {what} for {len(cards)} variables")
    bad = (out < -1) | (out >= cards)
    if bad.any():
        v = int(np.flatnonzero(bad)[0])
        raise InputError(
            f"{what}: variable {v} has {int(out[v])}, expected 0 to {int(cards[v]) - 1}, "
            "or -1 where it isn't known"
        )
    return out


def check_parameters(parameters: Parameters, shapes: dict[str, tuple[int, ...]]) -> None:
    """Raise `InputError` unless there are finite parameters of these shapes."""
    for name, shape in shapes.items():
        if name not in parameters:
            raise InputError(f"no parameters for block {name!r}, expected shape {shape}")
        given = np.asarray(parameters[name])
        if given.shape != shape:
            raise InputError(
                f"parameters of block {name!r} have shape {given.shape}, expected {shape}"
            )
        if not np.isfinite(given).all():
            raise InputError(f"parameters of block {name!r} hold NaN or infinite values")


def zero_parameters(instances: Iterable[TiedField]) -> Parameters:
    """Parameters of 0 for all blocks of some instances.

    Example:
        >>> zero_parameters([TiedField([2, 2], [Block("bias", [0, 1], index=[0, 0])])])
        {'bias': array([[0., 0.]])}
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for k, instance in enumerate(instances):
        for name, shape in instance.parameter_shapes().items():
            if shapes.setdefault(name, shape) != shape:
                raise InputError(
                    f"instance {k} has parameters {name!r} of shape {shape}, the ones before it "
                    f"{shapes[name]}"
                )
    return {name: np.zeros(shape) for name, shape in shapes.items()}
