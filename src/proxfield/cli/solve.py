"""``proxfield solve`` and ``proxfield map``: one inference, and the labelling of lowest energy."""

from __future__ import annotations

import click

from proxfield._version import __version__
from proxfield.cli.options import Options
from proxfield.cli.progress import Display
from proxfield.cli.running import (
    NOT_CONVERGED,
    LoadedModel,
    check_device,
    check_limits,
    in_full,
    load,
    prepare_rule,
    run,
    shown_by,
    status_line,
)
from proxfield.cli.shared import number, print_json, print_pairs
from proxfield.cli.signals import INTERRUPTED
from proxfield.core.common.records import Record
from proxfield.core.solve.infer import check_modes
from proxfield.core.solve.solve_map import MapResult, solve_map
from proxfield.errors import InputError
from proxfield.io.files import atomic_write
from proxfield.io.results import format_map, format_mar, format_pr
from proxfield.result import Result

MAX_SHOWN_MODES = 8
"""Modes that the printed summary lists."""
SAME = ("max_iters", "budget", "threads", "seed", "device", "dtype", "kernels")
"""Options that `infer` and `solve_map` take as they are."""
MAP_REMEDIES = {
    "MAX_ITERS": "raise --max-iters, or give a --budget",
    "BUDGET": "a larger --budget may find a better one",
    "SETTLED": "a --budget or another --seed may find a better one",
    "NO_FEASIBLE": "no labelling of positive probability was found; raise --budget, change --seed, "
    "or check the zeros of the model",
}
"""The remedies of `MapStatus` in the words of the command line."""


def solve(options: Options) -> int | None:
    """Run ``proxfield solve``; returns its exit code."""
    task, output = options.task, None if options.output == "-" else options.output
    if output is not None and task is None:
        raise click.UsageError("-o needs --task MAR, MAP or PR, which says what to write")
    if task is not None and output is None and options.as_json:
        raise click.UsageError(
            "--task and --json both write to stdout; give --task a file by -o FILE"
        )
    name = "fixed" if options.distributed and options.rule is None else options.rule
    rule = prepare_rule(name, options.settings)
    check_modes(options.modes, rule)
    check_limits(options)
    check_device(options)
    given = options.pick(*SAME, "tol", "init", "keep")
    if options.distributed:
        from proxfield.cli.solve_distributed import report, solve_rank  # imports numba

        shared, first, text = solve_rank(options, rule, given)
        if first:
            write_texts(shared, text, output, options.trace)
            if options.as_json or task is None:
                report(shared, options.as_json)
        return NOT_CONVERGED if options.strict and not shared.converged else None
    for option in options.given("coupling", "checkpoint"):
        raise click.UsageError(f"--{option} needs --distributed")
    with Display() as display:
        display.phase(f"reading {options.model}")
        loaded = load(options)
        result = run(loaded.field, rule, display, modes=options.modes, **given)
    write_texts(result, None if task is None else task_text(result, task), output, options.trace)
    if options.as_json:
        print_result(loaded, result.summary(), given)
    elif task is not None and not result.converged:  # no summary says so
        click.echo(f"proxfield: note: {status_line(result.status)}", err=True)
    elif task is None:
        energy = ("MAP energy", number(result.map_energy))
        rows = result_rows(result, [energy], seconds_of(result, loaded))
        print_pairs([("model", loaded.size), *rows, *mode_rows(result)])
    if result.status.name == "INTERRUPTED":
        return INTERRUPTED
    return NOT_CONVERGED if options.strict and not result.converged else None


def write_texts(result: Result, text: str | None, output: str | None, trace: str | None) -> None:
    """The trace, and the text of a task."""
    if trace is not None:
        atomic_write(trace, result.trace.to_csv())
    if text is not None and output is None:
        click.echo(text, nl=False)
    elif text is not None and output is not None:
        atomic_write(output, text)


def task_text(result: Result, task: str) -> str:
    """The UAI result file of a task."""
    if task == "MAR":
        return format_mar(list(result.marginals))
    return format_map(result.map_labels) if task == "MAP" else format_pr(result.log_z_bound)


def print_result(loaded: LoadedModel, summary: Record, given: Record, **more: object) -> None:
    """A result as JSON, with the model and the options."""
    about = {**loaded.record, **in_full(given), "version": __version__}
    print_json({"model": loaded.name, **summary, **about, **more})


def seconds_of(result: Result | MapResult, loaded: LoadedModel) -> str:
    """The time of a result in words."""
    return f"{result.seconds:.3g} (and {loaded.seconds:.3g} to load)"


def result_rows(result: Result, more: list[tuple[str, str]], seconds: str) -> list[tuple[str, str]]:
    """A result for people, with further rows behind the bound."""
    return [
        ("rule", result.rule),
        ("status", status_line(result.status)),
        ("free energy F", number(result.free_energy)),
        ("log Z, at least", number(result.log_z_bound)),
        *more,
        ("iterations", str(result.iterations)),
        ("seconds", seconds),
    ]


def mode_rows(result: Result) -> list[tuple[str, str]]:
    """The heaviest modes in words, if there are several."""
    rows = [
        (f"mode {k}", f"weight {number(mode.weight, 3)}, F {number(mode.free_energy)}: {mode.cell}")
        for k, mode in enumerate(result.modes[:MAX_SHOWN_MODES], 1)
    ]
    if len(result.modes) > MAX_SHOWN_MODES:
        rows.append(("", f"and {len(result.modes) - MAX_SHOWN_MODES} more modes (--json has all)"))
    return rows


def search(options: Options) -> int | None:
    """Run ``proxfield map``; returns its exit code."""
    check_limits(options)
    check_device(options)
    given, output = options.pick(*SAME), options.output
    with Display() as display:
        display.phase(f"reading {options.model}")
        loaded = load(options)
        display.phase("map")
        with display.announcing_compilation():
            result = solve_map(loaded.field, callback=shown_by(display), **given)
    status = status_line(result.status, remedies=MAP_REMEDIES)
    if options.trace is not None:
        atomic_write(options.trace, result.trace.to_csv())
    if options.as_json:
        summary = result.summary()
        print_result(loaded, summary, given, labels=summary.pop("labels"))
    elif output != "-":
        energy, sweeps = number(result.energy, 10), str(result.iterations)
        rows = [("status", status), ("energy", energy), ("sweeps", sweeps)]
        print_pairs([("model", loaded.size), *rows, ("seconds", seconds_of(result, loaded))])
    if output == "-":
        if not result.feasible:
            raise InputError(f"there is no labelling to write: {result.message}")
        click.echo(format_map(result.labels), nl=False)
        click.echo(f"proxfield: note: {status}", err=True)
    elif output is not None:
        result.save(output)
    return INTERRUPTED if result.status.name == "INTERRUPTED" else None
