"""``make characters``, ``fit`` and ``inpaint``: from images to a model to completed images."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxfield.io.images import read_image, read_labels, write_labels
from proxfield.learn import characters
from proxfield.learn.decision_tree_field import DecisionTreeField

pytest.importorskip("PIL")
SMALL = ("--unary-leaves", 4, "--pair-leaves", 2, "--features", 24, "--reach", 4, "--max-iters", 3)
PALETTE = [250, 250, 250, 10, 20, 30]


@pytest.fixture
def work(invoke: Callable[..., Any]) -> Callable[..., Any]:
    """The command, in a folder with striped images and a mask."""
    rng = np.random.default_rng(0)
    columns = np.arange(12) + np.zeros((10, 1), dtype=int)
    for folder, count in (("train", 6), ("test", 2)):
        Path(folder).mkdir()
        for k in range(count):
            image = (columns + rng.integers(0, 6)) // 3 % 2
            write_labels(f"{folder}/{k}.png", image, 2, palette=PALETTE)
    mask = np.zeros((10, 12), dtype=int)
    mask[4:7, 4:8] = 255
    write_labels("mask.png", mask)
    return invoke


def fit(work: Callable[..., Any], *options: Any) -> Any:
    return work("fit", "train", "--mask", "mask.png", "-o", "model.npz", *SMALL, *options)


def inpaint(work: Callable[..., Any], *args: Any) -> Any:
    return work("inpaint", "--mask", "mask.png", "--model", "model.npz", *args)


def test_images_are_completed(work: Callable[..., Any]) -> None:
    made = fit(work, "--test", "test", "--json")
    assert made.exit_code == 0, made.stderr
    data = json.loads(made.stdout)
    assert (data["images"], data["n_labels"], data["output"]) == (6, 2, "model.npz")
    assert 0 <= data["test_accuracy"] <= 1
    result = inpaint(work, "test", "-o", "out", "--sheet", "sheets", "--truth", "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert (data["images"], data["hidden"]) == (2, 24)
    assert [Path(r["output"]) for r in data["files"]] == [Path("out/0.png"), Path("out/1.png")]
    model = DecisionTreeField.load("model.npz")
    mask = read_labels("mask.png")[0] > 0
    for k in range(2):
        truth, palette = read_labels(f"test/{k}.png")
        found, again = read_labels(f"out/{k}.png")
        np.testing.assert_array_equal(found, model.predict([truth], [mask])[0])
        assert again is not None and palette is not None and again[:6] == palette[:6] == PALETTE
        assert data["files"][k]["correct"] == (found == truth)[mask].sum()
        sheet = read_image(f"sheets/{k}.png")
        assert sheet.ndim == 3 and sheet.shape[1] > 5 * sheet.shape[0] / 2


def test_one_image_to_one_file(work: Callable[..., Any]) -> None:
    assert fit(work).exit_code == 0
    result = inpaint(work, "test/0.png", "-o", "one.png", "--sheet", "sheet.png", "--rule", "fixed")
    assert result.exit_code == 0, result.stderr
    assert "completed  1 images, 12 pixels" in result.stdout
    assert Path("one.png").exists() and Path("sheet.png").exists()


def test_what_is_hidden_does_not_matter(work: Callable[..., Any]) -> None:
    assert fit(work).exit_code == 0
    image, mask = read_labels("test/0.png")[0], read_labels("mask.png")[0] > 0
    write_labels("gray.png", np.where(mask, 255, image))
    assert inpaint(work, "test/0.png", "-o", "a.png").exit_code == 0
    assert inpaint(work, "gray.png", "-o", "b.png").exit_code == 0
    np.testing.assert_array_equal(read_labels("a.png")[0], read_labels("b.png")[0])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("test/0.png", "-o", "test/0.png"), "would overwrite"),
        (("test/0.png", "-o", "model.npz"), "would overwrite the input model.npz"),
        (("test/0.png", "-o", "a.png", "--sheet", "no/s.png"), "--sheet: can't write"),
        (("test/0.png", "-o", "a.png", "--sheet", "s.npy"), "--sheet 's.npy', expected"),
        (("test/0.png", "-o", "a.png", "--truth", "--mask", "none.npy"), "no pixel is hidden"),
        (("nothing.png", "-o", "a.png"), "nothing.png: no such file"),
        (("test", "-o", "a.png"), "is no folder"),
        (("test/0.png", "-o", "a.png", "--set", "step=1"), "--set without --rule"),
        (("test/0.png", "-o", "a.png", "--rule", "magic"), "unknown rule"),
        (("test/0.png", "-o", "no/a.png"), "folder doesn't exist"),
        (("wide.png", "-o", "a.png"), "expected equal sizes"),
        (("large.png", "-o", "a.png"), "large.png: has the label 9, expected 0 to 1"),
    ],
)
def test_bad_calls_write_nothing(
    work: Callable[..., Any], args: tuple[Any, ...], message: str
) -> None:
    assert fit(work).exit_code == 0
    write_labels("wide.png", np.zeros((10, 20), dtype=int))
    write_labels("large.png", np.full((10, 12), 9))
    np.save("none.npy", np.zeros((10, 12), dtype=int))
    before, model = sorted(Path().rglob("*")), Path("model.npz").read_bytes()
    result = inpaint(work, *args)
    assert result.exit_code == 2
    assert message in result.stderr and "Traceback" not in result.stderr
    assert sorted(Path().rglob("*")) == before and Path("model.npz").read_bytes() == model


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.zeros((10, 20), dtype=int), "mask.png: is (10, 12), the image 9.png (10, 20)"),
        (np.full((10, 12), 9), "9.png: has the label 9, expected 0 to 1"),
    ],
)
def test_a_bad_image_among_good_ones_writes_nothing(
    work: Callable[..., Any], labels: Any, message: str
) -> None:
    assert fit(work).exit_code == 0
    write_labels("test/9.png", labels)
    before = sorted(Path().rglob("*"))
    result = inpaint(work, "test", "-o", "out", "--sheet", "sheets")
    assert result.exit_code == 2
    assert message in result.stderr and result.stderr.count("\n") == 1
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 nothing", b"text"])
def test_bad_models_are_refused(work: Callable[..., Any], content: bytes) -> None:
    Path("model.npz").write_bytes(content)
    result = inpaint(work, "test/0.png", "-o", "a.png")
    assert result.exit_code == 2 and "model.npz" in result.stderr
    assert not Path("a.png").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--mask", "wide.png"), "expected equal sizes"),
        (("--mask", "none.png"), "no such file"),
        (("--mask", "empty.png"), "no pixel is hidden"),
        (("-o", "train/0.png"), "name the same file"),
        (("--features", "5000"), "expected at most"),
    ],
)
def test_bad_fits_write_nothing(
    work: Callable[..., Any], options: tuple[str, ...], message: str
) -> None:
    write_labels("wide.png", np.zeros((10, 20), dtype=int))
    write_labels("empty.png", np.zeros((10, 12), dtype=int))
    result = fit(work, *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not Path("model.npz").exists()


def test_files_of_bad_labels_are_named(work: Callable[..., Any]) -> None:
    write_labels("train/9.png", np.full((10, 12), 9))
    result = fit(work, "--n-labels", 2)
    assert result.exit_code == 2
    assert "train/9.png: has the label 9, expected 0 to 1" in result.stderr.replace("\\", "/")


def test_test_images_are_checked_before_the_fit(
    work: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DecisionTreeField, "fit", lambda *_, **__: pytest.fail("fitted"))
    write_labels("test/9.png", np.full((10, 12), 9))
    result = fit(work, "--test", "test")
    assert result.exit_code == 2
    assert "9.png: has the label 9, expected 0 to 1" in result.stderr
    assert not Path("model.npz").exists()


def test_ctrl_c_keeps_what_is_done(
    work: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fit(work).exit_code == 0
    calls: list[int] = []

    def interrupt(self: DecisionTreeField, *args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(self, *args, **options)

    original = DecisionTreeField.infer
    monkeypatch.setattr(DecisionTreeField, "infer", interrupt)
    result = inpaint(work, "test", "-o", "out")
    assert result.exit_code == 130
    assert "interrupted: 1 of 2 images are completed" in result.stderr
    assert [p.name for p in Path("out").iterdir()] == ["0.png"]


def test_ctrl_c_writes_the_best_model_so_far(
    work: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxfield.cli.signals.interrupted", lambda: True)
    result = fit(work, "--method", "chains", "--test", "test")
    assert result.exit_code == 130
    assert "this is the best model so far" in result.stderr and "test" not in result.stdout
    assert DecisionTreeField.load("model.npz").n_labels_ == 2


def test_ctrl_c_while_testing_keeps_the_model(
    work: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(DecisionTreeField, "evaluate", interrupt)
    result = fit(work, "--test", "test", "--json")
    assert result.exit_code == 130
    assert "interrupted: the model is complete, but not tested" in result.stderr
    assert not any(key.startswith("test") for key in json.loads(result.stdout))
    assert DecisionTreeField.load("model.npz").n_labels_ == 2


@pytest.mark.skipif(not characters.installed_fonts(), reason="needs fonts with Chinese characters")
def test_characters(invoke: Callable[..., Any]) -> None:
    result = invoke("make", "characters", "out", "--train", 3, "--test", 2, "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert (data["train"], data["test"], data["output"]) == (3, 2, "out")
    assert len(list(Path("out/train").iterdir())) == 3
    assert "out: can't write, isn't empty" in invoke("make", "characters", "out").stderr


def test_no_fonts(invoke: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROXFIELD_FONTS", "nowhere")
    result = invoke("make", "characters", "out")
    assert result.exit_code == 2
    assert "apt install" in result.stderr and result.stderr.count("\n") == 1
    assert not Path("out").exists()
