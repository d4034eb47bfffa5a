"""``proxfield evaluate``: detections of people compared with the truth."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click

from proxfield.cli.options import json_option

if TYPE_CHECKING:
    from proxfield.people.evaluation import Evaluation


@click.command()
@click.argument("detections", metavar="DETECTIONS")
@click.argument("truth", metavar="TRUTH")
@click.option(
    "--radius",
    metavar="METERS",
    type=float,
    default=0.5,
    show_default=True,
    help="A detection matches a person who is closer than this.",
)
@click.option(
    "--roi",
    metavar='"X,Y X,Y X,Y …"|FILE',
    help="Region of interest: corners of a polygon in meters. Detections and people outside are "
    "dropped.",
)
@click.option(
    "--frames",
    metavar="FRAME|FIRST:LAST[:STEP]",
    help="Compare these frames only, LAST included.  [default: all frames of TRUTH]",
)
@click.option(
    "--min-score",
    metavar="P",
    type=float,
    help="Drop detections of a lower score.",
)
@click.option("--per-frame", is_flag=True, help="Print a line for each frame too.")
@click.option("-o", "--output", metavar="FILE", help="Write a line for each frame as CSV.")
@json_option
def command(
    detections: str,
    truth: str,
    radius: float,
    roi: str | None,
    frames: str | None,
    min_score: float | None,
    per_frame: bool,
    output: str | None,
    as_json: bool,
) -> None:
    """Print MODA, MODP, precision and recall of DETECTIONS, given the TRUTH.

    Both are .csv files (columns frame, x, y in meters) or .json files as `proxfield detect` writes
    them, or annotations of WILDTRACK: a folder with a .json file per frame. All frames of TRUTH
    count, also those without detections; detections in other frames are ignored.
    """
    from proxfield.cli.main import report
    from proxfield.cli.shared import check_distinct, check_target, print_json
    from proxfield.errors import InputError
    from proxfield.io.files import atomic_write
    from proxfield.people.detections import Detections
    from proxfield.people.evaluation import evaluate, parse_polygon

    if detections == "-" and truth == "-":
        raise click.UsageError("DETECTIONS and TRUTH can't both come from standard input")
    if not (math.isfinite(radius) and radius > 0):
        raise click.UsageError(f"--radius {radius:g}, expected a number of meters above 0")
    if output is not None:
        check_target(output, "-o")
        check_distinct({"DETECTIONS": detections, "TRUTH": truth, "-o": output})
    try:
        region = None if roi is None else parse_polygon(roi)
    except InputError as error:
        raise InputError(f"--roi: {error}") from None
    found, actual = Detections.load(detections), Detections.load(truth)
    if min_score is not None:
        found = found.select(found.score >= min_score)
    wanted = None if frames is None else [f for f in actual.frames.tolist() if f in span(frames)]
    if wanted is not None and not wanted:
        raise InputError(f"--frames {frames}: TRUTH has none of these")
    result = evaluate(found, actual, radius, roi=region, frames=wanted)
    if output is not None:
        atomic_write(output, result.to_csv())
    if as_json:
        print_json(result.to_json(per_frame=per_frame))
    else:
        show(result, per_frame)
    other = len(set(found.frames.tolist()) - set(actual.frames.tolist()))
    if other:
        report(f"{other} frames of DETECTIONS aren't in TRUTH and don't count", kind="note: ")


def span(text: str) -> range:
    """Frames from ``frame``, ``first:last`` or ``first:last:step``, the last included.

    Example:
        >>> list(span("10:20:5")), list(span("3"))
        ([10, 15, 20], [3])
    """
    try:
        numbers = [int(part) for part in text.split(":")]
        first, last, *step = numbers if len(numbers) > 1 else numbers * 2
        if len(step) > 1 or last < first or (step and step[0] < 1):
            raise ValueError
    except ValueError:
        raise click.UsageError(
            f"--frames {text!r}, expected FRAME, FIRST:LAST or FIRST:LAST:STEP"
        ) from None
    return range(first, last + 1, *step)


def show(result: Evaluation, per_frame: bool) -> None:
    """Tables for people."""
    from proxfield.cli.shared import print_pairs, print_table
    from proxfield.people.evaluation import HEADER

    if per_frame:
        rows = [[text(value) for value in row.values()] for row in result.per_frame()]
        print_table([name.replace("_", " ") for name in HEADER], rows, left=())
        click.echo()
    names = {"moda": "MODA", "modp": "MODP"}
    pairs = [(names.get(k, k.replace("_", " ")), text(v)) for k, v in result.summary().items()]
    print_pairs([(k, f"{v} m" if k == "radius" else v) for k, v in pairs])


def text(value: float) -> str:
    """A count, or a number with four digits; nothing where it isn't defined."""
    if isinstance(value, int):
        return str(value)
    return "-" if math.isnan(value) else f"{value:.4g}"
