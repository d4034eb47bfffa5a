"""``proxfield bench segmentation``: dense CRFs with co-occurrence on scenes with known labels."""

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
from proxfield.cli.options import seed_option

if TYPE_CHECKING:
    from proxfield.bench.segmentation_table import SegmentationTable


@click.command(cls=BenchCommand)
@click.option(
    "--count",
    metavar="N",
    type=click.IntRange(min=1),
    default=6,
    show_default=True,
    help="Number of scenes.",
)
@click.option(
    "--iterations",
    metavar="N,N,…",
    default="5,20,100",
    show_default=True,
    help="Budgets in iterations.",
)
@click.option("--rules", metavar="A,B,…", help="Rules to run; all of the table by default.")
@seed_option("Random seed of scenes.")
@run_options
@output_options("bench-segmentation.jsonl")
@click.pass_context
def segmentation(ctx: click.Context, /, **options: Any) -> None:
    """The paper's experiment on semantic segmentation: F and mean IoU, at three budgets.

    Dense CRFs over generated scenes, with and without co-occurrence of classes. A star marks the
    lowest F of a column.

    \b
    Examples:
      proxfield bench segmentation --report segmentation.html
    """
    from proxfield.bench.session import parse_counts, split_names

    iterations = parse_counts(options["iterations"], "--iterations", 1)
    chosen = options["rules"]
    names = None if chosen is None else split_names(chosen, "--rules")
    outputs = prepare_outputs({**options, "data": None}, {}, {})
    settings = make_settings(options)

    from proxfield.bench.segmentation_scenes import scene_instances
    from proxfield.bench.segmentation_table import (
        SegmentationResults,
        make_segmentation_tables,
        segmentation_data,
    )
    from proxfield.bench.segmentation_work import segmentation_rules, segmentation_tasks

    rules = segmentation_rules(names)
    instances = scene_instances(options["count"], options["seed"])
    tasks = segmentation_tasks(instances, rules, iterations)
    run_experiment(
        ctx,
        tasks,
        outputs,
        settings,
        None,
        make=make_segmentation_tables,
        summary=lambda found: {"cells": [c for table in found for c in segmentation_data(table)]},
        show=print_tables,
        report=lambda found, _: {"segmentation": SegmentationResults(found)},
    )


def print_tables(tables: list[SegmentationTable]) -> None:
    """The tables on stdout, a block for each kind of field."""
    from proxfield.bench.segmentation_table import segmentation_block
    from proxfield.cli.shared import print_table

    for k, table in enumerate(tables):
        if k:
            click.echo()
        title, header, rows = segmentation_block(table)
        click.echo(f"{title}; lower F is better, * is lowest")
        print_table(header, rows, left=[0, *range(3, 1 + 3 * len(table.iterations), 3)])
