"""``proxfield tune``: settings of a dense CRF, chosen on images with known labels."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import asdict

from proxfield.cli import signals
from proxfield.cli.commands.images import AXES
from proxfield.cli.main import report
from proxfield.cli.options import Options
from proxfield.cli.progress import Display
from proxfield.cli.refine_files import Pair, find_images, find_partners
from proxfield.cli.refine_inputs import in_options
from proxfield.cli.refine_many import affordable_jobs, check_packages
from proxfield.cli.shared import (
    check_distinct,
    check_target,
    print_json,
    print_pairs,
    print_table,
)
from proxfield.core.common.interrupts import raised_again
from proxfield.core.common.records import Record
from proxfield.core.jobs import ClusterError, LostWorkerError
from proxfield.core.jobs.cluster import connected
from proxfield.images.search import Scored, TuneProgress, TuneResult
from proxfield.images.settings import DenseSettings
from proxfield.images.tune import tune
from proxfield.io.remote import AnyPath
from proxfield.viz.plots import find_figure_class
from proxfield.viz.tuning import write_report

SHOWN_SETTINGS = 5
"""Settings of the table that the command prints."""
STORE = ".trials.jsonl"
SAME = (
    *("metric", "ignore", "tolerance", "trials", "folds", "filters", "seed", "budget"),
    *("color_range", "threads", "normalize", "confidence"),
)
"""Options that `proxfield.tune` takes as they are."""


def choose(options: Options) -> int | None:
    """Run the command; returns its exit code."""
    found = find_images(options.images)
    probs = find_partners(found, options.probs, "--probs")
    truth = find_partners(found, options.truth, "--truth")
    check_outputs(options, [*found, *probs, *truth])
    jobs = options.job_count
    pairs = [Pair(image, unary, ()) for image, unary in zip(found, probs, strict=True)]
    check_packages([*pairs, *(Pair(t, t, ()) for t in truth)], jobs)
    if jobs is not None:
        jobs, why = affordable_jobs(jobs, pairs, None)
        if why:
            report(why, kind="note: ")
    signals.begin_work()
    store = f"{options.output}{STORE}"
    try:
        with (
            warnings.catch_warnings(),
            raised_again(),
            connected(options.cluster),
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
                **options.pick(*SAME),
                jobs=jobs,
                store=store,
                fresh=options.force,
                callback=display.tell,
                labels_axis=AXES[options.labels_axis],
                channel_axis=AXES[options.channel_axis],
            )
    except KeyboardInterrupt:
        report(f"interrupted; trials are kept in {store}, run the same again to go on", kind="")
        return signals.INTERRUPTED
    except (LostWorkerError, ClusterError) as error:
        report(f"{error} (trials are kept in {store}, run the same again to go on)")
        return 1
    result.save(options.output)
    if options.report is not None:
        write_report(result, options.report)
    show(result, options)
    return None


def check_outputs(options: Options, inputs: Sequence[AnyPath]) -> None:
    """Refuse outputs that can't be written or that are inputs, before anything is computed."""
    output, page = options.output, options.report
    check_target(f"{output}{STORE}", "-o")
    if page is not None:
        find_figure_class()  # names a package that is missing before the work begins
    written = {"-o": output, "--report": page, "the file of trials": f"{output}{STORE}"}
    check_distinct([*(("an input", str(path)) for path in inputs), *written.items()])


def show(result: TuneResult, options: Options) -> None:
    """What was found, on stdout."""
    output, page = options.output, options.report
    if result.stopped:
        report(f"{result.stopped}; the best so far counts", kind="note: ")
    if options.as_json:
        data = {**asdict(result), "config": result.config.to_dict(), "best": row(result.best)}
        data["table"] = [row(scored) for scored in result.table]
        data["folds"] = [{**asdict(f), "chosen": row(f.chosen)} for f in result.folds]
        print_json({**data, "output": output, "report": page, "no_crf": result.baseline})
        return
    header = ("spatial", "bilateral", "updates", "filter", result.title)
    rows = [
        (*describe(s), str(s.max_iters), s.filter, f"{scored.score:.4f}")
        for scored in result.table[:SHOWN_SETTINGS]
        for s in [scored.settings]
    ]
    print_table(header, [*rows, ("no CRF", "", "", "", f"{result.baseline:.4f}")], left=(0, 1, 3))
    rest = [("result", result.verdict), ("settings", output)]
    print_pairs([*rest, *([("report", page)] if page is not None else [])])


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
