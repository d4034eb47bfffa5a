"""``proxfield bench peers``: other tools on the same models."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table as RichTable

from proxfield.bench.machine import metadata
from proxfield.bench.peers import measure, tables
from proxfield.bench.peers.base import Peer, Question
from proxfield.bench.peers.problems import generated_models, generated_scenes, read_scenes
from proxfield.bench.peers.registry import find_peers
from proxfield.bench.suites import load_exact
from proxfield.cli import main, signals
from proxfield.cli.options import Options
from proxfield.cli.shared import print_json
from proxfield.core.common.records import Record
from proxfield.io.files import atomic_write


def peers(options: Options) -> None:
    """Run ``bench peers``."""
    tasks = options.tasks
    known = [question.value for question in Question]
    for task in tasks:
        if task not in known:
            raise click.UsageError(f"--tasks {task!r}, expected some of: {', '.join(known)}")
    wanted = find_peers(options.names)
    wanted = [p for p in wanted if any(task.value in tasks for task in p.tasks)]
    found = [p for p in wanted if p.version() is not None]
    missing = [p for p in wanted if p not in found]
    models = [] if options.data is None else load_exact(options.data)
    scenes = [] if options.scenes is None else read_scenes(options.scenes)
    for hint in dict.fromkeys(peer.hint() for peer in missing):
        names = ", ".join(peer.name for peer in missing if peer.hint() == hint)
        main.report(f"not installed: {names} ({hint})", kind="note: ")
    quick = options.quick
    budget = options.budget or (0.2 if quick else 1.0)
    timeout = options.timeout or (5.0 if quick else 20.0)
    settings = {
        **options.pick("data", "scenes", "quick", "seeds"),
        **{"tasks": tasks, "budget": budget, "timeout": timeout},
    }
    about = {**metadata(options.data, 1), **settings}  # before the runs
    signals.begin_work()

    def make() -> list[measure.PeerCase]:
        kinds = [Question(task) for task in tasks]
        out = []
        if Question.INFERENCE in kinds or Question.MAP in kinds:
            made = generated_models(quick, options.seeds)
            out += measure.model_cases(made, kinds, measure.SLACK)
            out += measure.model_cases(models, kinds, measure.FILE_SLACK)
        if Question.DENSE in kinds:
            out += measure.scene_cases([*generated_scenes(quick), *scenes])
        return out

    records = run(make, found, budget, timeout)
    results = tables.make_results(found, missing, records, about)
    report = options.report
    for path, text in (
        (options.output, tables.as_json),
        (options.table, tables.as_csv),
        (report, tables.as_html if str(report).lower().endswith(".html") else tables.as_markdown),
    ):
        if path is not None:
            atomic_write(path, text(results))
    if options.as_json:
        print_json(results)
        return
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 250)
    for table in tables.make_tables(results["runs"]):
        shown = RichTable(title=table.title, title_justify="left", box=box.SIMPLE_HEAD)
        for k, name in enumerate(table.header):
            shown.add_column(name, justify="left" if k == 0 else "right")
        for row in table.rows:
            shown.add_row(*row)
        console.print(shown)


def run(
    make: Callable[[], list[measure.PeerCase]], found: list[Peer], budget: float, timeout: float
) -> list[Record]:
    """All runs, with a bar on a terminal."""
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

        return measure.run_cases(found, cases, budget, timeout, tell)
