"""The files of ``proxfield refine``: which go together, how large they are, where results go.

Beside each result a small JSON file says how it was made. A result is finished if that file has the
same parameters and is newer than what it was made of; any other is made again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import TypeAlias

import click

from proxfield._version import __version__
from proxfield.cli.shared import check_target
from proxfield.core.common import memory
from proxfield.core.common.memory import human_bytes
from proxfield.core.common.records import Record, plain
from proxfield.core.jobs.running import import_joblib
from proxfield.errors import InputError
from proxfield.io import windows
from proxfield.io.files import atomic_write, display_name, ending, stem
from proxfield.io.images import ARRAYS, PICTURES, import_pillow
from proxfield.io.remote import AnyPath, RemotePath, is_remote, make_path
from proxfield.io.tiff import GEOTIFF, NIFTI, has_rasterio, import_nibabel, is_geotiff
from proxfield.io.windows import is_zarr

FilePath: TypeAlias = AnyPath
"""A file of this machine, or of a store."""
IMAGES = (*PICTURES, *ARRAYS, *NIFTI)
LABEL_MAPS = (".png", ".tif", ".tiff", ".bmp", *ARRAYS, *NIFTI)
SCORES = (*ARRAYS, *NIFTI, *GEOTIFF)
MASKS = (".png", ".bmp")
"""Probabilities too, of foreground; in a folder they count where there is nothing else."""
SUFFIXES = {"labels": (".png", ".npy"), "probabilities": (".npz",)}
"""Names of results in a folder end in one of these (volumes don't fit a picture)."""
SAMPLED_FILES = 200
"""Files, the largest ones, whose sizes decide how many images are refined at once."""
ENTRY_BYTES = 60
PIXEL_BYTES = 650
PROCESS_BYTES = 300 * 2**20
"""Memory that an image takes for each pixel and label, for each pixel, and in any case: measured
on images of 0.3 megapixels with 3 and with 21 labels."""
MAX_NAMED_FILES = 5
"""Files that a message about many of them names."""


@dataclass(frozen=True)
class Pair:
    """One image, what is known about its pixels, and where the result goes."""

    image: FilePath
    unary: FilePath
    targets: tuple[FilePath, ...]
    """Where the result goes: the first of these whose kind can hold it."""
    overlay: FilePath | None = None
    scribbles: FilePath | None = None

    @property
    def inputs(self) -> list[FilePath]:
        """The files that are read."""
        return [p for p in (self.image, self.unary, self.scribbles) if p is not None]

    @property
    def outputs(self) -> list[FilePath]:
        """The files that are written, or could be."""
        return [*self.targets, *([] if self.overlay is None else [self.overlay])]


def find_images(given: Sequence[str]) -> list[FilePath]:
    """Files as named, and all images in folders as named."""
    found: list[FilePath] = []
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


def list_folder(folder: FilePath, suffixes: Iterable[str]) -> list[FilePath]:
    """Files with such suffixes, in order; hidden ones left out."""
    kinds = tuple(suffixes)
    inside: list[FilePath] = sorted(folder.iterdir(), key=lambda path: path.name)
    return [p for p in inside if ending(p) in kinds and not p.name.startswith(".")]


def find_partners(
    images: Sequence[FilePath], given: str, option: str, *, optional: bool = False
) -> dict[FilePath, FilePath]:
    """For images the files of the same stem in a folder; for one image also a file.

    Args:
        images: The images.
        given: A file or a folder.
        option: The option that named it.
        optional: Some of the images may have no file.
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
        return dict.fromkeys(images, place)
    suffixes = SCORES if option in ("--probs", "--logits") else LABEL_MAPS
    by_stem: dict[str, list[FilePath]] = {}
    for kinds in (suffixes, MASKS if option == "--probs" else ()):
        known = set(by_stem)
        for path in list_folder(place, kinds):
            if stem(path) not in known:
                by_stem.setdefault(stem(path), []).append(path)
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
    return {image: by_stem[stem(image)][0] for image in images if stem(image) in by_stem}


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
    images: Sequence[FilePath],
    unaries: Mapping[FilePath, FilePath],
    output: str,
    overlay: str | None,
    kind: str,
    scribbles: Mapping[FilePath, FilePath] = MappingProxyType({}),
    *,
    others: Sequence[FilePath] = (),
    overlay_option: str = "--overlay",
) -> list[Pair]:
    """Where everything goes; refuses what would overwrite an input or another result.

    Args:
        images: The images.
        unaries: What is known about the pixels of each.
        output: A folder, or a file for one image.
        overlay: A folder or a file for pictures.
        kind: "labels" or "probabilities".
        scribbles: Scribbles of images.
        others: Other inputs, which no result may overwrite.
        overlay_option: The option that named ``overlay``.
    """
    targets = place_outputs(images, output, "-o", kind)
    pictures: Sequence[tuple[FilePath | None, ...]] = [(None,)] * len(images)
    if overlay is not None:
        pictures = place_outputs(images, overlay, overlay_option, "overlay")
    pairs = [
        Pair(image, unaries[image], target, picture[0], scribbles.get(image))
        for image, target, picture in zip(images, targets, pictures, strict=True)
    ]
    inputs = [*(path for pair in pairs for path in pair.inputs), *others]
    taken = {_identity(path): f"the input {path}" for path in inputs}
    for pair in pairs:
        for path in pair.outputs:
            real = _identity(path)
            if real in taken:
                raise click.UsageError(
                    f"the result {path} of {pair.image} would overwrite {taken[real]}; "
                    "choose another folder or other names"
                )
            taken[real] = f"that of {pair.image}"
    return pairs


def _identity(path: FilePath) -> str:
    """What two names of the same file have in common."""
    return str(path) if isinstance(path, RemotePath) else os.path.realpath(path)


def is_file_name(given: str) -> bool:
    """Whether an output names a file and not a folder."""
    if ending(given) == ".zarr":
        return not make_path(given).is_dir() or is_zarr(given)
    return ending(given) in IMAGES and not make_path(given).is_dir()


def place_outputs(
    images: Sequence[FilePath], given: str, option: str, kind: str
) -> list[tuple[FilePath, ...]]:
    """Names for each image's result: in a folder, or the very file named for one image."""
    place = make_path(given)
    own: list[str | None] = [None] * len(images)  # the kind of file that keeps an image's place
    for k, image in enumerate(images if kind != "overlay" else ()):
        if ending(image) in NIFTI:
            own[k] = ".nii.gz"
        elif is_geotiff(image) and has_rasterio():
            own[k] = ".tif"
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


# ---- memory ----


def bytes_needed(pair: Pair, n_labels: int | None) -> int:
    """About how much memory one image takes, from the headers of its files."""
    try:
        shape = stored_shape(pair.unary)
    except Exception:  # of many libraries: the file will be reported when its turn comes
        return PROCESS_BYTES
    size = prod(shape)
    if ending(pair.unary) in ARRAYS and n_labels is None:
        pixels = size // max(1, min(shape[0], shape[-1])) if shape else 1
    else:
        pixels, size = size, size * (n_labels or 32)
    return PROCESS_BYTES + PIXEL_BYTES * pixels + ENTRY_BYTES * size


def stored_shape(path: FilePath) -> tuple[int, ...]:
    """The shape of an array or a picture, without reading it."""
    suffix = ending(path)
    if suffix in NIFTI:
        return tuple(import_nibabel().load(path).shape)
    if suffix not in ARRAYS:
        with import_pillow().open(path) as picture:
            return (picture.height, picture.width)
    return windows.stored_shape(path)


def affordable_jobs(wanted: int, pairs: Sequence[Pair], n_labels: int | None) -> tuple[int, str]:
    """How many images to refine at once, and why if these are fewer than wanted."""
    jobs = max(1, min(wanted, len(pairs)))
    left = memory.available_memory()
    if jobs == 1 or left is None:
        return jobs, ""
    largest = sorted(pairs, key=lambda pair: pair.unary.stat().st_size)[-SAMPLED_FILES:]
    worst = max(bytes_needed(pair, n_labels) for pair in largest)
    fitting = max(1, int(0.8 * left) // worst)
    if fitting >= jobs:
        return jobs, ""
    return fitting, (
        f"{fitting} instead of {jobs} jobs: an image takes about {human_bytes(worst)}, and "
        f"{human_bytes(left)} are available"
    )


def check_packages(pairs: Sequence[Pair], jobs: int | None) -> None:
    """Name a package that is missing before the work begins, not once for each image."""
    if jobs is None or jobs > 1:
        import_joblib()
    kinds = {ending(path) for pair in pairs for path in (*pair.inputs, pair.overlay or ".")}
    if kinds & {*PICTURES}:
        import_pillow()
    if kinds & {*NIFTI}:
        import_nibabel()


# ---- how results were made ----


def record_path(target: FilePath) -> FilePath:
    """The file that says how a result was made.

    Example:
        >>> from pathlib import Path
        >>> record_path(Path("out/a.png")).name
        'a.png.json'
    """
    return target.with_name(f"{target.name}.json")


def write_record(
    pair: Pair, what: str, parameters: Record, target: FilePath, summary: Record
) -> None:
    """Say how a result was made; written last, so that it says that all is there."""
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
    for target in pair.targets:
        if not target.exists():
            continue
        beside = record_path(target)
        try:
            stored = json.loads(beside.read_text(encoding="utf-8"))
            made = beside.stat().st_mtime_ns
            if stored["parameters"] == wanted and made >= max(
                p.stat().st_mtime_ns for p in pair.inputs
            ):
                return True
        except (OSError, ValueError, KeyError, TypeError):
            continue  # none, or none of ours: made again
    return False
