"""``proxfield refine`` on images that don't fit in memory: which they are, and their tiles."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import click
import numpy as np

from proxfield.cli.options import Options
from proxfield.cli.progress import Counter, Display
from proxfield.cli.refine_files import (
    ENTRY_BYTES,
    PIXEL_BYTES,
    PROCESS_BYTES,
    SAMPLED_FILES,
    Pair,
    bytes_needed,
    record_path,
    write_record,
)
from proxfield.cli.refine_images import ImageWork, new_record, try_step
from proxfield.cli.running import in_options
from proxfield.core.common import memory
from proxfield.core.common.records import Record
from proxfield.core.jobs.running import Part
from proxfield.errors import InputError
from proxfield.images.inputs import confidence_note
from proxfield.images.settings import DenseSettings
from proxfield.images.tile_work import HALO_SIGMAS
from proxfield.io.files import display_name, ending, stem
from proxfield.io.images import PICTURES, read_image, read_labels, write_labels
from proxfield.io.remote import RemotePath
from proxfield.io.tiff import GEOTIFF, NIFTI, has_rasterio, is_geotiff, read_reference
from proxfield.io.windows import KINDS, is_windowed, is_zarr, map_array

TILE = 1024
"""Length of a tile where none is given: the default of `proxfield.refine_tiles`."""
SHARE = 0.8
"""Of the available memory, what an image may take before it is refined in tiles."""
USUAL_LABELS = 8
"""What is assumed where nothing is said, to estimate the memory of a tile."""
SLIDES = (".svs", ".ndpi", ".scn", ".bif", ".vms")
"""Endings of whole slides, which are tiled TIFF files."""


class Tiled(NamedTuple):
    """An image that is refined in tiles.

    Attributes:
        pair: Its files.
        work: What to do with them.
        part: Which of the tiles this run does; None: all.
    """

    pair: Pair
    work: ImageWork
    part: Part | None = None


def choose_tiled(
    pairs: Sequence[Pair], options: Options
) -> tuple[dict[Pair, Part | None], list[Pair]]:
    """What is refined in tiles, with the part of the tiles that this run does, and what is whole.

    Images are tiled because the user says so, by their kind, or as they don't fit in memory.
    """
    part = options.part
    # what looks at an image as a whole
    whole = next(iter(options.given("scribbles", "cooccurrence", "overlay")), "")
    tiled = {p: part for p in pairs if options.tile is not None or must_be_tiled(p)}
    if tiled and whole:
        raise click.UsageError(f"--{whole} doesn't go with tiles, expected an image in one piece")
    own = [p for p in (pairs if part is None else part.of(pairs)) if p not in tiled]
    left = memory.available_memory()
    large: list[Pair] = []
    if left is not None and not whole:
        rest = [p for p in own if can_be_tiled(p, options)]
        largest = sorted(rest, key=lambda p: p.unary.stat().st_size)[-SAMPLED_FILES:]
        large = [p for p in largest if bytes_needed(p, options.n_labels) > SHARE * left]
    if options.halo is not None and options.tile is None and not large:
        raise click.UsageError("--halo goes with tiles, expected --tile too")
    return {**tiled, **dict.fromkeys(large)}, [p for p in own if p not in large]


def can_be_tiled(pair: Pair, options: Options) -> bool:
    """Whether files are on this machine and are read in windows, or take few bytes."""
    if any(isinstance(path, RemotePath) for path in (pair.image, pair.unary, *pair.targets)):
        return False
    label_map = options.labels is not None and ending(pair.unary) in PICTURES
    image = is_windowed(pair.image) or ending(pair.image) in PICTURES
    return image and (is_windowed(pair.unary) or label_map)


def must_be_tiled(pair: Pair) -> bool:
    """Whether a pair's files are of kinds that are read or written in windows only."""
    target = ending(pair.targets[0])
    placed = is_geotiff(pair.image) and has_rasterio()
    zarr = is_zarr(pair.image) or is_zarr(pair.unary) or target == ".zarr"
    return zarr or ending(pair.image) in SLIDES or (target in GEOTIFF and not placed)


def for_tiles(pair: Pair, work: ImageWork, options: Options, part: Part | None) -> Tiled:
    """A pair with a result that can be written in windows, and the work with its tiles.

    Raises:
        InputError: If only some other reader knows the files.
    """
    if ending(pair.image) in NIFTI or ending(pair.unary) in (*NIFTI, ".npz"):
        raise InputError(
            "can't be read in windows, expected .npy, .zarr or TIFF (leave out --tile)",
            path=str(pair.image if ending(pair.image) in NIFTI else pair.unary),
        )
    target = pair.targets[0]
    if ending(target) == ".npz":
        target = target.with_name(f"{stem(target)}.npy")
    tiles = {"tile": options.tile or TILE, "halo": options.halo}
    return Tiled(replace(pair, targets=(target,)), replace(work, tiles=tiles), part)


