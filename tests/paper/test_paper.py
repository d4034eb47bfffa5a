"""The paper's numbers on the published instances; descent and bounds on generated ones too."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from helpers import MONOTONE, VARIANTS, infer
from proxfield.bench.suites import load_suites
from proxfield.io.results import read_evidence, read_pr
from standins import DATA, EXACT, write_exact

UAI = DATA / "uai"
PUBLISHED = {path.stem: path for path in sorted((UAI / "exact").glob("*/*.uai"))}

needs_the_papers = pytest.mark.skipif(
    not UAI.is_dir(),
    reason=f"the paper's numbers are of its own instances, and there are none at {UAI} (set "
    "PROXFIELD_DATA to the folder above uai)",
)
either = pytest.mark.parametrize(
    "source", ["generated", pytest.param("published", marks=needs_the_papers)]
)


@cache
def models(family: str) -> dict[str, pf.Field]:
    """The paper's models of a family by file name."""
    return {p.name: pf.read_uai(p) for p in sorted((UAI / "paper" / family).glob("*.uai*"))}


def some_models(family: str, source: str, count: int) -> dict[str, pf.Field]:
    """The first models of a family: the paper's, or generated ones of the same sizes."""
    if source == "published":
        return dict(list(models(family).items())[:count])
    return {i.name: i.make() for i in load_suites(None, [family])[family][:count]}


def mean_free_energy(family: str, rule: str, max_iters: int) -> float:
    runs = [pf.infer(f, rule, max_iters=max_iters).free_energy for f in models(family).values()]
    return float(np.mean(runs))


@needs_the_papers
def test_all_instances_are_there() -> None:
    assert [len(models(family)) for family in ("SEG", "GRID", "DBN")] == [50, 21, 6]


@needs_the_papers
@pytest.mark.parametrize(
    ("family", "rule", "max_iters", "expected", "within"),
    [
        ("SEG", "sweep", 2000, 75.50, 0.01),
        ("SEG", "full-parallel", 2000, 75.66, 0.01),
        ("SEG", "adhoc", 2000, 75.66, 0.01),
        ("SEG", "momentum", 300, 73.76, 0.15),
        ("SEG", "adam", 300, 72.34, 0.15),
        ("GRID", "adhoc", 1000, -18349.0, 0.2),
        ("GRID", "sweep", 1000, -18630.0, 2.0),
        ("GRID", "momentum", 1000, -19154.0, 60.0),
    ],
)
def test_mean_free_energy(
    family: str, rule: str, max_iters: int, expected: float, within: float
) -> None:
    assert mean_free_energy(family, rule, max_iters) == pytest.approx(expected, abs=within)


@either
@pytest.mark.parametrize("rule", ["sweep", "full-parallel", "adhoc"])
def test_segmentation_converges(rule: str, source: str) -> None:
    """The numbers above are at convergence."""
    fields = some_models("SEG", source, 50 if source == "published" else 10)
    assert all(pf.infer(f, rule, max_iters=2000).converged for f in fields.values())


@needs_the_papers
def test_dbn_weighted_by_multiplicity() -> None:
    with (UAI / "paper" / "DBN" / "multiplicity.csv").open() as file:
        count = {row["model"]: int(row["instances"]) for row in csv.DictReader(file)}
    assert sum(count.values()) == 108
    f = {name: pf.infer(field, "sweep").free_energy for name, field in models("DBN").items()}
    mean = sum(count[name] * f[name] for name in f) / sum(count.values())
    assert mean == pytest.approx(-2138.6, abs=0.5)


@either
@pytest.mark.parametrize("family", ["SEG", "GRID", "DBN"])
def test_certified_rules_descend(family: str, source: str) -> None:
    for name, field in some_models(family, source, 6).items():
        for variant in ("fixed", "fixed-local", "adaptive", "colored"):
            assert variant in MONOTONE
            f = infer(field, variant, max_iters=60).trace.free_energy
            assert (np.diff(f) <= 1e-9 * (1 + np.abs(f[:-1]))).all(), (name, variant)


@needs_the_papers
def test_exact_instances_are_there() -> None:
    assert len(PUBLISHED) == 22


@pytest.mark.parametrize("name", [*EXACT, *PUBLISHED])
def test_bounds_stay_below_exact_log_z(name: str, tmp_path: Path) -> None:
    path = PUBLISHED[name] if name in PUBLISHED else write_exact(name, tmp_path)
    field = pf.read_uai(path)
    evidence = read_evidence(f"{path}.evid", field.cardinalities)
    log_z = read_pr(f"{path}.PR")
    slack = 1e-5 * max(1.0, abs(log_z))  # the file has six digits of log10 Z
    field = field.condition(evidence)
    options: dict[str, Any] = {"max_iters": 100}
    for variant in VARIANTS:
        result = infer(field, variant, **options)
        assert np.isfinite(result.q).all(), variant
        assert not np.isnan(result.trace.free_energy).any(), variant
        assert result.log_z_bound <= log_z + slack, variant
        assert result.status is not pf.Status.INFEASIBLE, variant
        for v, label in evidence.items():
            assert result.marginals[v][label] == 1.0
