"""Images, probabilities, label maps and overlays in files; everything generated here."""

from __future__ import annotations

import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from proxfield.errors import InputError, MissingDependencyError
from proxfield.io.images import (
    IGNORED_COLOR,
    LABEL_COLORS,
    label_colors,
    read_image,
    read_labels,
    read_probabilities,
    write_labels,
    write_probabilities,
)
from proxfield.io.overlay import overlay, write_overlay

RNG = np.random.default_rng(0)
RGB = RNG.integers(0, 256, size=(7, 9, 3), dtype=np.uint8)
PALETTE = [0, 0, 0, 200, 10, 10, 10, 200, 10]
P = RNG.dirichlet(np.ones(4), size=(7, 9))


def error(call: Any, *args: Any, **options: Any) -> str:
    """The message of a refusal: one line that names the file."""
    with pytest.raises(InputError) as caught:
        call(*args, **options)
    text = str(caught.value)
    assert "\n" not in text
    assert Path(args[0]).name in text
    return text


# ---- reading pictures ----


@pytest.mark.parametrize("suffix", [".png", ".tif", ".tiff", ".bmp", ".webp"])
def test_color(tmp_path: Path, suffix: str) -> None:
    how = {"lossless": True} if suffix == ".webp" else {}
    Image.fromarray(RGB).save(tmp_path / f"x{suffix}", **how)
    found = read_image(tmp_path / f"x{suffix}")
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, RGB)


def test_jpeg(tmp_path: Path) -> None:
    smooth = np.broadcast_to(np.linspace(0, 255, 32).astype(np.uint8)[:, None, None], (32, 40, 3))
    Image.fromarray(smooth.copy()).save(tmp_path / "x.jpg", quality=95)
    found = read_image(tmp_path / "x.jpg")
    assert found.shape == (32, 40, 3)
    assert np.abs(found.astype(int) - smooth).max() < 12


def test_gray_of_all_depths(tmp_path: Path) -> None:
    gray = RGB[..., 0]
    for values, name in (
        (gray, "8.png"),
        (gray.astype(np.uint16) * 200, "16.png"),
        (gray.astype(np.uint16) * 200, "16.tif"),
        (gray.astype(np.float32) / 7, "float.tif"),
        (gray.astype(np.int32) - 100, "32.tif"),
    ):
        Image.fromarray(values).save(tmp_path / name)
        found = read_image(tmp_path / name)
        assert found.dtype == values.dtype, name
        np.testing.assert_array_equal(found, values)
    Image.fromarray(gray > 100).save(tmp_path / "1.png")
    np.testing.assert_array_equal(read_image(tmp_path / "1.png"), (gray > 100) * 255)


def test_alpha_is_dropped_and_noted(tmp_path: Path) -> None:
    for mode, like in (("RGBA", RGB), ("LA", RGB[..., 0])):
        picture = Image.fromarray(like).convert(mode)
        picture.putalpha(Image.fromarray(RGB[..., 1]))
        picture.save(tmp_path / f"{mode}.png")
        notes: list[str] = []
        np.testing.assert_array_equal(read_image(tmp_path / f"{mode}.png", notes), like)
        assert len(notes) == 1 and f"{mode}.png" in notes[0] and "alpha" in notes[0]
    notes = []
    Image.fromarray(RGB).save(tmp_path / "plain.png")
    read_image(tmp_path / "plain.png", notes)
    assert notes == []


def test_palettes_and_other_color_spaces(tmp_path: Path) -> None:
    labels = RNG.integers(0, 3, size=(7, 9), dtype=np.uint8)
    picture = Image.fromarray(labels)
    picture.putpalette(PALETTE)
    picture.save(tmp_path / "p.png")
    expected = np.array(PALETTE, dtype=np.uint8).reshape(-1, 3)[labels]
    np.testing.assert_array_equal(read_image(tmp_path / "p.png"), expected)
    picture.save(tmp_path / "t.png", transparency=0)
    notes: list[str] = []
    np.testing.assert_array_equal(read_image(tmp_path / "t.png", notes), expected)
    assert len(notes) == 1
    Image.fromarray(RGB).convert("CMYK").save(tmp_path / "c.tif")
    np.testing.assert_array_equal(read_image(tmp_path / "c.tif"), RGB)


