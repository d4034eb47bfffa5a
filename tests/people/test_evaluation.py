"""MODA, MODP, precision and recall, against examples worked by hand and brute force."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from proxfield.errors import InputError
from proxfield.people.detections import Detections
from proxfield.people.evaluation import evaluate, inside, match, parse_polygon

# Radius 0.5. Frame 0: people at x = 0, 1, 5; found at 0.3, 1.1, 9: distances 0.3 and 0.1, one miss,
# one false alarm. Frame 1: nobody found, two people. Frame 2: nobody there, one false alarm.
# Frame 3: a person and a detection at exactly 0.5: no match. People 3 + 2 + 0 + 1 = 6, matches 2,
# misses 1 + 2 + 0 + 1 = 4, false alarms 1 + 0 + 1 + 1 = 3.
TRUTH = Detections([0, 0, 0, 1, 1, 3], [0, 1, 5, 0, 2, 0], np.zeros(6), frames=[0, 1, 2, 3])
FOUND = Detections([0, 0, 0, 2, 3], [0.3, 1.1, 9, 0, 0.5], np.zeros(5))


def test_an_example_worked_by_hand() -> None:
    result = evaluate(FOUND, TRUTH, 0.5)
    assert result.people.tolist() == [3, 2, 0, 1]
    assert result.matches.tolist() == [2, 0, 0, 0]
    assert result.misses.tolist() == [1, 2, 0, 1]
    assert result.false_alarms.tolist() == [1, 0, 1, 1]
    assert result.moda == pytest.approx(1 - (4 + 3) / 6)
    assert result.modp == pytest.approx(((1 - 0.3 / 0.5) + (1 - 0.1 / 0.5)) / 2)  # 0.6
    assert result.precision == pytest.approx(2 / 5)
    assert result.recall == pytest.approx(2 / 6)
    assert repr(result).startswith("<Evaluation: MODA -0.167, MODP 0.600, precision 0.400")


def test_modp_is_a_mean_over_matches_not_over_frames() -> None:
    truth = Detections([0, 0, 0, 1], [0, 2, 4, 0], np.zeros(4))
    found = Detections([0, 0, 0, 1], [0, 2, 4, 0.4], np.zeros(4))
    assert evaluate(found, truth, 0.5).modp == pytest.approx(0.8)  # (1 + 1 + 1 + 0.2)/4; not 0.6


def test_as_many_matches_as_possible() -> None:
    """The nearest pair isn't taken where that would leave somebody unmatched."""
    people, found = np.array([[0.0, 0.0], [0.45, 0.0]]), np.array([[0.4, 0.0], [0.9, 0.0]])
    assert sorted(match(found, people, 0.5)) == pytest.approx([0.4, 0.45])
    assert sorted(match(people, found, 0.5)) == pytest.approx([0.4, 0.45])


@pytest.mark.parametrize("seed", range(20))
def test_against_all_assignments(seed: int) -> None:
    rng = np.random.default_rng(seed)
    people = rng.uniform(0, 2, size=(rng.integers(1, 6), 2))
    found = rng.uniform(0, 2, size=(rng.integers(1, 6), 2))
    far = np.linalg.norm(people[:, None] - found, axis=2)
    if len(people) > len(found):
        far = far.T
    best = (0, 0.0)
    for columns in itertools.permutations(range(far.shape[1]), far.shape[0]):
        d = far[np.arange(far.shape[0]), list(columns)]
        best = max(best, (int((d < 0.6).sum()), -float(d[d < 0.6].sum())))
    got = match(found, people, 0.6)
    assert (len(got), -got.sum()) == pytest.approx(best)


def test_positions_on_a_grid_at_the_radius() -> None:
    x = -3.0 + 0.025 * np.arange(480)
    for k in range(0, 400, 7):
        assert match(np.array([[x[k], 0.0]]), np.array([[x[k + 20], 0.0]]), 0.5).size == 0
        assert match(np.array([[x[k], 0.0]]), np.array([[x[k + 19], 0.0]]), 0.5).size == 1


