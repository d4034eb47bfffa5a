"""Signatures as a reader of the source sees them.

Sphinx evaluates annotations, which turns ``ArrayLike`` into a union of a dozen private names.
Keywords that are accepted only to refuse them (``**unknown: Never``), and the base class `object`,
are left out.
"""

from __future__ import annotations

import inspect
from enum import Enum

from docutils import nodes
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
    if isinstance(obj, type) and issubclass(obj, Enum):
        return "", ""  # nobody constructs one
    if signature is None or not callable(obj):
        return None
    try:
        found = inspect.signature(obj)
    except (TypeError, ValueError):  # written in C
        return None
    parameters = [each for each in found.parameters.values() if each.annotation != "Never"]
    if what == "method" and inspect.isfunction(obj) and parameters and parameters[0].name == "self":
        parameters = parameters[1:]
    found = found.replace(parameters=parameters)
    arguments = stringify_signature(found.replace(return_annotation=inspect.Signature.empty))
    if what in ("class", "exception") or found.return_annotation is inspect.Signature.empty:
        return arguments, ""
    only_return = stringify_signature(found.replace(parameters=[]))
    return arguments, only_return.removeprefix("() -> ")


def drop_plain_base(app: Sphinx, domain: str, objtype: str, content: nodes.Element) -> None:
    """Remove "Bases: object"."""
    first = content.children[0] if content.children else None
    if isinstance(first, nodes.paragraph) and first.astext() == "Bases: object":
        content.remove(first)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("object-description-transform", drop_plain_base)
    app.connect("autodoc-process-signature", written_signature)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
