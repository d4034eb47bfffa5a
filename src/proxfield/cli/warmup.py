"""``proxfield warmup``: compile kernels before they are needed."""

from __future__ import annotations

import click

from proxfield.cli.options import json_option


@click.command()
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Compile everything within reason: both floating-point types, all rules, several threads, "
    "other normalizations and terms of dense CRFs, occupancy maps.",
)
@click.option(
    "--jobs",
    metavar="N",
    type=click.IntRange(min=1),
    help="Maximum number of processes.  [default: one per core]",
)
@json_option
def command(everything: bool, jobs: int | None, as_json: bool) -> None:
    """Compile kernels ahead of time, so that the first inference doesn't have to.

    For images of containers, clusters and CI. Kernels are kept in the user's cache folder
    (PROXFIELD_CACHE_DIR), for the processor of this machine and this version. By default these are
    the kernels of sparse fields and of dense CRFs with default settings.
    """
    from proxfield.cli.progress import Display
    from proxfield.cli.shared import print_json
    from proxfield.warming import warmup

    with Display() as display:
        display.phase("compiling")

        def note(family: str, kernels: int, seconds: float) -> None:
            display.note(f"{family}: {kernels} kernels, {seconds:.1f} s")

        done = warmup(everything, jobs, note)
    if as_json:
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
