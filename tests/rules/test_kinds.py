"""Kinds of updates: every backend has the formula of each, and only one function knows them."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import proxfield as pf
from helpers import random_marginals
from proxfield.core.engines import compile_program
from proxfield.core.engines.plan import Kind, Space, Update
from proxfield.core.engines.reference import moved

PACKAGE = Path(pf.__file__).parent
FORMULAS = {
    "core/engines/plan.py",
    "core/engines/reference.py",
    "core/engines/numba/kinds.py",
    "core/engines/triton/update/kinds.py",
}
"""The enum and the files of the arithmetic functions."""


def fields() -> dict[str, pf.Field]:
    rng = np.random.default_rng(3)
    edges = [[0, 1], [1, 2], [2, 3], [3, 0], [0, 2]]
    unary = rng.normal(size=(4, 3))
    unary[1, 2] = np.inf
    ising = pf.Ising(edges, rng.normal(size=5))
    return {
        "binary": pf.Field(4, 2).add(pf.Unary(rng.normal(size=(4, 2)))).add(ising),
        "any": pf.Field(4, 3).add(pf.Unary(unary)).add(pf.Potts(edges, rng.normal(size=5))),
    }


def test_what_kinds_say() -> None:
    assert [int(kind) for kind in Kind] == list(range(len(Kind)))
    assert {kind.moments for kind in Kind} == {0, 1, 2}
    assert Kind.MEAN.averages_marginals
    assert not Kind.ADAM.averages_marginals
    assert Kind.MEAN.space is Space.MEAN
    assert Kind.ADAM.moment_names == ("u", "v")
    assert Kind.MOMENTUM.moment_names == ("u",)
    assert not Kind.PROXIMAL.moment_names


def test_full_steps() -> None:
    assert Update(Kind.PROXIMAL, np.ones(2)).full
    assert not Update(Kind.PROXIMAL, np.array([1.0, 0.5])).full
    assert not Update(Kind.MEAN, np.ones(2)).full


BY_HAND = {
    Kind.PROXIMAL: [1.5, 1.5],
    Kind.MEAN: [2.0, 0.0],
    Kind.MOMENTUM: [0.9, 2.5],  # u = (0.2, 1)
    Kind.MOMENTUM_PRINTED: [0.9, 1.7],  # u = (0.8, 0.4)
    Kind.ADAM: [1.0, 3.0 - 0.4 / 8.5**0.5],  # u = (0, 0.8), v = (4, 8.5)
    # u = (0.6, 0.2), v = (1.3, 1.8)
    Kind.ADAM_PRINTED: [1.0 + 0.8 / 1.3**0.5, 3.0 - 0.4 / 1.8**0.5],
}


@pytest.mark.parametrize("kind", Kind)
def test_formulas_by_hand(kind: Kind) -> None:
    state = SimpleNamespace(u=np.array([0.5, 0.5]), v=np.array([4.0, 9.0]))
    theta, target, plan = np.array([1.0, 3.0]), np.array([2.0, 0.0]), Update(kind, np.ones(1), 0.8)
    plan = replace(plan, gamma2=0.9)
    found = moved(state, plan, theta, target, 0.5, lambda x: x - x.mean())
    np.testing.assert_allclose(found, BY_HAND[kind])


@pytest.mark.parametrize("kernels", ["cpu", "torch"])
@pytest.mark.parametrize("name", fields())
@pytest.mark.parametrize("kind", Kind)
def test_every_backend_has_every_kind(kind: Kind, name: str, kernels: str) -> None:
    """Kernels in Triton: tests/gpu/test_gpu_program.py, likewise for every kind."""
    if kernels == "torch":
        pytest.importorskip("torch")
    lowered = fields()[name].lower()
    n = lowered.layout.n_vars
    steps = np.linspace(0.3, 0.9, n)
    plan = Update(kind, steps, 0.8, 0.9, 1e-3, inverse_temperature=0.7)
    q = random_marginals(lowered.layout, np.random.default_rng(1))
    ours, theirs = compile_program(lowered, kernels), compile_program(lowered, "reference")
    a, b = ours.start(q), theirs.start(q)
    for _ in range(2):
        found = ours.advance(a, plan, 2, 0.0, True)
        expected = theirs.advance(b, plan, 2, 0.0, True)
        np.testing.assert_allclose(found.change, expected.change, rtol=1e-9)
        np.testing.assert_allclose(ours.marginals(a), theirs.marginals(b), rtol=0, atol=1e-10)


def test_no_other_file_knows_kinds() -> None:
    """Else a new kind would need changes there too."""
    number = re.compile(r"\b(kind|KIND)\b\s*(==|!=|<=|>=|<|>|in\b)\s*[-(\[{]?\s*\d")
    named = re.compile(r"\bKind\.[A-Z_]+")
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        text = path.read_text(encoding="utf-8")
        assert not number.search(text), f"{name} compares a kind with a number"
        if name not in FORMULAS and not name.startswith("core/solve/rules/"):  # rules name theirs
            assert not named.search(text), f"{name} asks for a kind by name"


# ---- a new kind, as CONTRIBUTING says ----

EXAMPLES = ("EXAMPLE_AHEAD", "EXAMPLE_MEAN", "EXAMPLE_BOUNDED")
ADDITIONS = {
    "core/engines/plan.py": [
        (
            "\n    def __new__(",
            f"""\
    EXAMPLE_AHEAD = {len(Kind)}, 1
    EXAMPLE_MEAN = {len(Kind) + 1}, 1, Space.MEAN
    EXAMPLE_BOUNDED = {len(Kind) + 2}, 1, Space.NATURAL, True
