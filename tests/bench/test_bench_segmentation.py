"""``bench segmentation``: scenes, tables, the report, bad input; wins and exact models."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxfield.bench import segmentation as scenes
from proxfield.bench.paper import count_wins
from proxfield.bench.segmentation import make_segmentation_tables, mean_iou
from proxfield.bench.suites import generated_exact

SMALL = ("--count", "2", "--rules", "fixed,adam", "--iterations", "1,3", "--threads", "1")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenes of few pixels."""
    monkeypatch.setattr(scenes, "SHAPE", (16, 24))


def test_scenes_are_seeded_and_of_one_kind() -> None:
    first, again, other = (scenes.make_scene(seed) for seed in (0, 0, 1))
    assert np.array_equal(first.image, again.image) and not np.array_equal(first.image, other.image)
    assert set(np.unique(first.truth)) == {0, 1, 4} and set(np.unique(other.truth)) == {0, 2, 5}
    pairs = scenes.counts().pairs
    assert pairs[1, 4] > 0 and pairs[1, 2] == pairs[4, 5] == 0
    field = scenes.make_field(first, cooccurrence=True)
    assert field.n_vars == first.truth.size + len(scenes.CLASSES)


def test_the_command(invoke: Callable[..., Any], small: None, tmp_path: Path) -> None:
    out = invoke("bench", "segmentation", *SMALL, "--json")
    assert out.exit_code == 0, out.stderr
    cells = json.loads(out.stdout)["cells"]
    assert len(cells) == 2 * 2 * 2 and {c["cooccurrence"] for c in cells} == {False, True}
    file = tmp_path / "bench-segmentation.jsonl"
    count = len(file.read_text().splitlines())
    again = invoke("bench", "segmentation", *SMALL, "--report", "s.html")
    assert again.exit_code == 0, again.stderr
    assert again.stdout.startswith("dense CRF: mean F and mean IoU over 2 scenes")
    assert len(file.read_text().splitlines()) == count  # nothing runs twice
    page = (tmp_path / "s.html").read_text(encoding="utf-8")
    assert "Scenes segmented" in page and 'id="segmentation-1"' in page
    for cell in cells:
        assert f"{cell['free_energy']:.2f}".replace("-", "−") in page
    data = [json.loads(line) for line in file.read_text().splitlines()[1:]]
    traced = [r for r in data if "trace_free_energy" in r]
    assert {r["max_passes"] for r in traced} == {3}
    for r in traced:  # the curve ends at the value of the table
        assert r["trace_free_energy"][-1] == pytest.approx(r["free_energy"], abs=1e-4)


def test_tables_are_means_over_scenes() -> None:
    n = len(scenes.CLASSES)
    right = np.eye(n, dtype=int).ravel().tolist()
    common = {"kind": "segmentation", "setting": {"cooccurrence": True}, "status": "converged",
              "max_passes": 5, "confusion": right, "classifier": [1] * n * n}  # fmt: skip
    runs: list[dict[str, Any]] = [
        {**common, "rule": "fixed", "digest": "a", "free_energy": 2.0},
        {**common, "rule": "fixed", "digest": "b", "free_energy": 4.0, "status": "budget"},
        {**common, "rule": "adam", "digest": "a", "free_energy": 1.0},
    ]
    (table,) = make_segmentation_tables(runs)
    cell = table.cells["fixed"][0]
    assert (cell["free_energy"], cell["standard_error"]) == (3.0, 1.0)
    assert (cell["converged"], cell["best"]) == (1, True)
    assert cell["mean_iou"] == 100.0 and table.cells["adam"][0]["free_energy"] is None
    assert cell["classifier_mean_iou"] == pytest.approx(100 / (2 * n - 1))
    assert mean_iou([np.zeros(n * n, dtype=int) + np.array(right)]) == 100.0


def test_bad_input_is_one_line(invoke: Callable[..., Any]) -> None:
    out = invoke("bench", "segmentation", "--rules", "sweep")
    assert out.exit_code == 2 and "unknown rule 'sweep', expected some of: full" in out.stderr
    out = invoke("bench", "segmentation", "--iterations", "0")
    assert out.exit_code == 2 and "expected whole numbers, 1 or more" in out.stderr


def test_wins_ties_and_losses_add_up() -> None:
    rows = [
        {"a": 1.0, "b": 2.0, "c": 1.001},
        {"a": 5.0, "b": 2.0, "c": math.inf},
        {"a": math.inf, "b": 2.0, "c": math.inf},
    ]
    wins = count_wins(("a", "b", "c"), 1.0, rows)
    assert (wins.lower["a", "b"], wins.lower["b", "a"], wins.ties["a", "b"]) == (1, 2, 0)
    assert (wins.lower["a", "c"], wins.lower["c", "a"], wins.ties["a", "c"]) == (1, 0, 2)
    for a in "abc":
        for b in "abc":
            assert wins.lower[a, b] + wins.lower[b, a] + wins.ties[a, b] == wins.models == 3


def test_generated_models_have_exact_answers() -> None:
    models = generated_exact()
    families = {m.suite for m in models}
    assert len(families) == 5 and len({(m.suite, m.name) for m in models}) == len(models)
    model = next(m for m in models if m.suite == "networks 9 + 6")
    assert model.reference is not None
    known = model.reference()
    assert known.marginals is not None and known.marginals.shape == (30,)
    assert known.marginals.reshape(15, 2).sum(axis=1) == pytest.approx(np.ones(15))
