"""The cases of `seeded_results.py` that need numpy and numba alone.

Iterations are limited by ``max_iters`` and never by seconds, so that nothing depends on the clock.
Options are given even where they are the defaults, which may change.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import proxfield as pf
from proxfield import io
from seeded_fields import LARGE, SMALL, Array, make_field, random_field
from seeded_images import image_cases
from seeded_records import THREADS, Case, Record, record_of, records_of

INITS = ("uniform", "random", "unary")
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "sweep": ("sweep", {}),
    "sweep-random": ("sweep", {"order": "random"}),
    "colored": ("colored", {}),
    "full-parallel": ("full-parallel", {}),
    "adhoc": ("adhoc", {"eta": 0.3}),
    "fixed": ("fixed", {}),
    "fixed-local": ("fixed", {"step": "certified-local"}),
    "fixed-lipschitz": ("fixed", {"step": "lipschitz"}),
    "fixed-0.7": ("fixed", {"step": 0.7}),
    "adaptive": ("adaptive", {}),
    "adaptive-0.9": ("adaptive", {"step": 0.9}),
    "momentum": ("momentum", {}),
    "momentum-printed": ("momentum", {"variant": "printed"}),
    "adam": ("adam", {}),
    "adam-printed": ("adam", {"variant": "printed"}),
    "anneal": ("anneal", {"levels": 10}),
    "anneal-adam": ("anneal", {"inner": "adam", "hot": 3.0, "levels": 5}),
    "restarts": ("restarts", {"count": 3}),
    "portfolio": ("portfolio", {}),
    "auto": ("auto", {}),
}
"""Every rule, with parameters that change which code runs."""
MANY_RULES = ("sweep", "fixed", "adaptive", "momentum", "adam", "anneal", "auto")
SEEDS = 200
"""Seeds of `random_field`."""
FEW = 8
"""Maximum number of iterations of large fields, and of the reference and the torch kernels."""
PLAIN = 80
"""Maximum number of iterations of everything else."""
OPTIONS: Record = {
    "init": "uniform",
    "max_iters": PLAIN,
    "tol": 1e-6,
    "seed": 7,
    "threads": THREADS,
    "kernels": "cpu",
    "dtype": "float64",
    "keep": "last",
}
"""Of `proxfield.infer`, where a case doesn't say something else."""


def cases() -> Iterator[Case]:
    """All of them, always in the same order."""
    yield from small_fields()
    yield from large_fields()
    yield from random_fields()
    yield from batches()
    yield from curvatures()
    yield from image_cases()
    yield from files()


# ---- inference ----


def inferred(field: pf.Field, rule: str, **options: Any) -> Record:
    """The record of one inference by a rule of `RULES`."""
    name, params = RULES[rule]
    return record_of(pf.infer(field, name, **params, **{**OPTIONS, **options}))


def by_name(name: str, *args: Any, **options: Any) -> Record:
    """`inferred` for a field by its name, made when it is first needed."""
    return inferred(make_field(name), *args, **options)


def small_fields() -> Iterator[Case]:
    """Every rule on both kernel sets, in both types and from every start."""
    for name in SMALL:
        ways = product(("cpu", "reference"), RULES, ("float64", "float32"), INITS)
        for kernels, rule, dtype, init in ways:
            options = {"kernels": kernels, "dtype": dtype, "init": init}
            limit = PLAIN if kernels == "cpu" else FEW
            case = partial(by_name, name, rule, max_iters=limit, **options)
            yield f"infer/{name}/{rule}/{kernels}/{dtype}/{init}", case
        for rule in ("full-parallel", "momentum", "adam"):
            yield f"best/{name}/{rule}", partial(by_name, name, rule, keep="best")
        yield f"custom/{name}", partial(custom, name)
        yield f"sample/{name}", partial(sampled, name)


def custom(name: str) -> Record:
    """A rule that is a Python function."""
    half = pf.CustomRule(lambda theta, q, gradient, memory: theta - 0.5 * (theta - gradient))
    return record_of(pf.infer(make_field(name), half, **OPTIONS))


def sampled(name: str) -> Record:
    """Labellings drawn from the marginals, energies of the results, and going on from one."""
    field = make_field(name)
    first = pf.infer(field, "fixed", **{**OPTIONS, "init": "random", "max_iters": 3})
    again = pf.infer(field, "adaptive", **{**OPTIONS, "init": first, "max_iters": 5})
    return {
        "samples": first.sample(3, 5),
        "map energy": float(first.map_energy),
        "expected energy": float(first.expected_energy),
        **record_of(again),
    }


