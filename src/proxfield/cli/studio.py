"""``proxfield studio``: a dense CRF on a local page, with sliders."""

from __future__ import annotations

import click

from proxfield.cli import signals
from proxfield.cli.commands.images import AXES
from proxfield.cli.main import report
from proxfield.cli.options import Options
from proxfield.cli.refine_inputs import KINDS, choose_input, in_options, input_settings, read_preset
from proxfield.cli.running import prepare_rule
from proxfield.errors import InputError
from proxfield.images.settings import DenseSettings
from proxfield.studio.inputs import StudioInputs, demo_inputs, read_files
from proxfield.studio.server import LOCAL_HOSTS, check_packages, serve
from proxfield.studio.session import StudioSession

MEGABYTE = 2**20


def open_studio(options: Options) -> None:
    """Run the command."""
    image, host, rule = options.image, options.host, options.rule
    if host not in LOCAL_HOSTS and not options.allow_remote:
        raise click.UsageError(
            f"--host {host} lets other machines connect, and there is no password; expected "
            "127.0.0.1, or --allow-remote beside it"
        )
    if image is None:
        for name in options.given(*KINDS, "scribbles", "truth"):
            raise click.UsageError(f"--{name} needs an IMAGE")
    else:
        choose_input(options)
    check_packages()
    preset = read_preset(options)
    prepare_rule(rule, dense=True)
    try:
        inputs = read_inputs(options, preset)
        StudioSession(inputs, preset, rule)  # says now what doesn't fit
    except InputError as error:
        raise InputError(in_options(error.message), path=error.path) from None
    if host not in LOCAL_HOSTS:
        report(f"anyone who reaches {host} can use the studio: no password", kind="warning: ")
    signals.begin_work()
    try:
        serve(
            inputs,
            preset,
            rule,
            host=host,
            port=options.port,
            max_bytes=int(options.max_upload * MEGABYTE),
            browser=not options.no_browser,
            announce=lambda address: click.echo(f"proxfield studio: {address} (Ctrl-C ends it)"),
        )
    except KeyboardInterrupt:  # how a studio ends
        click.echo("proxfield: studio closed", err=True)


def read_inputs(options: Options, preset: str | DenseSettings) -> StudioInputs:
    """What the command was given, or the generated scene."""
    if options.image is None:
        return demo_inputs()
    path, kind = choose_input(options)
    build, from_labels = input_settings(options, kind, preset)
    build["channel_axis"] = AXES[options.channel_axis]
    names = () if options.names is None else tuple(options.names.split(","))
    return read_files(
        options.image,
        path,
        KINDS[kind],
        **options.pick("truth", "scribbles"),
        names=names,
        build=build,
        from_labels=from_labels or {},
    )
