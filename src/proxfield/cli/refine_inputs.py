"""What goes into ``proxfield refine`` by its options, and messages in their words."""

from __future__ import annotations

import re

import click

from proxfield.cli.commands.images import AXES
from proxfield.cli.options import Options
from proxfield.core.common.records import Record
from proxfield.images.known import CONFIDENCE
from proxfield.images.settings import DenseSettings, read_config

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
