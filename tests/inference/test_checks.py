"""Arguments of the wrong type or size: one line, never another library's error."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from proxfield.core.common.checks import is_real, is_whole
from proxfield.core.solve.rules.registry import RULES


class NoRepr:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


ODD: list[Any] = [
    None, True, 2.5, -1, "x", "a" * 500, b"x", [], [1], {}, np.array([1.0, 2.0]), np.array(3),
    np.nan, np.inf, object(), NoRepr(), lambda: 0, 10**30, 10**400, 3.0, np.float32(0.5),
    np.int64(3), (1, 2), 1j, set(),
]  # fmt: skip
ARGUMENTS = (
    "init", "max_iters", "tol", "budget", "seed", "threads", "device", "kernels", "dtype", "trace",
)  # fmt: skip
PARAMETERS = [
    (name, f.name) for name, rule in RULES.items() if not rule.special for f in fields(rule)
]


def small() -> pf.Field:
    return pf.Field(3, 2).add(pf.Unary([[0, 1.0]] * 3)).add(pf.Ising([[0, 1], [1, 2]], -1.5))


def attempt(call: Any) -> None:
    """It works, or says in one short line what is wrong."""
    try:
        call()
    except pf.InputError as error:
        assert len(str(error)) < 200 and "\n" not in str(error)


@pytest.mark.parametrize("name", [*ARGUMENTS, "keep"])
def test_arguments_of_infer(name: str) -> None:
    field = small()
    for value in ODD:
        attempt(lambda v=value: pf.infer(field, "fixed", **{name: v}))


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_of_infer_many(name: str) -> None:
    field = small()
    for value in ODD:
        attempt(lambda v=value: pf.infer_many([field], "fixed", **{name: v}))


@pytest.mark.parametrize(("rule", "name"), PARAMETERS)
def test_parameters_of_rules(rule: str, name: str) -> None:
    field = small()
    for value in ODD:
        attempt(lambda v=value: pf.infer(field, rule, max_iters=4, **{name: v}))


def test_fields_and_rules() -> None:
    field = small()
    for value in ODD:
        attempt(lambda v=value: pf.infer(v))
        attempt(lambda v=value: pf.infer_many(v))
        attempt(lambda v=value: pf.infer_many([field, v]))
        attempt(lambda v=value: pf.infer(field, v, max_iters=4))


@pytest.mark.parametrize(
    ("rule", "params"),
    [
        ("anneal", {"levels": True}),
        ("anneal", {"hot": "x"}),
        ("restarts", {"count": 2.5}),
        ("restarts", {"noise": None}),
        ("adhoc", {"eta": "a"}),
        ("momentum", {"gamma": False}),
        ("portfolio", {"rules": ["sweep"]}),
    ],
)
def test_refused_parameters(rule: str, params: dict[str, Any]) -> None:
    with pytest.raises(pf.InputError, match=f"{rule}: {next(iter(params))}="):
        pf.infer(small(), rule, **params)


def test_refused_arguments() -> None:
    for name, value in [("trace", "no"), ("keep", ["best"]), ("kernels", 1), ("dtype", "float16")]:
        with pytest.raises(pf.InputError, match=name):
            pf.infer(small(), "fixed", **{name: value})


def test_numbers_of_numpy_and_whole_floats() -> None:
    result = pf.infer(small(), "restarts", count=np.int64(3), max_iters=20.0, threads=1.0)
    assert result.params["count"] == 3
    assert pf.infer(small(), "adhoc", eta=np.float32(0.5)).params["eta"] == 0.5
    assert is_whole(3.0) and not is_whole(np.nan) and not is_real(10**400)
