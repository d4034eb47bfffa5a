"""Small fields are answered in numpy while nothing is compiled, and compiled where that pays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from proxfield.core.compiled import jit
from proxfield.core.compiled.graphs import induced_forest, label_components
from proxfield.core.engines import lazy
from proxfield.core.engines.base import Rows
from proxfield.core.engines.reference import ReferenceProgram
from proxfield.core.lowering.lowered import graph_of, make_forests
from proxfield.core.solve.search.parts import Parts
from proxfield.generate import grid

FIRST_CALLS = """
import json, sys
import proxfield as pf
from proxfield.generate import grid
from proxfield.core.compiled.notice import compiled_kernels
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
    assert mixed.kernels == "cpu" and 12 <= sum(done) < 30
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


def in_numpy(side: int = 6, **options: Any) -> bool:
    """Whether updates of a grid are made in numpy."""
    made = []
    with pytest.MonkeyPatch.context() as patch:
        plain = ReferenceProgram.advance
        patch.setattr(ReferenceProgram, "advance", lambda *a: made.append(1) or plain(*a))
        pf.infer(grid(side, side, seed=4), "fixed", max_iters=2, **options)
    return bool(made)


def test_what_is_compiled_at_once(cold: pytest.MonkeyPatch) -> None:
    assert in_numpy()
    assert not in_numpy(kernels="cpu")
    assert not in_numpy(budget=1.0)  # compiled kernels do more in a budget
    assert not in_numpy(70)
    cold.setattr(lazy.Spent, "seconds", 2 * lazy.PATIENCE)  # by other small fields
    assert not in_numpy()
    cold.setattr(lazy.Spent, "seconds", 0.0)
    cold.setenv(lazy.SWITCH, "0")
    assert not in_numpy()


def test_kernels_that_are_chosen_for_users_have_no_name() -> None:
    with pytest.raises(pf.InputError, match="unknown kernels 'lazy'"):
        pf.infer(grid(3, 3), "fixed", kernels="lazy")


def test_custom_functions_are_called_once_per_update(cold: pytest.MonkeyPatch) -> None:
    calls: list[int] = []  # each takes ten seconds, by a clock that only they move

    def function(theta: Any, q: Any, target: Any, memory: dict[str, Any]) -> Any:
        calls.append(1)
        return target

    cold.setattr(lazy, "time", SimpleNamespace(perf_counter=lambda: 10.0 * len(calls)))
    pf.infer(grid(4, 4), pf.CustomRule(function), max_iters=7, tol=None)
    assert len(calls) == 7
    assert lazy.Spent.seconds == 0.0  # compiling would not make the function faster


@pytest.mark.parametrize("rule", ["fixed", "sweep"])
def test_long_work_is_compiled(rule: str, cold: pytest.MonkeyPatch) -> None:
    """By what the first update takes, or a gradient for each variable of the usual sweeps."""

    def advance(self: Any, *_: Any) -> Rows:
        raise AssertionError("it would take long in numpy")

    cold.setattr(lazy, "least_seconds", lambda call: 1.01 * lazy.PATIENCE / 500)
    cold.setattr(ReferenceProgram, "advance", advance)
    assert pf.infer(grid(6, 6, seed=9), rule, max_iters=5).iterations == 5


def test_numpy_counts_what_it_spends(cold: pytest.MonkeyPatch) -> None:
    readings = count()
    cold.setattr(lazy, "time", SimpleNamespace(perf_counter=lambda: 1e-3 * next(readings)))
    pf.infer(grid(6, 6, seed=8), "fixed", max_iters=5)
    assert lazy.Spent.seconds >= 1e-3


def test_compiled_kernels_are_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(jit, "_ready", set())
    monkeypatch.setattr(jit, "kernel_cache", lambda: tmp_path)
    monkeypatch.setenv(lazy.SWITCH, "1")
    monkeypatch.setattr(lazy.Spent, "seconds", 0.0)
    lowered, other = grid(6, 6, seed=2).lower(), FIELDS["three labels"].lower()

    def compiled() -> list[str]:
        rules = ["fixed", "adam", "sweep", "auto"]
        return [rule for rule in rules if not lazy.suits(lowered, "float64", rule)]

    assert compiled() == []
    pf.infer(grid(5, 5), "sweep", kernels="cpu", max_iters=1)
    assert compiled() == ["sweep"]
    pf.infer(grid(5, 5), "fixed", kernels="cpu", max_iters=1)
    assert compiled() == ["fixed", "sweep"]
    assert lazy.suits(lowered, "float32", "fixed") and lazy.suits(other, "float64", "fixed")
    assert not in_numpy()
    monkeypatch.setattr(jit, "_ready", set())  # in another process
    assert compiled() == ["fixed", "sweep"]


def test_rules_that_share_kernels_use_compiled_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(jit, "_ready", set())
    monkeypatch.setattr(jit, "kernel_cache", lambda: tmp_path)
    monkeypatch.setenv(lazy.SWITCH, "1")
    monkeypatch.setattr(lazy.Spent, "seconds", 0.0)
    pf.infer(grid(5, 5), "fixed", kernels="cpu", max_iters=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReferenceProgram, "advance", None)
        pf.infer(grid(6, 6, seed=7), "momentum", max_iters=3)
    assert not lazy.suits(grid(6, 6).lower(), "float64", "momentum")


def test_integer_kernels_give_the_same_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = grid(9, 11, seed=1).lower()
    chosen = np.random.default_rng(0).random(99) < 0.6
    found = []
    for name in ("plain", "compiled"):
        monkeypatch.setattr(jit, "is_ready", lambda key, ready=name == "compiled": ready)
        for kernel in (label_components, induced_forest):
            monkeypatch.setattr(kernel, "patience", 1.0)
            monkeypatch.setattr(kernel, "compiled", kernel.compiled if name == "compiled" else None)
        component, count = Parts(lowered).of(chosen)
        graph = graph_of(lowered)
        made = make_forests(graph, np.ones(99, dtype=bool), count=3, seed=5)
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
