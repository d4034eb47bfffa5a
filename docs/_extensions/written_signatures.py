"""Signatures with their annotations as they are written in the source.

Sphinx evaluates annotations, which turns ``ArrayLike`` into a union of a dozen private names.
"""

from __future__ import annotations

import inspect

from sphinx.application import Sphinx
from sphinx.util.inspect import stringify_signature


def written_signature(
    app: Sphinx,
    what: str,
    name: str,
    obj: object,
    options: object,
    signature: str | None,
    returns: str | None,
) -> tuple[str, str] | None:
    """The arguments and the returned type of a function, a method or a constructor."""
    if signature is None or not callable(obj):
        return None
    try:
        found = inspect.signature(obj)
    except (TypeError, ValueError):  # written in C
        return None
    parameters = list(found.parameters.values())
    if what == "method" and inspect.isfunction(obj) and parameters and parameters[0].name == "self":
        parameters = parameters[1:]
    found = found.replace(parameters=parameters)
    arguments = stringify_signature(found.replace(return_annotation=inspect.Signature.empty))
    if what in ("class", "exception") or found.return_annotation is inspect.Signature.empty:
        return arguments, ""
    only_return = stringify_signature(found.replace(parameters=[]))
    return arguments, only_return.removeprefix("() -> ")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-signature", written_signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
