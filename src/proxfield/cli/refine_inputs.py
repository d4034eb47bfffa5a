"""The options of ``proxfield refine`` that say what goes in, and messages in their words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from proxfield.cli.options import stack
from proxfield.core.common.records import Record

if TYPE_CHECKING:
    from proxfield.images.settings import DenseSettings

AXES = {"auto": "auto", "first": 0, "last": -1, "none": None}
"""How options name an axis, and what Python calls it."""
MAPS = ("n_labels", "unsure")
"""Options that go to `DenseCRF.from_labels` as they are, and to nothing else."""
KINDS = {"probs": "probabilities", "logits": "logits", "labels": "labels"}
"""What an option names."""
OPTION_NAMES = (
    *("labels_axis", "channel_axis", "normalize", "logits", "scribbles", "ignore", "unsure"),
    *("confidence", "n_labels", "spatial_sigma", "spatial_weight", "bilateral_sigma", "filter"),
    *("bilateral_color", "bilateral_weight", "spacing", "compatibility", "cooccurrence"),
    *("max_iters", "tol", "budget", "seed", "device", "threads", "jobs"),
)
"""Arguments of Python that the command line has as options."""
_NAMES = "|".join(OPTION_NAMES)
_WITH_VALUE = re.compile(rf"\b({_NAMES})=(\[[^\]]*\]|\([^)]*\)|'[^']*'|[-+\w.]+)?")
_WITHOUT = re.compile(rf"\b({'|'.join(n for n in OPTION_NAMES if '_' in n)})\b(?!=)")


def _ignored(_: click.Context, __: click.Parameter, text: str) -> int | str | None:
    """A label, none, or auto."""
    if text == "auto":
        return text
    if text == "none":
        return None
    if not text.isdecimal():
        raise click.BadParameter(f"{text!r}, expected a label (255, say) or none")
    return int(text)


array_options = stack(
    click.option("--normalize", is_flag=True, help="Divide probabilities by their sum."),
    click.option(
        "--labels-axis",
        type=click.Choice(["auto", "first", "last"]),
        default="auto",
        show_default=True,
        help="Axis of the labels in the probabilities.",
    ),
    click.option(
        "--channel-axis",
        type=click.Choice(list(AXES)),
        default="auto",
        show_default=True,
        help="Axis of the channels in an image.",
    ),
)
"""How arrays of probabilities and images are laid out."""

confidence_option = click.option(
    "--confidence",
    metavar="P",
    type=click.FloatRange(0, 1, min_open=True),
    help="Probability that a label is right, also of probabilities that are all 0 or 1.  "
    "[default: 0.7, or as --config says]",
)

map_options = stack(
    confidence_option,
    click.option(
        "--n-labels",
        metavar="N",
        type=click.IntRange(min=1),
        help="Number of labels.  [default: one more than the largest in each map]",
    ),
    click.option("--unsure", metavar="V", type=int, help="A label that stands for unknown."),
    click.option(
        "--ignore",
        metavar="V|none",
        default="auto",
        callback=_ignored,
        help="A label of pixels that keep it in the result.  [default: 255, if there are fewer "
        "labels]",
    ),
)
"""How label maps are read."""

input_options = stack(
    click.argument("images", metavar="IMAGE...", nargs=-1, required=True),
    click.option(
        "--probs",
        metavar="PATH",
        help="Probabilities (.npy, .npz, NIfTI, GeoTIFF; a gray picture is a mask) of one image, "
        "or a folder of files named like the images.",
    ),
    click.option(
        "--logits",
        metavar="PATH",
        help="Scores of a network, before the softmax, instead.",
    ),
    click.option(
        "--labels", metavar="PATH", help="Label maps (.png, .npy) instead, a file or a folder."
    ),
    map_options,
    click.option(
        "--scribbles",
        metavar="PATH",
        help="Strokes whose labels are certain: label maps, 255 or transparent elsewhere; a file, "
        "or a folder with files for some of the images.",
    ),
    array_options,
)


def choose_input(options: Record) -> tuple[str, str]:
    """The path to what is known about pixels and the option that names it, without the dashes."""
    there = [name for name in KINDS if options[name] is not None]
    if len(there) != 1:
        raise click.UsageError("expected --probs or --labels or --logits, one of them")
    name = there[0]
    if name != "labels":
        for only in MAPS:
            if options[only] is not None:
                raise click.UsageError(f"--{only.replace('_', '-')} goes with --labels only")
        if options["ignore"] != "auto":
            raise click.UsageError("--ignore goes with --labels only")
    if name != "probs" and options["normalize"]:
        raise click.UsageError("--normalize goes with --probs only")
    if name == "labels" and options["labels_axis"] != "auto":
        raise click.UsageError("--labels-axis goes with --probs and --logits only")
    return options[name], name


def input_settings(
    options: Record, name: str, preset: str | DenseSettings
) -> tuple[Record, Record | None]:
    """Options for `DenseCRF`, and those for `from_labels` (None: no label maps)."""
    from proxfield.images.known import CONFIDENCE
    from proxfield.images.settings import DenseSettings

    given = DenseSettings.chosen({"preset": preset, "confidence": options["confidence"]}).confidence
    if name == "labels":
        from_labels = {k: options[k] for k in MAPS if options[k] is not None}
        if given is not None:
            from_labels["confidence"] = given
        return {}, {**from_labels, "ignore": options["ignore"]}
    build: Record = {"labels_axis": AXES[options["labels_axis"]]}
    build["confidence"] = CONFIDENCE if given is None else given
    if name == "probs":
        build["normalize"] = options["normalize"]
    return build, None


def in_options(message: str) -> str:
    """A message of the library with the names of the command's options.

    Example:
        >>> in_options("can be read in two ways; pass labels_axis=0 or -1")
        'can be read in two ways; pass --labels-axis first or last'
        >>> in_options("spatial_sigma=[1, 2], expected 3; normalize=True divides by the sum")
        '--spatial-sigma 1,2, expected 3; --normalize divides by the sum'
        >>> in_options("colors are wide; pass bilateral_color, a standard deviation")
        'colors are wide; pass --bilateral-color, a standard deviation'
    """
    message = re.sub(r"\b(labels|channel)_axis=0 or -1", r"--\1-axis first or last", message)
    message = message.replace("pass labels // 255", "give the file as --probs")
    message = message.replace("DenseCRF.from_labels(image, labels)", "--labels")

    def option(found: re.Match[str]) -> str:
        flag, value = f"--{found[1].replace('_', '-')}", found[2]
        if value in (None, "True"):
            return flag
        return f"{flag} {re.sub(r', ', ',', value.strip('[]()'))}"

    message = _WITH_VALUE.sub(option, message)
    return _WITHOUT.sub(lambda found: f"--{found[1].replace('_', '-')}", message)
