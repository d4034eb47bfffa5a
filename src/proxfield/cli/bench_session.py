"""What the subcommands of ``proxfield bench`` share: from their options to their reports."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import click

from proxfield._version import __version__
from proxfield.bench.charts import Curves, make_curves, save_figures
from proxfield.bench.machine import command_line, metadata
from proxfield.bench.published import PAPER_RULES
from proxfield.bench.report import ReportData, find_environment, write_report
from proxfield.bench.runner import Failure, Settings, Task, TaskBar, run_tasks, threads_of
from proxfield.bench.store import Store, read_records
from proxfield.bench.suites import ModelT
from proxfield.cli import main, signals
from proxfield.cli.options import Options
from proxfield.cli.shared import print_json, print_table
from proxfield.core.common.records import Record
from proxfield.core.jobs.cluster import connected
from proxfield.core.solve.request import check_limits
from proxfield.core.solve.rules.base import Rule
from proxfield.core.solve.rules.registry import make_rule
from proxfield.errors import InputError
from proxfield.io.files import display_name
from proxfield.viz.charts import find_figure_class

FoundT = TypeVar("FoundT")
Block = tuple[str, Sequence[str], Sequence[Sequence[str]], Sequence[int]]
"""A table on stdout: title, header, rows, and which columns are aligned to the left."""
BUSY_LOAD = 0.5
"""Load average per core above which timings are doubtful."""


@dataclass(frozen=True)
class Outputs:
    """Where things go.

    Attributes:
        results: The results file.
        report: The HTML report, if one is wanted.
        figures: The folder of the pictures, if they are wanted.
    """

    results: str
    report: str | None
    figures: str | None

    @property
    def pictures(self) -> str | None:
        """The folder of the pictures: beside the report, unless another was named."""
        if self.figures is not None or self.report is None:
            return self.figures
        path = Path(self.report)
        return str(path.with_name(f"{path.stem}-figures"))

    @property
    def drawn(self) -> bool:
        """Whether there are to be pictures."""
        return self.report is not None or self.figures is not None


def chosen_rules(options: Options) -> list[Rule]:
    """The rules to run; the paper's seven and ``auto`` by default."""
    return [make_rule(name) for name in options.rules or [*PAPER_RULES, "auto"]]


def make_settings(options: Options) -> Settings:
    """What all runs share, checked."""
    check_limits(1, options.tol, None, options.threads)
    return Settings(options.tol, threads_of(options.threads))


def prepare_outputs(options: Options) -> Outputs:
    """Where things go; names a package that is missing."""
    outputs = Outputs(options.results, options.report, options.figures)
    if outputs.report is not None:
        find_environment()
    if outputs.figures is not None:
        find_figure_class()
    return outputs


def open_store(outputs: Outputs, data: str | None, settings: Settings) -> Store:
    """The results file; says what happened to it."""
    meta = metadata(data, settings.threads)
    store = Store(outputs.results, meta)
    for line in store.notes:
        note(line)
    load, cores = meta["load_average"], os.cpu_count() or 1
    if load is not None and load > BUSY_LOAD * cores:
        note(f"other processes keep this machine busy (load {load:g} on {cores} cores)")
    return store


def do(
    options: Options, tasks: Sequence[Task[ModelT]], store: Store, settings: Settings
) -> list[Failure]:
    """Run the tasks that aren't stored yet; exits with 130 on Ctrl-C."""
    jobs = options.job_count
    signals.begin_work()
    try:
        with connected(options.cluster), TaskBar() as bar:
            failures = run_tasks(tasks, store, settings, bar, jobs)
    except KeyboardInterrupt:
        finished = sum(store.find(t.identity(settings)) is not None for t in tasks)
        click.echo(
            f"proxfield: interrupted: {finished} of {len(tasks)} runs are kept in {store.path}; "
            "the same command goes on from there",
            err=True,
        )
        store.close()
        click.get_current_context().exit(signals.INTERRUPTED)
    for line in describe_failures(failures):
        note(line)
    return failures


def print_report(data: Record, outputs: Outputs, failures: list[Failure]) -> None:
    """The summary as JSON."""
    where = {"output": outputs.results, "report": outputs.report, "figures": outputs.pictures}
    print_json({**data, **where, "failures": describe_failures(failures), "version": __version__})


