"""``proxfield refine``: segmentations of images, made to follow the image."""

from __future__ import annotations

import re
import time
from math import prod

import click

from proxfield.cli import signals
from proxfield.cli.commands.images import AXES
from proxfield.cli.main import report
from proxfield.cli.options import Options
from proxfield.cli.progress import Counter
from proxfield.cli.refine_files import (
    find_images,
    find_partners,
    is_file_name,
    is_finished,
    make_folder,
    make_pairs,
    some,
)
from proxfield.cli.refine_inputs import (
    KINDS,
    choose_input,
    in_options,
    input_settings,
    read_preset,
)
from proxfield.cli.refine_many import affordable_jobs, check_packages, run_all
from proxfield.cli.refine_one import ImageWork
from proxfield.cli.refine_tiles import check_kinds, for_tiles, run_tiled, tiled_pairs, too_large
from proxfield.cli.running import check_device, check_limits, prepare_rule
from proxfield.cli.shared import print_json, print_pairs
from proxfield.core.common.interrupts import raised_again
from proxfield.core.common.records import Record
from proxfield.core.jobs import ClusterError, LostWorkerError
from proxfield.core.jobs.cluster import connected
from proxfield.core.jobs.running import share_of
from proxfield.errors import InputError
from proxfield.images.cooccurrence import CooccurrenceStatistics
from proxfield.images.metrics import share_of as share_in_words
from proxfield.io.images import read_array
from proxfield.io.remote import AnyPath

BUILD = (
    *("spatial_sigma", "spatial_weight", "bilateral_sigma", "bilateral_color"),
    *("bilateral_weight", "spacing", "filter"),
)
"""Options that go to `DenseCRF` as they are, if they are given."""
FAILED = 1
FEW = 0.001
"""Share of changed pixels below which the settings are worth a look."""
FEW_HINT = "; for more, try another --preset, {}or proxfield tune on images with known labels"


def refine(options: Options) -> int | None:
    """Run the command; returns its exit code."""
    output, overlay, part = options.output, options.overlay, options.part
    try:
        given, option, work = prepare(options)
    except InputError as error:
        raise InputError(in_options(error.message), path=error.path) from None
    found = find_images(options.images)
    partners = find_partners(found, given, option)
    strokes: list[AnyPath | None] = []
    if options.scribbles is not None:
        strokes = find_partners(found, options.scribbles, "--scribbles", optional=True)
    pairs = make_pairs(found, partners, output, overlay, work.kind, strokes)
    jobs = options.job_count
    shared = dict.fromkeys(tiled_pairs(pairs, options), part)
    own = [p for p in (pairs if part is None else part.of(pairs)) if p not in shared]
    large = {**shared, **dict.fromkeys(too_large(own, options))}
    check_packages([p for p in own if p not in large], jobs)
    check_kinds(large)
    wanted = work.parameters
    always = options.force or is_file_name(output)
    todo = [p for p in own if p not in large and (always or not is_finished(p, wanted))]
    in_tiles = [for_tiles(p, work, options, which) for p, which in large.items()]
    in_tiles = [t for t in in_tiles if t.is_due(always, options.force)]
    start = time.perf_counter()
    records: list[Record] = []
    ending = ""
    signals.begin_work()
    try:  # from here on, an interrupted run says what is left of it
        for path, name in ((output, "-o"), (overlay, "--overlay")):
            if path is not None and (todo or in_tiles) and not is_file_name(path):
                make_folder(path, name)
        wanted_jobs, why = jobs, ""
        if jobs is not None and todo:
            jobs, why = affordable_jobs(jobs, todo, options.n_labels)
        if jobs != 1 and work.run["threads"] is None:
            work.run["threads"] = 1 if jobs is None else share_of(jobs)
        with raised_again(), connected(options.cluster):
            with Counter(len(todo), "images") as display:
                if why:
                    display.note(f"proxfield: note: {why}")
                for record in run_all(todo, work, jobs, display) if todo else ():
                    records.append(record)
                    display.count()
                    if record["error"] is not None:
                        display.note(f"proxfield: error: {record['error']}")
            # one by one: an interrupted run keeps those that are there
            records.extend(run_tiled(in_tiles, wanted_jobs, resume=not options.force))
    except KeyboardInterrupt:
        ending = "interrupted"
    except (LostWorkerError, ClusterError) as error:
        ending = str(error)
    except Exception:
        if not signals.interrupted():
            raise
        ending = "interrupted"  # what a library made of Ctrl-C
    failed = [r for r in records if r["error"] is not None]
    partial = sum(r["error"] is None and r["output"] is None for r in records)
    count = len({*own, *large})
    summary = {
        "images": count,
        "refined": len(records) - len(failed) - partial,
        "skipped": count - len(todo) - len(in_tiles),
        "failed": len(failed),
        "partial": partial,
        "output": output,
        "jobs": jobs,
        "cluster": options.cluster,
        "seconds": time.perf_counter() - start,
    }
    report_all(summary, records, options.as_json)
    return finish(summary, failed, ending)


