"""``proxfield refine`` on images that don't fit in memory: which they are, and their tiles."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from proxfield.cli.options import stack
from proxfield.common.records import Record
from proxfield.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from proxfield.cli.refine_files import Pair
    from proxfield.cli.refine_one import Work

TILE = 1024
"""Length of a tile where none is given: the default of `proxfield.refine_tiles`."""
SHARE = 0.8
"""Of the available memory, what an image may take before it is refined in tiles."""
USUAL_HALO = 200
USUAL_LABELS = 8
"""What is assumed where nothing is said, to estimate the memory of a tile."""
SLIDES = (".svs", ".ndpi", ".scn", ".bif", ".vms")
"""Endings of whole slides, which are tiled TIFF files."""

tile_options = stack(
    click.option(
        "--tile",
        metavar="N",
        type=click.IntRange(min=1),
        help="Refine in tiles of N×N pixels.  [default: tiles of 1024 where an image wouldn't fit "
        "in memory]",
    ),
    click.option(
        "--halo",
        metavar="N",
        type=click.IntRange(min=0),
        help="Pixels around a tile that are refined with it.  [default: 5 standard deviations]",
    ),
)


def tiled_pairs(pairs: Sequence[Pair], options: Record, overlay: str | None) -> set[Pair]:
    """The pairs to refine in tiles: as the user says, by their kind, or for lack of memory.

    Args:
        pairs: All pairs.
        options: The command's options.
        overlay: Where pictures of the labels go; None without.
    """
    from proxfield.cli.refine_run import SAMPLED_FILES, bytes_needed
    from proxfield.common.memory import available_memory
    from proxfield.io.sliced import is_windowed

    whole = [f"--{n}" for n in ("scribbles", "cooccurrence") if options[n] is not None]
    whole += ["--overlay"] * (overlay is not None)
    found = {p for p in pairs if options["tile"] is not None or must_be_tiled(p)}
    if found and whole:
        raise click.UsageError(f"{whole[0]} doesn't go with tiles, expected an image in one piece")
    left = available_memory()
    if left is not None and not whole:
        rest = [p for p in pairs if p not in found and is_windowed(p.unary)]
        for pair in sorted(rest, key=lambda p: p.unary.stat().st_size)[-SAMPLED_FILES:]:
            if bytes_needed(pair, options["n_labels"]) > SHARE * left:
                found.add(pair)
    if options["halo"] is not None and not found:
        raise click.UsageError("--halo goes with tiles, expected --tile too")
    return found


def must_be_tiled(pair: Pair) -> bool:
    """Whether a pair's files are of kinds that are read or written in windows only."""
    from proxfield.io.referenced import GEOTIFF, ending, has_rasterio, is_geotiff
    from proxfield.io.sliced import is_zarr

    target = ending(pair.targets[0])
    placed = is_geotiff(pair.image) and has_rasterio()
    return (
        is_zarr(pair.image)
        or is_zarr(pair.unary)
        or ending(pair.image) in SLIDES
        or target == ".zarr"
        or (target in GEOTIFF and not placed)
    )


def for_tiles(pair: Pair, work: Work, options: Record) -> tuple[Pair, Work]:
    """A pair with a result that can be written in windows, and the work with its tiles."""
    from proxfield.io.referenced import ending, stem

    target = pair.targets[0]
    if ending(target) == ".npz":
        target = target.with_name(f"{stem(target)}.npy")
    tiles = {"tile": options["tile"] or TILE, "halo": options["halo"]}
    return replace(pair, targets=(target,)), replace(work, tiles=tiles)


def run_tiled(todo: Sequence[tuple[Pair, Work]], jobs: int, *, resume: bool) -> Iterator[Record]:
    """The records of images that are refined in tiles, one image after another.

    Args:
        todo: Files and work; see `for_tiles`.
        jobs: Tiles at a time, if there is memory for them.
        resume: Whether tiles of an earlier run count.
    """
    for pair, work in todo:
        record = refine_in_tiles(pair, work, affordable_tiles(jobs, work), resume)
        if record["error"] is not None:
            click.echo(f"proxfield: error: {record['error']}", err=True)
        yield record


