"""The random fields hold what their descriptions claim, and together all there is."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

import proxfield as pf
from proxfield.testing import enumerate_field, fixed_point_residual
from random_fields import FEATURES, SITUATIONS, RandomField, random_field

SEEDS = range(500)


@lru_cache(maxsize=1)
def fields() -> list[RandomField]:
    return [random_field(seed) for seed in SEEDS]


def test_500_seeds_cover_every_feature() -> None:
    seen = set().union(*(about.features for _, about in fields()))
    assert seen == FEATURES
    assert set(pf.TERMS) <= FEATURES


def test_500_seeds_cover_every_kind_in_every_situation() -> None:
    seen = {
        pair
        for _, about in fields()
        for pair in itertools.product(pf.TERMS, SITUATIONS)
        if about.features.issuperset(pair)
    }
    assert seen == set(itertools.product(pf.TERMS, SITUATIONS))


def test_scales_cover_all_decades() -> None:
    decades = {int(np.floor(np.log10(about.scale))) for _, about in fields()}
    assert decades == set(range(-8, 8))


def test_fields_are_small_unless_asked_otherwise() -> None:
    assert max(np.prod(field.cardinalities) for field, _ in fields()) <= 4096
    for seed in range(20):
        field, about = random_field(seed, size=400, scale=3.0)
        assert 350 <= field.n_vars <= 410
        assert about.scale == 3.0
        if about.labels is not None:
            assert np.isfinite(field.energy(about.labels))


def test_descriptions_are_true() -> None:
    for field, about in fields():
        kinds = {term.name for term in field.terms}
        assert kinds == about.features & set(pf.TERMS)
        cards = set(field.cardinalities.tolist())
        assert {f"labels-{c}" for c in cards} == {f for f in about.features if f[:7] == "labels-"}
        assert ("mixed-cardinalities" in about.features) == (len(cards) > 1)
        seen = field.evidence >= 0
        assert ("evidence" in about.features) == bool(seen.any())
        assert ("all-observed" in about.features) == bool(seen.all())
        for kind, feature in ((pf.Unary, "impossible-label"), (pf.Pairwise, "forbidden")):
            tables = [
                t.energies if kind is pf.Unary else t.tables for t in field.terms if type(t) is kind
            ]
            if any(np.isinf(t).any() for t in tables) and "infeasible" not in about.features:
                assert any(f.startswith(feature) for f in about.features)


def test_feasible_means_feasible() -> None:
    for field, about in fields():
        assert about.feasible == ("infeasible" not in about.features)
        if about.labels is None:
            assert enumerate_field(field).min_energy == np.inf
        else:
            assert np.isfinite(field.energy(about.labels))
            observed = field.evidence >= 0
            assert (about.labels[observed] == field.evidence[observed]).all()


def test_isolated_variables_have_no_term() -> None:
    for field, about in fields():
        if "isolated-variable" not in about.features or not about.feasible:
            continue
        exact = enumerate_field(field.condition({}))
        uniform = [
            bool(np.allclose(rows, 1 / len(rows)))
            for rows in np.split(exact.marginals, field.layout.offsets[1:-1])
        ]
        assert any(uniform) or (field.evidence >= 0).any()


def test_symmetric_fields_have_a_uniform_fixed_point() -> None:
    found = 0
    for field, about in fields():
        if "symmetric" not in about.features:
            continue
        uniform = 1.0 / np.repeat(field.cardinalities, field.cardinalities)
        rounding = 1e-14 * max(1.0, about.scale)
        assert fixed_point_residual(field, uniform) < 1e-9 + 100 * rounding
        found += 1
    assert found > 20


def test_the_same_seed_gives_the_same_field() -> None:
    code = (
        "import hashlib, numpy as np\n"
        "from random_fields import random_field\n"
        "h = hashlib.sha256()\n"
        "for seed in range(40):\n"
        "    field, about = random_field(seed)\n"
        "    h.update(str(about).encode())\n"
        "    h.update(np.ascontiguousarray(field.evidence).tobytes())\n"
        "    for term in field.terms:\n"
        "        for value in vars(term).values():\n"
        "            if isinstance(value, np.ndarray):\n"
        "                h.update(np.ascontiguousarray(value).tobytes())\n"
        "print(h.hexdigest())\n"
        "import sys; assert 'pytest' not in sys.modules and 'numba' not in sys.modules\n"
    )
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    runs = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
        ).stdout
        for _ in range(2)
    }
    assert len(runs) == 1
    assert str(random_field(1).about) != str(random_field(2).about)


@pytest.mark.parametrize("kind", sorted(pf.TERMS))
def test_kinds_are_respected(kind: str) -> None:
    for seed in range(20):
        field, about = random_field(seed, kinds=[kind], scale=1.0)
        assert {term.name for term in field.terms} <= {kind}
        assert about.features & set(pf.TERMS) <= {kind}
    wanted = [random_field(seed, kinds=[kind]).field.terms for seed in range(20)]
    assert sum(bool(terms) for terms in wanted) >= 15


def test_bad_arguments_are_named() -> None:
    with pytest.raises(pf.InputError, match="kinds=\\['nonsense'\\], expected names from constant"):
        random_field(0, kinds=["potts", "nonsense"])
    with pytest.raises(pf.InputError, match="scale=-1"):
        random_field(0, scale=-1.0)
    with pytest.raises(pf.InputError, match="size=0"):
        random_field(0, size=0)


def test_description_reads_well() -> None:
    field, about = random_field(2)
    assert str(about).startswith("random_field(2): scale ")
    assert sorted(about.features)[0] in str(about)
    assert field.n_vars > 0
