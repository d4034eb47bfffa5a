"""Vector instructions and the plain loops that stand in for them: the same results."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import llvmlite.ir
import numba
import numba.core.cgutils
import numba.extending
import numpy as np
import pytest
from numba.core.registry import CPUDispatcher

from helpers import Array
from proxfield.core.compiled import jit, simd, simd_llvm, simd_loops
from proxfield.core.compiled.simd import LANES

FILTER = """
import sys
import numpy as np
from proxfield.core.compiled.simd import choose
from proxfield.core.filters.lattice import LatticeFilter

rng = np.random.default_rng(3)
points, values = rng.normal(size=(300, 3)), rng.normal(size=(300, 11)).astype(np.float32)
np.savez(sys.argv[1], seen=LatticeFilter(points).apply(values))
print(choose().name)
"""
INFER = """
import sys
import numpy as np
import proxfield as pf
from proxfield.core.compiled.simd import choose

rng = np.random.default_rng(3)
image = np.repeat(rng.integers(0, 256, (9, 13, 3)), 4, axis=1).astype(np.uint8)
p = rng.dirichlet(np.ones(11), size=image.shape[:2])
crf = pf.DenseCRF(image, p, filter="lattice")
result = crf.infer("full-parallel", max_iters=4, dtype="float32", threads=1)
assert "proxfield.core.engines.numba.dense_program" in sys.modules
np.savez(sys.argv[1], q=result.probabilities, f=result.free_energy)
print(choose().name)
"""


def driver(module: ModuleType) -> Callable[..., Any]:
    """A kernel that calls all functions of an implementation, one after another."""
    clear, put_scaled, add_scaled = module.clear, module.put_scaled, module.add_scaled
    blend, add_masked, scale = module.blend, module.add_masked, module.scale
    least, total, expected, weighted = module.least, module.total, module.expected, module.weighted
    store_row, load_row, replace_row = module.store_row, module.load_row, module.replace_row
    gather_row, scatter_row = module.gather_row, module.scatter_row
    sum_rows, integrate_rows = module.sum_rows, module.integrate_rows
    sum_listed = module.sum_listed

    @numba.njit(fastmath=jit.FASTMATH, error_model="numpy")
    def call_all(
        x: Any, row: Any, weight: Any, peak: Any, out: Any, planes: Any, turned: Any, above: Any
    ) -> Any:
        width, n = 5 * LANES, 5 * LANES - 3  # a block of four groups and one more, with padding
        clear(out, 0)
        put_scaled(out, 8, x, 3, 0.3)
        add_scaled(out, 16, x, 5, 0.7)
        blend(out, 24, x, 1, 9, 4, 0.4, 0.3)
        add_masked(out, 32, x, 2, 5, 1e30)
        scale(out, 40, 1.1, -0.7)
        store_row(out, 49, x, 0, n)
        load_row(out, 96, x, 7, n)
        replace_row(peak, x, 0, out, out, 49, n - 6)
        gather_row(out, 144, x, width, row, weight, 1, 3, 1, 0.9)
        scatter_row(out, x, 11, width, row, weight, 0, 4, 5, 0.9)
        for keep in (1.0, 0.0):
            sum_rows(turned, planes, 3, 16, above, keep)
            planes[3 : 3 + 8 * 16] = turned[8 * 16 :]
            integrate_rows(planes, 150, 16, turned, keep)
        sum_listed(out, 520, x, width, row.astype(np.uint32), 1, 3, 0.9)
        return (
            least(x, 0, width),
            total(x, 1, width),
            expected(x, 0, x, 20, out, n),
            weighted(x, x, 3, width),
        )

    return call_all


def call_all(module: ModuleType, dtype: str) -> tuple[Array | tuple[float, ...], ...]:
    rng = np.random.default_rng(0)
    x, out = rng.normal(size=400).astype(dtype), rng.normal(size=600).astype(dtype)
    row, weight = np.array([2, 0, 4, 1], np.int32), rng.random(4).astype(np.float32)
    peak = np.zeros(2 * LANES, dtype)
    planes, turned = (rng.normal(size=n).astype(dtype) for n in (320, 256))
    above = rng.normal(size=16).astype(dtype)
    numbers = driver(module)(x, row, weight, peak, out, planes, turned, above)
    return out, peak, planes, turned, above, numbers


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_loops_are_the_vector_instructions(dtype: str) -> None:
    rounding = {"rtol": 4 * np.finfo(dtype).eps, "atol": 4 * np.finfo(dtype).eps}
    for fast, plain in zip(call_all(simd_llvm, dtype), call_all(simd_loops, dtype), strict=True):
        np.testing.assert_allclose(plain, fast, **rounding)


@pytest.mark.parametrize("module", [simd_llvm, simd_loops])
def test_replaced_rows_keep_nan(module: ModuleType) -> None:
    """Once a change is NaN its lane stays NaN, whatever comes after; the others go on."""
    replace_row = module.replace_row

    @numba.njit(fastmath=jit.FASTMATH, error_model="numpy")
    def replace(peak: Any, new: Any, old: Any, before: Any) -> None:
        replace_row(peak, new, 0, old, before, 0, 8)

    peak, new = np.zeros(2 * LANES), np.linspace(-1.0, 1.0, LANES)
    for bad in (np.nan, 0.5):
        new[2] = bad
        replace(peak, new, np.zeros(LANES), np.full(LANES, 0.25))
    assert np.flatnonzero(np.isnan(peak)).tolist() == [2, LANES + 2]
    new[2] = np.nan
    np.testing.assert_array_equal(peak[:LANES], abs(new))
    np.testing.assert_array_equal(peak[LANES:], abs(new - 0.25))


@pytest.mark.parametrize("keep", [1.0, 0.0])
@pytest.mark.parametrize("module", [simd_llvm, simd_loops])
def test_sums_of_eight_rows(module: ModuleType, keep: float) -> None:
    """Running sums down (if kept) and along rows, turned; and the other way."""
    sum_rows, integrate_rows = module.sum_rows, module.integrate_rows

    @numba.njit(fastmath=jit.FASTMATH, error_model="numpy")
    def call(turned: Any, planes: Any, above: Any, total: Any, keep: float) -> None:
        sum_rows(turned, planes, 5, 24, above, keep)
        integrate_rows(total, 2, 24, turned, keep)

    rng = np.random.default_rng(1)
    planes, above, total = rng.normal(size=300), rng.normal(size=24), rng.normal(size=300)
    rows, first, before = planes[5 : 5 + 192].reshape(8, 24).copy(), above.copy(), total.copy()
    rest, turned = planes.copy(), np.zeros(192)
    call(turned, planes, above, total, keep)
    down = first + rows.cumsum(axis=0) if keep else rows
    along = down.cumsum(axis=1)
    np.testing.assert_allclose(turned.reshape(24, 8).T, along, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(above, down[-1], rtol=1e-12, atol=1e-12)
    rest[5 : 5 + 192] = 0.0
    np.testing.assert_array_equal(planes, rest)
    whole = along.cumsum(axis=1)
    whole = before[2:26] + whole.cumsum(axis=0) if keep else whole
    np.testing.assert_allclose(total[26 : 26 + 192].reshape(8, 24), whole, rtol=1e-12, atol=1e-11)
    np.testing.assert_array_equal(total[:26], before[:26])
    np.testing.assert_array_equal(total[218:], before[218:])


def test_both_offer_the_interface() -> None:
    named = [name for name, own in vars(simd_loops).items() if isinstance(own, CPUDispatcher)]
    helpers = {"plus", "smaller"}  # of the loops themselves
    named = [n for n in named if n not in helpers]
    assert len(named) == 18
    for name in named:
        assert getattr(simd, name) is getattr(import_module(simd.choose().module), name)
        assert hasattr(simd_llvm, name)
    with pytest.raises(AttributeError):
        _ = simd.no_such_function


@pytest.mark.slow
def test_the_lattice_filters_the_same(tmp_path: Path) -> None:
    compare(FILTER, tmp_path)


@pytest.mark.slow
def test_dense_fields_come_out_the_same(tmp_path: Path) -> None:
    compare(INFER, tmp_path)


def compare(code: str, tmp_path: Path) -> None:
    """Run code with vector instructions and with loops, in processes of their own."""
    found = {}
    for switch, name in (("1", "llvm"), ("0", "loops")):
        env = {**os.environ, simd.SWITCH: switch}
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / name)],
            env=env, capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        assert done.stdout.split() == [name], done.stderr
        found[name] = np.load(tmp_path / f"{name}.npz")
    assert found["llvm"].files
    for key in found["llvm"].files:
        np.testing.assert_allclose(found["loops"][key], found["llvm"][key], rtol=1e-5, atol=1e-6)


# ---- the choice ----


@pytest.fixture
def fresh_choice(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Choose anew, as a process does that hasn't imported anything yet."""
    monkeypatch.delenv(simd.SWITCH, raising=False)
    monkeypatch.delitem(sys.modules, simd_llvm.__name__)
    simd.choose.cache_clear()
    jit.kernel_cache.cache_clear()
    yield
    monkeypatch.undo()
    simd.choose.cache_clear()
    jit.kernel_cache.cache_clear()


