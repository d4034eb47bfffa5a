"""Images larger than memory: refined tile by tile, with the labels of the whole.

Each tile is refined together with a halo, of which the result keeps nothing. All that a field
takes from its image is taken from the whole one: coordinates (the lattice's phase), the range of
colors, and which blur the lattice uses. Results agree with those of the whole image, up to what
lies beyond the halo.
"""

from __future__ import annotations

import gc
import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from proxfield.core.common.arrays import Array
from proxfield.core.common.checks import one_of, whole_numbers
from proxfield.core.common.memory import return_freed_arrays
from proxfield.core.common.records import Record
from proxfield.core.jobs.running import Part, check_jobs, run_jobs, slots_of, threads_per_item
from proxfield.errors import InputError, InputWarning, shown
from proxfield.images.densecrf import divided
from proxfield.images.inputs import confidence_note
from proxfield.images.settings import DenseSettings
from proxfield.images.tile_work import INPUTS, ImageTile, TileGrid, TileWork, make_grid, make_tile
from proxfield.io.files import NO_FOLDER, display_name, ending, naming_damage
from proxfield.io.folders import ProgressFolder
from proxfield.io.remote import is_remote
from proxfield.io.tiff import GeoReference, TiffOutput
from proxfield.io.windows import (
    Held,
    HeldOutput,
    NewFile,
    NpyOutput,
    Output,
    Sliced,
    ZarrOutput,
    check_output,
    map_array,
    mapped,
    open_sliced,
    store_array,
    writing_to,
)

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
        done_before: Those that earlier runs had finished.
        left: Those that aren't finished, because ``parts`` left them to other runs.
        complete: Whether this run has written all of the output.
        halo: Pixels around a tile, along each axis.
        statuses: How inference ended, and in how many tiles of this run.
        seconds: Time this run took.
        refined: Number of pixels in the tiles of this run.
        changed: Number of those whose label isn't the most probable one of what was given.
        confidence: The probability of labels that were given in place of probabilities, see
            `DenseCRF`; else None.
    """

    pixels: tuple[int, ...]
    n_labels: int
    tiles: int
    done_before: int
    left: int
    complete: bool
    halo: tuple[int, ...]
    statuses: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    refined: int = 0
    changed: int = 0
    confidence: float | None = None


def refine_tiles(
    image: Array,
    probabilities: Array,
    out: Array,
    *,
    kind: str = "probabilities",
    output: str = "labels",
    tile: int | Sequence[int] = 1024,
    halo: int | Sequence[int] | str = "auto",
    parts: Sequence[int] | str | None = None,
    dtype: str = "float32",
    jobs: int | None = None,
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
            widest term (``docs/how-to/large-images.md`` has what other values give).
        parts: Which tiles to refine: their numbers, row by row from 0, or "K/N" for every N-th one
            from the K-th on. Several runs, on several machines too, may each do a part at the same
            time; the one that finds all tiles finished writes the file. (An array is written at
            once, by each run.)
        dtype: Type of probabilities that are written: "float32" or "float16".
        jobs: Number of tiles at a time, in processes of their own (needs joblib); by default 1, or
            as ``joblib.parallel_config`` says (see `proxfield.core.jobs.run_jobs`).
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
    one_of("kind", kind, INPUTS)
    if output not in OUTPUTS:
        raise InputError(f"output={shown(output)}, expected labels or probabilities")
    if dtype not in ("float32", "float16"):
        raise InputError(f"dtype={shown(dtype)}, expected float32 or float16")
    for name in ("cooccurrence", "scribbles", "origin", "batch", "logits", "energies"):
        if options.pop(name, None) is not None:
            raise InputError(f"{name} doesn't go with tiles, expected refine_tiles without it")
    jobs = check_jobs(jobs)
    picture = None if image is None else open_sliced(image, "the image")
    unary = open_sliced(probabilities, kind)
    work = make_tile(picture, unary, kind, output, dtype, *divided(options, of_labels=True))
    grid = make_grid(work.axes.pixels, tile, halo, work.reach)
    to_file = isinstance(out, str | PathLike)
    with ExitStack() as stack:
        place = _folder(out, folder, stack)
        if to_file:
            check_output(out, len(grid.pixels))
        parameters = {**work.parameters, "tile": grid.tile, "halo": grid.halo, "output": output}
        held = ProgressFolder(place, parameters, resume and (to_file or folder is not None))
        work = work.decided(grid, held)
        if work.certain and DenseSettings.chosen(options).confidence is None:
            note = confidence_note(kind, work.build["confidence"])
            warnings.warn(note, InputWarning, stacklevel=2)
        chosen: Sequence[int] = range(len(grid))
        if isinstance(parts, str):
            chosen = Part.parse(parts).of(chosen)
        elif parts is not None:
            chosen = np.unique(whole_numbers(parts, "parts")).tolist()
            if wrong := [number for number in chosen if not 0 <= number < len(grid)]:
                raise InputError(
                    f"parts hold {wrong[-1]}, expected numbers from 0 to {len(grid) - 1}"
                )
        tiling = _Tiling(out, work, grid, held, reference, callback)
        tiling.run(chosen, jobs, direct=parts is None or not to_file)
        complete = tiling.finish()
    return TilesResult(
        pixels=grid.pixels,
        n_labels=work.n_labels,
        tiles=len(grid),
        done_before=tiling.before,
        left=len(grid) - len(tiling.there),
        complete=complete,
        halo=grid.halo,
        statuses=dict(tiling.statuses),
        seconds=time.perf_counter() - start,
        refined=tiling.refined,
        changed=tiling.changed,
        confidence=work.build["confidence"] if work.certain else None,
    )


@dataclass
class _Tiling:
    """One call of `refine_tiles`."""

    out: Array
    work: TileWork
    grid: TileGrid
    held: ProgressFolder
    reference: GeoReference | None
    callback: OnTile | None
    target: Output | None = None
    there: set[int] = field(default_factory=set)
    """Tiles that are finished."""
    before: int = 0
    """How many of them were, before this run."""
    statuses: Counter[str] = field(default_factory=Counter)
    refined: int = 0
    changed: int = 0

    def run(self, chosen: Sequence[int], jobs: int | None, *, direct: bool) -> None:
        """Refine the chosen tiles that aren't finished; ``direct``: write them to the output."""
        if direct:
            self.open()
        self.there = self.held.finished | stored_tiles(self.held.path)
        self.before = len(self.there)
        self.tell()
        todo = [number for number in chosen if number not in self.there]
        if not todo:
            return
        jobs = None if jobs is None else min(jobs, len(todo))
        work, threads = self.work, threads_per_item(jobs, self.work.run.get("threads"))
        if slots_of(jobs) > 1:
            work = replace(_on_disk(work, self.held.path), run={**work.run, "threads": threads})
        job = partial(refine_tile, work, self.held.path)
        for record in run_jobs(job, map(self.grid.part, todo), jobs, threads):
            number = record["number"]
            if self.target is not None:
                self.write(self.target, number)
            self.there.add(number)
            self.statuses[record["status"]] += 1
            self.refined += math.prod(c.stop - c.start for c in self.grid.part(number).core)
            self.changed += record["changed"]
            self.tell()

    def finish(self) -> bool:
        """Complete the output if all tiles are finished; whether this run did."""
        place, tiles = self.held.path, len(self.grid)
        if self.target is None:  # other runs may have finished theirs meanwhile
            self.there |= stored_tiles(place) if place.exists() else set(range(tiles))
            if len(self.there) == tiles and self.held.claim("writing"):
                self.open()
        if self.target is None or len(self.held.finished) < tiles:
            return False
        with writing_to(self.out):
            self.target.finish()
        self.held.remove()
        return True

    def open(self) -> None:
        """Open the output, and copy into it what other runs, or this before, left in files."""
        work, dtype = self.work, self.work.output_dtype
        shape = work.with_labels(work.axes.pixels)
        if isinstance(self.out, str | PathLike):
            chunks = work.with_labels(self.grid.tile)
            path, place = Path(self.out), self.held.path
            new = NewFile(path, place, shape, dtype, chunks, self.reference, work.ignored)
            kinds: dict[str, type[NpyOutput | ZarrOutput]]
            kinds = {".npy": NpyOutput, ".zarr": ZarrOutput}
            self.target = kinds.get(ending(path), TiffOutput)(new)
        else:
            self.target = HeldOutput(self.out, shape, dtype)
        for number in sorted(stored_tiles(self.held.path)):
            self.write(self.target, number)

    def write(self, target: Output, number: int) -> None:
        """Copy a finished tile into the output; its own file goes."""
        stored = tile_path(self.held.path, number)
        if not stored.exists():
            raise InputError(
                "was finished elsewhere but isn't here, expected a folder that all workers share "
                "(folder=)",
                path=display_name(stored),
            )
        with naming_damage(display_name(stored)):
            values = np.load(stored, allow_pickle=False)
        with writing_to(self.held.path):
            target.write(self.work.window(self.grid.part(number).core), values)
            self.held.finish(number)
            stored.unlink()

    def tell(self) -> None:
        """Call the user's callback."""
        if self.callback is not None:
            self.callback(len(self.there), len(self.grid))


