"""Take a picture of `proxfield studio` with its generated scene, for the documentation.

    python scripts/studio_screenshot.py -o docs/images/studio.png [--width 1280] [--scheme light]

Needs the extras studio and dev, and Chromium on the PATH. Prints the mean IoU before and after.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

TIMEOUT = 180_000
"""Milliseconds."""
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")
DONE = ".pf-status[data-done]:not([data-done=''])"


def prepare(page: Page, address: str) -> tuple[float, float]:
    """Open the page, draw two strokes, and wait for the result; returns both values of IoU."""
    page.set_default_timeout(TIMEOUT)
    page.goto(address)
    page.wait_for_selector(DONE)
    for label, points in (
        ("tree", ((0.21, 0.7), (0.21, 0.76))),
        ("sky", ((0.3, 0.1), (0.8, 0.15))),
    ):
        page.get_by_role("button", name=label, exact=True).click()
        image = page.locator('[data-panel="image"].pf-paint')
        image.scroll_into_view_if_needed()
        box = image.bounding_box()
        assert box is not None
        (x0, y0), (x1, y1) = points
        page.mouse.move(box["x"] + x0 * box["width"], box["y"] + y0 * box["height"])
        page.mouse.down()
        page.mouse.move(box["x"] + x1 * box["width"], box["y"] + y1 * box["height"], steps=9)
        page.mouse.up()
        page.wait_for_selector(".pf-status[data-done='']", state="attached")
        page.wait_for_selector(DONE)
    page.wait_for_timeout(2500)  # the pointer's own strokes fade
    shown = re.findall(r"mean IoU (\d\.\d+)", page.inner_text("body"))
    return float(shown[0]), float(shown[1])


def hide_times(page: Page) -> None:
    """Take the seconds out of the status line: they differ from run to run."""
    page.evaluate(
        "() => { const s = document.querySelector('.pf-status');"
        " s.textContent = s.textContent.replace(/ · .*/, ''); }"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Take a picture of the studio.")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--scheme", choices=["light", "dark"], default="light")
    options = parser.parse_args()
    names = ("chromium", "chromium-browser", "google-chrome")
    chromium = next((path for name in names if (path := shutil.which(name))), None)
    if chromium is None:
        sys.exit("a picture of the studio needs Chromium on the PATH")
    command = [sys.executable, "-m", "proxfield", "studio", "--no-browser"]
    with subprocess.Popen(
        [*command, "--preset", "krahenbuehl"], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        try:
            if found is None:
                sys.exit("the studio did not start")
            with sync_playwright() as driver:
                browser = driver.chromium.launch(executable_path=chromium, args=list(FLAGS))
                page = browser.new_page(
                    viewport={"width": options.width, "height": 760}, color_scheme=options.scheme
                )
                before, after = prepare(page, found[0])
                hide_times(page)
                picture = page.screenshot(full_page=True)
                browser.close()
        finally:
            server.send_signal(signal.SIGINT)
    reduced = Image.open(io.BytesIO(picture)).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    reduced.save(options.output, optimize=True)
    print(f"mean IoU {before} {after}")


if __name__ == "__main__":
    main()
