"""Instances of learning problems: variables, and blocks of factors over tied parameters.

A block has n factors over the same number of variables. Its parameters make F tables V_1 … V_F, and
the energy of a labelling y is Σ_e Σ_f x_ef V_f[y_e], with y_e the labels of factor e and x_ef its
features. An index is the special case of one feature that is 1: which table each factor uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from proxfield.core.common.arrays import Array, Doubles, Ints
from proxfield.core.common.checks import one_of
from proxfield.core.terms.base import Layout, Term, as_indices, check_scopes
from proxfield.core.terms.factor import Factor
from proxfield.core.terms.pairwise import Ising, Pairwise, Potts
from proxfield.core.terms.unary import Unary
from proxfield.errors import InputError
from proxfield.field import Field

Parameters = dict[str, NDArray[np.float64]]
"""Parameters of all blocks, by name."""
FORMS = ("table", "potts", "ising")
SPARSE_DENSITY = 0.3
"""Features of which at most this share isn't 0 are kept as a sparse matrix."""


@dataclass(frozen=True, eq=False)
class Block:
    """Factors that share parameters: E = Σ_e Σ_f x_ef V_f[y_e].

    Args:
        name: Name of the parameters; blocks of the same name, in all instances, share them.
        variables: Variables of each factor; (n,) for factors of one variable.  # (n, arity)
        features: Features of each factor, an array or a sparse matrix of scipy.  # (n, F)
        index: Instead of features: the table that each factor uses.  # (n,)
        n_tables: Number of tables F with ``index``; by default the largest index plus 1.
        form: What the parameters of a table are: "table" (every entry), "potts" (the energy of
            labels that differ), "ising" (the coupling J of J·s·t with s, t = ±1; two labels), or an
            array of tables of which the parameters are the coefficients:
            (K_1, …): one parameter per table, shape (F,);
            (P, K_1, …): P parameters per table, shape (F, P);
            (P, F, K_1, …): P parameters in all, shape (P,).

    Example:
        >>> block = Block("smooth", [[0, 1], [1, 2]], index=[0, 0], form="potts")
        >>> block.tables(np.array([2.0]), (3, 3))[0]
        array([[0., 2., 2.],
               [2., 0., 2.],
               [2., 2., 0.]])
    """

    name: str
    variables: Array
    features: Array = None
    index: Array = None
    n_tables: Any = None
    form: Array = field(default="table", repr=False)

    def __post_init__(self) -> None:
        name, features, index, n_tables = self.name, self.features, self.index, self.n_tables
        scopes, form = as_integers(self.variables, f"variables of block {name!r}"), self.form
        if scopes.ndim == 1:
            scopes = scopes[:, None]
        if scopes.ndim != 2 or scopes.shape[1] == 0:
            raise InputError(
                f"variables of block {name!r} have shape {scopes.shape}, expected (factors, arity)"
            )
        if (features is None) == (index is None):
            raise InputError(f"block {name!r} needs features or an index, and not both")
        which = None
        if index is not None:
            which = as_integers(index, f"index of block {name!r}")
            if which.shape != (len(scopes),):
                raise InputError(
                    f"block {name!r} has {len(scopes)} factors but an index of shape {which.shape}"
                )
            if len(which) and which.min() < 0:
                raise InputError(f"index of block {name!r} holds {which.min()}, expected 0 or more")
            needed = int(which.max(initial=-1)) + 1
            count = needed if n_tables is None else int(n_tables)
            if count < needed:
                raise InputError(
                    f"index of block {name!r} holds {needed - 1}, expected at most {count - 1}"
                )
        else:
            features = _as_features(features, len(scopes), name)
            count = int(features.shape[1])
            if n_tables is not None and n_tables != count:
                raise InputError(f"block {name!r} has {count} features, not {n_tables}")
        if isinstance(form, str):
            one_of("form", form, FORMS)
        else:
            form = np.asarray(form, dtype=np.float64)
            extra = form.ndim - scopes.shape[1]
            if extra not in (0, 1, 2) or (extra == 2 and form.shape[1] != count):
                raise InputError(
                    f"form of block {name!r} has shape {form.shape}, expected tables of "
                    f"{scopes.shape[1]} variables, with up to 2 axes before them"
                )
        vars(self).update(name=str(name), variables=scopes, features=features)
        vars(self).update(index=which, n_tables=count, form=form)

    @property
    def arity(self) -> int:
        """Number of variables of a factor."""
        return int(self.variables.shape[1])

    def __len__(self) -> int:
        return len(self.variables)

    def basis(self, shape: tuple[int, ...]) -> Doubles | None:
        """Tables whose coefficients the parameters are; None: they are the entries themselves."""
        if not isinstance(self.form, str):
            if self.form.shape[self.form.ndim - self.arity :] != shape:
                raise InputError(
                    f"form of block {self.name!r} has shape {self.form.shape}, but its variables "
                    f"have {shape} labels"
                )
            return np.asarray(self.form)
        if self.form == "table":
            return None
        if self.arity != 2:
            raise InputError(
                f'form="{self.form}" needs pairs, block {self.name!r} has {self.arity}'
            )
        if self.form == "potts":
            return np.asarray(1.0 - np.eye(shape[0], shape[1]))
        if shape != (2, 2):
            raise InputError(f'form="ising" needs two labels, block {self.name!r} has {shape}')
        return np.array([[1.0, -1.0], [-1.0, 1.0]])

    def parameter_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the parameters where the variables have these numbers of labels."""
        basis = self.basis(shape)
        if basis is None:
            return (self.n_tables, *shape)
        extra = basis.ndim - self.arity
        return ((self.n_tables,), (self.n_tables, len(basis)), (len(basis),))[extra]

    def tables(self, parameters: Doubles, shape: tuple[int, ...]) -> Doubles:
        """The tables V_f of some parameters.  # (F, K_1, …)"""
        return expand(parameters, self.basis(shape), self.arity)


