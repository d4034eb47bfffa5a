"""Fields and results as small HTML tables, which notebooks show in place of their repr."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from proxfield.core.terms.names import listed

if TYPE_CHECKING:
    from proxfield.field import Field
    from proxfield.result import Result

MAX_ROWS = 8
"""Maximum number of variables whose marginals are shown."""
MAX_LABELS = 6
"""Maximum number of labels of such a variable."""


def field_html(field: Field) -> str:
    """A field's sizes, names and terms."""
    sizes = np.unique(field.cardinalities).tolist()
    labels = " to ".join(str(n) for n in dict.fromkeys((*sizes[:1], *sizes[-1:])))
    rows = [("variables", f"{field.n_vars:,}"), ("labels", labels or "none")]
    if field.names:
        rows.append(("names", listed(field.names)))
    if field.label_names and field.layout.names and field.layout.names.shared:
        rows.append(("label names", listed(field.layout.names.shared)))
    seen = int((field.evidence >= 0).sum())
    if seen:
        rows.append(("observed", f"{seen:,}"))
    kinds = (name if n == 1 else f"{name} ×{n}" for name, n in field.kinds.items())
    rows.append(("terms", listed(kinds) or "none"))
    return _table(type(field).__name__, rows)


def result_html(result: Result) -> str:
    """How an inference ended, and the marginals of the first variables."""
    bound = result.log_z_bound
    rows = [
        ("status", result.message if result.asked else f"{result.status.label}: {result.message}"),
        ("rule", result.rule),
        ("iterations", f"{result.iterations:,}"),
        ("seconds", f"{result.seconds:.3g}"),
        ("free energy F", f"{result.free_energy:.9g}"),
        ("log Z", f"at least {bound:.9g}" if np.isfinite(bound) else "no bound"),
    ]
    rows += [
        (f"mode {k + 1}", f"weight {mode.weight:.3g}, F {mode.free_energy:.9g}; {mode.cell}")
        for k, mode in enumerate(result.modes[:MAX_ROWS])
    ]
    field = result.field
    names, offsets = field.layout.names, field.layout.offsets
    for v in range(min(field.n_vars, MAX_ROWS)):
        q = result.q[offsets[v] : offsets[v + 1]]
        words = None if names is None else names.labels(v)
        shown = (
            f"{label if words is None else words[label]}: {p:.3f}"
            for label, p in enumerate(q[:MAX_LABELS].tolist())
        )
        more = "" if len(q) <= MAX_LABELS else ", …"
        rows.append((f"q of {field.layout.show(v)}", ", ".join(shown) + more))
    if field.n_vars > MAX_ROWS:
        rows.append(("", f"… and of {field.n_vars - MAX_ROWS:,} more variables"))
    return _table(type(result).__name__, rows)


def _table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """A table of two columns; all text is escaped."""
    body = "".join(
        f"<tr><th style='text-align:left'>{escape(key)}</th>"
        f"<td style='text-align:left'>{escape(value)}</td></tr>"
        for key, value in rows
    )
    return f"<table><caption>{escape(title)}</caption><tbody>{body}</tbody></table>"
