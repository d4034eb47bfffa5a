"""Images, probabilities and label maps in files. Pictures need Pillow; arrays need nothing.

Pictures (PNG, JPEG, TIFF and what else Pillow reads) and numpy's ``.npy`` and ``.npz``. Every
failure is one line that names the file; files are written aside and renamed.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from colorsys import hsv_to_rgb
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.arrays import Pixels
from proxfield.core.common.checks import whole_numbers
from proxfield.core.common.extras import import_extra
from proxfield.core.common.records import Record
from proxfield.errors import InputError, shown
from proxfield.io.files import Target, atomic_write, display_name, naming, naming_damage, read_bytes
from proxfield.io.tiff import GEO_REMEDY, has_deep_color, has_rasterio, read_geotiff
from proxfield.io.windows import compact, load_array

if TYPE_CHECKING:
    from PIL.Image import Image

import_pillow = partial(import_extra, "PIL.Image", "pictures need Pillow", "images")
"""Pillow's module ``Image``, or how to install it."""
ARRAYS = (".npy", ".npz")
PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp")
ORIENTATION = 0x0112
"""The EXIF tag of it."""
KEYS = ("probabilities", "prob", "probs", "softmax")
"""Names of the array to take from an ``.npz``; without any of these, the first."""

_PLAIN = {"1": np.uint8, "L": np.uint8, "RGB": np.uint8, "I": np.int32, "F": np.float32}

