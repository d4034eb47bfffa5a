"""``proxfield bench``: the paper's benchmarks, its figure on damping, and a report of all."""

from __future__ import annotations

from itertools import pairwise

import click

from proxfield.cli.options import CommandWithRules, Several, done_by


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
@done_by("bench_experiments:people", seeds=Several(int))
def people() -> None:
    """The paper's Table 3: F and MODA on frames with people, at three budgets.

    Occupancy maps of a simulated soccer pitch with 27 people and 6 cameras, with two energies:
    exact (its F bounds log Z) and ratio (that of the original program). A star marks the best
    MODA of a column; published values are of data that can't be had.

    \b
    Examples:
      proxfield bench people --report people.html
      proxfield make people square --kind square && proxfield bench people --data square

    Options:
    --data DIR (input; many)  A folder as proxfield make people writes it; may be given several
        times. The simulated pitch by default.
    --frames N = 2  Number of frames of each simulation, 2 seconds apart.
    --seeds S,S,… = 0,1  Random seeds of the simulations.
    --size W H  Width and height of simulated images; 640 360 by default.
    --spacing METERS  Distance of neighboring locations of a simulation; 0.35 by default.
    --passes N,N,… = 10,25,60  Budgets in gradients.
    --budgets S,S,…  Further budgets, in seconds; none by default.
    --rules A,B,… (names)  Rules to run; all of the table by default.
    --radius METERS = 1.0  Maximum distance of a detection from a person, and minimum distance of
        detections.
    run
    results: bench-people.jsonl
    """


@bench.command(cls=BenchCommandWithRules)
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

    Options:
    --data PATH (input)  Also run models of decision tree fields: a folder with TST_*.mat, or one of
        these.
    --count N (whole) = 8  Number of characters to complete with each trained model; 0 runs those of
        --data only.
    --train N (two) = 300  Number of characters that models are trained on.
    --hole (small|large) = large  Hidden part of the image: 9.8 % or 22.8 %.
    --models DIR (input) = bench-inpainting-models  Folder of trained models; those that it contains
        aren't trained again.
    --budgets S,S,… = 0.05,0.3,3  Time budgets in seconds.
    --rules A,B,… (names)  Rules to run; the paper's seven and auto by default.
    --seed S = 0  Random seed of characters.
    run
    results: bench-inpainting.jsonl
    """


@bench.command(cls=BenchCommand)
@done_by("bench_experiments:segmentation")
def segmentation() -> None:
    """The paper's experiment on semantic segmentation: F and mean IoU, at three budgets.

    Dense CRFs over generated scenes, with and without co-occurrence of classes. A star marks the
    lowest F of a column.

    \b
    Examples:
      proxfield bench segmentation --report segmentation.html

    Options:
    --count N = 6  Number of scenes.
    --iterations N,N,… = 5,20,100  Budgets in iterations.
    --rules A,B,… (names)  Rules to run; all of the table by default.
    --seed S = 0  Random seed of scenes.
    run
    results: bench-segmentation.jsonl
    """


@bench.command(name="all", cls=BenchCommand)
@click.argument("folder", metavar="OUT")
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

    Options:
    --data DIR  As in bench paper: DBN, GRID and SEG.
    --inpainting-data PATH  As --data in bench inpainting.
    --count N (whole) = 8  As in bench inpainting: number of characters; 0 leaves that experiment
        out.
    --frames N = 2  As in bench people: number of frames of each simulation.
    --scenes N (whole) = 6  As --count in bench segmentation: number of scenes; 0 leaves that
        experiment out.
    --exact DIR = generated  As in bench paper: models with exact answers.
    --repeats R = 3  As in bench paper: number of runs; the median is used.
    run
    json
    """


@bench.command(cls=BenchCommand)
@done_by("bench_peers:peers")
def peers() -> None:
    """Compare with other tools: errors of marginals, log Z, labellings, images, and time.

    Every tool that is installed runs in a process of its own, on one thread, on models whose exact
    answers are known. Those that aren't installed are named with the command that installs them.

    \b
    Examples:
      proxfield bench peers --quick
      proxfield bench peers --peers proxfield,pyGMs --tasks inference --report peers.html

    Options:
    --quick  Fewer and smaller models: less than a minute.
    --tasks A,B,… (names) = inference,map,dense  What to compare.
    --peers A,B,… (names; name=names)  Tools by the beginning of their names.
    --data DIR (input)  Models with exact answers (<family>/X.uai, X.uai.PR, X.uai.MAR), besides
        generated ones.
    --scenes DIR (input)  Images (.npz with image, probabilities, truth), besides generated ones.
    --seeds N = 1  Generated models of each kind.
    --budget S (positive)  Time budget in seconds of tools that can use one; 1 by default, 0.2 with
        --quick.
    --timeout S (positive)  Maximum number of CPU seconds per run (once compiled); 20 by default, 5
        with --quick.
    -o --output FILE (output)  Write all results (JSON).
    --csv FILE (output; name=table)  Write one row per run.
    --report FILE (to .html or .md)  Write the tables (.html or .md).
    json
    """


@bench.command(cls=BenchCommandWithRules)
@done_by("bench_experiments:paper")
def paper() -> None:
    """The paper's Table 1: mean F on three sets of models, at three budgets.

    The table on stdout has the published value beside ours; a star marks the best of a column.

    \b
    Examples:
      proxfield bench paper
      proxfield bench paper --data DIR --threads 1 --repeats 3 --report paper.html

    Options:
    suites
    --budgets S,S,… = 0.05,0.3,1  Time budgets in seconds.
    --rules A,B,… (names)  Rules to run; the paper's seven and auto by default.
    --repeats R = 1  Number of runs; the median is used.
    run
    results: bench-paper.jsonl
    --exact DIR (input)  Models with exact answers (<family>/X.uai, X.uai.PR, …), for the report;
        'generated' makes small ones.
    included: sensitivity
    included: people
    included: inpainting
    included: segmentation
    """


@bench.command(cls=BenchCommand)
@done_by("bench_experiments:sensitivity", etas=Several(float, highest=1.0))
def sensitivity() -> None:
    """The paper's Figure 2: how mean F depends on the damping η = 1/(1+d).

    For adhoc (eta=η), fixed (step=η) and adaptive (step=η).

    Options:
    suites
    --budgets S,S,… = 0.05,0.3  Time budgets in seconds.
    --etas X,X,…  Values of η; 13 from 0.001 to 1 by default.
    run
    results: bench-sensitivity.jsonl
    """
