"""Tables of what peers reached, averaged over the models of a family; as text, and in files."""

from __future__ import annotations

import csv
import html
import io
import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from proxfield.bench.peers.base import Peer
from proxfield.bench.table import MISSING
from proxfield.core.common.records import Record
from proxfield.images.metrics import accuracy, mean_iou

COLUMNS = (
    "peer", "task", "suite", "name", "status", "seconds", "build_seconds", "converged",
    "mean_error", "max_error", "log_z_gap", "kind", "valid_bound", "energy_gap", "optimal",
    "proved", "mean_iou", "accuracy", "agreement", "why",
)  # fmt: skip
"""Of the CSV file."""
FOUR, THREE = "{:.4f}".format, "{:.3f}".format


class TextTable(NamedTuple):
    """A title, a header and rows of text."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def make_tables(records: Sequence[Record]) -> list[TextTable]:
    """Everything that was measured.

    Example:
        >>> run = {"peer": "p", "suite": "tree", "name": "a", "status": "ok", "seconds": 0.5}
        >>> run |= {"task": "inference", "mean_error": 0.25, "max_error": 0.5}
        >>> make_tables([run])[0].rows
        (('tree (1)', '0.2500'),)
    """
    out = []
    if some := [r for r in records if r["task"] == "inference"]:
        out += [
            _by_family("Mean absolute error of marginals", some, "mean_error", FOUR),
            _by_family("Largest error of a marginal (mean over models)", some, "max_error", THREE),
            _by_family("log Z of the tool − exact log Z (mean)", some, "log_z_gap", _signed),
            _by_family("CPU seconds per model (median, warm)", some, "seconds", _time),
            _outcomes("Inference: outcomes", some, ("converged", "log Z", "valid"), _bounds),
        ]
    if some := [r for r in records if r["task"] == "map"]:
        out += [
            _by_family("Energy above the optimum (mean)", some, "energy_gap", THREE),
            _by_family("CPU seconds per labelling (median, warm)", some, "seconds", _time),
            _outcomes("Labellings: outcomes", some, ("optimal", "proved"), _optima),
        ]
    if some := [r for r in records if r["task"] == "dense"]:
        out += [_images("Images: ten updates of the same dense CRF", some)]
    return out


def _by_family(
    title: str, records: Sequence[Record], key: str, show: Callable[[float], str]
) -> TextTable:
    """A row per family, a column per peer that has the number somewhere: mean, or median time."""
    peers = _unique([r for r in records if key in r], "peer")
    peers = [p for p in _unique(records, "peer") if p in peers]
    rows = []
    for family in _unique(records, "suite"):
        here = [r for r in records if r["suite"] == family]
        count = len({r["name"] for r in here})
        cells = []
        for peer in peers:
            runs = [r for r in here if r["peer"] == peer]
            values = [float(r[key]) for r in runs if key in r]
            text = MISSING
            if values:
                text = show(float(np.median(values) if key == "seconds" else np.mean(values)))
            failed = len(runs) - len(values)
            cells.append(f"{text} ({len(values)}/{len(runs)})" if values and failed else text)
        rows.append((f"{family} ({count})", *cells))
    return TextTable(title, ("family (models)", *peers), tuple(rows))


def _outcomes(
    title: str,
    records: Sequence[Record],
    more: tuple[str, ...],
    sums: Callable[[list[Record]], tuple[str, ...]],
) -> TextTable:
    """A row per peer: runs, answers, models that the tool can't do, failures, and more."""
    rows = []
    for peer in _unique(records, "peer"):
        runs = [r for r in records if r["peer"] == peer]
        ok, no = (sum(r["status"] == status for r in runs) for status in ("ok", "unsupported"))
        counts = (len(runs), ok, no, len(runs) - ok - no)
        rows.append((peer, *map(str, counts), *sums(runs)))
    return TextTable(
        title, ("peer", "runs", "answered", "unsupported", "failed", *more), tuple(rows)
    )


def _bounds(runs: list[Record]) -> tuple[str, ...]:
    """How many converged, kinds of log Z, and how many bounds are valid."""
    said = [[r[key] for r in runs if key in r] for key in ("converged", "valid_bound")]
    converged, valid = (f"{sum(some)}/{len(some)}" if some else MISSING for some in said)
    kinds = ", ".join(_unique([r for r in runs if r.get("kind")], "kind"))
    return converged, kinds or MISSING, valid


def _optima(runs: list[Record]) -> tuple[str, ...]:
    """How many labellings are optimal, and how many are proved to be."""
    return tuple(str(sum(bool(r.get(key)) for r in runs)) for key in ("optimal", "proved"))


