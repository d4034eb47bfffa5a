"""``proxfield refine``: segmentations of images, made to follow the image."""

from __future__ import annotations

import re
import time
from math import prod

import click

from proxfield.cli.commands.images import AXES
from proxfield.cli.main import report
from proxfield.cli.options import Options
from proxfield.cli.progress import Counter
from proxfield.cli.refine_files import (
    FilePath,
    affordable_jobs,
    check_packages,
    find_images,
    find_partners,
    is_file_name,
    is_finished,
    make_folder,
    make_pairs,
    some,
)
from proxfield.cli.refine_images import ImageWork, run_all
from proxfield.cli.refine_tiles import choose_tiled, for_tiles, run_tiled
from proxfield.cli.running import Ending, check_device, check_limits, in_options, prepare_rule
from proxfield.cli.shared import print_json, print_pairs
from proxfield.core.common.interrupts import raised_again
from proxfield.core.common.records import Record
from proxfield.core.jobs.processes import connected
from proxfield.core.jobs.running import share_of
from proxfield.errors import InputError
from proxfield.images.cooccurrence import CooccurrenceStatistics
from proxfield.images.inputs import CONFIDENCE
from proxfield.images.metrics import share_of as share_in_words
from proxfield.images.settings import DenseSettings, read_config
from proxfield.io.images import read_array

MAPS = ("n_labels", "unsure")
"""Options that go to `DenseCRF.from_labels` as they are, and to nothing else."""
KINDS = {"probs": "probabilities", "logits": "logits", "labels": "labels"}
"""What an option names."""
BUILD = (
    *("spatial_sigma", "spatial_weight", "bilateral_sigma", "bilateral_color"),
    *("bilateral_weight", "spacing", "filter"),
)
"""Options that go to `DenseCRF` as they are, if they are given."""
FEW = 0.001
"""Share of changed pixels below which the settings are worth a look."""
FEW_HINT = "; for more, try another --preset, {}or proxfield tune on images with known labels"


def refine(options: Options) -> int | None:
    """Run the command; returns its exit code."""
    output, overlay = options.output, options.overlay
    try:
        given, option, work = prepare(options)
    except InputError as error:
        raise InputError(in_options(error.message), path=error.path) from None
    found = find_images(options.images)
    partners = find_partners(found, given, option)
    strokes: dict[FilePath, FilePath] = {}
    if options.scribbles is not None:
        strokes = find_partners(found, options.scribbles, "--scribbles", optional=True)
    pairs = make_pairs(found, partners, output, overlay, work.kind, strokes)
    jobs = options.job_count
    large, own = choose_tiled(pairs, options)
    check_packages(own, jobs)
    in_tiles = [for_tiles(p, work, options, which) for p, which in large.items()]
    wanted = work.parameters
    always = options.force or is_file_name(output)
    todo = [p for p in own if always or not is_finished(p, wanted)]
    in_tiles = [
        t
        for t in in_tiles
        if options.force
        or (always and t.part is None)  # others may do other tiles
        or not is_finished(t.pair, t.work.parameters)
    ]
    start = time.perf_counter()
    records: list[Record] = []
    with Ending() as ending:  # from here on, an interrupted run says what is left of it
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
                    display.finished(record)
            # one by one: an interrupted run keeps those that are there
            records.extend(run_tiled(in_tiles, wanted_jobs, resume=not options.force))
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
    code = ending.exit_code("images", len(todo) + len(in_tiles) - len(records), len(failed))
    if failed:
        names = some([record["image"] for record in failed])
        report(f"{len(failed)} of {count} images failed: {names}")
    return code


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
    same = options.pick("budget", "threads", "init", "tol", "seed", "device")
    work = ImageWork(
        options.output_kind,
        KINDS[chosen],
        from_labels,
        build,
        {"rule": rule, **same, **options.given("max_iters")},
        "float16" if options.float16 else "float32",
        None if options.names is None else tuple(options.names.split(",")),
        options.changed("spacing"),
    )
    return given, f"--{chosen}", work


def choose_input(options: Options) -> tuple[str, str]:
    """The path to what is known about pixels and the option that names it, without the dashes."""
    there = options.given(*KINDS)
    if len(there) != 1:
        raise click.UsageError("expected --probs or --labels or --logits, one of them")
    ((name, path),) = there.items()
    if name != "labels":
        for only in options.given(*MAPS):
            raise click.UsageError(f"--{only.replace('_', '-')} goes with --labels only")
        if options.ignore != "auto":
            raise click.UsageError("--ignore goes with --labels only")
    if name != "probs" and options.normalize:
        raise click.UsageError("--normalize goes with --probs only")
    if name == "labels" and options.labels_axis != "auto":
        raise click.UsageError("--labels-axis goes with --probs and --logits only")
    return path, name


def input_settings(
    options: Options, name: str, preset: str | DenseSettings
) -> tuple[Record, Record | None]:
    """Options for `DenseCRF`, and those for `from_labels` (None: no label maps)."""
    given = DenseSettings.chosen({"preset": preset, "confidence": options.confidence}).confidence
    if name == "labels":
        from_labels = options.given(*MAPS)
        if given is not None:
            from_labels["confidence"] = given
        return {}, {**from_labels, "ignore": options.ignore}
    build: Record = {"labels_axis": AXES[options.labels_axis]}
    build["confidence"] = CONFIDENCE if given is None else given
    if name == "probs":
        build["normalize"] = options.normalize
    return build, None


def read_preset(options: Options) -> str | DenseSettings:
    """The name of a preset, or the settings of a file."""
    if options.config is None:
        return str(options.preset)
    if options.changed("preset"):
        raise click.UsageError("--preset and --config contradict each other, expected one of them")
    return read_config(options.config)


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
    share = share_in_words(changed, pixels) if pixels else ""
    if changed < FEW * pixels and not all(r.get("one_label", False) for r in refined):
        labels = any(record.get("confidence") is not None for record in refined)
        share += FEW_HINT.format("a lower --confidence, " if labels else "")
    s, ended = summary, {record["message"] for record in records if record.get("message")}
    rows = [
        ("refined", f"{s['refined']} of {s['images']} images in {s['seconds']:.3g} s"),
        ("changed", share),
        ("skipped", s["skipped"] and f"{s['skipped']}, done before (--force redoes them)"),
        ("in parts", s["partial"] and f"{s['partial']}, with tiles that other parts have to do"),
        ("failed", str(s["failed"] or "")),
        ("status", ended.pop() if len(ended) == 1 else ""),
    ]
    print_pairs([*rows, ("results", s["output"])])


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
