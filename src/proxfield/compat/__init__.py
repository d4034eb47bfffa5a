"""Stand-ins for other packages: existing scripts run on proxfield unchanged.

`install` registers `proxfield.compat.pydensecrf` under the import name ``pydensecrf``.
``python -m proxfield.compat script.py …`` runs a script that way without editing it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

NAME = "pydensecrf"
"""The import name that is taken over."""
SUBMODULES = ("densecrf", "eigen", "utils")

_displaced: dict[str, ModuleType] = {}
"""What ``install(force=True)`` took out of ``sys.modules``, for `uninstall`."""


def install(force: bool = False) -> None:
    """Make ``import pydensecrf`` give proxfield's version, in this process.

    Call it before anything imports pydensecrf. The original may be installed; it isn't
    touched on disk. A second call does nothing. Processes started with "spawn" need a call
    of their own.

    Args:
        force: Take the name over even if the original is imported already. Modules that hold
            it keep what they hold.

    Raises:
        RuntimeError: The original is imported, and ``force`` isn't given.

    Example:
        >>> import proxfield.compat
        >>> proxfield.compat.install()
        >>> import pydensecrf.densecrf as dcrf
        >>> dcrf.DenseCRF.__module__
        'proxfield.compat.pydensecrf.densecrf'
        >>> proxfield.compat.uninstall()
    """
    ours = _modules()
    theirs = {
        name: module
        for name, module in sys.modules.items()
        if (name == NAME or name.startswith(f"{NAME}.")) and ours.get(name) is not module
    }
    if theirs and not force:
        origin = getattr(theirs.get(NAME), "__file__", None) or "an unknown place"
        raise RuntimeError(
            f"{NAME} is already imported (from {origin}): call proxfield.compat.install() before "
            "anything imports it, or install(force=True) to take its name over"
        )
    for name in theirs:
        del sys.modules[name]
    _displaced.update(theirs)
    sys.modules.update(ours)


def uninstall() -> None:
    """Give the import name back: ``import pydensecrf`` finds the original again, if there is one.

    Does nothing where `install` wasn't called. Names imported meanwhile stay as they are.
    """
    for name, module in _modules().items():
        if sys.modules.get(name) is module:
            del sys.modules[name]
    for name, module in _displaced.items():
        sys.modules.setdefault(name, module)
    _displaced.clear()


def installed() -> bool:
    """Whether ``pydensecrf`` is proxfield's version now."""
    return sys.modules.get(NAME) is import_module(f"{__name__}.{NAME}")


def _modules() -> dict[str, ModuleType]:
    """Our modules by the names they stand in for."""
    package = f"{__name__}.{NAME}"
    out = {NAME: import_module(package)}
    out.update({f"{NAME}.{sub}": import_module(f"{package}.{sub}") for sub in SUBMODULES})
    return out
