"""``proxfield solve --distributed``, on a single rank: torchrun starts more of the same."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

import proxfield as pf
from proxfield.cli.main import cli


def solve(*arguments: str):
    return CliRunner().invoke(cli, ["solve", *arguments, "--max-iters", "9", "--tol", "0"])


def test_an_array_is_a_grid(tmp_path):
    energies = np.random.default_rng(0).normal(size=(4, 5, 2))
    np.save(tmp_path / "energies.npy", energies)
    found = solve(
        str(tmp_path / "energies.npy"), "--distributed", "--coupling", "0.5", "--json",
        "--rule", "fixed", "--set", "step=0.5",
    )  # fmt: skip
    assert found.exit_code == 0, found.output
    figures = json.loads(found.stdout)
    number = np.arange(20).reshape(4, 5)
    edges = [np.stack([number[:-1].ravel(), number[1:].ravel()], 1)]
    edges.append(np.stack([number[:, :-1].ravel(), number[:, 1:].ravel()], 1))
    field = pf.Field(20, 2).add(pf.Unary(energies.reshape(20, 2)))
    field.add(pf.Potts(np.concatenate(edges), 0.5))
    one = pf.infer(field, "fixed", step=0.5, max_iters=9, tol=0.0)
    assert figures["free_energy"] == pytest.approx(one.free_energy, rel=1e-13)
    assert (figures["n_vars"], figures["ranks"]) == (20, 1)


def test_a_model_gives_the_same_file(tmp_path):
    path = tmp_path / "grid.uai"
    pf.write_uai(pf.generate.grid(3, 3, seed=2), path)
    arguments = (str(path), "--rule", "momentum", "--task", "MAR")
    alone, shared = solve(*arguments), solve(*arguments, "--distributed")
    assert shared.exit_code == alone.exit_code == 0, shared.output
    assert shared.stdout == alone.stdout


def test_options_that_need_it(tmp_path):
    path = tmp_path / "grid.uai"
    pf.write_uai(pf.generate.grid(2, 2), path)
    assert "--coupling needs --distributed" in solve(str(path), "--coupling", "1").output
    found = solve(str(path), "--distributed", "--coupling", "1")
    assert "needs an array" in found.output and found.exit_code == 2
    bad = tmp_path / "bad.npy"
    bad.write_bytes(b"no array")
    found = solve(str(bad), "--distributed")
    assert (
        "isn't a .npy file, expected one that numpy.save wrote" in found.output
        and found.exit_code != 0
    )
