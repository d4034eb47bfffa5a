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

from proxfield.viz.charts import RULE_STYLES, rule_style

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
        assert cell.replace("-", "−") in tags.text
    for rule in RULES:
        assert re.search(rf'<th scope="row">.*?{rule}<small>', page)
    assert page.count("★") >= 6 and "best: " in tags.text  # marked beyond color
    assert "<caption>" in page and 'scope="colgroup"' in page
    assert "Run it again" in tags.text and "Machine and versions" in tags.text


def test_the_exact_gap_is_shown(whole_report: Any, page: str) -> None:
    row = r"Coins<small>1 model</small></th><td>3\.69</td><td>0\.00<small>0\.000</small>"  # log 40
    assert re.search(row, page)
    text = (whole_report[1] / "bench-paper.jsonl").read_text(encoding="utf-8")
    records = [json.loads(line) for line in text.splitlines()]
    gaps = [r["log_z"] + r["free_energy"] for r in records if r["kind"] == "exact"]
    assert len(gaps) == len(RULES) and max(map(abs, gaps)) < 1e-6


def test_the_page_loads_nothing(page: str) -> None:
    for tag, attributes in Tags(page).tags:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            value = attributes.get(name) or ""
            assert not re.match(r"(?:https?:)?//", value), f"<{tag} {name}={value!r}>"
            assert name != "href" or not value or value.startswith("#"), value
        assert tag not in ("link", "iframe", "object", "embed", "img"), tag
    style = page[page.index("<style>") : page.index("</style>")]
    assert "url(" not in style and "@import" not in style


def test_the_page_is_small(page: str) -> None:
    assert len(page.encode()) < 1_000_000  # of 2 MB that a report of everything may have


def charts_of(page: str) -> dict[str, dict[str, Any]]:
    """What the page's script knows of the charts, by id."""
    text = page.split('id="charts">')[1].split("</script>")[0]
    return {chart["id"]: chart for chart in json.loads(text)}


def timed_runs(
    records: list[dict[str, Any]], suite: str, instance: str
) -> dict[str, tuple[float, int]]:
    """F and iterations of the longest timed run on one instance, by rule."""
    found: dict[str, tuple[float, int]] = {}
    for r in records:
        if r["kind"] != "run" or (r["suite"], r["instance"]) != (suite, instance):
            continue
        if r["budget"] == 0.02:
            found[r["rule"]] = (r["free_energy"], r["iterations"])
    return found


def test_every_curve_ends_at_the_value_of_the_timed_run(whole_report: Any, page: str) -> None:
    text = (whole_report[1] / "bench-paper.jsonl").read_text(encoding="utf-8")
    records = [json.loads(line) for line in text.splitlines()]
    charts = charts_of(page)
    for suite in ("DBN", "GRID", "SEG"):
        instance = next(
            r["instance"] for r in records if r["kind"] == "trace" and r["suite"] == suite
        )
        timed = timed_runs(records, suite, instance)
        assert set(timed) == set(RULES)
        for axis in ("seconds", "iterations"):
            for curve in charts[f"convergence-{suite}-{axis}"]["curves"]:
                f, iterations = timed[curve["name"]]
                assert curve["values"][0][-1] == pytest.approx(f, abs=1e-6)
                assert curve["values"][1][-1] == iterations
    # SEG is one picture, so its curves end at the table's own values
    for curve in charts["convergence-SEG-seconds"]["curves"]:
        assert f"{curve['values'][0][-1]:.2f}" in cells_of(whole_report, "SEG", curve["name"])


def blocks_of(whole_report: Any, suite: str) -> str:
    """The printed table of a suite."""
    blocks = whole_report[0].stdout.split("\n\n")
    return next(block for block in blocks if block.startswith(f"{suite}:"))


def cells_of(whole_report: Any, suite: str, rule: str) -> list[str]:
    """A printed row."""
    lines = blocks_of(whole_report, suite).splitlines()
    return next(line.split() for line in lines if line.split()[0] == rule)


