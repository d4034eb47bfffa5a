"""``proxfield info``: what a model is made of, and which steps are certified for it."""

from __future__ import annotations

from collections import Counter

import numpy as np

from proxfield.cli.options import Options
from proxfield.cli.progress import Display
from proxfield.cli.running import LoadedModel, load
from proxfield.cli.shared import number, print_json, print_pairs
from proxfield.core.common.memory import human_bytes
from proxfield.core.common.records import Record
from proxfield.core.engines.plan import damping_for
from proxfield.core.lowering.lowered import Lowered
from proxfield.core.solve.curvature import Curvature
from proxfield.field import Field


def info(options: Options) -> None:
    """Run the command."""
    with Display() as display:
        loaded = load(options, display)
        display.phase("lowering")
        lowered = loaded.field.lower()
        data = {**sizes(loaded), "structure": structure(lowered)}
        display.phase("curvature")
        with display.announcing_compilation():
            data["curvature"] = curvature(loaded.field, lowered)
    if options.as_json:
        print_json(data)
    else:
        print_pairs(describe(data))


def sizes(loaded: LoadedModel) -> Record:
    """The model as it was given."""
    field = loaded.field
    cards = field.cardinalities
    scopes: Counter[int] = Counter()
    for term in field.terms:
        for table_scopes, *_ in term.as_tables(field.layout):
            scopes[table_scopes.shape[1]] += len(table_scopes)
    return {
        "model": loaded.name,
        "n_vars": field.n_vars,
        "n_observed": loaded.n_observed,
        "n_labels_min": int(cards.min(initial=0 if len(cards) == 0 else cards[0])),
        "n_labels_max": int(cards.max(initial=0)),
        "n_factors": sum(scopes.values()),
        "factors_by_arity": {str(k): scopes[k] for k in sorted(scopes)},
        "model_bytes": sum(t.nbytes for t in field.terms),
        "inference_bytes": field.memory_estimate(),
        "load_seconds": loaded.seconds,
    }


def structure(lowered: Lowered) -> Record:
    """What lowering made of it; a label gone of a variable that wasn't decided was impossible."""
    reduction = lowered.reduction
    pairs = [f for f in lowered.factors if f.degree == 2]
    larger: Counter[int] = Counter()
    for f in lowered.factors:
        if f.degree > 2:
            larger[f.degree] += len(f.scopes)
    diagonals = 0  # on which the Ising edges run; 0 if they run edge by edge
    if lowered.ising is not None and not lowered.infeasible:
        from proxfield.core.engines.numba.pack import is_binary, pack_binary  # imports numba

        if is_binary(lowered):
            packed = pack_binary(lowered, np.dtype(np.float64), rows_only=False)
            diagonals = len(packed.distance)
    forbidden = sum(
        int(np.isinf(f.tables).reshape(len(f.tables), -1).sum(axis=1)[f.index].sum())
        for f in lowered.factors
    )
    return {
        "n_vars": lowered.layout.n_vars,
        "n_entries": lowered.layout.size,
        "ising_edges": 0 if lowered.ising is None else len(lowered.ising.edges),
        "diagonals": diagonals,
        "potts_edges": 0 if lowered.potts is None else len(lowered.potts.edges),
        "pair_tables": sum(len(f.scopes) for f in pairs),
        "distinct_pair_tables": sum(len(f.tables) for f in pairs),
        "larger_tables_by_arity": {str(k): larger[k] for k in sorted(larger)},
        "other_terms": [type(t).__name__ for t in lowered.extras],
        "forbidden_labels": int(np.isinf(lowered.unary).sum())
        + int((~reduction.keep & (reduction.counts > 1)[reduction.full.owner]).sum()),
        "forbidden_configurations": forbidden,
        "infeasible": lowered.infeasible,
    }


def curvature(field: Field, lowered: Lowered) -> Record | None:
    """λ, μ, L and the steps they certify; None where no labelling is possible.

    Where tables forbid configurations the curvature is infinite and no step is certified.
    """
    if lowered.infeasible:
        return None
    c = Curvature(lowered, field)
    numbers = {"lambda": c.largest, "mu": c.smallest, "lipschitz": c.lipschitz}
    if c.largest == float("inf"):
        steps = ("certified_damping", "certified_step", "local_step_min", "local_step_max")
        return {**numbers, **dict.fromkeys(steps)}
    damping = float(damping_for(c.largest))
    local = damping_for(c.local)
    return {
        **numbers,
        "certified_damping": damping,
        "certified_step": 1 / (1 + damping),
        "local_step_min": float(1 / (1 + local.max(initial=0.0))),
        "local_step_max": float(1 / (1 + (local.min() if len(local) else 0.0))),
    }


def describe(data: Record) -> list[tuple[str, str]]:
    """What was found, as rows for people; what is absent isn't mentioned."""
    low, high = data["n_labels_min"], data["n_labels_max"]
    s, c = data["structure"], data["curvature"]
    observed = f", {data['n_observed']} observed" if data["n_observed"] else ""
    arities = ", ".join(f"{n} over {k}" for k, n in data["factors_by_arity"].items())
    model, more = human_bytes(data["model_bytes"]), human_bytes(data["inference_bytes"])
    rows = [
        ("model", data["model"]),
        ("variables", f"{data['n_vars']}{observed}"),
        ("labels", str(low) if low == high else f"{low} to {high}"),
        ("factors", f"{data['n_factors']} ({arities} variables)" if arities else "0"),
        ("memory", f"{model}, and at most {more} to infer"),
    ]
    if s["infeasible"]:
        why = "no labelling has positive probability: the zeros of the model contradict each other"
        return [*rows, ("feasible", f"no: {why}")]
    rows.append(("left to infer", f"{s['n_vars']} variables with {s['n_entries']} labels in all"))
    how = f"along {s['diagonals']} diagonals" if s["diagonals"] else "edge by edge"
    distinct = f"{s['pair_tables']}, {s['distinct_pair_tables']} distinct"
    found = {
        "Ising edges": s["ising_edges"] and f"{s['ising_edges']}, run {how}",
        "Potts edges": s["potts_edges"],
        "pair tables": s["pair_tables"] and distinct,
        **{f"tables over {k}": n for k, n in s["larger_tables_by_arity"].items()},
        "other terms": ", ".join(s["other_terms"]),
        "forbidden labels": s["forbidden_labels"],
        "forbidden configurations": s["forbidden_configurations"],
    }
    rows += [(name, str(value or "")) for name, value in found.items()]
    if c["lambda"] == float("inf"):
        why = "none while tables forbid configurations; inference uses finite penalties first, "
        return [*rows, ("certified step", f"{why}then exact coordinate descent")]
    figures = {
        "λ, largest curvature": "lambda",
        "μ, minus the smallest": "mu",
        "L of the paper": "lipschitz",
        "certified damping": "certified_damping",
        "certified step": "certified_step",
    }
    rows += [(name, number(c[key], 6)) for name, key in figures.items()]
    steps = f"{number(c['local_step_min'], 4)} to {number(c['local_step_max'], 4)}"
    return [*rows, ("certified-local steps", steps)]
