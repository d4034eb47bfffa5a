"""Settings of dense CRFs: one class, its presets by name, and TOML files that hold them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from os import PathLike
from typing import Any, TypedDict

import numpy as np
from numpy.typing import ArrayLike

from proxfield.core.common.arrays import Array, Doubles
from proxfield.core.common.records import Record
from proxfield.core.filters.points import PixelPoints
from proxfield.core.terms.gaussian import Gaussian
from proxfield.errors import InputError, reason, shown
from proxfield.images.inputs import check_confidence
from proxfield.images.pixels import widths
from proxfield.io.files import Target, atomic_write, naming, read_bytes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_PRESET = "gentle"
PUBLISHED_UPDATES = 10
"""Number of updates of published dense CRFs."""
FULL_RANGE = 255.0
"""Range of the image's values that the colors of the presets refer to."""
TERM_SETTINGS = {
    "spatial": ("spatial_sigma", "spatial_weight"),
    "bilateral": ("bilateral_sigma", "bilateral_color", "bilateral_weight"),
}
"""The settings of each term."""
ABOUT = "tuning"
"""The table of a file that says how the settings were chosen; it isn't needed to use them."""


class GivenSettings(TypedDict, total=False):
    """`DenseSettings` that can be given as arguments in place of a preset's; None: the preset's.

    For ``compatibility`` None stands for Potts, whatever the preset says.
    """

    spatial_sigma: float | Sequence[float] | None
    spatial_weight: float | None
    bilateral_sigma: float | Sequence[float] | None
    bilateral_color: float | Sequence[float] | None
    bilateral_weight: float | None
    compatibility: ArrayLike | str | None
    normalization: str
    self_message: bool
    filter: str


