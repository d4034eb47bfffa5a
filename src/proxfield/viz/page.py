"""A page that loads nothing: its style sheet, small pieces of HTML, and charts as SVG.

Reports of the benchmarks use the same style sheet (``page.css``) with templates of their own.
Charts follow the reader's light or dark setting, and their text is text: colors become CSS
variables (``--c-0072b2`` for #0072B2) with the light color as the default, and `dark_colors` gives
their values for dark pages. A curve's parts carry ``data-curve="k"``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from proxfield.core.common.records import Record
from proxfield.viz.charts import GRID, INK, SOFT, Chart, draw, every_style, figure_bytes, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def page_style() -> str:
    """The style sheet of pages; fonts are the reader's own."""
    return files("proxfield.viz").joinpath("page.css").read_text(encoding="utf-8")


def whole_page(title: str, body: str) -> str:
    """A page of some markup."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{page_style()}</style>\n"
        f"</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def paragraphs(*texts: str) -> str:
    """Plain texts as paragraphs."""
    return "\n".join(f"<p>{escape(t)}</p>" for t in texts)


def scrolling(table: str, label: str) -> str:
    """A table that scrolls sideways where it doesn't fit."""
    return (
        f'<div class="scroll" role="region" aria-label="{escape(label)}" tabindex="0">{table}</div>'
    )


def definitions(pairs: Iterable[tuple[str, str]]) -> str:
    """What and how much."""
    rows = "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in pairs)
    return f"<dl>{rows}</dl>"


# ---- charts as SVG ----


SIZE = (5.0, 3.7)
"""Width and height of a chart in inches: text is 10 pixels high on a page 360 pixels wide."""
POINTS = 72
"""Units of an SVG per inch."""
LEAST_STEP = 0.7
"""Points of a curve that are closer than this (in units of the SVG) aren't told apart."""
PAGE_COLORS = {INK: "--ink", SOFT: "--soft", GRID: "--line", "#000000": "--ink"}


def page_chart(name: str, chart: Chart) -> tuple[str, Record]:
    """A chart for a page: its SVG, and what its script needs to tell values at points.

    Args:
        name: An id that no other chart of the page has.
        chart: The chart.

    Raises:
        MissingDependencyError: If matplotlib isn't installed.
    """
    figure = new_figure(*SIZE)
    figure.set_dpi(POINTS)
    axes = figure.add_subplot()
    draw(axes, chart)
    import matplotlib

    options: Any = {"svg.fonttype": "none", "svg.hashsalt": name}
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context(options):
        svg = clean_svg(figure_bytes(figure, "svg", transparent=True, metadata=nothing).decode())
    curves = [
        {"name": line.name, **_places(axes, line.x, line.y, line.values)} for line in chart.lines
    ]
    zero = SIZE[1] * POINTS - float(axes.transData.transform((1.0, 0.0))[1])
    about = {"id": name, "fields": list(chart.fields), "zero": round(zero, 1)}
    return svg, {**about, "curves": curves}


def _places(axes: Axes, x: object, y: object, values: tuple[object, ...]) -> Record:
    """Where points lie in the SVG, and their values; crowded points are left out, ends kept."""
    import numpy as np

    points = axes.transData.transform(np.column_stack([np.asarray(x), np.asarray(y)]))
    points[:, 1] = SIZE[1] * POINTS - points[:, 1]
    keep: list[int] = []
    for k, (across, down) in enumerate(points):
        if keep and k < len(points) - 1:
            before = points[keep[-1]]
            if abs(across - before[0]) + abs(down - before[1]) < LEAST_STEP:
                continue
        keep.append(k)
    return {
        "x": [round(float(points[k, 0]), 1) for k in keep],
        "y": [round(float(points[k, 1]), 1) for k in keep],
        "values": [[float(f"{np.asarray(v)[k]:.10g}") for k in keep] for v in values],
    }


def clean_svg(text: str) -> str:
    """matplotlib's SVG for the inside of a page: smaller, and in the page's font and colors."""
    text = text[text.index("<svg") :]
    for useless in (r"<metadata>.*?</metadata>", r"<style.*?</style>", r"<!--.*?-->"):
        text = re.sub(useless, "", text, flags=re.DOTALL)
    text = re.sub(r'<svg[^>]*viewBox="([^"]+)"[^>]*>', r'<svg viewBox="\1">', text, count=1)
    text = re.sub(r'id="curve-(\d+)"', r'data-curve="\1"', text)
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', text))
    text = re.sub(r' id="([^"]+)"', lambda m: m.group(0) if m.group(1) in used else "", text)
    text = text.replace("xlink:href", "href")

    def style(found: re.Match[str]) -> str:  # with the page's font and colors
        own = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", found[0])
        return re.sub(r"#[0-9a-f]{6}\b", variable, re.sub(r"; font-family: [^;\"]*", "", own))

    def variable(found: re.Match[str]) -> str:
        color = found[0]
        name = next((v for c, v in PAGE_COLORS.items() if c.lower() == color), f"--c-{color[1:]}")
        return f"var({name}, {color})"

    def rounded(path: re.Match[str]) -> str:
        return re.sub(r"(\d\.\d)\d+", r"\1", path[0]).replace("\n", "")

    text = re.sub(r' style="[^"]*"', style, text)
    text = re.sub(r' d="[^"]{400,}"', rounded, text)
    return re.sub(r"\s*\n\s*", "\n", text).strip()


def dark_colors() -> dict[str, str]:
    """Variables of the rules' colors, with their values on a dark page.

    Example:
        >>> dark_colors()["--c-0072b2"]
        '#5AB4F0'
    """
    return {f"--c-{style.color[1:].lower()}": style.dark for style in every_style()}
