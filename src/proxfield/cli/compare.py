"""``proxfield compare``: several rules on one model, as a table and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from proxfield.cli.options import (
    CommandWithRules,
    device_option,
    dtype_option,
    json_option,
    limit_options,
    model_options,
)
from proxfield.core.common.records import Record

if TYPE_CHECKING:
    from proxfield.cli.shared import Loaded
    from proxfield.result import Result

FORMATS = ("png", "svg", "pdf")


@click.command(cls=CommandWithRules)
@model_options
@click.option("--rules", metavar="A,B,…", help="Rules to run; all of them by default.")
@limit_options
@device_option
@dtype_option
@click.option(
    "--plot",
    metavar="FILE",
    help="Picture file (.png, .svg or .pdf).  [default: MODEL-compare.png]",
)
@click.option("--no-plot", is_flag=True, help="Draw no picture.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    model: str,
    evidence: str | None,
    evidence_base: str,
    rules: str | None,
    max_iters: int | None,
    tol: float,
    budget: float | None,
    threads: int | None,
    seed: int,
    device: str,
    dtype: str | None,
    plot: str | None,
    no_plot: bool,
    as_json: bool,
) -> None:
    """Run several rules on MODEL, print a table and draw how F falls.

    The best F is marked by a star. MODEL is a UAI file, plain or compressed, or - for standard
    input. Ctrl-C ends the comparison with the rules that have run so far.
    """
    from proxfield.cli.main import report
    from proxfield.cli.progress import Display
    from proxfield.cli.running import check_device, check_limits, prepare_rule, run
    from proxfield.cli.shared import load

    check_picture(plot, no_plot, model, evidence)
    chosen = [prepare_rule(name, {}) for name in rule_names(rules)]
    budget = check_limits(max_iters, tol, budget, threads)
    limits: Record = {
        "max_iters": max_iters,
        "tol": tol,
        "budget": budget,
        "seed": seed,
        "threads": threads,
        "device": device,
        "dtype": dtype,
    }
    check_device(limits)
    results: dict[str, Result] = {}
    failures: dict[str, str] = {}
    interrupted = False
    with Display() as display:
        display.phase(f"reading {model}")
        loaded = load(model, evidence, evidence_base)
        for rule in chosen:
            try:
                results[rule.name] = run(loaded.field, rule, display, **limits)
            except KeyboardInterrupt:
                interrupted = True
            except click.UsageError as error:  # this field lacks something that the rule needs
                failures[rule.name] = error.message
            if interrupted or results_interrupted(results):
                interrupted = True
                break
    if as_json:
        print_report(loaded, results, failures, limits)
    else:
        print_results(results)
    for name, why in failures.items():
        report(f"{name} can't run on this model ({why})", kind="note: ")
    code = 0 if no_plot or not results else draw(loaded, results, plot)
    if interrupted:
        from proxfield.cli.signals import INTERRUPTED

        ctx.exit(INTERRUPTED)
    ctx.exit(code)


def results_interrupted(results: dict[str, Result]) -> bool:
    """Whether Ctrl-C ended the last inference."""
    return any(r.status.name == "INTERRUPTED" for r in results.values())


def rule_names(given: str | None) -> list[str]:
    """The rules to run, each once, in the order given."""
    if given is None:
        from proxfield.core.solve.rules.registry import RULES

        return [name for name, rule in RULES.items() if not rule.special]
    names = [name.strip() for name in given.split(",") if name.strip()]
    if not names:
        raise click.UsageError("--rules is empty, expected names separated by commas")
    return list(dict.fromkeys(names))


def check_picture(plot: str | None, no_plot: bool, model: str, evidence: str | None) -> None:
    """Refuse a picture that can't be written, before a long run."""
    if plot is None:
        return
    from proxfield.cli.shared import check_distinct, check_target

    if no_plot:
        raise click.UsageError("--plot and --no-plot contradict each other")
    if Path(plot).suffix.lower().lstrip(".") not in FORMATS:
        raise click.UsageError(f"--plot {plot!r}, expected a name ending in .png, .svg or .pdf")
    check_target(plot, "--plot")
    check_distinct({"MODEL": model, "--evidence": evidence, "--plot": plot})


def draw(loaded: Loaded, results: dict[str, Result], plot: str | None) -> int:
    """Draw and save; returns the exit code. A picture that wasn't requested by name may fail."""
    from proxfield.cli.main import report
    from proxfield.errors import ProxfieldError

    path = plot or f"{stem(loaded.name)}-compare.png"
    try:
        from proxfield.viz import convergence_figure, save_figure

        title = f"{stem(loaded.name)}: {loaded.field.n_vars} variables"
        save_figure(convergence_figure(results, title=title), path)
    except ProxfieldError as error:
        if plot is not None:
            raise
        report(f"no picture: {error}", kind="note: ")
        return 0
    click.echo(f"picture: {path}", err=True)
    return 0


def stem(name: str) -> str:
    """The file name without its folder and its endings.

    Example:
        >>> stem("data/grid.uai.xz"), stem("<stdin>")
        ('grid', 'stdin')
    """
    base = Path(name).name.strip("<>")
    for suffix in (".gz", ".xz", ".bz2", ".uai"):
        if base.lower().endswith(suffix) and len(base) > len(suffix):
            base = base[: -len(suffix)]
    return base


def best_rule(results: dict[str, Result]) -> str | None:
    """The rule with the lowest F; None if no F is finite."""
    names = [name for name, r in results.items() if r.free_energy < float("inf")]
    return min(names, key=lambda name: results[name].free_energy) if names else None


def print_results(results: dict[str, Result]) -> None:
    """The table."""
    from proxfield.cli.shared import number, print_table

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
    loaded: Loaded, results: dict[str, Result], failures: dict[str, str], limits: Record
) -> None:
    """The comparison as JSON."""
    from proxfield._version import __version__
    from proxfield.cli.running import in_full
    from proxfield.cli.shared import print_json

    runs = []
    for result in results.values():
        summary = result.summary()
        summary.pop("n_vars")
        runs.append(summary)
    print_json(
        {
            "model": loaded.name,
            "n_vars": loaded.field.n_vars,
            "n_observed": loaded.n_observed,
            "load_seconds": loaded.seconds,
            **in_full(limits),
            "best": best_rule(results),
            "results": runs,
            "failures": failures,
            "version": __version__,
        }
    )
