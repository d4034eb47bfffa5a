"""Enumerations: their members on their pages, and tables of those whose values are explanations.

``{enum-table} proxfield.Status`` writes such a table.
"""

from __future__ import annotations

from enum import Enum
from importlib import import_module

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class EnumTable(SphinxDirective):
    """One row per member: its name and its value."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        module, _, name = self.arguments[0].rpartition(".")
        members: type[Enum] = getattr(import_module(module), name)
        body = nodes.tbody()
        for member in members:
            label = nodes.paragraph("", "", nodes.literal(member.name, member.name))
            value = str(member.value)
            text = nodes.paragraph("", f"{value[0].upper()}{value[1:]}.")
            body += nodes.row("", nodes.entry("", label), nodes.entry("", text))
        head = nodes.row(
            "", *(nodes.entry("", nodes.paragraph("", t)) for t in ("status", "meaning"))
        )
        group = nodes.tgroup(
            "",
            nodes.colspec(colwidth=20),
            nodes.colspec(colwidth=80),
            nodes.thead("", head),
            body,
            cols=2,
        )
        return [nodes.table("", group, classes=["colwidths-auto"])]


def list_members(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Add the members to the docstring of an enumeration."""
    if isinstance(obj, type) and issubclass(obj, Enum):
        lines += ["", ".. rubric:: Members", ""]
        for member in obj:
            text = f": {member.value}" if isinstance(member.value, str) else ""
            lines.append(f"- ``{member.name}``{text}")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", list_members)
    app.add_directive("enum-table", EnumTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
