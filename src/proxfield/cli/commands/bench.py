"""``proxfield bench``: the paper's benchmarks, its figure on damping, and a report of all."""

from __future__ import annotations

from itertools import pairwise

import click

from proxfield.cli.options import (
    HOLES,
    INPUT,
    NAMES,
    OUTPUT,
    POSITIVE,
    TWO_OR_MORE,
    WHOLE,
    CommandWithRules,
    Decorator,
    FileName,
    Several,
    done_by,
    jobs_option,
    option,
    seed_option,
    shared,
    stack,
)

TASKS = ("inference", "map", "dense")
"""What `bench peers` asks for."""

data_options = stack(
    option(
        "--data DIR",
        "A folder with DBN, GRID and SEG of UAI files; generated instances by default.",
        kind=INPUT,
    ),
    option("--suite A,B,…", "Suites to run, of DBN, GRID and SEG; all by default.", kind=NAMES),
)


run_options = stack(
    shared("threads"),
    jobs_option("model", ", which disturb each other unless each has cores of its own"),
    shared("cluster"),
    option("--tol X", "Tolerance: stop early when no marginal changes by more.", 1e-6),
)


def output_options(results: str) -> Decorator:
    """Where things go."""
    kept = "Results file (JSON lines); runs that it contains aren't repeated."
    drawn = "Folder for pictures (.png, .svg); next to the report by default."
    return stack(
        option("-o --output FILE", kept, results, OUTPUT, name="results"),
        option("--report FILE.html", "Write an HTML report.", kind=OUTPUT),
        option("--figures DIR", drawn, kind=INPUT),
        shared("json"),
    )


def budgets_option(default: str) -> Decorator:
    """``--budgets``: the columns of a table."""
    return option("--budgets S,S,…", "Time budgets in seconds.", default)


def rules_option(default: str) -> Decorator:
    """``--rules``: the rows of a table."""
    return option("--rules A,B,…", f"Rules to run; {default} by default.", kind=NAMES)


def included(name: str) -> Decorator:
    """The option for results of another benchmark."""
    help = f"Results file of bench {name}, to be included in the report."
    return option(f"--{name} FILE", help, kind=INPUT)


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
    """Such a command whose help ends with the rules."""


@click.group(no_args_is_help=False)
def bench() -> None:
    """Run the paper's benchmark: F that each rule reaches in a given time.

    Ctrl-C stops it; the same command goes on where it stopped.
    """


@bench.command(cls=BenchCommand)
@option(
    "--data DIR",
    "A folder as proxfield make people writes it; may be given several times. The simulated "
    "pitch by default.",
    multiple=True,
    kind=INPUT,
)
@option("--frames N", "Number of frames of each simulation, 2 seconds apart.", 2)
@option("--seeds S,S,…", "Random seeds of the simulations.", "0,1", Several(int))
@option("--size W H", "Width and height of simulated images; 640 360 by default.")
@option("--spacing METERS", "Distance of neighboring locations of a simulation; 0.35 by default.")
@option("--passes N,N,…", "Budgets in gradients.", "10,25,60")
@option("--budgets S,S,…", "Further budgets, in seconds; none by default.")
@rules_option("all of the table")
@option(
    "--radius METERS",
    "Maximum distance of a detection from a person, and minimum distance of detections.",
    1.0,
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
@option(
    "--data PATH",
    "Also run models of decision tree fields: a folder with TST_*.mat, or one of these.",
    kind=INPUT,
)
@option(
    "--count N",
    "Number of characters to complete with each trained model; 0 runs those of --data only.",
    8,
    WHOLE,
)
@option("--train N", "Number of characters that models are trained on.", 300, TWO_OR_MORE)
@option("--hole", "Hidden part of the image: 9.8 % or 22.8 %.", "large", HOLES)
@option(
    "--models DIR",
    "Folder of trained models; those that it contains aren't trained again.",
    "bench-inpainting-models",
    INPUT,
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
@option("--count N", "Number of scenes.", 6)
@option("--iterations N,N,…", "Budgets in iterations.", "5,20,100")
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
@option("--data DIR", "As in bench paper: DBN, GRID and SEG.")
@option("--inpainting-data PATH", "As --data in bench inpainting.")
@option(
    "--count N",
    "As in bench inpainting: number of characters; 0 leaves that experiment out.",
    8,
    WHOLE,
)
@option("--frames N", "As in bench people: number of frames of each simulation.", 2)
@option(
    "--scenes N",
    "As --count in bench segmentation: number of scenes; 0 leaves that experiment out.",
    6,
    WHOLE,
)
@option("--exact DIR", "As in bench paper: models with exact answers.", "generated")
@option("--repeats R", "As in bench paper: number of runs; the median is used.", 3)
@run_options
@shared("json")
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
@option("--quick", "Fewer and smaller models: less than a minute.")
@option("--tasks A,B,…", "What to compare.", ",".join(TASKS), NAMES)
@option("--peers A,B,…", "Tools by the beginning of their names.", kind=NAMES, name="names")
@option(
    "--data DIR",
    "Models with exact answers (<family>/X.uai, X.uai.PR, X.uai.MAR), besides generated ones.",
    kind=INPUT,
)
@option(
    "--scenes DIR",
    "Images (.npz with image, probabilities, truth), besides generated ones.",
    kind=INPUT,
)
@option("--seeds N", "Generated models of each kind.", 1)
@option(
    "--budget S",
    "Time budget in seconds of tools that can use one; 1 by default, 0.2 with --quick.",
    kind=POSITIVE,
)
@option(
    "--timeout S",
    "Maximum number of CPU seconds per run (once compiled); 20 by default, 5 with --quick.",
    kind=POSITIVE,
)
@option("-o --output FILE", "Write all results (JSON).", kind=OUTPUT)
@option("--csv FILE", "Write one row per run.", kind=OUTPUT, name="table")
@option(
    "--report FILE", "Write the tables (.html or .md).", kind=FileName(True, endings=".html or .md")
)
@shared("json")
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
@option("--repeats R", "Number of runs; the median is used.", 1)
@run_options
@output_options("bench-paper.jsonl")
@option(
    "--exact DIR",
    "Models with exact answers (<family>/X.uai, X.uai.PR, …), for the report; "
    "'generated' makes small ones.",
    kind=INPUT,
)
@included("sensitivity")
@included("people")
@included("inpainting")
@included("segmentation")
@done_by("bench_experiments:paper")
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
@option(
    "--etas X,X,…", "Values of η; 13 from 0.001 to 1 by default.", kind=Several(float, highest=1.0)
)
@run_options
@output_options("bench-sensitivity.jsonl")
@done_by("bench_experiments:sensitivity")
def sensitivity() -> None:
    """The paper's Figure 2: how mean F depends on the damping η = 1/(1+d).

    For adhoc (eta=η), fixed (step=η) and adaptive (step=η).
    """
