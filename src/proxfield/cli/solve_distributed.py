"""``proxfield solve --distributed``: one field over the processes that torchrun started."""

from __future__ import annotations

import click

from proxfield._version import __version__
from proxfield.cli.options import Options
from proxfield.cli.running import load
from proxfield.cli.shared import print_json, print_pairs
from proxfield.cli.solve import result_rows
from proxfield.core.common.records import Record
from proxfield.core.solve.rules.base import Rule
from proxfield.distributed import (
    Partition,
    PartResult,
    Transport,
    connect,
    grid_partition,
    infer,
)
from proxfield.errors import InputError
from proxfield.io.npy import map_array
from proxfield.io.results import format_map, format_mar, format_pr


def solve_rank(options: Options, rule: Rule, given: Record) -> tuple[PartResult, bool, str | None]:
    """Run one rank.

    Args:
        options: Of the command.
        rule: The rule.
        given: Limits and options of the inference.

    Returns:
        The result, whether this rank prints it, and the text of a task.
    """
    with connect() as transport:
        if options.model.endswith(".npy"):
            if options.task is not None or options.evidence is not None:
                raise click.UsageError("--task and --evidence need a model, not an array")
            coupling = 1.0 if options.coupling is None else options.coupling
            part = read_grid(transport, options.model, coupling)
        else:
            if options.coupling is not None:
                raise click.UsageError("--coupling needs an array of unary energies (.npy)")
            part = Partition.from_field(transport, load(options).field)
        result = infer(part, rule, checkpoint=options.checkpoint, **given)
        text = None if options.task is None else gathered_text(result, options.task)
        return result, transport.rank == 0, text


def read_grid(transport: Transport, path: str, coupling: float) -> Partition:
    """A grid whose unary energies are in a file, of which each rank reads its box."""
    energies = map_array(path)
    if energies.ndim < 2 or energies.dtype.kind != "f" or energies.shape[-1] < 2:
        raise InputError(
            f"an array of {energies.dtype} of shape {energies.shape}, expected unary energies: "
            "numbers of shape (rows, columns, labels) or with more axes",
            path=path,
        )
    shape, n_labels = energies.shape[:-1], energies.shape[-1]
    return grid_partition(transport, shape, energies, coupling, n_labels=n_labels)


def gathered_text(result: PartResult, task: str) -> str:
    """The UAI result file of a task; empty on all ranks but the first."""
    if task == "PR":
        return format_pr(result.log_z_bound)
    q, part = result.gather(), result.partition
    if q is None or part is None or part.whole is None:
        return ""
    layout = part.whole.lowered.reduction.full
    if task == "MAR":
        return format_mar(list(layout.split(q)))
    return format_map(layout.best_labels(q))


def report(result: PartResult, as_json: bool) -> None:
    """The result, as JSON or for people."""
    figures = result.summary()
    if as_json:
        print_json({**figures, "version": __version__})
        return
    size = f"{figures['n_vars']} variables over {figures['ranks']} ranks"
    print_pairs([("field", size), *result_rows(result, [], f"{result.seconds:.3g}")])
