"""The instances: found in a folder, or generated with the paper's sizes."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pytest

from proxfield.bench import suites as generated
from proxfield.bench.published import BUDGETS, PAPER_RULES, PUBLISHED, SUITES
from proxfield.bench.suites import is_the_papers, load_suites, representative, suite_digest
from proxfield.core.solve.rules.registry import RULES
from proxfield.core.terms.pairwise import Ising, Potts
from proxfield.errors import InputError
from standins import DATA

PAPER = DATA / "uai" / "paper"


def test_the_generated_grids_have_the_papers_sizes_and_ranges() -> None:
    grids = {i.name: i for i in load_suites(None, ["GRID"])["GRID"]}
    assert len(grids) == 21
    assert {"grid20x20.f5.wrap", "grid40x40.f2", "grid80x80.f15.wrap"} <= set(grids)
    assert "grid20x20.f2" not in grids
    for name, n, edges in (
        ("grid20x20.f10", 400, 760),
        ("grid40x40.f5.wrap", 1600, 3200),
        ("grid80x80.f15", 6400, 12640),
    ):
        field = grids[name].make()
        coupling = next(t for t in field.terms if isinstance(t, Ising)).weights
        top = float(name.split(".")[1][1:])
        assert field.n_vars == n and len(coupling) == edges
        assert 0.98 * top < np.abs(coupling).max() <= top


def test_grids_of_one_shape_differ_only_by_the_factor() -> None:
    grids = {i.name: i for i in load_suites(None, ["GRID"])["GRID"]}
    weak, strong = (grids[f"grid40x40.f{f}"].make().terms[1] for f in (2, 10))
    assert isinstance(weak, Ising) and isinstance(strong, Ising)
    np.testing.assert_allclose(strong.weights, 5 * weak.weights)


@pytest.mark.parametrize("hidden", [20, 50, 100])
def test_the_generated_networks_have_the_papers_layers(hidden: int) -> None:
    nets = {i.name: i for i in load_suites(None, ["DBN"])["DBN"]}
    spins = nets[f"rus_{hidden}_{2 * hidden}"].make()
    assert spins.n_vars == 784 + hidden + 2 * hidden + 10
    coupling = spins.terms[1]
    assert isinstance(coupling, Ising)
    assert len(coupling.edges) == 784 * hidden + 2 * hidden**2 + 20 * hidden
    assert np.isclose(
        coupling.weights[: 784 * hidden].std(), generated.NETWORKS[hidden][1][0], rtol=0.1
    )


def test_both_forms_of_a_network_have_the_same_weights() -> None:
    nets = {i.name: i for i in load_suites(None, ["DBN"])["DBN"]}
    spins, bits = nets["rus_20_40"].make(), nets["rus2_20_40"].make()
    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, spins.n_vars)
    on = np.flatnonzero(x)
    pairs, w = spins.terms[1].edges, spins.terms[1].weights  # type: ignore[attr-defined]
    both = np.isin(pairs, on).all(axis=1)
    bias = spins.terms[0].energies[:, 1]  # type: ignore[attr-defined]
    assert np.isclose(bits.energy(x), w[both].sum() + bias[on].sum())


def test_the_generated_pictures_attract() -> None:
    pictures = load_suites(None, ["SEG"])["SEG"]
    assert len(pictures) == 50
    for instance in pictures[::10]:
        field = instance.make()
        potts = next(t for t in field.terms if isinstance(t, Potts))
        assert 221 <= field.n_vars <= 237
        assert 560 < len(potts.edges) < 680
        assert potts.weights.min() > 0.9 and potts.weights.max() < 1.5


@pytest.mark.parametrize("suite", SUITES)
def test_generated_instances_are_seeded_and_differ(suite: str) -> None:
    first, again = (load_suites(None, [suite])[suite][:2] for _ in range(2))
    x = np.ones(first[0].make().n_vars, dtype=int)
    assert first[0].make().energy(x) == again[0].make().energy(x)
    other = first[1].make()
    assert first[0].make().energy(x) != other.energy(np.ones(other.n_vars, dtype=int))


def test_generated_weights_are_the_papers() -> None:
    suites = load_suites(None, None)
    assert {s: sum(i.weight for i in found) for s, found in suites.items()} == {
        "DBN": 108,
        "GRID": 21,
        "SEG": 50,
    }


def test_a_folder_gives_models_in_natural_order_with_weights(data: Path) -> None:
    suites = load_suites(str(data), None)
    assert [i.name for i in suites["GRID"]] == ["grid.f2", "grid.f5", "grid.f10"]
    assert {i.name: i.weight for i in suites["DBN"]} == {"net_a": 3, "net_b": 1}
    assert representative(suites["DBN"]).name == "net_a"
    assert representative(suites["GRID"]).name == "grid.f5"


def test_packing_a_model_anew_changes_no_digest(data: Path, tmp_path: Path) -> None:
    (tmp_path / "SEG").mkdir()
    packed = lzma.compress((data / "SEG" / "picture.uai").read_bytes())
    (tmp_path / "SEG" / "picture.uai.xz").write_bytes(packed)
    before, after = (load_suites(str(d), ["SEG"])["SEG"][0] for d in (data, tmp_path))
    assert before == after


def test_a_suite_that_nobody_asked_for_may_be_missing(data: Path, tmp_path: Path) -> None:
    (tmp_path / "SEG").mkdir()
    (tmp_path / "SEG" / "p.uai").write_bytes((data / "SEG" / "picture.uai").read_bytes())
    assert list(load_suites(str(tmp_path), None)) == ["SEG"]
    with pytest.raises(InputError, match=r"no models, expected GRID/\*\.uai"):
        load_suites(str(tmp_path), ["SEG", "GRID"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,count\n", r"multiplicity\.csv:1: expected the header model,instances"),
        ("model,instances\np.uai,0\n", r"csv:2: 'p\.uai,0', expected a model and a whole number"),
        ("model,instances\np.uai\n", r"csv:2: "),
        ("model,instances\nq.uai,3\n", r"no row for the model p\.uai"),
    ],
)
def test_bad_weights(data: Path, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "SEG").mkdir()
    (tmp_path / "SEG" / "p.uai").write_bytes((data / "SEG" / "picture.uai").read_bytes())
    (tmp_path / "SEG" / "multiplicity.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        load_suites(str(tmp_path), None)


def test_the_published_table_is_whole() -> None:
    assert len(PUBLISHED) == 7 * 3 * 3
    assert set(PAPER_RULES) <= set(RULES)
    assert PUBLISHED["momentum", "GRID", 1.0] == -19184.37
    assert PUBLISHED["adam", "SEG", 0.05] == 72.37
    assert min(PUBLISHED[r, "DBN", BUDGETS[1]] for r in PAPER_RULES) == -2362.14


def test_instances_are_recognized_by_their_digest(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suites = load_suites(str(data), None)
    assert not any(is_the_papers(suite, found) for suite, found in suites.items())
    digests = {suite: suite_digest(found) for suite, found in suites.items()}
    monkeypatch.setattr("proxfield.bench.suites.DIGESTS", digests)
    for suite, found in suites.items():
        assert is_the_papers(suite, found)
        assert not is_the_papers(suite, found[:-1])


@pytest.mark.skipif(
    not PAPER.is_dir(),
    reason=f"the digests are those of the paper's instances, and there are none at {PAPER}",
)
def test_the_papers_own_instances_are_recognized() -> None:
    suites = load_suites(str(PAPER), None)
    for suite, instances in suites.items():
        assert is_the_papers(suite, instances), suite_digest(instances)
        assert not is_the_papers(suite, instances[:-1])
    ours = load_suites(None, ["GRID"])["GRID"]
    assert [i.name for i in ours] == [i.name for i in suites["GRID"]]