def test_the_lowest_curve_lies_on_the_bottom_line(page: str) -> None:
    for suite in ("DBN", "GRID", "SEG"):
        chart = charts_of(page)[f"convergence-{suite}-iterations"]
        ends = {c["name"]: (c["values"][0][-1], c["y"][-1]) for c in chart["curves"]}
        f, height = min(ends.values())
        assert height == chart["zero"]
        order = sorted(ends.values())  # SVG counts downwards: a higher F is a smaller y
        assert [y for _, y in order] == sorted((y for _, y in order), reverse=True)
        caption = f"0 = lowest F seen: {f:.2f}".replace("-", "−")
        assert caption in page.split(f'id="convergence-{suite}-iterations"')[1]


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
    assert "<b>" not in page and "<script>alert" not in page and "alert(1)</script" not in page


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
    for name, chart in charts_of(page).items():
        part = dom.split(f'id="{name}"')[1].split("</svg>")[0]
        drawn = set(re.findall(r'data-curve="(\d+)"', part))
        assert drawn == {str(k) for k in range(len(chart["curves"]))}, name


WIDTHS = """{
document.documentElement.dataset.width = document.documentElement.scrollWidth;
const rgb = e => getComputedStyle(e).stroke;
const first = document.querySelector('#convergence-SEG-seconds [data-curve="1"] path');
document.documentElement.dataset.stroke = rgb(first);
const all = document.querySelectorAll('.legend[data-group="convergence"] button');
all[1].click();
const shown = [...document.querySelectorAll('#convergence-SEG-seconds [data-curve="1"]')];
document.documentElement.dataset.hid = shown.every(e => e.style.display === "none");
}"""


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)")
@pytest.mark.parametrize(("width", "scheme"), [(400, "light"), (1280, "dark")])
def test_a_narrow_page_does_not_scroll_sideways(
    page: str, tmp_path: Path, width: int, scheme: str
) -> None:
    # headless Chromium's windows are at least 500 pixels wide: the page goes into a frame
    inside = tmp_path / "inside.html"
    inside.write_text(page.replace("</body>", f"<script>{WIDTHS}</script></body>"), "utf-8")
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<!doctype html><iframe src="inside.html" width="{width}" height="900" '
        'onload="const d = this.contentDocument.documentElement.dataset;'
        'Object.assign(document.documentElement.dataset, d)"></iframe>',
        "utf-8",
    )
    dark = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    dom, _ = chromium(frame, tmp_path / "profile", "--allow-file-access-from-files", *dark)
    root = dict(Tags(dom).tags[0][1])
    assert root.get("data-errors") is None
    assert 0 < int(str(root["data-width"])) <= width
    style = rule_style("fixed")
    color = style.dark if dark else style.color
    r, g, b = (int(color[k : k + 2], 16) for k in (1, 3, 5))
    assert root["data-stroke"] == f"rgb({r}, {g}, {b})"
    assert root["data-hid"] == "true"


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)")
def test_the_page_notices_its_own_errors(page: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    broken.write_text(page.replace("const off = {};", "const off = {}; nothing();"), "utf-8")
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


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_a_report_says_what_to_install(
    invoke: Callable[..., Any],
    data: Path,
    counter: Any,
    without: Callable[[str], None],
    package: str,
) -> None:
    without(package)
    out = invoke("bench", "paper", "--data", data, *QUICK, "--report", "r.html")
    assert out.exit_code == 2 and counter.timed == 0
    assert f'the report needs {package}: pip install "proxfield[bench]"' in out.stderr
    assert invoke("bench", "paper", "--data", data, *QUICK).exit_code == 0


def test_pictures_need_matplotlib(
    invoke: Callable[..., Any], data: Path, without: Callable[[str], None]
) -> None:
    without("matplotlib")
    out = invoke("bench", "paper", "--data", data, *QUICK, "--figures", "f")
    assert out.exit_code == 2 and "pictures need matplotlib: pip install" in out.stderr


@pytest.mark.slow
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
