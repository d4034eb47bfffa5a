"""Results of peers as JSON, CSV, Markdown and HTML."""

from __future__ import annotations

import csv
import html
import io
import json
from collections.abc import Sequence

from proxfield.bench.machine import metadata
from proxfield.bench.peers.base import Peer
from proxfield.bench.peers.tables import TextTable, make_tables
from proxfield.core.common.records import Record

COLUMNS = (
    "peer", "task", "suite", "name", "status", "seconds", "build_seconds", "converged",
    "mean_error", "max_error", "log_z_gap", "kind", "valid_bound", "energy_gap", "optimal",
    "proved", "mean_iou", "accuracy", "agreement", "why",
)  # fmt: skip


def about_run(settings: Record) -> Record:
    """Machine, versions, command and settings; to be asked for before the runs."""
    return {**metadata(settings["data"], 1), **settings}


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
    """All tables."""
    parts = ["# Peers", *(f"- {name}: {value}" for name, value in _about(results))]
    for table in [_peers(results), *make_tables(results["runs"])]:
        parts += ["", f"## {table.title}", "", markdown_table(table)]
    return "\n".join(parts) + "\n"


def markdown_table(table: TextTable) -> str:
    """One table as Markdown."""
    rows = [table.header, tuple("---" for _ in table.header), *table.rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def as_html(results: Record) -> str:
    """The same as one page that needs nothing else."""
    from proxfield.viz.page import definitions, scrolling, whole_page

    body = ["<header><h1>Peers</h1></header><main>", definitions(_about(results))]
    for table in [_peers(results), *make_tables(results["runs"])]:
        first, *others = table.header
        head = f'<th class="corner">{html.escape(first)}</th>{_cells("th", others)}'
        rows = "".join(
            f"<tr><th>{html.escape(first)}</th>{_cells('td', others)}</tr>"
            for first, *others in table.rows
        )
        whole = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        body += [f"<h2>{html.escape(table.title)}</h2>", scrolling(whole, table.title)]
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


def _peers(results: Record) -> TextTable:
    rows = [(p["name"], p["method"], str(p["version"])) for p in results["peers"]]
    rows += [(p["name"], "not installed", p["install"]) for p in results["missing"]]
    return TextTable("Tools", ("name", "method", "version"), tuple(rows))