def tile_path(place: Path, number: int) -> Path:
    """The file of a finished tile that isn't in the output yet."""
    return place / f"tile-{number}.npy"


def refine_tile(work: TileWork, place: Path, part: ImageTile) -> Record:
    """One tile: read, refine, write to a file of its own; tells how many pixels changed."""
    return_freed_arrays()
    try:
        values, status, changed = work.refine(part)
        with writing_to(place):
            store_array(tile_path(place, part.number), values)
    except InputError as error:
        raise InputError(f"{part}: {error}") from None
    finally:
        gc.collect()  # fields and programs refer to each other: the next tile needs the room
    return {"number": part.number, "status": status, "changed": changed}


def stored_tiles(place: Path) -> set[int]:
    """Numbers of the tiles that have such a file."""
    return {int(path.stem.partition("-")[2]) for path in place.glob("tile-*.npy")}


def _on_disk(work: TileWork, place: Path) -> TileWork:
    """The same with arrays in memory as files, which other processes read by themselves."""

    def stored(given: Sliced | None, name: str) -> Sliced | None:
        if not (isinstance(given, Held) and isinstance(given.array, np.ndarray)):
            return given
        with writing_to(place):
            np.save(place / name, given.array)
        return mapped(map_array(place / name), place / name)

    unary = stored(work.unary, "unary.npy")
    assert unary is not None
    return replace(work, image=stored(work.image, "image.npy"), unary=unary)


def _folder(out: Array, folder: str | PathLike[str] | None, stack: ExitStack) -> Path:
    """Where the work in progress is kept."""
    for given in (out, folder):
        if is_remote(given):
            raise InputError(
                "tiles can't be written there, expected a folder of this machine, or one that "
                "machines share",
                path=display_name(given),
            )
    if folder is not None:
        place = Path(folder)
    elif isinstance(out, str | PathLike):
        place = Path(out).with_name(f"{Path(out).name}.tiles")
    else:
        return Path(stack.enter_context(TemporaryDirectory(prefix="proxfield-tiles-")))
    if not place.absolute().parent.is_dir():
        raise InputError(f"can't write, {NO_FOLDER}", path=display_name(place))
    return place
