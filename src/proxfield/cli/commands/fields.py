"""Commands for models in files, for what is made, and about the installation: what they take."""

from __future__ import annotations

import click

from proxfield.cli.options import (
    COUNT,
    HOLES,
    LIMITS,
    MODEL,
    NAMES,
    OUTPUT,
    POSITIVE,
    RULE,
    SEARCH_LIMITS,
    TWO_OR_MORE,
    WHOLE,
    CommandWithRules,
    FileName,
    done_by,
    init_option,
    option,
    shared,
    stack,
    stdout_option,
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
@done_by("solve:compare")
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
@done_by("installation:compile_ahead")
def warmup() -> None:
    """Compile kernels ahead of time, so that the first inference doesn't have to.

    For images of containers, clusters and CI. Kernels are kept in the user's cache folder
    (PROXFIELD_CACHE_DIR), for the processor of this machine and this version. By default these are
    the kernels of sparse fields and of dense CRFs with default settings.
    """


@click.command()
@shared("json")
@done_by("installation:examine")
def doctor() -> None:
    """Check this installation: versions, threads, cache, memory, GPUs, and a tiny field by brute
    force.

    Exits with 1 if the check fails.
    """


SHARE = click.FloatRange(0, 1, max_open=True)
seed = option("--seed S", None, 0)
seed_and_output = stack(seed, stdout_option("the model", "Where to write"), shared("json"))


@click.group(no_args_is_help=False)
def make() -> None:
    """Make a seeded random model, scene or task: the same options always give the same files."""


@make.command()
@click.argument("folder", metavar="OUT")
@option("--train N", "Number of training images.", 300)
@option("--test N", "Number of test images.", 100)
@option("--hole", "Hidden part of the image: 9.8 % or 22.8 %.", "small", HOLES)
@option(
    "--fonts A,B,…", "Names of fonts; six of those installed, mostly Kai, by default.", kind=NAMES
)
@option("--held-out FONT", "A font for a second test set, which the others don't use.")
@shared("seed", "json")
@done_by("making:characters")
def characters() -> None:
    """Chinese characters with a hole in the middle, to learn inpainting: pictures in a new folder.

    Characters of GB 2312 in fonts of this machine, warped at random; test characters are others
    than those for training. On Debian: apt install fonts-arphic-ukai fonts-arphic-gkai00mp
    fonts-arphic-uming fonts-arphic-gbsn00lp fonts-wqy-zenhei fonts-noto-cjk

    \b
    Examples:
      proxfield make characters characters
      proxfield make characters large --hole large --held-out noto-sans
    """


@make.command()
@option("--rows N", "Rows.", 20)
@option("--cols N", "Columns.", 20)
@option("--strength F", "Couplings are uniform in [-F, F].", 1.0)
@option("--n-labels L", "2 gives spins (Ising), more give Potts weights.", 2, TWO_OR_MORE)
@option("--wrap", "Join opposite borders.")
@option("--attractive", "Neighbors prefer equal labels.", name="sign", flag_value="attractive")
@option("--repulsive", "Neighbors prefer different labels.", name="sign", flag_value="repulsive")
@seed_and_output
@done_by("making:grid")
def grid() -> None:
    """A grid with random couplings, of both signs by default."""


@make.command()
@option("--visible N", "Spins of the first layer.", 100)
@option("--hidden N", "Spins of the second layer.", 50)
@option("--strength F", "Couplings are uniform in [-F, F].", 0.2)
@seed_and_output
@done_by("making:rbm")
def rbm() -> None:
    """A restricted Boltzmann machine: two fully connected layers of spins."""


@make.command()
@option("--regions N", "Superpixels, hence variables.", 500)
@option("--strength F", "Scale of the attraction between regions that touch.", 1.0)
@option("--noise X", "Standard deviation of the noise of the unary energies.", 1.0)
@seed_and_output
@done_by("making:segmentation")
def segmentation() -> None:
    """Two regions of a synthetic picture, over superpixels."""


@make.command()
@click.argument("folder", metavar="OUT")
@option(
    "--kind", "A soccer pitch with players, or a square with a crowd.", "pitch", ("pitch", "square")
)
@option("--frames N", "Frames.", 10)
@option(
    "--people N",
    "Number of people; 27 on the pitch, 30 to 50 on the square by default.",
    kind=WHOLE,
)
@option("--cameras N", "Number of cameras; 6 and 4 by default.")
@option("--size W H", "Width and height of the images; 640 360 and 480 360 by default.")
@option("--spacing METERS", "Distance of neighboring locations; 0.5 and 0.25 by default.")
@option(
    "--missing X", "Share of each body that is missing in masks, in smooth patches.", 0.15, SHARE
)
@option(
    "--speckle X",
    "Share of each mask that is foreground for no reason, in small spots.",
    0.01,
    SHARE,
)
@option("--blobs N", "Blobs per mask that are foreground for no reason.", 6, WHOLE)
@option("--soft PIXELS", "Width over which edges are blurred.", 0, WHOLE)
@option("--shape", "Shape of the bodies.", "person", ("person", "superellipse"))
@option("--rate F", "Frames per second.", 25.0, POSITIVE)
@seed
@shared("json")
@done_by("making:people")
def people() -> None:
    """People in several cameras: masks, calibration, .pom scene and truth, in a new folder."""


@make.command()
@click.argument("output", metavar="OUT", type=OUTPUT)
@option("--train N", "Pictures to learn from.", 200)
@option("--test N", "Pictures to test with.", 100)
@seed
@shared("json")
@done_by("making:snakes")
def snakes() -> None:
    """Snakes of ten pixels to be numbered from tail to head: a task for learning, as npz."""
