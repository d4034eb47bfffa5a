"""``proxfield make characters``: a data set for inpainting, rendered from fonts."""

from __future__ import annotations

import click

from proxfield.cli.options import json_option, seed_option

HOLES = ("small", "large")
"""Those of `learn.characters.HOLES`, repeated here so that help needn't import them."""


@click.command()
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
def characters(
    folder: str,
    train: int,
    test: int,
    hole: str,
    fonts: str | None,
    held_out: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """Chinese characters with a hole in the middle, to learn inpainting: pictures in a new folder.

    Characters of GB 2312 in fonts of this machine, warped at random; test characters are others
    than those for training. On Debian: apt install fonts-arphic-ukai fonts-arphic-gkai00mp
    fonts-arphic-uming fonts-arphic-gbsn00lp fonts-wqy-zenhei fonts-noto-cjk

    \b
    Examples:
      proxfield make characters characters
      proxfield make characters large --hole large --held-out noto-sans
    """
    from proxfield.bench.session import split_names
    from proxfield.cli.progress import Display
    from proxfield.cli.shared import show_summary
    from proxfield.io.folders import check_folder
    from proxfield.learn.character_files import write_characters
    from proxfield.learn.characters import make_characters

    names = None if fonts is None else split_names(fonts, "--fonts")
    check_folder(folder)
    total = train + test * (2 if held_out else 1)
    with Display() as display:
        sets = make_characters(
            train,
            test,
            hole=hole,
            fonts=names,
            held_out=held_out,
            seed=seed,
            progress=lambda k: display.phase(f"drawing {k} of {total} characters"),
        )
        write_characters(sets, folder, hole=hole, seed=seed)
    used = sorted(set(sets.train.fonts) | set(sets.test.fonts))
    summary = {"train": train, "test": test, "held_out": held_out or "", "hole": hole}
    show_summary({**summary, "fonts": used, "output": folder}, as_json)
