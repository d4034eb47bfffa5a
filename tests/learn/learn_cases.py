"""Instances for the tests of learning: small, random, of every kind of block."""

from __future__ import annotations

from itertools import product

import numpy as np
from scipy import sparse

from proxfield.learn import Block, Parameters, TiedField, zero_parameters

CASES = ("binary", "labels", "binary-factors", "mixed-factors", "mixed", "forms", "four")
"""Kinds of instances: what variables and blocks they have."""


def make_instance(kind: str, rng: np.random.Generator) -> TiedField:
    """An instance with unknown and observed variables."""
    n = 8
    cards = np.full(n, 3 if kind in ("labels", "forms") else 2)
    if kind.startswith("mixed"):
        cards[::3] = 3
    edges = np.array([e for e in product(range(n), repeat=2) if e[0] < e[1] and rng.random() < 0.5])
    edges = np.where(rng.random(len(edges))[:, None] < 0.5, edges, edges[:, ::-1])
    blocks = []
    for a in np.unique(cards):
        own = np.flatnonzero(cards == a)
        blocks.append(Block(f"unary{a}", own, features=rng.normal(size=(len(own), 3))))
        for b in np.unique(cards):
            some = edges[(cards[edges] == (a, b)).all(axis=1)]
            if len(some) == 0:
                continue
            which = rng.integers(0, 2, len(some))
            blocks.append(Block(f"tables{a}{b}", some, index=which, n_tables=2))
            x = rng.random((len(some), 3)) * (rng.random((len(some), 3)) < 0.5)
            blocks.append(Block("potts", some, features=sparse.csr_matrix(x), form="potts"))
            if (a, b) == (2, 2):
                blocks.append(Block("ising", some, index=which, n_tables=2, form="ising"))
    if kind.endswith("factors"):
        scopes = [[0, 3, 6]] if kind.startswith("mixed") else [[0, 1, 2], [5, 3, 1], [7, 2, 4]]
        blocks.append(Block("triples", scopes, index=np.zeros(len(scopes), int)))
        x = rng.normal(size=(len(scopes), 2))
        blocks.append(Block("feature-triples", scopes, features=x))
    if kind == "four":
        blocks.append(Block("four", [[0, 1, 3, 2], [7, 5, 4, 6]], index=[0, 1]))
    if kind == "forms":
        blocks.append(Block("one", edges, index=np.zeros(len(edges), int), form=np.eye(3)))
        some = rng.normal(size=(2, 3, 3))
        blocks.append(Block("two", edges, features=rng.random((len(edges), 2)), form=some))
        shared = rng.normal(size=(4, 2, 3, 3))
        blocks.append(Block("all", edges, features=rng.random((len(edges), 2)), form=shared))
    labels = (rng.random(n) * cards).astype(int)
    labels[1] = -1
    observed = np.full(n, -1)
    observed[[3, 5]] = labels[[3, 5]]
    return TiedField(cards, blocks, labels, observed)


def make_case(kind: str, seed: int = 0, count: int = 3) -> tuple[list[TiedField], Parameters]:
    """Instances, and random parameters of them."""
    rng = np.random.default_rng(seed)
    instances = [make_instance(kind, rng) for _ in range(count)]
    shapes = {name: value.shape for name, value in zero_parameters(instances).items()}
    return instances, {name: rng.normal(scale=0.6, size=shape) for name, shape in shapes.items()}


def labellings(cards: np.ndarray) -> np.ndarray:
    """All labellings, one per row."""
    return np.array(list(product(*(range(c) for c in cards))))


def exact_counts(instance: TiedField, parameters: Parameters) -> tuple[Parameters, np.ndarray]:
    """Expected counts and the covariance of all of them, by enumeration."""
    field = instance.field(parameters)
    x = labellings(instance.cardinalities)
    if instance.observed is not None:
        seen = instance.observed >= 0
        x = x[(x[:, seen] == instance.observed[seen]).all(axis=1)]
    energy = np.array([field.energy(row) for row in x])
    p = np.exp(energy.min() - energy)
    p /= p.sum()
    counts = [instance.counts(row) for row in x]
    flat = np.array([np.concatenate([c.ravel() for c in one.values()]) for one in counts])
    mean = p @ flat
    out, start = {}, 0
    for name, value in counts[0].items():
        out[name] = mean[start : start + value.size].reshape(value.shape)
        start += value.size
    return out, (flat - mean).T @ ((flat - mean) * p[:, None])
