"""``proxfield tune`` and what ``refine`` makes of its result."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import proxfield as pf
from proxfield.io.images import read_labels

SIZE = (14, 18)
FOLDERS = ("images", "--probs", "probs", "--truth", "truth", "-o", "crf.toml")
QUICK = ("--trials", "6", "--folds", "2")


def scene(seed: int) -> tuple[Any, Any, Any]:
    """Two halves: an image, noisy probabilities, and the truth with unlabelled pixels."""
    rng = np.random.default_rng(seed)
    truth = np.broadcast_to(np.arange(SIZE[1]) >= 7 + seed % 3, SIZE).astype(np.uint8)
    image = 60 + 120 * truth[..., None] + rng.normal(0, 5, (*SIZE, 3))
    p = np.exp(np.eye(2)[truth] + rng.normal(0, 1.2, (*SIZE, 2)))
    truth = truth.copy()
    truth[0, :4] = 255
    return image.clip(0, 255).astype(np.uint8), p / p.sum(axis=-1, keepdims=True), truth


@pytest.fixture
def work(invoke: Callable[..., Any]) -> Callable[..., Any]:
    """The command line in a folder with four images, probabilities and true labels."""
    for folder in ("images", "probs", "truth"):
        Path(folder).mkdir()
    for seed, name in enumerate("abcd"):
        image, p, truth = scene(seed)
        Image.fromarray(image).save(f"images/{name}.png")
        np.save(f"probs/{name}.npy", p.astype(np.float32))
        Image.fromarray(truth).save(f"truth/{name}.png")
    return invoke


def test_tune_and_refine(work: Callable[..., Any]) -> None:
    result = work("tune", *FOLDERS, *QUICK, "--report", "tune.html")
    assert result.exit_code == 0, result.stderr
    assert "mean IoU" in result.stdout and "no CRF" in result.stdout
    assert "crf.toml" in result.stdout and "tune.html" in result.stdout
    assert "best so far" in result.stderr and "left" in result.stderr
    text = Path("crf.toml").read_text(encoding="utf-8")
    assert text.startswith("# Settings of a dense CRF, chosen by proxfield tune (proxfield ")
    config = pf.read_config("crf.toml")
    page = Path("tune.html").read_text(encoding="utf-8")
    assert "<svg" in page and page.count("<tr>") > 8 and "http-equiv" not in page
    # refining with the file is refining with its settings
    refined = work("refine", "images", "--probs", "probs", "-o", "out", "--config", "crf.toml")
    assert refined.exit_code == 0, refined.stderr
    for seed, name in enumerate("abcd"):
        image, p, _ = scene(seed)
        expected = pf.DenseCRF(image, p.astype(np.float32), preset=config).infer()
        assert expected.iterations <= config.max_iters
        np.testing.assert_array_equal(read_labels(f"out/{name}.png")[0], expected.labels)


def test_it_continues_where_it_was(work: Callable[..., Any], monkeypatch: Any) -> None:
    first = work("tune", *FOLDERS, *QUICK, "--json")
    assert first.exit_code == 0, first.stderr
    found = json.loads(first.stdout)
    assert found["improved"] and found["held_out"] > found["no_crf"]
    assert len(found["table"]) <= 6 and found["metric"] == "miou"
    lines = Path("crf.toml.trials.jsonl").read_text().splitlines()
    text = Path("crf.toml").read_text()

    def refuse(task: Any) -> Any:
        raise AssertionError("repeated")

    with monkeypatch.context() as patch:
        patch.setattr("proxfield.images.tune.run_task", refuse)
        again = work("tune", *FOLDERS, *QUICK, "--json")
        assert again.exit_code == 0, again.stderr
        assert json.loads(again.stdout)["table"] == found["table"]
        assert Path("crf.toml").read_text() == text
        assert work("tune", *FOLDERS, *QUICK, "--force").exit_code == 1  # repeats: refused above
    # killed in the middle of a line
    Path("crf.toml.trials.jsonl").write_text("\n".join(lines[:5]) + "\n" + lines[5][:30])
    again = work("tune", *FOLDERS, *QUICK, "--json", "--jobs", "2")
    assert again.exit_code == 0, again.stderr
    assert json.loads(again.stdout)["table"] == found["table"]
    assert sorted(Path("crf.toml.trials.jsonl").read_text().splitlines()) == sorted(lines)


def test_ctrl_c_keeps_the_trials(work: Callable[..., Any], monkeypatch: Any) -> None:
    from proxfield.images.trials import run_task

    done = []

    def some(task: Any) -> Any:
        if len(done) == 6:
            raise KeyboardInterrupt
        done.append(task)
        return run_task(task)

    monkeypatch.setattr("proxfield.images.tune.run_task", some)
    result = work("tune", *FOLDERS, *QUICK)
    assert result.exit_code == 130
    assert "trials are kept in crf.toml.trials.jsonl" in result.stderr
    assert not Path("crf.toml").exists()
    assert Path("crf.toml.trials.jsonl").read_text().count("\n") >= 6


def test_options_override_a_configuration(work: Callable[..., Any]) -> None:
    pf.write_config("crf.toml", {"bilateral_weight": 2.0, "bilateral_sigma": 30.0, "max_iters": 3})
    image, p, _ = scene(0)

    def refine(*options: Any) -> Any:
        args = ("refine", "images/a.png", "--probs", "probs/a.npy", "-o", "a.npz", "--force")
        result = work(*args, "--output-kind", "probabilities", *options)
        assert result.exit_code == 0, result.stderr
        return np.load("a.npz")["probabilities"]

    def expected(n: int, **options: Any) -> Any:
        crf = pf.DenseCRF(image, p.astype(np.float32), **options)
        return crf.infer(max_iters=n).probabilities

    config: Any = {"bilateral_weight": 2.0, "bilateral_sigma": 30.0}
    for options, there in (
        (("--config", "crf.toml"), expected(3, **config)),
        (
            ("--config", "crf.toml", "--bilateral-weight", "1", "--max-iters", "2"),
            expected(2, **{**config, "bilateral_weight": 1.0}),
        ),
        (("--preset", "deeplab"), expected(10, preset="deeplab")),
        (
            ("--preset", "wsss", "--spatial-weight", "0"),
            expected(10, preset="wsss", spatial_weight=0.0),
        ),
        ((), expected(5, preset="gentle")),
    ):
        np.testing.assert_allclose(refine(*options), there, atol=1e-6, err_msg=str(options))


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("tune", *FOLDERS[:-1], "no/crf.toml"), "folder doesn't exist"),
        (("tune", *FOLDERS, "--report", "tune.txt"), "expected a name ending in .html, .png"),
        (("tune", *FOLDERS, "--report", "crf.toml"), "expected a name ending in"),
        (("tune", *FOLDERS, "--ignore", "7"), "a.png: pixel (0, 0) has the true label 255"),
        (("tune", "images/a.png", *FOLDERS[1:]), "1 images, expected 2 or more"),
        (
            ("tune", "images", "--probs", "images", *FOLDERS[3:]),
            "is no gray picture, expected a mask",
        ),
        (("tune", *FOLDERS[:-1], "images/a.png"), "name the same file"),
        (
            ("refine", "images", "--probs", "probs", "-o", "out", "--config", "none.toml"),
            "none.toml",
        ),
        (
            (
                *("refine", "images", "--probs", "probs", "-o", "out"),
                *("--config", "x.toml", "--preset", "wsss"),
            ),
            "--preset and --config contradict each other",
        ),
    ],
)
def test_refusals(work: Callable[..., Any], command: Any, message: str) -> None:
    result = work(*command)
    assert result.exit_code == 2, (result.stdout, result.stderr, result.exception)
    assert message in result.stderr
    assert result.stderr.startswith("proxfield: ") and result.stderr.count("\n") == 1
    assert result.stdout == "" and not Path("crf.toml").exists()