def _images(title: str, records: Sequence[Record]) -> TextTable:
    """Mean IoU over each set of images of one size, from counts added up, as is usual."""
    groups: dict[tuple[str, int, str], list[Record]] = {}
    for r in records:
        if "pixels" in r:
            groups.setdefault((r["suite"], r["pixels"], r["peer"]), []).append(r)
    suites, peers = _unique(records, "suite"), _unique(records, "peer")
    rows = []
    order = sorted(groups, key=lambda key: (suites.index(key[0]), key[1], peers.index(key[2])))
    for suite, pixels, peer in order:
        runs = groups[suite, pixels, peer]
        counts = np.sum([r["counts"] for r in runs], axis=0)
        agree = [r["agreement"] for r in runs if "agreement" in r]
        agreement = FOUR(float(np.mean(agree))) if agree else MISSING
        seconds = _time(float(np.median([r["seconds"] for r in runs])))
        figures = (FOUR(mean_iou(counts)), FOUR(accuracy(counts)), agreement, seconds)
        rows.append((f"{suite}, {pixels:,} pixels ({len(runs)})", peer, *figures))
    header = ("images", "peer", "mean IoU", "accuracy", "agreement", "CPU s")
    return TextTable(title, header, tuple(rows))


def _unique(records: Sequence[Record], key: str) -> list[str]:
    return list(dict.fromkeys(str(r[key]) for r in records))


def _signed(value: float) -> str:
    return f"{value:+.3f}" if abs(value) >= 5e-4 else "0"


def _time(value: float) -> str:
    return f"{value:.4f}" if value < 0.1 else f"{value:.2f}"


# ---- files ----


def make_results(
    peers: Sequence[Peer], missing: Sequence[Peer], records: Sequence[Record], about: Record
) -> Record:
    """What a results file holds.

    Args:
        peers: The peers that ran.
        missing: Those that aren't installed.
        records: One per run.
        about: Machine and settings, see `about_run`.
    """
    return {
        "about": about,
        "peers": [
            {"name": p.name, "package": p.package, "version": p.version(), "method": p.method}
            for p in peers
        ],
        "missing": [{"name": p.name, "install": p.hint()} for p in missing],
        "runs": list(records),
    }


def as_json(results: Record) -> str:
    """Indented, with a line per run."""
    runs = results["runs"]
    head = {key: value for key, value in results.items() if key != "runs"}
    text = json.dumps(head, indent=1, ensure_ascii=False)[:-2]
    lines = ",\n".join(f"  {json.dumps(run, ensure_ascii=False)}" for run in runs)
    return f'{text},\n "runs": [\n{lines}\n ]\n}}\n'


def as_csv(results: Record) -> str:
    """One row per run."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(results["runs"])
    return out.getvalue()


def as_markdown(results: Record) -> str:
    """All tables as Markdown."""
    parts = ["# Peers", *(f"- {name}: {value}" for name, value in _about(results))]
    for title, header, rows in _all_tables(results):
        lines = [header, tuple("---" for _ in header), *rows]
        parts += ["", f"## {title}", "", *(f"| {' | '.join(row)} |" for row in lines)]
    return "\n".join(parts) + "\n"


def as_html(results: Record) -> str:
    """All tables as one page that needs nothing else."""
    from proxfield.viz.page import definitions, scrolling, whole_page

    body = ["<header><h1>Peers</h1></header><main>", definitions(_about(results))]
    for title, header, rows in _all_tables(results):
        first, *others = header
        head = f'<th class="corner">{html.escape(first)}</th>{_cells("th", others)}'
        lines = "".join(
            f"<tr><th>{html.escape(first)}</th>{_cells('td', others)}</tr>"
            for first, *others in rows
        )
        whole = f"<table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>"
        body += [f"<h2>{html.escape(title)}</h2>", scrolling(whole, title)]
    body.append("</main>")
    return whole_page("Peers", "\n".join(body))


def _cells(tag: str, texts: Sequence[str]) -> str:
    return "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts)


def _about(results: Record) -> list[tuple[str, str]]:
    about = results["about"]
    machine, versions = about["machine"], about["versions"]
    return [
        ("command", str(about["command"])),
        ("when", str(about["when"])),
        ("machine", f"{machine['processor']}, {machine['cores']} cores, one thread per run"),
        ("load average at the start", str(about["load_average"])),
        ("versions", ", ".join(f"{name} {number}" for name, number in versions.items())),
        ("budget", f"{about['budget']:g} s; at most {about['timeout']:g} CPU s per run"),
    ]


def _all_tables(results: Record) -> list[TextTable]:
    """The tools, and everything that was measured."""
    rows = [(p["name"], p["method"], str(p["version"])) for p in results["peers"]]
    rows += [(p["name"], "not installed", p["install"]) for p in results["missing"]]
    tools = TextTable("Tools", ("name", "method", "version"), tuple(rows))
    return [tools, *make_tables(results["runs"])]
