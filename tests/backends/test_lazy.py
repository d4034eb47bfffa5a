"""Small fields are answered in numpy while nothing is compiled, and compiled where that pays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from proxfield.backends import lazy
from proxfield.backends.base import Rows
from proxfield.backends.reference import ReferenceProgram
from proxfield.compiled import jit
from proxfield.compiled.components import label_components
from proxfield.compiled.forests import induced_forest
from proxfield.generate import grid
from proxfield.lowering import forests
from proxfield.lowering.components import Components

FIRST_CALLS = """
import json, sys
import proxfield as pf
from proxfield.generate import grid
from proxfield.compiled.notice import compiled_kernels
field, out = grid(10, 10, seed=3), {}
with compiled_kernels() as names:
    for rule in sys.argv[1:]:
        result = pf.infer(field, rule)
        labels = result.map_labels.tolist()
        out[rule] = [result.q.tolist(), result.free_energy, result.iterations, labels]
print(json.dumps([names, out]))
"""


def first_calls(cache: Path, *rules: str, **env: str) -> tuple[list[str], dict[str, Any]]:
    """The kernels that a fresh process compiles, and its results."""
    about = {"PROXFIELD_CACHE_DIR": str(cache), "PROXFIELD_LAZY": "1", **env}
    done = subprocess.run(
        [sys.executable, "-c", FIRST_CALLS, *rules], env={**os.environ, **about},
        capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip
    names, out = json.loads(done.stdout)
    return names, out


def test_small_fields_answer_in_numpy_while_nothing_is_compiled(tmp_path: Path) -> None:
    names, found = first_calls(tmp_path, "fixed", "momentum", "adam", "sweep")
    assert names == []
    for rule, (q, f, iterations, labels) in found.items():
        compiled = pf.infer(grid(10, 10, seed=3), rule, kernels="cpu")
        assert iterations == compiled.iterations
        np.testing.assert_allclose(q, compiled.q, atol=1e-9)
        assert f == pytest.approx(compiled.free_energy, abs=1e-9)
        assert labels == compiled.map_labels.tolist()


def test_a_first_search_compiles_its_chains_alone(tmp_path: Path) -> None:
    names, found = first_calls(tmp_path, "auto")
    compiled = pf.infer(grid(10, 10, seed=3), kernels="cpu")
    assert {name.rpartition(".")[2] for name in names} == {"draw_binary", "binary_chains"}
    assert found["auto"][1] == pytest.approx(compiled.free_energy, abs=1e-9)
    assert found["auto"][3] == compiled.map_labels.tolist()


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As if nothing were compiled and no time spent, and no machine too slow."""
    monkeypatch.setenv(lazy.SWITCH, "1")
    monkeypatch.setattr(lazy, "is_ready", lambda name: False)
    monkeypatch.setattr(lazy.Spent, "seconds", 0.0)
    monkeypatch.setattr(lazy, "least_seconds", lambda call: 0.0)
    return monkeypatch


FIELDS = {
    "binary": grid(6, 6, seed=2),
    "three labels": grid(5, 5, n_labels=3, seed=2),
    "evidence": grid(6, 6, strength=3.0, seed=2).condition({0: 1, 7: 0}),
    "forbidden labels": grid(5, 5, n_labels=3, seed=1).add(
        pf.Unary(np.where(np.arange(75).reshape(25, 3) % 7 == 0, np.inf, 0.0))
    ),
}
RULES: list[tuple[str, dict[str, Any]]] = [
    ("fixed", {}),
    ("momentum", {}),
    ("momentum", {"variant": "printed"}),
    ("adam", {}),
    ("adam", {"variant": "printed"}),
    ("adhoc", {}),
    ("adaptive", {}),
    ("backtracking", {}),
    ("full-parallel", {}),
    ("sweep", {}),
    ("colored", {}),
    ("anneal", {}),
]


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize(("rule", "params"), RULES)
def test_a_run_goes_on_in_compiled_kernels_where_it_left_numpy(
    rule: str, params: dict[str, Any], name: str, cold: pytest.MonkeyPatch
) -> None:
    field, plain, done = FIELDS[name], ReferenceProgram.advance, []

    def advance(self: Any, state: Any, plan: Any, n: int, tol: float, trace: bool) -> Rows:
        rows = plain(self, state, plan, min(n, 7), tol, trace)
        done.append(len(rows))
        if sum(done) >= 12:
            lazy.Spent.seconds = 2 * lazy.PATIENCE
        return rows

    cold.setattr(ReferenceProgram, "advance", advance)
    limits: dict[str, Any] = {"max_iters": 40, "tol": None, **params}
    mixed = pf.infer(field, rule, **limits)
    assert mixed.kernels == "lazy" and 12 <= sum(done) < 30
    lazy.Spent.seconds = 0.0
    cold.setattr(ReferenceProgram, "advance", plain)
    alone, compiled = (
        pf.infer(field, rule, **limits),
        pf.infer(field, rule, kernels="cpu", **limits),
    )
    for result in (mixed, alone):
        assert (result.status, result.iterations) == (compiled.status, compiled.iterations)
        np.testing.assert_allclose(result.q, compiled.q, atol=1e-9)
        assert result.free_energy == pytest.approx(compiled.free_energy, abs=1e-9)
        f, expected = result.trace.free_energy, compiled.trace.free_energy
        np.testing.assert_allclose(f, expected, atol=1e-9)


