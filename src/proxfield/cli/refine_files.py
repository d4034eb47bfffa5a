"""The files of ``proxfield refine``: which go together, and where results go.

Beside each result a small JSON file says how it was made. A result is finished if that file has the
same parameters and is newer than what it was made of; any other is made again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import overload

import click

from proxfield._version import __version__
from proxfield.cli.shared import check_target
from proxfield.core.common.records import Record, plain
from proxfield.errors import InputError
from proxfield.io.files import atomic_write, display_name, ending, stem
from proxfield.io.images import ARRAYS, PICTURES
from proxfield.io.remote import AnyPath, RemotePath, is_remote, make_path
from proxfield.io.tiff import GEOTIFF, NIFTI, has_rasterio, is_geotiff
from proxfield.io.windows import is_zarr

IMAGES = (*PICTURES, *ARRAYS, *NIFTI)
LABEL_MAPS = (".png", ".tif", ".tiff", ".bmp", *ARRAYS, *NIFTI)
SCORES = (*ARRAYS, *NIFTI, *GEOTIFF)
MASKS = (".png", ".bmp")
"""Probabilities too, of foreground; in a folder they count where there is nothing else."""
SUFFIXES = {"labels": (".png", ".npy"), "probabilities": (".npz",)}
"""Names of results in a folder end in one of these (volumes don't fit a picture)."""
MAX_NAMED_FILES = 5
"""Files that a message about many of them names."""


@dataclass(frozen=True)
class Pair:
    """One image, what is known about its pixels, and where the result goes."""

    image: AnyPath
    unary: AnyPath
    targets: tuple[AnyPath, ...]
    """Where the result goes: the first of these whose kind can hold it."""
    overlay: AnyPath | None = None
    scribbles: AnyPath | None = None


def find_images(given: Sequence[str]) -> list[AnyPath]:
    """Files as named, and all images in folders as named."""
    found: list[AnyPath] = []
    for text in given:
        path = make_path(text)
        if path.is_dir() and not is_zarr(path):
            inside = list_folder(path, IMAGES)
            if not inside:
                raise InputError("holds no images, expected some", path=display_name(path))
            found += inside
        elif not path.exists():
            raise InputError(
                "no such file, expected an existing file (check the spelling and the folder)",
                path=display_name(path),
            )
        else:
            found.append(path)
    return found


def list_folder(folder: AnyPath, suffixes: Iterable[str]) -> list[AnyPath]:
    """Files with such suffixes, in order; hidden ones left out."""
    kinds = tuple(suffixes)
    inside: list[AnyPath] = sorted(folder.iterdir(), key=lambda path: path.name)
    return [p for p in inside if ending(p) in kinds and not p.name.startswith(".")]


@overload
def find_partners(images: Sequence[AnyPath], given: str, option: str) -> list[AnyPath]: ...


@overload
def find_partners(
    images: Sequence[AnyPath], given: str, option: str, *, optional: bool
) -> list[AnyPath | None]: ...


def find_partners(
    images: Sequence[AnyPath], given: str, option: str, *, optional: bool = False
) -> list[AnyPath | None] | list[AnyPath]:
    """For each image the file of the same stem in a folder; for one image also a file.

    Args:
        images: The images.
        given: A file or a folder.
        option: The option that named it.
        optional: Images without a file get None instead of an error.
    """
    place, name = make_path(given), display_name(given)
    what = {"--probs": "probabilities"}.get(option, option.lstrip("-"))
    if not place.is_dir() or is_zarr(place):
        if len(images) > 1:
            raise click.UsageError(
                f"{option} {name} for {len(images)} images, expected a folder of files with "
                "the names of the images"
            )
        if not place.exists():
            raise InputError(f"{option}: no such file, expected {what}", path=name)
        return [place]
    suffixes = SCORES if option in ("--probs", "--logits") else LABEL_MAPS
    by_stem = _by_stem(place, suffixes)
    if option == "--probs":
        by_stem = {**_by_stem(place, MASKS), **by_stem}
    missing = [image.name for image in images if stem(image) not in by_stem]
    if missing and (not optional or len(missing) == len(images)):
        example = f"{stem(missing[0])}{suffixes[0]}"
        raise InputError(
            f"{option}: no {what} for {len(missing)} of {len(images)} images: {some(missing)}; "
            f"expected {example}, for one",
            path=name,
        )
    for image in images:
        several = by_stem.get(stem(image), [])
        if len(several) > 1:
            raise InputError(
                f"{option}: {some([p.name for p in several])} all go with {image.name}, "
                "expected one",
                path=name,
            )
    found = [by_stem.get(stem(image)) for image in images]
    return [None if there is None else there[0] for there in found]


def _by_stem(folder: AnyPath, suffixes: Sequence[str]) -> dict[str, list[AnyPath]]:
    found: dict[str, list[AnyPath]] = {}
    for path in list_folder(folder, suffixes):
        found.setdefault(stem(path), []).append(path)
    return found


def some(names: Sequence[str]) -> str:
    """The first few names, and how many more.

    Example:
        >>> some(["a", "b"]), some(list("abcdefg"))
        ('a, b', 'a, b, c, d, e and 2 more')
    """
    more = len(names) - MAX_NAMED_FILES
    first = ", ".join(display_name(name) for name in names[:MAX_NAMED_FILES])
    return f"{first} and {more} more" if more > 0 else first


def make_pairs(
    images: Sequence[AnyPath],
    unaries: Sequence[AnyPath | None],
    output: str,
    overlay: str | None,
    kind: str,
    scribbles: Sequence[AnyPath | None] = (),
    *,
    others: Sequence[AnyPath] = (),
    overlay_option: str = "--overlay",
) -> list[Pair]:
    """Where everything goes; refuses what would overwrite an input or another result.

    Args:
        images: The images.
        unaries: What is known about the pixels of each.
        output: A folder, or a file for one image.
        overlay: The same for pictures.
        kind: "labels" or "probabilities".
        scribbles: Scribbles of each image.
        others: Other inputs, which no result may overwrite.
        overlay_option: The option that named ``overlay``.
    """
    targets = place_outputs(images, output, "-o", kind)
    pictures: Sequence[tuple[AnyPath | None, ...]] = [(None,)] * len(images)
    if overlay is not None:
        pictures = place_outputs(images, overlay, overlay_option, "overlay")
    strokes = list(scribbles) or [None] * len(images)
    inputs = [path for path in (*images, *unaries, *strokes, *others) if path is not None]
    taken = {_identity(path): f"the input {path}" for path in inputs}
    pairs = []
    for image, unary, target, picture, stroke in zip(
        images, unaries, targets, pictures, strokes, strict=True
    ):
        assert unary is not None
        pairs.append(Pair(image, unary, target, picture[0], stroke))
        for path in (*target, *picture):
            if path is None:
                continue
            real = _identity(path)
            if real in taken:
                raise click.UsageError(
                    f"the result {path} of {image} would overwrite {taken[real]}; "
                    "choose another folder or other names"
                )
            taken[real] = f"that of {image}"
    return pairs


def _identity(path: AnyPath) -> str:
    """What two names of the same file have in common."""
    return str(path) if isinstance(path, RemotePath) else os.path.realpath(path)


def is_file_name(given: str) -> bool:
    """Whether an output names a file and not a folder."""
    if ending(given) == ".zarr":
        return not make_path(given).is_dir() or is_zarr(given)
    return ending(given) in IMAGES and not make_path(given).is_dir()


def own_suffix(image: AnyPath) -> str | None:
    """The kind of file that keeps the place of an image; None if it has none, or can't be kept."""
    if ending(image) in NIFTI:
        return ".nii.gz"
    return ".tif" if is_geotiff(image) and has_rasterio() else None


def place_outputs(
    images: Sequence[AnyPath], given: str, option: str, kind: str
) -> list[tuple[AnyPath, ...]]:
    """Names for each image's result: in a folder, or the very file named for one image.

    Args:
        images: The images.
        given: A folder or a file.
        option: The option that named it.
        kind: "labels", "probabilities" or "overlay".
    """
    place = make_path(given)
    own = [None if kind == "overlay" else own_suffix(image) for image in images]
    if is_file_name(given):
        if len(images) > 1:
            raise click.UsageError(f"{option} {given!r} for {len(images)} images is no folder")
        allowed = {"labels": (".png", *ARRAYS), "probabilities": ARRAYS, "overlay": (".png",)}[kind]
        placed = {".nii.gz": NIFTI, ".tif": GEOTIFF}.get(own[0] or "", ())
        windowed = () if kind == "overlay" else (".zarr", *GEOTIFF)
        if ending(place) not in (*allowed, *placed, *windowed):
            raise click.UsageError(
                f"{option} {given!r}, expected a folder or a name ending in "
                f"{', '.join((*allowed, *placed))}"
            )
        if not is_remote(given) and ending(place) != ".zarr":
            check_target(given, option)
        return [(place,)]
    plain = (".png",) if kind == "overlay" else SUFFIXES[kind]
    return [
        tuple(place / f"{stem(image)}{s}" for s in (plain if suffix is None else (suffix,)))
        for image, suffix in zip(images, own, strict=True)
    ]


def make_folder(given: str, option: str) -> None:
    """The folder of results, made if need be."""
    path = make_path(given)
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not isinstance(path, RemotePath) and not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(13, "permission denied")
    except OSError as error:
        why = "a file is in the way" if isinstance(error, FileExistsError) else error.strerror
        raise InputError(
            f"{option}: can't write there, {why}, expected a folder", path=display_name(path)
        ) from None


# ---- how results were made ----


def record_path(target: AnyPath) -> AnyPath:
    """The file that says how a result was made.

    Example:
        >>> from pathlib import Path
        >>> record_path(Path("out/a.png")).name
        'a.png.json'
    """
    return target.with_name(f"{target.name}.json")


def write_record(
    pair: Pair, what: str, parameters: Record, target: AnyPath, summary: Record
) -> None:
    """Say how a result was made; written last, so that it says that all is there.

    Args:
        pair: The files.
        what: What is known about the pixels: "probabilities", "logits" or "labels".
        parameters: All else that decides on a result.
        target: The result.
        summary: What it came to.
    """
    data = {
        "proxfield": __version__,
        "image": str(pair.image),
        what: str(pair.unary),
        **({} if pair.scribbles is None else {"scribbles": str(pair.scribbles)}),
        "parameters": parameters,
        "result": {
            k: summary[k] for k in ("pixels", "n_labels", "status", "iterations", "changed")
        },
    }
    atomic_write(record_path(target), json.dumps(plain(data), indent=1, allow_nan=False) + "\n")


def is_finished(pair: Pair, wanted: Record) -> bool:
    """Whether all files of a pair are there, made with these parameters and from these files."""
    if pair.overlay is not None and not pair.overlay.exists():
        return False
    inputs = [p for p in (pair.image, pair.unary, pair.scribbles) if p is not None]
    for target in pair.targets:
        if not target.exists():
            continue
        beside = record_path(target)
        try:
            stored = json.loads(beside.read_text(encoding="utf-8"))
            made = beside.stat().st_mtime_ns
            if stored["parameters"] == wanted and made >= max(p.stat().st_mtime_ns for p in inputs):
                return True
        except (OSError, ValueError, KeyError, TypeError):
            continue  # none, or none of ours: made again
    return False
