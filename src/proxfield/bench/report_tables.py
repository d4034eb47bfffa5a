"""The report's tables, as HTML that reads well aloud, too."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from proxfield.bench.exact import Gaps
from proxfield.bench.published import FULL_NAMES
from proxfield.bench.table import Cell, Table, budget_name, lowest, show
from proxfield.viz.page import minus, scrolling, swatch
from proxfield.viz.style import rule_style

BEST = '<span aria-hidden="true">★ </span><span class="hidden">best: </span>'
PUBLISHED_BEST = '<span aria-hidden="true">☆ </span><span class="hidden">best published: </span>'


def main_table(table: Table, papers_own: dict[str, bool]) -> str:
    """Table 1: our F, and the published one underneath."""
    caption = (
        "Mean F, lower is better; underneath, small: the published value. "
        "★ is the best of its column, ☆ the best published."
    )
    body = "".join(
        f"<tr>{_rule_header(rule, place)}"
        + "".join(
            _cell(table.cells[rule, s, b], first=b == table.budgets[0])
            for s in table.suites
            for b in table.budgets
        )
        + "</tr>"
        for place, rule in enumerate(table.rules)
    )
    html = (
        f"<table><caption>{caption}</caption>{_head(table)}<tbody>{body}</tbody>"
        f"<tfoot>{_difference_row(table, papers_own)}</tfoot></table>"
    )
    return scrolling(html, "Mean F by rule, set and budget")


def _head(table: Table, corner: str = "rule") -> str:
    """Two rows of headers: the suites, and the budgets below each."""
    suites = "".join(
        f'<th scope="colgroup" colspan="{len(table.budgets)}" class="first">{escape(s)}'
        f"<small>{_size(table, s)}</small></th>"
        for s in table.suites
    )
    budgets = "".join(
        f'<th scope="col"{_first(b == table.budgets[0])}>{budget_name(b)}</th>'
        for _ in table.suites
        for b in table.budgets
    )
    return (
        f'<thead><tr><th scope="col" rowspan="2" class="corner">{corner}</th>{suites}</tr>'
        f"<tr>{budgets}</tr></thead>"
    )


def _size(table: Table, suite: str) -> str:
    count, models = table.counts[suite], table.models[suite]
    text = "1 instance" if count == 1 else f"{count} instances"
    return text if count == models else f"{text}, {models} models"


def joined(names: Sequence[str]) -> str:
    """Names in a sentence.

    Example:
        >>> joined(["a", "b", "c"])
        'a, b and c'
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _first(first: bool) -> str:
    return ' class="first"' if first else ""


def _rule_header(rule: str, place: int) -> str:
    name = rule_style(rule, place).paper_name
    small = f"<small>{escape(name)}</small>" if name else "<small>not in the paper</small>"
    return f'<th scope="row">{swatch(rule, place)}{escape(rule)}{small}</th>'


def _cell(cell: Cell, first: bool) -> str:
    classes = " ".join(["first"] * first + ["best"] * cell.best)
    mark = BEST if cell.best else ""
    theirs = PUBLISHED_BEST if cell.published_best else ""
    below = f"<small>{theirs}{minus(show(cell.published))}</small>"
    attribute = f' class="{classes}"' if classes else ""
    return f"<td{attribute}>{mark}{minus(show(cell.value))}{below}</td>"


def _difference_row(table: Table, papers_own: dict[str, bool]) -> str:
    """Our best against the best published, by column; only where the instances are the same."""
    if not any(papers_own.get(suite) for suite in table.suites):
        return ""
    cells = []
    for suite in table.suites:
        for budget in table.budgets:
            ours, theirs = _bests(table, suite, budget)
            text = "–"
            if papers_own.get(suite) and ours is not None and theirs is not None:
                text = f"{ours - theirs:+.2f}"
            cells.append(f"<td{_first(budget == table.budgets[0])}>{minus(text)}</td>")
    return f'<tr><th scope="row">best − best published</th>{"".join(cells)}</tr>'


def _bests(table: Table, suite: str, budget: float) -> tuple[float | None, float | None]:
    column = [table.cells[rule, suite, budget] for rule in table.rules]
    return lowest([c.value for c in column]), lowest([c.published for c in column])


def headlines(table: Table, papers_own: dict[str, bool]) -> str:
    """The outcome in a sentence per suite, at the largest budget."""
    budget = max(table.budgets)
    items = []
    for suite in table.suites:
        best = [r for r in table.rules if table.cells[r, suite, budget].best]
        ours, theirs = _bests(table, suite, budget)
        if not best or ours is None:
            continue
        names = joined([f"<strong>{escape(r)}</strong>" for r in best])
        text = (
            f"{escape(suite)} ({escape(FULL_NAMES.get(suite, ''))}): {names} "
            f"{'is' if len(best) == 1 else 'are'} best after {budget_name(budget)}, "
            f"F = {minus(show(ours))}"
        )
        if theirs is not None and papers_own.get(suite):
            how = f"{minus(f'{ours - theirs:+.2f}')} against the best published"
            text += f" ({how}, {minus(show(theirs))})"
        items.append(f"<li>{text}.</li>")
    return f"<ul>{''.join(items)}</ul>" if items else ""


def effort_table(table: Table, tol: float) -> str:
    """Iterations and convergence behind the main table."""
    body = ""
    for place, rule in enumerate(table.rules):
        cells = ""
        for suite in table.suites:
            for budget in table.budgets:
                cell = table.cells[rule, suite, budget]
                its = "–" if cell.iterations is None else f"{cell.iterations:,.0f}"
                settled = f"{cell.settled} of {table.counts[suite]}"
                first = _first(budget == table.budgets[0])
                cells += f"<td{first}>{its}<small>{settled}</small></td>"
        body += f'<tr><th scope="row">{swatch(rule, place)}{escape(rule)}</th>{cells}</tr>'
    caption = (
        f"Iterations, the median over the models; underneath, small: instances that converged "
        f"(no marginal changes by more than {tol:g}) within the budget."
    )
    html = f"<table><caption>{caption}</caption>{_head(table)}<tbody>{body}</tbody></table>"
    return scrolling(html, "Iterations and convergence")


def gap_table(gaps: Gaps) -> str:
    """Gap to the exact log Z and error of the marginals, families by rules."""
    head = "".join(f'<th scope="col">{escape(rule)}</th>' for rule in gaps.rules)
    body = ""
    for family, count in gaps.counts.items():
        cells = ""
        for rule in gaps.rules:
            gap = gaps.cells[family, rule]
            error = "–" if gap.error is None else f"{gap.error:.3f}"
            mark, best = (BEST, ' class="best"') if gap.best else ("", "")
            value = minus(show(gap.value))
            cells += f"<td{best}>{mark}{value}<small>{error}</small></td>"
        models = f"<small>{count} {'model' if count == 1 else 'models'}</small>"
        body += f'<tr><th scope="row">{escape(family)}{models}</th>{cells}</tr>'
    caption = "log Z − bound; underneath, small: mean absolute error of the marginals. ★ is best."
    html = (
        f"<table><caption>{caption}</caption><thead><tr>"
        f'<th scope="col" class="corner">family</th>{head}</tr>'
        f"</thead><tbody>{body}</tbody></table>"
    )
    return scrolling(html, "Gap to the exact log Z")
