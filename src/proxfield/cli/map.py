"""``proxfield map``: the labelling of lowest energy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from proxfield.cli.options import (
    device_option,
    dtype_option,
    json_option,
    model_options,
    search_limit_options,
)
from proxfield.core.common.records import Record

if TYPE_CHECKING:
    from proxfield.cli.progress import Display
    from proxfield.cli.shared import Loaded
    from proxfield.core.solve.history import Progress
    from proxfield.core.solve.map_result import MapResult, MapStatus

REMEDIES = {
    "MAX_ITERS": "raise --max-iters, or give a --budget",
    "BUDGET": "a larger --budget may find a better one",
    "SETTLED": "a --budget or another --seed may find a better one",
    "INTERRUPTED": "this is the best so far",
    "NO_FEASIBLE": "no labelling of positive probability was found; raise --budget, change --seed, "
    "or check the zeros of the model",
}
"""The remedies of `MapStatus` in the words of the command line."""


@click.command()
@model_options
@click.option(
    "--max-iters",
    metavar="N",
    type=click.IntRange(min=0),
    help="Maximum number of sweeps, of all chains together.  [default: no limit with --budget, "
    "else enough for a second or two]",
)
@search_limit_options
@device_option
@dtype_option
@click.option(
    "-o", "--output", metavar="FILE", help="Write the labelling as a UAI MAP file; - is stdout."
)
@click.option(
    "--trace", metavar="FILE", help="Write CSV with the columns iteration, seconds, energy."
)
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    model: str,
    evidence: str | None,
    evidence_base: str,
    max_iters: int | None,
    budget: float | None,
    threads: int | None,
    output: str | None,
    trace: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Search for the most probable labelling: the one of lowest energy.

    MODEL is a UAI file, plain or compressed, or - for standard input. Without -o - and --json a
    short summary is printed; --json includes the labels. Where the interactions form a forest the
    result is optimal, otherwise no change of a single variable lowers its energy. Ctrl-C stops
    early and still prints the best so far.

    \b
    Examples:
      proxfield map model.uai
      proxfield map model.uai.xz --evidence model.evid --budget 5 -o model.MAP
      proxfield map model.uai --max-iters 2000 --seed 7 --json
    """
    from proxfield.cli.progress import Display
    from proxfield.cli.running import check_device, check_limits
    from proxfield.cli.shared import check_distinct, check_summary, check_target, load
    from proxfield.io.files import atomic_write

    if as_json and output is not None:
        check_summary(as_json, output, "the labelling")
    for option, path in (("-o", None if output == "-" else output), ("--trace", trace)):
        if path is not None:
            check_target(path, option)
    check_distinct({"MODEL": model, "--evidence": evidence, "-o": output, "--trace": trace})
    budget = check_limits(max_iters, 0.0, budget, threads)
    check_device(options)
    limits = {"max_iters": max_iters, "budget": budget, "threads": threads}
    with Display() as display:
        display.phase(f"reading {model}")
        loaded = load(model, evidence, evidence_base)
        result = run(loaded, display, **limits, **options)
    if trace is not None:
        atomic_write(trace, result.trace.to_csv())
    if as_json:
        print_report(loaded, result, {**limits, **options})
    elif output != "-":
        print_summary(loaded, result)
    write_labelling(result, output)
    if result.status.name == "INTERRUPTED":
        from proxfield.cli.signals import INTERRUPTED

        ctx.exit(INTERRUPTED)


def run(loaded: Loaded, display: Display, **options: Any) -> MapResult:
    """Search with a live display; announces compilation."""
    from proxfield.cli.signals import begin_work, interrupted
    from proxfield.core.solve.solve_map import solve_map

    def update(progress: Progress) -> None:
        begin_work()
        if interrupted():  # a library swallowed Ctrl-C, as some do while kernels are loaded
            raise KeyboardInterrupt
        display.update(progress)

    display.phase("map")
    with display.announcing_compilation():
        return solve_map(loaded.field, callback=update, **options)


def write_labelling(result: MapResult, output: str | None) -> None:
    """The labelling as a file or on stdout."""
    from proxfield.errors import InputError
    from proxfield.io.results import format_map

    if output is None:
        return
    if output != "-":
        result.save(output)
        return
    if not result.feasible:
        raise InputError(f"there is no labelling to write: {result.message}")
    click.echo(format_map(result.labels), nl=False)
    click.echo(f"proxfield: note: {status_line(result.status)}", err=True)


def print_report(loaded: Loaded, result: MapResult, options: Record) -> None:
    """The result as JSON."""
    from proxfield._version import __version__
    from proxfield.cli.running import in_full
    from proxfield.cli.shared import print_json

    summary = result.summary()
    labels = summary.pop("labels")
    print_json(
        {
            "model": loaded.name,
            **summary,
            "n_observed": loaded.n_observed,
            "load_seconds": loaded.seconds,
            **in_full(options),
            "version": __version__,
            "labels": labels,
        }
    )


def status_line(status: MapStatus) -> str:
    """A status in words, with the remedy where there is one."""
    if status.name == "OPTIMAL":
        return status.label
    return f"{status.label} ({REMEDIES.get(status.name, status.value)})"


def print_summary(loaded: Loaded, result: MapResult) -> None:
    """The result for people."""
    from proxfield.cli.shared import number, print_pairs

    observed = f", {loaded.n_observed} observed" if loaded.n_observed else ""
    print_pairs(
        [
            ("model", f"{loaded.name}: {loaded.field.n_vars} variables{observed}"),
            ("status", status_line(result.status)),
            ("energy", number(result.energy, 10)),
            ("sweeps", str(result.iterations)),
            ("seconds", f"{result.seconds:.3g} (and {loaded.seconds:.3g} to load)"),
        ]
    )