@dataclass(frozen=True)
class DenseSettings:
    """Settings of a dense CRF: of its two terms, and how many updates are made.

    Each can be an argument of `DenseCRF` (but for ``max_iters``, which is one of
    `DenseCRF.infer`, and ``color_range``), and an entry of a TOML file (see `read_config`). The
    defaults are the preset "gentle".

    Args:
        spatial_sigma: Standard deviation of the spatial term in pixels; one number or one per axis.
        spatial_weight: Its weight; 0 omits the term.
        bilateral_sigma: Standard deviation of the bilateral term's positions in pixels; one number
            or one per axis.
        bilateral_color: Standard deviation of its colors; one number, or one per channel. Given as
            an argument of `DenseCRF` it is in the image's own units.
        bilateral_weight: The weight of the bilateral term; 0 omits it.
        max_iters: Number of updates that `DenseCRF.infer` makes unless it is told.
        color_range: The range of values that ``bilateral_color`` refers to. It is scaled to the
            image's: 255 for 8-bit images and other whole numbers within 0 and 255, 65535 for
            16-bit images, 1 for bool and floats within 0 and 1. Any other image needs a
            ``bilateral_color`` of its own: floats above 1 don't tell their range. None: the
            image's own units.
        filter: "exact" (all pairs), "lattice" (permutohedral, for many pixels) or "auto"; see
            `Gaussian`.
        compatibility: "potts", one energy per label (for pairs that share it), or a table.
            # (labels,) or (labels, labels)
        normalization: See `Gaussian`.
        self_message: See `Gaussian`; by default kept, as in the published dense CRFs.
        confidence: Probability that labels are right that are given in place of probabilities;
            None: 0.7, and a warning says so. See `DenseCRF`.

    Raises:
        InputError: If ``max_iters`` or ``confidence`` can't be used; all else is checked where
            there is an image.

    Example:
        >>> DenseSettings(bilateral_weight=4.0).spatial_sigma
        1.5
    """

    spatial_sigma: float | Sequence[float] = 1.5
    spatial_weight: float = 1.0
    bilateral_sigma: float | Sequence[float] = 40.0
    bilateral_color: float | Sequence[float] = 5.0
    bilateral_weight: float = 1.0
    max_iters: int = 5
    color_range: float | None = FULL_RANGE
    filter: str = "auto"
    compatibility: Array = "potts"
    normalization: str = "symmetric"
    self_message: bool = True
    confidence: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():  # arrays and tensors as numbers
            if hasattr(value, "tolist"):
                object.__setattr__(self, name, value.tolist())
            elif isinstance(value, tuple):
                object.__setattr__(self, name, list(value))
        updates = self.max_iters
        if isinstance(updates, bool) or not isinstance(updates, int) or updates < 0:
            raise InputError(f"max_iters={shown(updates)} in a configuration, expected 0 or more")
        if self.confidence is not None:
            check_confidence(self.confidence)

    @classmethod
    def of(cls, preset: str | DenseSettings | Mapping[str, object]) -> DenseSettings:
        """All settings of a preset or a configuration; what the latter leaves out is the default.

        Args:
            preset: A name in `PRESETS`, settings, or some settings by name. Of these,
                ``bilateral_color`` without ``color_range`` is in the image's own units.

        Raises:
            InputError: If the name or a setting is unknown.

        Example:
            >>> DenseSettings.of("deeplab").bilateral_color
            3.0
            >>> DenseSettings.of({"bilateral_weight": 4}).spatial_sigma
            1.5
        """
        if isinstance(preset, DenseSettings):
            return preset
        if isinstance(preset, str):
            if preset not in PRESETS:
                raise InputError(
                    f"preset={shown(preset)}, expected one of: {', '.join(PRESETS)}"
                    " (a file is read by proxfield.read_config)"
                )
            return PRESETS[preset]
        if not isinstance(preset, Mapping):
            raise InputError(f"preset={shown(preset)}, expected a name or settings by name")
        for key in preset:
            if key not in NAMES:
                raise InputError(f"unknown setting {shown(key)}, expected: {', '.join(NAMES)}")
        found: Record = dict(preset)
        if "bilateral_color" in found:
            found.setdefault("color_range", None)
        return cls(**found)

    @classmethod
    def chosen(
        cls, options: Mapping[str, object], color_range: float | None = None
    ) -> DenseSettings:
        """The settings of the preset among options, with those in their place that are given.

        Args:
            options: Options of `DenseCRF`; those that are no settings don't matter.
            color_range: The range of values that a given ``bilateral_color`` refers to, if known.

        Example:
            >>> options = {"preset": "wsss", "bilateral_color": 0.1}
            >>> chosen = DenseSettings.chosen(options, color_range=1.0)
            >>> chosen.bilateral_color, chosen.color_range, chosen.bilateral_weight
            (0.1, 1.0, 4.0)
        """
        given = {k: options[k] for k in (*ARGUMENTS, "confidence") if k in options}
        changes: Record = {k: v for k, v in given.items() if v is not None}
        if "bilateral_color" in changes:
            changes["color_range"] = color_range
        if "compatibility" in given:
            changes.setdefault("compatibility", "potts")
        preset: Any = options.get("preset", DEFAULT_PRESET)
        return replace(cls.of(preset), **changes)

    def to_dict(self) -> Record:
        """The settings by name, as files have them: without those that say what is the default."""
        usual = DenseSettings()
        out = {name: getattr(self, name) for name in NAMES}
        for name in ("compatibility", "normalization", "self_message"):
            if out[name] == getattr(usual, name):
                del out[name]
        return {name: value for name, value in out.items() if value is not None}

    def only(self, kind: str) -> DenseSettings:
        """The same with one of the terms ("spatial" or "bilateral") alone, of weight 1."""
        weights: Record = {f"{term}_weight": float(term == kind) for term in TERM_SETTINGS}
        return replace(self, **weights)

    def weight(self, kind: str) -> float:
        """The weight of a term ("spatial" or "bilateral")."""
        return float(getattr(self, f"{kind}_weight"))

    def kinds(self, colored: bool) -> list[str]:
        """The terms that there are: those of a weight that isn't 0, the bilateral with an image."""
        kinds = TERM_SETTINGS if colored else ("spatial",)
        return [kind for kind in kinds if getattr(self, f"{kind}_weight") != 0]

    def sigmas(self, kind: str, n_axes: int) -> Doubles:
        """Standard deviations of a term's positions, one per axis.  # (n_axes,)"""
        name = f"{kind}_sigma"
        return widths(getattr(self, name), n_axes, name, "axis")

    def kernel(self, kind: str) -> str:
        """All that the matrix of a term depends on, beside the image; as a key."""
        names = [*TERM_SETTINGS[kind][:-1], "filter", *MODEL_SETTINGS]
        names += ["color_range"] if kind == "bilateral" else []
        return json.dumps([kind, *(getattr(self, name) for name in names)])

    def in_range(self, color_range: float | None) -> DenseSettings:
        """The same for images of a known range, whose own units colors are then in."""
        if color_range is None or self.color_range is None:
            return self
        color = np.asarray(self.bilateral_color) * (color_range / self.color_range)
        return replace(self, bilateral_color=color.tolist(), color_range=None)

    def term(self, features: ArrayLike | PixelPoints, weight: float) -> Gaussian:
        """A term over some features as these settings want it."""
        return Gaussian(
            features,
            weight,
            self.compatibility,
            normalization=self.normalization,
            self_message=self.self_message,
            filter=self.filter,
        )