def test_pages_are_a_volume(tmp_path: Path) -> None:
    pages = [Image.fromarray(RGB[..., k].copy()) for k in range(3)]
    pages[0].save(tmp_path / "v.tif", save_all=True, append_images=pages[1:])
    np.testing.assert_array_equal(read_image(tmp_path / "v.tif"), RGB.transpose(2, 0, 1))
    pages[1] = Image.fromarray(RGB[:-1, :, 0].copy())
    pages[0].save(tmp_path / "odd.tif", save_all=True, append_images=pages[1:])
    assert "different sizes" in error(read_image, tmp_path / "odd.tif")


def test_arrays_as_images(tmp_path: Path) -> None:
    volume = RNG.normal(size=(3, 4, 5))
    np.save(tmp_path / "v.npy", volume)
    np.savez(tmp_path / "v.npz", image=volume)
    for name in ("v.npy", "v.npz"):
        np.testing.assert_array_equal(read_image(tmp_path / name), volume)


# ---- broken files ----


def test_files_that_are_no_images(tmp_path: Path) -> None:
    assert "no such file" in error(read_image, tmp_path / "missing.png")
    (tmp_path / "folder.png").mkdir()
    assert "is a directory" in error(read_image, tmp_path / "folder.png")
    (tmp_path / "text.png").write_text("this is no image")
    assert "is no image that Pillow knows" in error(read_image, tmp_path / "text.png")
    (tmp_path / "empty.png").write_bytes(b"")
    assert "is empty" in error(read_image, tmp_path / "empty.png")


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif", ".npy", ".npz"])
def test_truncated_files(tmp_path: Path, suffix: str) -> None:
    """Cut anywhere, a file is refused in one line; only the very end may be spared."""
    whole = tmp_path / f"whole{suffix}"
    image = RNG.integers(0, 256, size=(40, 50, 3), dtype=np.uint8)
    if suffix == ".npy":
        np.save(whole, image)
    elif suffix == ".npz":
        np.savez_compressed(whole, image)
    else:
        Image.fromarray(image).save(whole)
    data = whole.read_bytes()
    assert read_image(whole).shape == (40, 50, 3)
    cut = tmp_path / f"cut{suffix}"
    for share in np.linspace(0.02, 0.95, 25):
        cut.write_bytes(data[: int(share * len(data))])
        message = error(read_image, cut)
        assert any(w in message for w in ("cut short", "no image")), (share, message)


def test_damaged_files(tmp_path: Path) -> None:
    """Bytes changed at random: an array or one line, never anything else."""
    path = tmp_path / "x.png"
    Image.fromarray(RGB).save(path)
    good = path.read_bytes()
    refused = 0
    for _ in range(200):
        data = bytearray(good)
        data[RNG.integers(8, len(data))] = RNG.integers(256)
        path.write_bytes(bytes(data))
        try:
            read_image(path)
        except InputError as caught:
            refused += 1
            assert "\n" not in str(caught)
    assert refused > 50


def test_arrays_of_anything(tmp_path: Path) -> None:
    np.save(tmp_path / "o.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert "damaged" in error(read_image, tmp_path / "o.npy")
    np.savez(tmp_path / "none.npz")
    assert "holds no array" in error(read_image, tmp_path / "none.npz")


def test_pillow_is_named_if_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.fromarray(RGB).save(tmp_path / "x.png")
    np.save(tmp_path / "x.npy", RGB)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "proxfield\[images\]"'):
        read_image(tmp_path / "x.png")
    with pytest.raises(MissingDependencyError, match="Pillow"):
        write_labels(tmp_path / "y.png", RGB[..., 0])
    assert read_image(tmp_path / "x.npy").shape == RGB.shape


# ---- probabilities ----


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_probabilities_there_and_back(tmp_path: Path, dtype: str, suffix: str) -> None:
    write_probabilities(tmp_path / f"p{suffix}", P, dtype=dtype)
    found = read_probabilities(tmp_path / f"p{suffix}")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, P.astype(dtype).astype(np.float32))