@pytest.mark.usefixtures("fresh_choice")
def test_vector_instructions_are_chosen() -> None:
    assert str(simd.choose()) == "LLVM vector instructions"


@pytest.mark.usefixtures("fresh_choice")
def test_the_switch_chooses_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(simd.SWITCH, "0")
    assert str(simd.choose()) == "plain loops (PROXFIELD_SIMD=0)"
    assert simd_loops.__name__ == simd.choose().module


@pytest.mark.usefixtures("fresh_choice")
@pytest.mark.parametrize(
    "module, name",
    [
        (numba.core.cgutils, "for_range"),
        (llvmlite.ir, "VectorType"),
        (numba.extending, "intrinsic"),
    ],
)
def test_loops_are_chosen_where_private_parts_are_missing(
    module: ModuleType,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with monkeypatch.context() as without:  # numba itself needs them to compile
        without.delattr(module, name)
        choice = simd.choose()
    assert choice.name == "loops"
    assert choice.reason.startswith("numba has changed: ") and name in choice.reason
    assert str(choice) in caplog.text


@pytest.mark.usefixtures("fresh_choice")
def test_compiled_kernels_of_the_two_are_kept_apart(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PROXFIELD_CACHE_DIR", str(tmp_path))
    fast = jit.kernel_cache()
    simd.choose.cache_clear()
    jit.kernel_cache.cache_clear()
    monkeypatch.setenv(simd.SWITCH, "0")
    assert jit.kernel_cache() != fast
