"""Commands for models in files: what they take. The work is in modules of the same names."""

from __future__ import annotations

import click

from proxfield.cli.options import (
    CommandWithRules,
    device_option,
    done_by,
    dtype_option,
    init_option,
    json_option,
    limit_options,
    model_options,
    search_limit_options,
    settings_option,
    stack,
)

TASKS = ("MAR", "MAP", "PR")

rule_options = stack(
    click.option("--rule", metavar="NAME", help="Update rule; see the list below."),
    settings_option,
    click.option(
        "--modes",
        metavar="K",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Maximum number of modes (rule auto): a mixture, with a better bound and marginals.",
    ),
    init_option("uniform"),
)

engine_options = stack(
    device_option,
    dtype_option,
    click.option(
        "--kernels",
        type=click.Choice(["cpu", "reference", "cuda", "torch"]),
        help="reference is slow and readable numpy.  [default: what suits the device]",
    ),
    click.option(
        "--keep",
        type=click.Choice(["last", "best"]),
        default="last",
        show_default=True,
        help="Return the last state, or the one of lowest F.",
    ),
)

output_options = stack(
    click.option(
        "--task",
        metavar="MAR|MAP|PR",
        type=click.Choice(TASKS, case_sensitive=False),
        help="Write a UAI result file: marginals, a labelling, or log10 Z (here a lower bound).",
    ),
    click.option("-o", "--output", metavar="FILE", help="File for --task; stdout by default."),
    click.option(
        "--trace",
        metavar="FILE",
        help="Write CSV with the columns iteration, seconds, free_energy, change.",
    ),
    json_option,
    click.option("--strict", is_flag=True, help="Exit with 3 unless converged."),
)

distributed_options = stack(
    click.option(
        "--distributed",
        is_flag=True,
        help="Share the field with the other processes that torchrun started.",
    ),
    click.option(
        "--coupling",
        metavar="W",
        type=float,
        help="With --distributed and an array: Potts weight between neighbors.  [default: 1]",
    ),
    click.option(
        "--checkpoint",
        metavar="FOLDER",
        help="With --distributed: save the run every 10 minutes, and continue one found there.",
    ),
)


@click.command(cls=CommandWithRules)
@model_options
@rule_options
@limit_options
@engine_options
@output_options
@distributed_options
@done_by("solve:solve")
def solve() -> None:
    """Infer marginals, a labelling and a certified lower bound on log Z.

    MODEL is a UAI file, plain or compressed, or - for standard input. Without --task and
    --json a short summary is printed. Ctrl-C stops early and still prints the result so far.

    \b
    Examples:
      proxfield solve model.uai
      proxfield solve model.uai --modes 16 --budget 1
      proxfield solve model.uai --rule momentum --set gamma=0.9 --json
      proxfield solve model.uai.xz --evidence model.evid --task MAR -o model.MAR
    """


@click.command("map")
@model_options
@click.option(
    "--max-iters",
    metavar="N",
    type=click.IntRange(min=0),
    help="Maximum number of sweeps, of all chains together.  [default: no limit with --budget, "
    "else enough for a second or two]",
)
@search_limit_options
@device_option
@dtype_option
@click.option(
    "-o", "--output", metavar="FILE", help="Write the labelling as a UAI MAP file; - is stdout."
)
@click.option(
    "--trace", metavar="FILE", help="Write CSV with the columns iteration, seconds, energy."
)
@json_option
@done_by("map:search")
def map_command() -> None:
    """Search for the most probable labelling: the one of lowest energy.

    MODEL is a UAI file, plain or compressed, or - for standard input. Without -o - and --json a
    short summary is printed; --json includes the labels. Where the interactions form a forest the
    result is optimal, otherwise no change of a single variable lowers its energy. Ctrl-C stops
    early and still prints the best so far.

    \b
    Examples:
      proxfield map model.uai
      proxfield map model.uai.xz --evidence model.evid --budget 5 -o model.MAP
      proxfield map model.uai --max-iters 2000 --seed 7 --json
    """


@click.command(cls=CommandWithRules)
@model_options
@click.option("--rules", metavar="A,B,…", help="Rules to run; all of them by default.")
@limit_options
@device_option
@dtype_option
@click.option(
    "--plot",
    metavar="FILE",
    help="Picture file (.png, .svg or .pdf).  [default: MODEL-compare.png]",
)
@click.option("--no-plot", is_flag=True, help="Draw no picture.")
@json_option
@done_by("compare:compare")
def compare() -> None:
    """Run several rules on MODEL, print a table and draw how F falls.

    The best F is marked by a star. MODEL is a UAI file, plain or compressed, or - for standard
    input. Ctrl-C ends the comparison with the rules that have run so far.
    """


@click.command()
@model_options
@json_option
@done_by("info:info")
def info() -> None:
    """Show MODEL's size, the structure that inference will use, and its certified steps."""
