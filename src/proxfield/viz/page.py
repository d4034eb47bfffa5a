"""A page that loads nothing: its style sheet, and small pieces of HTML.

Reports of the benchmarks use the same style sheet (``page.css``) with templates of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib.resources import files


def page_style() -> str:
    """The style sheet of pages; fonts are the reader's own."""
    return files("proxfield.viz").joinpath("page.css").read_text(encoding="utf-8")


def whole_page(title: str, body: str) -> str:
    """A page of some markup."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{page_style()}</style>\n"
        f"</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def paragraphs(*texts: str) -> str:
    """Plain texts as paragraphs."""
    return "\n".join(f"<p>{escape(t)}</p>" for t in texts)


def scrolling(table: str, label: str) -> str:
    """A table that scrolls sideways where it doesn't fit."""
    return (
        f'<div class="scroll" role="region" aria-label="{escape(label)}" tabindex="0">{table}</div>'
    )


def definitions(pairs: Iterable[tuple[str, str]]) -> str:
    """What and how much."""
    rows = "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in pairs)
    return f"<dl>{rows}</dl>"
