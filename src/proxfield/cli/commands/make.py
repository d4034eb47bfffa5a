"""``proxfield make``: random models in UAI form, simulated scenes and tasks for learning."""

from __future__ import annotations

import click

from proxfield.cli.options import Decorator, count_option, done_by, json_option, seed_option, stack

HOLES = ("small", "large")
"""Those of `learn.characters.HOLES`, repeated here so that help needn't import them."""

seed_and_output = stack(
    click.option("--seed", metavar="S", type=click.IntRange(min=0), default=0, show_default=True),
    click.option(
        "-o",
        "--output",
        metavar="FILE",
        default="-",
        help="Where to write; .gz, .xz and .bz2 names are compressed. stdout by default.",
    ),
    json_option,
)


def strength(default: float, what: str) -> Decorator:
    """The option for the size of couplings."""
    return click.option(
        "--strength", metavar="F", type=float, default=default, show_default=True, help=what
    )


def share(name: str, what: str, default: float) -> Decorator:
    """An option that is a share of something."""
    return click.option(
        name,
        metavar="X",
        type=click.FloatRange(0, 1, max_open=True),
        default=default,
        show_default=True,
        help=what,
    )


@click.group(no_args_is_help=False)
def make() -> None:
    """Make a seeded random model, scene or task: the same options always give the same files."""


@make.command()
@click.argument("folder", metavar="OUT")
@click.option(
    "--train",
    metavar="N",
    type=click.IntRange(min=1),
    default=300,
    show_default=True,
    help="Number of training images.",
)
@click.option(
    "--test",
    metavar="N",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Number of test images.",
)
@click.option(
    "--hole",
    type=click.Choice(HOLES),
    default="small",
    show_default=True,
    help="Hidden part of the image: 9.8 % or 22.8 %.",
)
@click.option(
    "--fonts",
    metavar="A,B,…",
    help="Names of fonts; six of those installed, mostly Kai, by default.",
)
@click.option(
    "--held-out", metavar="FONT", help="A font for a second test set, which the others don't use."
)
@seed_option()
@json_option
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
@count_option("--rows", "Rows.", 20)
@count_option("--cols", "Columns.", 20)
@strength(1.0, "Couplings are uniform in [-F, F].")
@click.option(
    "--n-labels",
    metavar="L",
    type=click.IntRange(min=2),
    default=2,
    show_default=True,
    help="2 gives spins (Ising), more give Potts weights.",
)
@click.option("--wrap", is_flag=True, help="Join opposite borders.")
@click.option(
    "--attractive", "sign", flag_value="attractive", help="Neighbors prefer equal labels."
)
@click.option(
    "--repulsive", "sign", flag_value="repulsive", help="Neighbors prefer different labels."
)
@seed_and_output
@done_by("making:grid")
def grid() -> None:
    """A grid with random couplings, of both signs by default."""


@make.command()
@count_option("--visible", "Spins of the first layer.", 100)
@count_option("--hidden", "Spins of the second layer.", 50)
@strength(0.2, "Couplings are uniform in [-F, F].")
@seed_and_output
@done_by("making:rbm")
def rbm() -> None:
    """A restricted Boltzmann machine: two fully connected layers of spins."""


@make.command()
@count_option("--regions", "Superpixels, hence variables.", 500)
@strength(1.0, "Scale of the attraction between regions that touch.")
@click.option(
    "--noise",
    metavar="X",
    type=float,
    default=1.0,
    show_default=True,
    help="Standard deviation of the noise of the unary energies.",
)
@seed_and_output
@done_by("making:segmentation")
def segmentation() -> None:
    """Two regions of a synthetic picture, over superpixels."""


@make.command()
@click.argument("folder", metavar="OUT")
@click.option(
    "--kind",
    type=click.Choice(["pitch", "square"]),
    default="pitch",
    show_default=True,
    help="A soccer pitch with players, or a square with a crowd.",
)
@count_option("--frames", "Frames.", 10)
@click.option(
    "--people",
    metavar="N",
    type=click.IntRange(min=0),
    help="Number of people; 27 on the pitch, 30 to 50 on the square by default.",
)
@click.option(
    "--cameras",
    metavar="N",
    type=click.IntRange(min=1),
    help="Number of cameras; 6 and 4 by default.",
)
@click.option(
    "--size",
    metavar="W H",
    nargs=2,
    type=click.IntRange(min=1),
    help="Width and height of the images; 640 360 and 480 360 by default.",
)
@click.option(
    "--spacing",
    metavar="METERS",
    type=click.FloatRange(0, min_open=True),
    help="Distance of neighboring locations; 0.5 and 0.25 by default.",
)
@share("--missing", "Share of each body that is missing in masks, in smooth patches.", 0.15)
@share("--speckle", "Share of each mask that is foreground for no reason, in small spots.", 0.01)
@click.option(
    "--blobs",
    metavar="N",
    type=click.IntRange(min=0),
    default=6,
    show_default=True,
    help="Blobs per mask that are foreground for no reason.",
)
@click.option(
    "--soft",
    metavar="PIXELS",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Width over which edges are blurred.",
)
@click.option(
    "--shape",
    type=click.Choice(["person", "superellipse"]),
    default="person",
    show_default=True,
    help="Shape of the bodies.",
)
@click.option(
    "--rate",
    metavar="F",
    type=click.FloatRange(0, min_open=True),
    default=25.0,
    show_default=True,
    help="Frames per second.",
)
@click.option("--seed", metavar="S", type=click.IntRange(min=0), default=0, show_default=True)
@json_option
@done_by("making:people")
def people() -> None:
    """People in several cameras: masks, calibration, .pom scene and truth, in a new folder."""


@make.command()
@click.argument("output", metavar="OUT")
@count_option("--train", "Pictures to learn from.", 200)
@count_option("--test", "Pictures to test with.", 100)
@click.option("--seed", metavar="S", type=click.IntRange(min=0), default=0, show_default=True)
@json_option
@done_by("making:snakes")
def snakes() -> None:
    """Snakes of ten pixels to be numbered from tail to head: a task for learning, as npz."""
