"""Commands about the installation: what they take."""

from __future__ import annotations

import click

from proxfield.cli.options import done_by, json_option


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
@done_by("warmup:compile_ahead")
def warmup() -> None:
    """Compile kernels ahead of time, so that the first inference doesn't have to.

    For images of containers, clusters and CI. Kernels are kept in the user's cache folder
    (PROXFIELD_CACHE_DIR), for the processor of this machine and this version. By default these are
    the kernels of sparse fields and of dense CRFs with default settings.
    """


@click.command()
@json_option
@done_by("doctor:examine")
def doctor() -> None:
    """Check this installation: versions, threads, cache, memory, GPUs, and a tiny field by brute
    force.

    Exits with 1 if the check fails.
    """
