"""``proxfield bench paper`` and ``sensitivity``: the paper's Table 1 and Figure 2."""

from __future__ import annotations

from proxfield.bench.paper import (
    ETAS,
    PARAMETER,
    Sensitivity,
    exact_tasks,
    group_runs,
    make_gaps,
    make_paper_tables,
    make_sensitivity,
    make_wins,
    overruns,
    paper_tasks,
    sensitivity_tasks,
)
from proxfield.bench.runner import paper_task
from proxfield.bench.store import Store, merge_metas, read_records
from proxfield.bench.suites import (
    generated_exact,
    is_the_papers,
    load_exact,
    load_suites,
    representative,
)
from proxfield.bench.table import Block, Table, budget_name, show
from proxfield.cli.bench_experiments import load_inpainting, load_people, load_segmentation
from proxfield.cli.bench_session import (
    chosen_rules,
    make_settings,
    note,
    prepare_outputs,
    print_blocks,
    run_experiment,
    stored_curves,
)
from proxfield.cli.options import Options
from proxfield.cli.shared import number
from proxfield.core.common.records import Record
from proxfield.errors import InputError, ProxfieldError
from proxfield.io.files import display_name

GENERATED = "generated"
Found = tuple[list[Table], list[Record]]
"""The parts of Table 1, and the records that they are made of."""


def paper(options: Options) -> None:
    """Run ``bench paper``."""
    budgets, repeats, rules = options.budgets, options.repeats, chosen_rules(options)
    names = [rule.name for rule in rules]
    outputs = prepare_outputs(options)
    settings = make_settings(options)
    suites = load_suites(options.data, wanted_suites(options))
    load = {
        "sensitivity": load_sensitivity,
        "inpainting": load_inpainting,
        "people": load_people,
        "segmentation": load_segmentation,
    }
    parts = {name: load[name](path) for name, path in options.given(*load).items()}
    runs = paper_tasks(suites, rules, budgets, repeats)
    chosen = [representative(instances) for instances in suites.values()] if outputs.drawn else []
    traces = [paper_task("trace", each, rule, max(budgets)) for each in chosen for rule in rules]
    known = generated_exact() if options.exact == GENERATED else []
    if options.exact and not known:
        known = load_exact(options.exact)

    def make(records: list[Record]) -> Found:
        return make_paper_tables(group_runs(records, repeats), suites, names, budgets), records

    def page(found: Found, store: Store) -> Record:
        tables, records = found
        own = {suite: is_the_papers(suite, instances) for suite, instances in suites.items()}
        late = overruns(records)
        if late:
            note(late)
        if not all(own.values()):
            note("not the paper's own instances, so the published values are no yardstick")
        return {
            "metas": merge_metas(store.metas, *(metas for metas, _ in parts.values())),
            "repeats": repeats,
            "table": tables,
            "wins": make_wins(group_runs(records, repeats), suites, names, max(budgets)),
            "papers_own": own,
            "curves": stored_curves(traces, store, settings, runs),
            "gaps": make_gaps(records, names) if known else None,
            **{name: part for name, (_, part) in parts.items()},
            "overruns": late,
        }

    run_experiment(
        options,
        outputs,
        [*runs, *traces, *exact_tasks(known, rules)],
        make=make,
        summary=lambda found: {"cells": paper_cells(found[0], names)},
        show=lambda found: print_blocks([table.block() for table in found[0]]),
        report=page,
    )


def paper_cells(tables: list[Table], rules: list[str]) -> list[Record]:
    """What ``--json`` prints: by suite, budget and rule."""
    return [
        cell
        for table in tables
        for budget in table.columns
        for cell in table.data()
        if cell["budget"] == budget
    ]


def sensitivity(options: Options) -> None:
    """Run ``bench sensitivity``."""
    outputs = prepare_outputs(options)
    make_settings(options)
    suites = load_suites(options.data, wanted_suites(options))
    run_experiment(
        options,
        outputs,
        sensitivity_tasks(suites, options.etas or list(ETAS), options.budgets),
        make=make_sensitivity,
        summary=Sensitivity.data,
        show=lambda found: print_blocks([sensitivity_block(found, s) for s in found.suites]),
        report=lambda found, _: {"sensitivity": found},
    )


def wanted_suites(options: Options) -> list[str] | None:
    """The requested suites, in capitals; None for all."""
    if options.suite is None:
        return None
    return list(dict.fromkeys(name.upper() for name in options.suite))


def sensitivity_block(figure: Sensitivity, suite: str) -> Block:
    """Figure 2 of a suite as numbers."""
    marks = [
        f"{name} = {number(by[suite], 3)}"
        for name, by in (("L", figure.lipschitz), ("certified d", figure.certified))
        if suite in by
    ]
    title = f"{suite}: mean F" + (f"; mean {', mean '.join(marks)}" if marks else "")
    keys = [(rule, budget) for budget in figure.budgets for rule in PARAMETER]
    curves = [dict(figure.curves.get((suite, *key), [])) for key in keys]
    etas = sorted({eta for curve in curves for eta in curve})
    header = ["eta", *(f"{rule} {budget_name(budget)}" for rule, budget in keys)]
    rows = [[f"{eta:g}", *(show(curve.get(eta)) for curve in curves)] for eta in etas]
    return title, header, rows, []


def load_sensitivity(path: str) -> tuple[list[Record], Sensitivity]:
    """Where the results of ``bench sensitivity`` come from, and its figure."""
    metas, records = read_records(path)
    try:
        return metas, make_sensitivity(records)
    except ProxfieldError as error:
        raise InputError(str(error), path=display_name(path)) from None
