"""``proxfield bench all``: all experiments of the paper in one report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from proxfield.cli.bench_inpainting import inpainting
from proxfield.cli.bench_people import people
from proxfield.cli.bench_segmentation import segmentation
from proxfield.cli.bench_shared import BenchCommand, run_options
from proxfield.cli.options import json_option

REPORT = "report.html"


@click.command(name="all", cls=BenchCommand)
@click.argument("folder", metavar="OUT")
@click.option("--data", metavar="DIR", help="As in bench paper: DBN, GRID and SEG.")
@click.option("--inpainting-data", metavar="PATH", help="As --data in bench inpainting.")
@click.option(
    "--count",
    metavar="N",
    type=click.IntRange(min=0),
    default=8,
    show_default=True,
    help="As in bench inpainting: number of characters; 0 leaves that experiment out.",
)
@click.option(
    "--frames",
    metavar="N",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="As in bench people: number of frames of each simulation.",
)
@click.option(
    "--scenes",
    metavar="N",
    type=click.IntRange(min=0),
    default=6,
    show_default=True,
    help="As --count in bench segmentation: number of scenes; 0 leaves that experiment out.",
)
@click.option(
    "--exact",
    metavar="DIR",
    default="generated",
    show_default=True,
    help="As in bench paper: models with exact answers.",
)
@click.option(
    "--repeats",
    metavar="R",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="As in bench paper: number of runs; the median is used.",
)
@run_options
@json_option
@click.pass_context
def everything(ctx: click.Context, /, **options: Any) -> None:
    """All four experiments of the paper, in the folder OUT: one report of all of them.

    The same as bench people, bench inpainting, bench segmentation and bench paper one after
    another, each with a results file in OUT; the same command goes on where it was stopped. With
    --json, a line each.

    \b
    Examples:
      proxfield bench all results
      proxfield bench all results --data DIR --inpainting-data DIR --threads 1
    """
    from proxfield.cli.bench import paper
    from proxfield.cli.refine_files import make_folder
    from proxfield.errors import InputError
    from proxfield.io.files import display_name

    for given in (options["data"], options["inpainting_data"]):  # before the first experiment
        if given is not None and not Path(given).exists():
            raise InputError("no such folder, expected one with models", path=display_name(given))
    out = Path(options["folder"])
    make_folder(str(out), "OUT")
    shared = {key: options[key] for key in ("threads", "tol", "as_json")}
    names = ("people", "inpainting", "segmentation", "paper")
    files = {name: str(out / f"{name}.jsonl") for name in names}
    parts: list[tuple[click.Command, dict[str, Any]]] = [
        (people, {"frames": options["frames"], "results": files["people"]})
    ]
    runs_inpainting = options["count"] > 0 or options["inpainting_data"] is not None
    if runs_inpainting:
        own = {"count": options["count"], "models": str(out / "models")}
        own |= {"data": options["inpainting_data"], "results": files["inpainting"]}
        parts.append((inpainting, own))
    if options["scenes"]:
        few = {"count": options["scenes"], "results": files["segmentation"]}
        parts.append((segmentation, few))
    last = {
        "data": options["data"],
        "results": files["paper"],
        "report": str(out / REPORT),
        "people": files["people"],
        "inpainting": files["inpainting"] if runs_inpainting else None,
        "segmentation": files["segmentation"] if options["scenes"] else None,
        "exact": options["exact"],
        "repeats": options["repeats"],
    }
    for k, (command, given) in enumerate([*parts, (paper, last)]):
        if k and not options["as_json"]:
            click.echo()
        ctx.invoke(command, **{**shared, **given})  # click adds the defaults