NAMES = tuple(field.name for field in fields(DenseSettings))
"""What a configuration may hold."""
ARGUMENTS = tuple(GivenSettings.__annotations__)
"""The settings that are arguments of `DenseCRF` and of the layer."""
MODEL_SETTINGS = ("compatibility", "normalization", "self_message")
"""The settings that presets don't differ in."""


def _published(place: float, color: float, weight: float) -> DenseSettings:
    return DenseSettings(3.0, 3.0, place, color, weight, PUBLISHED_UPDATES)


PRESETS = {
    DEFAULT_PRESET: DenseSettings(),
    "krahenbuehl": _published(80.0, 13.0, 10.0),
    "deeplab": _published(67.0, 3.0, 4.0),
    "wsss": _published(64.0, 5.0, 4.0),
}
"""Settings by name: the default, and published ones (Krähenbühl and Koltun 2011; DeepLab; what
weakly supervised segmentation uses)."""


def read_config(
    config: str | PathLike[str] | DenseSettings | Mapping[str, object],
) -> DenseSettings:
    """The settings in a TOML file, checked; those that it leaves out are the default.

    Args:
        config: The name of a file that ``proxfield tune`` or `write_config` wrote, or settings
            by name.

    Returns:
        Settings for ``DenseCRF(…, preset=settings)``.

    Raises:
        InputError: If the file can't be read or holds something else.
    """
    if isinstance(config, Mapping):
        return DenseSettings.of({k: v for k, v in config.items() if k != ABOUT})
    if isinstance(config, DenseSettings):
        return config
    data, name = read_bytes(config)
    with naming(name):
        try:
            held: Record = tomllib.loads(data.decode("utf-8"))
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            what = f"is no TOML ({reason(error)}), expected settings of a dense CRF"
            raise InputError(what) from None
        held.pop(ABOUT, None)
        for key, value in held.items():
            fits, expected = EXPECTED.get(key, (_is_number, "a number"))
            if key in NAMES and not fits(value):
                raise InputError(f"{key} = {value!r}, expected {expected}")
        return DenseSettings.of(held)


def _is_number(x: object) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and abs(x) < float("inf")


def _are_numbers(x: object) -> bool:
    return isinstance(x, list) and bool(x) and all(map(_is_number, x))


def _is_compatibility(x: object) -> bool:
    if x == "potts" or _are_numbers(x):
        return True
    rows = x if isinstance(x, list) else []
    return bool(rows) and all(_are_numbers(row) and len(row) == len(rows) for row in rows)


LENGTHS = (lambda x: _is_number(x) or _are_numbers(x)), "a number, or several"
EXPECTED: dict[str, tuple[Callable[[object], bool], str]] = {
    "spatial_sigma": LENGTHS,
    "bilateral_sigma": LENGTHS,
    "bilateral_color": LENGTHS,
    "filter": (lambda x: isinstance(x, str), "auto, exact or lattice"),
    "normalization": (lambda x: isinstance(x, str), "none, before, after or symmetric"),
    "self_message": (lambda x: isinstance(x, bool), "true or false"),
    "compatibility": (
        _is_compatibility,
        '"potts", a number per label, or a square table of them',
    ),
}
"""What the values in a file have to be, and how to say it; the others are a number."""


def config_text(settings: DenseSettings, about: Mapping[str, object], header: str) -> str:
    """Settings as TOML.

    Args:
        settings: The settings.
        about: How they were chosen, for the table at the end; nothing reads it.
        header: Lines for the top, as comments.

    Example:
        >>> print(config_text(DenseSettings(), {"images": 3}, "chosen by hand"), end="")
        # chosen by hand
        spatial_sigma = 1.5
        spatial_weight = 1.0
        bilateral_sigma = 40.0
        bilateral_color = 5.0
        bilateral_weight = 1.0
        max_iters = 5
        color_range = 255.0
        filter = "auto"
        <BLANKLINE>
        [tuning]
        images = 3
    """
    lines = [f"# {line}".rstrip() for line in header.splitlines()]
    # TOML writes strings, numbers, booleans and lists as JSON does
    lines += [f"{k} = {json.dumps(v, ensure_ascii=False)}" for k, v in settings.to_dict().items()]
    if about:
        told = (f"{k} = {json.dumps(v, ensure_ascii=False)}" for k, v in about.items())
        lines += ["", f"[{ABOUT}]", *told]
    return "\n".join(lines) + "\n"


def write_config(
    path: Target, settings: DenseSettings | str | Mapping[str, object], header: str = ""
) -> None:
    """Write settings as TOML, so that `read_config` reads them.

    Args:
        path: Where to write.
        settings: Settings, the name of a preset, or some settings by name.
        header: Lines for the top, as comments.
    """
    with naming(path):
        chosen = DenseSettings.of(settings)
    atomic_write(path, config_text(chosen, {}, header))
