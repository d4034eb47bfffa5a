"""``proxfield solve``: one inference."""

from __future__ import annotations

import click

from proxfield._version import __version__
from proxfield.cli.options import Options
from proxfield.cli.progress import Display
from proxfield.cli.running import (
    NOT_CONVERGED,
    check_device,
    check_limits,
    in_full,
    load,
    prepare_rule,
    run,
)
from proxfield.cli.shared import (
    check_distinct,
    check_target,
    number,
    print_json,
    print_pairs,
    status_line,
)
from proxfield.cli.signals import INTERRUPTED
from proxfield.core.solve.infer import check_modes
from proxfield.io.files import atomic_write
from proxfield.io.results import format_map, format_mar, format_pr
from proxfield.result import Result

MAX_SHOWN_MODES = 8
"""Modes that the printed summary lists."""
LIMITS = ("max_iters", "tol", "budget", "threads")
ENGINE = ("init", "seed", "device", "dtype", "kernels", "keep")
"""Options that `infer` takes as they are."""


def solve(options: Options) -> int | None:
    """Run the command; returns its exit code."""
    check_outputs(options)
    name = "fixed" if options.distributed and options.rule is None else options.rule
    rule = prepare_rule(name, options.settings)
    check_modes(options.modes, rule)
    check_limits(options)
    check_device(options)
    given = options.pick(*LIMITS, *ENGINE)
    task = options.task
    if options.distributed:
        from proxfield.cli.solve_distributed import report, solve_rank  # imports numba

        shared, first, text = solve_rank(options, rule, given)
        if first:
            write_texts(shared, text, options)
            if options.as_json or task is None:
                report(shared, options.as_json)
        return NOT_CONVERGED if options.strict and not shared.converged else None
    for option in ("coupling", "checkpoint"):
        if getattr(options, option) is not None:
            raise click.UsageError(f"--{option} needs --distributed")
    with Display() as display:
        display.phase(f"reading {options.model}")
        loaded = load(options)
        result = run(loaded.field, rule, display, modes=options.modes, **given)
    write_texts(result, None if task is None else task_text(result, task), options)
    if options.as_json:
        about = {**loaded.record, **in_full(given), "version": __version__}
        print_json({"model": loaded.name, **result.summary(), **about})
    elif task is not None and not result.converged:  # no summary says so
        click.echo(f"proxfield: note: {status_line(result.status)}", err=True)
    elif task is None:
        seconds = f"{result.seconds:.3g} (and {loaded.seconds:.3g} to load)"
        energy = ("MAP energy", number(result.map_energy))
        first_row = ("model", loaded.size)
        print_pairs([first_row, *result_rows(result, [energy], seconds), *mode_rows(result)])
    if result.status.name == "INTERRUPTED":
        return INTERRUPTED
    return NOT_CONVERGED if options.strict and not result.converged else None


def check_outputs(options: Options) -> None:
    """Refuse outputs that clash or can't be written, before a long run."""
    options.output = None if options.output == "-" else options.output
    task, output, trace = options.task, options.output, options.trace
    if output is not None and task is None:
        raise click.UsageError("-o needs --task MAR, MAP or PR, which says what to write")
    if task is not None and output is None and options.as_json:
        raise click.UsageError(
            "--task and --json both write to stdout; give --task a file by -o FILE"
        )
    for option, path in (("-o", output), ("--trace", trace)):
        if path is not None:
            check_target(path, option)
    inputs = {"MODEL": options.model, "--evidence": options.evidence}
    check_distinct({**inputs, "-o": output, "--trace": trace})


def write_texts(result: Result, text: str | None, options: Options) -> None:
    """The trace, and the text of a task."""
    if options.trace is not None:
        atomic_write(options.trace, result.trace.to_csv())
    if text is not None and options.output is None:
        click.echo(text, nl=False)
    elif text is not None:
        atomic_write(options.output, text)


def task_text(result: Result, task: str) -> str:
    """The UAI result file of a task."""
    if task == "MAR":
        return format_mar(list(result.marginals))
    if task == "MAP":
        return format_map(result.map_labels)
    return format_pr(result.log_z_bound)


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
