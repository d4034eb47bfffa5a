"""What the studio shows and hands out: pictures, settings as TOML, and Python for the labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from io import BytesIO
from textwrap import wrap

import numpy as np
from numpy.typing import NDArray

from proxfield.core.common.arrays import Pixels
from proxfield.images.settings import config_text
from proxfield.io.images import import_pillow, label_colors
from proxfield.io.overlay import displayable
from proxfield.studio.inputs import READERS, as_runs
from proxfield.studio.session import StudioJob, StudioSession

LINE = 92
"""Width of the lists of runs."""
MAX_PALETTE = 255
"""Labels of a picture with a palette; the last entry is for transparent pixels."""
WIDTH, HEIGHT = 560, 170
LEFT, RIGHT, TOP, BOTTOM = 8, 8, 12, 24
"""The curve: its size, and the margins inside."""
MIN_SPAN = 1e-6
"""Smaller differences of F, relative to it, are drawn as such: they are rounding."""


def as_toml(job: StudioJob) -> str:
    """The settings of a job, as ``proxfield refine --config`` and `read_config` take them.

    Example:
        >>> from proxfield.images.settings import PRESETS
        >>> print(as_toml(StudioJob(PRESETS["deeplab"], "fixed")).splitlines()[1])
        spatial_sigma = 3.0
    """
    header = "Settings of a dense CRF, chosen in proxfield studio."
    if job.rule != "fixed":
        header += f"\nThe rule is an option of proxfield refine: --rule {job.rule}"
    return config_text(job.settings, {}, header)


def as_python(session: StudioSession, job: StudioJob) -> str:
    """A program that ends with ``labels``, those of the job at full resolution.

    Args:
        session: The session, for its inputs.
        job: Settings, rule and scribbles.
    """
    inputs = session.inputs
    lines = ["import proxfield as pf"]
    if inputs.image_name is None:
        lines += [
            "from proxfield.studio.inputs import demo_inputs",
            "",
            "inputs = demo_inputs()",
            "image, probabilities = inputs.image, inputs.unary",
        ]
    else:
        reader = READERS[inputs.what]
        first = "[0]" if inputs.what == "labels" else ""
        lines += [
            f"from proxfield.io.images import read_image, {reader}",
            "",
            f"image = read_image({inputs.image_name!r})",
            f"{inputs.what} = {reader}({inputs.unary_name!r}){first}",
        ]
    options = {name: value for name, value in inputs.options.items() if value != "auto"}
    if inputs.what != "labels":
        options.pop("confidence", None)
        options |= {} if session.confidence is None else {"confidence": session.confidence}
    if job.scribbles is not None:
        lines.insert(0, "import numpy as np")
        lines += ["", *_scribble_lines(session.shape, as_runs(job.scribbles))]
    lines += ["", "settings = {"]
    lines += [f"    {name!r}: {value!r}," for name, value in job.settings.to_dict().items()]
    maker = "pf.DenseCRF.from_labels" if inputs.what == "labels" else "pf.DenseCRF"
    given = "labels" if inputs.what == "labels" else f"{inputs.what}={inputs.what}"
    lines += ["}", f"crf = {maker}(", "    image,", f"    {given},", "    preset=settings,"]
    lines += ["    scribbles=scribbles,"] if job.scribbles is not None else []
    lines += [f"    {name}={value!r}," for name, value in options.items()]
    lines += [
        ")",
        f"result = crf.infer({job.rule!r}, max_iters={job.settings.max_iters}, tol=None)",
        "labels = result.labels  # (height, width)",
    ]
    return "\n".join(lines) + "\n"


def _scribble_lines(shape: tuple[int, int], runs: dict[int, tuple[int, ...]]) -> list[str]:
    """Code for the map of known labels: runs of pixels in the flattened map, by label."""
    lines = [f"scribbles = np.full({shape!r}, 255)  # 255: not known", "runs = {"]
    for label, numbers in runs.items():
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        # no line breaks inside of a pair
        text = " ".join(f"({start},~{end})," for start, end in pairs)
        rows = wrap(text, LINE, initial_indent=" " * 8, subsequent_indent=" " * 8)
        lines += [f"    {label}: [", *(row.replace("~", " ") for row in rows), "    ],"]
    return [
        *lines,
        "}",
        "for label, pairs in runs.items():",
        "    for start, end in pairs:",
        "        scribbles.flat[start:end] = label",
    ]


# ---- pictures ----


def label_png(labels: NDArray[np.int64], n_labels: int, shown: Pixels | None = None) -> bytes:
    """A label map as PNG.

    Args:
        labels: The labels; values beyond the last label are transparent.  # (height, width)
        n_labels: Number of labels.
        shown: Which pixels aren't transparent; None: all.  # (height, width)
    """
    image = import_pillow()
    visible = (labels >= 0) & (labels < n_labels)
    if shown is not None:
        visible &= shown
    out = BytesIO()
    colors = label_colors(n_labels)
    if n_labels <= MAX_PALETTE:
        entries = np.where(visible, labels, n_labels).astype(np.uint8)
        picture = image.fromarray(entries)
        picture.putpalette([*colors.ravel().tolist(), 0, 0, 0])
        picture.save(out, format="PNG", transparency=n_labels, compress_level=1)
    else:
        rgba = np.zeros((*labels.shape, 4), dtype=np.uint8)
        rgba[visible, :3] = colors[labels[visible]]
        rgba[visible, 3] = 255
        image.fromarray(rgba).save(out, format="PNG", compress_level=1)
    return out.getvalue()


def photo_jpeg(channels: Pixels) -> bytes:
    """The image as people see it, as JPEG.  # (height, width, channels)"""
    rgb = displayable(channels, channels.shape[:2]).round().astype(np.uint8)
    out = BytesIO()
    import_pillow().fromarray(rgb).save(out, format="JPEG", quality=92)
    return out.getvalue()


