"""Weights of the terms of ordinary fields: `fit_weights`, and `tie` for fields as instances.

Terms that can be expressed as tables go through the compiled methods. For all others the updates
call the term's `add_gradient`, and their adjoint needs products of its Hessian with a vector. These
are exact where the energy is linear or quadratic in q; otherwise they are differences of
second order of the gradient, with an error of about 1e-9 of its size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from proxfield.core.common.arrays import Doubles, Ints
from proxfield.core.common.checks import is_real
from proxfield.core.engines.base import softmax
from proxfield.core.engines.recorded import ArrayUpdates
from proxfield.core.terms.base import Layout, Term, offers
from proxfield.core.terms.pairwise import Ising, Potts
from proxfield.errors import InputError, UnsupportedError, shown
from proxfield.field import Field
from proxfield.learn.methods import find_method, fit_marginals
from proxfield.learn.optimize import Callback
from proxfield.learn.structure import Examples, prepare
from proxfield.learn.tied import Block, Parameters, TiedField, checked_labels

FIXED = "(fixed)"
"""Name of the weight 1 of terms that aren't learned."""
DIFFERENCE = 1e-5
"""Step of differences, in units of marginals."""


def tie(field: Field, share: Sequence[str | None], labels: ArrayLike | None = None) -> TiedField:
    """A field whose terms have learnable weights: E = Σ_t w[share[t]] · E_t.

    Args:
        field: A field of terms that can be expressed as tables. Its evidence counts as observed.
        share: The name of each term's weight, in the order of ``field.terms``. Terms of the same
            name share it; None: the weight stays 1.
        labels: The truth, -1 where unknown.  # (n_vars,)

    Returns:
        An instance; each weight is an array of one number. Terms without a name have the weight
        ``"(fixed)"``.

    Example:
        >>> import proxfield as pf
        >>> field = pf.Field(3, 2, [pf.Unary([[0, 1.0]] * 3), pf.Potts([[0, 1], [1, 2]], 1.0)])
        >>> tie(field, [None, "smooth"], labels=[0, 0, 1]).parameter_shapes()
        {'(fixed)': (1,), 'smooth': (1,)}
    """
    names, blocks = check_share(field, share), []
    for term, name in zip(field.terms, names, strict=True):
        if isinstance(term, (Potts, Ising)):
            for part in _by_labels(field, term.edges):
                weights = term.weights[part, None]
                blocks.append(Block(name, term.edges[part], weights, form=term.name))
            continue
        if not is_tabular(term):
            raise UnsupportedError(
                f"{type(term).__name__} can't be expressed as tables; use fit_weights with "
                'method="marginals"'
            )
        for scopes, tables, index in term.as_tables(field.layout):
            if scopes.shape[1] == 0:
                continue  # a constant: no label depends on it
            if not np.isfinite(tables).all():
                raise InputError(
                    f"{type(term).__name__} forbids configurations, expected finite energies"
                )
            for part in _by_labels(field, scopes):
                shape = tuple(int(c) for c in field.cardinalities[scopes[part[0]]])
                rows = tables[index[part]] if index is not None else tables[part % len(tables)]
                size = int(np.prod(shape))
                form = np.eye(size).reshape(1, size, *shape)
                blocks.append(Block(name, scopes[part], rows.reshape(-1, size), form=form))
    observed = None if (field.evidence < 0).all() else np.array(field.evidence)
    return TiedField(field.cardinalities, blocks, labels, observed)


def check_share(field: Field, share: Sequence[str | None]) -> list[str]:
    """Names of the weights of a field's terms."""
    if isinstance(share, str) or len(share) != len(field.terms):
        raise InputError(
            f"share={shown(share)}, expected {len(field.terms)} names, one per term of the field"
        )
    for name in share:
        if name is not None and (not isinstance(name, str) or name == FIXED):
            raise InputError(f"share has {shown(name)}, expected names or None")
    return [FIXED if name is None else name for name in share]


def is_tabular(term: Term) -> bool:
    """Whether a term can be expressed as tables, and is lowered to them."""
    return offers(term, "lower") and offers(term, "as_tables")


