"""``proxfield bench``: the paper's benchmarks, its figure on damping, and a report of all."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import click

from proxfield.cli.options import (
    CommandWithRules,
    Decorator,
    F,
    cluster_option,
    done_by,
    jobs_option,
    json_option,
    seed_option,
    stack,
    threads_option,
)

TASKS = ("inference", "map", "dense")
"""What `bench peers` asks for."""

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


run_options = stack(
    threads_option(),
    jobs_option("model", ", which disturb each other unless each has cores of its own"),
    cluster_option,
    click.option(
        "--tol",
        metavar="X",
        type=float,
        default=1e-6,
        show_default=True,
        help="Tolerance: stop early when no marginal changes by more.",
    ),
)


def output_options(results: str) -> Callable[[F], F]:
    """Where things go."""
    return stack(
        click.option(
            "-o",
            "--output",
            "results",
            metavar="FILE",
            default=results,
            show_default=True,
            help="Results file (JSON lines); runs that it contains aren't repeated.",
        ),
        click.option("--report", metavar="FILE.html", help="Write an HTML report."),
        click.option(
            "--figures",
            metavar="DIR",
            help="Folder for pictures (.png, .svg); next to the report by default.",
        ),
        json_option,
    )


def budgets_option(default: str) -> Decorator:
    """``--budgets``: the columns of a table."""
    return click.option(
        "--budgets",
        metavar="S,S,…",
        default=default,
        show_default=True,
        help="Time budgets in seconds.",
    )


def rules_option(default: str) -> Decorator:
    """``--rules``: the rows of a table."""
    return click.option("--rules", metavar="A,B,…", help=f"Rules to run; {default} by default.")


def included(name: str) -> Decorator:
    """The option for results of another benchmark."""
    help = f"Results file of bench {name}, to be included in the report."
    return click.option(f"--{name}", metavar="FILE", help=help)


class BenchCommand(click.Command):
    """A command whose ``--json`` used to take the name of the results file."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for flag, after in pairwise(args):
            if flag == "--json" and not after.startswith("-"):
                raise click.UsageError(
                    f"--json takes no file name, it prints the summary; -o {after} writes results"
                )
        return super().parse_args(ctx, args)


class BenchCommandWithRules(BenchCommand, CommandWithRules):
    """The same with the list of rules."""


@click.group(no_args_is_help=False)
def bench() -> None:
    """Run the paper's benchmark: F that each rule reaches in a given time.

    Ctrl-C stops it; the same command goes on where it stopped.
    """


@bench.command(cls=BenchCommand)
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
@rules_option("all of the table")
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
@done_by("bench_experiments:people")
def people() -> None:
    """The paper's Table 3: F and MODA on frames with people, at three budgets.

    Occupancy maps of a simulated soccer pitch with 27 people and 6 cameras, with two energies:
    exact (its F bounds log Z) and ratio (that of the original program). A star marks the best
    MODA of a column; published values are of data that can't be had.

    \b
    Examples:
      proxfield bench people --report people.html
      proxfield make people square --kind square && proxfield bench people --data square
    """


@bench.command(cls=BenchCommandWithRules)
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
@budgets_option("0.05,0.3,3")
@rules_option("the paper's seven and auto")
@seed_option("Random seed of characters.")
@run_options
@output_options("bench-inpainting.jsonl")
@done_by("bench_experiments:inpainting")
def inpainting() -> None:
    """The paper's Table 2: F and accuracy on characters with a hole, at three budgets.

    Decision tree fields are trained here, on characters rendered from fonts, in two ways: by
    persistent chains, which makes F rugged, and through marginals, which leaves one minimum. A
    star marks the lowest F of a column; the published values are those of other models.

    \b
    Examples:
      proxfield bench inpainting --report inpainting.html
      proxfield bench inpainting --data DIR --count 0
    """


