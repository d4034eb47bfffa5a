"""Optional packages: how they are imported, and how to install what is missing."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from proxfield.errors import MissingDependencyError


def install_hint(*extras: str) -> str:
    """The command that adds extras to an installed proxfield, from an index or from a clone.

    pip takes an extra's packages from the installed version's own list, so this works wherever
    proxfield came from.
    """
    return f'pip install "proxfield[{",".join(extras)}]"'


def import_extra(module: str, need: str, *extras: str) -> Any:
    """A module of an optional package; raises, with the way to install it, if it isn't there.

    Args:
        module: Its name.
        need: What needs it, for the message: "pictures need Pillow".
        extras: The extras of proxfield that install it.
    """
    try:
        import_module(module.partition(".")[0])
        return import_module(module)
    except ImportError:
        raise MissingDependencyError(f"{need}: {install_hint(*extras)}") from None


def is_installed(module: str) -> bool:
    """Whether an optional package is there, without importing it."""
    return find_spec(module) is not None
