"""Settings of dense CRFs by name, and what a configuration may hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from proxfield.core.common.records import Record
from proxfield.errors import InputError, shown
from proxfield.images.known import check_confidence

DEFAULT_PRESET = "gentle"
PUBLISHED_UPDATES = 10
"""Number of updates of published dense CRFs."""
FULL_RANGE = 255.0
"""Range of the image's values that the colors of the presets refer to."""


def _preset(
    place: float, color: float, weight: float, spatial: float, updates: int, sigma: float = 3.0
) -> Record:
    return {
        "spatial_sigma": sigma,
        "spatial_weight": spatial,
        "bilateral_sigma": place,
        "bilateral_color": color,
        "bilateral_weight": weight,
        "max_iters": updates,
        "color_range": FULL_RANGE,
    }


PRESETS: dict[str, Record] = {
    "gentle": _preset(40.0, 5.0, 1.0, 1.0, 5, 1.5),
    "krahenbuehl": _preset(80.0, 13.0, 10.0, 3.0, PUBLISHED_UPDATES),
    "deeplab": _preset(67.0, 3.0, 4.0, 3.0, PUBLISHED_UPDATES),
    "wsss": _preset(64.0, 5.0, 4.0, 3.0, PUBLISHED_UPDATES),
}
"""Settings by name: the default, and published ones (Krähenbühl and Koltun 2011; DeepLab; what
weakly supervised segmentation uses)."""

TERM_SETTINGS = (
    *("spatial_sigma", "spatial_weight"),
    *("bilateral_sigma", "bilateral_color", "bilateral_weight"),
)
"""Settings that are arguments of `DenseCRF` too."""
MODEL_SETTINGS: Record = {
    "compatibility": "potts",
    "normalization": "symmetric",
    "self_message": True,
}
"""Settings of the model that presets don't have, with what they are where nothing is said."""
CONFIG_KEYS = (*TERM_SETTINGS, "max_iters", "color_range", "filter", *MODEL_SETTINGS, "confidence")
"""What a configuration may hold."""


def settings_of(preset: str | Mapping[str, object]) -> Record:
    """All settings of a preset or a configuration; what the latter leaves out is the default.

    Args:
        preset: A name in `PRESETS`, or settings by name (see `CONFIG_KEYS`).

    Raises:
        InputError: If the name or a setting is unknown.

    Example:
        >>> settings_of("deeplab")["bilateral_color"]
        3.0
        >>> settings_of({"bilateral_weight": 4})["spatial_sigma"]
        1.5
    """
    if isinstance(preset, str):
        if preset not in PRESETS:
            raise InputError(
                f"preset={shown(preset)}, expected one of: {', '.join(PRESETS)}"
                " (a file is read by proxfield.read_config)"
            )
        return dict(PRESETS[preset])
    if not isinstance(preset, Mapping):
        raise InputError(f"preset={shown(preset)}, expected a name or settings by name")
    for key in preset:
        if key not in CONFIG_KEYS:
            raise InputError(f"unknown setting {shown(key)}, expected: {', '.join(CONFIG_KEYS)}")
    out = {**PRESETS[DEFAULT_PRESET], **preset}
    if "bilateral_color" in preset and "color_range" not in preset:
        del out["color_range"]  # in the image's own units
    updates = out["max_iters"]
    if isinstance(updates, bool) or not isinstance(updates, int) or updates < 0:
        raise InputError(f"max_iters={shown(updates)} in a configuration, expected 0 or more")
    if "confidence" in out:
        check_confidence(out["confidence"])
    return out


def said_confidence(given: float | None, preset: str | Mapping[str, Any] | None) -> float | None:
    """The confidence of labels as given, else that of a configuration; None: neither says it.

    Example:
        >>> said_confidence(None, {"confidence": 0.9}), said_confidence(0.8, {"confidence": 0.9})
        (0.9, 0.8)
        >>> said_confidence(None, "gentle") is None
        True
    """
    if given is None and isinstance(preset, Mapping):
        return preset.get("confidence")
    return given


def chosen_settings(
    preset: str | Mapping[str, object], given: Mapping[str, Any], color_range: float | None
) -> Record:
    """The settings of a preset, with those in their place that were given as arguments.

    Args:
        preset: As for `settings_of`.
        given: Arguments by name: `TERM_SETTINGS`, where None is the preset's value; "filter" and
            `MODEL_SETTINGS`, whose defaults leave a configuration's as they are (None for
            ``compatibility``: Potts, whatever the configuration says).
        color_range: Range of the values that a given ``bilateral_color`` refers to, if known.

    Example:
        >>> given = {"bilateral_color": 0.1, "filter": "auto"}
        >>> chosen = chosen_settings("wsss", given, color_range=1.0)
        >>> chosen["bilateral_color"], chosen["color_range"], chosen["bilateral_weight"]
        (0.1, 1.0, 4.0)
    """
    out = settings_of(preset)
    explicit = {k: v for k in TERM_SETTINGS if (v := given.get(k)) is not None}
    out.update(explicit)
    if "bilateral_color" in explicit:
        out.pop("color_range", None)
        if color_range is not None:
            out["color_range"] = color_range
    if given["filter"] != "auto" or "filter" not in out:
        out["filter"] = given["filter"]
    for name, usual in MODEL_SETTINGS.items():
        value = given.get(name, usual)
        if value is None:  # Potts, whatever the configuration says
            out.pop(name, None)
        elif not (isinstance(value, type(usual)) and value == usual):
            out[name] = value.tolist() if hasattr(value, "tolist") else np.asarray(value).tolist()
    return out
