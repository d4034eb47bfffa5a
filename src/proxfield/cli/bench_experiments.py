"""``proxfield bench people``, ``inpainting``, ``segmentation`` and ``all``."""

from __future__ import annotations

from pathlib import Path

import click

from proxfield.bench.charts import make_curves
from proxfield.bench.inpainting import (
    Inpainting,
    Training,
    draw_characters,
    given_instances,
    inpainting_tasks,
    make_inpainting_tables,
    trained_instances,
)
from proxfield.bench.people import draw_frame, make_people_tables
from proxfield.bench.people_work import (
    Setting,
    load_frames,
    people_rules,
    people_task,
    simulated_frames,
)
from proxfield.bench.segmentation import (
    make_segmentation_tables,
    scene_instances,
    segmentation_rules,
    segmentation_tasks,
)
from proxfield.bench.store import Store
from proxfield.bench.suites import Instance
from proxfield.bench.table import Experiment, Table
from proxfield.cli import signals
from proxfield.cli.bench_session import (
    chosen_rules,
    load_results,
    make_settings,
    note,
    prepare_outputs,
    print_blocks,
    run_experiment,
    stored_curves,
)
from proxfield.cli.commands import bench
from proxfield.cli.options import Options
from proxfield.cli.progress import Display
from proxfield.cli.refine_files import make_folder
from proxfield.core.common.records import Record
from proxfield.errors import InputError
from proxfield.io.files import display_name

REPORT = "report.html"


def people(options: Options) -> None:
    """Run ``bench people``."""
    passes, budgets = options.passes, options.budgets or []
    outputs = prepare_outputs(options)
    settings = make_settings(options)
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
        if outputs.drawn:
            pictures = draw_frame(frames[0].make(), settings_of[next(iter(rules))], settings)
        return {"people": Experiment(tables, pictures=pictures)}

    run_experiment(
        options,
        outputs,
        tasks,
        make=lambda records: make_people_tables(records, passes, budgets),
        summary=all_cells,
        show=print_tables,
        report=report,
    )


def inpainting(options: Options) -> None:
    """Run ``bench inpainting``."""
    rules = chosen_rules(options)
    outputs = prepare_outputs(options)
    settings = make_settings(options)
    if options.count == 0 and options.data is None:
        raise click.UsageError("--count 0 without --data, expected models to run")
    instances = find_instances(options)
    tasks = inpainting_tasks(instances, rules, options.budgets)

    def report(tables: list[Table], store: Store) -> Record:
        curves = stored_curves([t for t in tasks if t.kind == "trace"], store, settings, tasks)
        pictures = draw_characters(instances, settings) if outputs.drawn else []
        return {"inpainting": Experiment(tables, curves, pictures)}

    run_experiment(
        options,
        outputs,
        tasks,
        make=make_inpainting_tables,
        summary=all_cells,
        show=print_tables,
        report=report,
    )


def find_instances(options: Options) -> list[Instance[Inpainting]]:
    """The fields: trained here, and given; refuses bad files before anything is trained."""
    given = [] if options.data is None else given_instances(options.data)
    for instance in given:
        instance.make()
    if not options.count:
        return given
    training = Training(options.hole, options.train, options.seed)
    signals.begin_work()
    with Display() as display, display.announcing_compilation():
        trained = trained_instances(options.models, training, options.count, note)
    return [*trained, *given]


def segmentation(options: Options) -> None:
    """Run ``bench segmentation``."""
    outputs = prepare_outputs(options)
    make_settings(options)
    rules = segmentation_rules(options.rules)
    instances = scene_instances(options.count, options.seed)
    run_experiment(
        options,
        outputs,
        segmentation_tasks(instances, rules, options.iterations),
        make=make_segmentation_tables,
        summary=all_cells,
        show=print_tables,
        report=lambda tables, _: {"segmentation": Experiment(tables)},
    )


def all_cells(tables: list[Table]) -> Record:
    """What ``--json`` prints."""
    return {"cells": [cell for table in tables for cell in table.data()]}


def print_tables(tables: list[Table]) -> None:
    """The tables on stdout."""
    print_blocks([table.block() for table in tables])


# ---- results of earlier runs ----


def load_people(path: str) -> tuple[list[Record], Experiment]:
    """Where the results of ``bench people`` come from, and its tables."""
    metas, _, tables = load_results(path, make_people_tables, "people")
    return metas, Experiment(tables)


def load_inpainting(path: str) -> tuple[list[Record], Experiment]:
    """Where the results of ``bench inpainting`` come from, its tables and its curves."""
    metas, records, tables = load_results(path, make_inpainting_tables, "inpainting")
    traces = [r for r in records if r["kind"] == "trace"]
    found = [
        make_curves([r for r in traces if r["suite"] == table.suite], records) for table in tables
    ]
    return metas, Experiment(tables, [c for c in found if c is not None])


def load_segmentation(path: str) -> tuple[list[Record], Experiment]:
    """Where the results of ``bench segmentation`` come from, and its tables."""
    metas, _, tables = load_results(path, make_segmentation_tables, "segmentation")
    return metas, Experiment(tables)


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
