"""The report's page: its style sheet, its script, and small pieces of HTML.

The page is one file that loads nothing: fonts are the reader's own, plotly.js is inlined.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib import import_module

from proxfield.common.extras import install_hint
from proxfield.common.records import Record
from proxfield.errors import MissingDependencyError
from proxfield.viz.style import rule_style

REMEDY = install_hint("bench")

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --line: #d9dee4;
  --paper: #ffffff; --panel: #f6f8fa; --mark: #e3f1e6; --mark-ink: #14532d; --link: #0b5cad; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --soft: #a3acb7; --line: #363c44;
  --paper: #15181c; --panel: #1d2126; --mark: #17382a; --mark-ink: #b6f0c8; --link: #7db8f5; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.55;
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main, header, footer { max-width: 74rem; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 2.5rem; }
h1 { font-size: clamp(1.5rem, 4vw, 2.1rem); line-height: 1.2; margin: 0 0 .4rem;
  letter-spacing: -.015em; text-wrap: balance; }
h2 { font-size: 1.3rem; margin: 2.8rem 0 .6rem; letter-spacing: -.01em; }
h3 { font-size: 1.05rem; margin: 1.8rem 0 .3rem; }
p, li, dd { max-width: 46rem; }
p { margin: .5rem 0; }
.soft, figcaption, caption, footer { color: var(--soft); font-size: .9rem; }
.warn { border-left: 3px solid #c77700; padding: .1rem 0 .1rem .9rem; margin: 1rem 0; }
a { color: var(--link); }
code, pre, .num { font-variant-numeric: tabular-nums; }
code, pre { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  font-size: .86em; }
pre { background: var(--panel); border: 1px solid var(--line); border-radius: 8px;
  padding: .8rem 1rem; white-space: pre-wrap; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; margin: 1rem 0; }
.scroll:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; font-size: .9rem;
  font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: .7rem .9rem; caption-side: top; }
th, td { padding: .42rem .55rem; text-align: right; white-space: nowrap; }
td:last-child, th:last-child { padding-right: .9rem; }
tbody th, .corner, tfoot th { padding-left: .9rem; }
thead th { background: var(--panel); font-weight: 600; border-bottom: 1px solid var(--line); }
tbody th, .corner, tfoot th { text-align: left; position: sticky; left: 0;
  background: var(--paper); z-index: 1; font-weight: 600; }
thead .corner { background: var(--panel); text-align: left; }
thead th[scope="colgroup"] { text-align: center; }
tbody tr + tr th, tbody tr + tr td { border-top: 1px solid var(--line); }
tfoot th, tfoot td { border-top: 2px solid var(--line); font-size: .86rem; font-weight: 400; }
.first { border-left: 1px solid var(--line); }
td small, th small { display: block; color: var(--soft); font-size: .8em; font-weight: 400; }
td.best { background: var(--mark); color: var(--mark-ink); font-weight: 700; }
td.best small { color: inherit; opacity: .85; }
.swatch { display: inline-block; width: 1.5rem; height: 0; margin-right: .5rem;
  vertical-align: middle; border-top: 3px solid var(--swatch); }
@media (prefers-color-scheme: dark) { .swatch { border-top-color: var(--swatch-dark); } }
.swatch.dash, .swatch.dashdot { border-top-style: dashed; }
.swatch.dot { border-top-style: dotted; }
.legend { display: flex; flex-wrap: wrap; gap: .4rem; margin: .8rem 0 .2rem; padding: 0; }
.legend button { font: inherit; font-size: .86rem; color: inherit; background: none;
  border: 1px solid var(--line); border-radius: 99px; padding: .25rem .75rem; cursor: pointer; }
.legend button[aria-pressed="false"] { opacity: .45; text-decoration: line-through; }
.legend button:hover, .legend button:focus-visible { border-color: var(--link); }
figure { margin: .5rem 0 1.5rem; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr));
  gap: .5rem 1.2rem; }
.plot { min-height: 360px; width: 100%; min-width: 0; }
details { margin: .8rem 0; }
summary { cursor: pointer; color: var(--link); }
dl { display: grid; grid-template-columns: minmax(7rem, max-content) 1fr; gap: .3rem 1.2rem;
  margin: .8rem 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%);
  white-space: nowrap; }
footer { padding-top: 2rem; padding-bottom: 3rem; }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; }
  th, td { padding: .4rem .55rem; } }
@media print { .legend { display: none; } .scroll { overflow: visible; } }
"""

# Runs before anything else, so that it hears of every error; tests read what it writes.
ERRORS = """
window.addEventListener("error", e => note(e.message));
window.addEventListener("unhandledrejection", e => note(String(e.reason)));
const sayError = console.error;
console.error = (...all) => { note(all.join(" ")); sayError.apply(console, all); };
function note(text) {
  const d = document.documentElement.dataset;
  d.errors = (d.errors ? d.errors + " | " : "") + text;
}
"""

