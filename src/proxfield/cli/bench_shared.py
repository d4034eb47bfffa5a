"""What the subcommands of ``proxfield bench`` share: options, where things go, running tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import click

from proxfield.cli.options import (
    CommandWithRules,
    F,
    cluster_option,
    jobs_on,
    jobs_option,
    json_option,
    stack,
    threads_option,
)
from proxfield.core.common.records import Record

if TYPE_CHECKING:
    from proxfield.bench.report import ReportData
    from proxfield.bench.runner import Failure, Job, Settings
    from proxfield.bench.session import Outputs
    from proxfield.bench.store import Store

ModelT = TypeVar("ModelT")
FoundT = TypeVar("FoundT")
BUSY_LOAD = 0.5
"""Load average per core above which timings are doubtful."""

run_options = stack(
    threads_option(),
    jobs_option("model", ", which disturb each other unless each has cores of its own"),
    cluster_option,
    click.option(
        "--tol",
        metavar="X",
        type=float,
        default=1e-6,
        show_default=True,
        help="Tolerance: stop early when no marginal changes by more.",
    ),
)


def output_options(results: str) -> Callable[[F], F]:
    """Where things go."""
    return stack(
        click.option(
            "-o",
            "--output",
            "results",
            metavar="FILE",
            default=results,
            show_default=True,
            help="Results file (JSON lines); runs that it contains aren't repeated.",
        ),
        click.option("--report", metavar="FILE.html", help="Write an HTML report."),
        click.option(
            "--figures",
            metavar="DIR",
            help="Folder for pictures (.png, .svg); next to the report by default.",
        ),
        json_option,
    )


class BenchCommand(click.Command):
    """A command whose ``--json`` used to take the name of the results file."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        for flag, after in pairwise(args):
            if flag == "--json" and not after.startswith("-"):
                raise click.UsageError(
                    f"--json takes no file name, it prints the summary; -o {after} writes results"
                )
        return super().parse_args(ctx, args)


class BenchCommandWithRules(BenchCommand, CommandWithRules):
    """The same with the list of rules."""


def make_settings(options: Record) -> Settings:
    """What all runs share, checked."""
    from proxfield.bench.runner import Settings, threads_of
    from proxfield.cli.running import check_limits

    check_limits(1, options["tol"], None, options["threads"])
    return Settings(options["tol"], threads_of(options["threads"]))


def prepare_outputs(
    options: Record, inputs: dict[str, str | None], folders: dict[str, str | None]
) -> Outputs:
    """Where things go; refuses targets that can't be written or that name an input."""
    from proxfield.bench.session import Outputs, check_outputs
    from proxfield.cli.shared import check_distinct, check_target

    outputs = Outputs(options["results"], options["report"], options["figures"])
    check_target(outputs.results, "-o")
    if outputs.report is not None:
        check_target(outputs.report, "--report")
    check_distinct(
        {
            "--data": options["data"],
            "-o": outputs.results,
            "--report": outputs.report,
            "--figures": outputs.figures,
            **inputs,
            **folders,
        }
    )
    check_outputs(outputs)
    return outputs


def open_store(outputs: Outputs, data: str | None, settings: Settings) -> Store:
    """The results file; says what happened to it."""
    import os

    from proxfield.bench.machine import metadata
    from proxfield.bench.store import Store

    meta = metadata(data, settings.threads)
    store = Store(outputs.results, meta)
    for line in store.notes:
        note(line)
    load, cores = meta["load_average"], os.cpu_count() or 1
    if load is not None and load > BUSY_LOAD * cores:
        note(f"other processes keep this machine busy (load {load:g} on {cores} cores)")
    return store


def do(
    ctx: click.Context, tasks: Sequence[Job[ModelT]], store: Store, settings: Settings
) -> list[Failure]:
    """Run the tasks that aren't stored yet; exits with 130 on Ctrl-C."""
    from proxfield.bench.progress import Bar
    from proxfield.bench.runner import run_tasks
    from proxfield.bench.session import describe_failures
    from proxfield.cli.signals import begin_work
    from proxfield.core.jobs.cluster import connected

    cluster = ctx.params["cluster"]
    jobs = jobs_on(cluster, ctx.params["jobs"])
    begin_work()
    try:
        with connected(cluster), Bar() as bar:
            failures = run_tasks(tasks, store, settings, bar, jobs)
    except KeyboardInterrupt:
        from proxfield.cli.signals import INTERRUPTED

        finished = sum(store.find(t.identity(settings)) is not None for t in tasks)
        click.echo(
            f"proxfield: interrupted: {finished} of {len(tasks)} runs are kept in {store.path}; "
            "the same command goes on from there",
            err=True,
        )
        store.close()
        ctx.exit(INTERRUPTED)
    for line in describe_failures(failures):
        note(line)
    return failures


def print_report(data: Record, outputs: Outputs, failures: list[Failure]) -> None:
    """The summary as JSON."""
    from proxfield._version import __version__
    from proxfield.bench.session import describe_failures
    from proxfield.cli.shared import print_json

    where = {"output": outputs.results, "report": outputs.report, "figures": outputs.pictures}
    print_json({**data, **where, "failures": describe_failures(failures), "version": __version__})


def finish(outputs: Outputs, data: ReportData) -> None:
    """Pictures and report, after all results are stored."""
    from proxfield.bench.session import write_outputs

    for line in write_outputs(outputs, data):
        click.echo(line, err=True)


def run_experiment(
    ctx: click.Context,
    tasks: Sequence[Job[ModelT]],
    outputs: Outputs,
    settings: Settings,
    data: str | None,
    *,
    make: Callable[[list[Record]], FoundT],
    summary: Callable[[FoundT], Record],
    show: Callable[[FoundT], None],
    report: Callable[[FoundT, Store], Record],
) -> None:
    """Run what isn't stored yet, print what was found, and write pictures and report.

    Args:
        ctx: Of the command, which has the options of this module.
        tasks: What to run.
        outputs: Where things go.
        settings: What all runs share.
        data: Where the models come from, for the record.
        make: Tables or figures, from the records of the tasks.
        summary: What ``--json`` prints of them.
        show: Prints them.
        report: Their part of `ReportData`.
    """
    from proxfield.bench.report import ReportData
    from proxfield.bench.session import describe_failures

    with open_store(outputs, data, settings) as store:
        failures = do(ctx, tasks, store, settings)
        records = [store.find(t.identity(settings)) for t in tasks]
        found = make([r for r in records if r is not None])
        if ctx.params["as_json"]:
            print_report(summary(found), outputs, failures)
        else:
            show(found)
        page = ReportData(
            metas=store.metas,
            command=this_command(),
            tol=settings.tol,
            failures=describe_failures(failures),
            **report(found, store),
        )
        finish(outputs, page)


def note(text: str) -> None:
    """One line on stderr."""
    from proxfield.cli.main import report

    report(text, kind="note: ")


def this_command() -> str:
    """The command as it was typed."""
    from proxfield.bench.machine import command_line

    return command_line()
