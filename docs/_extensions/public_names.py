"""Cross-references by other names than the public one.

The reference documents `proxfield.Field`. Annotations name `proxfield.field.Field`, by the module
in which the class is written, and docstrings elsewhere just `Field`. All link to the same page.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.domains.python import PythonDomain
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode


def find_object(name: str) -> object | None:
    """The object of a dotted name, or None."""
    parts = name.split(".")
    for count in range(len(parts) - 1, 0, -1):
        try:
            found: object = import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            found = getattr(found, part, None)
        return found
    return None


@cache
def documented_name(name: str, documented: frozenset[str]) -> str | None:
    """The documented name of what a reference means, or None if that isn't certain.

    Args:
        name: A dotted name, or its last parts.
        documented: All names that the reference documents.
    """
    if name.startswith("proxfield."):
        owner, _, rest = name.rpartition(".")
        found = find_object(name)
        same = [
            other
            for other in documented
            if other.endswith(f".{rest}") and found is not None and find_object(other) is found
        ]
        if same:
            return min(same, key=len)
        above = documented_name(owner, documented) if owner != "proxfield" else None
        return f"{above}.{rest}" if above and f"{above}.{rest}" in documented else None
    ending = [other for other in documented if other.endswith(f".{name}")]
    public = f"proxfield.{name}"
    return public if public in ending else ending[0] if len(ending) == 1 else None


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.reference | None:
    """Answer a reference that Sphinx found no target for."""
    if node.get("refdomain") != "py":
        return None
    domain = env.get_domain("py")
    assert isinstance(domain, PythonDomain)
    name = documented_name(node["reftarget"].rstrip("()"), frozenset(domain.objects))
    if name is None:
        return None
    target = domain.objects[name]
    return make_refnode(
        app.builder, node["refdoc"], target.docname, target.node_id, [content], name
    )


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