def refine_in_tiles(pair: Pair, work: Work, jobs: int, resume: bool) -> Record:
    """Refine one image with a bar over its tiles; a failure becomes an entry of the record.

    Args:
        pair: The files; see `for_tiles`.
        work: What to do.
        jobs: Tiles at a time.
        resume: Whether tiles of an earlier run count.
    """
    from proxfield.cli.refine_one import new_record, with_failures

    record = new_record(pair)
    with_failures(pair, record, lambda: record.update(_refine(pair, work, jobs, resume, record)))
    return record


def _refine(pair: Pair, work: Work, jobs: int, resume: bool, record: Record) -> Record:
    from proxfield.cli.progress import Counter, Display
    from proxfield.cli.refine_record import record_path, write_record
    from proxfield.common.interrupts import deferred

    with deferred():  # numba, cut off while it is imported, may swallow Ctrl-C
        from proxfield.images.tiles import refine_tiles
    target = pair.targets[0]
    image, unary = _given(pair, work, record["notes"])
    place, reference = _place(pair, target)
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
            dtype=work.dtype,
            jobs=jobs,
            resume=resume,
            reference=reference,
            callback=progress,
            **options,
        )
    record_path(target).unlink(missing_ok=True)
    if place != target:
        _as_picture(place, target, found.n_labels)
    status = Counts(found.statuses).most_common(1)[0][0] if found.statuses else "done before"
    summary: Record = {
        "pixels": list(found.pixels),
        "n_labels": found.n_labels,
        "status": status,
        "iterations": None,
        "free_energy": None,
        "seconds": found.seconds,
        "tiles": found.tiles,
        "halo": list(found.halo),
    }
    write_record(pair, work, target, summary)
    return {"output": str(target), "overlay": None, **summary}


def _given(pair: Pair, work: Work, notes: list[str]) -> tuple[Any, Any]:
    """Image and unaries: files where they can be read in windows, else arrays."""
    from proxfield.io.images import PICTURES, read_image, read_labels
    from proxfield.io.referenced import GEOTIFF, ending

    pictures = {*PICTURES} - {*GEOTIFF}
    image: Any = pair.image
    if ending(pair.image) in pictures:
        image = read_image(pair.image, notes)
    unary: Any = pair.unary
    if work.what == "labels" and ending(pair.unary) in pictures:
        unary = read_labels(pair.unary)[0]
    return image, unary


def _place(pair: Pair, target: Path) -> tuple[Path, Any]:
    """The file that tiles are written to, and where on Earth it is."""
    from proxfield.io.referenced import GEOTIFF, ending, has_rasterio, is_geotiff, read_reference
    from proxfield.io.windows import KINDS

    if ending(target) not in KINDS:
        return target.with_name(f"{target.name}.npy"), None
    if ending(target) in GEOTIFF and has_rasterio() and is_geotiff(pair.image):
        return target, read_reference(pair.image)
    return target, None


def _as_picture(place: Path, target: Path, n_labels: int) -> None:
    """Labels as the picture that was asked for, in one piece: a byte or two per pixel."""
    import numpy as np

    from proxfield.io.images import write_labels

    write_labels(target, np.load(place, mmap_mode="r"), n_labels)
    place.unlink()


def affordable_tiles(jobs: int, work: Work) -> int:
    """How many tiles of a flat image fit in memory at a time, at most so many."""
    from proxfield.cli.refine_run import ENTRY_BYTES, PIXEL_BYTES, PROCESS_BYTES
    from proxfield.common.memory import available_memory

    left = available_memory()
    if left is None or jobs == 1:
        return jobs
    tiles, labels = work.tiles or {}, (work.from_labels or {}).get("n_labels", USUAL_LABELS)
    halo = USUAL_HALO if tiles["halo"] is None else tiles["halo"]
    pixels = (tiles["tile"] + 2 * halo) ** 2
    each = PROCESS_BYTES + pixels * (PIXEL_BYTES + ENTRY_BYTES * labels)
    return max(1, min(jobs, int(SHARE * left / each)))


def check_kinds(pairs: Sequence[Pair]) -> None:
    """Refuse volumes that only some other reader knows, before any work."""
    from proxfield.io.referenced import NIFTI, ending

    for pair in pairs:
        if ending(pair.image) in NIFTI or ending(pair.unary) in (*NIFTI, ".npz"):
            raise InputError(
                "can't be read in windows, expected .npy, .zarr or TIFF (leave out --tile)",
                path=str(pair.image if ending(pair.image) in NIFTI else pair.unary),
            )
