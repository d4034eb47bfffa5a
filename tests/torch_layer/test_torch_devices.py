"""Plain torch on other devices than the CPU: on one that is added, for which the CPU stands in."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import proxfield as pf
from proxfield import generate
from proxfield.core.devices.base import DEVICES

sys.path.append(str(Path(__file__).parents[1] / "devices"))
from devices_added import ADDED

torch = pytest.importorskip("torch", reason="runs in torch")


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DEVICES, "added", ADDED)


def fields() -> list[pf.Field]:
    points = np.random.default_rng(0).normal(size=(12, 2))
    dense = pf.Field(12, 3).add(pf.Gaussian(points, 0.5, filter="exact"))
    dense.add(pf.Unary(np.random.default_rng(1).normal(size=(12, 3))))
    return [generate.grid(4, 5, strength=1.5, seed=2), dense]


@pytest.mark.parametrize("rule", ["fixed", "adaptive", "momentum", "sweep"])
def test_an_added_device_runs_plain_torch(rule: str) -> None:
    for field in fields()[: 1 if rule == "sweep" else 2]:
        on_host = pf.infer(field, rule, kernels="torch", dtype="float32", max_iters=50)
        for options in ({"device": "added"}, {"device": "added:1", "kernels": "torch"}):
            there = pf.infer(field, rule, max_iters=50, **options)
            np.testing.assert_allclose(there.q, on_host.q, rtol=0, atol=1e-6)
            assert there.free_energy == pytest.approx(on_host.free_energy, rel=1e-6)
            assert there.free_energy == pytest.approx(field.free_energy(there.marginals), rel=1e-12)


def test_a_device_of_torch_by_name() -> None:
    """torch's own device objects, too; what torch can't compute on is refused."""
    field = fields()[0]
    on_host = pf.infer(field, "fixed", kernels="torch")
    there = pf.infer(field, "fixed", device=torch.device("cpu"), kernels="torch")
    np.testing.assert_array_equal(there.q, on_host.q)
    with pytest.raises(pf.InputError, match="device 'meta': torch can't use it"):
        pf.infer(field, "fixed", device="meta", kernels="torch")
    with pytest.raises(pf.InputError, match="device 'nonsense': torch can't use it"):
        pf.infer(field, "fixed", device="nonsense", kernels="torch")


def test_energies_are_summed_in_what_a_device_has(monkeypatch: pytest.MonkeyPatch) -> None:
    from proxfield.core.engines.torch import energy, program

    field = fields()[1]
    exact = field.free_energy(pf.infer(field, "fixed", kernels="torch").marginals)
    monkeypatch.setattr(energy, "sum_type", lambda device: torch.float32)
    made = program.TorchProgram(field.lower(), "float32")
    q = pf.infer(field, "fixed", kernels="torch").q
    state = made.start(q)
    assert made._free_energy(state.arrays.q).dtype == torch.float32
    assert made.free_energy(state) == pytest.approx(exact, rel=1e-5)
