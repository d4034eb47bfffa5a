"""How to install what an optional part needs: the one place that decides the wording."""

from __future__ import annotations


def install_hint(*extras: str) -> str:
    """The command that adds extras to an installed proxfield, from an index or from a clone.

    pip takes an extra's packages from the installed version's own list, so this works wherever
    proxfield came from.

    Example:
        >>> install_hint("images", "plot")
        'pip install "proxfield[images,plot]"'
    """
    return f'pip install "proxfield[{",".join(extras)}]"'