def _by_labels(field: Field, scopes: Ints) -> list[Ints]:
    """Rows of scopes whose variables have the same numbers of labels."""
    if len(scopes) == 0:
        return []
    _, which = np.unique(field.cardinalities[scopes], axis=0, return_inverse=True)
    which = which.ravel()
    return [np.flatnonzero(which == k) for k in range(which.max() + 1)]


def fit_weights(
    fields: Sequence[Field],
    labels: Sequence[ArrayLike],
    share: Sequence[str | None],
    *,
    method: str = "marginals",
    start: Mapping[str, float] | None = None,
    l2: float = 0.0,
    callback: Callback | None = None,
    **options: Any,
) -> dict[str, float]:
    """Learn the weights of terms: E = Σ_t w[share[t]] · E_t, of any kind.

    Args:
        fields: Fields with the same list of kinds of terms.
        labels: The truth of each field, -1 where unknown.
        share: The name of each term's weight; terms of the same name share it, and None keeps the
            weight 1.
        method: "marginals", or for terms that can be expressed as tables any name in `METHODS`.
        start: Where to start; 1 for each weight by default.
        l2: Weight of ½ Σ w².
        callback: Called with a `FitProgress` after each iteration; true ends the fit.
        **options: Options of the method; see `fit_marginals` and the others.

    Returns:
        The weights by name.

    Example:
        >>> import proxfield as pf
        >>> rng = np.random.default_rng(0)
        >>> truth = np.repeat(rng.integers(0, 2, 40), 5)
        >>> noisy = np.stack([truth, 1 - truth], axis=1) + rng.normal(size=(200, 2))
        >>> edges = [[i, i + 1] for i in range(199)]
        >>> field = pf.Field(200, 2, [pf.Unary(noisy), pf.Potts(edges, 1.0)])
        >>> weights = fit_weights([field], [truth], ["unary", "smooth"])
        >>> weights["smooth"] > 0.5
        True
    """
    fields, labels = list(fields), list(labels)
    if not fields:
        raise InputError("there are no fields, expected at least one")
    if len(fields) != len(labels):
        raise InputError(f"{len(fields)} fields but {len(labels)} labellings")
    names = [name for field in fields for name in check_share(field, share)]
    weights = {name: np.ones(1) for name in names}
    for name, value in (start or {}).items():
        if name not in weights or name == FIXED:
            raise InputError(f"start has {shown(name)}, expected names of share")
        if not is_real(value) or not np.isfinite(value):
            raise InputError(f"start of {shown(name)} is {shown(value)}, expected a number")
        weights[name] = np.array([float(value)])
    started = dict(weights)
    fixed = [FIXED] if FIXED in weights else []
    if all(is_tabular(term) for field in fields for term in field.terms):
        tied = prepare(tie(f, share, y) for f, y in zip(fields, labels, strict=True))
        weights = {name: weights[name] for name in tied.shapes}
        fixed = [name for name in fixed if name in weights]
        found = find_method(method)(tied, weights, l2=l2, fixed=fixed, callback=callback, **options)
    else:
        if method != "marginals":
            kind = next(type(t).__name__ for f in fields for t in f.terms if not is_tabular(t))
            raise UnsupportedError(f'{kind} can only be learned with method="marginals"')
        joint = JointFields(fields, labels, share)
        found = fit_marginals(joint, weights, l2=l2, fixed=fixed, callback=callback, **options)
    found = {**started, **found}  # terms without factors keep their start
    return {name: float(value[0]) for name, value in found.items() if name != FIXED}


