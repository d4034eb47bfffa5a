"""Masks from videos; without OpenCV, how to install it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from proxfield.errors import InputError, MissingDependencyError
from proxfield.io.video import VideoMasks


def test_opencv_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "proxfield\[video\]"'):
        VideoMasks((str(tmp_path / "a.avi"),), ("a",))


@pytest.fixture
def videos(tmp_path: Path) -> tuple[str, str]:
    """A bright square that moves over a dark, noisy background; the second video is shorter."""
    cv2 = pytest.importorskip("cv2", reason="videos need OpenCV")
    paths = []
    for k, count in enumerate((40, 30)):
        rng = np.random.default_rng(k)
        path = str(tmp_path / f"{k}.avi")
        out = cv2.VideoWriter(path, cv2.VideoWriter_fourcc(*"MJPG"), 10, (64, 48))
        assert out.isOpened()
        for frame in range(count):
            picture = rng.normal(40, 2, size=(48, 64, 3))
            if frame >= 10:  # fast: what stays for long becomes background
                left = 4 * (frame - 10)
                picture[20:36, left : left + 12] = 220
            out.write(np.clip(picture, 0, 255).astype(np.uint8))
        out.release()
        paths.append(path)
    return paths[0], paths[1]


def test_masks(videos: tuple[str, str]) -> None:
    source = VideoMasks(videos, ("a", "b"), ((64, 48), (64, 48)))
    assert source.frames() == list(range(30))
    found = dict(source)
    assert list(found) == list(range(30))  # until the shorter one ends
    for mask in found[20]:
        assert mask is not None and mask.shape == (48, 64) and set(np.unique(mask)) <= {0.0, 1.0}
        assert mask[22:34, 42:50].mean() > 0.9
        assert mask[:16].mean() < 0.02 and mask[:, 56:].mean() < 0.02


def test_scale(videos: tuple[str, str]) -> None:
    mask = dict(VideoMasks(videos[:1], ("a",), scale=0.25))[20][0]
    assert mask is not None and mask.shape == (12, 16)
    assert mask[6:8, 10:12].all() and not mask[:4].any()


def test_the_same_again(videos: tuple[str, str]) -> None:
    source = VideoMasks(videos, ("a", "b"))
    for (_, first), (_, second) in zip(source, source, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))  # type: ignore[arg-type]


def test_frames_by_number(videos: tuple[str, str]) -> None:
    source = VideoMasks(videos, ("a", "b"))
    every = dict(source)
    for frame in (3, 4, 20, 12, 12, 29):  # also backwards
        for one, other in zip(source.read(frame), every[frame], strict=True):
            assert np.array_equal(one, other)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="frame 30 is missing: the shortest video ends"):
        source.read(30)
    assert len(source.read(0)) == 2


def test_faults(videos: tuple[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def refused(path: str, words: str, **options: object) -> None:
        with pytest.raises(InputError, match=words) as error:
            list(VideoMasks((path,), ("a",), **options))  # type: ignore[arg-type]
        assert "\n" not in str(error.value)

    refused(str(tmp_path / "none.avi"), r"none\.avi: the video of camera a: no such file")
    (tmp_path / "text.avi").write_text("hello")
    refused(
        str(tmp_path / "text.avi"), r"text\.avi: the video of camera a: can't be read as a video"
    )
    (tmp_path / "cut.avi").write_bytes(Path(videos[0]).read_bytes()[:300])
    refused(str(tmp_path / "cut.avi"), r"cut\.avi: the video of camera a: ")
    refused(videos[0], "has frames of 64×48 pixels, expected 32×24", sizes=((32, 24),))
    with pytest.raises(InputError, match="2 videos for 1 cameras"):
        VideoMasks(videos, ("a",))
    assert capfd.readouterr() == ("", "")  # the library prints nothing of its own
