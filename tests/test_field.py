"""Fields: validation, evidence, energies, memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import proxfield as pf
from helpers import exact_free_energy, exact_log_z, random_field, random_marginals
from proxfield.core.common import memory
from proxfield.field import entropy


def small() -> pf.Field:
    return pf.Field([2, 3], terms=[pf.Unary([[0.0, 1.0]], [0]), pf.Potts([[0, 1]], 2.0)])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pf.Field([2, 0]), "variable 1 has 0 labels, expected at least 1"),
        (lambda: pf.Field([2, -3]), "variable 1 has -3 labels"),
        (lambda: pf.Field(-1, n_labels=2), "n_vars=-1, expected a whole number, 0 or more"),
        *(
            (lambda bad=bad: pf.Field(2, n_labels=bad), f"n_labels={bad!r}, expected a whole")
            for bad in (0, -1, 2.5, True, np.nan, np.inf, "2", [2])
        ),
        *(
            (lambda bad=bad: pf.Field(bad, n_labels=2), f"n_vars={bad!r}, expected a whole")
            for bad in (2.5, True, np.nan, "2", [2], None)
        ),
        (lambda: pf.Field([[2], [2, 3]]), "cardinalities must be integers in one rectangular"),
        (lambda: pf.Field([2, np.nan]), "cardinalities must be integers, not float64"),
        (lambda: pf.Field([True, True]), "cardinalities must be integers, not bool"),
        (lambda: pf.Field(["2"]), "cardinalities must be integers"),
        (lambda: pf.Field(np.array([2**63], np.uint64)), "hold 9223372036854775808, expected"),
        (lambda: pf.Field(3), "needs n_labels="),
        (lambda: pf.Field(np.int64(3)), "needs n_labels="),
        (lambda: pf.Field(np.array(3)), "needs n_labels="),
        (lambda: pf.Field(3, n_labels=1e300), "n_labels=1e+300, expected a whole number below"),
        (lambda: pf.Field(2**63, n_labels=2), "n_vars=9223372036854775808, expected a whole"),
        (lambda: pf.Field([2.5, 2]), "cardinalities must be integers"),
        (lambda: pf.Field([[2, 2]]), "cardinalities must have 1 dimension"),
        (lambda: small().energy([0]), "1 labels for 2 variables"),
        (lambda: small().energy([0, 3]), "variable 1 has label 3, expected 0 to 2"),
        (lambda: small().energy([-1, 0]), "variable 0 has label -1, expected 0 to 1"),
        (lambda: small().energy([0.0, 1.0]), "labels must be integers"),
        (lambda: small().condition({2: 0}), "evidence: there is no variable 2, expected 0 to 1"),
        (lambda: small().condition({-1: 0}), "evidence: there is no variable -1"),
        (lambda: small().condition({1: 3}), "evidence: variable 1 has label 3, expected 0 to 2"),
        (lambda: small().flatten([[0.5, 0.5]]), "marginals have 2 entries, expected 5"),
        (lambda: small().flatten([[0.5, 0.6], [1, 0, 0]]), "variable 0 sum to 1.1, expected 1"),
        (lambda: small().flatten([[1.5, -0.5], [1, 0, 0]]), "finite and not negative"),
        (lambda: small().flatten([[np.nan, 1], [1, 0, 0]]), "finite and not negative"),
    ],
)
def test_bad_input_gets_one_line(make: Callable[[], object], message: str) -> None:
    with pytest.raises(pf.InputError) as caught:
        make()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_former_names_of_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="Field has no argument 'labels'; it is called n_labels"):
        pf.Field(4, labels=2)  # type: ignore[arg-type]
    with pytest.raises(pf.InputError, match="grid has no argument 'labels'; it is called n_labels"):
        pf.generate.grid(2, 2, labels=2)
    with pytest.raises(pf.InputError, match=r"Field has no argument 'colour'$"):
        pf.Field(4, n_labels=2, colour=1)  # type: ignore[arg-type]


def test_only_terms_can_be_added() -> None:
    with pytest.raises(TypeError, match="takes a Term, not ndarray"):
        pf.Field(2, n_labels=2).add(np.zeros((2, 2)))


def test_a_bad_term_is_not_kept() -> None:
    field = pf.Field(2, n_labels=2)
    with pytest.raises(pf.InputError):
        field.add(pf.Potts([[0, 5]], 1.0))
    assert field.terms == []


def test_repr() -> None:
    assert repr(small()) == "Field(2 variables, 5 entries, terms: unary, potts)"
    assert "1 observed" in repr(small().condition({0: 1}))
    assert repr(pf.Field([])) == "Field(0 variables, 0 entries, terms: none)"


def test_variables_and_labels() -> None:
    field = pf.Field(3, n_labels=4)
    assert field.n_vars == 3
    assert field.cardinalities.tolist() == [4, 4, 4]
    assert field.layout.offsets.tolist() == [0, 4, 8, 12]
    assert field.layout.common == 4
    assert pf.Field([2, 3]).layout.common is None


def test_add_chains_and_counts_in_the_next_lowering() -> None:
    field = pf.Field(2, n_labels=2)
    before = field.lower()
    assert field.lower() is before
    assert field.add(pf.Constant(1.0)).add(pf.Constant(2.0)) is field
    assert field.lower().constant == 3.0


# ---- evidence ----


def test_condition_leaves_the_field_alone() -> None:
    field = small()
    seen = field.condition({1: 2})
    assert field.evidence.tolist() == [-1, -1]
    assert seen.evidence.tolist() == [-1, 2]
    assert seen.condition({0: 0}).evidence.tolist() == [0, 2]
    assert seen.condition({1: 0}).evidence.tolist() == [-1, 0]
    seen.add(pf.Constant(1.0))
    assert len(field.terms) == 2


def test_evidence_adds_up() -> None:
    """Z is the sum of Z with each label of a variable observed."""
    field = random_field(np.random.default_rng(1), n_labels=(2, 3))
    for v in range(field.n_vars):
        parts = [exact_log_z(field.condition({v: x})) for x in range(field.cardinalities[v])]
        assert np.logaddexp.reduce(parts) == pytest.approx(exact_log_z(field))


def test_inference_respects_evidence_in_the_users_numbering() -> None:
    field = random_field(np.random.default_rng(2), n_labels=(2, 3, 4), n_vars=(5, 5))
    seen = field.condition({3: 1, 0: 0})
    result = pf.infer(seen, "sweep")
    assert result.marginals[3][1] == result.marginals[0][0] == 1.0
    assert result.free_energy == pytest.approx(field.free_energy(result.q))
    assert result.log_z_bound <= exact_log_z(seen) + 1e-9
    assert seen.lower().layout.n_vars == 3


# ---- energies ----


def test_accepted_forms_of_marginals() -> None:
    field = small()
    flat = np.array([0.25, 0.75, 0.2, 0.3, 0.5])
    rows = [flat[:2], flat[2:]]
    for form in (flat, rows, [list(row) for row in rows], tuple(rows), list(flat)):
        np.testing.assert_array_equal(field.flatten(form), flat)
    square = pf.Field(2, n_labels=2)
    np.testing.assert_array_equal(square.flatten(np.eye(2)), [1, 0, 0, 1])


def test_flatten_removes_rounding() -> None:
    q = pf.Field([3]).flatten(np.array([0.33333, 0.33333, 0.33333]))
    assert q.sum() == pytest.approx(1.0, abs=1e-15)


@pytest.mark.parametrize("seed", range(10))
def test_energies_against_enumeration(seed: int) -> None:
    rng = np.random.default_rng(seed)
    field = random_field(rng)
    q = random_marginals(field.layout, rng)
    expected = exact_free_energy(field, q)
    assert field.free_energy(q) == pytest.approx(expected, abs=1e-9)
    assert field.expected_energy(q) - entropy(q) == pytest.approx(expected, abs=1e-9)


def test_entropy() -> None:
    assert entropy(np.array([1.0, 0.0])) == 0.0
    assert entropy(np.full(8, 1 / 8)) == pytest.approx(np.log(8))


# ---- memory ----


@pytest.mark.parametrize("n", [10**10, 10**13, 10**18])
def test_huge_fields_are_refused_before_allocating(n: int) -> None:
    with pytest.raises(pf.MemoryLimitError, match=r"variables would need about .*available"):
        pf.Field(n, n_labels=2)
    with pytest.raises(pf.MemoryLimitError):
        pf.Field(2, n_labels=n)


def test_huge_labels_are_refused() -> None:
    with pytest.raises(pf.MemoryLimitError, match="labels"):
        pf.Field([10**13, 2])
    with pytest.raises(pf.MemoryLimitError):
        pf.Field(2, n_labels=10**13)


def test_lowering_looks_at_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    field = pf.Field(100, n_labels=2, terms=[pf.Unary(np.zeros((100, 2)))])
    monkeypatch.setattr(memory, "available_memory", lambda: field.memory_estimate(4) - 1)
    with pytest.raises(pf.MemoryLimitError, match="inference on Field"):
        pf.infer(field)
    monkeypatch.setattr(memory, "available_memory", lambda: field.memory_estimate(4))
    assert pf.infer(field).converged


def test_dense_fields_are_refused_only_if_the_least_does_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A few iterations in float32 take a fraction of the bound for all rules."""
    points = np.random.default_rng(0).normal(size=(20_000, 2))
    field = pf.Field(20_000, 21).add(pf.Gaussian(points, filter="lattice"))
    least = 16 * field.layout.size + field.terms[0].workspace(field.layout)
    assert 4 * least < field.memory_estimate()
    monkeypatch.setattr(memory, "available_memory", lambda: least)
    with pytest.raises(pf.MemoryLimitError, match="inference on Field"):
        field.lower()
    monkeypatch.setattr(memory, "available_memory", lambda: field.memory_estimate() // 3)
    assert field.lower().extras


def test_memory_estimate_grows_with_tables() -> None:
    bare = pf.Field(1000, n_labels=2)
    edges = np.stack([np.arange(999), np.arange(1, 1000)], axis=1)
    full = pf.Field(1000, n_labels=2, terms=[pf.Pairwise(edges, np.zeros((999, 2, 2)))])
    tables = full.terms[0].nbytes
    assert tables >= 999 * (4 + 2) * 8
    assert full.memory_estimate() - bare.memory_estimate() >= tables
    assert bare.memory_estimate() >= 2000 * 8


def test_unknown_memory_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: None)
    memory.check_memory(10**18, "anything")
    assert (memory.human_bytes(512), memory.human_bytes(2**60)) == ("512 B", "1,024.0 PiB")


def test_available_memory_is_sensible() -> None:
    left = memory.available_memory()
    assert left is None or 2**20 < left < 2**50
