"""What the subcommands of ``proxfield bench`` share: from their options to their reports."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import click

from proxfield._version import __version__
from proxfield.bench.charts import Curves, make_curves, save_figures
from proxfield.bench.machine import command_line, metadata
from proxfield.bench.published import PAPER_RULES
from proxfield.bench.report import ReportData, find_environment, write_report
from proxfield.bench.runner import Failure, Settings, Task, TaskBar, run_tasks, threads_of
from proxfield.bench.store import Store
from proxfield.bench.suites import ModelT
from proxfield.bench.table import Block, counted
from proxfield.cli import main, signals
from proxfield.cli.options import Options
from proxfield.cli.shared import print_json, print_table
from proxfield.core.common.records import Record
from proxfield.core.jobs.cluster import connected
from proxfield.core.solve.request import check_limits
from proxfield.core.solve.rules.base import Rule
from proxfield.core.solve.rules.registry import make_rule
from proxfield.errors import InputError
from proxfield.viz.charts import find_figure_class

FoundT = TypeVar("FoundT")
BUSY_LOAD = 0.5
"""Load average per core above which timings are doubtful."""


class BenchSession:
    """One run of a benchmark; names a package that is missing before the work begins."""

    def __init__(self, options: Options) -> None:
        check_limits(1, options.tol, None, options.threads)
        self.options = options
        self.settings = Settings(options.tol, threads_of(options.threads))
        self.drawn = options.report is not None or options.figures is not None
        self.pictures: str | None = options.figures
        if options.report is not None:
            find_environment()
            if options.figures is None:
                path = Path(options.report)
                self.pictures = str(path.with_name(f"{path.stem}-figures"))
        if options.figures is not None:
            find_figure_class()

    def run(
        self,
        tasks: Sequence[Task[ModelT]],
        *,
        make: Callable[[list[Record]], FoundT],
        summary: Callable[[FoundT], Record],
        blocks: Callable[[FoundT], list[Block]],
        report: Callable[[FoundT, Store], Record],
    ) -> None:
        """Run what isn't stored yet, print what was found, and write pictures and report.

        What ``make`` gives of the tasks' records is shown as ``summary`` (for ``--json``) or
        ``blocks``, and as ``report``, its part of `ReportData`.
        """
        options = self.options
        data = getattr(options, "data", None) or None  # not all have it
        where = data if data is None or isinstance(data, str) else ", ".join(data)
        meta = metadata(where, self.settings.threads)
        with Store(options.results, meta) as store:
            for line in store.notes:
                note(line)
            load, cores = meta["load_average"], os.cpu_count() or 1
            if load is not None and load > BUSY_LOAD * cores:
                note(f"other processes keep this machine busy (load {load:g} on {cores} cores)")
            failures = describe_failures(self._do(tasks, store))
            for line in failures:
                note(line)
            found = make(self._kept(tasks, store))
            if options.as_json:
                places = {"output": options.results, "report": options.report}
                places |= {"figures": self.pictures}
                ended = {"failures": failures, "version": __version__}
                print_json({**summary(found), **places, **ended})
            else:
                for k, (title, header, rows, left) in enumerate(blocks(found)):
                    click.echo(f"\n{title}" if k else title)
                    print_table(header, rows, left=left)
            page = ReportData(
                command=command_line(),
                tol=self.settings.tol,
                failures=failures,
                **{"metas": store.metas, **report(found, store)},
            )
            try:
                self._write(page)
            except InputError as error:
                raise InputError(
                    f"{error.message}; all results are safe in {options.results}: "
                    "run the command again",
                    path=error.path,
                ) from None

    def _do(self, tasks: Sequence[Task[ModelT]], store: Store) -> list[Failure]:
        """Run the tasks that aren't stored yet; exits with 130 on Ctrl-C."""
        jobs = self.options.job_count
        signals.begin_work()
        try:
            with connected(self.options.cluster), TaskBar() as bar:
                return run_tasks(tasks, store, self.settings, bar, jobs)
        except KeyboardInterrupt:
            finished = len(self._kept(tasks, store))
            click.echo(
                f"proxfield: interrupted: {finished} of {len(tasks)} runs are kept in "
                f"{store.path}; the same command goes on from there",
                err=True,
            )
            store.close()
            click.get_current_context().exit(signals.INTERRUPTED)

    def _write(self, data: ReportData) -> None:
        """Write the pictures and the report."""
        target = self.options.report
        parts = (data.sensitivity, data.people, data.inpainting, data.segmentation)
        lines = []
        if self.pictures is not None and (data.curves or any(parts)):
            names, shown = save_figures(self.pictures, data), self.pictures
            with suppress(ValueError):  # as seen from the report
                above = Path(target or "").resolve().parent
                shown = str(Path(shown).resolve().relative_to(above)) if target else shown
            data.figures = (shown, names)
            lines.append(f"pictures: {self.pictures}")
        if target is not None:
            write_report(target, data)
            lines.append(f"report: {target}")
        for line in lines:
            click.echo(line, err=True)

    def curves(
        self, tasks: Sequence[Task[ModelT]], store: Store, timed: Sequence[Task[ModelT]] = ()
    ) -> list[Curves]:
        """The curves of what was traced, by suite, with the timed runs on the same instances."""
        found = [
            make_curves(
                *(
                    self._kept([t for t in some if t.instance.suite == suite], store)
                    for some in (tasks, timed)
                )
            )
            for suite in dict.fromkeys(t.instance.suite for t in tasks)
        ]
        return [curves for curves in found if curves is not None]

    def _kept(self, tasks: Sequence[Task[ModelT]], store: Store) -> list[Record]:
        """The records of those tasks that were run."""
        found = [store.find(t.identity(self.settings)) for t in tasks]
        return [record for record in found if record is not None]


def chosen_rules(options: Options) -> list[Rule]:
    """The rules to run; the paper's seven and ``auto`` by default."""
    return [make_rule(name) for name in options.rules or [*PAPER_RULES, "auto"]]


def note(text: str) -> None:
    """One line on stderr."""
    main.report(text, kind="note: ")


def describe_failures(failures: Sequence[Failure]) -> list[str]:
    """One line for each rule and suite that failed."""
    lines = Counter(
        f"{t.rule.name if t.rule else t.kind} on {t.instance.suite}: {' '.join(why.split())}"
        for t, why in failures
    )
    return [f"{line} ({counted(count, 'run')})" for line, count in lines.items()]
