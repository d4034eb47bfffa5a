"""The tables of the page are those of the stored results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from proxfield.bench.peers.tables import TextTable, as_markdown, make_tables

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "benchmarks" / "which-tool.md"
RESULTS = ROOT / "benchmarks" / "results" / "peers.json"
SHOWN = {
    "Marginals": "Mean absolute error of marginals",
    "log Z": "log Z of the tool − exact log Z (mean)",
    "Time": "CPU seconds per model (median, warm)",
    "Labellings": "Labellings: outcomes",
    "Images": "Images: ten updates of the same dense CRF",
}
"""Titles of stored tables by the page's headings."""


@pytest.fixture(scope="module")
def stored() -> dict[str, TextTable]:
    runs = json.loads(RESULTS.read_text(encoding="utf-8"))["runs"]
    return {table.title: table for table in make_tables(runs)}


@pytest.mark.parametrize("heading", SHOWN)
def test_tables_of_the_page(heading: str, stored: dict[str, TextTable]) -> None:
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    table = stored[SHOWN[heading]]
    columns = [table.header.index(name) for name in cells[0]]
    assert cells[2:] == [[row[k] for k in columns] for row in table.rows]


def test_stored_markdown_is_made_of_the_stored_results() -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert (RESULTS.with_suffix(".md")).read_text(encoding="utf-8") == as_markdown(results)
