"""Saved fields and results: exact round trips, terms of one's own, damaged and hostile files."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from helpers import Chain, repulsive_grid
from proxfield.core.common.registry import Registry
from proxfield.core.terms import registry
from random_fields import random_field


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "saved.npz"


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> Registry[type[pf.Term]]:
    """The registry of kinds, put back afterwards."""
    monkeypatch.setattr(registry.KINDS, "data", dict(registry.KINDS.data))
    return registry.KINDS


def counts() -> pf.CooccurrenceStatistics:
    return pf.CooccurrenceStatistics(9, [9, 5, 4], [[9, 5, 4], [5, 5, 0], [4, 0, 4]])


def picture() -> pf.DenseCRF:
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, size=(5, 6, 3), dtype=np.uint8)
    p = rng.dirichlet(np.ones(3), size=(5, 6))
    return pf.DenseCRF(image, np.moveaxis(p, -1, 0), compatibility=[1.0, 2.0, 0.5])


def scene(**options: Any) -> pf.Field:
    """Two cameras, and one without a mask."""
    boxes = pf.Boxes(3, 4, [[0, 0, 2, 3], [1, 1, 4, 3], [0, 0, 0, 0]])
    runs = pf.Runs(2, 3, [[0, 1, 2], [1, 0, 3], [0, 0, 3]], [0, 2, 2, 3])
    masks = [np.linspace(0, 1, 12).reshape(3, 4), np.uint8([[255, 0, 7], [8, 9, 10]]), None]
    return pf.Field(4, 2, [pf.Occupancy([boxes, runs, boxes], masks, first=1, **options)])


FIELDS: dict[str, Callable[[], pf.Field]] = {
    "empty": lambda: pf.Field([]),
    "constant": lambda: pf.Field([2], terms=[pf.Constant(np.inf), pf.Constant(-0.0)]),
    "unary": lambda: pf.Field(2, 3, [pf.Unary(np.array([[0.1, np.inf, 1e300]] * 2))]),
    "unary-float32": lambda: pf.Field(2, 2, [pf.Unary(np.float32([[0.1, 2], [0.3, 4]]))]),
    "unary-some": lambda: pf.Field([2, 3], terms=[pf.Unary([[1.0, 2, 3]], [1])]),
    "pairwise": lambda: pf.Field([2, 3], terms=[pf.Pairwise([[0, 1]], np.ones((2, 3)) / 3)]),
    "potts": lambda: pf.Field(3, 4, [pf.Potts([[0, 1], [1, 2]], [0.1, -0.2])]),
    "ising": lambda: pf.Field(2, 2, [pf.Ising([[1, 0]], -1 / 3)]),
    "factor": lambda: pf.Field(
        4, 2, [pf.Factor([[0, 1, 2], [1, 2, 3]], np.arange(8.0).reshape(2, 2, 2))]
    ),
    "gaussian": lambda: pf.Field(4, 2, [pf.Gaussian(np.eye(4), 0.1, normalization="after")]),
    "gaussian-matrix": lambda: pf.Field(
        4,
        2,
        [pf.Gaussian(np.float32(np.eye(3)), 0.3, [[0, 0.1], [0.7, 0]], first=1, self_message=True)],
    ),
    "consistency": lambda: pf.Field(5, 2, [pf.Consistency([[3, 0], [1, 3, 4]], [0.1, 3.0])]),
    "consistency-none": lambda: pf.Field(2, 2, [pf.Consistency([-1, -1], 1.0)]),
    "consistency-tables": lambda: pf.Field(
        3, 2, [pf.Consistency([0, 0, 1], [[0.1, 0.2], [3, 4]], tables=True)]
    ),
    "cooccurrence": lambda: pf.Field(3, 3, [pf.Cooccurrence(counts(), pixels=2, first=1)]),
    "cooccurrence-variables": lambda: pf.Field(
        [3, 3, 2, 2], terms=[pf.Cooccurrence(counts(), pixels=2, latent="variables", beta=0.1)]
    ),
    "cooccurrence-tables": lambda: pf.Field(
        [2, 2, 3, 3],
        terms=[
            pf.Cooccurrence(
                counts(), pixels=2, first=2, presence=0, latent="variables", tables=True, kappa=3
            )
        ],
    ),
    "occupancy": lambda: scene(miss=0.1, false_alarm=1 / 3, strength=7.0),
    "occupancy-ratio": lambda: scene(model="ratio", variance=0.3, floor=0.2),
    "occupancy-no-masks": lambda: pf.Field(
        2, 2, [pf.Occupancy([pf.Boxes(3, 4, [[0, 0, 1, 1]] * 2)], [None])]
    ),
    "grid-pairwise": lambda: pf.Field(
        7, 3, [pf.GridPairwise((2, 3), (1, -1), np.arange(18.0).reshape(2, 3, 3), [1, 0], first=1)]
    ),
    "grid-pairwise-one-table": lambda: pf.Field(
        4, 2, [pf.GridPairwise([2, 2], [0, 1], [[0.0, 1 / 3], [0.1, 0.2]])]
    ),
    "names": lambda: pf.Field([2, 3], names=["rain", "é\n\ud800"]),
    "label-names": lambda: pf.Field(2, 2, label_names=["off", "on"]),
    "names-of-each": lambda: pf.Field([1, 2], names=["a", "b"], label_names=[["x"], ["y", "z"]]),
    "evidence": lambda: pf.Field([2, 3, 2]).condition({2: 0, 1: 2}),
    "dense": picture,
    "dense-observed": lambda: picture().condition({7: 2}).named(label_names=["a", "b", "c"]),
}


def assert_same_bits(one: pf.Field, other: pf.Field) -> None:
    """Equal, and equal in the type and the bits of all arrays."""
    assert type(one) is type(other)
    assert one == other
    for a, b in zip(one.terms, other.terms, strict=True):
        (kind, left), (same, right) = registry.term_arrays(a), registry.term_arrays(b)
        assert kind == same
        for name in left:
            assert left[name].dtype == right[name].dtype
            assert left[name].shape == right[name].shape
            assert left[name].tobytes() == right[name].tobytes()


@pytest.mark.parametrize("name", FIELDS)
def test_fields_come_back_in_every_bit(name: str, path: Path) -> None:
    field = FIELDS[name]()
    field.save(path)
    again = pf.Field.load(path)
    assert_same_bits(field, again)
    first = path.read_bytes()
    again.save(path)
    assert path.read_bytes() == first


def test_every_kind_of_term_has_an_example() -> None:
    ours = {k for k, cls in registry.KINDS.items() if cls.__module__.startswith("proxfield.")}
    used = {registry.term_arrays(t)[0] for make in FIELDS.values() for t in make().terms}
    assert used == ours
    assert set(pf.TERMS) <= ours


@pytest.mark.parametrize("seed", range(120))
def test_random_fields_come_back(seed: int) -> None:
    field = random_field(seed).field
    buffer = saved(field)
    again = pf.Field.load(buffer)
    assert_same_bits(field, again)
    if field.n_vars:
        labels = np.zeros(field.n_vars, dtype=np.int64)
        assert again.energy(labels) == field.energy(labels) or np.isnan(field.energy(labels))


def saved(thing: pf.Field | pf.Result) -> io.BytesIO:
    """A file in memory."""
    with tempfile.TemporaryDirectory() as folder:
        thing.save(Path(folder, "saved.npz"))
        return io.BytesIO(Path(folder, "saved.npz").read_bytes())


def test_compressed_names_are_compressed(tmp_path: Path) -> None:
    field = repulsive_grid(20)
    field.save(tmp_path / "plain.npz")
    field.save(tmp_path / "small.npz.gz")
    assert (tmp_path / "small.npz.gz").stat().st_size < (tmp_path / "plain.npz").stat().st_size
    assert pf.Field.load(tmp_path / "small.npz.gz") == field


# ---- results ----


def assert_same_result(one: pf.Result, other: pf.Result) -> None:
    assert type(one) is type(other)
    assert one.field == other.field
    assert one.q.dtype == other.q.dtype
    assert one.q.tobytes() == other.q.tobytes()
    for key in ("free_energy", "seconds", "setup_seconds"):
        assert np.float64(getattr(one, key)).tobytes() == np.float64(getattr(other, key)).tobytes()
    for key in ("status", "iterations", "rule"):
        assert getattr(one, key) == getattr(other, key)
    assert {k: v for k, v in one.params.items() if not callable(v)} == other.params
    for key in ("iteration", "seconds", "free_energy", "change"):
        a, b = getattr(one.trace, key), getattr(other.trace, key)
        assert a.dtype == b.dtype
        assert a.tobytes() == b.tobytes()
    assert one.trace.member == other.trace.member
    if one.feasible is None:
        assert other.feasible is None
    else:
        np.testing.assert_array_equal(one.feasible, other.feasible)


def forbidden() -> pf.Field:
    """A field with a forbidden configuration, so that the search knows a feasible labelling."""
    table = [[np.inf, 0.0], [1.0, np.inf]]
    return pf.Field(4, 2, [pf.Pairwise([[0, 1], [1, 2], [2, 3]], table)])


RESULTS: dict[str, Callable[[], pf.Result]] = {
    "fixed": lambda: pf.infer(repulsive_grid(), "fixed", max_iters=7),
    "float32": lambda: pf.infer(
        repulsive_grid(), "momentum", gamma=0.9, max_iters=9, dtype="float32"
    ),
    "auto": lambda: pf.infer(repulsive_grid(), max_iters=200),
    "modes": lambda: pf.infer(repulsive_grid(), max_iters=400, modes=4),
    "no-trace": lambda: pf.infer(repulsive_grid(), "fixed", max_iters=3, trace=False),
    "infeasible": lambda: pf.infer(pf.Field([2], terms=[pf.Constant(np.inf)])),
    "forbidden": lambda: pf.infer(forbidden(), "fixed"),
    "empty": lambda: pf.infer(pf.Field([])),
    "custom": lambda: pf.infer(repulsive_grid(), pf.CustomRule(lambda t, q, g, m: g), max_iters=2),
    "dense": lambda: picture().infer(),
    "named": lambda: pf.infer(pf.Field([2, 2], names=["a", "b"]).condition({"a": 1}), "sweep"),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_come_back_in_every_bit(name: str, path: Path) -> None:
    result = RESULTS[name]()
    result.save(path)
    again = pf.Result.load(path)
    assert_same_result(result, again)
    np.testing.assert_array_equal(result.map_labels, again.map_labels)
    assert result.log_z_bound == again.log_z_bound


def test_a_loaded_result_can_be_continued(path: Path) -> None:
    field = repulsive_grid()
    first = pf.infer(field, "fixed", max_iters=5)
    first.save(path)
    straight = pf.infer(field, "fixed", init=first, max_iters=5)
    after = pf.infer(field, "fixed", init=pf.Result.load(path), max_iters=5)
    assert straight.q.tobytes() == after.q.tobytes()


def test_the_field_of_a_result_cannot_be_read_as_a_field(path: Path) -> None:
    RESULTS["fixed"]().save(path)
    with pytest.raises(pf.InputError, match=r"it holds a Result, expected a Field \(try Result"):
        pf.Field.load(path)
    repulsive_grid().save(path)
    with pytest.raises(pf.InputError, match="it holds a Field, expected a Result"):
        pf.Result.load(path)
    with pytest.raises(pf.InputError, match="it holds a Field, expected a DenseCRF"):
        pf.DenseCRF.load(path)
    picture().save(path)
    assert type(pf.Field.load(path)) is type(pf.DenseCRF.load(path)) is pf.DenseCRF


# ---- terms of one's own ----


class Hooked(Chain):
    """A chain that says what it consists of."""

    name = "hooked"

    def to_arrays(self) -> dict[str, Any]:
        return {"weight": self.weight, "note": "a chain"}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> Hooked:
        assert arrays["note"].item() == "a chain"
        return cls(float(arrays["weight"]))


@dataclass(frozen=True, eq=False)
class Plain(Chain):
    """A dataclass needs no hooks."""

    name = "plain"
    weight: float
    more: np.ndarray | None = None


def test_unregistered_terms_are_refused_by_name(path: Path) -> None:
    path.write_text("precious")
    field = pf.Field(3, 2, [Chain(1.0)])
    with pytest.raises(pf.InputError, match="the class Chain can't be saved; give it to_arrays"):
        field.save(path)
    with pytest.raises(pf.InputError, match="Chain"):
        pf.infer(field, "adhoc", max_iters=1).save(path)
    assert path.read_text() == "precious"
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_registered_terms_are_saved(path: Path, kinds: Registry[type[pf.Term]]) -> None:
    pf.saveable(Hooked)
    assert pf.saveable(kind="tests.plain")(Plain) is Plain
    terms = [Hooked(1 / 3), Plain(0.1), Plain(2.0, np.arange(3))]
    field = pf.Field(3, 2, terms)
    field.save(path)
    again = pf.Field.load(path)
    assert [type(t) for t in again.terms] == [Hooked, Plain, Plain]
    assert again == field
    assert again.terms[2].more.tolist() == [0, 1, 2]
    assert again.energy([0, 1, 0]) == field.energy([0, 1, 0])
    assert field != pf.Field(3, 2, [Hooked(0.3), *terms[1:]])
    del kinds.data["hooked"]
    with pytest.raises(pf.InputError, match=r"kind 'hooked' isn't known; import what registers"):
        pf.Field.load(path)


def test_registering_needs_hooks_and_a_free_name(
    path: Path, kinds: Registry[type[pf.Term]]
) -> None:
    with pytest.raises(pf.InputError, match=r"Potts is already saved as 'potts'; pass another"):
        pf.saveable(kind="potts")(Hooked)
    with pytest.raises(pf.InputError, match="takes a class of terms, not 3"):
        pf.saveable(3)  # type: ignore[call-overload]
    pf.saveable(Chain)
    with pytest.raises(
        pf.InputError, match="Chain can't be saved: Chain has no method 'to_arrays'"
    ):
        pf.Field(3, 2, [Chain(1.0)]).save(path)
    again = type("Chain", (Chain,), {"__module__": Chain.__module__, "__qualname__": "Chain"})
    assert pf.saveable(again) is kinds["chain"]  # a cell that runs twice


def test_what_hooks_give_is_checked(path: Path, kinds: Registry[type[pf.Term]]) -> None:
    pf.saveable(Plain)
    with pytest.raises(pf.InputError, match=r"Plain.to_arrays\(\) gives more as object"):
        pf.Field(3, 2, [Plain(1.0, np.array([object()]))]).save(path)
    pf.saveable(Hooked)
    kinds["hooked"].to_arrays = lambda self: {"a/b": 1}  # type: ignore[method-assign]
    try:
        with pytest.raises(pf.InputError, match="names an array 'a/b', expected a word"):
            pf.Field(3, 2, [Hooked(1.0)]).save(path)
    finally:
        kinds["hooked"].to_arrays = lambda self: {  # type: ignore[method-assign]
            "weight": self.weight,
            "note": "a chain",
        }


def test_subclasses_are_not_saved_as_what_they_extend(path: Path) -> None:
    class Louder(pf.Gaussian):
        def labelling_energy(self, layout: pf.Layout, labels: Any) -> float:
            return 2 * super().labelling_energy(layout, labels)

    class Mine(pf.Field):
        pass

    with pytest.raises(pf.InputError, match="the class Louder can't be saved"):
        pf.Field(2, 2, [Louder(np.eye(2))]).save(path)
    with pytest.raises(pf.InputError, match="a Mine can't be saved, expected a Field or a Dense"):
        Mine(2, 2).save(path)


def test_terms_that_lost_their_features_are_refused(path: Path) -> None:
    term = pf.Gaussian(np.eye(3), filter="lattice").build(drop_features=True)
    with pytest.raises(pf.InputError, match="Gaussian can't be saved: its features were dropped"):
        pf.Field(3, 2, [term]).save(path)


# ---- the header ----


def everything() -> pf.Result:
    """A result with a bit of everything, small."""
    terms = [
        pf.Unary([[0.0, 1.0]], [0]),
        pf.Potts([[0, 1], [1, 2]], [1.0, 2.0]),
        pf.Factor([0, 1, 2], np.arange(8.0).reshape(2, 2, 2)),
    ]
    field = pf.Field(3, 2, terms, names=["a", "b", "c"], label_names=["no", "yes"])
    return pf.infer(field.condition({"c": "yes"}), "fixed", max_iters=2)


def test_parameters_that_json_cannot_hold(path: Path) -> None:
    result = pf.infer(repulsive_grid(), "fixed", max_iters=1)
    fine = replace(result, params={"step": np.float64(0.1), "many": np.arange(2)})
    fine.save(path)
    assert pf.Result.load(path).params == {"step": 0.1, "many": [0, 1]}
    with pytest.raises(pf.InputError, match="a parameter can't be saved"):
        replace(result, params={"step": object()}).save(path)


def test_the_header_is_plain_json(path: Path) -> None:
    everything().save(path)
    with np.load(path) as archive:
        header = json.loads(archive["header"].tobytes())
    assert header["format"] == "proxfield"
    assert header["version"] == 1
    assert header["holds"] == "Result"
    assert header["field"]["names"] == ["a", "b", "c"]
