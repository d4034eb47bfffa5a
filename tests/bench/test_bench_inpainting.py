"""``bench inpainting``: models, tables, resuming, the report, bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse

import proxfield as pf
from proxfield.bench import inpainting as inpainting_models
from proxfield.bench.inpainting import (
    GIVEN,
    Inpainting,
    best_known,
    given_instances,
    make_inpainting_tables,
    read_model,
    score_hole,
)
from proxfield.errors import InputError
from proxfield.learn import characters
from proxfield.learn.characters import Characters, CharacterSets
from proxfield.learn.decision_tree_field import DecisionTreeField
from standins import DATA

QUICK = ("--budgets", "0.01,0.02", "--rules", "fixed,adam", "--threads", "1")
MODELS = DATA / "dtf"


@pytest.fixture
def bench(invoke: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: invoke("bench", *args)


def draw(n: int) -> Characters:
    rng = np.random.default_rng(n)
    images = (np.arange(12) + rng.integers(0, 6, (n, 12, 1))) // 3 % 2
    masks = np.zeros((n, 12, 12), dtype=bool)
    masks[:, 4:8, 4:8] = True
    return Characters(images, masks, "x" * n, ("a",) * n)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Small images instead of characters, and small models; lists what was trained."""
    trained: list[str] = []

    def fit(self: DecisionTreeField, *args: Any, **options: Any) -> Any:
        trained.append(self.method)
        return original(self, *args, **options)

    def untrained(method: str) -> DecisionTreeField:
        return DecisionTreeField(
            features=24, reach=4, unary_leaves=4, pair_leaves=2, max_iters=3, method=method
        )

    def make(train: int, test: int, **_: Any) -> CharacterSets:
        return CharacterSets(draw(train), draw(test), None)

    original = DecisionTreeField.fit
    monkeypatch.setattr(DecisionTreeField, "fit", fit)
    monkeypatch.setattr(inpainting_models, "untrained", untrained)
    monkeypatch.setattr(characters, "make_characters", make)
    return trained


def write_mat(folder: Path, name: str = "TST_test_0001_2_3", seed: int = 0) -> Any:
    """A random model in MATLAB form, and the same as plain arrays."""
    rng = np.random.default_rng(seed)
    scopes = np.array([[1, 0], [0, 2], [2, 3], [5, 4]])
    unary, tables = rng.normal(size=(6, 2)), rng.normal(size=(4, 2, 2))
    order = np.lexsort((scopes[:, 0], scopes[:, 1]))
    edges = scipy.sparse.csc_matrix((np.ones(4), scopes.T), shape=(6, 6))
    content = {"D": unary, "E": edges, "W": tables[order]}
    scipy.io.savemat(folder / f"{name}.mat", content)
    return unary, scopes, tables


def test_models_are_read_as_they_are(tmp_path: Path) -> None:
    unary, scopes, tables = write_mat(tmp_path)
    field = read_model(tmp_path / "TST_test_0001_2_3.mat")
    rng = np.random.default_rng(3)
    for _ in range(5):
        x = rng.integers(0, 2, 6)
        energy = unary[np.arange(6), x].sum()
        energy += sum(t[x[a], x[b]] for (a, b), t in zip(scopes, tables, strict=True))
        assert field.energy(x) == pytest.approx(energy)
    assert best_known(tmp_path / "TST_test_0001_2_3.mat") is None


@pytest.mark.parametrize("content", [b"", b"text", b"MATLAB 5.0 MAT-file" + b"\0" * 200])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "TST_a.mat"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"TST_a\.mat"):
        read_model(path)
    scipy.io.savemat(path, {"D": np.zeros((3, 2))})
    with pytest.raises(InputError, match="expected D, E and W"):
        read_model(path)
    with pytest.raises(InputError, match=r"expected TST_\*\.mat"):
        given_instances(str(tmp_path / "none"))


def test_best_known_energies_of_another_form_are_refused(tmp_path: Path) -> None:
    write_mat(tmp_path)
    for name in ("DTF-names.mat", "DTF-OPT.mat"):
        scipy.io.savemat(tmp_path / name, {"other": np.zeros(3)})
    with pytest.raises(InputError, match=r"DTF-names\.mat: no best-known energies"):
        best_known(tmp_path / "TST_test_0001_2_3.mat")


@pytest.mark.skipif(not MODELS.is_dir(), reason="the published model isn't here")
def test_the_published_model() -> None:
    (instance,) = given_instances(str(MODELS))
    model = instance.make()
    assert model.field.n_vars == 5120
    assert model.best_known == pytest.approx(-25953.88, abs=0.01)
    f = {r: pf.infer(model.field, r, max_iters=5000).free_energy for r in ("fixed", "adam")}
    gap = {r: value - model.best_known for r, value in f.items()}
    assert gap["adam"] < 5 < 30 < gap["fixed"] < 40


