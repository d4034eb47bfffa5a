"""The report: complete, self-contained, and drawn by a real browser."""

from __future__ import annotations

import builtins
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from proxfield.viz.page import minus
from proxfield.viz.style import RULE_STYLES, rule_style

RULES = ("sweep", "fixed", "momentum")
QUICK = ("--budgets", "0.01,0.02", "--rules", ",".join(RULES), "--threads", "1")
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


class Tags(HTMLParser):
    """Tags with their attributes, and the text of the table cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._script = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._script = False

    def handle_data(self, data: str) -> None:
        if not self._script:
            self.text += data

    def ids(self, kind: str) -> list[str]:
        return [str(a["id"]) for _, a in self.tags if kind in (a.get("class") or "").split()]


@pytest.fixture
def page(whole_report: Any) -> str:
    """The text of the whole report."""
    return str((whole_report[1] / "r.html").read_text(encoding="utf-8"))


def test_every_cell_of_the_table_is_in_the_report(whole_report: Any, page: str) -> None:
    out = whole_report[0]
    cells = set(re.findall(r"-?\d+\.\d\d\b", out.stdout))
    assert len(cells) > 5
    tags = Tags(page)
    for cell in cells:
        assert minus(cell) in tags.text
    for rule in RULES:
        assert re.search(rf'<th scope="row">.*?{rule}<small>', page)
    assert page.count("★") >= 6 and "best: " in tags.text  # marked beyond color
    assert "<caption>" in page and 'scope="colgroup"' in page
    assert "Run it again" in tags.text and "Machine and versions" in tags.text


def test_the_exact_gap_is_shown(whole_report: Any, page: str) -> None:
    assert re.search(r"Coins<small>1 model</small></th><td>0\.00<small>0\.000</small>", page)
    text = (whole_report[1] / "bench-paper.jsonl").read_text(encoding="utf-8")
    records = [json.loads(line) for line in text.splitlines()]
    gaps = [r["log_z"] + r["free_energy"] for r in records if r["kind"] == "exact"]
    assert len(gaps) == len(RULES) and max(map(abs, gaps)) < 1e-6


def test_the_page_loads_nothing(page: str) -> None:
    for tag, attributes in Tags(page).tags:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            value = attributes.get(name) or ""
            assert not re.match(r"(?:https?:)?//", value), f"<{tag} {name}={value!r}>"
        assert tag not in ("link", "iframe", "object", "embed", "img"), tag
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style and "@import" not in style
    assert page.count("* plotly.js v") == 1
    assert "showSendToCloud: false" in page  # plotly.js would offer to upload the data


def test_pictures_lie_beside_the_report(whole_report: Any) -> None:
    folder = whole_report[1] / "r-figures"
    names = {p.name for p in folder.iterdir()}
    stems = [f"{k}-{s}" for k in ("convergence", "sensitivity") for s in ("DBN", "GRID", "SEG")]
    assert names == {f"{stem}.{kind}" for stem in stems for kind in ("png", "svg")}
    assert (folder / "convergence-GRID.png").read_bytes().startswith(b"\x89PNG")


def test_strange_names_can_not_break_out(
    invoke: Callable[..., Any], data: Path, tmp_path: Path
) -> None:
    (tmp_path / "d" / "SEG").mkdir(parents=True)
    name = "</script><script>alert(1)</script>".replace("/", "∕")
    model = tmp_path / "d" / "SEG" / f"{name}<b>.uai"
    model.write_bytes((data / "SEG" / "picture.uai").read_bytes())
    out = invoke("bench", "paper", "--data", "d", *QUICK, "--report", "r.html")
    assert out.exit_code == 0, out.stderr
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<b>" not in page.split("* plotly.js v")[0] and "alert(1)</" not in page


def chromium(page: Path, profile: Path, *options: str) -> tuple[str, str]:
    """The page's document after its scripts have run, and what the browser logged."""
    assert CHROMIUM is not None
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--enable-logging=stderr",
        "--v=0",
        "--virtual-time-budget=10000",
        "--window-size=1200,3000",
    ]
    done = subprocess.run(
        [CHROMIUM, *flags, f"--user-data-dir={profile}", *options, "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=600,
        check=True,
    )
    return done.stdout, done.stderr


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_draws_every_chart(
    whole_report: Any, page: str, tmp_path: Path, scheme: str
) -> None:
    dark = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    dom, log = chromium(whole_report[1] / "r.html", tmp_path / "profile", *dark)
    places = Tags(page).ids("plot")
    assert len(places) == 2 * 3 + 3  # time and iterations, and one budget of Figure 2
    root = dict(Tags(dom).tags[0][1])
    assert root.get("data-errors") is None and root.get("data-drawn") == str(len(places))
    assert "CONSOLE" not in log, log
    starts = [dom.index(f'id="{i}"') for i in places]
    ends = [*starts[1:], dom.index("application/json")]
    for name, start, end in zip(places, starts, ends, strict=True):
        part = dom[start:end]
        assert "main-svg" in part, name
        curves = 3 if name.startswith("sensitivity") else len(RULES)
        assert part.count('class="trace scatter') == curves, name
    colors = {s.dark if dark else s.color for s in map(rule_style, RULES)}
    for color in colors:
        r, g, b = (int(color[k : k + 2], 16) for k in (1, 3, 5))
        assert f"stroke: rgb({r}, {g}, {b})" in dom
    assert 'data-title="Zoom"' in dom and 'data-title="Share' not in dom


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)")
def test_the_page_notices_its_own_errors(page: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    broken.write_text(page.replace("drawAll().then", "nothing(); drawAll().then"), "utf-8")
    dom, log = chromium(broken, tmp_path / "profile")
    assert "nothing is not defined" in (Tags(dom).tags[0][1].get("data-errors") or "")
    assert "CONSOLE" in log


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make a package impossible to import."""

    def hide(package: str) -> None:
        import sys

        real = builtins.__import__

        def refuse(name: str, *rest: Any, **more: Any) -> Any:
            if name.split(".")[0] == package:
                raise ImportError(name)
            return real(name, *rest, **more)

        for name in [n for n in sys.modules if n.split(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)
        monkeypatch.setattr(builtins, "__import__", refuse)

    return hide


def test_a_report_without_plotly_says_what_to_install(
    invoke: Callable[..., Any], data: Path, counter: Any, without: Callable[[str], None]
) -> None:
    without("plotly")
    out = invoke("bench", "paper", "--data", data, *QUICK, "--report", "r.html")
    assert out.exit_code == 2 and counter.timed == 0
    assert 'the report needs plotly: pip install "proxfield[bench]"' in out.stderr
    assert invoke("bench", "paper", "--data", data, *QUICK).exit_code == 0


def test_a_report_without_matplotlib_does_without_pictures(
    invoke: Callable[..., Any], data: Path, without: Callable[[str], None], tmp_path: Path
) -> None:
    without("matplotlib")
    out = invoke("bench", "paper", "--data", data, *QUICK, "--report", "r.html")
    assert out.exit_code == 0 and "no pictures beside the report" in out.stderr
    assert (tmp_path / "r.html").exists()
    out = invoke("bench", "paper", "--data", data, *QUICK, "--figures", "f")
    assert out.exit_code == 2 and 'pip install "proxfield[bench]"' in out.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_keeps_the_results(
    invoke: Callable[..., Any], data: Path, counter: Any, tmp_path: Path
) -> None:
    out = invoke(
        "bench", "paper", "--data", data, *QUICK, "--report", "/dev/full", "--figures", "f"
    )
    assert out.exit_code == 2
    assert "/dev/full: can't write (No space left on device)" in out.stderr
    assert "all results are safe in bench-paper.jsonl" in out.stderr
    assert out.stdout.startswith("DBN")  # the table came first
    before = counter.timed
    out = invoke("bench", "paper", "--data", data, *QUICK, "--report", "r.html", "--figures", "f")
    assert out.exit_code == 0 and counter.timed == before
    assert (tmp_path / "r.html").exists()


def test_a_report_of_the_sensitivity_alone(
    invoke: Callable[..., Any], data: Path, tmp_path: Path
) -> None:
    options = ("--data", data, "--suite", "SEG", "--budgets", "0.01,0.02", "--etas", "0.3,1")
    out = invoke("bench", "sensitivity", *options, "--report", "s.html", "--figures", "pics")
    assert out.exit_code == 0, out.stderr
    tags = Tags((tmp_path / "s.html").read_text(encoding="utf-8"))
    assert tags.ids("plot") == ["sensitivity-SEG-0_01", "sensitivity-SEG-0_02"]
    assert sorted(p.name for p in (tmp_path / "pics").iterdir()) == [
        "sensitivity-SEG.png",
        "sensitivity-SEG.svg",
    ]


def test_every_rule_looks_different() -> None:
    looks = [(s.color, s.dash) for s in RULE_STYLES.values()]
    assert len(set(looks)) == len(looks)
    assert len({rule_style("mine", k) for k in range(12)}) == 12