def test_region() -> None:
    square = [[-0.5, -1], [1.05, -1], [1.05, 1], [-0.5, 1]]
    result = evaluate(FOUND, TRUTH, 0.5, roi=square)
    # dropped: the person at 5 and at 2, the detections at 9 and at 1.1, though that had matched
    assert result.people.tolist() == [2, 1, 0, 1]
    assert result.matches.tolist() == [1, 0, 0, 0]
    assert result.false_alarms.tolist() == [0, 0, 1, 1]


def test_frames() -> None:
    more = Detections([0, 7], [0.0, 0.0], [0.0, 0.0])
    assert evaluate(more, TRUTH).false_alarms.sum() == 0  # 7 isn't a frame of the truth
    assert evaluate(FOUND, TRUTH, frames=[1, 2]).people.tolist() == [2, 0]
    with pytest.raises(InputError, match="doesn't have frame 9"):
        evaluate(FOUND, TRUTH, frames=[0, 9])
    with pytest.raises(InputError, match="no frame in common: the truth has 0 to 3"):
        evaluate(Detections([8], [0.0], [0.0]), TRUTH)
    with pytest.raises(InputError, match="the truth has no frames"):
        evaluate(FOUND, Detections([], [], []))
    nothing = evaluate(Detections([], [], []), TRUTH)
    assert (nothing.moda, nothing.recall) == (0.0, 0.0)
    assert np.isnan(nothing.precision) and np.isnan(nothing.modp)
    assert nothing.to_json()["precision"] is None


def test_bad_arguments() -> None:
    for radius in (0, -1, np.nan, np.inf, "1"):
        with pytest.raises(InputError, match="radius="):
            evaluate(FOUND, TRUTH, radius)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="the detections have no coordinates"):
        evaluate(Detections([0], [np.nan], [np.nan], None, [3]), TRUTH)
    with pytest.raises(InputError, match="at least 3 corners"):
        evaluate(FOUND, TRUTH, roi=[[0, 0], [1, 1]])


def test_tables() -> None:
    result = evaluate(FOUND, TRUTH, 0.5)
    assert result.to_csv().splitlines() == [
        "frame,people,matches,misses,false_alarms,moda,modp",
        "0,3,2,1,1,0.333333333,0.6",
        "1,2,0,2,0,0,",
        "2,0,0,0,1,,",
        "3,1,0,1,1,-1,",
    ]
    data = result.to_json(per_frame=True)
    assert data["misses"] == 4 and data["frames"] == 4 and data["radius"] == 0.5
    assert data["per_frame"][2]["moda"] is None
    assert "per_frame" not in result.to_json()


# ---- regions ----


def test_inside_any_polygon() -> None:
    notch = [[0, 0], [4, 0], [4, 4], [2, 1], [0, 4]]  # not convex
    points = np.array([[2, 0.5], [2, 2], [1, 2], [3, 2], [-1, 1], [2, 1], [0, 2], [4, 4], [5, 0]])
    expected = [True, False, True, True, False, True, True, True, False]
    assert inside(points, notch).tolist() == expected
    assert inside(points, notch[::-1]).tolist() == expected
    assert inside(points, [*notch, notch[0]]).tolist() == expected  # closed explicitly


def test_corners_from_text_and_files(tmp_path: Path) -> None:
    expected = [[-3.0, -9.0], [9.0, -9.0], [9.0, 27.0]]
    assert parse_polygon("-3,-9 9,-9 9,27").tolist() == expected
    assert parse_polygon("-3 -9, 9 -9, 9 27").tolist() == expected
    for name, text in (
        ("r.txt", "-3,-9\n9,-9\n9,27\n"),
        ("r.json", "[[-3, -9], [9, -9], [9, 27]]"),
    ):
        (tmp_path / name).write_text(text)
        assert parse_polygon(str(tmp_path / name)).tolist() == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0,0 1,1", "expected corners"),
        ("0,0 1,1 2", "expected corners"),
        ("0,0 1,a 2,2", "expected corners"),
        ("0,0 1,nan 2,2", "expected corners"),
        ("none.txt", r"none\.txt: no such file"),
    ],
)
def test_bad_corners(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_polygon(text)


def test_bad_corners_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("0 0\n")
    with pytest.raises(InputError, match=r"r\.txt: expected at least 3 corners"):
        parse_polygon(str(tmp_path / "r.txt"))
