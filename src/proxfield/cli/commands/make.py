"""``proxfield make``: random models in UAI form, simulated scenes and tasks for learning."""

from __future__ import annotations

import click

from proxfield.cli.options import (
    HOLES,
    NAMES,
    OUTPUT,
    POSITIVE,
    TWO_OR_MORE,
    WHOLE,
    done_by,
    option,
    shared,
    stack,
    stdout_option,
)

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