def run_tiled(todo: Sequence[Tiled], jobs: int | None, *, resume: bool) -> Iterator[Record]:
    """The records of images that are refined in tiles, one after another, with a bar over tiles.

    Args:
        todo: The images.
        jobs: Tiles at a time, if there is memory for them; None: as many as the cluster has room
            for.
        resume: Whether tiles of an earlier run count.
    """
    for one in todo:
        record = new_record(one.pair)
        at_a_time = affordable_tiles(jobs, one.work)
        record.update(try_step(record, partial(_refine, one, at_a_time, resume, record)) or {})
        if record["error"] is not None:
            click.echo(f"proxfield: error: {record['error']}", err=True)
        yield record


def _refine(one: Tiled, jobs: int | None, resume: bool, record: Record) -> Record:
    from proxfield.images.tiles import refine_tiles  # imports numba

    pair, work = one.pair, one.work
    target = pair.targets[0]
    if isinstance(target, RemotePath):
        raise InputError("tiles can't be written there, expected a file of this machine")
    decoded = {*PICTURES} - {*GEOTIFF}
    image: Any = pair.image  # files where they can be read in windows, else arrays
    if ending(pair.image) in decoded:
        image = read_image(pair.image, record["notes"])
    unary: Any = pair.unary
    if work.what == "labels" and ending(pair.unary) in decoded:
        unary = read_labels(pair.unary)[0]
    place, reference = target, None
    if ending(target) not in KINDS:
        place = target.with_name(f"{target.name}.npy")
    elif ending(target) in GEOTIFF and has_rasterio() and is_geotiff(pair.image):
        reference = read_reference(pair.image)
    tiles = work.tiles or {}
    options: Record = {**work.build, **(work.from_labels or {}), **work.run}
    with ExitStack() as shown:
        bars: list[Counter] = []

        def progress(done: int, total: int) -> None:
            if bars:
                bars[0].count()
            else:
                bars.append(shown.enter_context(Counter(total, "tiles", done)))
                bars[0].working(pair.image.name)

        shown.enter_context(Display().announcing_compilation())
        found = refine_tiles(
            image,
            unary,
            place,
            kind=work.what,
            output=work.kind,
            tile=tiles["tile"],
            halo="auto" if tiles["halo"] is None else tiles["halo"],
            parts=None if one.part is None else f"{one.part.number}/{one.part.count}",
            dtype=work.dtype,
            jobs=jobs,
            resume=resume,
            reference=reference,
            callback=progress,
            **options,
        )
    if found.confidence is not None:
        note = in_options(confidence_note(work.what, found.confidence))
        record["notes"].append(f"{display_name(pair.unary)}: {note}")
    status = Counts(found.statuses).most_common(1)[0][0] if found.statuses else "done before"
    summary: Record = {
        "pixels": list(found.pixels),
        "n_labels": found.n_labels,
        "status": status,
        "iterations": None,
        "free_energy": None,
        "seconds": found.seconds,
        "changed": found.changed,
        "refined_pixels": found.refined,
        "tiles": found.tiles,
        "tiles_left": found.left,
        "halo": list(found.halo),
    }
    if not found.complete:
        return {"output": None, "overlay": None, **summary}
    record_path(target).unlink(missing_ok=True)
    if place != target:  # the picture that was asked for, in one piece: a byte or two per pixel
        write_labels(target, map_array(place), found.n_labels)
        place.unlink()
    write_record(pair, work.what, work.parameters, target, summary)
    return {"output": str(target), "overlay": None, **summary}


def affordable_tiles(jobs: int | None, work: ImageWork) -> int | None:
    """How many tiles of a flat image fit in memory at a time, at most so many."""
    left = memory.available_memory()
    if left is None or jobs is None or jobs == 1:
        return jobs
    tiles, labels = work.tiles or {}, (work.from_labels or {}).get("n_labels", USUAL_LABELS)
    halo = tiles["halo"]
    if halo is None:  # as it is chosen, in pixels of size 1
        settings = DenseSettings.chosen(work.build)
        halo = int(
            HALO_SIGMAS * np.max([*map(np.max, (settings.spatial_sigma, settings.bilateral_sigma))])
        )
    pixels = (tiles["tile"] + 2 * halo) ** 2
    each = PROCESS_BYTES + pixels * (PIXEL_BYTES + ENTRY_BYTES * labels)
    return max(1, min(jobs, int(SHARE * left / each)))
