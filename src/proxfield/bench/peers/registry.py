"""All peers, in the order of tables: one line each."""

from __future__ import annotations

from collections.abc import Sequence

from proxfield.bench.peers import (
    built_in,
    dwave,
    maxflow,
    pgmax,
    pgmpy,
    pyagrum,
    pydensecrf,
    pygms,
    toulbar2,
)
from proxfield.bench.peers.base import Peer
from proxfield.errors import InputError, shown

PEERS: tuple[Peer, ...] = (
    *(built_in.MeanField(rule) for rule in ("fixed", "sweep", "auto")),
    built_in.Modes(),
    built_in.ExactElimination(),
    built_in.MapPeer(),
    pgmax.PGMax(),
    pygms.LoopyBP(),
    pygms.NaiveMeanField(),
    pygms.MiniBuckets(),
    pygms.JunctionTree(),
    pgmpy.Pgmpy(),
    pyagrum.ShaferShenoy(),
    dwave.TreeDecomposition(),
    dwave.Annealing(),
    toulbar2.Toulbar2(),
    maxflow.GraphCut(),
    built_in.Dense(),
    pydensecrf.Pydensecrf(),
)


def find_peers(names: Sequence[str] | None) -> list[Peer]:
    """The peers whose names begin with one of some words; all by default.

    Args:
        names: Names or beginnings of names, in any case.

    Raises:
        InputError: If a word fits none.

    Example:
        >>> [peer.name for peer in find_peers(["proxfield auto", "pgmax"])]
        ['proxfield auto', 'PGMax BP']
    """
    if names is None:
        return list(PEERS)
    for name in names:
        if not any(_fits(peer, name) for peer in PEERS):
            known = ", ".join(dict.fromkeys(peer.name.split()[0] for peer in PEERS))
            raise InputError(f"unknown peer {shown(name)}, expected some of: {known}")
    return [peer for peer in PEERS if any(_fits(peer, name) for name in names)]


def _fits(peer: Peer, name: str) -> bool:
    return peer.name.lower().startswith(name.lower())
