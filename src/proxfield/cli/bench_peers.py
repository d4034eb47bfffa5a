"""``proxfield bench peers``: other tools on the same models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from proxfield.cli.bench_shared import BenchCommand, note
from proxfield.cli.options import json_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from proxfield.bench.peers.base import Peer
    from proxfield.bench.peers.measure import Case
    from proxfield.bench.peers.scenes import Scene
    from proxfield.bench.suites import Instance
    from proxfield.core.common.records import Record

TASKS = ("inference", "map", "dense")
SUFFIXES = (".html", ".md")


@click.command(cls=BenchCommand)
@click.option("--quick", is_flag=True, help="Fewer and smaller models: less than a minute.")
@click.option(
    "--tasks", metavar="A,B,…", default=",".join(TASKS), show_default=True, help="What to compare."
)
@click.option("--peers", "names", metavar="A,B,…", help="Tools by the beginning of their names.")
@click.option(
    "--data",
    metavar="DIR",
    help="Models with exact answers (<family>/X.uai, X.uai.PR, X.uai.MAR), besides generated ones.",
)
@click.option(
    "--scenes",
    metavar="DIR",
    help="Images (.npz with image, probabilities, truth), besides generated ones.",
)
@click.option(
    "--seeds",
    metavar="N",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Generated models of each kind.",
)
@click.option(
    "--budget",
    metavar="S",
    type=click.FloatRange(0, min_open=True),
    help="Time budget in seconds of tools that can use one; 1 by default, 0.2 with --quick.",
)
@click.option(
    "--timeout",
    metavar="S",
    type=click.FloatRange(0, min_open=True),
    help="Maximum number of CPU seconds per run (once compiled); 20 by default, 5 with --quick.",
)
@click.option("-o", "--output", metavar="FILE", help="Write all results (JSON).")
@click.option("--csv", "table", metavar="FILE", help="Write one row per run.")
@click.option("--report", metavar="FILE", help="Write the tables (.html or .md).")
@json_option
def peers(**options: Any) -> None:
    """Compare with other tools: errors of marginals, log Z, labellings, images, and time.

    Every tool that is installed runs in a process of its own, on one thread, on models whose exact
    answers are known. Those that aren't installed are named with the command that installs them.

    \b
    Examples:
      proxfield bench peers --quick
      proxfield bench peers --peers proxfield,pyGMs --tasks inference --report peers.html
    """
    from proxfield.bench.session import split_names

    tasks = split_names(options["tasks"], "--tasks")
    for task in tasks:
        if task not in TASKS:
            raise click.UsageError(f"--tasks {task!r}, expected some of: {', '.join(TASKS)}")
    check_outputs(options)
    given = options["names"]

    from proxfield.bench.peers.output import (
        about_run,
        as_csv,
        as_html,
        as_json,
        as_markdown,
        make_results,
    )
    from proxfield.bench.peers.registry import find_peers
    from proxfield.cli.shared import print_json
    from proxfield.cli.signals import begin_work
    from proxfield.io.files import atomic_write

    wanted = find_peers(None if given is None else split_names(given, "--peers"))
    wanted = [p for p in wanted if any(task.value in tasks for task in p.tasks)]
    found = [p for p in wanted if p.version() is not None]
    missing = [p for p in wanted if p not in found]
    read = read_inputs(options)
    for hint in dict.fromkeys(peer.hint() for peer in missing):
        names = ", ".join(peer.name for peer in missing if peer.hint() == hint)
        note(f"not installed: {names} ({hint})")
    quick = options["quick"]
    budget = options["budget"] or (0.2 if quick else 1.0)
    timeout = options["timeout"] or (5.0 if quick else 20.0)
    settings = {
        "data": options["data"], "scenes": options["scenes"], "tasks": tasks, "quick": quick,
        "budget": budget, "timeout": timeout, "seeds": options["seeds"],
    }  # fmt: skip
    about = about_run(settings)
    begin_work()
    records = run(lambda: make_cases(options, tasks, *read), found, budget, timeout)
    results = make_results(found, missing, records, about)
    report = options["report"]
    for path, text in (
        (options["output"], as_json),
        (options["table"], as_csv),
        (report, as_html if str(report).endswith(".html") else as_markdown),
    ):
        if path is not None:
            atomic_write(path, text(results))
    if options["as_json"]:
        print_json(results)
    else:
        print_tables(results)


def check_outputs(options: Record) -> None:
    """Refuse files that can't be written, before anything is computed."""
    from proxfield.cli.shared import check_distinct, check_target

    targets = {"-o": options["output"], "--csv": options["table"], "--report": options["report"]}
    for option, path in targets.items():
        if path is not None:
            check_target(path, option)
    check_distinct({**targets, "--data": options["data"], "--scenes": options["scenes"]})
    report = options["report"]
    if report is not None and not report.endswith(SUFFIXES):
        raise click.UsageError(f"--report {report!r}, expected a name ending in .html or .md")


def read_inputs(options: Record) -> tuple[list[Instance], list[Scene]]:
    """The models and images of the folders that were given."""
    from proxfield.bench.peers.scenes import read_scenes
    from proxfield.bench.suites import load_exact

    models = [] if options["data"] is None else load_exact(options["data"])
    return models, [] if options["scenes"] is None else read_scenes(options["scenes"])


def make_cases(
    options: Record, tasks: list[str], models: list[Instance], scenes: list[Scene]
) -> list[Case]:
    """These and the generated ones, with exact answers."""
    from proxfield.bench.peers.base import Task
    from proxfield.bench.peers.measure import FILE_SLACK, SLACK, model_cases, scene_cases
    from proxfield.bench.peers.models import generated_models
    from proxfield.bench.peers.scenes import generated_scenes

    kinds = [Task(task) for task in tasks]
    out = []
    if Task.INFERENCE in kinds or Task.MAP in kinds:
        made = generated_models(options["quick"], options["seeds"])
        out += model_cases(made, kinds, SLACK)
        out += model_cases(models, kinds, FILE_SLACK)
    if Task.DENSE in kinds:
        out += scene_cases([*generated_scenes(options["quick"]), *scenes])
    return out


def run(
    make: Callable[[], list[Case]], found: list[Peer], budget: float, timeout: float
) -> list[Record]:
    """All runs, with a bar on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from proxfield.bench.peers.measure import run_cases

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        shown = bar.add_task("exact answers", total=None)
        cases = make()
        total = sum(case.task in peer.tasks for peer in found for case in cases)
        bar.update(shown, total=total)

        def tell(line: str) -> None:
            bar.update(shown, description=line, advance=1)

        return run_cases(found, cases, budget, timeout, tell)


def print_tables(results: Record) -> None:
    """The tables on stdout."""
    import sys

    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable

    from proxfield.bench.peers.tables import make_tables

    plain = not sys.stdout.isatty()
    console = Console(file=sys.stdout, width=250 if plain else None)
    for table in make_tables(results["runs"]):
        shown = RichTable(title=table.title, title_justify="left", box=box.SIMPLE_HEAD)
        for k, name in enumerate(table.header):
            shown.add_column(name, justify="left" if k == 0 else "right")
        for row in table.rows:
            shown.add_row(*row)
        console.print(shown)
