"""``proxfield evaluate``: detections of people compared with the truth."""

from __future__ import annotations

import math

import click

from proxfield.cli.main import report
from proxfield.cli.options import Options
from proxfield.cli.shared import print_json, print_pairs, print_table
from proxfield.errors import InputError
from proxfield.io.files import atomic_write
from proxfield.people.detections import Detections
from proxfield.people.evaluation import HEADER, Evaluation, evaluate, parse_polygon


def evaluate_files(options: Options) -> None:
    """Run the command."""
    radius, output = options.radius, options.output
    if options.detections == "-" and options.truth == "-":
        raise click.UsageError("DETECTIONS and TRUTH can't both come from standard input")
    if not (math.isfinite(radius) and radius > 0):
        raise click.UsageError(f"--radius {radius:g}, expected a number of meters above 0")
    try:
        region = None if options.roi is None else parse_polygon(options.roi)
    except InputError as error:
        raise InputError(f"--roi: {error}") from None
    found, actual = Detections.load(options.detections), Detections.load(options.truth)
    if options.min_score is not None:
        found = found.select(found.score >= options.min_score)
    frames = actual.frames.tolist()
    wanted = None if options.frames is None else [f for f in frames if f in span(options.frames)]
    if wanted is not None and not wanted:
        raise InputError(f"--frames {options.frames}: TRUTH has none of these")
    result = evaluate(found, actual, radius, roi=region, frames=wanted)
    if output is not None:
        atomic_write(output, result.to_csv())
    if options.as_json:
        print_json(result.to_json(per_frame=options.per_frame))
    else:
        show(result, options.per_frame)
    other = len(set(found.frames.tolist()) - set(frames))
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