def css_color(label: int) -> str:
    """The color of a label for style sheets.

    Example:
        >>> css_color(1)
        '#e69f00'
    """
    r, g, b = label_colors(label + 1)[label].tolist()
    return f"#{r:02x}{g:02x}{b:02x}"


def curve_svg(iterations: Sequence[int], free_energy: Sequence[float], last: int) -> str:
    """F over the iterations as SVG; its colors are those of the page.

    Args:
        iterations: Their numbers.
        free_energy: F; entries that aren't finite are left out.
        last: The right end of the axis.
    """
    points = [(t, f) for t, f in zip(iterations, free_energy, strict=True) if math.isfinite(f)]
    name = "Free energy F per iteration"
    head = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name}" class="pf-curve">'
        f"<title>{name}</title>"
    )
    floor = HEIGHT - BOTTOM
    axis = f'<line x1="{LEFT}" y1="{floor}" x2="{WIDTH - RIGHT}" y2="{floor}" class="pf-axis"/>'
    if not points:
        return f"{head}{axis}</svg>"
    end = max(1, last, points[-1][0])
    low, high = min(f for _, f in points), max(f for _, f in points)
    span = max(high - low, MIN_SPAN * (1.0 + abs(high)))

    def place(t: int, f: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT) * t / end
        return x, TOP + (floor - TOP - 8) * (high - f) / span

    line = " ".join("{:.1f},{:.1f}".format(*place(t, f)) for t, f in points)
    every = max(1, len(points) // 60)
    dot = '<circle cx="{:.1f}" cy="{:.1f}" r="3"><title>iteration {}: F = {:.6g}</title></circle>'
    dots = "".join(dot.format(*place(t, f), t, f) for t, f in points[::every])
    text = (
        f'<text x="{LEFT}" y="{HEIGHT - 7}">iteration 0: F = {points[0][1]:.6g}</text>'
        f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 7}" text-anchor="end">'
        f"iteration {points[-1][0]}: F = {points[-1][1]:.6g}</text>"
    )
    return f'{head}{axis}<polyline points="{line}"/>{dots}{text}</svg>'
