"""Settings of dense CRFs in TOML files, which say how they were chosen."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from os import PathLike

from proxfield.core.common.records import Record
from proxfield.errors import InputError
from proxfield.images.presets import CONFIG_KEYS, settings_of
from proxfield.io.files import Target, atomic_write, display_name, read_bytes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ABOUT = "tuning"
"""The table of a file that says how the settings were chosen; it isn't needed to use them."""


def read_config(config: str | PathLike[str] | Mapping[str, object]) -> Record:
    """The settings in a TOML file, checked.

    Args:
        config: The name of a file that ``proxfield tune`` or `write_config` wrote, or settings
            by name, which are only checked.

    Returns:
        Settings for ``DenseCRF(…, preset=settings)``, those that the file holds.

    Raises:
        InputError: If the file can't be read or holds something else.
    """
    if isinstance(config, Mapping):
        found = {k: v for k, v in config.items() if k != ABOUT}
        settings_of(found)
        return found
    data, name = read_bytes(config)
    try:
        held: Record = tomllib.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"is no TOML ({reason}), expected settings of a dense CRF", path=name
        ) from None
    held.pop(ABOUT, None)
    for key, value in held.items():
        if key in CONFIG_KEYS and not _fits(key, value):
            raise InputError(f"{key} = {value!r}, expected {_expected(key)}", path=name)
    try:
        settings_of(held)
    except InputError as error:
        raise InputError(error.message, path=name) from None
    return held


def _fits(key: str, value: object) -> bool:
    if key in ("filter", "normalization"):
        return isinstance(value, str)
    if key == "self_message":
        return isinstance(value, bool)
    if key == "compatibility":
        return value == "potts" or _is_table(value)
    numbers = value if isinstance(value, list) else [value]
    several = len(numbers) > 0 and (not isinstance(value, list) or key.endswith(("sigma", "color")))
    return several and all(_is_number(x) for x in numbers)


def _is_number(x: object) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and abs(x) < float("inf")


def _is_table(value: object) -> bool:
    """Whether this is a vector of numbers, or a square matrix of them."""
    if not isinstance(value, list) or not value:
        return False
    if all(_is_number(x) for x in value):
        return True
    rows = [x for x in value if isinstance(x, list) and len(x) == len(value)]
    return len(rows) == len(value) and all(_is_number(x) for row in rows for x in row)


EXPECTED = {
    "filter": "auto, exact or lattice",
    "normalization": "none, before, after or symmetric",
    "self_message": "true or false",
    "compatibility": '"potts", a number per label, or a square table of them',
}


def _expected(key: str) -> str:
    if key in EXPECTED:
        return EXPECTED[key]
    return "a number, or several" if key.endswith(("sigma", "color")) else "a number"


def config_text(settings: Mapping[str, object], about: Mapping[str, object], header: str) -> str:
    """Settings as TOML.

    Args:
        settings: As `settings_of` takes them.
        about: How they were chosen, for the table at the end; nothing reads it.
        header: Lines for the top, as comments.

    Example:
        >>> print(config_text({"max_iters": 5}, {"images": 3}, "chosen by hand"), end="")
        # chosen by hand
        max_iters = 5
        <BLANKLINE>
        [tuning]
        images = 3
    """
    lines = [f"# {line}".rstrip() for line in header.splitlines()]
    lines += [f"{key} = {_value(settings[key])}" for key in CONFIG_KEYS if key in settings]
    if about:
        lines += ["", f"[{ABOUT}]", *(f"{key} = {_value(value)}" for key, value in about.items())]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    """A value in TOML; its strings, numbers, booleans and lists are written as in JSON."""
    if isinstance(value, tuple):
        value = list(value)
    return json.dumps(value, ensure_ascii=False)


def write_config(path: Target, settings: Mapping[str, object], header: str = "") -> None:
    """Write settings as TOML, so that `read_config` reads them.

    Example:
        >>> write_config("-", {"bilateral_weight": 2.5, "max_iters": 5})
        bilateral_weight = 2.5
        max_iters = 5
    """
    try:
        settings_of(settings)
    except InputError as error:
        raise InputError(error.message, path=display_name(path)) from None
    atomic_write(path, config_text(settings, {}, header))