def test_the_array_that_holds_probabilities(tmp_path: Path) -> None:
    other = np.zeros(3)
    for key in ("probabilities", "prob", "probs", "softmax"):
        np.savez(tmp_path / "p.npz", a=other, **{key: P})
        np.testing.assert_array_equal(read_probabilities(tmp_path / "p.npz"), P)
    np.savez(tmp_path / "p.npz", first=P, second=other)
    np.testing.assert_array_equal(read_probabilities(tmp_path / "p.npz"), P)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("rounded", [np.round, np.floor])
def test_shares_in_whole_numbers(tmp_path: Path, dtype: Any, first: bool, rounded: Any) -> None:
    full = np.iinfo(dtype).max
    p = P.transpose(2, 0, 1) if first else P
    np.save(tmp_path / "p.npy", rounded(p * full).astype(dtype))
    found = read_probabilities(tmp_path / "p.npy")
    np.testing.assert_allclose(found, p, atol=4 / full)
    np.testing.assert_allclose(found.sum(axis=0 if first else -1), 1, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int32, np.int64, np.uint64])
@pytest.mark.parametrize("first", [False, True])
def test_one_hot_maps_of_any_whole_numbers(tmp_path: Path, dtype: Any, first: bool) -> None:
    p = np.eye(P.shape[-1], dtype=dtype)[P.argmax(axis=-1)]
    p = p.transpose(2, 0, 1) if first else p
    np.save(tmp_path / "p.npy", p)
    found = read_probabilities(tmp_path / "p.npy")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, p)


def test_whole_numbers_that_are_no_probabilities(tmp_path: Path) -> None:
    for values in (RGB, RGB.astype(np.int64), np.zeros((4, 5, 3), dtype=np.uint8)):
        np.save(tmp_path / "x.npy", values)
        assert "expected probabilities as floats" in error(read_probabilities, tmp_path / "x.npy")
    Image.fromarray(RGB).save(tmp_path / "x.png")
    assert "is no gray picture" in error(read_probabilities, tmp_path / "x.png")


def test_masks_in_whole_numbers(tmp_path: Path) -> None:
    gray = RGB[..., 0]
    np.save(tmp_path / "x.npy", gray)
    Image.fromarray(gray).save(tmp_path / "x.png")
    Image.fromarray(gray.astype(np.uint16) * 257).save(tmp_path / "y.png")
    for name in ("x.npy", "x.png", "y.png"):
        np.testing.assert_allclose(read_probabilities(tmp_path / name), gray / 255, rtol=1e-6)


def test_bad_ways_to_write_probabilities(tmp_path: Path) -> None:
    assert ".npy or .npz" in error(write_probabilities, tmp_path / "x.png", P)
    assert "float16 or float32" in error(write_probabilities, tmp_path / "x.npy", P, dtype="int8")


# ---- label maps ----


@pytest.mark.parametrize("suffix", [".png", ".npy", ".npz"])
@pytest.mark.parametrize(("top", "dtype"), [(20, np.uint8), (255, np.uint8), (256, np.uint16)])
def test_labels_there_and_back(tmp_path: Path, suffix: str, top: int, dtype: Any) -> None:
    labels = RNG.integers(0, top + 1, size=(7, 9))
    labels[0, 0] = top
    write_labels(tmp_path / f"x{suffix}", labels)
    found, palette = read_labels(tmp_path / f"x{suffix}")
    colored = suffix == ".png" and top < 256
    assert palette == (label_colors(256).ravel().tolist() if colored else None)
    assert found.dtype == dtype or suffix == ".png"
    np.testing.assert_array_equal(found, labels)


def test_the_depth_follows_the_number_of_labels(tmp_path: Path) -> None:
    write_labels(tmp_path / "x.png", np.zeros((3, 4), dtype=int), 300)
    with Image.open(tmp_path / "x.png") as picture:
        assert picture.mode.startswith("I")
    write_labels(tmp_path / "y.png", np.zeros((3, 4), dtype=int), 256)
    with Image.open(tmp_path / "y.png") as picture:
        assert picture.mode == "P"


