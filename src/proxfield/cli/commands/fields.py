"""Commands for models in files and about the installation: what they take."""

from __future__ import annotations

import click

from proxfield.cli.options import (
    COUNT,
    LIMITS,
    MODEL,
    NAMES,
    OUTPUT,
    RULE,
    SEARCH_LIMITS,
    WHOLE,
    CommandWithRules,
    FileName,
    done_by,
    init_option,
    option,
    shared,
)


@click.command(cls=CommandWithRules)
@shared(*MODEL)
@option("--rule NAME", RULE)
@shared("set")
@option(
    "--modes K",
    "Maximum number of modes (rule auto): a mixture, with a better bound and marginals.",
    1,
    COUNT,
)
@init_option("uniform")
@shared(*LIMITS)
@shared("device", "dtype")
@option(
    "--kernels",
    "reference is slow and readable numpy.  [default: what suits the device]",
    kind=("cpu", "reference", "cuda", "torch"),
)
@option("--keep", "Return the last state, or the one of lowest F.", "last", ("last", "best"))
@option(
    "--task MAR|MAP|PR",
    "Write a UAI result file: marginals, a labelling, or log10 Z (here a lower bound).",
    kind=click.Choice(("MAR", "MAP", "PR"), case_sensitive=False),
)
@option("-o --output FILE", "File for --task; stdout by default.", kind=FileName(True, ""))
@option(
    "--trace FILE",
    "Write CSV with the columns iteration, seconds, free_energy, change.",
    kind=OUTPUT,
)
@shared("json")
@option("--strict", "Exit with 3 unless converged.")
@option("--distributed", "Share the field with the other processes that torchrun started.")
@option(
    "--coupling W",
    "With --distributed and an array: Potts weight between neighbors.  [default: 1]",
)
@option(
    "--checkpoint FOLDER",
    "With --distributed: save the run every 10 minutes, and continue one found there.",
)
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
@shared(*MODEL)
@option(
    "--max-iters N",
    "Maximum number of sweeps, of all chains together.  [default: no limit with --budget, "
    "else enough for a second or two]",
    kind=WHOLE,
)
@shared(*SEARCH_LIMITS, "device", "dtype")
@option(
    "-o --output FILE",
    "Write the labelling as a UAI MAP file; - is stdout.",
    kind=FileName(True, "the labelling"),
)
@option("--trace FILE", "Write CSV with the columns iteration, seconds, energy.", kind=OUTPUT)
@shared("json")
@done_by("solve:search")
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
@shared(*MODEL)
@option("--rules A,B,…", "Rules to run; all of them by default.", kind=NAMES)
@shared(*LIMITS, "device", "dtype")
@option(
    "--plot FILE",
    "Picture file (.png, .svg or .pdf).  [default: MODEL-compare.png]",
    kind=FileName(True, endings=".png, .svg or .pdf"),
)
@option("--no-plot", "Draw no picture.")
@shared("json")
@done_by("compare:compare")
def compare() -> None:
    """Run several rules on MODEL, print a table and draw how F falls.

    The best F is marked by a star. MODEL is a UAI file, plain or compressed, or - for standard
    input. Ctrl-C ends the comparison with the rules that have run so far.
    """


@click.command()
@shared(*MODEL, "json")
@done_by("info:info")
def info() -> None:
    """Show MODEL's size, the structure that inference will use, and its certified steps."""


@click.command()
@option(
    "--all",
    "Compile everything within reason: both floating-point types, all rules, several threads, "
    "other normalizations and terms of dense CRFs, occupancy maps.",
    name="everything",
)
@option("--jobs N", "Maximum number of processes.  [default: one per core]")
@shared("json")
@done_by("warmup:compile_ahead")
def warmup() -> None:
    """Compile kernels ahead of time, so that the first inference doesn't have to.

    For images of containers, clusters and CI. Kernels are kept in the user's cache folder
    (PROXFIELD_CACHE_DIR), for the processor of this machine and this version. By default these are
    the kernels of sparse fields and of dense CRFs with default settings.
    """


@click.command()
@shared("json")
@done_by("doctor:examine")
def doctor() -> None:
    """Check this installation: versions, threads, cache, memory, GPUs, and a tiny field by brute
    force.

    Exits with 1 if the check fails.
    """
