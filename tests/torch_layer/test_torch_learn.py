"""Learning through marginals on devices of torch: the same as the compiled kernels."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from proxfield.learn import fit_marginals, marginal_loss, prepare
from proxfield.learn.adjoint import Unrolled
from proxfield.learn.device import TorchUnrolled

sys.path.append(str(Path(__file__).parents[1] / "learn"))
from learn_cases import CASES, make_case


@pytest.mark.parametrize("kind", CASES)
def test_same_marginals_and_gradients(kind: str, device: str) -> None:
    instances, parameters = make_case(kind)
    s = prepare(instances)
    w = s.tables(parameters)
    ours, theirs = Unrolled(s, w, 6, 0.5), TorchUnrolled(s, w, 6, 0.5, device)
    np.testing.assert_allclose(ours.q, theirs.q, rtol=1e-9, atol=1e-12)
    d = np.random.default_rng(0).normal(size=len(ours.q))
    np.testing.assert_allclose(ours.backward(d), theirs.backward(d), rtol=1e-7, atol=1e-10)


def test_fit(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    instances, parameters = make_case("mixed-factors")
    s = prepare(instances)
    ours = fit_marginals(s, parameters, max_iters=5)
    if device == "cpu":  # which means compiled kernels otherwise
        here = lambda s, w, n, step, _: TorchUnrolled(s, w, n, step, device)  # noqa: E731
        monkeypatch.setattr("proxfield.learn.marginals.unroll", here)
    theirs = fit_marginals(s, parameters, max_iters=5, device=device)
    for name, value in ours.items():
        np.testing.assert_allclose(value, theirs[name], rtol=1e-4, atol=1e-5)
    assert marginal_loss(s, theirs)[0] < marginal_loss(s, parameters)[0]