def expand(parameters: Doubles, basis: Doubles | None, arity: int) -> Doubles:
    """Tables from parameters: the linear map that a form stands for."""
    if basis is None:
        return parameters
    if basis.ndim == arity:
        return np.asarray(parameters.reshape(-1, *(1,) * arity) * basis)
    return np.asarray(np.tensordot(parameters, basis, axes=1))


def contract(gradient: Doubles, basis: Doubles | None, arity: int) -> Doubles:
    """The transpose of `expand`."""
    if basis is None:
        return gradient
    extra = basis.ndim - arity
    if extra == 2:
        return np.asarray(np.tensordot(basis, gradient, axes=arity + 1))
    axes = range(1, arity + 1), range(extra, extra + arity)
    return np.asarray(np.tensordot(gradient, basis, axes=axes))


def as_integers(values: ArrayLike, what: str) -> Array:
    """Integers in the type that they have: large instances come in 32 bits."""
    raw = np.asarray(values)
    if raw.size == 0:
        raw = raw.astype(np.int32)
    if raw.dtype.kind not in "iu":
        raise InputError(f"{what} must be integers, not {raw.dtype}")
    return raw


def _as_features(features: Array, n: int, name: str) -> Array:
    if sparse.issparse(features):
        out = features.tocsr().astype(np.float64)
        finite = bool(np.isfinite(out.data).all())
    else:
        try:
            out = np.asarray(features, dtype=np.float64)
        except (TypeError, ValueError):
            raise InputError(f"features of block {name!r} must be numbers in one array") from None
        finite = bool(np.isfinite(out).all())
    if out.ndim != 2 or out.shape[0] != n:
        raise InputError(
            f"features of block {name!r} have shape {out.shape}, expected ({n}, features)"
        )
    if not finite:
        raise InputError(f"features of block {name!r} hold NaN or infinite values")
    if not sparse.issparse(out) and out.size and np.count_nonzero(out) <= SPARSE_DENSITY * out.size:
        out = sparse.csr_matrix(out)
    return out


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

    cardinalities: Array
    blocks: Sequence[Block]
    labels: Array = None
    observed: Array = None

    def __post_init__(self) -> None:
        cards = as_indices(self.cardinalities, "cardinalities", 1)
        if len(cards) == 0:
            raise InputError("an instance has no variables, expected at least one")
        if (cards < 1).any():
            v = int(np.flatnonzero(cards < 1)[0])
            raise InputError(f"variable {v} has {int(cards[v])} labels, expected at least 1")
        layout = Layout(cards)
        for block in self.blocks:
            check_scopes(layout, block.variables, f"factor of block {block.name!r}")
        vars(self).update(
            cardinalities=cards,
            blocks=tuple(self.blocks),
            labels=checked_labels(self.labels, cards, "labels"),
            observed=checked_labels(self.observed, cards, "observed labels"),
        )
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
        from proxfield.core.engines.numba.tied import add_adjoint
        from proxfield.learn.structure import prepare

        given = np.asarray(q)
        if given.dtype.kind in "iu" and given.shape == (self.n_vars,):
            flat = np.zeros(self.layout.size)
            flat[self.layout.offsets[:-1] + given] = 1.0
        else:
            flat = np.asarray(given, dtype=np.float64).ravel()
            if len(flat) != self.layout.size:
                raise InputError(f"marginals have {len(flat)} entries, expected {self.layout.size}")
        # E is linear in the tables, and the gradient of a term of k variables has k times its part
        s = prepare([TiedField(self.cardinalities, self.blocks)])
        tables, out, unused = np.zeros(s.n_entries), np.zeros(s.n_entries), np.zeros_like(flat)
        for k, f in s.factors.items():
            add_adjoint(tables, f, s.offsets, flat, flat / k, unused, out)
        return s.pull(out)


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
        take_shapes(shapes, instance, k)
    return {name: np.zeros(shape) for name, shape in shapes.items()}


def take_shapes(shapes: dict[str, tuple[int, ...]], instance: TiedField, number: int) -> None:
    """Add the shapes of an instance's parameters to those of the ones before it."""
    for name, shape in instance.parameter_shapes().items():
        if shapes.setdefault(name, shape) != shape:
            raise InputError(
                f"instance {number} has parameters {name!r} of shape {shape}, those before it "
                f"{shapes[name]}; expected the same numbers of features and labels"
            )