# Okabe and Ito's colors first, then others as far from these and from each other.
LABEL_COLORS = (
    *("#4D4D4D", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"),
    *("#7A3FBF", "#8B5E3C", "#B5E61D", "#E6194B", "#00CED1", "#FFB3A7", "#1B5E20", "#B0B7FF"),
    *("#800040", "#FFFFFF", "#33FF99", "#A0895A"),
)
"""Colors of the first labels."""
GOLDEN = 0.618033988749895
IGNORED = 255
IGNORED_COLOR = (224, 224, 192)
"""Of pixels to ignore, as in the label maps of PASCAL VOC."""


def read_image(path: Target, notes: list[str] | None = None) -> Pixels:
    """The pixels of an image.

    Gray pictures come without a channel axis; 16 bits stay 16 bits (color needs rasterio for that,
    Pillow reads it as 8-bit); palettes and other color spaces become RGB; alpha is dropped. A TIFF
    of several pages is a volume. Photographs are turned upright, as their EXIF orientation says.
    Arrays come as stored.

    Args:
        path: A picture, ``.npy`` or ``.npz`` (its first array).
        notes: Gets a line for what was dropped.

    Returns:
        The image.  # (height, width), (height, width, 3), or as stored

    Raises:
        InputError: If the file can't be read or is no whole image.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_labels(f"{folder}/x.png", np.eye(3, dtype=int))
        ...     read_image(f"{folder}/x.png").dtype
        dtype('uint8')
    """
    data, name = read_bytes(path)
    if is_array(data):
        return load_array(data, name, ())
    if has_deep_color(data):
        if has_rasterio():
            return read_geotiff(path, notes).values
        if notes is not None:
            notes.append(f"{name}: 16-bit color is read as 8-bit; rasterio reads all: {GEO_REMEDY}")
    pages = [pillow_pixels(page, name, notes) for page in _decode(data, name, notes)]
    return pages[0] if len(pages) == 1 else _stack(pages, name)


def read_probabilities(path: Target) -> Pixels:
    """Probabilities, stored as floats of any size or as whole numbers of 8 or 16 bits.

    Whole numbers stand for shares of 255 or 65535; they are taken for that only if they sum to
    about as much along the first or the last axis, and come normalized. One-hot maps may be whole
    numbers of any size. A gray picture, or an array of whole numbers with two axes, is a mask:
    shares of foreground. One of 0 and 1 alone is refused: it is a label map.

    Args:
        path: ``.npy``, or ``.npz`` with an array ``probabilities``, ``prob``, ``probs`` or
            ``softmax``; else its first array counts. Or a gray picture.

    Returns:
        The array as it was stored, float16 as float32.

    Raises:
        InputError: If the file can't be read or holds something else.
    """
    data, name = read_bytes(path)
    if is_array(data):
        values = load_array(data, name, KEYS)
    else:
        pages = _decode(data, name)
        gray = pages[0].mode in ("1", "L", "I") or pages[0].mode.startswith("I;16")
        if len(pages) > 1 or not gray:
            raise InputError(
                "is no gray picture, expected a mask, or .npy or .npz with probabilities (label "
                "maps are read as labels)",
                path=name,
            )
        values = pillow_pixels(pages[0], name, None)
    if values.dtype.kind in "iu" and values.ndim == 2 and values.size and values.max() == 1:
        raise InputError(
            "holds only 0 and 1, expected shares of foreground out of 255 (65535 in 16 bits); this "
            "is a label map: refine --labels, or read_labels",
            path=name,
        )
    return as_probabilities(values, name)


def as_probabilities(values: Pixels, name: str) -> Pixels:
    """Stored numbers as floats; see `read_probabilities`."""
    if values.dtype.kind == "f":
        return values.astype(np.float32) if values.dtype.itemsize < 4 else values
    if values.dtype == np.bool_:
        return values.astype(np.float32)
    ends = (0, values.ndim - 1)
    counts = values.dtype.kind in "iu" and values.ndim > 2 and (values >= 0).all()
    if counts and any((values.sum(axis=a, dtype=np.int64) == 1).all() for a in ends):
        return values.astype(np.float32)  # one-hot
    if values.dtype in (np.uint8, np.uint16) and values.ndim > 1:
        full = np.iinfo(values.dtype).max
        for axis in ends:
            sums = values.sum(axis=axis, dtype=np.int64, keepdims=True)
            # rounding moves each share by up to one, cutting off or to the nearest
            if (np.abs(sums - full) <= values.shape[axis]).all() and sums.all():
                return np.asarray(values / sums.astype(np.float32))
        if values.ndim == 2:
            return np.asarray(values / np.float32(full))
    raise InputError(
        f"holds {values.dtype} of shape {values.shape}, expected probabilities as floats, or as "
        "shares of 255 (uint8) or 65535 (uint16); a label map: refine --labels, or read_labels",
        path=name,
    )


def read_logits(path: Target) -> Pixels:
    """Scores of a network: floats in ``.npy``, or in ``.npz`` an array ``logits`` or ``scores``.

    Raises:
        InputError: If the file can't be read or holds something else.
    """
    return as_logits(read_array(path, "logits", ("logits", "scores")), display_name(path))


def as_logits(values: Pixels, name: str) -> Pixels:
    """Stored scores, checked to be floats; float16 as float32."""
    if values.dtype.kind != "f":
        raise InputError(f"holds {values.dtype}, expected logits as floats", path=name)
    return values.astype(np.float32) if values.dtype.itemsize < 4 else values


def read_array(path: Target, what: str, keys: tuple[str, ...] = ()) -> Pixels:
    """The array of a ``.npy`` file, or one of a ``.npz`` file: the first that a key names, if any.

    Raises:
        InputError: If the file can't be read or holds no array; it says what was expected.
    """
    data, name = read_bytes(path)
    if not is_array(data):
        raise InputError(f"is no numpy array, expected .npy or .npz with {what}", path=name)
    return load_array(data, name, keys)


def read_labels(path: Target) -> tuple[Pixels, list[int] | None]:
    """A label map: the numbers of a palette or gray picture, or an array of whole numbers.

    Transparent pixels of a gray picture come as 255: strokes on a clear sheet are scribbles.

    Returns:
        The labels, and the palette as Pillow lists it (r, g, b, r, …), None without one.

    Raises:
        InputError: If the file can't be read or holds no labels.
    """
    data, name = read_bytes(path)
    if is_array(data):
        values = load_array(data, name, ("labels",))
        if values.dtype.kind not in "iub":
            raise InputError(f"holds {values.dtype}, expected labels as whole numbers", path=name)
        return values, None
    pages = list(_decode(data, name))
    for page in pages:
        if page.mode not in ("1", "L", "LA", "P", "I") and not page.mode.startswith("I;16"):
            raise InputError(
                f"is a color picture ({page.mode}), expected label numbers: a palette or gray",
                path=name,
            )
    palette = pages[0].getpalette() if pages[0].mode == "P" else None
    stored = [np.array(page) for page in pages]
    stored = [x if x.ndim < 3 else np.where(x[..., 1] == 0, 255, x[..., 0]) for x in stored]
    return (stored[0] if len(stored) == 1 else _stack(stored, name)), palette


def as_labels(values: Pixels, name: str) -> Pixels:
    """Labels as whole numbers; floats only if they are whole."""
    with naming(name):
        if values.dtype.kind == "f" and (values == np.rint(values)).all():
            values = whole_numbers(values, "labels")
        if values.dtype.kind not in "iub":
            raise InputError(f"holds {values.dtype}, expected labels as whole numbers")
    return values


def write_labels(
    path: Target,
    labels: ArrayLike,
    n_labels: int | None = None,
    *,
    palette: list[int] | None = None,
) -> None:
    """Write a label map as ``.png``, ``.npy`` or ``.npz``.

    A picture of up to 256 labels has 8 bits and a palette, so that viewers show colors, those of
    overlays; what it holds are the labels. With more labels it is gray, with 16 bits.

    Args:
        path: Where to write.
        labels: Whole numbers from 0; a picture needs two axes.
        n_labels: How many labels there are, which decides on the size; by default one more
            than the largest.
        palette: Colors for an 8-bit picture, as from `read_labels`; by default
            `label_colors`.

    Raises:
        InputError: If labels don't fit, or the file can't be written.
    """
    values = np.asarray(labels)
    name = display_name(path)
    if values.dtype.kind not in "iub" or (values.size and values.min() < 0):
        raise InputError("labels must be whole numbers, 0 or more", path=name)
    top = max(int(values.max(initial=0)), (n_labels or 1) - 1)
    values = compact(values, top)
    suffix = Path(path).suffix.lower()
    if suffix in ARRAYS:
        atomic_write(path, _array_bytes(values, suffix, "labels"))
        return
    if suffix != ".png":
        raise InputError("labels are written as .png, .npy or .npz", path=name)
    if values.ndim != 2 or values.dtype == np.int64:
        what = f"shape {values.shape}" if values.ndim != 2 else f"{top + 1} labels"
        raise InputError(f"labels of {what} don't fit a picture, expected .npy", path=name)
    picture = import_pillow().fromarray(values)
    if values.dtype == np.uint8:  # L becomes P
        count = 256 if palette is None else max(len(palette) // 3, top + 1)
        picture.putpalette(label_colors(count, palette).ravel().tolist())
    atomic_write(path, png_bytes(picture))


def write_probabilities(path: Target, values: ArrayLike, *, dtype: str = "float32") -> None:
    """Write probabilities as ``.npy`` or compressed ``.npz``, in float16 or float32."""
    suffix = Path(path).suffix.lower()
    name = display_name(path)
    if suffix not in ARRAYS:
        raise InputError("probabilities are written as .npy or .npz", path=name)
    if dtype not in ("float16", "float32"):
        raise InputError(f"dtype={shown(dtype)}, expected float16 or float32", path=name)
    atomic_write(path, _array_bytes(np.asarray(values, dtype=dtype), suffix, "probabilities"))


def _decode(data: bytes, name: str, notes: list[str] | None = None) -> list[Image]:
    """All pages of a TIFF, the first of anything else; decoded, so that damage shows here.

    Photographs come upright: cameras store them as the sensor lies and note how it was held.
    """
    pillow = import_pillow()
    from PIL import ImageOps

    pages: list[Image] = []
    refused = (pillow.UnidentifiedImageError, pillow.DecompressionBombError)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # size: memory decides; odd metadata: not ours
        try:
            with naming_damage(name, "image", *refused), pillow.open(BytesIO(data)) as picture:
                tiff = picture.format == "TIFF"
                for k in range(getattr(picture, "n_frames", 1) if tiff else 1):
                    picture.seek(k)
                    # loading the last page may close the file; elsewhere asking would load it
                    turned = tiff and _is_turned(picture)
                    picture.load()
                    turned = turned or (not tiff and _is_turned(picture))
                    pages.append(ImageOps.exif_transpose(picture) if turned else picture.copy())
                    if turned and notes is not None:
                        notes.append(f"{name}: turned upright, as its EXIF orientation says")
        except pillow.UnidentifiedImageError:
            what = "is empty" if not data else "is no image that Pillow knows"
            raise InputError(f"{what}, expected PNG, JPEG, TIFF, .npy or .npz", path=name) from None
        except pillow.DecompressionBombError:
            raise InputError(
                "has more pixels than Pillow reads, expected a smaller picture, or .npy", path=name
            ) from None
    return pages


def _is_turned(picture: Image) -> bool:
    """Whether a camera noted that it wasn't held upright."""
    try:
        return picture.getexif().get(ORIENTATION, 1) in range(2, 9)
    except Exception:  # of many kinds: damaged metadata says nothing
        return False


def pillow_pixels(page: Image, name: str, notes: list[str] | None) -> Pixels:
    """One page as an array."""
    mode = page.mode
    if mode.startswith("I;16"):
        return np.array(page).astype(np.uint16)
    alpha = mode in ("LA", "La", "RGBA", "RGBa", "PA") or "transparency" in page.info
    if alpha and notes is not None:
        notes.append(f"{name}: its alpha channel is dropped")
    if mode in ("LA", "La"):
        page = page.convert("LA").convert("L")
    elif mode in ("P", "PA", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV"):
        page = page.convert("RGBA").convert("RGB") if alpha else page.convert("RGB")
    if page.mode not in _PLAIN:
        raise InputError(f"has pixels of mode {mode}, expected gray or RGB", path=name)
    values = np.array(page)
    if mode == "1":
        return values.astype(np.uint8) * 255
    if mode == "I" and values.min() >= 0 and values.max() < 65536:
        return values.astype(np.uint16)  # older Pillows read 16 bits like this
    return values.astype(_PLAIN[page.mode])


def _stack(pages: list[Pixels], name: str) -> Pixels:
    """Pages as a volume."""
    shapes = {(page.shape, page.dtype) for page in pages}
    if len(shapes) > 1:
        raise InputError(
            f"has pages of different sizes, {pages[0].shape} for one, expected equal ones",
            path=name,
        )
    return np.stack(pages)


def png_bytes(picture: Image) -> bytes:
    """A picture as a PNG file."""
    out = BytesIO()
    picture.save(out, format="PNG")
    return out.getvalue()


def is_array(data: bytes) -> bool:
    """Whether these bytes begin like ``.npy`` or ``.npz``."""
    return data.startswith((b"\x93NUMPY", b"PK\x03\x04", b"PK\x05\x06"))


def _array_bytes(values: Pixels, suffix: str, key: str) -> bytes:
    out = BytesIO()
    if suffix == ".npy":
        np.save(out, values, allow_pickle=False)
    else:
        named: Record = {key: values}
        np.savez_compressed(out, **named)
    return out.getvalue()


def label_colors(count: int, palette: Sequence[int] | None = None) -> NDArray[np.uint8]:
    """A color for each label: of a palette, a published one, or made up.  # (count, 3)

    255, which stands for pixels to ignore, has a color of its own.

    Example:
        >>> label_colors(3)[1].tolist()
        [230, 159, 0]
    """
    if palette is not None:
        given = np.array(palette, dtype=np.uint8)[: 3 * count].reshape(-1, 3)
        return np.concatenate([given, label_colors(count)[len(given) :]])
    known = [[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in LABEL_COLORS[:count]]
    for k in range(count - len(known)):  # hues a golden section apart never come close soon
        tone = hsv_to_rgb(k * GOLDEN % 1, (0.55, 0.9)[k % 2], (0.95, 0.65, 0.8)[k % 3])
        known.append([round(255 * part) for part in tone])
    if count > IGNORED:
        known[IGNORED] = [*IGNORED_COLOR]
    return np.array(known, dtype=np.uint8).reshape(-1, 3)
