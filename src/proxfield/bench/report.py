"""The report: one HTML file that explains itself and loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from proxfield.bench.charts import Curves, convergence_charts, sensitivity_charts
from proxfield.bench.exact import Gaps
from proxfield.bench.inpainting_report import InpaintingResults, inpainting_section
from proxfield.bench.panels import make_panels, panels_section
from proxfield.bench.people_report import People, people_section
from proxfield.bench.published import ABOUT, FULL_NAMES
from proxfield.bench.report_tables import effort_table, gap_table, headlines, joined, main_table
from proxfield.bench.sensitivity import PARAMETER, Sensitivity
from proxfield.bench.store import Record
from proxfield.bench.table import Table, budget_name
from proxfield.common.extras import install_hint
from proxfield.io.files import atomic_write
from proxfield.viz.page import definitions, legend, paragraphs, plots, whole_page

TITLE = "Mean-field inference at a time budget"


@dataclass
class ReportData:
    """What a report shows; what is missing is left out.

    Attributes:
        metas: Where the results come from.
        command: The command that made the report.
        tol: When runs stop before their budget is used up.
        repeats: Repetitions of each timed run.
        table: Table 1.
        papers_own: Which suites are the paper's very instances.
        curves: How F falls on one instance of each suite.
        sensitivity: Figure 2.
        gaps: Gaps to the exact log Z.
        inpainting: Table 2.
        people: Table 3.
        figures: The folder and the names of the pictures saved beside the report.
        failures: What couldn't be run.
        overruns: A sentence about runs that took too long, if any did.
    """

    metas: list[Record]
    command: str
    tol: float
    repeats: int = 1
    table: Table | None = None
    papers_own: dict[str, bool] = field(default_factory=dict)
    curves: list[Curves] = field(default_factory=list)
    sensitivity: Sensitivity | None = None
    gaps: Gaps | None = None
    inpainting: InpaintingResults | None = None
    people: People | None = None
    figures: tuple[str, list[str]] | None = None
    failures: list[str] = field(default_factory=list)
    overruns: str | None = None


def write_report(path: str, data: ReportData) -> None:
    """Write the report; a failure leaves no partial file.

    Raises:
        InputError: If it can't be written.
        MissingDependencyError: If plotly isn't installed.
    """
    atomic_write(path, make_report(data))


def make_report(data: ReportData) -> str:
    """The report as HTML."""
    charts: list[Record] = []
    sections = [_what(data)]
    if data.table is not None:
        sections.append(_table_section(data, data.table))
    curves = [*data.curves, *(data.inpainting.curves if data.inpainting else [])]
    if curves:
        sections.append(_convergence_section(curves, charts))
    if data.sensitivity is not None:
        sections.append(_sensitivity_section(data.sensitivity, charts))
    if data.gaps is not None and data.gaps.cells:
        sections.append(_exact_section(data.gaps))
    if data.inpainting is not None:
        sections.append(inpainting_section(data.inpainting))
    if data.people is not None:
        sections.append(people_section(data.people, charts))
    panels = make_panels(data.curves, data.inpainting, data.people)
    if len(panels) > 1:
        sections.append(panels_section(panels, charts))
    sections += [_rules_section(data), _origin_section(data)]
    latest = data.metas[-1] if data.metas else {}
    versions, machine = latest.get("versions", {}), latest.get("machine", {})
    about = ", ".join(
        str(x)
        for x in (
            f"proxfield {versions.get('proxfield', '?')}",
            machine.get("processor"),
            latest.get("when"),
        )
        if x
    )
    noscript = (
        '<noscript><p class="warn">The charts need JavaScript; the tables don’t.</p></noscript>'
        if charts
        else ""
    )
    body = (
        f'<header><h1>{escape(TITLE)}</h1><p class="soft">{escape(about)}</p>{noscript}</header>\n'
        f"<main>\n{''.join(sections)}\n</main>\n"
        "<footer><p>The published numbers are those of Baqué, Bagautdinov, Fleuret and Fua, "
        "<cite>Principled Parallel Mean-Field Inference for Discrete Random Fields</cite> "
        "(CVPR 2016), Tables 1 to 3. This file is complete in itself and loads nothing.</p>"
        "</footer>"
    )
    return whole_page(f"proxfield: {TITLE.lower()}", body, charts)


def _what(data: ReportData) -> str:
    """What is measured and why."""
    out = "<section><h2>What is measured</h2>" + paragraphs(
        "A random field gives a probability to every labelling of many variables. Mean field "
        "replaces it by independent marginals, one per variable, and looks for those with the "
        "lowest free energy F. Lower is better: −F is a certified lower bound on log Z, the "
        "logarithm of the field’s normalizer, and one unit of F is a factor of e in the bound."
    )
    if data.table is None and not data.curves and data.sensitivity is None:
        if data.inpainting is not None:
            out += _budgets()
        return out + "</section>"
    out += _budgets()
    suites = list(data.table.suites) if data.table else []
    suites = suites or [c.suite for c in data.curves]
    suites = suites or (data.sensitivity.suites if data.sensitivity else [])
    if suites:
        names = "".join(
            f"<dt><strong>{escape(s)}</strong><br>{escape(FULL_NAMES.get(s, ''))}</dt>"
            f"<dd>{escape(ABOUT.get(s, ''))}</dd>"
            for s in suites
        )
        out += f"<h3>The models</h3><dl>{names}</dl>"
    return out + "</section>"


def _budgets() -> str:
    """How rules are compared."""
    return paragraphs(
        "The rules below all go down in F, in different ways and at different speeds, and they "
        "end in different local minima. So each rule starts from the same uniform marginals, gets "
        "a fixed time, and is judged by F of the state it is in when the time is up. Finding a "
        "certified step counts as time; reading the model, compiling and evaluating that last F "
        "don’t.",
    )


def _table_section(data: ReportData, table: Table) -> str:
    out = '<section><h2 id="table">F when the time is up</h2>'
    out += headlines(table, data.papers_own)
    foreign = [s for s in table.suites if not data.papers_own.get(s)]
    if foreign:
        which = joined(foreign)
        out += (
            f'<p class="warn">{escape(which)}: these are not the paper’s own instances but others '
            "of the same kind and size, so the published numbers show only the order of magnitude "
            "and the ranking to expect.</p>"
        )
    out += main_table(table, data.papers_own)
    middle = f", the median of {data.repeats} repetitions each" if data.repeats > 1 else ""
    out += paragraphs(
        f"Mean F over the instances of a set{middle}. The published numbers were measured on "
        "another machine, with other code. Where a rule has converged within its budget, only the "
        "minimum it found counts; where it hasn’t, faster code gets further. The paper doesn’t "
        "print the damping it used for fixed and adaptive; here it is the certified one."
    )
    out += (
        "<details><summary>Iterations made, and how many instances converged</summary>"
        f"{effort_table(table, data.tol)}</details>"
    )
    if data.overruns:
        out += f'<p class="soft">{escape(data.overruns)}.</p>'
    if data.failures:
        items = "".join(f"<li>{escape(f)}</li>" for f in data.failures)
        out += f'<div class="warn"><p>Not everything could be run:</p><ul>{items}</ul></div>'
    return out + "</section>"


def _convergence_section(curves: Sequence[Curves], charts: list[Record]) -> str:
    """F against time and iterations, for one instance of each suite."""
    rules = list(dict.fromkeys(rule for c in curves for rule in c.rows))
    out = '<section><h2 id="convergence">How F falls</h2>' + paragraphs(
        "One instance of each set. The height is F above the lowest F that any rule saw on that "
        "instance, on a logarithmic scale: each step down is ten times closer. A curve that "
        "touches the bottom is at that lowest F; one that jitters doesn’t settle. Point at a "
        "curve for its numbers, drag to zoom, click a name to hide it, double-click to see it "
        "alone."
    )
    out += legend("convergence", rules)
    for c in curves:
        ids = []
        for (name, chart), axis in zip(convergence_charts(c), ("time", "iterations"), strict=True):
            charts.append({"id": name, "group": "convergence", **chart})
            ids.append((name, f"F against {axis} on {c.instance}, one curve per rule"))
        out += f"<h3>{escape(c.suite)}: {escape(c.instance)}, {c.n_vars:,} variables</h3>"
        caption = f"Left: against time. Right: against iterations. Lowest F: {c.lowest:,.2f}."
        out += plots(ids, escape(caption.replace("-", "−")))
    out += (
        '<p class="soft">The curves come from runs of their own, which note F at every state and '
        "are a little slower for it; the table’s runs don’t.</p>"
    )
    return out + "</section>"


def _sensitivity_section(figure: Sensitivity, charts: list[Record]) -> str:
    out = '<section><h2 id="sensitivity">How much the damping matters</h2>' + paragraphs(
        "Three rules have a damping parameter η = 1/(1 + d): at η = 1 they take full steps, with "
        "smaller η they move more carefully. A flat curve means that the parameter needs no "
        "tuning. The height is mean F above the lowest mean F of the set; points at the bottom "
        "have reached it. The dotted lines are steps that need no tuning at all: the paper’s d = L "
        "(L is the norm of the Hessian of the energy) and the certified d, the mean over the "
        "instances of each. The certified d is the smallest for which no step can raise F by the "
        "bound in docs/concepts/methods.md."
    )
    out += legend("sensitivity", PARAMETER)
    for suite in figure.suites:
        ids = []
        for (name, chart), budget in zip(
            sensitivity_charts(figure, suite), figure.budgets, strict=True
        ):
            charts.append({"id": name, "group": "sensitivity", **chart})
            ids.append((name, f"F against the damping on {suite} at {budget_name(budget)}"))
        marks = [
            f"{label} = {by[suite]:.3g}"
            for label, by in (("L", figure.lipschitz), ("certified d", figure.certified))
            if suite in by
        ]
        caption = f"Mean {' and mean '.join(marks)}." if marks else ""
        out += f"<h3>{escape(suite)}</h3>" + plots(ids, escape(caption))
    return out + "</section>"


def _exact_section(gaps: Gaps) -> str:
    out = '<section><h2 id="exact">How tight the bound is</h2>' + paragraphs(
        "For small models the exact log Z is known. The table shows log Z minus the bound, in "
        "nats, as a mean over the models of a family: 0 would be exact, and below 0 would refute "
        "the bound. Underneath is the mean absolute error of the marginals. Each rule runs to "
        "convergence, for at most 1000 iterations."
    )
    return out + gap_table(gaps) + "</section>"


def _rules_section(data: ReportData) -> str:
    """What the rules do, in a line each."""
    from proxfield.rules.registry import RULES

    names = list(data.table.rules) if data.table else []
    parts = (data.inpainting, data.people)
    names += [rule for part in parts if part for table in part.tables for rule in table.rules]
    names = list(dict.fromkeys(names)) or list(PARAMETER)
    rows = [(name, str(RULES[name].summary)) for name in names if name in RULES]
    return f"<section><h2>The rules</h2>{definitions(rows)}</section>"


def _origin_section(data: ReportData) -> str:
    """How to run it again, and on what it ran."""
    out = '<section><h2 id="rerun">Run it again</h2>'
    own = [str(m["command"]) for m in data.metas if "command" in m]
    commands = list(dict.fromkeys([*own, data.command]))
    out += f"<pre><code>{install_hint('bench')}\n"
    out += "\n".join(escape(c) for c in commands) + "</code></pre>"
    out += paragraphs(
        "Finished runs are kept in the results file and aren’t repeated; name a new file with "
        "--output to start afresh. Timings are worth most on a machine that does nothing else."
    )
    if data.figures is not None:
        folder, names = data.figures
        files = ", ".join(names)
        out += f'<p class="soft">Pictures for print, in {escape(folder)}: {escape(files)}.</p>'
    for k, meta in enumerate(data.metas):
        title = "Machine and versions" if k == 0 else f"Machine and versions of session {k + 1}"
        out += f"<h3>{title}</h3>" + definitions(_origin(meta, data.tol))
    return out + "</section>"


def _origin(meta: Record, tol: float) -> list[tuple[str, str]]:
    machine, versions = meta.get("machine") or {}, meta.get("versions") or {}
    memory = machine.get("memory_gib")
    pairs = [
        ("date", meta.get("when")),
        ("processor", f"{machine.get('processor')}, {machine.get('cores')} cores"),
        ("threads used", meta.get("threads")),
        ("memory", None if memory is None else f"{memory} GiB"),
        ("system", machine.get("system")),
        ("versions", ", ".join(f"{k} {v}" for k, v in versions.items())),
        ("data", meta.get("data")),
        ("load at the start", meta.get("load_average")),
        ("tolerance", f"{tol:g}"),
    ]
    return [(what, str(value)) for what, value in pairs if value is not None]
