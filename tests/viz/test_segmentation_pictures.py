"""Pictures of what a dense CRF did: the image, labels before and after, and what changed."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import proxfield as pf
from proxfield.errors import MissingDependencyError
from proxfield.io.images import label_colors

pytest.importorskip("matplotlib")


def scene(dtype: Any = np.uint8) -> tuple[Any, Any]:
    """An image of two halves, and probabilities with mistakes."""
    rng = np.random.default_rng(0)
    right = np.broadcast_to(np.arange(40) >= 20, (30, 40))
    image = np.where(right[..., None], [200, 80, 60], [40, 90, 160])
    p = np.where(right, 0.75, 0.25)
    wrong = rng.random(p.shape) < 0.05
    p = np.where(wrong, 1 - p, p)
    scale = 255 if np.dtype(dtype).kind == "f" else 1
    return (image / scale).astype(dtype), np.stack([1 - p, p], axis=-1)


def panels(figure: Any) -> dict[str, Any]:
    """The pictures of a figure by their titles."""
    return {axes.get_title(): axes.images[0].get_array() for axes in figure.axes}


IMAGE, P = scene()
RESULT = pf.DenseCRF(IMAGE, P).infer()
COUNT = int((RESULT.labels != P.argmax(axis=-1)).sum())


def test_image_before_after_and_what_changed() -> None:
    assert COUNT > 20
    found = panels(RESULT.show(IMAGE))
    assert list(found) == [
        *("image", "before", "after"),
        f"changed: {COUNT} of 1,200 pixels ({100 * COUNT / 1200:.1f} %)",
    ]
    image, before, after, changed = found.values()
    np.testing.assert_array_equal(image, IMAGE)
    differs = RESULT.labels != P.argmax(axis=-1)
    assert (before[differs] != after[differs]).any(axis=-1).all()
    # changed pixels have the color of their new label, others are gray
    np.testing.assert_array_equal(changed[differs], label_colors(2)[RESULT.labels[differs]])
    assert (np.ptp(changed[~differs].astype(int), axis=-1) == 0).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_the_field_knows_the_image(dtype: Any) -> None:
    image, p = scene(dtype)
    result = pf.DenseCRF(image, p, bilateral_color=float(image.max()) / 50).infer()
    given, known = panels(result.show(image)), panels(result.show())
    assert list(given) == list(known) and len(given) == 4
    for one, other in zip(given.values(), known.values(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_plot_draws_labels_not_f(tmp_path: Path) -> None:
    figure = RESULT.plot(tmp_path / "x.png", title="two halves")
    assert [axes.get_title() for axes in figure.axes[:3]] == ["image", "before", "after"]
    assert (tmp_path / "x.png").stat().st_size > 5000
    assert "two halves" in [text.get_text() for text in figure.texts]


def test_without_an_image_the_labels_alone() -> None:
    result = pf.DenseCRF(None, P, labels_axis=-1, preset="krahenbuehl").infer()
    found = panels(result.show())
    assert list(found)[:2] == ["before", "after"] and len(found) == 3
    np.testing.assert_array_equal(found["after"], label_colors(2)[result.labels])


def test_names_and_ignored_pixels_in_the_legend() -> None:
    labels = P.argmax(axis=-1)
    labels[:3] = 255
    result = pf.DenseCRF.from_labels(IMAGE, labels).infer()
    figure = result.show(names=["sea"])
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["sea", "label 1", "ignored"]
    assert not result.changed[:3].any()


def test_other_axes(tmp_path: Path) -> None:
    first = pf.DenseCRF(np.moveaxis(IMAGE, -1, 0), np.moveaxis(P, -1, 0)).infer()
    for figure in (first.show(), first.show(np.moveaxis(IMAGE, -1, 0)), first.show(IMAGE)):
        np.testing.assert_array_equal(panels(figure)["image"], IMAGE)
    volume = pf.DenseCRF(np.stack([IMAGE[..., 0]] * 3), np.stack([P] * 3), batch=False).infer()
    assert next(iter(panels(volume.show()))) == "image, slice 1"
    points = pf.DenseCRF.from_features(np.zeros((4, 2)), np.full((4, 2), 0.5)).infer()
    with pytest.raises(pf.InputError, match="expected two axes or more"):
        points.show()
    with pytest.raises(pf.InputError, match=r"expected pixels \(30, 40\)"):
        RESULT.show(IMAGE[:5])


def test_a_result_without_terms_says_so() -> None:
    travelled = pickle.loads(pickle.dumps(pf.DenseCRF(IMAGE, P).infer()))
    with pytest.raises(pf.UnsupportedError, match="with_field=True"):
        travelled.show(IMAGE)
    assert repr(travelled).startswith("DenseResult(") and "changed" not in repr(travelled)


def test_the_repr_says_how_many_changed() -> None:
    assert f"{COUNT} of 1,200 pixels ({100 * COUNT / 1200:.1f} %) changed)" in repr(RESULT)


def test_missing_matplotlib_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match="matplotlib"):
        RESULT.show()
