"""Programs are made once per field, thread and kind of kernels."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from helpers import grid_edges
from proxfield.core.engines import registry
from proxfield.core.engines.registry import program_for
from proxfield.core.lowering import lowered


def field(rows: int = 5) -> pf.Field:
    rng = np.random.default_rng(rows)
    edges = grid_edges(rows, rows)
    made = pf.Field(rows * rows, 2).add(pf.Unary(rng.normal(size=(rows * rows, 2))))
    return made.add(pf.Ising(edges, rng.normal(size=len(edges))))


def test_one_inference_makes_one_program_per_type(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, ...]] = []
    plain = registry.compile_program

    def count(lowered: Any, *args: Any) -> Any:
        made.append(args)
        return plain(lowered, *args)

    monkeypatch.setattr(registry, "compile_program", count)
    given = field()
    result = pf.infer(given, "fixed", dtype="float32")
    assert np.isfinite(result.map_energy)
    assert sorted({args[1] for args in made}) == ["float32", "float64"] and len(made) == 2
    pf.infer(given, "momentum", dtype="float32")
    assert len(made) == 2


def test_each_thread_has_its_own() -> None:
    lowered = field().lower()
    mine = program_for(lowered)
    others: list[Any] = []
    worker = threading.Thread(target=lambda: others.append(program_for(lowered)))
    worker.start()
    worker.join()
    assert others[0] is not mine
    assert program_for(lowered) is mine


def test_concurrent_inference_gives_what_one_after_another_gives() -> None:
    given = field(12)
    rules = ["fixed", "momentum", "sweep", "adam", "anneal", "auto"] * 3
    alone = [pf.infer(given, rule, max_iters=60, threads=1).q for rule in rules]
    with ThreadPoolExecutor(6) as pool:
        together = pool.map(lambda rule: pf.infer(given, rule, max_iters=60, threads=1).q, rules)
        for one, other in zip(alone, together, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_new_term_makes_a_new_program() -> None:
    given = field()
    before = pf.infer(given, "fixed").free_energy
    given.add(pf.Unary([[5.0, 0.0]], [3]))
    assert pf.infer(given, "fixed").free_energy != before


def test_programs_are_not_pickled_with_the_field() -> None:
    given = field()
    lowered = given.lower()
    program_for(lowered)
    again = pickle.loads(pickle.dumps(lowered))
    assert not again.programs.used
    np.testing.assert_array_equal(again.unary, lowered.unary)


def test_large_programs_are_kept_only_while_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "KEPT_BYTES", 0)
    lowered = field().lower()
    program = program_for(lowered)
    assert program_for(lowered) is program
    gone = weakref.ref(program)
    del program
    gc.collect()
    assert gone() is None


def test_few_programs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowered, "MAX_KEPT", 2)
    low = field().lower()
    for threads in (1, 2, 3):
        program_for(low, threads=threads)
    assert len(low.programs.kept) == 2
