"""``proxfield solve``: one inference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from proxfield.cli.options import (
    CommandWithRules,
    device_option,
    dtype_option,
    init_option,
    json_option,
    limit_options,
    model_options,
    parse_settings,
    settings_option,
    stack,
)
from proxfield.cli.solve_distributed import distributed_options, refuse_alone
from proxfield.core.common.records import Record

if TYPE_CHECKING:
    from proxfield.cli.shared import Loaded
    from proxfield.result import Result

TASKS = ("MAR", "MAP", "PR")
MAX_SHOWN_MODES = 8
"""Modes that the printed summary lists."""

rule_options = stack(
    click.option("--rule", metavar="NAME", help="Update rule; see the list below."),
    settings_option,
    click.option(
        "--modes",
        metavar="K",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Maximum number of modes (rule auto): a mixture, with a better bound and marginals.",
    ),
    init_option("uniform"),
)

engine_options = stack(
    device_option,
    dtype_option,
    click.option(
        "--kernels",
        type=click.Choice(["cpu", "reference", "cuda", "torch"]),
        help="reference is slow and readable numpy.  [default: what suits the device]",
    ),
    click.option(
        "--keep",
        type=click.Choice(["last", "best"]),
        default="last",
        show_default=True,
        help="Return the last state, or the one of lowest F.",
    ),
)

output_options = stack(
    click.option(
        "--task",
        metavar="MAR|MAP|PR",
        type=click.Choice(TASKS, case_sensitive=False),
        help="Write a UAI result file: marginals, a labelling, or log10 Z (here a lower bound).",
    ),
    click.option("-o", "--output", metavar="FILE", help="File for --task; stdout by default."),
    click.option(
        "--trace",
        metavar="FILE",
        help="Write CSV with the columns iteration, seconds, free_energy, change.",
    ),
    json_option,
    click.option("--strict", is_flag=True, help="Exit with 3 unless converged."),
)


@click.command(cls=CommandWithRules)
@model_options
@rule_options
@limit_options
@engine_options
@output_options
@distributed_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    model: str,
    evidence: str | None,
    evidence_base: str,
    rule: str | None,
    settings: tuple[str, ...],
    modes: int,
    max_iters: int | None,
    tol: float,
    budget: float | None,
    threads: int | None,
    task: str | None,
    output: str | None,
    trace: str | None,
    as_json: bool,
    strict: bool,
    distributed: bool,
    coupling: float | None,
    checkpoint: str | None,
    **options: Any,
) -> None:
    """Infer marginals, a labelling and a certified lower bound on log Z.

    MODEL is a UAI file, plain or compressed, or - for standard input. Without --task and
    --json a short summary is printed. Ctrl-C stops early and still prints the result so far.

    \b
    Examples:
      proxfield solve model.uai
      proxfield solve model.uai --modes 16 --budget 1
      proxfield solve model.uai --rule momentum --set gamma=0.9 --json
      proxfield solve model.uai.xz --evidence model.evid --task MAR -o model.MAR
    """
    from proxfield.cli.progress import Display
    from proxfield.cli.running import (
        NOT_CONVERGED,
        check_device,
        check_limits,
        prepare_rule,
        run,
    )
    from proxfield.cli.shared import check_distinct, load
    from proxfield.core.solve.infer import check_modes

    output = None if output == "-" else output
    check_outputs(task, output, trace, as_json)
    check_distinct({"MODEL": model, "--evidence": evidence, "-o": output, "--trace": trace})
    chosen = prepare_rule(
        "fixed" if distributed and rule is None else rule, parse_settings(settings)
    )
    check_modes(modes, chosen)
    budget = check_limits(max_iters, tol, budget, threads)
    check_device(options)
    limits = {"max_iters": max_iters, "tol": tol, "budget": budget, "threads": threads}
    if distributed:
        from proxfield.cli.solve_distributed import report, solve_distributed

        shared, first, text = solve_distributed(
            model, evidence, evidence_base, chosen, coupling, checkpoint, task, limits, options
        )
        if first:
            write_texts(shared, text, output, trace)
            if as_json or task is None:
                report(shared, as_json)
        if strict and not shared.converged:
            ctx.exit(NOT_CONVERGED)
        return
    refuse_alone(coupling, checkpoint)
    with Display() as display:
        display.phase(f"reading {model}")
        loaded = load(model, evidence, evidence_base)
        result = run(loaded.field, chosen, display, modes=modes, **limits, **options)
    write_outputs(result, task, output, trace, as_json)
    if as_json:
        print_report(loaded, result, {**limits, **options})
    elif task is None:
        print_summary(loaded, result)
    if result.status.name == "INTERRUPTED":
        from proxfield.cli.signals import INTERRUPTED

        ctx.exit(INTERRUPTED)
    if strict and not result.converged:
        ctx.exit(NOT_CONVERGED)


def check_outputs(task: str | None, output: str | None, trace: str | None, as_json: bool) -> None:
    """Refuse outputs that clash or can't be written, before a long run."""
    from proxfield.cli.shared import check_target

    if output is not None and task is None:
        raise click.UsageError("-o needs --task MAR, MAP or PR, which says what to write")
    if task is not None and output is None and as_json:
        raise click.UsageError(
            "--task and --json both write to stdout; give --task a file by -o FILE"
        )
    for option, path in (("-o", output), ("--trace", trace)):
        if path is not None:
            check_target(path, option)


