"""Pictures and scripts: none is forgotten, and the check of pictures tells a stale one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from pages import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
figures = pytest.importorskip("figures")
Image = pytest.importorskip("PIL.Image")


def test_every_picture_has_code_and_a_record() -> None:
    committed = {path.stem for path in figures.IMAGES.glob("*.png")}
    assert committed == set(figures.PICTURES) == set(json.loads(figures.RECORD.read_text("utf-8")))
    for picture in figures.PICTURES.values():
        assert all((ROOT / name).exists() for name in picture.sources)


def test_make_demo_draws_the_first_picture() -> None:
    demo = (ROOT / "examples/demo.py").read_text(encoding="utf-8")
    assert f'GRID = "{figures.DEMO_GRID}"' in demo
    assert f'RULES = "{figures.DEMO_RULES}"' in demo
    assert '"--rules", RULES, "--max-iters", "2000", "--plot", plot' in demo
    record = json.loads(figures.RECORD.read_text("utf-8"))["convergence"]["numbers"]
    lowest = f"{min(record.values()):.2f}".replace("-", "−")
    assert lowest in (ROOT / "README.md").read_text(encoding="utf-8")
    assert [key.removeprefix("F of ") for key in record] == figures.DEMO_RULES.split(",")


def test_a_stale_picture_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = tmp_path / "images"
    images.mkdir()
    monkeypatch.setattr(figures, "IMAGES", images)
    monkeypatch.setattr(figures, "RECORD", images / "figures.json")
    drawn = {"gray": 100, "number": 1.0}

    def make(folder: Path) -> dict[str, float]:
        pixels = np.full((60, 80, 3), 200, dtype=np.uint8)
        pixels[20:40, 20:60] = drawn["gray"]
        Image.fromarray(pixels).save(folder / "one.png")
        return {"number": float(drawn["number"])}

    (tmp_path / "code.py").write_text("1")
    picture = figures.Picture(make, (str(tmp_path / "code.py"),), 1)
    slow = figures.Picture(make, picture.sources, 1000)
    assert figures.check("one", picture, {}, quick=True) == ["it was never made"]
    figures.remake("one", picture)
    known = figures.read_record()
    assert figures.check("one", picture, known, quick=True) == []
    assert figures.check("one", slow, known, quick=True) == []
    drawn["gray"] = 101  # as fonts differ between machines
    assert figures.check("one", picture, known, quick=True) == []
    drawn["gray"] = 180
    assert "pixels differ" in figures.check("one", picture, known, quick=True)[0]
    drawn.update(gray=100, number=1.01)
    found = figures.check("one", picture, known, quick=True)
    assert found == ["number was 1, is 1.01"]
    (tmp_path / "code.py").write_text("2")
    assert "changed since it was made" in figures.check("one", slow, known, quick=True)[0]
    Image.new("RGB", (80, 60)).save(images / "one.png")
    assert "isn't the recorded picture" in figures.check("one", slow, known, quick=True)[0]


def test_the_page_names_every_script() -> None:
    page = (ROOT / "docs/benchmarks/reproduce.md").read_text(encoding="utf-8")
    missing = [p.name for p in (ROOT / "benchmarks").glob("*.py") if f"`{p.name}`" not in page]
    assert not missing
