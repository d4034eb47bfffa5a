"""Commands for models in files, for what is made, and about the installation: what they take."""

from __future__ import annotations

import click

from proxfield.cli.options import INPUT, OUTPUT, CommandWithRules, done_by


@click.command(cls=CommandWithRules)
@click.argument("model", type=INPUT)
@done_by("solve:solve", task=click.Choice(("MAR", "MAP", "PR"), case_sensitive=False))
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

    Options:
    evidence
    --rule NAME  Update rule; see the list below.
    set
    --modes K (count) = 1  Maximum number of modes (rule auto): a mixture, with a better bound and
        marginals.
    init: uniform
    limits
    device dtype
    --kernels (cpu|reference|cuda|torch)  reference is slow and readable numpy. [default: what suits
        the device]
    --keep (last|best) = last  Return the last state, or the one of lowest F.
    --task MAR|MAP|PR  Write a UAI result file: marginals, a labelling, or log10 Z (here a lower
        bound).
    -o --output FILE (stdout)  File for --task; stdout by default.
    --trace FILE (output)  Write CSV with the columns iteration, seconds, free_energy, change.
    json
    --strict  Exit with 3 unless converged.
    --distributed  Share the field with the other processes that torchrun started.
    --coupling W  With --distributed and an array: Potts weight between neighbors. [default: 1]
    --checkpoint FOLDER  With --distributed: save the run every 10 minutes, and continue one found
        there.
    """


@click.command("map")
@click.argument("model", type=INPUT)
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

    Options:
    evidence
    --max-iters N (whole)  Maximum number of sweeps, of all chains together. [default: no limit with
        --budget, else enough for a second or two]
    search-limits device dtype
    -o --output FILE (stdout the labelling)  Write the labelling as a UAI MAP file; - is stdout.
    --trace FILE (output)  Write CSV with the columns iteration, seconds, energy.
    json
    """


@click.command(cls=CommandWithRules)
@click.argument("model", type=INPUT)
@done_by("solve:compare")
def compare() -> None:
    """Run several rules on MODEL, print a table and draw how F falls.

    The best F is marked by a star. MODEL is a UAI file, plain or compressed, or - for standard
    input. Ctrl-C ends the comparison with the rules that have run so far.

    Options:
    evidence
    --rules A,B,… (names)  Rules to run; all of them by default.
    limits device dtype
    --plot FILE (to .png, .svg or .pdf)  Picture file (.png, .svg or .pdf). [default:
        MODEL-compare.png]
    --no-plot  Draw no picture.
    json
    """


@click.command()
@click.argument("model", type=INPUT)
@done_by("info:info")
def info() -> None:
    """Show MODEL's size, the structure that inference will use, and its certified steps.

    Options:
    evidence json
    """


@click.command()
@done_by("installation:compile_ahead")
def warmup() -> None:
    """Compile kernels ahead of time, so that the first inference doesn't have to.

    For images of containers, clusters and CI. Kernels are kept in the user's cache folder
    (PROXFIELD_CACHE_DIR), for the processor of this machine and this version. By default these are
    the kernels of sparse fields and of dense CRFs with default settings.

    Options:
    --all (name=everything)  Compile everything within reason: both floating-point types, all rules,
        several threads, other normalizations and terms of dense CRFs, occupancy maps.
    --jobs N  Maximum number of processes. [default: one per core]
    json
    """


@click.command()
@done_by("installation:examine")
def doctor() -> None:
    """Check this installation: versions, threads, cache, memory, GPUs, and a tiny field by brute
    force.

    Exits with 1 if the check fails.

    Options:
    json
    """


@click.group(no_args_is_help=False)
def make() -> None:
    """Make a seeded random model, scene or task: the same options always give the same files."""


@make.command()
@click.argument("folder", metavar="OUT")
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

    Options:
    --train N = 300  Number of training images.
    --test N = 100  Number of test images.
    --hole (small|large) = small  Hidden part of the image: 9.8 % or 22.8 %.
    --fonts A,B,… (names)  Names of fonts; six of those installed, mostly Kai, by default.
    --held-out FONT  A font for a second test set, which the others don't use.
    seed json
    """


@make.command()
@done_by("making:model")
def grid() -> None:
    """A grid with random couplings, of both signs by default.

    Options:
    --rows N = 20  Rows.
    --cols N = 20  Columns.
    --strength F = 1.0  Couplings are uniform in [-F, F].
    --n-labels L (two) = 2  2 gives spins (Ising), more give Potts weights.
    --wrap  Join opposite borders.
    --attractive (name=sign; flag_value=attractive)  Neighbors prefer equal labels.
    --repulsive (name=sign; flag_value=repulsive)  Neighbors prefer different labels.
    --seed S = 0
    stdout: the model|Where to write
    json
    """


@make.command()
@done_by("making:model")
def rbm() -> None:
    """A restricted Boltzmann machine: two fully connected layers of spins.

    Options:
    --visible N = 100  Spins of the first layer.
    --hidden N = 50  Spins of the second layer.
    --strength F = 0.2  Couplings are uniform in [-F, F].
    --seed S = 0
    stdout: the model|Where to write
    json
    """


@make.command()
@done_by("making:model")
def segmentation() -> None:
    """Two regions of a synthetic picture, over superpixels.

    Options:
    --regions N = 500  Superpixels, hence variables.
    --strength F = 1.0  Scale of the attraction between regions that touch.
    --noise X = 1.0  Standard deviation of the noise of the unary energies.
    --seed S = 0
    stdout: the model|Where to write
    json
    """


@make.command()
@click.argument("folder", metavar="OUT")
@done_by("making:people")
def people() -> None:
    """People in several cameras: masks, calibration, .pom scene and truth, in a new folder.

    Options:
    --kind (pitch|square) = pitch  A soccer pitch with players, or a square with a crowd.
    --frames N = 10  Frames.
    --people N (whole)  Number of people; 27 on the pitch, 30 to 50 on the square by default.
    --cameras N  Number of cameras; 6 and 4 by default.
    --size W H  Width and height of the images; 640 360 and 480 360 by default.
    --spacing METERS  Distance of neighboring locations; 0.5 and 0.25 by default.
    --missing X (share) = 0.15  Share of each body that is missing in masks, in smooth patches.
    --speckle X (share) = 0.01  Share of each mask that is foreground for no reason, in small spots.
    --blobs N (whole) = 6  Blobs per mask that are foreground for no reason.
    --soft PIXELS (whole) = 0  Width over which edges are blurred.
    --shape (person|superellipse) = person  Shape of the bodies.
    --rate F (positive) = 25.0  Frames per second.
    --seed S = 0
    json
    """


@make.command()
@click.argument("output", metavar="OUT", type=OUTPUT)
@done_by("making:snakes")
def snakes() -> None:
    """Snakes of ten pixels to be numbered from tail to head: a task for learning, as npz.

    Options:
    --train N = 200  Pictures to learn from.
    --test N = 100  Pictures to test with.
    --seed S = 0
    json
    """
