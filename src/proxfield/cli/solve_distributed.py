"""``proxfield solve --distributed``: one field over the processes that torchrun started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from proxfield.cli.options import stack

if TYPE_CHECKING:
    from proxfield.core.solve.rules.base import Rule
    from proxfield.distributed import Partition, PartResult, Transport

distributed_options = stack(
    click.option(
        "--distributed",
        is_flag=True,
        help="Share the field with the other processes that torchrun started.",
    ),
    click.option(
        "--coupling",
        metavar="W",
        type=float,
        help="With --distributed and an array: Potts weight between neighbors.  [default: 1]",
    ),
    click.option(
        "--checkpoint",
        metavar="FOLDER",
        help="With --distributed: save the run every 10 minutes, and continue one found there.",
    ),
)


def refuse_alone(coupling: float | None, checkpoint: str | None) -> None:
    """Options that need --distributed."""
    for option, value in (("--coupling", coupling), ("--checkpoint", checkpoint)):
        if value is not None:
            raise click.UsageError(f"{option} needs --distributed")


def solve_distributed(
    model: str,
    evidence: str | None,
    evidence_base: str,
    rule: Rule,
    coupling: float | None,
    checkpoint: str | None,
    task: str | None,
    limits: dict[str, Any],
    options: dict[str, Any],
) -> tuple[PartResult, bool, str | None]:
    """Run one rank.

    Returns:
        The result, whether this rank prints it, and the text of a task.
    """
    from proxfield.distributed import connect, infer

    with connect() as transport:
        if model.endswith(".npy"):
            if task is not None or evidence is not None:
                raise click.UsageError("--task and --evidence need a model, not an array")
            part = read_grid(transport, model, 1.0 if coupling is None else coupling)
        else:
            if coupling is not None:
                raise click.UsageError("--coupling needs an array of unary energies (.npy)")
            part = read_whole(transport, model, evidence, evidence_base)
        result = infer(part, rule, checkpoint=checkpoint, **limits, **options)
        text = None if task is None else gathered_text(result, task)
        return result, transport.rank == 0, text


def read_grid(transport: Transport, path: str, coupling: float) -> Partition:
    """A grid whose unary energies are in a file, of which each rank reads its box."""
    from proxfield.distributed import grid_partition
    from proxfield.errors import InputError
    from proxfield.io.npy import map_array

    energies = map_array(path)
    if energies.ndim < 2 or energies.dtype.kind != "f" or energies.shape[-1] < 2:
        raise InputError(
            f"an array of {energies.dtype} of shape {energies.shape}, expected unary energies: "
            "numbers of shape (rows, columns, labels) or with more axes",
            path=path,
        )
    shape, n_labels = energies.shape[:-1], energies.shape[-1]
    return grid_partition(transport, shape, energies, coupling, n_labels=n_labels)


def read_whole(
    transport: Transport, model: str, evidence: str | None, evidence_base: str
) -> Partition:
    """A model that every rank reads."""
    from proxfield.cli.shared import load
    from proxfield.distributed import Partition

    field = load(model, evidence, evidence_base).field
    return Partition.from_field(transport, field)


def gathered_text(result: PartResult, task: str) -> str:
    """The UAI result file of a task; empty on all ranks but the first."""
    from proxfield.io.results import format_map, format_mar, format_pr

    if task == "PR":
        return format_pr(result.log_z_bound)
    q, part = result.gather(), result.partition
    if q is None or part is None or part.whole is None:
        return ""
    layout = part.whole.reduction.full
    if task == "MAR":
        return format_mar(list(layout.split(q)))
    return format_map(layout.best_labels(q))


def report(result: PartResult, as_json: bool) -> None:
    """The result, as JSON or for people."""
    from proxfield._version import __version__
    from proxfield.cli.shared import number, print_json, print_pairs, status_line

    figures = result.summary()
    if as_json:
        print_json({**figures, "version": __version__})
        return
    print_pairs(
        [
            ("field", f"{figures['n_vars']} variables over {figures['ranks']} ranks"),
            ("rule", result.rule),
            ("status", status_line(result.status)),
            ("free energy F", number(result.free_energy)),
            ("log Z, at least", number(result.log_z_bound)),
            ("iterations", str(result.iterations)),
            ("seconds", f"{result.seconds:.3g}"),
        ]
    )
