"""Models to fields and back."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

from proxfield.errors import InputError
from proxfield.io import format_model, model_to_field, parse_model, read_model, write_model

pytest.importorskip("proxfield.field", reason="proxfield.field isn't written yet")
pytest.importorskip("proxfield.core.terms", reason="proxfield.core.terms isn't written yet")

from proxfield.core.terms.factor import Factor
from proxfield.core.terms.unary import Constant, Unary
from proxfield.field import Field

TEXT = b"""MARKOV
3
2 3 2
7
2 0 1
1 2
0
2 1 0
1 2
2 0 2
0
6 1 2 3 4 5 6
2 0.5 0
1 7
6 .1 .2 .3 .4 .5 .6
2 1 9
4 1 0 0 1
1 0.25
"""


def weights(text: str | bytes) -> np.ndarray:
    """The log weight of every labelling, straight from the definition of the format."""
    model = parse_model(text if isinstance(text, bytes) else text.encode())
    cards = model.cardinalities.tolist()
    total = np.zeros(cards)
    labels = np.indices(cards)
    for i in range(model.num_factors):
        scope = model.scope_vars[model.scope_ptr[i] : model.scope_ptr[i + 1]]
        table = model.values[model.table_ptr[i] : model.table_ptr[i + 1]]
        table = table.reshape([cards[v] for v in scope])
        with np.errstate(divide="ignore"):
            total = total + np.log(table[tuple(labels[v] for v in scope)])
    return total


def field_weights(field: Field) -> np.ndarray:
    cards = field.cardinalities.tolist()
    energies = [field.energy(np.array(x, dtype=np.int64)) for x in np.ndindex(*cards)]
    return -np.array(energies).reshape(cards)


def test_terms_of_a_field() -> None:
    field = model_to_field(parse_model(TEXT))
    kinds = sorted(type(term).__name__ for term in field.terms)
    assert kinds == ["Constant", "Factor", "Factor", "Factor", "Unary"]
    constant = next(t for t in field.terms if isinstance(t, Constant))
    assert constant.value == pytest.approx(-np.log(7 * 0.25))
    unary = next(t for t in field.terms if isinstance(t, Unary))
    assert unary.variables.tolist() == [2, 2]
    assert unary.energies[0].tolist() == [-np.log(0.5), np.inf]
    assert not np.signbit(unary.energies[1, 0])
    shapes = {t.tables.shape: t.scopes.tolist() for t in field.terms if isinstance(t, Factor)}
    assert shapes == {(1, 2, 3): [[0, 1]], (1, 3, 2): [[1, 0]], (1, 2, 2): [[0, 2]]}
    assert np.allclose(field_weights(field), weights(TEXT), atol=1e-12, rtol=0)


@pytest.mark.parametrize("seed", range(5))
def test_round_trip_of_random_models(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cards = rng.integers(1, 4, 5)
    scopes = [rng.choice(5, int(rng.integers(0, 4)), replace=False) for _ in range(40)]
    tables = [rng.lognormal(0, 3, int(np.prod(cards[s]))) * (rng.random() < 0.95) for s in scopes]
    rows = [[len(s), *s.tolist()] for s in scopes] + [[len(t), *t.tolist()] for t in tables]
    text = f"MARKOV 5 {' '.join(map(str, cards))} 40 "
    text += "\n".join(" ".join(map(repr, row)) for row in rows)
    field = model_to_field(parse_model(text.encode()))
    again = format_model(field)
    close = {"atol": 1e-11, "rtol": 1e-12}
    assert np.allclose(weights(again), weights(text), **close)
    back = model_to_field(parse_model(again.encode()))
    assert len(back.terms) == len(field.terms)
    for ours, theirs in zip(back.terms, field.terms, strict=True):
        for name in ("energies", "tables", "value"):
            if hasattr(theirs, name):
                assert np.allclose(getattr(ours, name), getattr(theirs, name), rtol=0, atol=1e-12)
        if hasattr(theirs, "scopes"):
            assert np.array_equal(ours.scopes, theirs.scopes)


def test_values_survive_exactly() -> None:
    energies = np.random.default_rng(0).normal(0, 100, (1, 500))
    field = Field(np.array([500]))
    field.add(Unary(energies))
    parsed = parse_model(format_model(field).encode()).values
    assert np.array_equal(parsed, np.exp(-energies[0]))


def test_shared_tables_are_written_for_each_scope() -> None:
    field = Field(np.array([2, 2, 2]))
    tables = np.array([[[0.0, 1.0], [2.0, 3.0]], [[1.0, 0.0], [0.0, 1.0]]])
    field.add(Factor(np.array([[0, 1], [1, 2], [2, 0]]), tables, np.array([1, 0, 1])))
    model = parse_model(format_model(field).encode())
    expected = np.exp(-tables[[1, 0, 1]]).reshape(-1)
    assert np.array_equal(model.values, expected)
    assert model.scope_vars.tolist() == [0, 1, 1, 2, 2, 0]


@pytest.mark.parametrize("offset", [0.0, 650.0, -650.0, 1e4, -1e4, 123456.789])
def test_large_energies_are_shifted(offset: float) -> None:
    energies = np.array([[0.0, 1.0, np.inf], [300.0, -300.0, 5.0], [np.inf] * 3]) + offset
    energies[2] = [np.inf, offset, np.inf]
    field = Field(np.array([3, 3, 3]))
    field.add(Unary(energies))
    field.add(Factor(np.array([[0, 1], [1, 2]]), np.full((1, 3, 3), offset), np.array([0, 0])))
    text = format_model(field)
    values = parse_model(text.encode()).values
    assert np.isfinite(values).all()
    assert np.count_nonzero(values == 0) == 3
    assert np.allclose(weights(text), field_weights(field), rtol=1e-12, atol=1e-10)


def test_constants() -> None:
    field = Field(np.array([2]))
    for value in (2000.0, -50.0, 0.0):
        field.add(Constant(value))
    model = parse_model(format_model(field).encode())
    assert model.scope_ptr.tolist() == [0] * (model.num_factors + 1)
    assert -np.log(model.values).sum() == pytest.approx(1950.0, abs=1e-9)
    assert (np.abs(np.log(model.values)) <= 600).all()
    nothing = Field(np.array([2]))
    nothing.add(Constant(np.inf))
    assert parse_model(format_model(nothing).encode()).values.tolist() == [0.0]
    huge = Field(np.array([2]))
    huge.add(Constant(1e12))
    with pytest.raises(InputError, match=r"constant part of the energy is 1e\+12"):
        format_model(huge)


def test_table_of_only_zeros() -> None:
    field = model_to_field(parse_model(b"MARKOV 1 2 1 1 0 2 0 0"))
    assert parse_model(format_model(field).encode()).values.tolist() == [0, 0]


def test_span_too_wide() -> None:
    field = Field(np.array([2, 2]))
    field.add(Unary(np.array([[0.0, 1400.0], [-800.0, 700.0]])))
    with pytest.raises(InputError, match=r"-800 to 700, a span of 1500 nats.*use .inf") as error:
        format_model(field)
    assert "\n" not in str(error.value)


def test_scopes_longer_than_numpy_allows() -> None:
    n = 70
    head = f"MARKOV {n} 3 2 {'1 ' * (n - 2)} 1 {n} {' '.join(map(str, range(n)))} "
    field = model_to_field(parse_model((head + "6 1 2 3 4 5 6").encode()))
    (term,) = field.terms
    assert isinstance(term, Factor)
    assert term.scopes.tolist() == [[0, 1]]
    assert np.allclose(np.exp(-term.tables), [[[1, 2], [3, 4], [5, 6]]])


def test_header_word() -> None:
    assert format_model(Field(np.array([2])), kind="BAYES") == "BAYES\n1\n2\n0\n"
    with pytest.raises(InputError, match="expected 'MARKOV' or 'BAYES'"):
        format_model(Field(np.array([2])), kind="LIMID")


def test_no_variables() -> None:
    field = model_to_field(parse_model(b"MARKOV 0 1 0 1 2"))
    assert parse_model(format_model(field).encode()).values == pytest.approx([2])


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".bz2"])
def test_write_and_read(tmp_path: Path, suffix: str) -> None:
    field = model_to_field(parse_model(TEXT))
    path = tmp_path / f"m.uai{suffix}"
    write_model(field, path)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    again = read_model(path)
    assert np.allclose(field_weights(again), weights(TEXT), rtol=0, atol=1e-12)


def test_evidence_is_left_out() -> None:
    field = model_to_field(parse_model(TEXT))
    assert format_model(field.condition({0: 1})) == format_model(field)


def test_large_models_take_no_loop_over_factors() -> None:
    """Far fewer functions are called than there are factors."""
    m = 5000
    rng = np.random.default_rng(0)
    field = Field(np.full(m + 1, 2))
    scopes = np.stack([np.arange(m), np.arange(1, m + 1)], axis=1)
    field.add(Factor(scopes, rng.normal(size=(m, 2, 2))))
    calls = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        again = model_to_field(parse_model(format_model(field).encode()))
    finally:
        sys.setprofile(None)
    assert again.n_vars == m + 1
    assert calls < m / 4
