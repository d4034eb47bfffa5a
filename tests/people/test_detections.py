"""Detections: non-maximum suppression on the ground, files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from proxfield.errors import InputError
from proxfield.people import detections as module
from proxfield.people.detections import Detections, suppress

GROUND = np.array([[0.0, 0.0], [0.4, 0.0], [0.8, 0.0], [5.0, 5.0]])


def test_the_most_probable_first() -> None:
    where, score, xy = suppress([0.6, 0.9, 0.7, 0.95], GROUND, 0.5, pool=0)
    assert where.tolist() == [3, 1]
    assert score.tolist() == [0.95, 0.9]
    assert xy.tolist() == [[5.0, 5.0], [0.4, 0.0]]


def test_a_suppressed_location_suppresses_nothing() -> None:
    where, _, _ = suppress([0.9, 0.8, 0.7, 0.1], GROUND, 0.5)
    assert where.tolist() == [0, 2]  # 1 is near 0; 2 is near 1 only


def test_radius_and_threshold() -> None:
    assert suppress([0.9, 0.8, 0.7, 0.1], GROUND, 0.1)[0].tolist() == [0, 1, 2]
    assert suppress([0.9, 0.8, 0.7, 0.1], GROUND, 0.1, 0.75)[0].tolist() == [0, 1]
    assert suppress([0.9, 0.5, 0.49, 0.1], GROUND, 0.1, 0.5)[0].tolist() == [0, 1]
    assert suppress([1.0, 1.0, 0.0, 0.1], GROUND, 0.5, 1.0)[0].tolist() == [0]
    assert suppress([0.1, 0.1, 0.1, 0.1], GROUND)[0].tolist() == []
    assert suppress([], np.zeros((0, 2)))[2].shape == (0, 2)


def test_pooling_finds_a_person_spread_over_neighbors() -> None:
    spread = GROUND.copy()
    spread[:3, 0] = [0.0, 0.1, 0.2]
    q = [0.3, 0.35, 0.3, 0.2]
    assert suppress(q, spread, pool=0)[0].size == 0
    assert suppress(q, spread)[0].tolist() == [1]
    where, score, xy = suppress(q, spread, pool=0.15)
    assert where.tolist() == [1]
    assert score[0] == pytest.approx(1 - 0.7 * 0.65 * 0.7)
    assert xy[0] == pytest.approx([0.1, 0.0])
    xy = suppress([0.4, 0.45, 0.0, 0.0], spread, pool=0.15)[2]
    weights = -np.log1p([-0.4, -0.45])
    assert xy[0] == pytest.approx([0.1 * weights[1] / weights.sum(), 0.0])


def test_pooled_probability_counts_once() -> None:
    """What a detection has taken doesn't make a neighbor probable."""
    ground = np.array([[0.0, 0.0], [0.3, 0.0], [0.6, 0.0]])
    where, score, _ = suppress([0.2, 0.9, 0.2], ground, 0.35, pool=0.35)
    assert where.tolist() == [1]
    assert score[0] == pytest.approx(1 - 0.8 * 0.1 * 0.8)
    ground = np.array([[0.0, 0.0], [0.3, 0.0], [0.6, 0.0], [0.9, 0.0]])
    where, _, _ = suppress([0.1, 0.9, 0.1, 0.45], ground, 0.35, pool=0.35)
    assert where.tolist() == [1]  # 0.45 with 0.1 would do, but that one is gone
    where, _, _ = suppress([0.1, 0.1, 0.1, 0.45], ground, 0.35, pool=0.35)
    assert where.tolist() == [3]


