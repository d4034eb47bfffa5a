"""``proxfield tune``, ``studio`` and ``cooccurrence``: other work on images."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import asdict
from math import inf

import click

from proxfield.cli import signals
from proxfield.cli.commands.images import AXES
from proxfield.cli.main import report
from proxfield.cli.options import Options
from proxfield.cli.progress import Display, human_seconds
from proxfield.cli.refine import KINDS, choose_input, input_settings, read_preset
from proxfield.cli.refine_files import (
    Pair,
    affordable_jobs,
    check_packages,
    find_images,
    find_partners,
)
from proxfield.cli.running import in_options, prepare_rule
from proxfield.cli.shared import (
    check_distinct,
    check_target,
    print_json,
    print_pairs,
    print_table,
    show_summary,
)
from proxfield.core.common.arrays import Pixels
from proxfield.core.common.interrupts import raised_again
from proxfield.core.common.records import Record
from proxfield.core.jobs.processes import connected
from proxfield.core.jobs.running import ClusterError, LostWorkerError
from proxfield.errors import InputError
from proxfield.images import tune as search
from proxfield.images.cooccurrence import CooccurrenceStatistics, find_label_maps
from proxfield.images.search import Scored, TuneProgress, TuneResult
from proxfield.images.settings import DenseSettings
from proxfield.io.files import atomic_write, display_name
from proxfield.io.images import read_labels
from proxfield.studio.inputs import StudioInputs, demo_inputs, read_files
from proxfield.studio.server import LOCAL_HOSTS, serve
from proxfield.studio.server import check_packages as check_server
from proxfield.studio.session import StudioSession
from proxfield.viz.charts import find_figure_class
from proxfield.viz.tuning import write_report

SHOWN_SETTINGS = 5
"""Settings of the table that the command prints."""
STORE = ".trials.jsonl"
SAME = (
    *("metric", "ignore", "tolerance", "trials", "folds", "filters", "seed", "budget"),
    *("color_range", "threads", "normalize", "confidence"),
)
"""Options that `proxfield.tune` takes as they are."""


def tune(options: Options) -> int | None:
    """Run ``proxfield tune``; returns its exit code."""
    found = find_images(options.images)
    probs, truth = (
        list(map(find_partners(found, given, option).__getitem__, found))
        for given, option in ((options.probs, "--probs"), (options.truth, "--truth"))
    )
    output, page = options.output, options.report
    check_target(f"{output}{STORE}", "-o")
    if page is not None:
        find_figure_class()  # names a package that is missing before the work begins
    written = {"-o": output, "--report": page, "the file of trials": f"{output}{STORE}"}
    read = [("an input", str(path)) for path in (*found, *probs, *truth)]
    check_distinct([*read, *written.items()])
    jobs = options.job_count
    pairs = [Pair(image, unary, ()) for image, unary in zip(found, probs, strict=True)]
    check_packages([*pairs, *(Pair(t, t, ()) for t in truth)], jobs)
    if jobs is not None:
        jobs, why = affordable_jobs(jobs, pairs, None)
        if why:
            report(why, kind="note: ")
    signals.begin_work()
    store, best = f"{options.output}{STORE}", -inf

    def tell(progress: TuneProgress) -> None:
        """Show how it goes; a line for each improvement stays."""
        nonlocal best
        where = f"fold {progress.phase} of {progress.phases}" if progress.phase else "all images"
        line = f"{where}, setting {progress.tried} of at most {progress.trials}"
        if progress.best is not None:
            spatial, bilateral = describe(settings := progress.best.settings)
            line += (
                f"; best so far {progress.best.score:.4f} (no CRF {progress.baseline:.4f}): "
                f"spatial {spatial}, bilateral {bilateral}, {settings.max_iters} updates"
            )
        if progress.seconds_left is not None:
            line += f"; at most about {human_seconds(progress.seconds_left)} left"
        display.phase(line)
        if progress.best is not None and progress.best.score > best:
            best = progress.best.score
            display.note(f"proxfield: {line}")

    try:
        with (
            warnings.catch_warnings(),
            raised_again(),
            connected(options.cluster),
            Display() as display,
            display.announcing_compilation(),
        ):
            warnings.showwarning = lambda text, *_: display.note(
                f"proxfield: note: {in_options(str(text))}"
            )
            result = search.tune(
                found,
                probs,
                truth,
                **options.pick(*SAME),
                jobs=jobs,
                store=store,
                fresh=options.force,
                callback=tell,
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
    show_tuned(result, options)
    return None


def show_tuned(result: TuneResult, options: Options) -> None:
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
    print_pairs([("result", result.verdict), ("settings", output), ("report", page or "")])


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


# ---- studio ----


def open_studio(options: Options) -> None:
    """Run ``proxfield studio``."""
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
    check_server()
    preset = read_preset(options)
    prepare_rule(rule, dense=True)
    try:
        inputs = demo_inputs() if image is None else read_inputs(options, preset)
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
            max_bytes=int(options.max_upload * 2**20),
            browser=not options.no_browser,
            announce=lambda address: click.echo(f"proxfield studio: {address} (Ctrl-C ends it)"),
        )
    except KeyboardInterrupt:  # how a studio ends
        click.echo("proxfield: studio closed", err=True)


def read_inputs(options: Options, preset: str | DenseSettings) -> StudioInputs:
    """What the command was given."""
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


# ---- counts of classes ----


def count(options: Options) -> None:
    """Run ``proxfield cooccurrence``; an error names the file that it is about."""
    output = options.output
    files = find_label_maps(options.label_maps)
    check_distinct([*(("LABELMAP", str(file)) for file in files), ("-o", output)])
    reading: list[str] = []

    def maps(display: Display) -> Iterator[Pixels]:
        for number, file in enumerate(files, 1):
            reading[:] = [display_name(file)]
            display.phase(f"counting {number} of {len(files)} label maps")
            yield read_labels(file)[0]
        reading.clear()

    try:
        with Display() as display:
            found = CooccurrenceStatistics.from_label_maps(
                maps(display), options.n_labels, **options.pick("ignore", "min_pixels")
            )
    except InputError as error:
        if error.path is not None or not reading:
            raise
        raise InputError(error.message, path=reading[0]) from None
    atomic_write(output, found.to_json())
    if output != "-":
        never = [c for c in range(found.n_labels) if found.presence[c] == 0]
        counted = {"images": found.images, "n_labels": found.n_labels, "never_present": never}
        show_summary({**counted, "output": output}, options.as_json)
