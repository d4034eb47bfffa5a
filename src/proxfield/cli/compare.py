"""``proxfield compare``: several rules on one model, as a table and a picture."""

from __future__ import annotations

from pathlib import Path

import click

from proxfield._version import __version__
from proxfield.bench.suites import stem
from proxfield.cli.main import report
from proxfield.cli.options import Options
from proxfield.cli.progress import Display
from proxfield.cli.running import (
    LoadedModel,
    check_device,
    check_limits,
    in_full,
    load,
    prepare_rule,
    run,
)
from proxfield.cli.shared import number, print_json, print_table
from proxfield.cli.signals import INTERRUPTED
from proxfield.core.common.records import Record
from proxfield.core.solve.rules.registry import RULES
from proxfield.errors import ProxfieldError
from proxfield.result import Result
from proxfield.viz import convergence_figure, save_figure

GIVEN = ("max_iters", "tol", "budget", "seed", "threads", "device", "dtype", "kernels")
"""Options that `infer` takes as they are."""


def compare(options: Options) -> int | None:
    """Run the command; returns its exit code."""
    if options.plot is not None and options.no_plot:
        raise click.UsageError("--plot and --no-plot contradict each other")
    usual = [name for name, rule in RULES.items() if not rule.special]
    rules = [prepare_rule(name) for name in options.rules or usual]
    check_limits(options)
    check_device(options)
    given = options.pick(*GIVEN)
    results: dict[str, Result] = {}
    failures: dict[str, str] = {}
    interrupted = False
    with Display() as display:
        display.phase(f"reading {options.model}")
        loaded = load(options)
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
    if options.as_json:
        print_report(loaded, results, failures, in_full(given))
    else:
        print_results(results)
    for name, why in failures.items():
        report(f"{name} can't run on this model ({why})", kind="note: ")
    if results and not options.no_plot:
        draw(loaded, results, options.plot)
    return INTERRUPTED if interrupted else None


def draw(loaded: LoadedModel, results: dict[str, Result], plot: str | None) -> None:
    """Draw and save. A picture that wasn't requested by name may fail."""
    name = stem(Path(loaded.name).name.strip("<>"))
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


def best_rule(results: dict[str, Result]) -> str | None:
    """The rule with the lowest F; None if no F is finite."""
    names = [name for name, r in results.items() if r.free_energy < float("inf")]
    return min(names, key=lambda name: results[name].free_energy) if names else None


def print_results(results: dict[str, Result]) -> None:
    """The table."""
    best = best_rule(results)
    header = ("", "rule", "F", "log Z, at least", "MAP energy", "iterations", "seconds", "status")
    rows = [
        (
            "*" if name == best else "",
            name,
            number(r.free_energy),
            number(r.log_z_bound),
            number(r.map_energy),
            str(r.iterations),
            f"{r.seconds:.3g}",
            r.status.label,
        )
        for name, r in results.items()
    ]
    print_table(header, rows, left=(0, 1, 7))


def print_report(
    loaded: LoadedModel, results: dict[str, Result], failures: dict[str, str], given: Record
) -> None:
    """The comparison as JSON."""
    runs = [result.summary() for result in results.values()]
    for summary in runs:
        summary.pop("n_vars")
    best = best_rule(results)
    head = {"model": loaded.name, "n_vars": loaded.field.n_vars, **loaded.record}
    found = {"best": best, "results": runs, "failures": failures}
    print_json({**head, **given, **found, "version": __version__})
