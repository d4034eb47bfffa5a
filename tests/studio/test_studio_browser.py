"""The page in headless Chromium: load, move, scribble, save, copy, upload; no other host.

Pictures of the page go to the folder that PROXFIELD_SCREENSHOTS names, for people to look at.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image
from studio_cases import SHAPE

import proxfield as pf
from conftest import Running
from proxfield.io.images import label_colors
from proxfield.studio.inputs import read_files
from proxfield.studio.session import StudioSession

WAIT = 40_000
"""Milliseconds: a busy machine may take long."""


class Tab:
    """One tab and all that it asked for."""

    def __init__(self, context: Any, studio: Running) -> None:
        self.page = context.new_page()
        self.studio = studio
        self.asked: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda r: self.asked.append(r.url))
        self.page.on("websocket", lambda w: self.asked.append(w.url))
        self.page.on("pageerror", lambda e: self.errors.append(str(e)))
        self.page.on("console", lambda m: m.type == "error" and self.errors.append(m.text))
        self.page.set_default_timeout(WAIT)
        self.page.goto(studio.address)
        self.settle()

    def settle(self) -> str:
        """Wait until the result at full resolution is there; returns its address."""
        self.page.wait_for_selector(".pf-status[data-done]:not([data-done=''])")
        self.page.wait_for_selector('[data-panel="result"] .pf-labels[src]')
        return self.source("result")

    def source(self, panel: str) -> str:
        found = self.page.get_attribute(f'[data-panel="{panel}"] img >> nth=1', "src")
        return str(found)

    def changed(self, act: Callable[[], object]) -> np.ndarray:
        """Do something that computes anew; returns the labels at full resolution."""
        before = self.page.get_attribute(".pf-status", "data-done")
        act()
        self.page.wait_for_function(
            "(v) => ![v, ''].includes(document.querySelector('.pf-status').dataset.done ?? '')",
            arg=before,
        )
        return self.labels()

    def labels(self, panel: str = "result") -> np.ndarray:
        """The labels of a panel, from the colors of its picture; -1 where it is transparent."""
        self.page.wait_for_function(
            '(p) => { const i = document.querySelectorAll(`[data-panel="${p}"] img`)[1];'
            " return i.complete && i.naturalWidth > 0; }",
            arg=panel,
        )
        url = self.studio.address.rstrip("/") + self.source(panel)
        answer = self.page.context.request.get(url)
        rgba = np.array(Image.open(io.BytesIO(answer.body())).convert("RGBA")).astype(int)
        out = np.full(rgba.shape[:2], -1)
        for label, color in enumerate(label_colors(3).astype(int)):
            out[(rgba[..., :3] == color).all(-1) & (rgba[..., 3] == 255)] = label
        return out

    def slider(self, name: str) -> Any:
        return self.page.get_by_role("slider", name=name, exact=True)


@contextmanager
def opened(browser: Any, studio: Running, **options: Any) -> Iterator[Tab]:
    context = browser.new_context(**options)
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=studio.address)
    tab = Tab(context, studio)
    try:
        yield tab
        assert tab.errors == []
        elsewhere = [u for u in tab.asked if urlsplit(u).scheme not in ("data", "blob")]
        elsewhere = [u for u in elsewhere if urlsplit(u).netloc != urlsplit(studio.address).netloc]
        assert tab.asked and elsewhere == []
    finally:
        context.close()


@pytest.fixture
def tab(browser: Any, studio: Running) -> Iterator[Tab]:
    with opened(browser, studio, viewport={"width": 1280, "height": 900}) as made:
        yield made


def session_of(studio: Running) -> StudioSession:
    files = studio.files
    inputs = read_files(files["image"], files["probs"], "probabilities", truth=files["truth"])
    return StudioSession(inputs, "krahenbuehl")


def computed(session: StudioSession) -> np.ndarray:
    outcome = session.compute(session.job())
    assert outcome is not None
    return outcome.labels


def test_the_page_shows_what_the_library_computes(tab: Tab, studio: Running) -> None:
    session = session_of(studio)
    np.testing.assert_array_equal(tab.labels(), computed(session))
    np.testing.assert_array_equal(tab.labels("unary"), session.labels)
    changed = tab.labels("difference")
    np.testing.assert_array_equal(changed >= 0, tab.labels() != session.labels)
    text = tab.page.inner_text("body")
    assert f"mean IoU {session.iou:.4f}" in text
    assert "Full resolution" in text and "<b>sand</b>" in text  # names are text, not markup
    assert tab.page.locator(".pf-curve circle").count() == 11


def test_a_slider_changes_the_result(tab: Tab, studio: Running) -> None:
    before = tab.source("result")
    slider = tab.slider("Bilateral weight")
    assert slider.get_attribute("aria-valuenow") == "10"
    focused = slider.locator("[tabindex='0']")

    def go_left() -> None:
        focused.focus()  # with the keyboard alone
        tab.page.keyboard.press("ArrowLeft")

    labels = tab.changed(go_left)
    value = float(slider.get_attribute("aria-valuenow"))
    assert value == pytest.approx(9.9) and tab.source("result") != before
    session = session_of(studio)
    session.settings = replace(session.settings, bilateral_weight=value)
    np.testing.assert_array_equal(labels, computed(session))
    assert labels.shape == SHAPE
    assert tab.page.get_by_role("combobox", name="Preset").input_value() == "custom"


def test_no_weight_leaves_the_classifiers_labels(tab: Tab, studio: Running) -> None:
    for name in ("Bilateral weight", "Spatial weight"):
        box = tab.slider(name).locator("[tabindex='0']").bounding_box()
        tab.changed(
            lambda box=box: tab.page.mouse.click(box["x"] + 0.2, box["y"] + box["height"] / 2)
        )
        assert tab.slider(name).get_attribute("aria-valuenow") == "0"
    np.testing.assert_array_equal(tab.labels(), session_of(studio).labels)
    assert "0.0 % changed" in tab.page.inner_text("body")


def test_presets_and_rules(tab: Tab, studio: Running) -> None:
    def choose(box: str, option: str) -> Callable[[], None]:
        def act() -> None:
            tab.page.get_by_role("combobox", name=box).click()
            tab.page.get_by_role("option", name=option, exact=True).click()

        return act

    tab.changed(choose("Preset", "gentle"))
    assert tab.slider("Bilateral σ, position (px)").get_attribute("aria-valuenow") == "40"
    labels = tab.changed(choose("Rule", "adhoc"))
    session = session_of(studio)
    gentle = StudioSession(session.inputs, "gentle", "adhoc")
    np.testing.assert_array_equal(labels, computed(gentle))
    assert "iterations of adhoc" in tab.page.inner_text("body")


def scribble(tab: Tab, label: str, start: tuple[float, float], end: tuple[float, float]) -> None:
    tab.page.get_by_role("button", name=label, exact=True).click()
    image = tab.page.locator('[data-panel="image"].pf-paint')
    image.scroll_into_view_if_needed()
    box = image.bounding_box()
    at = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in (start, end)]
    tab.page.mouse.move(*at[0])
    tab.page.mouse.down()
    tab.page.mouse.move(*at[1], steps=8)
    tab.page.mouse.up()


def test_scribbles_fix_labels_and_can_be_undone(tab: Tab) -> None:
    free = tab.labels()
    assert (free[20:40, 5:15] == 0).all()
    fixed = tab.changed(lambda: scribble(tab, "grass", (0.1, 0.4), (0.15, 0.6)))
    known = tab.labels("image")
    assert 50 < (known == 2).sum() < 500
    assert (fixed[known == 2] == 2).all()
    assert "known pixels" in tab.page.inner_text("body")
    again = tab.changed(lambda: tab.page.get_by_role("button", name="Undo").click())
    np.testing.assert_array_equal(again, free)


def test_saved_settings_are_those_of_the_page(tab: Tab, tmp_path: Path) -> None:
    with tab.page.expect_download() as waiting:
        tab.page.get_by_role("button", name="Save as crf.toml").click()
    download = waiting.value
    assert download.suggested_filename == "crf.toml"
    path = tmp_path / "crf.toml"
    download.save_as(path)
    assert pf.read_config(path) == pf.PRESETS["krahenbuehl"]


def test_the_copied_python_makes_the_labels_of_the_page(tab: Tab) -> None:
    shown = tab.changed(lambda: scribble(tab, "grass", (0.05, 0.2), (0.2, 0.3)))
    tab.page.get_by_role("button", name="Copy the Python").click()
    code = tab.page.inner_text(".pf-code")
    copied = tab.page.evaluate("navigator.clipboard.readText()")
    assert copied.strip() == code.strip()
    space: dict[str, Any] = {}
    exec(compile(copied, "copied.py", "exec"), space)
    np.testing.assert_array_equal(space["labels"], shown)


def upload(tab: Tab, name: str, file: object) -> None:
    box = tab.page.locator(f'[data-upload="{name}"]')
    box.locator("input[type=file]").set_input_files(file)
    box.get_by_text("100.00%").first.wait_for()


def test_files_of_the_browser(tab: Tab, studio: Running) -> None:
    tab.page.get_by_role("button", name="Open…").click()
    upload(tab, "image", studio.files["image"])
    wrong = io.BytesIO()
    np.save(wrong, np.full((60, 9, 2), 0.5))
    payload = {"name": "wrong.npy", "mimeType": "", "buffer": wrong.getvalue()}
    upload(tab, "unary", payload)
    tab.page.get_by_role("button", name="Open", exact=True).click()
    alert = tab.page.get_by_role("alert").filter(has_text="the image of shape (60, 80, 3)")
    assert "don't match" in alert.inner_text()
    tab.page.get_by_role("button", name="Cancel").click()
    tab.page.get_by_role("button", name="Open…").click()
    upload(tab, "image", studio.files["image"])
    upload(tab, "unary", studio.files["logits"])
    tab.page.get_by_role("combobox", name="What is known").click()
    tab.page.get_by_role("option", name=re.compile("^Logits")).click()
    tab.page.get_by_role("button", name="Open", exact=True).click()
    tab.page.get_by_text("photo.png, logits.npy").wait_for()
    tab.settle()
    assert list(studio.temporary.glob("*/*")) == []  # nothing stays
    own = {path.name for path in studio.temporary.iterdir()}
    assert all(name.startswith("proxfield-studio-") for name in own)


def test_large_uploads_are_refused_by_the_server_too(tab: Tab, studio: Running) -> None:
    large = {"name": "large.npy", "mimeType": "", "buffer": b"\x93NUMPY" + bytes(2**21)}
    tab.page.get_by_role("button", name="Open…").click()
    box = tab.page.locator('[data-upload="image"]')
    box.locator("input[type=file]").set_input_files(large)
    tab.page.get_by_role("alert").filter(has_text="at most 1048576 bytes").wait_for()
    url = tab.page.evaluate("location.origin") + "/_nicegui/client/x/upload/1"
    answer = tab.page.context.request.post(url, data=bytes(2**21))
    assert answer.status == 413


def test_tabs_do_not_disturb_each_other(tab: Tab, browser: Any, studio: Running) -> None:
    first = tab.labels()
    with opened(browser, studio) as other:
        other.changed(lambda: scribble(other, "grass", (0.1, 0.4), (0.15, 0.6)))
        assert "known pixels" in other.page.inner_text("body")
    assert "known pixels" not in tab.page.inner_text("body")
    np.testing.assert_array_equal(tab.labels(), first)


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_sideways_scrolling(browser: Any, studio: Running, width: int, scheme: str) -> None:
    size = {"width": width, "height": 860}
    with opened(browser, studio, viewport=size, color_scheme=scheme) as tab:
        assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
        right = tab.page.evaluate(
            "Math.max(...[...document.querySelectorAll('main *')]"
            ".map((e) => e.getBoundingClientRect().right))"
        )
        assert right <= width
        dark = tab.page.evaluate("document.body.classList.contains('body--dark')")
        assert dark == (scheme == "dark")
        folder = os.environ.get("PROXFIELD_SCREENSHOTS")
        if folder:
            tab.page.screenshot(path=f"{folder}/studio-{width}-{scheme}.png", full_page=True)


def test_every_control_has_a_name(tab: Tab) -> None:
    sliders = tab.page.get_by_role("slider")
    names = [sliders.nth(k).get_attribute("aria-label") for k in range(sliders.count())]
    assert len(names) == 8 and all(names)
    nameless = tab.page.evaluate(
        "[...document.querySelectorAll('main button')].filter((b) => !b.innerText.trim()).length"
    )
    assert nameless == 0
