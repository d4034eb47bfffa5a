"""``proxfield bench people``: the paper's Table 3 on frames with people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from proxfield.cli.bench_shared import (
    BenchCommand,
    make_settings,
    output_options,
    prepare_outputs,
    run_experiment,
    run_options,
)

if TYPE_CHECKING:
    from proxfield.bench.people_frames import FrameInstance
    from proxfield.bench.people_table import PeopleTable
    from proxfield.bench.store import Store
    from proxfield.core.common.records import Record


@click.command(cls=BenchCommand)
@click.option(
    "--data",
    metavar="DIR",
    multiple=True,
    help="A folder as proxfield make people writes it; may be given several times. The simulated "
    "pitch by default.",
)
@click.option(
    "--frames",
    metavar="N",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Number of frames of each simulation, 2 seconds apart.",
)
@click.option(
    "--seeds",
    metavar="S,S,…",
    default="0,1",
    show_default=True,
    help="Random seeds of the simulations.",
)
@click.option(
    "--size",
    metavar="W H",
    nargs=2,
    type=click.IntRange(min=1),
    help="Width and height of simulated images; 640 360 by default.",
)
@click.option(
    "--spacing",
    metavar="METERS",
    type=click.FloatRange(0, min_open=True),
    help="Distance of neighboring locations of a simulation; 0.35 by default.",
)
@click.option(
    "--passes",
    metavar="N,N,…",
    default="10,25,60",
    show_default=True,
    help="Budgets in gradients.",
)
@click.option("--budgets", metavar="S,S,…", help="Further budgets, in seconds; none by default.")
@click.option("--rules", metavar="A,B,…", help="Rules to run; all of the table by default.")
@click.option(
    "--radius",
    metavar="METERS",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Maximum distance of a detection from a person, and minimum distance of detections.",
)
@run_options
@output_options("bench-people.jsonl")
@click.pass_context
def people(ctx: click.Context, /, **options: Any) -> None:
    """The paper's Table 3: F and MODA on frames with people, at three budgets.

    Occupancy maps of a simulated soccer pitch with 27 people and 6 cameras, with two energies:
    exact (its F bounds log Z) and ratio (that of the original program). A star marks the best
    MODA of a column; published values are of data that can't be had.

    \b
    Examples:
      proxfield bench people --report people.html
      proxfield make people square --kind square && proxfield bench people --data square
    """
    from proxfield.bench.session import parse_counts, parse_numbers, split_names

    passes = parse_counts(options["passes"], "--passes", 1)
    seeds = parse_counts(options["seeds"], "--seeds", 0)
    given = options["budgets"]
    budgets = [] if given is None else parse_numbers(given, "--budgets")
    chosen = options["rules"]
    names = None if chosen is None else split_names(chosen, "--rules")
    folders = {f"--data {folder}": folder for folder in options["data"]}
    outputs = prepare_outputs({**options, "data": None}, {}, folders)
    settings = make_settings(options)

    from proxfield.bench.people_frames import load_frames, simulated_frames
    from proxfield.bench.people_report import People, draw_frame
    from proxfield.bench.people_table import make_people_tables, people_data
    from proxfield.bench.people_work import PeopleTask, Setting, people_rules

    rules = people_rules(names)
    frames: list[FrameInstance]
    if options["data"]:
        frames = load_frames(options["data"])
    else:
        size, spacing = options["size"], options["spacing"]
        frames = simulated_frames(seeds, options["frames"], size=size, spacing=spacing)
    tasks = [
        PeopleTask(frame, Setting(model, options["radius"]), rule, most, budget)
        for frame in frames
        for model, some in rules.items()
        for most, budget in [(max(passes), None), *((None, b) for b in budgets)]
        for rule in some
    ]
    data = ", ".join(options["data"]) or None

    def report(found: list[PeopleTable], _: Store) -> Record:
        drawn = outputs.report is not None or outputs.figures is not None
        pictures = draw_frame(frames[0].make(), tasks[0].setting, settings) if drawn else []
        return {"people": People(found, pictures)}

    run_experiment(
        ctx,
        tasks,
        outputs,
        settings,
        data,
        make=lambda records: make_people_tables(records, passes, budgets),
        summary=lambda found: {"cells": [c for table in found for c in people_data(table)]},
        show=print_tables,
        report=report,
    )


def print_tables(tables: list[PeopleTable]) -> None:
    """Table 3 on stdout, a block for each data set and model."""
    from proxfield.bench.people_table import people_blocks
    from proxfield.cli.shared import print_table

    for k, table in enumerate(tables):
        if k:
            click.echo()
        title, header, rows = people_blocks(table)
        click.echo(f"{title}; * is the best MODA")
        print_table(header, rows, left=[0, *range(3, 1 + 3 * len(table.columns), 3)])