""",
        )
    ],
    "core/engines/reference.py": [
        (
            "    raise NotImplementedError(kind)\n",
            """\
    if kind == plans.Kind.EXAMPLE_AHEAD:
        s.u = g1 * s.u + (1 - g1) * residual
        return theta - step * (g1 * s.u + (1 - g1) * residual)
    if kind == plans.Kind.EXAMPLE_MEAN:
        s.u = g1 * s.u + (1 - g1) * target
        return s.u
    if kind == plans.Kind.EXAMPLE_BOUNDED:
        residual = center(residual)
        s.u = g1 * s.u + (1 - g1) * residual
        return theta - step * s.u / (1 + s.u**2)
""",
        )
    ],
    "core/engines/numba/kinds.py": [
        (
            "\n\nclass Motion(",
            "".join(f"{name} = int(Kind.{name})\n" for name in EXAMPLES),
        ),
        (
            "    return np.nan\n",
            """\
    elif kind == EXAMPLE_AHEAD:
        u[at] = g1 * u[at] + (1.0 - g1) * (t - target)
        return t - step * (g1 * u[at] + (1.0 - g1) * (t - target))
    elif kind == EXAMPLE_MEAN:
        u[at] = g1 * u[at] + (1.0 - g1) * target
        return u[at]
    elif kind == EXAMPLE_BOUNDED:
        u[at] = g1 * u[at] + (1.0 - g1) * (t - target - mean.residual)
        return t - step * u[at] / (1.0 + u[at] * u[at])
""",
        ),
    ],
    "core/engines/triton/update/kinds.py": [
        (
            "# sets of kinds\n",
            "".join(f"_{k}: constexpr = constant(int(Kind.{k}))\n" for k in EXAMPLES),
        ),
        (
            "    else:\n        tl.static_assert(False",
            """\
    elif KIND == _EXAMPLE_AHEAD:
        u = g1 * u + (1.0 - g1) * (theta - target)
        new = theta - step * (g1 * u + (1.0 - g1) * (theta - target))
    elif KIND == _EXAMPLE_MEAN:
        u = g1 * u + (1.0 - g1) * target
        new = u
    elif KIND == _EXAMPLE_BOUNDED:
        u = g1 * u + (1.0 - g1) * (theta - target - mean.residual)
        new = theta - step * u / (1.0 + u * u)
""",
        ),
    ],
}
"""What is put before which line, in which file: one kind of each sort that needs a formula."""
RUN = """
import sys
from dataclasses import dataclass

import numpy as np
if sys.argv[1] == "cuda":
    sys.path.append(sys.argv[2])
    from gpu_cases import mend_interpreter
    mend_interpreter()
import proxfield as pf
from proxfield import Kind, Rule, Update

@dataclass(frozen=True)
class Newest(Rule):
    name = "newest"
    summary = "a rule of a new kind"
    kind: str = ""

    def plan(self, problem):
        return Update(Kind[self.kind], np.linspace(0.3, 0.8, problem.n_vars), gamma1=0.5)

rng = np.random.default_rng(3)
edges = [[0, 1], [1, 2], [2, 3], [3, 0], [0, 2]]
for labels, pairs in ((2, pf.Ising), (3, pf.Potts)):
    unary = rng.normal(size=(4, labels))
    if labels == 3:
        unary[1, 2] = np.inf
    field = pf.Field(4, labels).add(pf.Unary(unary)).add(pairs(edges, rng.normal(size=5)))
    start = field.layout.normalize(rng.random(field.layout.size) + 0.05)
    found = {}
    for kind in ("EXAMPLE_AHEAD", "EXAMPLE_MEAN", "EXAMPLE_BOUNDED", "PROXIMAL"):
        slow, fast = (
            pf.infer(field, Newest(kind=kind), init=start, max_iters=4, kernels=kernels,
                     dtype="float64")
            for kernels in ("reference", sys.argv[1])
        )
        np.testing.assert_allclose(fast.marginals, slow.marginals, rtol=0, atol=1e-8)
        np.testing.assert_allclose(fast.trace.free_energy, slow.trace.free_energy, rtol=1e-8)
        found[kind] = np.asarray(slow.marginals)
    for kind in list(found)[:3]:
        assert np.abs(found[kind] - found["PROXIMAL"]).max() > 1e-3, kind
"""


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with three kinds more."""
    root = tmp_path_factory.mktemp("extended")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, root / "proxfield", ignore=ignored)
    for name, additions in ADDITIONS.items():
        path = root / "proxfield" / name
        text = path.read_text(encoding="utf-8")
        for before, lines in additions:
            assert text.count(before) == 1, f"{name}: {before!r}"
            text = text.replace(before, lines + before)
        path.write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize("kernels", ["cpu", "torch", "cuda"])
def test_a_new_kind(extended: Path, kernels: str) -> None:
    needed = {"cpu": "numba", "torch": "torch", "cuda": "triton"}[kernels]
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"needs {needed}")
    script = extended / "run.py"
    script.write_text(RUN, encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": str(extended), "TRITON_INTERPRET": "1"}
    if kernels == "cpu":
        env["NUMBA_DISABLE_JIT"] = "1"
    tests = Path(__file__).parents[1] / "gpu"
    done = subprocess.run(
        [sys.executable, str(script), kernels, str(tests)],
        env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
