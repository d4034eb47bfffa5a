"""``proxfield make``: seeded random models in UAI form, simulated scenes and tasks for learning."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from proxfield.cli.make_characters import characters
from proxfield.cli.options import Decorator, json_option, stack

if TYPE_CHECKING:
    from proxfield.field import Field

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


@click.group(no_args_is_help=False)
def command() -> None:
    """Make a seeded random model, scene or task: the same options always give the same files."""


command.add_command(characters)


def count(name: str, what: str, default: int) -> Decorator:
    """An option that counts things."""
    return click.option(
        name, metavar="N", type=click.IntRange(min=1), default=default, show_default=True, help=what
    )


def strength(default: float, what: str) -> Decorator:
    """The option for the size of couplings."""
    return click.option(
        "--strength", metavar="F", type=float, default=default, show_default=True, help=what
    )


@command.command()
@count("--rows", "Rows.", 20)
@count("--cols", "Columns.", 20)
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
def grid(
    rows: int,
    cols: int,
    strength: float,
    n_labels: int,
    wrap: bool,
    sign: str | None,
    seed: int,
    output: str,
    as_json: bool,
) -> None:
    """A grid with random couplings, of both signs by default."""
    check(output, as_json)
    from proxfield import generate

    field = generate.grid(
        rows,
        cols,
        strength=strength,
        n_labels=n_labels,
        wrap=wrap,
        sign=sign or "mixed",
        seed=seed,
    )
    write(field, output, as_json)


@command.command()
@count("--visible", "Spins of the first layer.", 100)
@count("--hidden", "Spins of the second layer.", 50)
@strength(0.2, "Couplings are uniform in [-F, F].")
@seed_and_output
def rbm(visible: int, hidden: int, strength: float, seed: int, output: str, as_json: bool) -> None:
    """A restricted Boltzmann machine: two fully connected layers of spins."""
    check(output, as_json)
    from proxfield import generate

    write(generate.rbm(visible, hidden, strength=strength, seed=seed), output, as_json)


@command.command()
@count("--regions", "Superpixels, hence variables.", 500)
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
def segmentation(
    regions: int, strength: float, noise: float, seed: int, output: str, as_json: bool
) -> None:
    """Two regions of a synthetic picture, over superpixels."""
    check(output, as_json)
    from proxfield import generate

    field = generate.segmentation(regions, strength=strength, noise=noise, seed=seed)
    write(field, output, as_json)


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


@command.command()
@click.argument("folder", metavar="OUT")
@click.option(
    "--kind",
    type=click.Choice(["pitch", "square"]),
    default="pitch",
    show_default=True,
    help="A soccer pitch with players, or a square with a crowd.",
)
@count("--frames", "Frames.", 10)
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
def people(
    folder: str,
    kind: str,
    frames: int,
    people: int | None,
    cameras: int | None,
    size: tuple[int, int] | None,
    spacing: float | None,
    missing: float,
    speckle: float,
    blobs: int,
    soft: int,
    shape: str,
    rate: float,
    seed: int,
    as_json: bool,
) -> None:
    """People in several cameras: masks, calibration, .pom scene and truth, in a new folder."""
    from proxfield.cli.shared import show_summary
    from proxfield.io.folders import check_folder
    from proxfield.people.bodies import Noise
    from proxfield.people.simulate import simulate, write_simulation

    check_folder(folder)
    made = simulate(
        kind,
        people=people,
        cameras=cameras,
        size=size,
        spacing=spacing,
        noise=Noise(missing, speckle, blobs, soft),
        shape=shape,
        rate=rate,
        seed=seed,
    )
    write_simulation(made, folder, frames)
    summary = {
        "kind": kind,
        "frames": frames,
        "people": made.n_people,
        "cameras": len(made.cameras),
        "locations": made.scene.n_locations,
        "output": folder,
    }
    show_summary(summary, as_json)


@command.command()
@click.argument("output", metavar="OUT")
@count("--train", "Pictures to learn from.", 200)
@count("--test", "Pictures to test with.", 100)
@click.option("--seed", metavar="S", type=click.IntRange(min=0), default=0, show_default=True)
@json_option
def snakes(output: str, train: int, test: int, seed: int, as_json: bool) -> None:
    """Snakes of ten pixels to be numbered from tail to head: a task for learning, as npz."""
    from proxfield.cli.shared import check_target, show_summary
    from proxfield.learn.snakes import make_snakes, write_snakes

    check_target(output, "OUT")
    pictures, labels = make_snakes(train + test, seed)
    parts = {
        "train": (pictures[:train], labels[:train]),
        "test": (pictures[train:], labels[train:]),
    }
    write_snakes(output, parts, seed)
    pixels = sum(picture.size for picture in pictures)
    show_summary({"train": train, "test": test, "pixels": pixels, "output": output}, as_json)


def check(output: str, as_json: bool) -> None:
    """Refuse a target that can't be written before making the model."""
    from proxfield.cli.shared import check_summary, check_target

    check_summary(as_json, output, "the model")
    if output != "-":
        check_target(output, "-o")


def write(field: Field, output: str, as_json: bool) -> None:
    """The model as text, to a file (then with a summary on stdout) or to stdout."""
    from proxfield.cli.shared import show_summary
    from proxfield.io.uai_write import format_model, write_model

    if output == "-":
        click.echo(format_model(field), nl=False)
        return
    write_model(field, output)
    count = int(field.cardinalities.max(initial=0))
    made = {"n_vars": field.n_vars, "n_labels": count, "terms": list(field.kinds), "output": output}
    show_summary(made, as_json)