def prepare(options: Options) -> tuple[str, str, ImageWork]:
    """What is known about pixels, the option that says so, and the work; all checked."""
    given, chosen = choose_input(options)
    rule = prepare_rule(options.rule, options.settings, dense=True)
    check_limits(options)
    check_device(options)
    build: Record = {k: v for k, v in options.given(*BUILD).items() if v != "auto"}
    build["preset"] = read_preset(options)
    build["channel_axis"] = AXES[options.channel_axis]
    for name in ("spatial_weight", "bilateral_weight"):
        if not abs(build.get(name, 0)) < float("inf"):
            raise click.UsageError(f"--{name.replace('_', '-')} {build[name]}, expected a number")
    if options.compatibility != "potts":
        what = "a vector or a matrix of compatibilities"
        build["compatibility"] = read_array(options.compatibility, what)
    if options.cooccurrence is not None:
        build["cooccurrence"] = CooccurrenceStatistics.load(options.cooccurrence)
    more, from_labels = input_settings(options, chosen, build["preset"])
    build.update(more)
    run = {
        "rule": rule,
        **options.pick("budget", "threads", "init", "tol", "seed", "device"),
        **options.given("max_iters"),
    }
    work = ImageWork(
        options.output_kind,
        KINDS[chosen],
        from_labels,
        build,
        run,
        "float16" if options.float16 else "float32",
        None if options.names is None else tuple(options.names.split(",")),
        options.changed("spacing"),
    )
    return given, f"--{chosen}", work


# ---- what is said at the end ----


def report_all(summary: Record, records: list[Record], as_json: bool) -> None:
    """What was done, on stdout."""
    for first, count in alike([note for record in records for note in record["notes"]]):
        more = f" (and {count - 1} more notes like this)" if count > 1 else ""
        report(f"{first}{more}", kind="note: ")
    refined = [record for record in records if "changed" in record]
    pixels = sum(record.get("refined_pixels", prod(record["pixels"])) for record in refined)
    changed = sum(record["changed"] for record in refined)
    if as_json:
        print_json({**summary, "pixels": pixels, "changed": changed, "files": records})
        return
    seconds = f"{summary['seconds']:.3g} s"
    rows = [("refined", f"{summary['refined']} of {summary['images']} images in {seconds}")]
    if pixels:
        share = share_in_words(changed, pixels)
        rows.append(("changed", share + few_hint(refined, changed, pixels)))
    if summary["skipped"]:
        rows.append(("skipped", f"{summary['skipped']}, done before (--force redoes them)"))
    if summary["partial"]:
        rows.append(("in parts", f"{summary['partial']}, with tiles that other parts have to do"))
    if summary["failed"]:
        rows.append(("failed", str(summary["failed"])))
    ended = {record["message"] for record in records if record.get("message")}
    if len(ended) == 1:
        rows.append(("status", ended.pop()))
    print_pairs([*rows, ("results", summary["output"])])


def few_hint(refined: list[Record], changed: int, pixels: int) -> str:
    """What to try where hardly any pixel changed; nothing where there is one label only."""
    if changed >= FEW * pixels or all(record.get("one_label", False) for record in refined):
        return ""
    labels = any(record.get("confidence") is not None for record in refined)
    return FEW_HINT.format("a lower --confidence, " if labels else "")


def alike(notes: list[str]) -> list[tuple[str, int]]:
    """The first of all notes that say the same of different files, and how many there are.

    Example:
        >>> alike(["a.png: 3 of 4", "b.png: 1 of 2", "b.png: turned"])
        [('a.png: 3 of 4', 2), ('b.png: turned', 1)]
    """
    found: dict[str, tuple[str, int]] = {}
    for note in notes:
        key = re.sub(r"[\d.]+", "", note.partition(": ")[2])
        first, count = found.get(key, (note, 0))
        found[key] = first, count + 1
    return list(found.values())


def finish(summary: Record, failed: list[Record], ending: str) -> int | None:
    """The exit code, after the list of what failed."""
    if ending:
        left = summary["images"] - summary["refined"] - summary["skipped"] - summary["failed"]
        left -= summary["partial"]
        report(f"{ending}; {left} images are left, run the same again to go on", kind="")
    if failed:
        names = some([record["image"] for record in failed])
        report(f"{len(failed)} of {summary['images']} images failed: {names}")
    if ending == "interrupted":
        return signals.INTERRUPTED
    return FAILED if failed or ending else None
