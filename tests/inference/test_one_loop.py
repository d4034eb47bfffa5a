"""Who may drive iterations: the loop. Every other module hands its program to it."""

from __future__ import annotations

import ast
from pathlib import Path

import proxfield

SOURCE = Path(proxfield.__file__).parent
ALLOWED = {
    "core/solve/loop.py": "the loop",
    "core/engines/": "programs that consist of others, and their warm-up",
    "distributed/program.py": "a program whose kernels are those of one rank",
    "bench/people_work.py": "counts gradients between single updates",
}
"""Files and folders that may ask a program for updates, and why."""
NAMES = {"advance": 5, "advance_each": 6}
"""Methods of programs that make updates, and their number of arguments."""


def updates(path: Path) -> list[int]:
    """Lines that ask for updates of a program."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and len(node.args) + len(node.keywords) == NAMES.get(node.func.attr)
    ]


def test_only_the_loop_drives_iterations() -> None:
    found = {str(p.relative_to(SOURCE)): updates(p) for p in sorted(SOURCE.rglob("*.py"))}
    found = {name: lines for name, lines in found.items() if lines}
    assert "core/solve/loop.py" in found  # it is seen where it is
    others = {name: lines for name, lines in found.items() if not name.startswith((*ALLOWED,))}
    assert not others, f"hand the program to core.solve.loop instead: {others}"
    for place in ALLOWED:
        assert any(name.startswith(place) for name in found), f"{place} needs no exception"
