"""Tiles as jobs: each is read, refined and written to a file of its own, wherever that happens."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from proxfield.core.common.arrays import Pixels
from proxfield.core.common.records import Record
from proxfield.core.jobs import run_jobs, slots_of, threads_per_item
from proxfield.errors import InputError
from proxfield.images.tile_grid import ImageTile, TileGrid
from proxfield.images.tile_work import TileWork
from proxfield.io.npy import map_array, mapped
from proxfield.io.windows import Held, Sliced, writing_to


def tile_path(place: Path, number: int) -> Path:
    """The file of a finished tile that isn't in the output yet."""
    return place / f"tile-{number}.npy"


def stored_tiles(place: Path) -> set[int]:
    """Numbers of the tiles that have such a file."""
    return {int(path.stem.partition("-")[2]) for path in place.glob("tile-*.npy")}


def run_tiles(
    work: TileWork, grid: TileGrid, todo: Sequence[int], place: Path, jobs: int | None
) -> Iterator[Record]:
    """Refine tiles; their files are there when their records come.

    Args:
        work: How to refine.
        grid: All tiles.
        todo: Numbers of those to refine.
        place: The folder of their files, which workers on other machines must have too.
        jobs: Number of tiles at a time; see `run_jobs`.

    Returns:
        A record per tile, in any order: its ``number``, the ``status`` of its inference, and how
        many of its pixels ``changed``.

    Raises:
        InputError: If a tile can't be refined or stored.
    """
    if not todo:
        return
    jobs = None if jobs is None else min(int(jobs), len(todo))
    threads = work.run.get("threads")
    if slots_of(jobs) > 1:
        work = _on_disk(work, place)
        threads = threads_per_item(jobs) if threads is None else int(threads)
        work = replace(work, run={**work.run, "threads": threads})
    items = (grid.part(number) for number in todo)
    for record in run_jobs(TileJob(work, place), items, jobs, threads):
        if record["error"] is not None:
            raise InputError(record["error"])
        yield record


@dataclass(frozen=True)
class TileJob:
    """One tile: read, refine, write to a file of its own. It travels to other processes."""

    work: TileWork
    place: Path

    def __call__(self, part: ImageTile) -> Record:
        record: Record = {"number": part.number, "error": None, "status": None, "changed": 0}
        try:
            values, record["status"], record["changed"] = self.work.refine(part)
            with writing_to(self.place):
                _store(tile_path(self.place, part.number), values)
        except InputError as error:
            record["error"] = f"{part}: {error}"
        return record


def _store(path: Path, values: Pixels) -> None:
    """Write a file that appears when all of it is there."""
    aside = path.with_name(f".proxfield-{secrets.token_hex(8)}.tmp")
    try:
        values = np.ascontiguousarray(values)
        form: Any = np.lib.format
        with aside.open("wb") as stream:  # not np.save, which doesn't say why it can't write
            form.write_array_header_1_0(stream, form.header_data_from_array_1_0(values))
            stream.write(values.data)
        aside.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise


def _on_disk(work: TileWork, place: Path) -> TileWork:
    """The same with arrays in memory as files, which other processes read by themselves."""

    def stored(given: Sliced | None, name: str) -> Sliced | None:
        if not isinstance(given, Held) or not given.in_memory:
            return given
        with writing_to(place):
            np.save(place / name, given.array)
        return mapped(map_array(place / name), place / name)

    unary = stored(work.unary, "unary.npy")
    assert unary is not None
    return work.reading(stored(work.image, "image.npy"), unary)
