"""``proxfield bench``: the paper's benchmarks, its figure on damping, and a report of all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from proxfield.cli.bench_all import everything
from proxfield.cli.bench_inpainting import inpainting
from proxfield.cli.bench_peers import peers
from proxfield.cli.bench_people import people
from proxfield.cli.bench_segmentation import segmentation
from proxfield.cli.bench_shared import (
    BenchCommand,
    BenchCommandWithRules,
    do,
    finish,
    make_settings,
    note,
    open_store,
    output_options,
    prepare_outputs,
    print_report,
    run_experiment,
    run_options,
    this_command,
)
from proxfield.cli.options import stack

if TYPE_CHECKING:
    from proxfield.bench.sensitivity import Sensitivity
    from proxfield.bench.table import Table

FILES = ("sensitivity", "people", "inpainting", "segmentation")
"""Options that name results of other benchmarks."""
GENERATED = "generated"

data_options = stack(
    click.option(
        "--data",
        metavar="DIR",
        help="A folder with DBN, GRID and SEG of UAI files; generated instances by default.",
    ),
    click.option(
        "--suite", metavar="A,B,…", help="Suites to run, of DBN, GRID and SEG; all by default."
    ),
)


@click.group(no_args_is_help=False)
def command() -> None:
    """Run the paper's benchmark: F that each rule reaches in a given time.

    Ctrl-C stops it; the same command goes on where it stopped.
    """


command.add_command(people)
command.add_command(inpainting)
command.add_command(segmentation)
command.add_command(everything)
command.add_command(peers)


@command.command(cls=BenchCommandWithRules)
@data_options
@click.option(
    "--budgets",
    metavar="S,S,…",
    default="0.05,0.3,1",
    show_default=True,
    help="Time budgets in seconds.",
)
@click.option(
    "--rules", metavar="A,B,…", help="Rules to run; the paper's seven and auto by default."
)
@click.option(
    "--repeats",
    metavar="R",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of runs; the median is used.",
)
@run_options
@output_options("bench-paper.jsonl")
@click.option(
    "--exact",
    metavar="DIR",
    help="Models with exact answers (<family>/X.uai, X.uai.PR, …), for the report; "
    "'generated' makes small ones.",
)
@click.option(
    "--sensitivity",
    metavar="FILE",
    help="Results file of bench sensitivity, to be included in the report.",
)
@click.option(
    "--people",
    metavar="FILE",
    help="Results file of bench people, to be included in the report.",
)
@click.option(
    "--inpainting",
    metavar="FILE",
    help="Results file of bench inpainting, to be included in the report.",
)
@click.option(
    "--segmentation",
    metavar="FILE",
    help="Results file of bench segmentation, to be included in the report.",
)
@click.pass_context
def paper(ctx: click.Context, /, **options: Any) -> None:
    """The paper's Table 1: mean F on three sets of models, at three budgets.

    The table on stdout has the published value beside ours; a star marks the best of a column.

    \b
    Examples:
      proxfield bench paper
      proxfield bench paper --data DIR --threads 1 --repeats 3 --report paper.html
    """
    from proxfield.bench.session import (
        default_rules,
        load_inpainting,
        load_people,
        load_segmentation,
        load_sensitivity,
        parse_numbers,
        split_names,
    )
    from proxfield.bench.suites import generated_exact, is_the_papers, load_exact, load_suites
    from proxfield.core.solve.rules.registry import make_rule

    budgets = parse_numbers(options["budgets"], "--budgets")
    chosen = options["rules"]
    names = default_rules() if chosen is None else split_names(chosen, "--rules")
    rules = [make_rule(name) for name in names]
    outputs = prepare_outputs(
        options,
        {f"--{name}": options[name] for name in FILES},
        {"--exact": None if options["exact"] == GENERATED else options["exact"]},
    )
    settings = make_settings(options)
    suites = load_suites(options["data"], wanted_suites(options["suite"]))
    figure = None if options["sensitivity"] is None else load_sensitivity(options["sensitivity"])
    third = None if options["people"] is None else load_people(options["people"])
    second = None if options["inpainting"] is None else load_inpainting(options["inpainting"])
    fourth = options["segmentation"]
    fourth = None if fourth is None else load_segmentation(fourth)

    from proxfield.bench.exact import exact_tasks, make_gaps
    from proxfield.bench.report import ReportData
    from proxfield.bench.session import describe_failures, stored_curves, trace_tasks
    from proxfield.bench.store import merge_metas
    from proxfield.bench.table import make_table, overruns, paper_tasks, table_data
    from proxfield.bench.wins import make_wins

    runs = paper_tasks(suites, rules, budgets, options["repeats"])
    drawn = outputs.report is not None or outputs.figures is not None
    traces = trace_tasks(suites, rules, max(budgets)) if drawn else []
    known = generated_exact() if options["exact"] == GENERATED else []
    if options["exact"] and not known:
        known = load_exact(options["exact"])
    exact = exact_tasks(known, rules)
    with open_store(outputs, options["data"], settings) as store:
        failures = do(ctx, [*runs, *traces, *exact], store, settings)
        table = make_table(suites, rules, budgets, options["repeats"], store, settings)
        if options["as_json"]:
            print_report({"cells": table_data(table)}, outputs, failures)
        else:
            print_blocks(table)
        found = [store.find(t.identity(settings)) for t in exact]
        data = ReportData(
            metas=merge_metas(
                store.metas, *(part[0] for part in (figure, second, third, fourth) if part)
            ),
            command=this_command(),
            tol=settings.tol,
            repeats=options["repeats"],
            table=table,
            wins=make_wins(suites, rules, max(budgets), options["repeats"], store, settings),
            papers_own={s: is_the_papers(s, instances) for s, instances in suites.items()},
            curves=stored_curves(traces, store, settings, runs),
            sensitivity=figure[1] if figure else None,
            gaps=make_gaps(found, [r.name for r in rules]) if exact else None,
            inpainting=second[1] if second else None,
            people=third[1] if third else None,
            segmentation=fourth[1] if fourth else None,
            failures=describe_failures(failures),
            overruns=overruns(runs, store, settings),
        )
        if data.overruns:
            note(data.overruns)
        if not all(data.papers_own.values()):
            note("not the paper's own instances, so the published values are no yardstick")
        finish(outputs, data)


@command.command(cls=BenchCommand)
@data_options
@click.option(
    "--budgets",
    metavar="S,S,…",
    default="0.05,0.3",
    show_default=True,
    help="Time budgets in seconds.",
)
@click.option("--etas", metavar="X,X,…", help="Values of η; 13 from 0.001 to 1 by default.")
@run_options
@output_options("bench-sensitivity.jsonl")
@click.pass_context
def sensitivity(ctx: click.Context, /, **options: Any) -> None:
    """The paper's Figure 2: how mean F depends on the damping η = 1/(1+d).

    For adhoc (eta=η), fixed (step=η) and adaptive (step=η).
    """
    from proxfield.bench.sensitivity import ETAS, make_sensitivity, sensitivity_tasks
    from proxfield.bench.session import parse_numbers
    from proxfield.bench.suites import load_suites

    budgets = parse_numbers(options["budgets"], "--budgets")
    given = options["etas"]
    etas = list(ETAS) if given is None else parse_numbers(given, "--etas", highest=1.0)
    outputs = prepare_outputs(options, {}, {})
    settings = make_settings(options)
    suites = load_suites(options["data"], wanted_suites(options["suite"]))

    run_experiment(
        ctx,
        sensitivity_tasks(suites, etas, budgets),
        outputs,
        settings,
        options["data"],
        make=make_sensitivity,
        summary=lambda found: found.data(),
        show=print_sensitivity,
        report=lambda found, _: {"sensitivity": found},
    )


def wanted_suites(given: str | None) -> list[str] | None:
    """The requested suites, in capitals; None for all."""
    from proxfield.bench.session import split_names

    if given is None:
        return None
    return list(dict.fromkeys(name.upper() for name in split_names(given, "--suite")))


def print_blocks(table: Table) -> None:
    """Table 1 on stdout, a block for each suite."""
    from proxfield.bench.table import text_blocks
    from proxfield.cli.shared import print_table

    for k, (title, header, rows) in enumerate(text_blocks(table)):
        if k:
            click.echo()
        click.echo(f"{title}; lower is better, * is best")
        left = [0, *range(2, len(header), 3)]
        print_table(header, rows, left=left)


def print_sensitivity(figure: Sensitivity) -> None:
    """Figure 2 as numbers on stdout."""
    from proxfield.bench.sensitivity import PARAMETER
    from proxfield.bench.table import budget_name, show
    from proxfield.cli.shared import number, print_table

    for k, suite in enumerate(figure.suites):
        if k:
            click.echo()
        marks = [
            f"{name} = {number(by[suite], 3)}"
            for name, by in (("L", figure.lipschitz), ("certified d", figure.certified))
            if suite in by
        ]
        click.echo(f"{suite}: mean F" + (f"; mean {', mean '.join(marks)}" if marks else ""))
        keys = [(rule, budget) for budget in figure.budgets for rule in PARAMETER]
        curves = [dict(figure.curves.get((suite, *key), [])) for key in keys]
        etas = sorted({eta for curve in curves for eta in curve})
        header = ["eta", *(f"{rule} {budget_name(budget)}" for rule, budget in keys)]
        rows = [[f"{eta:g}", *(show(curve.get(eta)) for curve in curves)] for eta in etas]
        print_table(header, rows, left=())