@pytest.mark.parametrize("seed", range(20))
def test_pooling_with_and_without_pairs(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaving out what can't be a detection changes nothing."""
    rng = np.random.default_rng(seed)
    ground, q = rng.random((60, 2)) * 3, rng.random(60) ** 4
    quick = suppress(q, ground)
    monkeypatch.setattr(module, "MAX_PAIRED", 0)
    for a, b in zip(quick, suppress(q, ground), strict=True):
        np.testing.assert_array_equal(a, b)
    assert len(quick[0]) > 2


def test_pooling_many_locations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_POOLED", 2)
    where, _, _ = suppress([0.8, 0.1, 0.1, 0.9], GROUND, pool=0.5)
    assert where.tolist() == [3, 0]


def test_no_two_detections_are_close() -> None:
    rng = np.random.default_rng(0)
    ground = rng.uniform(0, 4, size=(500, 2))
    q = rng.random(500)
    for pool in (0.0, 0.3):
        where, score, _ = suppress(q, ground, 0.5, 0.5, pool=pool)
        apart = np.linalg.norm(ground[where][:, None] - ground[where], axis=2)
        assert (apart + 9 * np.eye(len(where))).min() > 0.5
        assert (np.diff(score) <= 0).all()
        left = np.linalg.norm(ground[:, None] - ground[where], axis=2).min(axis=1) > 0.5
        assert (q[left] < 0.5).all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"q": [0.5, 1.5, 0, 0]}, "one probability per location"),
        ({"q": [0.5, np.nan, 0, 0]}, "one probability per location"),
        ({"q": [0.5]}, "positions of shape"),
        ({"radius": 0}, "radius=0"),
        ({"threshold": 0}, "threshold=0"),
        ({"threshold": 1.5}, r"threshold=1\.5"),
        ({"pool": 0.6}, "pool=0.6, expected 0 to the radius, 0.5"),
    ],
)
def test_bad_arguments(changes: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        suppress(**{"q": [0.5, 0.5, 0, 0], "positions": GROUND, **changes})  # type: ignore[arg-type]


def test_from_map() -> None:
    found = Detections.from_map([0.9, 0.2, 0.8, 0.1], GROUND, 7)
    assert (found.frame.tolist(), found.location.tolist()) == ([7, 7], [0, 2])
    nobody = Detections.from_map([0.0, 0.0, 0.0, 0.0], GROUND, 8)
    both = Detections.join([found, nobody])
    assert (len(both), both.frames.tolist()) == (2, [7, 8])
    assert len(Detections.join([])) == 0
    bare = Detections.from_map([0.9, 0.2, 0.8], None)
    assert bare.location.tolist() == [0, 2] and np.isnan(bare.x).all()


def test_checks() -> None:
    with pytest.raises(InputError, match=r"x has shape \(1,\), expected \(2,\)"):
        Detections([0, 1], [0.0], [0.0, 1.0])
    for bad in (0.5, 1e300, np.nan, np.inf, 2**53 + 2, 10**30):
        with pytest.raises(
            InputError, match=r"frame hold [0-9naife.+]+, expected whole numbers up to"
        ):
            Detections([bad], [0.0], [0.0])
    with pytest.raises(InputError, match="location must be whole numbers"):
        Detections([0], [0.0], [0.0], None, ["x"])
    with pytest.raises(InputError, match="frames don't have 3"):
        Detections([3], [0.0], [0.0], frames=[1, 2])
    with pytest.raises(InputError, match="x holds infinite numbers"):
        Detections([3], [np.inf], [0.0])


# ---- files ----


def some() -> Detections:
    return Detections(
        [5, 5, 2], [1.25, -3.0, 0.1], [0.5, 7.0, 1e-3], [0.75, 1.0, 0.5], [4, -1, 0], [2, 3, 5]
    )


def same(a: Detections, b: Detections) -> bool:
    def rows(d: Detections) -> object:
        return sorted(
            zip(*(getattr(d, k).tolist() for k in ("frame", "x", "y", "score")), strict=True)
        )

    return rows(a) == rows(b) and a.frames.tolist() == b.frames.tolist()


@pytest.mark.parametrize("name", ["d.csv", "d.json", "d.csv.gz", "d.json.xz"])
def test_back_and_forth(tmp_path: Path, name: str) -> None:
    some().save(tmp_path / name)
    again = Detections.load(tmp_path / name)
    assert same(again, some())
    assert sorted(again.location.tolist()) == [-1, 0, 4]


@pytest.mark.parametrize("name", ["d.csv", "d.json"])
def test_without_coordinates(tmp_path: Path, name: str) -> None:
    Detections([1], [np.nan], [np.nan], [0.9], [17]).save(tmp_path / name)
    again = Detections.load(tmp_path / name)
    assert again.location.tolist() == [17] and np.isnan(again.x).all()


def test_nobody(tmp_path: Path) -> None:
    for name in ("d.csv", "d.json"):
        Detections([], [], [], frames=[4]).save(tmp_path / name)
        again = Detections.load(tmp_path / name)
        assert (len(again), again.frames.tolist()) == (0, [4])


def test_other_tables(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    for text in (
        "0,1.5,2\n3,4,5\n",
        "# made by hand\n0 1.5 2\n3 4 5\n",
        "Y;X;Frame\n2;1.5;0\n\n5;4;3\n",
        "frame,id,x,y\n0,a,1.5,2\n3,b,4,5\n",
    ):
        path.write_text(text)
        found = Detections.load(path)
        assert found.frame.tolist() == [0, 3]
        assert found.positions.tolist() == [[1.5, 2.0], [4.0, 5.0]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "the file is empty"),
        ("frame,x\n", "d.csv:1: has columns 'frame, x', expected frame, x, y"),
        ("1,2\n", "d.csv:1: has 2 columns"),
        ("frame,x,y\n1,2,3\n1,2,z\n", "d.csv:3: y is 'z', expected a number"),
        ("frame,x,y\n1,2,inf\n", "d.csv:2: y is 'inf'"),
        ("frame,x,y\n1,2,\n", "d.csv:2: has only one coordinate"),
        ("frame,x,y\n1,2\n", "d.csv:2: has only one coordinate"),
        ("frame,x,y\n,2,3\n", "d.csv:2: has no frame"),
        ("frame,x,y\n0.5,2,3\n", "d.csv:2: frame is '0.5', expected a whole number"),
        (
            "frame,x,y\n1,2,3\n1e300,2,3\n",
            "d.csv:3: frame is '1e300', expected a whole number up to",
        ),
        ("1 2 3\n-1e19 2 3\n", "d.csv:2: frame is '-1e19', expected a whole number up to"),
        ("9007199254740994,2,3\n", "d.csv:1: frame is '9007199254740994', expected a whole number"),
        ("frame,location\n1,1e30\n", "d.csv:2: location is '1e30', expected a whole number up to"),
        ('{"detections": [{"frame": 1e300}]}', r"detection 0: frame is 1e\+300, expected a whole"),
        ('{"detections": [{"frame": 1, "location": 1e19}]}', "detection 0: location is 1e"),
        ('{"detections": [], "frames": [1, 1e300]}', r'"frames" holds 1e\+300, expected whole'),
        ("{}", 'expected an object with a list "detections"'),
        ('{"detections": [1]}', "detection 0 isn't an object"),
        ('{"detections": [{"x": 1}]}', "detection 0: frame is None"),
        ('{"detections": [{"frame": 1, "x": "a"}]}', "detection 0: x is 'a'"),
        ('{"detections": [{"frame": 1, "x": 1, "y": 2}], "frames": [2]}', "frames don't have 1"),
        ('{"detections": [\n', "d.csv:2: isn't JSON"),
        ("[" * 100_000, "isn't JSON"),
    ],
)
def test_faults(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "d.csv").write_text(text)
    with pytest.raises(InputError, match=words):
        Detections.load(tmp_path / "d.csv")


