"""What the cases of `seeded_results.py` give: numbers, words and arrays by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import proxfield as pf

Record = dict[str, Any]
Case = tuple[str, Callable[[], Record]]
"""A name, and a function that returns a record."""

THREADS = 2
"""Maximum number of threads of every inference."""


def record_of(result: pf.Result) -> Record:
    """What a result is compared by."""
    out: Record = {
        "status": result.status.name,
        "iterations": int(result.iterations),
        "F": float(result.free_energy),
        "bound": float(result.log_z_bound),
        "marginals": result.q,
        "labels": np.asarray(result.labels),
        "map labels": np.asarray(result.map_labels),
    }
    if result.trace.member is None:
        out["trace"] = result.trace.free_energy
    return out


def records_of(results: list[pf.Result]) -> Record:
    """The records of several results as one, numbered."""
    return {
        f"{key} of {k}": value
        for k, result in enumerate(results)
        for key, value in record_of(result).items()
    }