@bench.command(cls=BenchCommand)
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
@rules_option("all of the table")
@seed_option("Random seed of scenes.")
@run_options
@output_options("bench-segmentation.jsonl")
@done_by("bench_experiments:segmentation")
def segmentation() -> None:
    """The paper's experiment on semantic segmentation: F and mean IoU, at three budgets.

    Dense CRFs over generated scenes, with and without co-occurrence of classes. A star marks the
    lowest F of a column.

    \b
    Examples:
      proxfield bench segmentation --report segmentation.html
    """


@bench.command(name="all", cls=BenchCommand)
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
@done_by("bench_experiments:everything")
def everything() -> None:
    """All four experiments of the paper, in the folder OUT: one report of all of them.

    The same as bench people, bench inpainting, bench segmentation and bench paper one after
    another, each with a results file in OUT; the same command goes on where it was stopped. With
    --json, a line each.

    \b
    Examples:
      proxfield bench all results
      proxfield bench all results --data DIR --inpainting-data DIR --threads 1
    """


@bench.command(cls=BenchCommand)
@click.option("--quick", is_flag=True, help="Fewer and smaller models: less than a minute.")
@click.option(
    "--tasks", metavar="A,B,…", default=",".join(TASKS), show_default=True, help="What to compare."
)
@click.option("--peers", "names", metavar="A,B,…", help="Tools by the beginning of their names.")
@click.option(
    "--data",
    metavar="DIR",
    help="Models with exact answers (<family>/X.uai, X.uai.PR, X.uai.MAR), besides generated ones.",
)
@click.option(
    "--scenes",
    metavar="DIR",
    help="Images (.npz with image, probabilities, truth), besides generated ones.",
)
@click.option(
    "--seeds",
    metavar="N",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Generated models of each kind.",
)
@click.option(
    "--budget",
    metavar="S",
    type=click.FloatRange(0, min_open=True),
    help="Time budget in seconds of tools that can use one; 1 by default, 0.2 with --quick.",
)
@click.option(
    "--timeout",
    metavar="S",
    type=click.FloatRange(0, min_open=True),
    help="Maximum number of CPU seconds per run (once compiled); 20 by default, 5 with --quick.",
)
@click.option("-o", "--output", metavar="FILE", help="Write all results (JSON).")
@click.option("--csv", "table", metavar="FILE", help="Write one row per run.")
@click.option("--report", metavar="FILE", help="Write the tables (.html or .md).")
@json_option
@done_by("bench_peers:peers")
def peers() -> None:
    """Compare with other tools: errors of marginals, log Z, labellings, images, and time.

    Every tool that is installed runs in a process of its own, on one thread, on models whose exact
    answers are known. Those that aren't installed are named with the command that installs them.

    \b
    Examples:
      proxfield bench peers --quick
      proxfield bench peers --peers proxfield,pyGMs --tasks inference --report peers.html
    """


@bench.command(cls=BenchCommandWithRules)
@data_options
@budgets_option("0.05,0.3,1")
@rules_option("the paper's seven and auto")
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
@included("sensitivity")
@included("people")
@included("inpainting")
@included("segmentation")
@done_by("bench_paper:paper")
def paper() -> None:
    """The paper's Table 1: mean F on three sets of models, at three budgets.

    The table on stdout has the published value beside ours; a star marks the best of a column.

    \b
    Examples:
      proxfield bench paper
      proxfield bench paper --data DIR --threads 1 --repeats 3 --report paper.html
    """


@bench.command(cls=BenchCommand)
@data_options
@budgets_option("0.05,0.3")
@click.option("--etas", metavar="X,X,…", help="Values of η; 13 from 0.001 to 1 by default.")
@run_options
@output_options("bench-sensitivity.jsonl")
@done_by("bench_paper:sensitivity")
def sensitivity() -> None:
    """The paper's Figure 2: how mean F depends on the damping η = 1/(1+d).

    For adhoc (eta=η), fixed (step=η) and adaptive (step=η).
    """
