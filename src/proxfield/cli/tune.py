"""``proxfield tune``: settings of a dense CRF, chosen on images with known labels."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import click

from proxfield.cli.options import jobs_on, jobs_options, json_option, seed_option, stack
from proxfield.cli.progress import Display
from proxfield.cli.refine_inputs import AXES, array_options, confidence_option, in_options

if TYPE_CHECKING:
    from proxfield.core.common.records import Record
    from proxfield.images.search import Scored, TuneProgress, TuneResult
    from proxfield.images.settings import DenseSettings

SHOWN_SETTINGS = 5
"""Settings of the table that the command prints."""
STORE = ".trials.jsonl"

input_options = stack(
    click.argument("images", metavar="IMAGE...", nargs=-1, required=True),
    click.option(
        "--probs",
        metavar="DIR",
        required=True,
        help="Folder of probabilities (.npy, .npz), named like the images.",
    ),
    click.option(
        "--truth",
        metavar="DIR",
        required=True,
        help="Folder of true label maps (.png, .npy), named like the images.",
    ),
    click.option(
        "--ignore",
        metavar="LABEL",
        type=int,
        multiple=True,
        default=(255,),
        show_default=True,
        help="A true label that stands for unlabelled; repeatable.",
    ),
    array_options,
    confidence_option,
    click.option(
        "--color-range",
        metavar="X",
        type=float,
        help="Full range of the images' values.  [default: 255, or 1 for floats up to 1]",
    ),
)

search_options = stack(
    click.option(
        "--metric",
        type=click.Choice(["miou", "accuracy", "boundary-f"]),
        default="miou",
        show_default=True,
        help="What to maximize: mean IoU, pixel accuracy, or F1 of boundaries.",
    ),
    click.option(
        "--tolerance",
        metavar="PX",
        type=click.FloatRange(0, 99),
        default=2.0,
        show_default=True,
        help="How far boundaries may be apart, for boundary-f.",
    ),
    click.option(
        "--trials",
        metavar="N",
        type=click.IntRange(min=1),
        default=60,
        show_default=True,
        help="Maximum number of settings per search.",
    ),
    click.option(
        "--folds",
        metavar="K",
        type=click.IntRange(min=2),
        default=5,
        show_default=True,
        help="Number of folds of the cross-validation; at most one per image.",
    ),
    click.option(
        "--filter",
        "filters",
        type=click.Choice(["auto", "exact", "lattice"]),
        multiple=True,
        default=("auto",),
        show_default=True,
        help="A filter to try; repeatable.",
    ),
    click.option(
        "--budget",
        metavar="SECONDS",
        type=click.FloatRange(0, min_open=True),
        help="Time budget in seconds; then the best so far counts.",
    ),
    seed_option("Random seed of the folds."),
    jobs_options("image", "; fewer if memory is short"),
)


@click.command()
@input_options
@click.option("-o", "--output", metavar="FILE", required=True, help="Where to write the settings.")
@click.option(
    "--report",
    metavar="FILE",
    help="A page (.html), or a figure (.png, .svg, .pdf), with the metric over each setting.",
)
@search_options
@click.option("--force", is_flag=True, help="Repeat trials that are stored.")
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    images: tuple[str, ...],
    output: str,
    report: str | None,
    force: bool,
    jobs: int | None,
    cluster: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Choose the settings of a dense CRF on images whose labels are known.

    A search over the bandwidths and weights of both terms and the number of updates. It is
    repeated without each fold of the images, and what it chooses is measured on that fold.
    If that is no better than the labels without a CRF, the settings that are written
    say "no CRF": weights of 0. Every trial is stored in FILE.trials.jsonl; the same command
    continues a run that was stopped.

    \b
    Examples:
      proxfield tune photos/ --probs probs/ --truth truth/ -o crf.toml --jobs 4
      proxfield refine more/ --probs probs/ --config crf.toml -o refined/
    """
    from proxfield.cli.main import report as say
    from proxfield.cli.refine_files import Pair, find_images, find_partners
    from proxfield.cli.refine_run import affordable_jobs, check_packages
    from proxfield.cli.signals import INTERRUPTED, begin_work
    from proxfield.core.common.interrupts import deferred, raised_again
    from proxfield.core.jobs import ClusterError, LostWorkerError
    from proxfield.core.jobs.cluster import connected

    found = find_images(images)
    probs = find_partners(found, options["probs"], "--probs")
    truth = find_partners(found, options["truth"], "--truth")
    check_outputs(output, report, [*found, *probs, *truth])
    jobs = jobs_on(cluster, jobs)
    pairs = [Pair(image, unary, ()) for image, unary in zip(found, probs, strict=True)]
    check_packages([*pairs, *(Pair(t, t, ()) for t in truth)], jobs)
    if jobs is not None:
        jobs, why = affordable_jobs(jobs, pairs, None)
        if why:
            say(why, kind="note: ")
    begin_work()
    store = f"{output}{STORE}"
    with deferred():  # numba, cut off while it is imported, may swallow Ctrl-C
        from proxfield.images.tune import tune
    build = {"labels_axis": AXES[options["labels_axis"]], "normalize": options["normalize"]}
    build["confidence"] = options["confidence"]
    same = ("metric", "ignore", "tolerance", "trials", "folds", "filters", "seed", "budget")
    try:
        with (
            warnings.catch_warnings(),
            raised_again(),
            connected(cluster),
            TuneDisplay() as display,
            display.announcing_compilation(),
        ):
            warnings.showwarning = lambda text, *_: display.note(
                f"proxfield: note: {in_options(str(text))}"
            )
            result = tune(
                found,
                probs,
                truth,
                **{name: options[name] for name in same},
                color_range=options["color_range"],
                jobs=jobs,
                threads=options["threads"],
                store=store,
                fresh=force,
                callback=display.tell,
                channel_axis=AXES[options["channel_axis"]],
                **build,
            )
    except KeyboardInterrupt:
        say(f"interrupted; trials are kept in {store}, run the same again to go on", kind="")
        ctx.exit(INTERRUPTED)
    except (LostWorkerError, ClusterError) as error:
        say(f"{error} (trials are kept in {store}, run the same again to go on)")
        ctx.exit(1)
    result.save(output)
    if report is not None:
        from proxfield.viz.tuning import write_report

        write_report(result, report)
    show(result, output, report, as_json)


