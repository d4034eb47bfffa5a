"""What ``proxfield refine`` says at its end."""

from __future__ import annotations

import re
from math import prod

import click

from proxfield.core.common.records import Record

FAILED = 1
FEW = 0.001
"""Share of changed pixels below which the settings are worth a look."""
FEW_HINT = "; for more, try another --preset, {}or proxfield tune on images with known labels"


def report_all(summary: Record, records: list[Record], as_json: bool) -> None:
    """What was done, on stdout."""
    from proxfield.cli.main import report
    from proxfield.cli.shared import print_json, print_pairs
    from proxfield.images.metrics import share_of

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
        rows.append(("changed", share_of(changed, pixels) + few_hint(refined, changed, pixels)))
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


def finish(ctx: click.Context, summary: Record, failed: list[Record], ending: str) -> None:
    """Leave with the right code, and the list of what failed."""
    from proxfield.cli.main import report
    from proxfield.cli.refine_files import some
    from proxfield.cli.signals import INTERRUPTED

    if ending:
        left = summary["images"] - summary["refined"] - summary["skipped"] - summary["failed"]
        left -= summary["partial"]
        report(f"{ending}; {left} images are left, run the same again to go on", kind="")
    if failed:
        names = some([record["image"] for record in failed])
        report(f"{len(failed)} of {summary['images']} images failed: {names}")
    if ending == "interrupted":
        ctx.exit(INTERRUPTED)
    if failed or ending:
        ctx.exit(FAILED)
