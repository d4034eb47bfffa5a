"""Blocks: factors whose energies are linear in parameters that they share.

A block has n factors over the same number of variables. Its parameters make F tables V_1 … V_F, and
the energy of a labelling y is Σ_e Σ_f x_ef V_f[y_e], with y_e the labels of factor e and x_ef its
features. An index is the special case of one feature that is 1: which table each factor uses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from proxfield.core.common.arrays import Doubles, Ints
from proxfield.errors import InputError, shown

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
    variables: Ints
    features: Any = None
    index: Ints | None = None
    n_tables: int = 0
    form: str | Doubles = field(default="table", repr=False)

    def __init__(
        self,
        name: str,
        variables: ArrayLike,
        features: Any = None,
        index: ArrayLike | None = None,
        n_tables: int | None = None,
        form: str | ArrayLike = "table",
    ) -> None:
        scopes = _as_integers(variables, f"variables of block {name!r}")
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
            which = _as_integers(index, f"index of block {name!r}")
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
            if form not in FORMS:
                raise InputError(f"form={shown(form)}, expected one of: {', '.join(FORMS)}")
        else:
            form = np.asarray(form, dtype=np.float64)
            extra = form.ndim - scopes.shape[1]
            if extra not in (0, 1, 2) or (extra == 2 and form.shape[1] != count):
                raise InputError(
                    f"form of block {name!r} has shape {form.shape}, expected tables of "
                    f"{scopes.shape[1]} variables, with up to 2 axes before them"
                )
        for key, value in (
            *(("name", str(name)), ("variables", scopes), ("features", features)),
            *(("index", which), ("n_tables", count), ("form", form)),
        ):
            object.__setattr__(self, key, value)

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
            return self.form
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

    def pull(self, gradient: Doubles, shape: tuple[int, ...]) -> Doubles:
        """The gradient in parameters, from one in the tables.  # (F, K_1, …) -> parameters"""
        return contract(gradient, self.basis(shape), self.arity)


def expand(parameters: Doubles, basis: Doubles | None, arity: int) -> Doubles:
    """Tables from parameters: the linear map that a form stands for."""
    if basis is None:
        return parameters
    extra = basis.ndim - arity
    if extra == 0:
        return np.asarray(parameters.reshape(-1, *(1,) * arity) * basis)
    return np.asarray(np.tensordot(parameters, basis, axes=1))


def contract(gradient: Doubles, basis: Doubles | None, arity: int) -> Doubles:
    """The transpose of `expand`."""
    if basis is None:
        return gradient
    extra = basis.ndim - arity
    if extra == 2:
        return np.asarray(np.tensordot(basis, gradient, axes=arity + 1))
    return np.asarray(
        np.tensordot(gradient, basis, axes=(range(1, arity + 1), range(extra, extra + arity)))
    )


def _as_integers(values: ArrayLike, what: str) -> NDArray[Any]:
    """Integers in the type that they have: large instances come in 32 bits."""
    raw = np.asarray(values)
    if raw.size == 0:
        raw = raw.astype(np.int32)
    if raw.dtype.kind not in "iu":
        raise InputError(f"{what} must be integers, not {raw.dtype}")
    return raw


def _as_features(features: Any, n: int, name: str) -> Any:
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
