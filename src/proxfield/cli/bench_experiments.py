"""The experiments of ``proxfield bench``: the paper's tables, its figure, and all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, product
from pathlib import Path

import click

from proxfield.bench import inpainting as characters
from proxfield.bench import paper as table1
from proxfield.bench import segmentation as scenes
from proxfield.bench import suites as model_sets
from proxfield.bench.charts import make_curves
from proxfield.bench.people import draw_frame, make_people_tables
from proxfield.bench.people_work import (
    Setting,
    load_frames,
    people_rules,
    people_task,
    simulated_frames,
)
from proxfield.bench.runner import Task, paper_task
from proxfield.bench.store import Store, merge_metas, read_records
from proxfield.bench.table import Block, Experiment, Table, budget_name, show
from proxfield.cli import signals
from proxfield.cli.bench_session import BenchSession, chosen_rules, note
from proxfield.cli.commands import bench
from proxfield.cli.options import Options
from proxfield.cli.progress import Display
from proxfield.cli.refine_files import make_folder
from proxfield.cli.shared import number
from proxfield.core.common.records import Record
from proxfield.errors import InputError, ProxfieldError
from proxfield.io.files import display_name

REPORT = "report.html"


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
    suites = model_sets.load_suites(options.data, wanted_suites(options))
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
    suites = model_sets.load_suites(options.data, wanted_suites(options))
    session.run(
        table1.sensitivity_tasks(suites, options.etas or list(table1.ETAS), options.budgets),
        make=table1.make_sensitivity,
        summary=table1.Sensitivity.data,
        blocks=lambda found: [sensitivity_block(found, s) for s in found.suites],
        report=lambda found, _: {"sensitivity": found},
    )


def wanted_suites(options: Options) -> list[str] | None:
    """The requested suites, in capitals; None for all."""
    if options.suite is None:
        return None
    return list(dict.fromkeys(name.upper() for name in options.suite))


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
            "report": str(out / REPORT),
        },
    }
    shared = options.pick("threads", "tol", "as_json")
    context = click.get_current_context()
    for k, name in enumerate(name for name in names if files[name] is not None):
        if k and not options.as_json:
            click.echo()
        command = bench.bench.commands[name]
        context.invoke(command, **shared, **own[name], results=files[name])  # click adds defaults
