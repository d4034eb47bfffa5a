"""The files of ``proxfield refine``: which go together, and where results go."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from proxfield.errors import InputError
from proxfield.io.files import display_name
from proxfield.io.images import ARRAYS, PICTURES

LABEL_MAPS = (".png", ".tif", ".tiff", ".bmp", *ARRAYS)
SUFFIXES = {"labels": (".png", ".npy"), "probabilities": (".npz",)}
"""Names of results in a folder end in one of these (volumes don't fit a picture)."""
MAX_NAMED_FILES = 5
"""Files that a message about many of them names."""


@dataclass(frozen=True)
class Pair:
    """One image, what is known about its pixels, and where the result goes."""

    image: Path
    unary: Path
    targets: tuple[Path, ...]
    """Where the result goes: the first of these whose kind can hold it."""
    overlay: Path | None = None

    @property
    def finished(self) -> bool:
        """Whether all files that would be written exist."""
        done = any(target.exists() for target in self.targets)
        return done and (self.overlay is None or self.overlay.exists())


def find_images(given: Sequence[str]) -> list[Path]:
    """Files as named, and all images in folders as named."""
    found: list[Path] = []
    for text in given:
        path = Path(text)
        if path.is_dir():
            inside = list_folder(path, (*PICTURES, *ARRAYS))
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


def list_folder(folder: Path, suffixes: Iterable[str]) -> list[Path]:
    """Files with such suffixes, in order; hidden ones left out."""
    kinds = tuple(suffixes)
    inside = sorted(folder.iterdir())
    return [p for p in inside if p.suffix.lower() in kinds and not p.name.startswith(".")]


def find_partners(images: Sequence[Path], given: str, option: str) -> list[Path]:
    """For each image the file of the same stem in a folder; for one image also a file."""
    place, name = Path(given), display_name(given)
    what = "probabilities" if option == "--probs" else "labels"
    if not place.is_dir():
        if len(images) > 1:
            raise click.UsageError(
                f"{option} {name} for {len(images)} images, expected a folder of files with "
                "the names of the images"
            )
        if not place.exists():
            raise InputError(f"{option}: no such file, expected {what}", path=name)
        return [place]
    suffixes = ARRAYS if option == "--probs" else LABEL_MAPS
    by_stem: dict[str, list[Path]] = {}
    for path in list_folder(place, suffixes):
        by_stem.setdefault(path.stem, []).append(path)
    missing = [image.name for image in images if image.stem not in by_stem]
    if missing:
        example = f"{Path(missing[0]).stem}{suffixes[0]}"
        raise InputError(
            f"{option}: no {what} for {len(missing)} of {len(images)} images: {some(missing)}; "
            f"expected {example}, for one",
            path=name,
        )
    for image in images:
        several = by_stem[image.stem]
        if len(several) > 1:
            raise InputError(
                f"{option}: {some([p.name for p in several])} all go with {image.name}, "
                "expected one",
                path=name,
            )
    return [by_stem[image.stem][0] for image in images]


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
    images: Sequence[Path], unaries: Sequence[Path], output: str, overlay: str | None, kind: str
) -> list[Pair]:
    """Where everything goes; refuses what would overwrite an input or another result."""
    kinds = (".png", *ARRAYS) if kind == "labels" else ARRAYS
    targets = place_outputs(images, output, "-o", SUFFIXES[kind], kinds)
    pictures: Sequence[tuple[Path | None, ...]] = [(None,)] * len(images)
    if overlay is not None:
        pictures = place_outputs(images, overlay, "--overlay", (".png",), (".png",))
    taken = {os.path.realpath(path): f"the input {path}" for path in (*images, *unaries)}
    pairs = []
    for image, unary, target, picture in zip(images, unaries, targets, pictures, strict=True):
        pairs.append(Pair(image, unary, target, picture[0]))
        for path in (*target, *picture):
            if path is None:
                continue
            real = os.path.realpath(path)
            if real in taken:
                raise click.UsageError(
                    f"the result {path} of {image} would overwrite {taken[real]}; "
                    "choose another folder or other names"
                )
            taken[real] = f"that of {image}"
    return pairs


def is_file_name(given: str) -> bool:
    """Whether an output names a file and not a folder."""
    return Path(given).suffix.lower() in (*PICTURES, *ARRAYS) and not Path(given).is_dir()


def place_outputs(
    images: Sequence[Path],
    given: str,
    option: str,
    suffixes: Sequence[str],
    allowed: Sequence[str],
) -> list[tuple[Path, ...]]:
    """Names for each image's result: in a folder, or the very file named for one image."""
    from proxfield.cli.shared import check_target

    place = Path(given)
    if is_file_name(given):
        if len(images) > 1:
            raise click.UsageError(f"{option} {given!r} for {len(images)} images is no folder")
        if place.suffix.lower() not in allowed:
            raise click.UsageError(
                f"{option} {given!r}, expected a folder or a name ending in {', '.join(allowed)}"
            )
        check_target(given, option)
        return [(place,)]
    return [tuple(place / f"{image.stem}{s}" for s in suffixes) for image in images]


def make_folder(given: str, option: str) -> None:
    """The folder of results, made if need be."""
    path = Path(given)
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(13, "permission denied")
    except OSError as error:
        why = "a file is in the way" if isinstance(error, FileExistsError) else error.strerror
        raise InputError(
            f"{option}: can't write there, {why}, expected a folder", path=display_name(path)
        ) from None