SCRIPT = """
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const charts = JSON.parse(document.getElementById("charts").textContent);
// plotly.js would offer to upload the data of a chart: not from a page that needs no network
const config = { responsive: true, displaylogo: false, showSendToCloud: false,
  plotlyServerURL: "",
  modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
function themed(chart) {
  const css = getComputedStyle(document.documentElement);
  const ink = css.getPropertyValue("--ink").trim(), line = css.getPropertyValue("--line").trim();
  const layout = structuredClone(chart.layout);
  layout.font = { family: getComputedStyle(document.body).fontFamily, size: 13, color: ink };
  layout.hoverlabel = { align: "left" };
  layout.modebar = { bgcolor: "rgba(0,0,0,0)" };
  for (const axis of [layout.xaxis, layout.yaxis])
    Object.assign(axis, { gridcolor: line, linecolor: line, color: ink, automargin: true });
  for (const shape of layout.shapes || []) shape.line.color = ink;
  const data = chart.data.map(t => ({ ...t,
    line: { ...t.line, color: dark.matches ? t.meta.dark : t.meta.light },
    visible: hidden(chart, t.meta.rule) ? false : true }));
  return [data, layout];
}
const off = {};
const hidden = (chart, rule) => (off[chart.group] || new Set()).has(rule);
function draw(chart) {
  const [data, layout] = themed(chart);
  return Plotly.react(document.getElementById(chart.id), data, layout, config);
}
function drawAll(group) {
  return Promise.all(charts.filter(c => !group || c.group === group).map(draw));
}
for (const legend of document.querySelectorAll(".legend")) {
  const group = legend.dataset.group, buttons = [...legend.querySelectorAll("button")];
  const set = off[group] = new Set();
  const show = () => { drawAll(group);
    for (const b of buttons) b.setAttribute("aria-pressed", String(!set.has(b.dataset.rule))); };
  for (const b of buttons) {
    b.addEventListener("click", () => {
      set.has(b.dataset.rule) ? set.delete(b.dataset.rule) : set.add(b.dataset.rule);
      show();
    });
    b.addEventListener("dblclick", () => {
      const alone = buttons.every(o => (o === b) !== set.has(o.dataset.rule));
      set.clear();
      if (!alone) for (const o of buttons) if (o !== b) set.add(o.dataset.rule);
      show();
    });
  }
}
dark.addEventListener("change", () => drawAll());
drawAll().then(() => { document.documentElement.dataset.drawn = String(charts.length); });
"""


def plotly_script() -> str:
    """plotly.js as text.

    Raises:
        MissingDependencyError: If plotly isn't installed.
    """
    try:
        offline = import_module("plotly.offline")
    except ImportError:
        raise MissingDependencyError(f"the report needs plotly: {REMEDY}") from None
    return str(offline.get_plotlyjs())


def whole_page(title: str, body: str, charts: Sequence[Record]) -> str:
    """The page; plotly.js comes with it only if there is something to draw."""
    scripts = ""
    if charts:
        # "<" is escaped, so that no text can end the script
        data = json.dumps(list(charts), allow_nan=False).replace("<", "\\u003c")
        scripts = (
            f'<script type="application/json" id="charts">{data}</script>\n'
            f"<script>{plotly_script()}</script>\n<script>{SCRIPT}</script>\n"
        )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n<script>{ERRORS}</script>\n"
        f"</head>\n<body>\n{body}\n{scripts}</body>\n</html>\n"
    )


def paragraphs(*texts: str) -> str:
    """Plain texts as paragraphs."""
    return "\n".join(f"<p>{escape(t)}</p>" for t in texts)


def minus(text: str) -> str:
    """A number with a proper minus sign, escaped.

    Example:
        >>> minus("-3.50")
        '−3.50'
    """
    return escape(text.replace("-", "−"))


def swatch(rule: str, place: int = 0) -> str:
    """A short line in a rule's color."""
    style = rule_style(rule, place)
    return (
        f'<span class="swatch {style.dash}" aria-hidden="true" '
        f'style="--swatch:{style.color};--swatch-dark:{style.dark}"></span>'
    )


def legend(group: str, rules: Iterable[str]) -> str:
    """Buttons that show and hide a rule in all charts of a group."""
    buttons = "".join(
        f'<button type="button" data-rule="{escape(rule)}" aria-pressed="true">'
        f"{swatch(rule, place)}{escape(rule)}</button>"
        for place, rule in enumerate(rules)
    )
    return (
        f'<div class="legend" role="group" aria-label="Methods to show" '
        f'data-group="{escape(group)}">{buttons}</div>'
    )


def plots(ids: Sequence[tuple[str, str]], caption: str) -> str:
    """Places for charts side by side (one above the other on a phone), with a caption.

    Args:
        ids: The id of each chart, and what it shows, for those who can't see it.
        caption: Below them.
    """
    places = "".join(
        f'<div class="plot" id="{escape(i)}" role="img" aria-label="{escape(what)}"></div>'
        for i, what in ids
    )
    return f'<figure><div class="pair">{places}</div><figcaption>{caption}</figcaption></figure>'


def scrolling(table: str, label: str) -> str:
    """A table that scrolls sideways where it doesn't fit."""
    return (
        f'<div class="scroll" role="region" aria-label="{escape(label)}" tabindex="0">{table}</div>'
    )


def definitions(pairs: Iterable[tuple[str, str]]) -> str:
    """What and how much."""
    rows = "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in pairs)
    return f"<dl>{rows}</dl>"
