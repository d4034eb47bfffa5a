"""``proxfield solve``, ``map`` and ``compare``: inference, the best labelling, several rules."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from proxfield._version import __version__
from proxfield.cli.main import report
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
from proxfield.cli.shared import number, print_json, print_pairs, print_table
from proxfield.cli.signals import INTERRUPTED
from proxfield.core.common.records import Record
from proxfield.core.solve.infer import check_modes
from proxfield.core.solve.rules.base import Rule
from proxfield.core.solve.rules.registry import RULES
from proxfield.errors import InputError, ProxfieldError
from proxfield.io.files import atomic_write
from proxfield.io.results import format_map, format_mar, format_pr
from proxfield.result import Result

if TYPE_CHECKING:
    from proxfield.core.solve.solve_map import MapResult
    from proxfield.distributed import Partition, PartResult, Transport

MAX_SHOWN_MODES = 8
"""Modes that the printed summary lists."""
ENGINE = ("device", "dtype", "kernels")
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
    given = options.pick("max_iters", "tol", "budget", "threads", "init", "seed", *ENGINE, "keep")
    if options.distributed:
        shared, first, text = solve_rank(options, rule, given)
        if first:
            write_texts(shared, text, output, options.trace)
            figures = shared.summary()
            if options.as_json:
                print_json({**figures, "version": __version__})
            elif task is None:
                size = f"{figures['n_vars']} variables over {figures['ranks']} ranks"
                rows = result_rows(shared, [], f"{shared.seconds:.3g}")
                print_pairs([("field", size), *rows])
        return NOT_CONVERGED if options.strict and not shared.converged else None
    for option in options.given("coupling", "checkpoint"):
        raise click.UsageError(f"--{option} needs --distributed")
    with Display() as display:
        loaded = load(options, display)
        result = run(loaded.field, rule, display, modes=options.modes, **given)
    formats = {  # of UAI result files
        "MAR": lambda: format_mar(list(result.marginals)),
        "MAP": lambda: format_map(result.map_labels),
        "PR": lambda: format_pr(result.log_z_bound),
    }
    text = None if task is None else formats[task]()
    write_texts(result, text, output, options.trace)
    if options.as_json:
        print_result(loaded, result.summary(), given)
    elif task is not None and not result.converged:  # no summary says so
        click.echo(f"proxfield: note: {status_line(result.status)}", err=True)
    elif task is None:
        energy = ("MAP energy", number(result.map_energy))
        rows = result_rows(result, [energy], seconds_of(result, loaded))
        rows += [
            (f"mode {k}", f"weight {number(m.weight, 3)}, F {number(m.free_energy)}: {m.cell}")
            for k, m in enumerate(result.modes[:MAX_SHOWN_MODES], 1)
        ]
        if (more := len(result.modes) - MAX_SHOWN_MODES) > 0:
            rows.append(("", f"and {more} more modes (--json has all)"))
        print_pairs([("model", loaded.size), *rows])
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


def search(options: Options) -> int | None:
    """Run ``proxfield map``; returns its exit code."""
    from proxfield.core.solve.solve_map import solve_map  # imports all searches

    check_limits(options)
    check_device(options)
    given, output = options.pick("max_iters", "budget", "threads", "seed", *ENGINE), options.output
    with Display() as display:
        loaded = load(options, display)
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


# ---- over several processes ----


def solve_rank(options: Options, rule: Rule, given: Record) -> tuple[PartResult, bool, str | None]:
    """The result of this rank, whether the rank prints it, and the text of a task."""
    from proxfield.distributed import Partition, connect, infer  # imports numba

    with connect() as transport:
        if options.model.endswith(".npy"):
            if options.task is not None or options.evidence is not None:
                raise click.UsageError("--task and --evidence need a model, not an array")
            coupling = 1.0 if options.coupling is None else options.coupling
            part = read_grid(transport, options.model, coupling)
        else:
            if options.coupling is not None:
                raise click.UsageError("--coupling needs an array of unary energies (.npy)")
            part = Partition.from_field(transport, load(options).field)
        result = infer(part, rule, checkpoint=options.checkpoint, **given)
        text = format_pr(result.log_z_bound) if options.task == "PR" else None
        if options.task in ("MAR", "MAP"):
            q, own = result.gather(), result.partition
            text = ""
            if q is not None and own is not None and own.whole is not None:  # the first rank
                full = own.whole.lowered.reduction.full
                mar = options.task == "MAR"
                text = format_mar(list(full.split(q))) if mar else format_map(full.best_labels(q))
        return result, transport.rank == 0, text


def read_grid(transport: Transport, path: str, coupling: float) -> Partition:
    """A grid whose unary energies are in a file, of which each rank reads its box."""
    from proxfield.distributed import grid_partition
    from proxfield.io.windows import map_array

    energies = map_array(path)
    if energies.ndim < 2 or energies.dtype.kind != "f" or energies.shape[-1] < 2:
        raise InputError(
            f"an array of {energies.dtype} of shape {energies.shape}, expected unary energies: "
            "numbers of shape (rows, columns, labels) or with more axes",
            path=path,
        )
    shape, n_labels = energies.shape[:-1], energies.shape[-1]
    return grid_partition(transport, shape, energies, coupling, n_labels=n_labels)


# ---- several rules ----


def compare(options: Options) -> int | None:
    """Run ``proxfield compare``; returns its exit code."""
    if options.plot is not None and options.no_plot:
        raise click.UsageError("--plot and --no-plot contradict each other")
    usual = [name for name, rule in RULES.items() if not rule.special]
    rules = [prepare_rule(name) for name in options.rules or usual]
    check_limits(options)
    check_device(options)
    given = options.pick("max_iters", "tol", "budget", "seed", "threads", *ENGINE)
    results: dict[str, Result] = {}
    failures: dict[str, str] = {}
    interrupted = False
    with Display() as display:
        loaded = load(options, display)
        for rule in rules:
            try:
                results[rule.name] = run(loaded.field, rule, display, **given)
                interrupted = results[rule.name].status.name == "INTERRUPTED"
            except KeyboardInterrupt:
                interrupted = True
            except click.UsageError as error:  # this field lacks something that the rule needs
                failures[rule.name] = error.message
            if interrupted:
                break
    finite = [name for name, r in results.items() if r.free_energy < float("inf")]
    best = min(finite, key=lambda name: results[name].free_energy, default=None)
    if options.as_json:
        runs = [result.summary() for result in results.values()]
        head = {"n_vars": loaded.field.n_vars, **loaded.record, **in_full(given)}
        for summary in runs:
            summary.pop("n_vars")
        found = {"best": best, "results": runs, "failures": failures}
        print_json({"model": loaded.name, **head, **found, "version": __version__})
    else:
        header = ["", "rule", "F", "log Z, at least", "MAP energy"]
        rows = [
            ["*" if name == best else "", name]
            + [number(x) for x in (r.free_energy, r.log_z_bound, r.map_energy)]
            + [str(r.iterations), f"{r.seconds:.3g}", r.status.label]
            for name, r in results.items()
        ]
        print_table([*header, "iterations", "seconds", "status"], rows, left=(0, 1, 7))
    for name, why in failures.items():
        report(f"{name} can't run on this model ({why})", kind="note: ")
    if results and not options.no_plot:
        draw(loaded, results, options.plot)
    return INTERRUPTED if interrupted else None


def draw(loaded: LoadedModel, results: dict[str, Result], plot: str | None) -> None:
    """Draw and save. A picture that wasn't requested by name may fail."""
    from proxfield.viz import convergence_figure, save_figure  # other commands draw nothing

    name = re.sub(r"(?i)(\.uai)?(\.(gz|xz|bz2))?$", "", Path(loaded.name).name.strip("<>"))
    path = plot or f"{name}-compare.png"
    try:
        title = f"{name}: {loaded.field.n_vars} variables"
        save_figure(convergence_figure(results, title=title), path)
    except ProxfieldError as error:
        if plot is not None:
            raise
        report(f"no picture: {error}", kind="note: ")
        return
    click.echo(f"picture: {path}", err=True)
