"""``proxfield map``: the labelling of lowest energy."""

from __future__ import annotations

import click

from proxfield._version import __version__
from proxfield.cli.options import Options
from proxfield.cli.progress import Display
from proxfield.cli.running import check_device, check_limits, in_full, load, shown_by
from proxfield.cli.shared import (
    check_distinct,
    check_summary,
    check_target,
    number,
    print_json,
    print_pairs,
)
from proxfield.cli.signals import INTERRUPTED
from proxfield.core.solve.solve_map import MapResult, MapStatus, solve_map
from proxfield.errors import InputError
from proxfield.io.files import atomic_write
from proxfield.io.results import format_map

REMEDIES = {
    "MAX_ITERS": "raise --max-iters, or give a --budget",
    "BUDGET": "a larger --budget may find a better one",
    "SETTLED": "a --budget or another --seed may find a better one",
    "INTERRUPTED": "this is the best so far",
    "NO_FEASIBLE": "no labelling of positive probability was found; raise --budget, change --seed, "
    "or check the zeros of the model",
}
"""The remedies of `MapStatus` in the words of the command line."""


def search(options: Options) -> int | None:
    """Run the command; returns its exit code."""
    output, trace = options.output, options.trace
    if output is not None:
        check_summary(options.as_json, output, "the labelling")
    for option, path in (("-o", None if output == "-" else output), ("--trace", trace)):
        if path is not None:
            check_target(path, option)
    inputs = {"MODEL": options.model, "--evidence": options.evidence}
    check_distinct({**inputs, "-o": output, "--trace": trace})
    check_limits(options)
    check_device(options)
    given = options.pick("max_iters", "budget", "threads", "seed", "device", "dtype", "kernels")
    with Display() as display:
        display.phase(f"reading {options.model}")
        loaded = load(options)
        display.phase("map")
        with display.announcing_compilation():
            result = solve_map(loaded.field, callback=shown_by(display), **given)
    if trace is not None:
        atomic_write(trace, result.trace.to_csv())
    if options.as_json:
        summary = result.summary()
        about = {**loaded.record, **in_full(given), "version": __version__}
        labels = summary.pop("labels")
        print_json({"model": loaded.name, **summary, **about, "labels": labels})
    elif output != "-":
        print_pairs(
            [
                ("model", loaded.size),
                ("status", status_line(result.status)),
                ("energy", number(result.energy, 10)),
                ("sweeps", str(result.iterations)),
                ("seconds", f"{result.seconds:.3g} (and {loaded.seconds:.3g} to load)"),
            ]
        )
    write_labelling(result, output)
    return INTERRUPTED if result.status.name == "INTERRUPTED" else None


def write_labelling(result: MapResult, output: str | None) -> None:
    """The labelling as a file or on stdout."""
    if output is None:
        return
    if output != "-":
        result.save(output)
        return
    if not result.feasible:
        raise InputError(f"there is no labelling to write: {result.message}")
    click.echo(format_map(result.labels), nl=False)
    click.echo(f"proxfield: note: {status_line(result.status)}", err=True)


def status_line(status: MapStatus) -> str:
    """A status in words, with the remedy where there is one."""
    if status.name == "OPTIMAL":
        return status.label
    return f"{status.label} ({REMEDIES.get(status.name, status.value)})"
