"""``proxfield cooccurrence``: which classes occur together in label maps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from proxfield.cli.options import json_option
from proxfield.core.common.records import Record

if TYPE_CHECKING:
    from proxfield.cli.progress import Display
    from proxfield.core.common.arrays import Pixels
    from proxfield.images.cooccurrence import CooccurrenceStatistics


@click.command()
@click.argument("label_maps", metavar="LABELMAP...", nargs=-1, required=True)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    default="-",
    help="Where to write the JSON; .gz, .xz and .bz2 names are compressed. stdout by default.",
)
@click.option(
    "--n-labels",
    metavar="N",
    type=click.IntRange(min=1),
    help="The number of classes.  [default: one more than the largest label]",
)
@click.option(
    "--ignore",
    metavar="LABEL",
    type=int,
    multiple=True,
    default=(255,),
    show_default=True,
    help="A label that is no class; repeatable.",
)
@click.option(
    "--min-pixels",
    metavar="N",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Minimum number of pixels of a class that is present in an image.",
)
@json_option
def command(
    label_maps: tuple[str, ...],
    output: str,
    n_labels: int | None,
    ignore: tuple[int, ...],
    min_pixels: int,
    as_json: bool,
) -> None:
    """Count in how many images each class, and each pair of classes, is present.

    Each LABELMAP is a PNG (palette or gray) or a .npy file that holds a class number for
    each pixel, or a folder of such files. The counts are what `proxfield.Cooccurrence` takes.
    """
    from proxfield.cli.progress import Display
    from proxfield.cli.shared import check_distinct, check_summary, check_target, show_summary
    from proxfield.images.cooccurrence import find_label_maps
    from proxfield.io.files import atomic_write

    check_summary(as_json, output, "the counts")
    files = find_label_maps(label_maps)
    if output != "-":
        check_target(output, "-o")
        for file in files:
            check_distinct({"LABELMAP": str(file), "-o": output})
    with Display() as display:
        found = count(files, n_labels, ignore, min_pixels, display)
    atomic_write(output, found.to_json())
    if output != "-":
        show_summary({**summary(found), "output": output}, as_json)


def count(
    files: list[Path],
    n_labels: int | None,
    ignore: tuple[int, ...],
    min_pixels: int,
    display: Display,
) -> CooccurrenceStatistics:
    """Read and count; an error names the file it is about."""
    from proxfield.errors import InputError
    from proxfield.images.cooccurrence import CooccurrenceStatistics
    from proxfield.io.files import display_name
    from proxfield.io.images import read_labels

    reading: list[str] = []

    def maps() -> Iterator[Pixels]:
        for number, file in enumerate(files, 1):
            reading[:] = [display_name(file)]
            display.phase(f"counting {number} of {len(files)} label maps")
            yield read_labels(file)[0]
        reading.clear()

    try:
        return CooccurrenceStatistics.from_label_maps(
            maps(), n_labels, ignore=ignore, min_pixels=min_pixels
        )
    except InputError as error:
        if error.path is not None or not reading:
            raise
        raise InputError(error.message, path=reading[0]) from None


def summary(found: CooccurrenceStatistics) -> Record:
    """What was counted."""
    never = [c for c in range(found.n_labels) if found.presence[c] == 0]
    return {"images": found.images, "n_labels": found.n_labels, "never_present": never}
