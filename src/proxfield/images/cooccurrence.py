"""Which classes occur together in pictures: counts over label maps, as JSON or from files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.arrays import Pixels
from proxfield.core.common.checks import whole_number
from proxfield.core.terms.base import Ints, as_indices
from proxfield.errors import InputError
from proxfield.io.files import Source, Target, atomic_write, display_name, naming, read_bytes

MIN_PROBABILITY = 1e-6
"""Probabilities of a pair are cut off here, so that its energy stays finite."""
MAX_LABELS = 10_000
"""Labels above which a label map is taken for something else (pairs are counted in a square)."""
SUFFIXES = (".png", ".npy")
"""Files that a folder of label maps is searched for."""


@dataclass(frozen=True, eq=False)
class CooccurrenceStatistics:
    """In how many images each class, and each pair of classes, was present.

    Args:
        images: Images looked at.
        presence: Images that hold each class.  # (L,)
        pairs: Images that hold both classes; the diagonal is ``presence``.  # (L, L)
        min_pixels: Pixels of a class from which it counted as present.

    Example:
        >>> maps = [np.array([[0, 1]]), np.array([[0, 2]]), np.array([[0, 255]])]
        >>> found = CooccurrenceStatistics.from_label_maps(maps, 3)
        >>> found.presence, found.pairs[1]
        (array([3, 1, 1]), array([1, 1, 0]))
    """

    images: int
    presence: Ints
    pairs: Ints
    min_pixels: int = 1

    def __init__(
        self, images: int, presence: ArrayLike, pairs: ArrayLike, min_pixels: int = 1
    ) -> None:
        count = whole_number(images, "images", 0)
        alone = as_indices(_rectangle(presence, "class counts"), "class counts", 1)
        both = as_indices(_rectangle(pairs, "pair counts"), "pair counts", 2)
        n = len(alone)
        if n == 0:
            raise InputError("class counts are empty, expected one count for each class")
        if both.shape != (n, n):
            raise InputError(f"pair counts have shape {both.shape}, expected {(n, n)}")
        if alone.min() < 0 or both.min() < 0:
            raise InputError("counts hold a negative number, expected 0 or more")
        if alone.max() > count:
            c = int(alone.argmax())
            raise InputError(f"class {c} is in {int(alone[c])} images, but there are {count}")
        wrong = np.argwhere((both != both.T) | (both > np.minimum(alone, alone[:, None])))
        if len(wrong):
            a, b = wrong[0].tolist()
            raise InputError(
                f"classes {a} and {b} are together in {both[a, b]} images (and {both[b, a]} the "
                f"other way round), but alone in {alone[a]} and {alone[b]}"
            )
        if (np.diagonal(both) != alone).any():
            c = int(np.flatnonzero(np.diagonal(both) != alone)[0])
            raise InputError(f"pair count ({c}, {c}) is {both[c, c]}, expected {alone[c]}")
        fewest = whole_number(min_pixels, "min_pixels", 1)
        vars(self).update(images=count, presence=alone, pairs=both, min_pixels=fewest)

    @property
    def n_labels(self) -> int:
        """The number of classes L."""
        return len(self.presence)

    def pair_probability(self) -> NDArray[np.float64]:
        """How easily two classes occur together, from 1e-6 (never) to 1 (freely).  # (L, L)

        p_ab = 1 − (1 − P(a, b) / P(b)) (1 − P(a, b) / P(a)): at least one of the two brings the
        other along. P comes from the counts with one added to each, so a class that was
        never seen goes with any.
        """
        alone = self.presence + 1.0
        both = self.pairs + 1.0
        p = 1 - (1 - both / alone) * (1 - both / alone[:, None])
        return np.asarray(np.clip(p, MIN_PROBABILITY, 1.0))

    @classmethod
    def from_label_maps(
        cls,
        maps: Iterable[ArrayLike],
        n_labels: int | None = None,
        *,
        ignore: Iterable[int] = (255,),
        min_pixels: int = 1,
    ) -> CooccurrenceStatistics:
        """Count over label maps: arrays of class numbers, of any shapes.

        Args:
            maps: One array of whole numbers per image; they are read one at a time.
            n_labels: Classes; by default one more than the largest number seen.
            ignore: Numbers that stand for no class.
            min_pixels: Pixels from which a class counts as present.

        Raises:
            InputError: For a map that holds anything else; it says which.

        Example:
            >>> CooccurrenceStatistics.from_label_maps([[[0, 1, 1]]], min_pixels=2).presence
            array([0, 1])
        """
        fewest = whole_number(min_pixels, "min_pixels", 1)
        top = MAX_LABELS if n_labels is None else whole_number(n_labels, "n_labels", 1)
        skip = {whole_number(v, "ignore", None) for v in ignore}
        seen: list[Ints] = []
        largest = -1
        for k, one in enumerate(maps):
            values, counts = _histogram(one, k)
            known = ~np.isin(values, list(skip))
            values, counts = values[known], counts[known]
            bad = values[(values < 0) | (values >= top)]
            if len(bad):
                skipped = ", ".join(map(str, sorted(skip))) or "none"
                raise InputError(
                    f"label map {k} holds the label {bad[0]}, expected 0 to {top - 1} "
                    f"(ignored: {skipped})"
                )
            largest = max(largest, int(values.max(initial=-1)))
            seen.append(values[counts >= fewest])
        if n_labels is None:
            if largest < 0:
                raise InputError("the label maps hold no label, expected at least one (or give L)")
            top = largest + 1
        present = np.zeros((len(seen), top))  # floating point: whole numbers multiply faster so
        for row, values in zip(present, seen, strict=True):
            row[values] = 1.0
        together = (present.T @ present).astype(np.int64)
        return cls(len(seen), np.diagonal(together), together, fewest)

    def to_json(self) -> str:
        """One JSON object on one line.

        Example:
            >>> CooccurrenceStatistics(2, [1], [[1]]).to_json()
            '{"n_images": 2, "min_pixels": 1, "class_counts": [1], "pair_counts": [[1]]}\\n'
        """
        data = {
            "n_images": self.images,
            "min_pixels": self.min_pixels,
            "class_counts": self.presence.tolist(),
            "pair_counts": self.pairs.tolist(),
        }
        return json.dumps(data) + "\n"

    @classmethod
    def from_json(
        cls, text: str | bytes, *, min_pixels: int | None = None
    ) -> CooccurrenceStatistics:
        """Counts as `to_json` writes them.

        The counts may also be in objects inside the object, one for each ``min_pixels``.

        Args:
            text: The JSON text.
            min_pixels: Which counts to take where there are several; by default those
                with the fewest pixels.

        Raises:
            InputError: If these aren't such counts.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"not JSON ({error}), expected co-occurrence counts") from None
        if not isinstance(data, dict):
            raise InputError("expected a JSON object with n_images, class_counts and pair_counts")
        inside = [data, *(v for v in data.values() if isinstance(v, dict))]
        found = {
            whole_number(v.get("min_pixels", 1), "min_pixels", 1): v
            for v in reversed(inside)
            if "class_counts" in v and "pair_counts" in v
        }
        if "n_images" not in data or not found:
            raise InputError("expected n_images, class_counts and pair_counts, some are missing")
        if min_pixels is not None and min_pixels not in found:
            there = ", ".join(map(str, sorted(found)))
            raise InputError(f"no counts for min_pixels={min_pixels}, expected one of: {there}")
        chosen = min(found) if min_pixels is None else min_pixels
        counts = found[chosen]
        return cls(data["n_images"], counts["class_counts"], counts["pair_counts"], chosen)

    def save(self, path: Target) -> None:
        """Write `to_json` to a file, whole or not at all; a name in .gz is compressed."""
        atomic_write(path, self.to_json())

    @classmethod
    def load(cls, source: Source, *, min_pixels: int | None = None) -> CooccurrenceStatistics:
        """Read a file of counts; see `from_json`."""
        data, name = read_bytes(source)
        with naming(name):
            return cls.from_json(data, min_pixels=min_pixels)