def used(field: pf.Field, rule: str = "fixed", **options: Any) -> str:
    """Which kernels iterate a field."""
    return pf.infer(field, rule, max_iters=2, **options).kernels


def test_what_is_compiled_at_once(cold: pytest.MonkeyPatch) -> None:
    field = FIELDS["binary"]
    assert used(field) == "lazy"
    assert used(field, kernels="cpu") == "cpu"
    assert used(field, budget=1.0) == "cpu"  # compiled kernels do more in a budget
    assert used(grid(70, 70)) == "cpu"
    cold.setattr(lazy.Spent, "seconds", 2 * lazy.PATIENCE)  # by other small fields
    assert used(field) == "cpu"
    cold.setattr(lazy.Spent, "seconds", 0.0)
    cold.setenv(lazy.SWITCH, "0")
    assert used(field) == "cpu"


@pytest.mark.parametrize("rule", ["fixed", "sweep"])
def test_long_work_is_compiled(rule: str, cold: pytest.MonkeyPatch) -> None:
    """By what the first update takes, or a gradient for each variable of the usual sweeps."""

    def advance(self: Any, *_: Any) -> Rows:
        raise AssertionError("it would take long in numpy")

    cold.setattr(lazy, "least_seconds", lambda call: 1.01 * lazy.PATIENCE / 500)
    cold.setattr(ReferenceProgram, "advance", advance)
    assert pf.infer(grid(6, 6, seed=9), rule, max_iters=5).iterations == 5


def test_numpy_counts_what_it_spends(cold: pytest.MonkeyPatch) -> None:
    pf.infer(grid(6, 6, seed=8), "fixed")
    assert lazy.Spent.seconds > 0.0


def test_compiled_kernels_are_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(jit, "_ready", set())
    monkeypatch.setattr(jit, "kernel_cache", lambda: tmp_path)
    monkeypatch.setenv(lazy.SWITCH, "1")
    monkeypatch.setattr(lazy.Spent, "seconds", 0.0)
    lowered = FIELDS["binary"].lower()
    assert lazy.suits(lowered, "float64")
    pf.infer(FIELDS["binary"], "sweep", kernels="cpu", max_iters=1)  # another kernel
    assert lazy.suits(lowered, "float64")
    pf.infer(FIELDS["binary"], "fixed", kernels="cpu", max_iters=1)
    assert not lazy.suits(lowered, "float64")
    assert lazy.suits(lowered, "float32") and lazy.suits(FIELDS["three labels"].lower(), "float64")
    monkeypatch.setattr(jit, "_ready", set())  # in another process
    assert not lazy.suits(lowered, "float64")


def test_integer_kernels_give_the_same_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = grid(9, 11, seed=1).lower()
    chosen = np.random.default_rng(0).random(99) < 0.6
    found = []
    for name in ("plain", "compiled"):
        monkeypatch.setattr(jit, "is_ready", lambda key, ready=name == "compiled": ready)
        for kernel in (label_components, induced_forest):
            monkeypatch.setattr(kernel, "patience", 1.0)
            monkeypatch.setattr(kernel, "compiled", kernel.compiled if name == "compiled" else None)
        component, count = Components(lowered).of(chosen)
        graph = forests.graph_of(lowered)
        made = forests.make_forests(graph, np.ones(99, dtype=bool), count=3, seed=5)
        found.append([component, np.array(count), *made])
        monkeypatch.undo()
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_integer_kernels_are_compiled_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    kernel = jit.IntegerKernel(lambda values: calls.append("plain"))
    kernel.compiled = lambda values: calls.append("compiled")
    monkeypatch.setattr(jit, "is_ready", lambda name: False)
    monkeypatch.setattr(jit, "note_ready", lambda name: None)
    kernel(np.zeros(jit.MAX_PLAIN_ENTRIES))
    assert calls == ["plain"] and kernel.patience < jit.MAX_PLAIN_SECONDS
    kernel(np.zeros(jit.MAX_PLAIN_ENTRIES + 1))
    assert calls == ["plain", "compiled"]
    kernel.warm_up()
    kernel(np.zeros(3))
    assert calls == ["plain", "compiled", "compiled"]
