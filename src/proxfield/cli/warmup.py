"""``proxfield warmup``: compile kernels before they are needed."""

from __future__ import annotations

import click

from proxfield.cli.options import Options
from proxfield.cli.progress import Display
from proxfield.cli.shared import print_json
from proxfield.warming import warmup


def compile_ahead(options: Options) -> None:
    """Run the command."""
    with Display() as display:
        display.phase("compiling")

        def note(family: str, kernels: int, seconds: float) -> None:
            display.note(f"{family}: {kernels} kernels, {seconds:.1f} s")

        done = warmup(options.everything, options.jobs, note)
    if options.as_json:
        print_json(
            {
                "kernels": done.kernels,
                "seconds": done.seconds,
                "kernel_folder": str(done.folder),
                "families": done.families,
            }
        )
    else:
        click.echo(f"{done.kernels} kernels compiled in {done.seconds:.1f} s, in {done.folder}")
