"""Pictures of people: from above, in the images of cameras, as a video, and how rules get on."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from proxfield.errors import InputError, MissingDependencyError
from proxfield.people.scene import Scene, grid_positions
from proxfield.people.silhouettes import Boxes, Runs
from proxfield.viz.people import (
    MAX_CELLS,
    draw_people,
    ground_figure,
    probability_colors,
    write_picture,
)
from proxfield.viz.plots import RuleCurve, quality_figure, save_figure
from proxfield.viz.sheets import contact_sheet
from proxfield.viz.video import write_video

pytest.importorskip("matplotlib")
pytest.importorskip("PIL")

BOXES = [[2, 3, 8, 13], [10, 3, 16, 13], [0, 0, 0, 0], [4, 0, 9, 6], [20, 2, 29, 18], [1, 1, 3, 5]]


@pytest.fixture
def scene() -> Scene:
    positions, shape = grid_positions((0, 2), (0, 1), 1.0)
    return Scene((Boxes(20, 30, BOXES), Boxes(20, 30, BOXES[::-1])), positions, shape)


@pytest.fixture
def q() -> np.ndarray:
    return np.array([0.9, 0.1, 1.0, 0.6, 0.0, 0.2])


def test_the_ground_shows_probabilities_detections_and_truth(scene: Scene, q: np.ndarray) -> None:
    figure = ground_figure(scene, q, detections=[[0, 0], [2, 1]], truth=[[0.1, 0]], title="here")
    axes, bar = figure.axes
    image = axes.get_images()[0]
    assert np.array_equal(image.get_array(), q.reshape(2, 3))
    assert image.get_extent() == [-0.5, 2.5, -0.5, 1.5]  # cells around their locations
    truth, found = axes.collections
    assert truth.get_offsets().tolist() == [[0.1, 0.0]]
    assert found.get_offsets().tolist() == [[0.0, 0.0], [2.0, 1.0]]
    words = [text.get_text() for text in axes.get_legend().get_texts()]
    assert words == ["truth, 1", "detections, 2"]
    assert axes.get_title(loc="left") == "here"
    assert bar.get_ylabel() == "probability that somebody is there"


def test_single_cells_of_a_fine_grid_still_show() -> None:
    n = MAX_CELLS + 11
    positions, shape = grid_positions((0, n - 1), (0, 4), 1.0)
    fine = Scene((Boxes(2, 2, np.tile([0, 0, 2, 2], (len(positions), 1))),), positions, shape)
    q = np.zeros(fine.n_locations)
    q[2 * n + 7] = 1.0  # x = 7, y = 2
    image = ground_figure(fine, q).axes[0].get_images()[0]
    cells = image.get_array()
    assert cells.shape == (3, -(-n // 2)) and cells.max() == 1.0
    assert np.argwhere(cells == 1.0).tolist() == [[1, 3]]
    assert image.get_extent() == [-0.5, -0.5 + 2 * cells.shape[1], -0.5, 5.5]


def test_locations_that_are_no_grid_and_empty_detections(scene: Scene, q: np.ndarray) -> None:
    loose = Scene(scene.silhouettes, scene.positions)
    axes = ground_figure(loose, q, detections=[]).axes[0]
    points, found = axes.collections
    assert np.array_equal(points.get_array(), q)
    assert len(found.get_offsets()) == 0


def test_rectangles_lie_over_the_people(scene: Scene, q: np.ndarray) -> None:
    mask = np.zeros((20, 30), dtype=bool)
    mask[5:7, 4:6] = True
    picture = draw_people(mask, scene.silhouettes[0], q)
    color = probability_colors([0.9])[0]
    assert picture.shape == (20, 30, 3)
    for row, column in ((3, 5), (12, 2), (12, 7)):  # border of location 0, inclusive
        assert np.array_equal(picture[row, column], color)
    assert picture[6, 5].tolist() == [255, 255, 255]  # the mask shows inside
    assert np.array_equal(picture[0, 6], probability_colors([0.6])[0])  # location 3
    assert not picture[0, 0].any()  # location 2 is occupied, but not visible here
    assert not picture[3:13, 10:16].any()  # 0.1 is below the threshold
    only = draw_people(mask, scene.silhouettes[0], q, locations=[3])
    assert not only[12].any()
    every = draw_people(mask, scene.silhouettes[0], q, threshold=0.05)
    assert every[3, 12].tolist() == probability_colors([0.1])[0].tolist()


def test_the_most_probable_is_on_top(scene: Scene) -> None:
    same = Boxes(10, 10, [[1, 1, 6, 9], [1, 1, 6, 9]])
    for q in ([0.9, 0.6], [0.6, 0.9]):
        picture = draw_people(np.zeros((10, 10)), same, q)
        assert np.array_equal(picture[1, 3], probability_colors([0.9])[0])


def test_frames_larger_than_the_masks(scene: Scene, q: np.ndarray) -> None:
    frame = np.full((80, 120, 3), 7, dtype=np.uint8)
    picture = draw_people(frame, scene.silhouettes[0], q, locations=[0])
    drawn = np.argwhere((picture != 7).any(axis=2))
    assert drawn.min(axis=0).tolist() == [12, 8]
    assert drawn.max(axis=0).tolist() == [51, 31]


def test_silhouettes_of_runs_get_their_bounding_rectangle() -> None:
    runs = Runs(9, 9, [[2, 3, 5], [3, 2, 7], [6, 4, 5]], [0, 3])
    drawn = np.argwhere(draw_people(np.zeros((9, 9)), runs, [1.0]).any(axis=2))
    assert drawn.min(axis=0).tolist() == [2, 2]
    assert drawn.max(axis=0).tolist() == [6, 6]


def test_a_sheet_of_all_cameras(scene: Scene, q: np.ndarray, tmp_path: Path) -> None:
    images = [np.full((20, 30), 0.5), None]
    sheet = contact_sheet(scene, images, q, truth=[[0, 0]], title="frame 3", width=90)
    assert sheet.shape[1] == 2 * 90 + 8
    assert sheet.shape[0] > 60 + 26
    below_title = sheet[26 + 8 :][:60]
    assert below_title[50, 60].tolist() == [128, 128, 128]  # the first camera's image
    assert below_title[50, 90 + 8 + 60].tolist() == [221, 221, 221]  # a missing one
    write_picture(tmp_path / "sheet.png", sheet)
    assert list(tmp_path.iterdir()) == [tmp_path / "sheet.png"]
    turned = Scene(scene.silhouettes, np.asarray(scene.positions)[:, ::-1])  # a tall ground
    beside = contact_sheet(turned, images, q, width=90)
    assert beside.shape[1] > 500 and beside[50, 60].tolist() == [128, 128, 128]
    bare = contact_sheet(Scene(scene.silhouettes), images, q, width=90)  # no positions, no map
    assert bare.shape == (60, 188, 3)


def test_bad_arguments(scene: Scene, q: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no positions"):
        ground_figure(Scene(scene.silhouettes), q)
    with pytest.raises(InputError, match=r"shape \(3,\) for 6 locations"):
        ground_figure(scene, q[:3])
    with pytest.raises(InputError, match=r"truth of shape \(3,\)"):
        ground_figure(scene, q, truth=[1.0, 2.0, 3.0])
    with pytest.raises(InputError, match="2 cameras but 1 images"):
        contact_sheet(scene, [None], q)
    with pytest.raises(InputError, match="threshold=2"):
        draw_people(np.zeros((20, 30)), scene.silhouettes[0], q, threshold=2)
    with pytest.raises(InputError, match="must be 0 to 5"):
        draw_people(np.zeros((20, 30)), scene.silhouettes[0], q, locations=[6])
    with pytest.raises(InputError, match="an image of shape"):
        draw_people(np.zeros(20), scene.silhouettes[0], q)
    with pytest.raises(InputError, match=r"written as \.png"):
        write_picture(tmp_path / "x.jpg", np.zeros((2, 2, 3), dtype=np.uint8))


# ---- convergence ----


def test_two_panels_with_a_curve_for_each_rule(tmp_path: Path) -> None:
    curves = {
        "fixed": RuleCurve([0, 10, 25], [9.0, 3.0, 2.0], [np.nan, 0.5, 0.8]),
        "full-parallel": RuleCurve([0, 10, 25], [9.0, np.inf, 90.0], [-2.0, -3.0, -4.0]),
    }
    figure = quality_figure(curves, title="pitch")
    left, right = figure.axes
    line = left.get_lines()[0]
    assert line.get_xdata().tolist() == [1, 10, 25] and line.get_ydata().tolist() == [9, 3, 2]
    assert right.get_lines()[0].get_ydata().tolist() == [0.5, 0.8]
    assert left.get_lines()[2].get_ydata().tolist() == [9, 90]
    assert right.get_ylim() == (-0.03, 1.03)
    assert [text.get_text() for text in right.texts] == list(curves)
    save_figure(figure, tmp_path / "q.png")
    with pytest.raises(InputError, match="no curves"):
        quality_figure({})
    with pytest.raises(InputError, match="fixed: 1 values for 2 passes"):
        quality_figure({"fixed": RuleCurve([1, 2], [1.0], [0.0])})


# ---- video ----


def test_a_video_without_opencv_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(MissingDependencyError, match=r"pip install \"proxfield\[video\]\""):
        write_video(tmp_path / "x.mp4", [np.zeros((4, 4, 3), dtype=np.uint8)])


def test_a_video_has_the_frames(tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    path = tmp_path / "x.mp4"
    shades = (20, 120, 220)
    pictures = (np.full((33, 47, 3), (s, 0, 0), dtype=np.uint8) for s in shades)
    assert write_video(path, pictures, rate=5) == 3
    assert list(tmp_path.iterdir()) == [path]
    reader = cv2.VideoCapture(str(path))
    assert reader.get(cv2.CAP_PROP_FPS) == pytest.approx(5)
    for shade in shades:
        ok, frame = reader.read()
        assert ok and frame.shape == (34, 48, 3)
        assert frame[..., 2].mean() == pytest.approx(shade, abs=12)  # red, last in OpenCV
        assert frame[..., 0].mean() < 12
    assert not reader.read()[0]


def test_videos_that_cannot_be_written_leave_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"written as \.mp4"):
        write_video(tmp_path / "x.avi", [])
    with pytest.raises(InputError, match="rate=0"):
        write_video(tmp_path / "x.mp4", [], rate=0)
    pytest.importorskip("cv2")
    small, large = (np.zeros((n, n, 3), dtype=np.uint8) for n in (8, 16))
    with pytest.raises(InputError, match="no pictures"):
        write_video(tmp_path / "x.mp4", [])
    with pytest.raises(InputError, match="picture 1 has 16×16 pixels, the first has 8×8"):
        write_video(tmp_path / "x.mp4", [small, large])
    with pytest.raises(InputError, match="expected 8-bit RGB"):
        write_video(tmp_path / "x.mp4", [np.zeros((8, 8), dtype=np.uint8)])
    with pytest.raises(InputError, match="folder doesn't exist"):
        write_video(tmp_path / "no" / "x.mp4", [small])
    assert list(tmp_path.iterdir()) == []