def check_outputs(output: str, report: str | None, inputs: list[Any]) -> None:
    """Refuse outputs that can't be written or that are inputs, before anything is computed."""
    from pathlib import Path

    from proxfield.cli.shared import check_distinct, check_target
    from proxfield.viz.tuning import REPORT_FORMATS

    check_target(output, "-o")
    check_target(f"{output}{STORE}", "-o")
    if report is not None:
        if Path(report).suffix.lower().lstrip(".") not in REPORT_FORMATS:
            kinds = ", .".join(REPORT_FORMATS)
            raise click.UsageError(f"--report {report!r}, expected a name ending in .{kinds}")
        check_target(report, "--report")
        from proxfield.viz.plots import find_figure_class

        find_figure_class()  # names a package that is missing before the work begins
    for path in inputs:
        check_distinct({"an input": str(path), "-o": output, "--report": report})
        check_distinct({"an input": str(path), "the file of trials": f"{output}{STORE}"})


def show(result: TuneResult, output: str, report: str | None, as_json: bool) -> None:
    """What was found, on stdout."""
    from dataclasses import asdict

    from proxfield.cli.main import report as say
    from proxfield.cli.shared import print_json, print_pairs, print_table

    if result.stopped:
        say(f"{result.stopped}; the best so far counts", kind="note: ")
    if as_json:
        data = {**asdict(result), "config": result.config.to_dict(), "best": row(result.best)}
        data["table"] = [row(scored) for scored in result.table]
        data["folds"] = [{**asdict(f), "chosen": row(f.chosen)} for f in result.folds]
        print_json({**data, "output": output, "report": report, "no_crf": result.baseline})
        return
    header = ("spatial", "bilateral", "updates", "filter", result.title)
    rows = [
        (*describe(s), str(s.max_iters), s.filter, f"{scored.score:.4f}")
        for scored in result.table[:SHOWN_SETTINGS]
        for s in [scored.settings]
    ]
    print_table(header, [*rows, ("no CRF", "", "", "", f"{result.baseline:.4f}")], left=(0, 1, 3))
    rest = [("result", result.verdict), ("settings", output)]
    print_pairs([*rest, *([("report", report)] if report is not None else [])])


def row(scored: Scored | None) -> Record | None:
    """Settings and their score as one row; None for no CRF."""
    return None if scored is None else {**scored.settings.to_dict(), "score": scored.score}


def describe(point: DenseSettings) -> tuple[str, str]:
    """Both terms: σ / weight, and σ / color / weight."""
    spatial = f"{point.spatial_sigma:g}/{point.spatial_weight:g}"
    if point.spatial_weight == 0:
        spatial = "none"
    bilateral = f"{point.bilateral_sigma:g}/{point.bilateral_color:g}/{point.bilateral_weight:g}"
    return spatial, "none" if point.bilateral_weight == 0 else bilateral


class TuneDisplay(Display):
    """Progress on stderr: a live line on a terminal, and one line for each improvement."""

    def __init__(self) -> None:
        super().__init__()
        self._best: float | None = None

    def __enter__(self) -> TuneDisplay:
        super().__enter__()
        return self

    def tell(self, progress: TuneProgress) -> None:
        """A callback for `proxfield.tune`."""
        line = progress_line(progress)
        self.phase(line)
        best = progress.best
        if best is not None and (self._best is None or best.score > self._best):
            self._best = best.score
            self.note(f"proxfield: {line}")


def progress_line(progress: TuneProgress) -> str:
    """How far a search is, in one line."""
    where = f"fold {progress.phase} of {progress.phases}" if progress.phase else "all images"
    parts = [f"{where}, setting {progress.tried} of at most {progress.trials}"]
    best = progress.best
    if best is not None:
        spatial, bilateral = describe(best.settings)
        parts.append(
            f"best so far {best.score:.4f} (no CRF {progress.baseline:.4f}): spatial {spatial}, "
            f"bilateral {bilateral}, {best.settings.max_iters} updates"
        )
    if progress.seconds_left is not None:
        parts.append(f"at most about {duration(progress.seconds_left)} left")
    return "; ".join(parts)


def duration(seconds: float) -> str:
    """A time for people.

    Example:
        >>> duration(42.3), duration(400), duration(9000)
        ('42 s', '7 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