def test_accuracy_counts_hidden_pixels() -> None:
    field = pf.Field(4, 2).add(pf.Unary([[0, 9], [9, 0], [0, 1], [9, 0.0]]))
    result = pf.infer(field, "fixed")
    model = Inpainting(field, np.array([1, 2, 3]), np.array([1, 1, 1]))
    found = score_hole(model, result)
    assert found["correct"] == 2
    q = np.asarray(result.marginals)
    assert found["log_truth"] == pytest.approx(np.log(q[[1, 2, 3], 1]).sum())
    assert score_hole(Inpainting(field, np.array([1])), result)["correct"] is None


def record(rule: str, digest: str, f: float, **more: Any) -> dict[str, Any]:
    about = {"kind": "inpainting", "suite": "chains", "budget": 0.3, "iterations": 5, "pixels": 10}
    known = {"correct": 7, "log_truth": -5.0, "best_known": None}
    return {**about, **known, "rule": rule, "digest": digest, "free_energy": f, **more}


def test_tables_are_means_over_fields() -> None:
    runs = [record("fixed", "a", -4.0), record("fixed", "b", -6.0, correct=9)]
    runs += [record("adam", "a", -6.0), record("adam", "b", -7.0)]
    (table,) = make_inpainting_tables(runs)
    fixed, adam = table.cells["fixed"][0], table.cells["adam"][0]
    assert (fixed["free_energy"], fixed["accuracy"], fixed["best"]) == (-5.0, 80.0, False)
    assert (adam["free_energy"], adam["accuracy"], adam["best"]) == (-6.5, 70.0, True)
    assert adam["log_truth"] == -0.5
    title, header, rows, left = table.block()
    assert "trained by chains" in title and "2 fields" in title
    assert left == [0, 3]
    assert header[:4] == ["rule", "0.3 s", "%", ""]
    assert rows[1][:4] == ["adam", "-6.50", "70.00", "*"]
    assert rows[1][-2:] == ["-49544.58", "67.12"]
    assert adam["standard_error"] == pytest.approx(0.5)  # of −6 and −7


def test_a_missing_run_leaves_its_cell_empty() -> None:
    runs = [record("fixed", "a", -4.0), record("fixed", "b", -6.0), record("adam", "a", -6.0)]
    (table,) = make_inpainting_tables(runs)
    assert table.cells["adam"][0]["free_energy"] is None
    assert table.cells["fixed"][0]["best"]


def test_given_models_are_shown_above_the_best_known_energy() -> None:
    more = {"suite": GIVEN, "correct": None, "log_truth": None, "best_known": -10.0}
    (table,) = make_inpainting_tables([record("adam", "a", -4.0, **more)])
    assert table.cells["adam"][0]["above_best_known"]
    assert table.cells["adam"][0]["free_energy"] == 6.0
    published = table.published("adam")
    assert published[-1][0] == pytest.approx(6.10)


@pytest.mark.slow
def test_the_command(bench: Callable[..., Any], small: list[str], tmp_path: Path) -> None:
    (tmp_path / "mats").mkdir()
    write_mat(tmp_path / "mats")
    args = ("inpainting", "--count", "2", "--train", "4", *QUICK, "--data", str(tmp_path / "mats"))
    result = bench(*args, "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert {c["suite"] for c in data["cells"]} == {"chains", "marginals", GIVEN}
    assert all(c["free_energy"] is not None for c in data["cells"])
    assert small == ["chains", "marginals"]
    count = len(Path("bench-inpainting.jsonl").read_text().splitlines())
    again = bench(*args, "--report", "report.html")
    assert again.exit_code == 0, again.stderr
    assert "trained by chains: mean F and accuracy in the hole over 2 fields" in again.stdout
    assert small == ["chains", "marginals"]  # models and runs are kept
    assert len(Path("bench-inpainting.jsonl").read_text().splitlines()) == count
    page = Path("report.html").read_text(encoding="utf-8")
    text = " ".join(page.split())
    assert "a lower F isn’t a better picture" in text and "Trained by marginals" in text
    assert Path("report-figures/inpainting-chains.png").exists()


@pytest.mark.slow
def test_the_paper_report_takes_the_results(
    bench: Callable[..., Any], small: list[str], data: Path
) -> None:
    assert bench("inpainting", "--count", "1", "--train", "4", *QUICK).exit_code == 0
    result = bench(
        "paper", "--data", str(data), "--suite", "SEG", *QUICK,
        "--inpainting", "bench-inpainting.jsonl", "--report", "all.html",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    page = Path("all.html").read_text(encoding="utf-8")
    assert "The experiments side by side" in page and "Characters completed" in page
    assert Path("all-figures/experiments.png").exists()
    other = ("-o", "other.jsonl", "--inpainting", "bench-paper.jsonl")
    refused = bench("paper", "--data", str(data), *QUICK, *other)
    assert "no results of bench inpainting" in refused.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--count", "0"), "--count 0 without --data"),
        (("--data", "none"), "expected TST_*.mat"),
        (("--rules", "magic"), "unknown rule"),
        (("--budgets", "x"), "--budgets"),
    ],
)
def test_bad_calls(
    bench: Callable[..., Any], small: list[str], options: tuple[str, ...], message: str
) -> None:
    result = bench("inpainting", *options)
    assert result.exit_code == 2 and message in result.stderr
    assert not small


