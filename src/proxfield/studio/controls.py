"""The sliders of the page: their settings, ranges and labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from nicegui import ui

from proxfield.core.common.records import Record

THROTTLE_SECONDS = 0.05
"""A slider reports its moves at most so often."""


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

    def value(self, settings: Record) -> float:
        """The setting; the mean, if there is one per axis or channel."""
        return float(np.mean(settings[self.name]))

    def range(self, settings: Record) -> dict[str, float]:
        """Properties of the slider."""
        value, low, high, step = self.value(settings), self.low, self.high, self.step
        if self.name == "bilateral_color" and "color_range" not in settings:
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


def add_slider(
    control: Control, settings: Record, change: Callable[[str, float], None]
) -> tuple[Any, Any]:
    """A slider, and the label for its value.

    Args:
        control: What it is for.
        settings: The settings to begin with.
        change: Called with the name and the value when the user moves it.
    """
    with labelled(control.text) as value:
        bounds: Record = control.range(settings)
        slider = ui.slider(**bounds, value=control.value(settings))
        slider.props(f'aria-label="{control.text}" data-setting={control.name}')
        slider.on(
            "update:model-value",
            lambda e: change(control.name, float(e.args)),
            throttle=THROTTLE_SECONDS,
        )
    return slider, value
