"""``proxfield studio``: a dense CRF on a local page, with sliders."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from proxfield.cli.options import CommandWithDenseRules, stack
from proxfield.cli.refine import PRESETS, read_preset
from proxfield.cli.refine_inputs import (
    AXES,
    KINDS,
    array_options,
    choose_input,
    in_options,
    input_settings,
    map_options,
)
from proxfield.errors import InputError

if TYPE_CHECKING:
    from proxfield.core.common.records import Record
    from proxfield.images.settings import DenseSettings
    from proxfield.studio.inputs import StudioInputs

MEGABYTE = 2**20

file_options = stack(
    click.option(
        "--probs",
        metavar="FILE",
        help="Probabilities of the image (.npy, .npz; a gray picture is a mask).",
    ),
    click.option("--logits", metavar="FILE", help="Scores of a network (.npy, .npz) instead."),
    click.option("--labels", metavar="FILE", help="A label map (.png, .npy) instead."),
    click.option(
        "--truth",
        metavar="FILE",
        help="True labels (.png, .npy; 255: unknown), to show the mean IoU.",
    ),
    click.option(
        "--scribbles",
        metavar="FILE",
        help="Labels of pixels that are certain: a label map, 255 or transparent elsewhere.",
    ),
)

server_options = stack(
    click.option(
        "--host",
        metavar="ADDRESS",
        default="127.0.0.1",
        show_default=True,
        help="Address to listen on; any but this machine's own needs --allow-remote.",
    ),
    click.option(
        "--allow-remote",
        is_flag=True,
        help="Let other machines connect. There is no password: whoever reaches the port can "
        "use the studio and see the image.",
    ),
    click.option(
        "--port",
        metavar="N",
        type=click.IntRange(0, 65535),
        default=0,
        help="Port to listen on.  [default: one that is free]",
    ),
    click.option("--no-browser", is_flag=True, help="Only print the address."),
    click.option(
        "--max-upload",
        metavar="MB",
        type=click.FloatRange(0, 4096, min_open=True),
        default=64,
        show_default=True,
        help="Maximum size of a file that the page sends.",
    ),
)


@click.command(cls=CommandWithDenseRules)
@click.argument("image", metavar="[IMAGE]", required=False)
@file_options
@map_options
@array_options
@click.option("--names", metavar="A,B,…", help="Names of the labels, for the legend.")
@click.option(
    "--preset",
    type=click.Choice(PRESETS),
    default=PRESETS[0],
    show_default=True,
    help="Settings by name to begin with.",
)
@click.option("--config", metavar="FILE", help="Settings of a file (crf.toml) to begin with.")
@click.option(
    "--rule",
    metavar="NAME",
    default="fixed",
    show_default=True,
    help="Update rule to begin with; see the list below.",
)
@server_options
def command(
    image: str | None,
    host: str,
    allow_remote: bool,
    port: int,
    no_browser: bool,
    max_upload: float,
    **options: Any,
) -> None:
    """Open a page in the browser that refines one image while you move its sliders.

    It shows the image, the classifier's labels, the result and the difference, and how the free
    energy F falls. Strokes on the image fix labels. The settings can be saved as crf.toml for
    proxfield refine --config, and copied as Python. Without IMAGE the page shows a generated scene;
    it can open other files too. Nothing leaves this machine. Ctrl-C ends it.

    \b
    Examples:
      proxfield studio
      proxfield studio photo.jpg --probs photo.npy --truth truth.png
      proxfield studio photo.jpg --labels map.png --names background,cat --port 8080 --no-browser
    """
    check_host(host, allow_remote)
    if image is None:
        refuse_without_image(options)
    else:
        choose_input(options)
    from proxfield.studio.server import check_packages

    check_packages()
    preset = read_preset(options["preset"], options["config"])
    check_rule(options["rule"])
    from proxfield.cli.signals import begin_work
    from proxfield.core.common.interrupts import deferred

    with deferred():  # numba, cut off while it is imported, may swallow Ctrl-C
        from proxfield.studio.server import is_local, serve
        from proxfield.studio.session import StudioSession
    try:
        inputs = read_inputs(image, options, preset)
        StudioSession(inputs, preset, options["rule"])  # says now what doesn't fit
    except InputError as error:
        raise InputError(in_options(error.message), path=error.path) from None
    if not is_local(host):
        from proxfield.cli.main import report

        report(f"anyone who reaches {host} can use the studio: no password", kind="warning: ")
    begin_work()
    try:
        serve(
            inputs,
            preset,
            options["rule"],
            host=host,
            port=port,
            max_bytes=int(max_upload * MEGABYTE),
            browser=not no_browser,
            announce=lambda address: click.echo(f"proxfield studio: {address} (Ctrl-C ends it)"),
        )
    except KeyboardInterrupt:  # how a studio ends
        click.echo("proxfield: studio closed", err=True)


def check_host(host: str, allow_remote: bool) -> None:
    """Refuse addresses that other machines can reach, unless that is wanted."""
    from proxfield.studio.guard import LOCAL_HOSTS

    if host not in LOCAL_HOSTS and not allow_remote:
        raise click.UsageError(
            f"--host {host} lets other machines connect, and there is no password; expected "
            "127.0.0.1, or --allow-remote beside it"
        )


def refuse_without_image(options: Record) -> None:
    """Options about files need an image."""
    for name in (*KINDS, "scribbles", "truth"):
        if options[name] is not None:
            raise click.UsageError(f"--{name} needs an IMAGE")


def check_rule(name: str) -> None:
    """Refuse rules that don't run on images."""
    from proxfield.cli.running import prepare_rule

    if not prepare_rule(name, {}).suits_dense_fields:
        from proxfield.core.solve.rules.registry import dense_rules

        raise click.UsageError(
            f"--rule {name} doesn't run on dense fields, expected one of: "
            f"{', '.join(dense_rules())}"
        )


def read_inputs(image: str | None, options: Record, preset: str | DenseSettings) -> StudioInputs:
    """What the command was given, or the generated scene."""
    from proxfield.studio.inputs import demo_inputs, read_files

    if image is None:
        return demo_inputs()
    path, kind = choose_input(options)
    build, from_labels = input_settings(options, kind, preset)
    build["channel_axis"] = AXES[options["channel_axis"]]
    names = () if options["names"] is None else tuple(options["names"].split(","))
    return read_files(
        image,
        path,
        KINDS[kind],
        truth=options["truth"],
        scribbles=options["scribbles"],
        names=names,
        build=build,
        from_labels=from_labels or {},
    )