def large_fields() -> Iterator[Case]:
    """Fields for the kernels that use several threads; the reference on a few rules only."""
    for name in LARGE:
        for rule in ("colored", "full-parallel", "adhoc", "fixed", "adaptive", "momentum", "adam"):
            for k, dtype in enumerate(("float64", "float32")):
                options = {"dtype": dtype, "init": INITS[(k + 1) % 3], "max_iters": FEW}
                case = partial(by_name, name, rule, kernels="cpu", **options)
                yield f"large/{name}/{rule}/cpu/{dtype}", case
        for rule in ("sweep", "anneal", "auto"):
            options = {"dtype": "float64", "init": "uniform", "max_iters": FEW}
            case = partial(by_name, name, rule, kernels="cpu", **options)
            yield f"large/{name}/{rule}/cpu/float64", case
        for rule in ("fixed", "adam"):
            options = {"dtype": "float64", "init": "unary", "max_iters": 3}
            case = partial(by_name, name, rule, kernels="reference", **options)
            yield f"large/{name}/{rule}/reference/float64", case


def random_fields() -> Iterator[Case]:
    """Fields of every kind and scale, each with four rules that change from seed to seed."""
    rules = list(RULES)
    ways = (("cpu", "float64"), ("cpu", "float32"), ("reference", "float64"), ("cpu", "float64"))
    for seed in range(SEEDS):
        for k, (kernels, dtype) in enumerate(ways):
            rule, init = rules[(3 * seed + 7 * k) % len(rules)], INITS[(seed + k) % 3]
            case = partial(drawn, seed, rule, kernels=kernels, dtype=dtype, init=init)
            yield f"random/{seed}/{rule}/{kernels}/{dtype}/{init}", case
    for seed in range(1000, 1040):
        rule, init = rules[seed % len(rules)], INITS[seed % 3]
        for dtype in ("float64", "float32"):
            case = partial(drawn, seed, rule, 120, kernels="cpu", dtype=dtype, init=init)
            yield f"random-larger/{seed}/{rule}/{dtype}/{init}", case


def drawn(seed: int, rule: str, size: int | None = None, **options: Any) -> Record:
    """The record of an inference in a random field."""
    field = random_field(seed, scale=None if size is None else 1.0, size=size).field
    return inferred(field, rule, **options)


def batches() -> Iterator[Case]:
    """Many fields in one call."""
    for rule in MANY_RULES:
        for dtype in ("float64", "float32"):
            yield f"many/{rule}/{dtype}", partial(many, rule, dtype=dtype, kernels="cpu")
    yield "many/starts", partial(many, "fixed", dtype="float64", kernels="cpu", continued=True)


def many(rule: str, *, continued: bool = False, **options: Any) -> Record:
    """All records of a batch, numbered."""
    fields = [make_field(name) for name in ("ising-grid", "potts", "factors", "evidence")]
    kinds = ("unary", "pairwise", "potts", "ising", "factor")
    fields += [random_field(seed, scale=1.0, size=10, kinds=kinds).field for seed in range(40, 46)]
    name, params = RULES[rule]
    options = {"max_iters": 20, "tol": 1e-6, "seed": 3, "threads": THREADS, **options, **params}
    found = pf.infer_many(fields, name, init="uniform", **options)
    if continued:
        found = pf.infer_many(fields, name, init=list(found), **options)
    return records_of(found)


def curvatures() -> Iterator[Case]:
    """Eigenvalues, bounds and steps."""
    for name in SMALL:
        for kernels in ("cpu", "reference"):
            yield f"curvature/{name}/{kernels}", partial(curvature, name, kernels)
    for name in LARGE:
        yield f"curvature/{name}/cpu", partial(curvature, name, "cpu", lipschitz=False)


def curvature(name: str, kernels: str, *, lipschitz: bool = True) -> Record:
    """Each of a field's numbers."""
    field = make_field(name)
    found = pf.Curvature(field.lower(), field, kernels)
    out: Record = {
        "largest": float(found.largest),
        "smallest": float(found.smallest),
        "local": found.local,
    }
    if np.isfinite(found.local).all():
        out["certified"] = found.steps("certified")
        out["certified-local"] = found.steps("certified-local")
    if lipschitz:
        out["lipschitz"] = float(found.lipschitz)
    return out


# ---- files ----


def files() -> Iterator[Case]:
    """Models written and read again, and result files."""
    written = [name for name in SMALL if not name.startswith(("gaussian", "cooccurrence"))]
    for name in written:
        yield f"files/{name}", partial(file_round_trip, name)


def file_round_trip(name: str) -> Record:
    """A model as text, the field read from it, and its result as text."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "model.uai"
        pf.write_uai(make_field(name), path)
        text = path.read_bytes()
        field = pf.read_uai(path)
    result = pf.infer(field, "fixed", **OPTIONS)
    return {
        "text": as_bytes(text),
        "MAR": as_bytes(io.format_mar(result.marginals).encode()),
        "MAP": as_bytes(io.format_map(result.map_labels).encode()),
        **record_of(result),
    }


def as_bytes(text: bytes) -> Array:
    """Text as an array, which is what records hold."""
    return np.frombuffer(text, dtype=np.uint8)
