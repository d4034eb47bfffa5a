"""``proxfield bench inpainting``: the paper's Table 2 on characters with holes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from proxfield.cli.bench_shared import (
    BenchCommandWithRules,
    make_settings,
    note,
    output_options,
    prepare_outputs,
    run_experiment,
    run_options,
)
from proxfield.cli.options import seed_option

if TYPE_CHECKING:
    from proxfield.bench.inpainting_models import InpaintingInstance
    from proxfield.bench.inpainting_table import InpaintingTable
    from proxfield.bench.store import Store
    from proxfield.core.common.records import Record


@click.command(cls=BenchCommandWithRules)
@click.option(
    "--data",
    metavar="PATH",
    help="Also run models of decision tree fields: a folder with TST_*.mat, or one of these.",
)
@click.option(
    "--count",
    metavar="N",
    type=click.IntRange(min=0),
    default=8,
    show_default=True,
    help="Number of characters to complete with each trained model; 0 runs those of --data only.",
)
@click.option(
    "--train",
    metavar="N",
    type=click.IntRange(min=2),
    default=300,
    show_default=True,
    help="Number of characters that models are trained on.",
)
@click.option(
    "--hole",
    type=click.Choice(["small", "large"]),
    default="large",
    show_default=True,
    help="Hidden part of the image: 9.8 % or 22.8 %.",
)
@click.option(
    "--models",
    metavar="DIR",
    default="bench-inpainting-models",
    show_default=True,
    help="Folder of trained models; those that it contains aren't trained again.",
)
@click.option(
    "--budgets",
    metavar="S,S,…",
    default="0.05,0.3,3",
    show_default=True,
    help="Time budgets in seconds.",
)
@click.option(
    "--rules", metavar="A,B,…", help="Rules to run; the paper's seven and auto by default."
)
@seed_option("Random seed of characters.")
@run_options
@output_options("bench-inpainting.jsonl")
@click.pass_context
def inpainting(ctx: click.Context, /, **options: Any) -> None:
    """The paper's Table 2: F and accuracy on characters with a hole, at three budgets.

    Decision tree fields are trained here, on characters rendered from fonts, in two ways: by
    persistent chains, which makes F rugged, and through marginals, which leaves one minimum. A
    star marks the lowest F of a column; the published values are those of other models.

    \b
    Examples:
      proxfield bench inpainting --report inpainting.html
      proxfield bench inpainting --data DIR --count 0
    """
    from proxfield.bench.session import default_rules, parse_numbers, split_names
    from proxfield.core.solve.rules.registry import make_rule

    budgets = parse_numbers(options["budgets"], "--budgets")
    chosen = options["rules"]
    names = default_rules() if chosen is None else split_names(chosen, "--rules")
    rules = [make_rule(name) for name in names]
    outputs = prepare_outputs(options, {}, {"--models": options["models"]})
    settings = make_settings(options)
    if options["count"] == 0 and options["data"] is None:
        raise click.UsageError("--count 0 without --data, expected models to run")

    from proxfield.bench.inpainting_report import InpaintingResults, draw_characters
    from proxfield.bench.inpainting_table import inpainting_data, make_inpainting_tables
    from proxfield.bench.inpainting_work import inpainting_tasks
    from proxfield.bench.session import stored_curves

    instances = find_instances(options)
    drawn = outputs.report is not None or outputs.figures is not None
    tasks = inpainting_tasks(instances, rules, budgets)

    def report(found: list[InpaintingTable], store: Store) -> Record:
        curves = stored_curves([t for t in tasks if t.traced], store, settings, tasks)
        pictures = draw_characters(instances, settings) if drawn else []
        return {"inpainting": InpaintingResults(found, curves, pictures)}

    run_experiment(
        ctx,
        tasks,
        outputs,
        settings,
        options["data"],
        make=make_inpainting_tables,
        summary=lambda found: {"cells": [c for table in found for c in inpainting_data(table)]},
        show=print_tables,
        report=report,
    )


def find_instances(options: dict[str, Any]) -> list[InpaintingInstance]:
    """The fields: trained here, and given; refuses bad files before anything is trained."""
    from proxfield.bench.inpainting_models import Training, given_instances, trained_instances
    from proxfield.cli.progress import Display
    from proxfield.cli.signals import begin_work

    given = [] if options["data"] is None else given_instances(options["data"])
    for instance in given:
        instance.make()
    if not options["count"]:
        return given
    training = Training(options["hole"], options["train"], options["seed"])
    begin_work()
    with Display() as display, display.announcing_compilation():
        trained = trained_instances(options["models"], training, options["count"], tell=note)
    return [*trained, *given]


def print_tables(tables: list[InpaintingTable]) -> None:
    """Table 2 on stdout, a block for each suite."""
    from proxfield.bench.inpainting_table import inpainting_block
    from proxfield.cli.shared import print_table

    for k, table in enumerate(tables):
        if k:
            click.echo()
        title, header, rows = inpainting_block(table)
        click.echo(f"{title}; lower F is better, * is lowest")
        width = 3 if table.has_accuracy else 2
        print_table(header, rows, left=[0, *range(width, 1 + width * len(table.budgets), width)])