def test_label_pictures_show_the_colors_of_overlays(tmp_path: Path) -> None:
    labels = np.arange(21).reshape(3, 7)
    labels[0, 0] = 255
    write_labels(tmp_path / "x.png", labels)
    with Image.open(tmp_path / "x.png") as picture:
        assert (np.array(picture) == labels).all()  # what is stored are the labels
        seen = np.array(picture.convert("RGB"))
    assert (seen == overlay(None, labels)).all()
    assert tuple(seen[0, 0]) == IGNORED_COLOR
    assert len({tuple(color) for color in seen.reshape(-1, 3)}) == labels.size


def test_a_short_palette_keeps_labels_beyond_it(tmp_path: Path) -> None:
    write_labels(tmp_path / "x.png", [[0, 1], [2, 255]], palette=[255, 255, 255, 0, 0, 0])
    found, palette = read_labels(tmp_path / "x.png")
    assert found.tolist() == [[0, 1], [2, 255]]
    assert palette is not None and palette[:6] == [255, 255, 255, 0, 0, 0]


def test_palettes_are_kept(tmp_path: Path) -> None:
    labels = RNG.integers(0, 3, size=(7, 9), dtype=np.uint8)
    write_labels(tmp_path / "x.png", labels, palette=PALETTE)
    found, palette = read_labels(tmp_path / "x.png")
    np.testing.assert_array_equal(found, labels)
    assert palette is not None and palette[:9] == PALETTE
    np.testing.assert_array_equal(
        read_image(tmp_path / "x.png"), np.array(PALETTE, dtype=np.uint8).reshape(-1, 3)[labels]
    )


def test_volumes_of_labels(tmp_path: Path) -> None:
    volume = RNG.integers(0, 3, size=(3, 4, 5))
    write_labels(tmp_path / "x.npy", volume)
    np.testing.assert_array_equal(read_labels(tmp_path / "x.npy")[0], volume)
    assert "expected .npy" in error(write_labels, tmp_path / "x.png", volume)
    write_labels(tmp_path / "big.npy", np.array([[70_000]]))
    assert read_labels(tmp_path / "big.npy")[0][0, 0] == 70_000
    assert "expected .npy" in error(write_labels, tmp_path / "big.png", np.array([[70_000]]))


def test_bad_label_maps(tmp_path: Path) -> None:
    Image.fromarray(RGB).save(tmp_path / "rgb.png")
    assert "color picture (RGB)" in error(read_labels, tmp_path / "rgb.png")
    np.save(tmp_path / "f.npy", P)
    assert "whole numbers" in error(read_labels, tmp_path / "f.npy")
    assert "whole numbers" in error(write_labels, tmp_path / "x.png", P[..., 0])
    assert "whole numbers" in error(write_labels, tmp_path / "x.png", np.array([[-1]]))
    assert ".png, .npy or .npz" in error(write_labels, tmp_path / "x.jpg", np.zeros((2, 2), int))


@pytest.mark.parametrize("write", [write_labels, write_probabilities, write_overlay])
def test_places_that_cannot_be_written(tmp_path: Path, write: Any) -> None:
    """Also for the superuser: a folder in the way, a file in place of a folder, no folder."""
    suffix = ".npy" if write is write_probabilities else ".png"
    labels = np.zeros((7, 9), dtype=int)
    values = (RGB, labels) if write is write_overlay else (labels,)
    (tmp_path / f"folder{suffix}").mkdir()
    assert "is a directory" in error(write, tmp_path / f"folder{suffix}", *values)
    (tmp_path / "file").write_text("")
    assert "can't write" in error(write, tmp_path / "file" / f"x{suffix}", *values)
    assert "folder doesn't exist" in error(write, tmp_path / "no" / f"x{suffix}", *values)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", f"folder{suffix}"]


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    write_labels(tmp_path / "x.png", np.zeros((2, 2), dtype=int))
    before = (tmp_path / "x.png").read_bytes()
    monkeypatch.setattr("proxfield.io.files.os.fsync", full)
    assert "No space left" in error(write_labels, tmp_path / "x.png", np.ones((2, 2), dtype=int))
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [before]


# ---- overlays ----


