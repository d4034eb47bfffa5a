"""The kernels of learning in numpy, written to be read: factor by factor, label by label."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from proxfield.core.common.arrays import Doubles, Ints
from proxfield.core.compiled.math import uniforms
from proxfield.learn.structure import Structure
from proxfield.learn.trees import Bytes, Tree, gain_scores


def factors(s: Structure) -> Iterator[tuple[Ints, int, Ints]]:
    """Variables, base and strides of each factor."""
    for k in sorted(s.factors):
        f = s.factors[k]
        for e in range(len(f.base)):
            yield f.variables[e].astype(np.int64), int(f.base[e]), f.strides[f.kind[e], :k]


def labels_of(s: Structure, v: int) -> int:
    """Number of labels of a variable."""
    return int(s.offsets[v + 1] - s.offsets[v])


def configurations(s: Structure, scope: Ints) -> Iterator[Ints]:
    """All labels of some variables together."""
    for x in product(*(range(labels_of(s, int(v))) for v in scope)):
        yield np.array(x)


def softmax(s: Structure, theta: Doubles) -> Doubles:
    """q = softmax(−θ), variable by variable."""
    out = np.empty_like(theta)
    for v in range(s.n_vars):
        own = theta[s.offsets[v] : s.offsets[v + 1]]
        weights = np.exp(own.min() - own)
        out[s.offsets[v] : s.offsets[v + 1]] = weights / weights.sum()
    return out


def pull_softmax(s: Structure, q: Doubles, d: Doubles) -> Doubles:
    """From dL/dq to dL/dθ: −(diag q − q qᵀ) d of each variable."""
    out = np.empty_like(d)
    for v in range(s.n_vars):
        at = slice(s.offsets[v], s.offsets[v + 1])
        out[at] = (np.outer(q[at], q[at]) - np.diag(q[at])) @ d[at]
    return out


def pseudo_likelihood(s: Structure, w: Doubles) -> tuple[float, Doubles]:
    """−Σ_i log p(y_i | all others), and its gradient in w."""
    energy, dw = np.zeros(s.offsets[-1]), np.zeros_like(w)
    uses: list[tuple[int, int, int]] = []  # (variable, entry of the energies, entry of w)
    for scope, base, strides in factors(s):
        y = s.labels[scope]
        for p, v in enumerate(scope):
            others = np.arange(len(scope)) != p
            if (y[others] < 0).any():
                continue
            for label in range(labels_of(s, int(v))):
                at = base + int(y[others] @ strides[others]) + label * int(strides[p])
                uses.append((int(v), int(s.offsets[v]) + label, at))
                energy[s.offsets[v] + label] += w[at]
    p_labels = softmax(s, energy)
    for v, entry, place in uses:
        if s.labels[v] >= 0:
            dw[place] += (entry == s.offsets[v] + s.labels[v]) - p_labels[entry]
    known = np.flatnonzero(s.labels >= 0)
    return float(-np.log(p_labels[s.offsets[known] + s.labels[known]]).sum()), dw


def gradient(s: Structure, w: Doubles, q: Doubles) -> Doubles:
    """g = dE/dq of the expected energy."""
    out = np.zeros(s.offsets[-1])
    for scope, base, strides in factors(s):
        for x in configurations(s, scope):
            own = q[s.offsets[scope] + x]
            for p, v in enumerate(scope):
                out[s.offsets[v] + x[p]] += w[base + x @ strides] * np.prod(np.delete(own, p))
    return out


def pull_gradient(s: Structure, w: Doubles, q: Doubles, d: Doubles) -> tuple[Doubles, Doubles]:
    """From dL/dg at q to dL/dq and dL/dw."""
    dq, dw = np.zeros_like(q), np.zeros_like(w)
    for scope, base, strides in factors(s):
        for x in configurations(s, scope):
            at, entries = base + x @ strides, s.offsets[scope] + x
            for p in range(len(scope)):
                dw[at] += d[entries[p]] * np.prod(np.delete(q[entries], p))
                for r in range(len(scope)):
                    if r != p:
                        rest = np.prod(np.delete(q[entries], [p, r]))
                        dq[entries[r]] += w[at] * d[entries[p]] * rest
    return dq, dw


def unrolled(
    s: Structure, w: Doubles, n_updates: int, step: float
) -> tuple[Doubles, list[Doubles]]:
    """Marginals after damped updates from uniform ones, and those before each update."""
    theta, history = np.zeros(s.offsets[-1]), []
    for _ in range(n_updates):
        history.append(softmax(s, theta))
        theta = (1.0 - step) * theta + step * gradient(s, w, history[-1])
    return softmax(s, theta), history


def unrolled_adjoint(
    s: Structure, w: Doubles, q: Doubles, history: list[Doubles], step: float, d: Doubles
) -> Doubles:
    """From dL/dq of the last marginals to dL/dw."""
    a, out = pull_softmax(s, q, d), np.zeros_like(w)
    for before in reversed(history):
        dq, dw = pull_gradient(s, w, before, step * a)
        out += dw
        a = (1.0 - step) * a + pull_softmax(s, before, dq)
    return out


def gibbs(s: Structure, w: Doubles, x: Ints, seed: int, counter: int) -> Ints:
    """Labels after one Gibbs sweep in the order of variables."""
    x, draws = x.copy(), uniforms(seed, counter + np.arange(s.n_vars, dtype=np.uint64))
    for v in range(s.n_vars):
        energy = np.zeros(labels_of(s, v))
        for scope, base, strides in factors(s):
            if v in scope:
                p = int(np.flatnonzero(scope == v)[0])
                others = np.arange(len(scope)) != p
                at = base + int(x[scope[others]] @ strides[others])
                energy += w[at + np.arange(len(energy)) * strides[p]]
        total = np.cumsum(np.exp(energy.min() - energy))
        label = int(np.searchsorted(total, draws[v] * total[-1], side="right"))
        x[v] = min(label, len(energy) - 1)
    return x


def grow(
    features: Bytes, classes: Ints, n_values: int, n_classes: int, max_leaves: int, least: int = 1
) -> Tree:
    """The same tree as `grow`, in numpy."""
    scores = gain_scores(len(classes))

    def best_split(samples: Ints) -> tuple[int, int, int]:
        """Gain, feature and value of the best test of a leaf; the first of equal ones."""
        best = (0, -1, -1)
        totals = np.bincount(classes[samples], minlength=n_classes)
        for f in range(features.shape[1]):
            seen = features[samples, f]
            for v in range(n_values):
                inside = np.bincount(classes[samples[seen == v]], minlength=n_classes)
                if min(inside.sum(), len(samples) - inside.sum()) < least:
                    continue
                gain = _purity(inside, scores) + _purity(totals - inside, scores)
                gain -= _purity(totals, scores)
                if gain > best[0]:
                    best = (gain, f, v)
        return best

    tests, children = [(-1, -1)], [(-1, -1)]
    everything = np.arange(len(classes))
    leaves = [(0, everything, best_split(everything))]  # node, samples, best test
    while len(leaves) < max_leaves:
        place = max(range(len(leaves)), key=lambda k: (leaves[k][2][0], -k))
        node, samples, (gain, f, v) = leaves[place]
        if gain <= 0:
            break
        first = len(tests)
        tests[node], children[node] = (f, v), (first, first + 1)
        tests += [(-1, -1)] * 2
        children += [(-1, -1)] * 2
        has = features[samples, f] == v
        parts = [samples[has], samples[~has]]
        leaves[place] = (first, parts[0], best_split(parts[0]))
        leaves.append((first + 1, parts[1], best_split(parts[1])))
    return Tree(np.array(tests), np.array(children))


def _purity(counts: Ints, scores: Ints) -> int:
    """How far a leaf's labels are from evenly mixed, in units of gain; −n times the entropy."""
    return int(scores[counts].sum() - scores[counts.sum()])


def apply(tree: Tree, features: Bytes) -> Ints:
    """The leaf of each sample.  # (samples, features) -> (samples,)"""
    node, rows = np.zeros(len(features), dtype=np.int64), np.arange(len(features))
    while True:
        feature, value = tree.tests[node].T
        inner = feature >= 0
        if not inner.any():
            return np.asarray(tree.leaf_of[node])
        other = features[rows, np.maximum(feature, 0)] != value
        node = np.where(inner, tree.children[node, other.astype(int)], node)