def write_outputs(
    result: Result, task: str | None, output: str | None, trace: str | None, as_json: bool
) -> None:
    """The trace, and what a task asks for."""
    from proxfield.cli.shared import status_line

    write_texts(result, None if task is None else task_text(result, task), output, trace)
    if task is None:
        return
    if not as_json and not result.converged:  # no summary says so
        click.echo(f"proxfield: note: {status_line(result.status)}", err=True)


def write_texts(result: Result, text: str | None, output: str | None, trace: str | None) -> None:
    """The trace, and the text of a task."""
    from proxfield.io.files import atomic_write

    if trace is not None:
        atomic_write(trace, result.trace.to_csv())
    if text is not None and output is None:
        click.echo(text, nl=False)
    elif text is not None and output is not None:
        atomic_write(output, text)


def task_text(result: Result, task: str) -> str:
    """The UAI result file of a task."""
    from proxfield.io.results import format_map, format_mar, format_pr

    if task == "MAR":
        return format_mar(list(result.marginals))
    if task == "MAP":
        return format_map(result.map_labels)
    return format_pr(result.log_z_bound)


def print_report(loaded: Loaded, result: Result, options: Record) -> None:
    """The result as JSON."""
    from proxfield._version import __version__
    from proxfield.cli.running import in_full
    from proxfield.cli.shared import print_json

    print_json(
        {
            "model": loaded.name,
            **result.summary(),
            "n_observed": loaded.n_observed,
            "load_seconds": loaded.seconds,
            **in_full(options),
            "version": __version__,
        }
    )


def print_summary(loaded: Loaded, result: Result) -> None:
    """The result for people."""
    from proxfield.cli.shared import number, print_pairs, status_line

    field = loaded.field
    observed = f", {loaded.n_observed} observed" if loaded.n_observed else ""
    print_pairs(
        [
            ("model", f"{loaded.name}: {field.n_vars} variables{observed}"),
            ("rule", result.rule),
            ("status", status_line(result.status)),
            ("free energy F", number(result.free_energy)),
            ("log Z, at least", number(result.log_z_bound)),
            ("MAP energy", number(result.map_energy)),
            ("iterations", str(result.iterations)),
            ("seconds", f"{result.seconds:.3g} (and {loaded.seconds:.3g} to load)"),
            *mode_rows(result),
        ]
    )


def mode_rows(result: Result) -> list[tuple[str, str]]:
    """The heaviest modes in words, if there are several."""
    from proxfield.cli.shared import number

    rows = [
        (f"mode {k}", f"weight {number(mode.weight, 3)}, F {number(mode.free_energy)}: {mode.cell}")
        for k, mode in enumerate(result.modes[:MAX_SHOWN_MODES], 1)
    ]
    if len(result.modes) > MAX_SHOWN_MODES:
        rows.append(("", f"and {len(result.modes) - MAX_SHOWN_MODES} more modes (--json has all)"))
    return rows
