"""Shapes in docstrings: a trailing comment ``# (n_vars, n_labels)`` becomes a literal.

Docstrings state the shape of an array as the code does. In the text of a page, the comment's sign
would only confuse, and its stars would be read as markup.
"""

from __future__ import annotations

import re

from sphinx.application import Sphinx

COMMENT = re.compile(r"(?P<text>^\s*|.*?\s\s)# (?P<shape>.*[^`\s])\s*$")
BEFORE_NAPOLEON = 400


def mark_shapes(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Rewrite the lines of a docstring in place, except for examples."""
    for number, line in enumerate(lines):
        found = COMMENT.match(line)
        if found and not line.lstrip().startswith((">>>", "...")):
            lines[number] = f"{found['text']}``{found['shape']}``"


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", mark_shapes, priority=BEFORE_NAPOLEON)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