def test_no_fonts(bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROXFIELD_FONTS", "nowhere")
    result = bench("inpainting", "--count", "1")
    assert result.exit_code == 2 and "apt install" in result.stderr


def test_a_model_that_is_kept_is_used(small: list[str], tmp_path: Path) -> None:
    training = inpainting_models.Training("small", 4, 0)
    path = training.path(str(tmp_path), "marginals")
    sets = CharacterSets(draw(4), draw(1), None)
    inpainting_models.load_or_fit(path, "marginals", sets, lambda _: None)
    model = inpainting_models.load_or_fit(path, "marginals", sets, lambda _: None)
    assert small == ["marginals"]
    model.set_params(l2=7.0).save(path)
    told: list[str] = []
    inpainting_models.load_or_fit(path, "marginals", sets, told.append)
    assert small == ["marginals"] * 2 and "other settings" in told[0]


def test_a_model_whose_training_is_interrupted_is_not_kept(
    small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "marginals.npz"
    monkeypatch.setattr("proxfield.learn.optimize.FitWatch.tell", interrupt)
    with pytest.raises(KeyboardInterrupt):
        inpainting_models.load_or_fit(
            path, "marginals", CharacterSets(draw(4), draw(1), None), lambda _: None
        )
    assert not path.exists()


def test_all_experiments_share_a_folder(
    bench: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from proxfield.cli.commands.bench import inpainting, paper, people, segmentation

    seen: list[dict[str, Any]] = []
    for command in (people, inpainting, segmentation, paper):
        monkeypatch.setattr(command, "callback", lambda **options: seen.append(options))
    for option in ("--data", "--inpainting-data"):
        result = bench("all", "out", option, "d")
        assert result.exit_code == 2 and "d: no such folder" in result.stderr
    assert not seen and not Path("out").exists()
    Path("d").mkdir()
    result = bench("all", "out", "--threads", "1", "--count", "3", "--frames", "4", "--data", "d")
    assert result.exit_code == 0, result.stderr
    first, second, third, last = seen
    assert (third["count"], third["results"]) == (6, "out/segmentation.jsonl")
    assert (last["segmentation"], last["exact"]) == ("out/segmentation.jsonl", "generated")
    assert (first["frames"], first["results"], first["threads"]) == (4, "out/people.jsonl", 1)
    assert (second["count"], second["models"]) == (3, "out/models")
    assert second["budgets"] == [0.05, 0.3, 3.0]
    assert (last["data"], last["report"]) == ("d", "out/report.html")
    assert (last["people"], last["inpainting"]) == ("out/people.jsonl", "out/inpainting.jsonl")
    assert last["tol"] == 1e-6 and last["rules"] is None
    seen.clear()
    assert bench("all", "out", "--count", "0", "--scenes", "0").exit_code == 0
    assert len(seen) == 2 and seen[-1]["inpainting"] is None
    assert seen[-1]["segmentation"] is None


def test_charts_of_the_experiments() -> None:
    from proxfield.bench.charts import Curves, experiment_charts
    from proxfield.bench.report import ReportData
    from proxfield.bench.table import Experiment, Table
    from proxfield.viz.charts import chart_figure

    rows: dict[str, Any] = {"fixed": ([0, 1, 2], [0.0, 0.1, 0.2], [None, 5.0, 1.0])}
    curves = [Curves("GRID", "g", 4, rows), Curves("SEG", "s", 4, rows)]
    inpainting = Experiment([], [Curves("chains", "c", 4, rows)])

    def experiment(*energies: float) -> Experiment:
        falls = {"adam": {"free_energy": np.array(energies)}}
        about = ("s", ("adam",), (), {}, (), (), "", {"model": "exact"}, 1)
        return Experiment([Table("name", "title", *about, curves=falls)])

    people, scenes = experiment(9.0, 4.0, 2.0), experiment(8.0, 7.0, 4.0)
    data = ReportData([], "bench", 1e-4, curves=curves)
    assert not experiment_charts(data)  # one alone
    data.people = people
    assert [c.x_label for c in experiment_charts(data)] == ["gradient passes", "seconds"]
    data.inpainting, data.segmentation = inpainting, scenes
    found = experiment_charts(data)
    assert [str(c.title).split(" (")[0] for c in found] == [
        *("character inpainting", "people detection", "segmentation", "semantic segmentation"),
    ]
    heights = [c.lines[0].y.tolist() for c in found]
    assert heights == [[4.0, 0.0], [2.0, 0.0], [4.0, 0.0], [3.0, 0.0]]
    assert found[2].lines[0].x.tolist() == [0.1, 0.2] and found[1].lines[0].x.tolist() == [1, 2]
    assert len(chart_figure(found, share=False).axes) == 4
