"""Names of variables and labels: reading, messages, evidence, results by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import proxfield as pf
from proxfield.core.terms.names import listed


def lamp() -> pf.Field:
    field = pf.Field([2, 3], names=["switch", "lamp"], label_names=[["off", "on"], ["0", "½", "1"]])
    field.add(pf.Unary([[0.0, 1.0]], [0]))
    return field.add(pf.Pairwise([[0, 1]], [[0.0, 1.0, 5.0], [4.0, 2.0, 0.0]]))


def test_names_are_kept() -> None:
    field = lamp()
    assert field.names == ("switch", "lamp")
    assert field.label_names == (("off", "on"), ("0", "½", "1"))
    assert pf.Field([2, 3]).names is None
    assert pf.Field([2, 3]).label_names is None
    assert pf.Field(2, 2, label_names=["a", "b"]).label_names == ("a", "b")
    shared = pf.Field(2, 2, label_names=[["a", "b"], ["a", "b"]])
    assert shared.label_names == ("a", "b")
    assert pf.Field(3, 2, names=np.array(["x", "y", "z"])).names == ("x", "y", "z")


def test_named_leaves_the_field_alone() -> None:
    field = pf.Field(2, 2, [pf.Constant(1.0)])
    other = field.named(["a", "b"])
    assert field.names is None
    assert other.named(label_names=["no", "yes"]).names == ("a", "b")
    assert other.named(["c", "d"]).names == ("c", "d")
    other.add(pf.Constant(1.0))
    assert len(field.terms) == 1


def test_numbers_and_names_are_the_same() -> None:
    field = lamp()
    assert field.variable_index("lamp") == field.variable_index(np.int64(1)) == 1
    assert field.label_index("lamp", "½") == field.label_index(1, 1) == 1
    assert field.energy({"switch": "on", "lamp": "1"}) == field.energy([1, 2]) == 1.0
    assert field.energy({"lamp": 2, 0: "on"}) == 1.0
    assert field.condition({"lamp": "½", 0: 1}) == field.condition({1: 1, 0: 1})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pf.Field(2, 2, names=["a"]), "1 names for 2 variables, expected one per variable"),
        (lambda: pf.Field(2, 2, names=["a", "a"]), "names hold 'a' twice"),
        (lambda: pf.Field(2, 2, names=["a", 1]), "names hold 1, expected text"),
        (lambda: pf.Field(2, 2, names="ab"), "names='ab', expected a list of names"),
        (lambda: pf.Field(2, 2, names=3), "names=3, expected a list of names"),
        (lambda: pf.Field(2, 2, label_names=["a"]), "1 label_names, but variable 0 has 2 labels"),
        (lambda: pf.Field(2, 2, label_names=["a", "a"]), "label_names hold 'a' twice"),
        (lambda: pf.Field([2, 3], label_names=["a", "b"]), "but variable 1 has 3 labels; give one"),
        (lambda: pf.Field(2, 2, label_names=[["a", "b"]]), "label_names has 1 lists for 2"),
        (
            lambda: pf.Field([2, 1], label_names=[["a", "b"], ["c", "d"]]),
            "2 label_names for variable 1, which has 1 labels",
        ),
        (
            lambda: pf.Field([2, 1], label_names=[["a", "a"], ["c"]]),
            "label_names of variable 0 hold 'a' twice",
        ),
        (lambda: lamp().variable_index("bulb"), "named 'bulb', expected one of: switch, lamp"),
        (lambda: lamp().variable_index(2), "there is no variable 2, expected 0 to 1"),
        (lambda: lamp().variable_index(0.5), "variable 0.5, expected a whole number or a name"),
        (lambda: pf.Field(2, 2).variable_index("a"), "'a', but the variables have no names"),
        (
            lambda: lamp().label_index("switch", "dim"),
            "variable 'switch' has no label 'dim', expected one of: off, on",
        ),
        (lambda: lamp().label_index("switch", 2), "'switch' has label 2, expected 0 to 1"),
        (lambda: lamp().label_index(0, None), "label None of variable 'switch', expected a whole"),
        (
            lambda: pf.Field([2], names=["a"]).label_index("a", "on"),
            "label 'on' of variable 'a', but its labels have no names",
        ),
        (lambda: lamp().condition({"bulb": 1}), "evidence: no variable is named 'bulb'"),
        (lambda: lamp().condition({"lamp": "red"}), "evidence: variable 'lamp' has no label 'red'"),
        (lambda: lamp().energy({"lamp": 0}), "no label for variable 'switch', expected one for"),
        (lambda: lamp().energy([0, 7]), "variable 'lamp' has label 7, expected 0 to 2"),
        (lambda: lamp().flatten([[0.5, 0.6], [1, 0, 0]]), "marginals of variable 'switch' sum to"),
        (lambda: lamp().add(pf.Unary([[0, 0.0]], [1])), "variable 'lamp' has 3 labels, but its"),
        (lambda: lamp().add(pf.Ising([[0, 1]], 1.0)), "variable 'lamp' has 3 label"),
        (lambda: lamp().add(pf.Pairwise([[0, 1]], np.eye(2))), "scope [switch, lamp] has labels"),
        (lambda: lamp().add(pf.Potts([[1, 1]], 1.0)), "names a variable twice: [lamp, lamp]"),
        (lambda: lamp().add(pf.Consistency([0, 0])), "variable 'lamp' has 3 labels, but others"),
    ],
)
def test_messages_use_names(make: Callable[[], object], message: str) -> None:
    with pytest.raises(pf.InputError) as caught:
        make()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_results_by_name() -> None:
    field = lamp()
    result = pf.infer(field, "fixed", init=[[0.25, 0.75], [0.5, 0.25, 0.25]], max_iters=0)
    assert result["lamp"].tolist() == result[1].tolist() == [0.5, 0.25, 0.25]
    assert result["switch", "on"] == result[0, 1] == 0.75
    assert isinstance(result["switch", "on"], float)
    assert result.named_labels([1, 2]) == {"switch": "on", "lamp": "1"}
    expected = [field.label_names[v][x] for v, x in enumerate(result.map_labels)]
    assert list(result.named_labels().values()) == expected
    assert result.named_marginals() == {
        "switch": {"off": 0.25, "on": 0.75},
        "lamp": {"0": 0.5, "½": 0.25, "1": 0.25},
    }


def test_results_without_names_use_numbers() -> None:
    result = pf.infer(pf.Field([2, 3]), "fixed", init=[[0, 1], [0, 0, 1.0]], max_iters=0)
    assert result.named_labels(result.labels) == {0: 1, 1: 2}
    assert result.named_marginals()[1] == {0: 0.0, 1: 0.0, 2: 1.0}
    assert pf.infer(pf.Field([])).named_labels() == {}
    assert pf.infer(pf.Field([])).named_marginals() == {}


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda r: r["bulb"], "no variable is named 'bulb'"),
        (lambda r: r[2], "there is no variable 2"),
        (lambda r: r["lamp", "red"], "has no label 'red'"),
        (lambda r: r["lamp", 0, 0], "expected a variable, or that and a label"),
        (lambda r: r.named_labels([0]), "1 labels for 2 variables"),
        (lambda r: r.named_labels([0, 3]), "variable 'lamp' has label 3, expected 0 to 2"),
    ],
)
def test_bad_names_of_results(read: Callable[[pf.Result], object], message: str) -> None:
    with pytest.raises(pf.InputError, match=message):
        read(pf.infer(lamp(), "sweep"))


def test_a_result_is_no_sequence() -> None:
    with pytest.raises(TypeError, match="not iterable"):
        iter(pf.infer(pf.Field([2])))


def test_names_of_images() -> None:
    crf = pf.DenseCRF(None, np.full((2, 3, 2), 0.5), labels_axis=-1)
    crf = crf.named(label_names=["sky", "road"])
    assert type(crf) is pf.DenseCRF
    result = crf.infer(init=np.tile([0.2, 0.8], (2, 3, 1)), max_iters=0)
    assert result.named_labels(result.labels)[5] == "road"
    assert crf.energy(dict.fromkeys(range(6), "sky")) == crf.energy(np.zeros((2, 3), dtype=int))


def test_uai_files_know_no_names() -> None:
    from proxfield.io.uai import format_model

    field = lamp()
    plain = pf.Field([2, 3], terms=field.terms)
    assert format_model(field) == format_model(plain)


def test_listed_fits() -> None:
    assert listed([]) == ""
    assert listed(["a\nb"]) == "'a\\nb'"
    assert len(listed(["x" * 1000])) <= 60
    assert len(listed([f"name{i}" for i in range(10**5)])) <= 66