class JointFields(Examples):
    """Fields whose terms have weights; see `Examples`. Their tables are the weights of all terms.

    Args:
        fields: The fields.
        labels: The truth of each.
        share: Names of the weights of terms.
    """

    def __init__(
        self, fields: Sequence[Field], labels: Sequence[ArrayLike], share: Sequence[str | None]
    ) -> None:
        self.fields, self.names = list(fields), check_share(fields[0], share)
        known = []
        for field, y in zip(fields, labels, strict=True):
            truth = checked_labels(y, field.cardinalities, "labels")
            assert truth is not None
            known.append(np.where(field.evidence >= 0, -1, truth))
        self.labels = np.concatenate(known)
        cards = np.concatenate([f.cardinalities for f in fields])
        self.offsets = np.concatenate([[0], np.cumsum(cards)])
        self.shapes = dict.fromkeys(self.names, (1,))

    def tables(self, parameters: Parameters) -> Doubles:
        return np.array([float(parameters[name][0]) for name in self.names])

    def pull(self, gradient: Doubles) -> Parameters:
        out = {name: np.zeros(1) for name in self.shapes}
        for name, slope in zip(self.names, gradient, strict=True):
            out[name] += slope
        return out

    def updates(self, w: Doubles, device: str = "cpu") -> WeightedTerms:
        if device != "cpu":
            raise UnsupportedError(
                f"device={shown(device)}, expected 'cpu' for terms without tables"
            )
        return WeightedTerms(self.fields, w)


class WeightedTerms(ArrayUpdates):
    """Updates of fields by their terms' own gradients; the parameters are the terms' weights."""

    def __init__(self, fields: Sequence[Field], weights: Doubles) -> None:
        self.members, self.weights = fields, weights
        cards = np.concatenate([field.cardinalities for field in fields])
        evidence = np.concatenate([field.evidence for field in fields])
        layout = self.layout = Layout(cards)
        super().__init__(layout.size, len(weights))
        seen = np.flatnonzero(evidence >= 0)
        self.free = ~np.isin(layout.owner, seen)
        self.held = np.zeros(layout.size)
        self.held[layout.offsets[seen] + evidence[seen]] = 1.0
        self.ends = np.cumsum([field.layout.size for field in fields])[:-1]

    def softmax(self, theta: Doubles) -> Doubles:
        q = softmax(self.layout.owner, self.layout.offsets, theta)
        return np.where(self.free, q, self.held)

    def covariance(self, q: Doubles, d: Doubles) -> Doubles:
        mean = self.layout.sum_by_variable(q * d)
        return np.where(self.free, q * (d - mean[self.layout.owner]), 0.0)

    def gradient(self, q: Doubles) -> tuple[Doubles, list[Doubles]]:
        parts = zip(self.members, np.split(q, self.ends), strict=True)
        each = [[_gradient(term, f.layout, own) for term in f.terms] for f, own in parts]
        slopes = [np.concatenate(slope) for slope in zip(*each, strict=True)]
        g = np.zeros(self.size)
        for weight, slope in zip(self.weights, slopes, strict=True):
            g += weight * slope
        return g, slopes

    def pull(self, q: Doubles, parts: list[Doubles], dg: Doubles, out: Doubles) -> Doubles:
        out += [float(slope @ dg) for slope in parts]
        back = np.zeros(self.size)
        each = zip(
            self.members, np.split(q, self.ends), np.split(dg, self.ends),
            np.split(back, self.ends), strict=True,
        )  # fmt: skip
        for field, here, way, into in each:
            for weight, term in zip(self.weights, field.terms, strict=True):
                into += weight * hessian_product(term, field.layout, here, way)
        return back


def hessian_product(term: Term, layout: Layout, q: Doubles, v: Doubles) -> Doubles:
    """The Hessian of a term's expected energy at q, times v, which sums to 0 for each variable."""
    if term.degree == 1:
        return np.zeros(layout.size)
    if term.degree == 2:  # the gradient is linear
        return _gradient(term, layout, v)
    # v = (v⁺ − S q) − (v⁻ − S q) with S = Σ v⁺ = Σ v⁻: two ways that don't leave the simplices
    total = 0.5 * layout.sum_by_variable(np.abs(v))
    if not total.any():
        return np.zeros(layout.size)
    h, inward = DIFFERENCE / total.max(), total[layout.owner] * q
    here, out = _gradient(term, layout, q), np.zeros(layout.size)
    for sign in (1.0, -1.0):
        way = h * (np.maximum(sign * v, 0.0) - inward)
        near, far = _gradient(term, layout, q + way), _gradient(term, layout, q + 2.0 * way)
        out += sign * (4.0 * near - 3.0 * here - far) / (2.0 * h)
    return out


def _gradient(term: Term, layout: Layout, q: Doubles) -> Doubles:
    out = np.zeros(layout.size)
    term.add_gradient(layout, q, out)
    return out
