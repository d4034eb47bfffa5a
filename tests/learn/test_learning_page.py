"""The code of docs/how-to/learning.md runs, from top to bottom, and gives what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "learning.md"


@pytest.mark.slow
def test_the_pages_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 4
    scope: dict[str, Any] = {}
    for block in blocks:
        exec(block, scope)
    found = scope["weights"]
    said = re.search(r'`\{"unary": ([\d.]+), "smooth": ([\d.]+)\}`', text)
    assert said is not None
    assert found["unary"] == pytest.approx(float(said[1]), abs=0.01)
    assert found["smooth"] == pytest.approx(float(said[2]), abs=0.01)
    assert scope["model"].score(scope["graphs"][20:], scope["labels"][20:]) > 0.79
    assert scope["snakes"].score(scope["X"][200:], scope["y"][200:]) >= 0.995