def run_experiment(
    options: Options,
    outputs: Outputs,
    tasks: Sequence[Task[ModelT]],
    *,
    make: Callable[[list[Record]], FoundT],
    summary: Callable[[FoundT], Record],
    show: Callable[[FoundT], None],
    report: Callable[[FoundT, Store], Record],
) -> None:
    """Run what isn't stored yet, print what was found, and write pictures and report.

    Args:
        options: Of the command.
        outputs: Where things go.
        tasks: What to run.
        make: Tables or figures, from the records of the tasks.
        summary: What ``--json`` prints of them.
        show: Prints them.
        report: Their part of `ReportData`.
    """
    settings = make_settings(options)
    data = getattr(options, "data", None) or None  # not all have it
    where = data if data is None or isinstance(data, str) else ", ".join(data)
    with open_store(outputs, where, settings) as store:
        failures = do(options, tasks, store, settings)
        records = [store.find(t.identity(settings)) for t in tasks]
        found = make([r for r in records if r is not None])
        if options.as_json:
            print_report(summary(found), outputs, failures)
        else:
            show(found)
        page = ReportData(
            command=command_line(),
            tol=settings.tol,
            failures=describe_failures(failures),
            **{"metas": store.metas, **report(found, store)},
        )
        for line in write_outputs(outputs, page):
            click.echo(line, err=True)


def note(text: str) -> None:
    """One line on stderr."""
    main.report(text, kind="note: ")


def stored_curves(
    tasks: Sequence[Task[ModelT]],
    store: Store,
    settings: Settings,
    timed: Sequence[Task[ModelT]] = (),
) -> list[Curves]:
    """The curves of what was traced, by suite, with the timed runs on the same instances."""
    out = []
    for suite in dict.fromkeys(t.instance.suite for t in tasks):
        found, runs = (
            [store.find(t.identity(settings)) for t in some if t.instance.suite == suite]
            for some in (tasks, timed)
        )
        curves = make_curves(
            [r for r in found if r is not None], [r for r in runs if r is not None]
        )
        if curves is not None:
            out.append(curves)
    return out


def describe_failures(failures: Sequence[Failure]) -> list[str]:
    """One line for each rule and suite that failed."""
    lines: dict[tuple[str, str, str], int] = {}
    for f in failures:
        rule = f.task.rule.name if f.task.rule else f.task.kind
        key = (rule, f.task.instance.suite, " ".join(f.why.split()))
        lines[key] = lines.get(key, 0) + 1
    return [
        f"{rule} on {suite}: {why} ({count} {'run' if count == 1 else 'runs'})"
        for (rule, suite, why), count in lines.items()
    ]


def write_outputs(outputs: Outputs, data: ReportData) -> list[str]:
    """The pictures and the report; returns lines for the user.

    Raises:
        InputError: If something can't be written; says that the results are safe.
    """
    notes = []
    try:
        parts = (data.sensitivity, data.people, data.inpainting, data.segmentation)
        if outputs.pictures is not None and (data.curves or any(parts)):
            names = save_figures(outputs.pictures, data)
            data.figures = (_relative(outputs.pictures, outputs.report), names)
            notes.append(f"pictures: {outputs.pictures}")
        if outputs.report is not None:
            write_report(outputs.report, data)
            notes.append(f"report: {outputs.report}")
    except InputError as error:
        raise InputError(
            f"{error.message}; all results are safe in {outputs.results}: run the command again",
            path=error.path,
        ) from None
    return notes


def _relative(folder: str, report: str | None) -> str:
    """The folder as seen from the report."""
    if report is not None:
        try:
            return str(Path(folder).resolve().relative_to(Path(report).resolve().parent))
        except ValueError:
            pass
    return folder


def load_results(
    path: str, make: Callable[[list[Record]], list[FoundT]], what: str
) -> tuple[list[Record], list[Record], list[FoundT]]:
    """The meta lines and the records of a results file, and the tables made of them.

    Raises:
        InputError: If it has no results of that benchmark.
    """
    metas, records = read_records(path)
    tables = make(records)
    if not tables:
        raise InputError(f"no results of bench {what} in it", path=display_name(path))
    return metas, records, tables


def print_blocks(blocks: Sequence[Block]) -> None:
    """Tables on stdout."""
    for k, (title, header, rows, left) in enumerate(blocks):
        if k:
            click.echo()
        click.echo(title)
        print_table(header, rows, left=left)
