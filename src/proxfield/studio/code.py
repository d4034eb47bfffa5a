"""What the studio hands out: settings as TOML, and Python that makes the same labels."""

from __future__ import annotations

from proxfield.images.settings import config_text
from proxfield.studio.inputs import READERS
from proxfield.studio.session import StudioJob, StudioSession
from proxfield.studio.strokes import as_runs

LINE = 92
"""Width of the lists of runs."""


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
    lines: list[str] = []
    if inputs.image_name is None:
        lines += [
            "import proxfield as pf",
            "from proxfield.studio.inputs import demo_inputs",
            "",
            "inputs = demo_inputs()",
            "image, probabilities = inputs.image, inputs.unary",
        ]
    else:
        reader = READERS[inputs.what]
        first = "[0]" if inputs.what == "labels" else ""
        lines += [
            "import proxfield as pf",
            f"from proxfield.io.images import read_image, {reader}",
            "",
            f"image = read_image({inputs.image_name!r})",
            f"{inputs.what} = {reader}({inputs.unary_name!r}){first}",
        ]
    options = {name: value for name, value in inputs.options.items() if value != "auto"}
    if inputs.what != "labels":
        options.pop("confidence", None)
        if session.confidence is not None:
            options["confidence"] = session.confidence
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
        lines.append(f"    {label}: [")
        row = "       "
        for start, end in zip(numbers[::2], numbers[1::2], strict=True):
            pair = f" ({start}, {end}),"
            if len(row) + len(pair) > LINE:
                lines.append(row)
                row = "       "
            row += pair
        lines += [row, "    ],"]
    return [
        *lines,
        "}",
        "for label, pairs in runs.items():",
        "    for start, end in pairs:",
        "        scribbles.flat[start:end] = label",
    ]
