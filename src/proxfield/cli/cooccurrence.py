"""``proxfield cooccurrence``: which classes occur together in label maps."""

from __future__ import annotations

from collections.abc import Iterator

from proxfield.cli.options import Options
from proxfield.cli.progress import Display
from proxfield.cli.shared import check_distinct, show_summary
from proxfield.core.common.arrays import Pixels
from proxfield.core.common.records import Record
from proxfield.errors import InputError
from proxfield.images.cooccurrence import CooccurrenceStatistics, find_label_maps
from proxfield.io.files import atomic_write, display_name
from proxfield.io.images import read_labels


def count(options: Options) -> None:
    """Run the command; an error names the file that it is about."""
    output = options.output
    files = find_label_maps(options.label_maps)
    check_distinct([*(("LABELMAP", str(file)) for file in files), ("-o", output)])
    reading: list[str] = []

    def maps(display: Display) -> Iterator[Pixels]:
        for number, file in enumerate(files, 1):
            reading[:] = [display_name(file)]
            display.phase(f"counting {number} of {len(files)} label maps")
            yield read_labels(file)[0]
        reading.clear()

    try:
        with Display() as display:
            found = CooccurrenceStatistics.from_label_maps(
                maps(display), options.n_labels, **options.pick("ignore", "min_pixels")
            )
    except InputError as error:
        if error.path is not None or not reading:
            raise
        raise InputError(error.message, path=reading[0]) from None
    atomic_write(output, found.to_json())
    if output != "-":
        show_summary({**summary(found), "output": output}, options.as_json)


def summary(found: CooccurrenceStatistics) -> Record:
    """What was counted."""
    never = [c for c in range(found.n_labels) if found.presence[c] == 0]
    return {"images": found.images, "n_labels": found.n_labels, "never_present": never}
