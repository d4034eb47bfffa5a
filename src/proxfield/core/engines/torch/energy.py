"""The expected energy of a lowered field and its gradient, in plain differentiable torch.

States are (B, n, labels), filled up to the largest number of labels: entries that a variable
doesn't have carry the energy +inf and so the probability 0. Every term gives *messages*, one row
of energies for one variable; rows are gathered, never scattered, so sums come in a fixed order.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from proxfield.core.devices.cuda import sum_type, torch
from proxfield.core.devices.tensors import Tensor, TorchDevice, TorchDtype
from proxfield.core.engines.terms import Maker, implementation
from proxfield.core.filters.torch.operator import Operator, differentiable
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.terms.base import Floats, Ints, Layout, Term
from proxfield.core.terms.factor import Factor
from proxfield.core.terms.gaussian import Gaussian
from proxfield.core.terms.grid import GridPairwise
from proxfield.core.terms.pairwise import Ising, Potts

MAX_SHARED_TABLES = 16
"""Shared tables up to which factors are done table by table, without copies of the tables."""


class Padding:
    """Flat arrays of a layout as (n, largest n_labels), and back.

    Args:
        layout: Where each variable's labels live in a flat array.
        device: Device of the tensors.
    """

    def __init__(self, layout: Layout, device: TorchDevice) -> None:
        self.n = layout.n_vars
        self.labels = int(layout.cardinalities.max(initial=1))
        self.common = layout.common is not None
        self.size = layout.size
        if not self.common:
            label = np.arange(self.labels)
            used = label < layout.cardinalities[:, None]
            at = np.where(used, layout.offsets[:-1, None] + label, layout.size)
            flat = layout.owner * self.labels + layout.label
            self.at = torch.as_tensor(at.ravel(), device=device)
            self.flat = torch.as_tensor(flat, device=device)

    def pad(self, flat: Tensor, fill: float) -> Tensor:
        """# (B, size) -> (B, n, labels)"""
        if not self.common:
            end = flat.new_full((len(flat), 1), fill)
            flat = torch.cat([flat, end], dim=1)[:, self.at]
        return flat.reshape(len(flat), self.n, self.labels)

    def flatten(self, padded: Tensor) -> Tensor:
        """# (B, n, labels) -> (B, size)"""
        flat = padded.reshape(len(padded), -1)
        return flat if self.common else flat[:, self.flat]