def find_label_maps(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Files as they are, and the .png and .npy files of folders in order of their names.

    Raises:
        InputError: For a folder without any.
    """
    out: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            out.append(path)
            continue
        inside = sorted(
            p
            for p in path.iterdir()
            if p.suffix.lower() in SUFFIXES and not p.name.startswith(".") and p.is_file()
        )
        if not inside:
            kinds = " or ".join(SUFFIXES)
            raise InputError(f"the folder holds no {kinds} file", path=display_name(path))
        out.extend(inside)
    return out


def _histogram(values: ArrayLike, number: int) -> tuple[Ints, Ints]:
    """The different numbers of a map, and how often each occurs."""
    flat = np.asarray(values).ravel()
    if flat.dtype.kind == "b":  # a picture of one bit per pixel
        flat = flat.astype(np.uint8)
    if flat.size and flat.dtype.kind not in "iu":
        raise InputError(f"label map {number} holds {flat.dtype}, expected whole numbers")
    if flat.size == 0:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    low, high = int(flat.min()), int(flat.max())
    if low >= 0 and high < 2**16:  # counting is many times faster than sorting
        counts = np.bincount(flat)
        there = np.flatnonzero(counts)
        return there, counts[there]
    return np.unique(flat, return_counts=True)


def _rectangle(values: ArrayLike, what: str) -> Pixels:
    """Nested lists as an array."""
    try:
        return np.asarray(values)
    except ValueError:
        raise InputError(f"{what} must be whole numbers in one rectangular array") from None
