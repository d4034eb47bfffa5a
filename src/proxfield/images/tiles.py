"""Images larger than memory: refined tile by tile, with the labels of the whole.

Each tile is refined together with a halo, of which the result keeps nothing. All that a field
takes from its image is taken from the whole one: coordinates (the lattice's phase), the range of
colors, and which blur the lattice uses. Results agree with those of the whole image, up to what
lies beyond the halo.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from inspect import signature
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from proxfield.common.pool import LostWorkerError, run_in_processes
from proxfield.common.records import Record
from proxfield.errors import InputError, ProxfieldError, shown
from proxfield.images.densecrf import DenseCRF
from proxfield.images.tile_grid import Grid, Part, make_grid
from proxfield.images.tile_work import INPUTS, Tile, make_tile
from proxfield.io.files import display_name
from proxfield.io.progress_folder import ProgressFolder
from proxfield.io.referenced import GeoReference
from proxfield.io.sliced import Held, Mapped, Sliced, open_sliced
from proxfield.io.windows import HeldOutput, Output, check_output, open_output

OUTPUTS = ("labels", "probabilities")

OnTile = Callable[[int, int], object]
"""Called with the number of tiles that are finished and of all tiles."""


@dataclass(frozen=True)
class TilesResult:
    """What `refine_tiles` did.

    Attributes:
        pixels: Shape of the image without channels.
        n_labels: Number of labels.
        tiles: Number of all tiles.
        done_before: Those that an earlier run had finished.
        halo: Pixels around a tile, along each axis.
        statuses: How inference ended, and in how many tiles of this run.
        seconds: Time this run took.
    """

    pixels: tuple[int, ...]
    n_labels: int
    tiles: int
    done_before: int
    halo: tuple[int, ...]
    statuses: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


def refine_tiles(
    image: Any,
    probabilities: Any,
    out: Any,
    *,
    kind: str = "probabilities",
    output: str = "labels",
    tile: int | Sequence[int] = 1024,
    halo: int | Sequence[int] | str = "auto",
    parts: Sequence[int] | None = None,
    dtype: str = "float32",
    jobs: int = 1,
    folder: str | PathLike[str] | None = None,
    resume: bool = True,
    reference: GeoReference | None = None,
    callback: OnTile | None = None,
    **options: Any,
) -> TilesResult:
    """Refine an image that doesn't fit in memory, tile by tile.

    Memory depends on the size of a tile, not on that of the image: about 400 bytes for each of its
    pixels with the halo, and 30 for each pixel and label.

    Args:
        image: The name of a file (``.npy``, ``.zarr``, tiled TIFF, whole slides, GeoTIFF), or an
            array with slices: numpy's, memory-mapped, zarr's, h5py's, dask's. None without image.
        probabilities: Likewise, of the same size.
            # (*pixels, labels), (labels, *pixels) or (*pixels)
        out: The name of a file (``.npy``, ``.zarr`` or ``.tif``), or an array with slices to
            write into. A file appears when all of it is there.
        kind: What ``probabilities`` are: "probabilities", "logits" or "labels" (a label map;
            options are then those of `DenseCRF.from_labels`, and ``n_labels`` is needed).
        output: "labels" (in the smallest type of whole numbers) or "probabilities" (in the form
            that was given).
        tile: Length of a tile in pixels, or one per axis.
        halo: Pixels around a tile that are refined with it; "auto": 5 standard deviations of the
            widest term (``docs/large-images.md`` has what other values give).
        parts: Numbers of the tiles to refine, row by row from 0; the others stay as they are. A
            file appears nevertheless only when all tiles are finished.
        dtype: Type of probabilities that are written: "float32" or "float16".
        jobs: Number of tiles at a time, in processes of their own (needs joblib).
        folder: Where the work in progress is kept, with a record of finished tiles; by default
            beside the output (``NAME.tiles``). For an array there is none by default.
        resume: Go on where a run with the same arguments was stopped.
        reference: The place on Earth that a TIFF is written with.
        callback: Called as ``callback(finished, tiles)`` after each tile.
        **options: Of `DenseCRF` (but for ``cooccurrence``, which is about whole images, and
            scribbles) and of `DenseCRF.infer`.

    Returns:
        How many tiles there are and how inference ended in them.

    Raises:
        InputError: If something can't be read, written or refined; tiles that are finished stay.

    Example:
        >>> image = np.zeros((40, 60, 3), dtype=np.uint8)
        >>> p = np.full((40, 60, 2), 0.5)
        >>> p[:, :30], p[:, 30:] = (0.8, 0.2), (0.3, 0.7)
        >>> labels = np.zeros((40, 60), dtype=np.uint8)
        >>> done = refine_tiles(image, p, labels, tile=32, halo=16)
        >>> done.tiles, labels[20, ::20].tolist()
        (4, [0, 0, 1])
    """
    start = time.perf_counter()
    _check(kind, output, dtype, jobs, options)
    picture = None if image is None else open_sliced(image, "the image")
    unary = open_sliced(probabilities, kind)
    own = signature(DenseCRF).parameters.keys() | signature(DenseCRF.from_labels).parameters.keys()
    build = {k: v for k, v in options.items() if k in own}
    run = {k: v for k, v in options.items() if k not in own}
    work = make_tile(picture, unary, kind, output, dtype, build, run)
    grid = make_grid(work.pixels, tile, halo, work.reach)
    if not isinstance(out, str | PathLike) and folder is None:
        resume = False
    with ExitStack() as stack:
        place = _folder(out, folder, stack)
        if isinstance(out, str | PathLike):
            check_output(out, len(grid.pixels))
        parameters = {**work.parameters, "tile": grid.tile, "halo": grid.halo, "output": output}
        held = ProgressFolder(place, parameters, resume)
        target = _target(out, place, work, grid, reference)
        work = work.decided(grid, held)
        before = len(held.finished)
        chosen = _chosen(parts, len(grid))
        todo = [number for number in chosen if number not in held.finished]
        if callback is not None:
            callback(before, len(grid))
        statuses: dict[str, int] = {}
        for record in _records(_on_disk(work, place, jobs), grid, todo, place, jobs):
            if record["error"] is not None:
                raise InputError(record["error"])
            part = grid.part(record["number"])
            stored = place / record["file"]
            target.write(work.window(part.core), np.load(stored))
            held.finish(part.number)
            stored.unlink()
            statuses[record["status"]] = statuses.get(record["status"], 0) + 1
            if callback is not None:
                callback(len(held.finished), len(grid))
        if len(held.finished) == len(grid):
            target.finish()
            held.remove()
    return TilesResult(
        pixels=grid.pixels,
        n_labels=work.n_labels,
        tiles=len(grid),
        done_before=before,
        halo=grid.halo,
        statuses=statuses,
        seconds=time.perf_counter() - start,
    )


def _check(kind: str, output: str, dtype: str, jobs: int, options: Record) -> None:
    if kind not in INPUTS:
        raise InputError(f"kind={shown(kind)}, expected one of: {', '.join(INPUTS)}")
    if output not in OUTPUTS:
        raise InputError(f"output={shown(output)}, expected labels or probabilities")
    if dtype not in ("float32", "float16"):
        raise InputError(f"dtype={shown(dtype)}, expected float32 or float16")
    if isinstance(jobs, bool) or not isinstance(jobs, int | np.integer) or jobs < 1:
        raise InputError(f"jobs={shown(jobs)}, expected a whole number above 0")
    for name in ("cooccurrence", "scribbles", "origin", "batch", "logits", "energies"):
        if options.get(name) is not None:
            raise InputError(f"{name} doesn't go with tiles, expected refine_tiles without it")
        options.pop(name, None)


def _chosen(parts: Sequence[int] | None, count: int) -> list[int]:
    """The numbers of the tiles to refine."""
    if parts is None:
        return list(range(count))
    chosen = [int(number) for number in parts]
    if any(not 0 <= number < count for number in chosen):
        raise InputError(f"parts hold {max(chosen)}, expected numbers from 0 to {count - 1}")
    return sorted(set(chosen))


def _folder(out: Any, folder: str | PathLike[str] | None, stack: ExitStack) -> Path:
    """Where the work in progress is kept."""
    if folder is not None:
        place = Path(folder)
    elif isinstance(out, str | PathLike):
        place = progress_path(Path(out))
    else:
        return Path(stack.enter_context(TemporaryDirectory(prefix="proxfield-tiles-")))
    if not place.absolute().parent.is_dir():
        raise InputError(
            "can't write, its folder doesn't exist, expected an existing folder (try mkdir -p)",
            path=display_name(place),
        )
    return place


def progress_path(out: Path) -> Path:
    """The folder of a result that is in progress.

    Example:
        >>> progress_path(Path("slide.zarr")).name
        'slide.zarr.tiles'
    """
    return out.with_name(f"{out.name}.tiles")


def _target(
    out: Any, place: Path, work: Tile, grid: Grid, reference: GeoReference | None
) -> Output:
    """Where windows are written to."""
    shape, dtype = work.output_shape, work.output_dtype
    if not isinstance(out, str | PathLike):
        return HeldOutput(out, shape, dtype)
    chunks = work.with_labels(grid.tile, work.n_labels)
    return open_output(out, place, shape, dtype, chunks, reference, work.ignored)


def _on_disk(work: Tile, place: Path, jobs: int) -> Tile:
    """The same with arrays in memory as files, which other processes read by themselves."""
    if jobs == 1:
        return work

    def stored(given: Sliced | None, name: str) -> Sliced | None:
        if not isinstance(given, Held) or not given.in_memory:
            return given
        np.save(place / name, given.array)
        mapped = np.load(place / name, mmap_mode="r")
        return Mapped(place / name, mapped.shape, mapped.dtype, int(mapped.offset))

    unary = stored(work.unary, "unary.npy")
    assert unary is not None
    return work.reading(stored(work.image, "image.npy"), unary)


def _records(
    work: Tile, grid: Grid, todo: Sequence[int], place: Path, jobs: int
) -> Iterator[Record]:
    """Tiles as they are finished: small records, the numbers are in files."""
    one = Job(work, place)
    items: Iterator[Part] = (grid.part(number) for number in todo)
    jobs = min(jobs, len(todo))
    if jobs <= 1:
        yield from map(one, items)
        return
    threads = work.run.get("threads")
    threads = max(1, (os.cpu_count() or 1) // jobs) if threads is None else int(threads)
    try:
        yield from run_in_processes(one, items, jobs, threads)
    except LostWorkerError:
        raise ProxfieldError(
            "a job was ended from outside, for lack of memory perhaps; try fewer jobs or smaller "
            "tiles (run the same again to go on)"
        ) from None


@dataclass(frozen=True)
class Job:
    """One tile: read, refine, write to a file of its own. It travels to other processes."""

    work: Tile
    place: Path

    def __call__(self, part: Part) -> Record:
        record: Record = {"number": part.number, "error": None, "status": None, "file": None}
        try:
            values, status = self.work.refine(part)
        except InputError as error:
            record["error"] = f"{part}: {error}"
            return record
        name = f"tile-{part.number}.npy"
        np.save(self.place / name, values)
        return {**record, "status": status, "file": name}