class Collect:
    """Sums rows into variables by gathering: variables of like degree together.

    Args:
        owner: The variable that each row is for.  # (rows,)
        n: Number of variables.
        device: Device of the tensors.
    """

    def __init__(self, owner: Ints, n: int, device: TorchDevice) -> None:
        order = np.argsort(owner, kind="stable")
        degree = np.bincount(owner, minlength=n)
        start = np.cumsum(degree) - degree
        self.groups: list[Tensor] = []
        placed: list[Ints] = [np.flatnonzero(degree == 0)]
        self.idle = len(placed[0])
        width = 1
        while width < 2 * degree.max(initial=0):  # at most half of a group's places are empty
            mine = np.flatnonzero((degree > width // 2) & (degree <= width))
            if len(mine):
                slot = np.arange(width)
                at = np.minimum(start[mine, None] + slot, len(order) - 1)
                rows = np.where(slot < degree[mine, None], order[at], len(owner))
                self.groups.append(torch.as_tensor(rows, device=device))
                placed.append(mine)
            width *= 2
        back = np.empty(n, dtype=np.int64)
        back[np.concatenate(placed)] = np.arange(n)
        self.back = torch.as_tensor(back, device=device)

    def add(self, rows: Tensor) -> Tensor:
        """# (B, rows, labels) -> (B, n, labels)"""
        none = rows.new_zeros((len(rows), 1, rows.shape[2]))
        rows = torch.cat([rows, none], dim=1)
        parts = [rows.new_zeros((len(rows), self.idle, rows.shape[2]))]
        parts += [rows[:, at].sum(dim=2) for at in self.groups]
        return torch.cat(parts, dim=1)[:, self.back]


class Edges:
    """Potts or Ising energies, one weight per edge; see the terms of these names."""

    degree = 2

    def __init__(self, edges: Ints, ising: bool, labels: int, device: TorchDevice) -> None:
        self.owner = np.concatenate([edges[:, 0], edges[:, 1]])
        there = np.concatenate([edges[:, 1], edges[:, 0]])
        self.there = torch.as_tensor(there, device=device)
        self.ising, self.labels = ising, labels
        self.count = len(edges)

    def messages(self, q: Tensor, weights: Tensor) -> Tensor:
        """# (B, n, labels), (m,) or (B, m) -> (B, 2m, labels)"""
        w = weights.reshape(-1, weights.shape[-1], 1).repeat(1, 2, 1)
        other = q[:, self.there]
        if not self.ising:
            return w * (1 - other)
        pull = w * (other[..., 1:2] - other[..., :1])
        out = torch.cat([-pull, pull], dim=-1)
        return torch.nn.functional.pad(out, (0, self.labels - 2))


class FactorTables:
    """Messages of one `Factor`: expected tables for each label of each of its variables."""

    def __init__(self, term: Factor, labels: int, dtype: TorchDtype, device: TorchDevice) -> None:
        self.degree, self.shape, self.labels = term.degree, term.shape, labels
        self.count = 0  # parameters that come with a call
        few = len(term.tables) <= MAX_SHARED_TABLES
        groups = [term.index == t for t in range(len(term.tables))] if few else [slice(None)]
        self.groups: list[tuple[Tensor, Tensor, Tensor | None]] = []
        owner = []
        for t, rows in enumerate(groups):
            scopes = term.scopes[rows]
            energies = term.tables[t] if few else term.tables[term.index]
            forbidden = np.isinf(energies)
            table = torch.as_tensor(np.where(forbidden, 0.0, energies), dtype=dtype, device=device)
            hard = torch.as_tensor(forbidden, dtype=dtype, device=device) if term.hard else None
            self.groups.append((torch.as_tensor(scopes, device=device), table, hard))
            owner.append(scopes.T.ravel())  # position by position, as messages come
        self.owner = np.concatenate(owner)
        self.own = "" if few else "y"

    def messages(self, q: Tensor, _: Tensor | None = None) -> Tensor:
        """# (B, n, labels) -> (B, rows, labels)"""
        out = []
        for scopes, table, hard in self.groups:
            weights = [q[:, scopes[:, p], :c] for p, c in enumerate(self.shape)]
            for p, c in enumerate(self.shape):
                part = contract(table, self.own, weights, p)
                if hard is not None:
                    seen = [(w > 0).to(w.dtype) for w in weights]
                    hit = contract(hard, self.own, seen, p) > 0
                    part = torch.where(hit, torch.full_like(part, torch.inf), part)
                out.append(torch.nn.functional.pad(part, (0, self.labels - c)))
        return torch.cat(out, dim=1)


class TiedTables:
    """Messages of a term whose tables come with each call, shared between scopes by an index."""

    def __init__(self, term: Factor | GridPairwise, labels: int, device: TorchDevice) -> None:
        if isinstance(term, GridPairwise):
            scopes, _, index = term.explicit()
        else:
            scopes, index = term.scopes, term.index
        self.shape, self.labels = tuple(term.tables.shape), labels
        self.degree, self.count = len(self.shape) - 1, int(term.tables.size)
        self.owner = scopes.T.ravel()  # position by position, as messages come
        self.scopes = torch.as_tensor(scopes, device=device)
        self.index = torch.as_tensor(index, device=device)

    def messages(self, q: Tensor, tables: Tensor) -> Tensor:
        """# (B, n, labels), (P,) or (B, P) -> (B, rows, labels)"""
        each = tables.reshape(-1, *self.shape).index_select(1, self.index)  # (1 or B, m, …)
        weights = [q[:, self.scopes[:, p], :c] for p, c in enumerate(self.shape[1:])]
        out = []
        for p, c in enumerate(self.shape[1:]):
            part = contract(each, "zy", weights, p).expand(len(q), -1, -1)
            out.append(torch.nn.functional.pad(part, (0, self.labels - c)))
        return torch.cat(out, dim=1)


def contract(table: Tensor, own: str, weights: list[Tensor], position: int) -> Tensor:
    """Σ table[x] Π_{p ≠ position} weights_p(x_p) over x with x_position = l.

    Args:
        table: # (…, c_1, …, c_k)
        own: Leading axes of the table: "" (one table), "y" (by scope), "zy" (by image and scope).
        weights: Marginals at each position.  # (B, m, c_p) each
        position: The one that isn't summed over.
    """
    letters = string.ascii_lowercase[: len(weights)]  # of 23: tables end long before
    out, spec = table, own + letters
    for p, letter in enumerate(letters):
        if p != position:
            result = "zy" + spec.replace(letter, "").lstrip("zy")
            out = torch.einsum(f"{spec},zy{letter}->{result}", out, weights[p])
            spec = result
    return out


class TorchTerm(Protocol):
    """A term in differentiable torch, made from (term, layout, dtype, device)."""

    def gradient(self, q: Tensor) -> Tensor:
        """dE/dq, 0 for variables of other terms.  # (B, n, labels) -> (B, n, labels)"""

    def energy(self, q: Tensor) -> Tensor:
        """E(q) in float64; used only if the term's degree is None.  # (B, n, labels) -> (B,)"""


class AllPairs:
    """A `Gaussian` term, summed over all pairs."""

    @staticmethod
    def accepts(term: Term) -> bool:
        """Whether the term still has its features, and at least one point."""
        assert isinstance(term, Gaussian)
        return term.features is not None and term.n_points > 0

    def __init__(
        self, term: Gaussian, layout: Layout, dtype: TorchDtype, device: TorchDevice
    ) -> None:
        assert term.features is not None
        make = {"dtype": dtype, "device": device}
        features = torch.as_tensor(np.asarray(term.features, dtype=np.float64), **make)[None]
        self.operator: Operator = differentiable(features, term.normalization, term.self_message)
        self.features = features
        self.rows = slice(term.first, term.first + term.n_points)
        self.table: Tensor | None = (
            None if term.matrix is None else torch.as_tensor(term.matrix, **make)
        )
        self.weight = term.weight
        self.labels = int(layout.cardinalities.max(initial=1))
        self.sums = self.operator.apply(torch.ones_like(features[..., :1]))

    def gradient(self, q: Tensor) -> Tensor:
        """dE/dq, 0 for other variables.  # (B, n, labels)"""
        c = self.labels if self.table is None else len(self.table)
        seen = self.operator.apply(q[:, self.rows, :c])
        part = self.weight * (self.sums - seen) if self.table is None else seen @ self.table
        rest = q.shape[1] - self.rows.stop
        return torch.nn.functional.pad(part, (0, q.shape[2] - c, self.rows.start, rest))


class Energy:
    """E(q) of a lowered field.

    Args:
        lowered: The field. Terms without an implementation for "torch" are left out: see `unknown`.
        dtype: ``torch.float32`` or ``torch.float64``.
        device: Where to compute.
        exact: Also take Gaussian terms that asked for the lattice, and sum over all pairs.
        given: More terms, whose weights or tables come with each call.
    """

    def __init__(
        self, lowered: Lowered, dtype: TorchDtype, device: TorchDevice, *, exact: bool = False,
        given: Sequence[Term] = (),
    ) -> None:  # fmt: skip
        layout = lowered.layout
        self.lowered, self.dtype, self.device = lowered, dtype, device
        self.sums = sum_type(device)
        self.padding = Padding(layout, device)
        c = self.padding.labels
        self.unary = self.padding.pad(self.tensor(lowered.unary)[None], np.inf)
        self.constant = float(lowered.constant)
        self.parts: list[tuple[Edges | FactorTables | TiedTables, Tensor | None]] = []
        """What gives messages, and its weights."""
        for term, ising in ((lowered.ising, True), (lowered.potts, False)):
            if term is not None:
                part = Edges(term.edges, ising, c, device)
                self.parts.append((part, self.tensor(term.weights)))
        for factor in lowered.factors:
            self.parts.append((FactorTables(factor, c, dtype, device), None))
        self.given = len(given)  # parts at the end whose parameters come with each call
        for more in given:
            if isinstance(more, (Potts, Ising)):
                self.parts.append((Edges(more.edges, isinstance(more, Ising), c, device), None))
            else:
                assert isinstance(more, (Factor, GridPairwise))
                self.parts.append((TiedTables(more, c, device), None))
        owner = [part.owner for part, _ in self.parts]
        self.rows = np.cumsum([0, *(len(o) for o in owner)])
        self.owner = np.concatenate([np.zeros(0, dtype=np.int64), *owner])
        self.where = torch.as_tensor(self.owner, device=device)
        self.collect = Collect(self.owner, layout.n_vars, device)
        self.blocks: list[tuple[int | None, TorchTerm]] = []  # degrees, and what gives gradients
        self.unknown: list[Term] = []
        for extra in lowered.extras:
            maker = maker_of(extra, exact)
            if maker is None:
                self.unknown.append(extra)
            else:
                self.blocks.append((extra.degree, maker(extra, layout, dtype, device)))

    def tensor(self, values: Floats) -> Tensor:
        """An array as a tensor of this energy's type."""
        return torch.as_tensor(np.array(values), dtype=self.dtype).to(self.device)

    def _messages(
        self, q: Tensor, given: tuple[Tensor, ...]
    ) -> Iterator[tuple[Edges | FactorTables | TiedTables, Tensor]]:
        first = len(self.parts) - self.given
        for k, (part, weights) in enumerate(self.parts):
            yield part, part.messages(q, weights if k < first else given[k - first])

    def gradient(self, q: Tensor, unary: Tensor, *weights: Tensor) -> Tensor:
        """dE/dq; +inf where a label is impossible.

        Args:
            q: # (B, n, labels)
            unary: Energies of single labels.  # (B, n, labels) or (1, n, labels)
            *weights: Parameters of the terms that were given apart.  # (P,) or (B, P) each
        """
        out = unary.expand(len(q), -1, -1)
        rows = [message.expand(len(q), -1, -1) for _, message in self._messages(q, weights)]
        if rows:
            out = out + self.collect.add(torch.cat(rows, dim=1))
        for _, block in self.blocks:
            out = out + block.gradient(q)
        return out

    def energy(self, q: Tensor, unary: Tensor, *weights: Tensor) -> Tensor:
        """E(q) of each image, in float64 where the device has it.  # (B,)"""
        total = self.constant + expected(q, unary.expand(len(q), -1, -1), self.sums)
        for k, (part, message) in enumerate(self._messages(q, weights)):
            mine = q[:, self.where[int(self.rows[k]) : int(self.rows[k + 1])]]
            total = total + expected(mine, message, self.sums) / part.degree
        for degree, block in self.blocks:
            if degree is None:
                total = total + block.energy(q)
            else:
                total = total + expected(q, block.gradient(q), self.sums) / degree
        return total

    def free_energy(self, q: Tensor, unary: Tensor, *weights: Tensor) -> Tensor:
        """F(q) = E(q) − H(q) of each image, in float64 where the device has it.  # (B,)"""
        p = q.to(self.sums)
        return self.energy(q, unary, *weights) + torch.xlogy(p, p).sum(dim=(1, 2))


def expected(q: Tensor, g: Tensor, sums: TorchDtype) -> Tensor:
    """⟨q, g⟩ with 0 · inf = 0, in the type ``sums``.  # (B,)"""
    zero = torch.zeros((), dtype=sums, device=q.device)
    return torch.where(q > 0, q.to(sums) * g.to(sums), zero).sum(dim=(1, 2))


def maker_of(term: Term, exact: bool) -> Maker | None:
    """A term's implementation; None for Gaussian terms over a lattice unless ``exact``."""
    maker = implementation(term, "torch")
    if maker is AllPairs and not exact and isinstance(term, Gaussian):
        return maker if term.filter_kind == "exact" else None
    return maker


# ---- softmax and the proximal step over batches of variables ----


def softmax(theta: Tensor) -> Tensor:
    """q = softmax(−θ); +inf gives 0, and all +inf gives zeros, not NaN.  # (B, n, c)"""
    low = theta.amin(dim=-1, keepdim=True)
    low = torch.where(torch.isinf(low), torch.zeros_like(low), low)
    e = torch.exp(low - theta)
    total = e.sum(dim=-1, keepdim=True)
    return e / torch.where(total > 0, total, torch.ones_like(total))


def possible(theta: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Finite θ and θ*, and where θ* was +inf, which rules a label out.  # (B, n, c) each"""
    impossible = torch.isinf(target)
    target = torch.where(impossible, torch.zeros_like(target), target)
    return torch.where(impossible | torch.isinf(theta), target, theta), target, impossible


def moved(theta: Tensor, target: Tensor, step: Tensor) -> Tensor:
    """θ − step (θ − θ*), where +inf in θ* rules a label out.  # (B, n, c)"""
    theta, target, impossible = possible(theta, target)
    out = theta - step * (theta - target)
    return torch.where(impossible, torch.full_like(out, torch.inf), out)
