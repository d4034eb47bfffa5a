"""``proxfield bench``: the paper's tables, its figure, and all of them; from options to reports."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain, product
from pathlib import Path
from typing import TypeVar

import click

from proxfield._version import __version__
from proxfield.bench import inpainting as characters
from proxfield.bench import paper as table1
from proxfield.bench import segmentation as scenes
from proxfield.bench import suites as model_sets
from proxfield.bench.charts import Curves, make_curves, save_figures
from proxfield.bench.machine import command_line, metadata
from proxfield.bench.people import draw_frame, make_people_tables
from proxfield.bench.people_work import (
    Setting,
    load_frames,
    people_rules,
    people_task,
    simulated_frames,
)
from proxfield.bench.published import PAPER_RULES
from proxfield.bench.report import ReportData, find_environment, write_report
from proxfield.bench.runner import (
    Failure,
    Settings,
    Task,
    TaskBar,
    paper_task,
    run_tasks,
    threads_of,
)
from proxfield.bench.store import Store, merge_metas, read_records
from proxfield.bench.suites import ModelT
from proxfield.bench.table import Block, Experiment, Table, budget_name, counted, show
from proxfield.cli import main, signals
from proxfield.cli.commands import bench
from proxfield.cli.options import Options
from proxfield.cli.progress import Display
from proxfield.cli.refine_files import make_folder
from proxfield.cli.shared import number, print_json, print_table
from proxfield.core.common.records import Record
from proxfield.core.jobs.processes import connected
from proxfield.core.solve.request import check_limits
from proxfield.core.solve.rules.base import Rule
from proxfield.core.solve.rules.registry import make_rule
from proxfield.errors import InputError, ProxfieldError
from proxfield.io.files import display_name
from proxfield.viz.charts import find_figure_class

FoundT = TypeVar("FoundT")
BUSY_LOAD = 0.5
"""Load average per core above which timings are doubtful."""


class BenchSession:
    """One run of a benchmark; names a package that is missing before the work begins.

    Args:
        options: Of the command.

    Attributes:
        settings: What all runs share.
        drawn: Whether there are to be pictures.
        pictures: Their folder: beside the report, unless another was named.
    """

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

        Args:
            tasks: What to run.
            make: Tables or figures, from the records of the tasks.
            summary: What ``--json`` prints of them.
            blocks: What is printed of them otherwise.
            report: Their part of `ReportData`.
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
            lines: Counter[str] = Counter()
            for task, why in self._do(tasks, store):
                what = task.rule.name if task.rule else task.kind
                lines[f"{what} on {task.instance.suite}: {' '.join(why.split())}"] += 1
            failures = [f"{line} ({counted(count, 'run')})" for line, count in lines.items()]
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
        out = []
        for suite in dict.fromkeys(t.instance.suite for t in tasks):
            each = ([t for t in some if t.instance.suite == suite] for some in (tasks, timed))
            curves = make_curves(*(self._kept(some, store) for some in each))
            out += [] if curves is None else [curves]
        return out

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


def people(options: Options) -> None:
    """Run ``bench people``."""
    passes, budgets = options.passes, options.budgets or []
    session = BenchSession(options)
    rules = people_rules(options.rules)
    if options.data:
        frames = load_frames(options.data)
    else:
        frames = simulated_frames(options.seeds, options.frames, **options.pick("size", "spacing"))
    settings_of = {model: Setting(model, options.radius) for model in rules}
    tasks = [
        people_task(frame, settings_of[model], rule, most, budget)
        for frame in frames
        for model, some in rules.items()
        for most, budget in [(max(passes), None), *((None, b) for b in budgets)]
        for rule in some
    ]

    def report(tables: list[Table], _: Store) -> Record:
        pictures = []
        if session.drawn:
            pictures = draw_frame(
                frames[0].make(),
                settings_of[next(model for model, some in rules.items() if some)],
                session.settings,
            )
        return {"people": Experiment(tables, pictures=pictures)}

    run_tables(session, tasks, lambda records: make_people_tables(records, passes, budgets), report)


def inpainting(options: Options) -> None:
    """Run ``bench inpainting``."""
    rules, session = chosen_rules(options), BenchSession(options)
    if options.count == 0 and options.data is None:
        raise click.UsageError("--count 0 without --data, expected models to run")
    # the fields: trained here, and given; bad files are refused before anything is trained
    instances = [] if options.data is None else characters.given_instances(options.data)
    for instance in instances:
        instance.make()
    if options.count:
        training = characters.Training(options.hole, options.train, options.seed)
        signals.begin_work()
        with Display() as display, display.announcing_compilation():
            trained = characters.trained_instances(options.models, training, options.count, note)
        instances = [*trained, *instances]
    tasks = characters.inpainting_tasks(instances, rules, options.budgets)

    def report(tables: list[Table], store: Store) -> Record:
        curves = session.curves([t for t in tasks if t.kind == "trace"], store, tasks)
        pictures = characters.draw_characters(instances, session.settings) if session.drawn else []
        return {"inpainting": Experiment(tables, curves, pictures)}

    run_tables(session, tasks, characters.make_inpainting_tables, report)


def segmentation(options: Options) -> None:
    """Run ``bench segmentation``."""
    session, rules = BenchSession(options), scenes.segmentation_rules(options.rules)
    tasks = scenes.segmentation_tasks(
        scenes.scene_instances(options.count, options.seed), rules, options.iterations
    )
    run_tables(
        session,
        tasks,
        scenes.make_segmentation_tables,
        lambda tables, _: {"segmentation": Experiment(tables)},
    )


def run_tables(
    session: BenchSession,
    tasks: Sequence[Task[model_sets.ModelT]],
    make: Callable[[list[Record]], list[Table]],
    report: Callable[[list[Table], Store], Record],
) -> None:
    """Run an experiment that comes to tables; ``--json`` prints their cells."""
    session.run(
        tasks,
        make=make,
        summary=lambda tables: {"cells": [cell for table in tables for cell in table.data()]},
        blocks=lambda tables: [table.block() for table in tables],
        report=report,
    )


# ---- results of earlier runs ----

MAKERS: dict[str, Callable[[list[Record]], list[Table]]] = {
    "people": make_people_tables,
    "inpainting": characters.make_inpainting_tables,
    "segmentation": scenes.make_segmentation_tables,
}


def load_results(path: str, name: str) -> tuple[list[Record], Experiment]:
    """Where the results of an experiment come from, its tables and its curves.

    Raises:
        InputError: If a file has no results of that experiment.
    """
    metas, records = read_records(path)
    tables = MAKERS[name](records)
    if not tables:
        raise InputError(f"no results of bench {name} in it", path=display_name(path))
    traces = [r for r in records if name == "inpainting" and r["kind"] == "trace"]
    found = [
        make_curves([r for r in traces if r["suite"] == table.suite], records) for table in tables
    ]
    return metas, Experiment(tables, [c for c in found if c is not None])


# ---- the paper ----

GENERATED = "generated"
Found = tuple[list[Table], list[Record]]
"""The parts of Table 1, and the records that they are made of."""


def paper(options: Options) -> None:
    """Run ``bench paper``."""
    budgets, repeats, rules = options.budgets, options.repeats, chosen_rules(options)
    names = [rule.name for rule in rules]
    session = BenchSession(options)
    suites = model_sets.load_suites(options.data, options.suite)
    parts: dict[str, tuple[list[Record], object]] = {
        name: load_results(path, name) for name, path in options.given(*MAKERS).items()
    }
    if options.sensitivity is not None:
        metas, before = read_records(options.sensitivity)
        try:
            parts["sensitivity"] = metas, table1.make_sensitivity(before)
        except ProxfieldError as error:
            raise InputError(str(error), path=display_name(options.sensitivity)) from None
    runs = [
        paper_task("run", instance, rule, budget, repeat)
        for instance in chain(*suites.values())
        for rule in rules
        for budget, repeat in product(budgets, range(repeats))
    ]
    drawn = map(model_sets.representative, suites.values() if session.drawn else ())
    traces = [paper_task("trace", each, rule, max(budgets)) for each in drawn for rule in rules]
    known = model_sets.generated_exact() if options.exact == GENERATED else []
    if options.exact and not known:
        known = model_sets.load_exact(options.exact)

    def make(records: list[Record]) -> Found:
        return table1.make_paper_tables(
            table1.group_runs(records, repeats), suites, names, budgets
        ), records

    def page(found: Found, store: Store) -> Record:
        tables, records = found
        own = {suite: model_sets.is_the_papers(suite, some) for suite, some in suites.items()}
        late = table1.overruns(records)
        if late:
            note(late)
        if not all(own.values()):
            note("not the paper's own instances, so the published values are no yardstick")
        return {
            "metas": merge_metas(store.metas, *(metas for metas, _ in parts.values())),
            "repeats": repeats,
            "table": tables,
            "wins": table1.make_wins(
                table1.group_runs(records, repeats), suites, names, max(budgets)
            ),
            "papers_own": own,
            "curves": session.curves(traces, store, runs),
            "gaps": table1.make_gaps(records, names) if known else None,
            **{name: part for name, (_, part) in parts.items()},
            "overruns": late,
        }

    def cells(found: Found) -> Record:
        pairs = [(table, budget) for table in found[0] for budget in table.columns]
        return {"cells": [c for table, b in pairs for c in table.data() if c["budget"] == b]}

    session.run(
        [*runs, *traces, *(paper_task("exact", each, rule) for each in known for rule in rules)],
        make=make,
        summary=cells,
        blocks=lambda found: [table.block() for table in found[0]],
        report=page,
    )


def sensitivity(options: Options) -> None:
    """Run ``bench sensitivity``."""
    session = BenchSession(options)
    suites = model_sets.load_suites(options.data, options.suite)
    session.run(
        table1.sensitivity_tasks(suites, options.etas or list(table1.ETAS), options.budgets),
        make=table1.make_sensitivity,
        summary=table1.Sensitivity.data,
        blocks=lambda found: [sensitivity_block(found, s) for s in found.suites],
        report=lambda found, _: {"sensitivity": found},
    )


def sensitivity_block(figure: table1.Sensitivity, suite: str) -> Block:
    """Figure 2 of a suite as numbers."""
    marks = [
        f"{name} = {number(by[suite], 3)}"
        for name, by in (("L", figure.lipschitz), ("certified d", figure.certified))
        if suite in by
    ]
    title = f"{suite}: mean F" + (f"; mean {', mean '.join(marks)}" if marks else "")
    keys = [(rule, budget) for budget in figure.budgets for rule in table1.PARAMETER]
    curves = [dict(figure.curves.get((suite, *key), [])) for key in keys]
    etas = sorted({eta for curve in curves for eta in curve})
    header = ["eta", *(f"{rule} {budget_name(budget)}" for rule, budget in keys)]
    rows = [[f"{eta:g}", *(show(curve.get(eta)) for curve in curves)] for eta in etas]
    return title, header, rows, []


# ---- all ----


def everything(options: Options) -> None:
    """Run ``bench all``: the four benchmarks one after another, and one report of all."""
    for given in (options.data, options.inpainting_data):  # before the first experiment
        if given is not None and not Path(given).exists():
            raise InputError("no such folder, expected one with models", path=display_name(given))
    out = Path(options.folder)
    make_folder(str(out), "OUT")
    names = ("people", "inpainting", "segmentation", "paper")
    files: dict[str, str | None] = {name: str(out / f"{name}.jsonl") for name in names}
    if options.count == 0 and options.inpainting_data is None:
        files["inpainting"] = None
    if not options.scenes:
        files["segmentation"] = None
    own = {
        "people": {"frames": options.frames},
        "inpainting": {
            "count": options.count,
            "models": str(out / "models"),
            "data": options.inpainting_data,
        },
        "segmentation": {"count": options.scenes},
        "paper": {
            **options.pick("data", "exact", "repeats"),
            **{name: files[name] for name in names[:-1]},
            "report": str(out / "report.html"),
        },
    }
    shared = options.pick("threads", "tol", "as_json")
    context = click.get_current_context()
    for k, name in enumerate(name for name in names if files[name] is not None):
        if k and not options.as_json:
            click.echo()
        command = bench.bench.commands[name]
        context.invoke(command, **shared, **own[name], results=files[name])  # click adds defaults