def test_names_without_a_format(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected a name ending in \.csv or \.json"):
        some().save(tmp_path / "d.txt")
    assert not list(tmp_path.iterdir())


def test_wildtrack(tmp_path: Path) -> None:
    people = [{"personID": 3, "positionID": 456826, "views": []}, {"positionID": 0}]
    (tmp_path / "00000005.json").write_text(json.dumps(people))
    (tmp_path / "00000010.json").write_text("[]")
    found = Detections.load(tmp_path)
    assert (found.frames.tolist(), found.frame.tolist()) == ([5, 10], [5, 5])
    # 456826 = 951 · 480 + 346
    assert found.positions == pytest.approx(np.array([[5.65, 14.775], [-3.0, -9.0]]))
    assert found.location.tolist() == [456826, 0]
    assert Detections.load(tmp_path / "00000005.json").frames.tolist() == [5]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("00000005.json", '[{"positionID": 691200}]', "person 0 has positionID 691200"),
        ("00000005.json", '[{"positionID": 1}, 3]', "person 1 has positionID None"),
        ("00000005.json", "{}", "expected a list of people"),
        ("00000005.json", "[", "00000005.json:1: isn't JSON"),
        ("truth.json", "[]", "its name is no frame number"),
        (f"{10**16}.json", "[]", "has more than 15 digits, expected a frame number"),
        ("truth.txt", "[]", "holds no .json file"),
    ],
)
def test_faults_of_wildtrack(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=words):
        Detections.load(tmp_path)