def test_colors_are_told_apart() -> None:
    colors = label_colors(64).astype(int)
    assert colors.shape == (64, 3)
    gap = np.abs(colors[:, None] - colors[None]).sum(axis=2) + 999 * np.eye(64, dtype=int)
    assert gap.min() > 8
    assert gap[: len(LABEL_COLORS), : len(LABEL_COLORS)].min() > 60
    np.testing.assert_array_equal(label_colors(4, PALETTE)[:3].ravel(), PALETTE)
    np.testing.assert_array_equal(label_colors(4, PALETTE)[3], label_colors(4)[3])


def test_overlays(tmp_path: Path) -> None:
    labels = np.zeros((7, 9), dtype=int)
    labels[:, 4:] = 2
    blend = overlay(RGB, labels, opacity=0.5)
    expected = (RGB[2, 7].astype(float) + label_colors(3)[2]) / 2
    np.testing.assert_allclose(blend[2, 7], expected, atol=1)
    near_border = (0.1 * RGB[2, 3] + 0.9 * label_colors(3)[0].astype(float)).round()
    np.testing.assert_allclose(blend[2, 3], near_border, atol=1)
    np.testing.assert_array_equal(overlay(None, labels)[0, 0], label_colors(3)[0])
    np.testing.assert_array_equal(overlay(RGB.transpose(2, 0, 1), labels), overlay(RGB, labels))
    gray = overlay(RGB[..., 0], labels, opacity=0)
    np.testing.assert_array_equal(gray, np.repeat(RGB[..., :1], 3, axis=2))
    deep = overlay(RGB[..., 0].astype(np.uint16) * 200, labels, opacity=0)
    assert deep.min() == 0 and deep.max() == 255
    flat = overlay(np.full((7, 9), 3.0), labels, opacity=0)
    assert (flat == 0).all()
    legend = overlay(np.tile(RGB, (20, 20, 1)), np.tile(labels, (20, 20)), names=["sky"])
    assert legend.shape[0] > 140 and legend.shape[1] == 180
    np.testing.assert_array_equal(legend[-1, -1], 255)
    write_overlay(tmp_path / "x.png", RGB, labels, palette=PALETTE)
    np.testing.assert_array_equal(
        read_image(tmp_path / "x.png"), overlay(RGB, labels, palette=PALETTE)
    )


def test_bad_overlays(tmp_path: Path) -> None:
    labels = np.zeros((7, 9), dtype=int)
    for image, x, words in (
        (RGB[:-1], labels, "(6, 9, 3)"),
        (RGB, P, "two axes"),
        (RGB, labels - 1, "two axes"),
        (RGB, labels[:0], "two axes"),
    ):
        with pytest.raises(InputError, match=words.replace("(", r"\(").replace(")", r"\)")):
            overlay(image, x)
    with pytest.raises(InputError, match="opacity=2"):
        overlay(RGB, labels, opacity=2)
    assert "as .png" in error(write_overlay, tmp_path / "x.jpg", RGB, labels)


@pytest.mark.parametrize("dtype", ["<f4", ">f8", "u1", "?", "f2"])
@pytest.mark.parametrize("shape", [(3, 4, 2), (1, 1), (0, 3), ()])
def test_plain_arrays_are_read_as_numpy_reads_them(
    tmp_path: Path, dtype: str, shape: tuple[int, ...]
) -> None:
    """Without a copy, in both orders; what isn't plain takes numpy's own way."""
    from proxfield.io.windows import view_array

    values = np.random.default_rng(0).integers(0, 2, size=shape).astype(dtype)
    for given in (values, np.asfortranarray(values)):
        out = BytesIO()
        np.save(out, given)
        data = out.getvalue()
        found = view_array(data)
        assert found is not None
        assert found.dtype == given.dtype
        assert np.array_equal(found, np.load(BytesIO(data)))
        assert view_array(data + b"x") is None
        if values.size:
            assert view_array(data[:-1]) is None
    assert view_array(b"PK\x03\x04") is None


@pytest.mark.parametrize("bad", [1e300, np.inf, -1e19])
def test_labels_that_no_integer_holds_are_refused(bad: float) -> None:
    from proxfield.io.images import as_labels

    assert as_labels(np.array([[0.0, 3.0]]), "x.npy").tolist() == [[0, 3]]
    with pytest.raises(InputError, match=r"x\.npy: labels hold -?[0-9einf+.]+, expected whole"):
        as_labels(np.array([[0.0, bad]]), "x.npy")
