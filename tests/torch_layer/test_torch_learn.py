"""Learning through marginals on devices of torch: the same as the compiled kernels."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from proxfield.core.common.arrays import Doubles
from proxfield.core.engines.torch.program import TiedEnergy, TorchUpdates
from proxfield.learn import fit_marginals, marginal_loss, prepare
from proxfield.learn.methods import Unrolled
from proxfield.learn.structure import Structure

sys.path.append(str(Path(__file__).parents[1] / "learn"))
from learn_cases import CASES, make_case


def on_torch(s: Structure, w: Doubles, device: str = "cpu") -> TorchUpdates:
    """The updates in torch, on the CPU too."""
    factors = [s.factors[k] for k in sorted(s.factors)]
    return TorchUpdates(TiedEnergy(factors, s.offsets, device), w)


@pytest.mark.parametrize("kind", CASES)
def test_same_marginals_and_gradients(kind: str, device: str) -> None:
    instances, parameters = make_case(kind)
    s = prepare(instances)
    w = s.tables(parameters)
    ours, theirs = (Unrolled(u, 6, 0.5) for u in (s.updates(w), on_torch(s, w, device)))
    np.testing.assert_allclose(ours.q, theirs.q, rtol=1e-9, atol=1e-12)
    d = np.random.default_rng(0).normal(size=len(ours.q))
    np.testing.assert_allclose(ours.backward(d), theirs.backward(d), rtol=1e-7, atol=1e-10)


def test_fit(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    instances, parameters = make_case("mixed-factors")
    s = prepare(instances)
    ours = fit_marginals(s, parameters, max_iters=5)
    if device == "cpu":  # which means compiled kernels otherwise
        monkeypatch.setattr(Structure, "updates", on_torch)
    theirs = fit_marginals(s, parameters, max_iters=5, device=device)
    for name, value in ours.items():
        np.testing.assert_allclose(value, theirs[name], rtol=1e-4, atol=1e-5)
    assert marginal_loss(s, theirs)[0] < marginal_loss(s, parameters)[0]
