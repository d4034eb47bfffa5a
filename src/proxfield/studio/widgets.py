"""Parts of the page: sliders, and the dialog that opens files of the browser."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from nicegui import run, ui

from proxfield.errors import ProxfieldError, one_line
from proxfield.images.settings import DenseSettings
from proxfield.studio.inputs import StudioInputs, Upload, demo_inputs, read_uploads

if TYPE_CHECKING:
    from proxfield.studio.page import Page

log = logging.getLogger("proxfield")


@dataclass(frozen=True)
class Control:
    """A slider for one setting.

    Attributes:
        name: The setting.
        text: What it is called.
        low: The smallest value.
        high: The largest one; more if the setting has more.
        step: Between two values.
    """

    name: str
    text: str
    low: float
    high: float
    step: float

    def value(self, settings: DenseSettings) -> float:
        """The setting; the mean, if there is one per axis or channel."""
        return float(np.mean(getattr(settings, self.name)))

    def range(self, settings: DenseSettings) -> dict[str, float]:
        """Properties of the slider."""
        value, low, high, step = self.value(settings), self.low, self.high, self.step
        if self.name == "bilateral_color" and settings.color_range is None:
            step = max(value, 1e-12) / 20  # in the image's own units, whatever they are
            low, high = step, 80 * step
        return {"min": min(low, value), "max": max(high, value), "step": step}


CONTROLS = (
    Control("bilateral_sigma", "Bilateral σ, position (px)", 1, 200, 1),
    Control("bilateral_color", "Bilateral σ, color", 0.5, 60, 0.5),
    Control("bilateral_weight", "Bilateral weight", 0, 20, 0.1),
    Control("spatial_sigma", "Spatial σ (px)", 0.5, 20, 0.5),
    Control("spatial_weight", "Spatial weight", 0, 20, 0.1),
    Control("max_iters", "Iterations", 0, 50, 1),
)


@contextmanager
def labelled(text: str) -> Iterator[Any]:
    """A control below its name; yields the label for its value."""
    with ui.element("div").classes("pf-control"):
        with ui.element("div").classes("pf-label"):
            ui.label(text)
            value = ui.label().classes("pf-value")
        yield value


# ---- files of the browser ----


KINDS = {
    "probabilities": "Probabilities (.npy, .npz, or a gray picture: a mask)",
    "logits": "Logits (.npy, .npz)",
    "labels": "Label map (.png, .npy)",
}


class OpenDialog:
    """An image with probabilities, logits or labels, and perhaps a truth, from the browser."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.given: dict[str, Upload] = {}
        limit = page.studio.max_bytes
        with ui.dialog() as self.dialog, ui.card().classes("pf-dialog"):
            ui.label(f"Open files, each of at most {limit / 2**20:g} MB")
            with ui.element("div").classes("pf-uploads").style("width: 100%"):
                self.uploads = [self._upload("image", "Image", limit)]
                self.kind = ui.select(KINDS, value="probabilities", label="What is known").props(
                    "dense outlined"
                )
                self.uploads.append(self._upload("unary", "Probabilities, logits or labels", limit))
                self.uploads.append(self._upload("truth", "True labels (optional)", limit))
            with ui.element("div").classes("pf-actions"):
                ui.button("Open", on_click=self._open).props("no-caps unelevated")
                ui.button("Generated scene", on_click=lambda: self._replace(demo_inputs())).props(
                    "no-caps flat"
                )
                ui.button("Cancel", on_click=self.dialog.close).props("no-caps flat")

    def open(self) -> None:
        """Show the dialog."""
        self.given.clear()
        for upload in self.uploads:
            upload.reset()
        self.dialog.open()

    def _upload(self, name: str, label: str, limit: int) -> Any:
        async def take(event: Any) -> None:
            self.given[name] = Upload(event.file.name, await event.file.read())

        why = f"{label}: expected one file of at most {limit} bytes (--max-upload)"
        upload = ui.upload(
            label=label,
            auto_upload=True,
            max_files=1,
            max_file_size=limit,
            on_upload=take,
            on_rejected=lambda: self.page.notify(why),
        )
        return upload.props(f"flat bordered data-upload={name}")

    async def _open(self) -> None:
        for name, what in (("image", "an image"), ("unary", "probabilities, logits or labels")):
            if name not in self.given:
                self.page.notify(f"no file given for {what}, expected one")
                return
        studio = self.page.studio
        try:
            inputs = await run.io_bound(
                read_uploads, self.given.copy(), self.kind.value, studio.folder, studio.max_bytes
            )
            if inputs is not None:  # None: the server is closing
                self._replace(inputs)
        except Exception as error:  # bad files are the user's to mend
            self.page.notify(explain(error))

    def _replace(self, inputs: StudioInputs) -> None:
        self.page.replace(inputs)
        self.given.clear()
        self.dialog.close()


def explain(error: Exception) -> str:
    """An error as the command line says it, on one line."""
    if isinstance(error, MemoryError) and not str(error):
        return "out of memory; try a smaller image"
    if isinstance(error, ProxfieldError | OSError | MemoryError):
        return one_line(str(error))
    log.error("the studio failed", exc_info=error)
    return one_line(f"{type(error).__name__}: {error}; this is a bug, see the terminal")
