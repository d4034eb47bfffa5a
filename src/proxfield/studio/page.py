"""The page: controls above, four pictures side by side, scribbles and the curve of F below."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
from nicegui import background_tasks, ui

from proxfield.core.common.records import Record
from proxfield.core.solve.rules.registry import dense_rules
from proxfield.images.inputs import NO_STROKE
from proxfield.images.settings import PRESETS
from proxfield.studio.inputs import ERASER, Stroke
from proxfield.studio.outputs import (
    as_python,
    as_toml,
    css_color,
    curve_svg,
    label_png,
    photo_jpeg,
)
from proxfield.studio.session import StudioOutcome, StudioSession, Worker
from proxfield.studio.widgets import CONTROLS, Control, OpenDialog, explain, labelled

if TYPE_CHECKING:
    from proxfield.studio.inputs import StudioInputs
    from proxfield.studio.server import Studio

CUSTOM = "custom"
"""What is shown instead of a preset's name once a setting differs."""
BRUSH_RADIUS, MAX_RADIUS = 4.0, 40
MAX_STROKES = 1000
"""Strokes of a tab."""
THROTTLE_SECONDS = 0.05
"""A slider reports its moves at most so often."""
LIVE_SECONDS = 0.1
"""Time between two looks at a running computation."""
PANELS = {
    "image": "Image",
    "unary": "Classifier",
    "result": "Result",
    "difference": "Difference",
}


class Page:
    """One tab."""

    def __init__(self, studio: Studio) -> None:
        self.studio = studio
        studio.pages.add(self)
        self.client = ui.context.client
        self.session = StudioSession(studio.inputs, studio.preset, studio.rule)
        self.worker = self._new_worker()
        self.live: list[tuple[int, float]] = []
        self.brush: int | None = None
        self.radius = BRUSH_RADIUS
        self.images: dict[str, Any] = {}
        self.notes: dict[str, Any] = {}
        self.values: dict[str, Any] = {}
        self.sliders: dict[str, Any] = {}
        static = files("proxfield.studio") / "static"
        ui.add_css((static / "studio.css").read_text(encoding="utf-8"))
        ui.add_head_html(f"<script>{(static / 'studio.js').read_text(encoding='utf-8')}</script>")
        ui.colors(primary="#0b6e8f")
        with ui.element("main").classes("pf-page"):
            self._head()
            self._controls()
            self._panels()
            with ui.element("div").classes("pf-lower"):
                self._brush_card()
                with ui.element("section").classes("pf-card").props('aria-label="Free energy"'):
                    ui.html('<h2 class="pf-title">Free energy F per iteration</h2>', sanitize=False)
                    self.curve = ui.html(curve_svg([], [], 1), sanitize=False)
                    self.numbers = ui.label().classes("pf-hint")
        self.opening = OpenDialog(self)
        self.timer = ui.timer(LIVE_SECONDS, self._tick)
        self.client.on_delete(self.close)
        self._load()

    def _new_worker(self) -> Worker:
        return Worker(
            self.session,
            self.show,
            lambda iteration, f: self.live.append((iteration, f)),
            lambda error: self.notify(explain(error)),
        )

    def close(self) -> None:
        """The tab is gone."""
        self.worker.close()
        self.studio.pictures.drop(self)
        self.studio.pages.discard(self)

    def notify(self, text: str) -> None:
        """Say what went wrong, in a message that fades."""
        with self.client:
            ui.notify(text, type="negative", multi_line=True, position="top", timeout=8000)

    # ---- parts of the page ----

    def _head(self) -> None:
        with ui.element("header").classes("pf-head"):
            ui.html("<h1>proxfield studio</h1>", sanitize=False)
            self.files = ui.label().classes("pf-files")
            with ui.element("div").classes("pf-actions"):
                flat = 'no-caps unelevated padding="4px 12px"'
                ui.button("Open…", on_click=lambda: self.opening.open()).props(flat)
                ui.button("Save as crf.toml", on_click=self._save).props(flat)
                ui.button("Copy the Python", on_click=self._copy).props(flat)

    def _controls(self) -> None:
        with ui.element("section").classes("pf-card").props('aria-label="Settings"'):
            with ui.element("div").classes("pf-controls"):
                for control in CONTROLS[:3]:
                    self._slider(control)
                self.preset_box = self._select("Preset", [*PRESETS, CUSTOM], self._set_preset)
                for control in CONTROLS[3:]:
                    self._slider(control)
                self.rule_box = self._select("Rule", list(dense_rules()), self._set_rule)
            self.status = ui.label().classes("pf-status").props('role="status"')

    def _slider(self, control: Control) -> None:
        settings, name = self.session.settings, control.name
        with labelled(control.text) as self.values[name]:
            bounds: Record = control.range(settings)
            slider = ui.slider(**bounds, value=control.value(settings))
        slider.props(f'aria-label="{control.text}" data-setting={name}')
        slider.on(
            "update:model-value",
            lambda e: self._set(name, float(e.args)),
            throttle=THROTTLE_SECONDS,
        )
        self.sliders[name] = slider

    def _select(self, text: str, options: list[str], change: Any) -> Any:
        with ui.element("div").classes("pf-control pf-select"):
            box = ui.select(options, label=text).props("dense options-dense outlined")
        box.style("width: 100%").on("update:model-value", lambda: change(box.value))
        return box

    def _panels(self) -> None:
        with ui.element("section").classes("pf-panels").props('aria-label="Pictures"'):
            for name, title in PANELS.items():
                with ui.element("figure").classes("pf-panel pf-card"):
                    with ui.element("figcaption"):
                        ui.label(title)
                        self.notes[name] = ui.label().classes("pf-note")
                    stack = ui.element("div").classes("pf-stack").props(f"data-panel={name}")
                    with stack:
                        photo = ui.element("img").props(f'alt="{title}"')
                        photo.classes("pf-dim" if name == "difference" else "")
                        over = ui.element("img").props('alt=""')
                        over.classes("pf-strokes" if name == "image" else "pf-labels")
                    self.images[name] = (stack, photo, over)
        stack = self.images["image"][0]
        stack.on(
            "pointerdown",
            lambda e: self._stroke(e.args),
            js_handler="(e) => window.pfPaint(e, (points) => emit(points))",
        )

    def _brush_card(self) -> None:
        with ui.element("section").classes("pf-card").props('aria-label="Labels and scribbles"'):
            ui.html('<h2 class="pf-title">Labels and scribbles</h2>', sanitize=False)
            self.legend = ui.element("div").classes("pf-legend")
            with ui.element("div").classes("pf-row"):
                with labelled("Brush radius (px)") as value:
                    value.text = f"{self.radius:g}"
                    brush = ui.slider(min=1, max=MAX_RADIUS, step=1, value=self.radius)
                    brush.props('aria-label="Brush radius"')
                    brush.on("update:model-value", lambda e: self._set_radius(e.args, value))
                with labelled("Opacity of the labels") as value:
                    value.text = "0.6"
                    opacity = ui.slider(min=0, max=1, step=0.05, value=0.6)
                    opacity.props('aria-label="Opacity of the labels"')
                    opacity.on("update:model-value", js_handler="(v) => window.pfOpacity(v)")
                    value.bind_text_from(opacity, "value", lambda v: f"{v:g}")
                ui.button("Undo", on_click=lambda: self._keep_strokes(-1)).props("flat dense")
                ui.button("Clear", on_click=lambda: self._keep_strokes(0)).props("flat dense")
            self.hint = ui.html(sanitize=False)

    # ---- inputs ----

    def _load(self) -> None:
        """Show the session's inputs, and compute."""
        session, inputs = self.session, self.session.inputs
        height, width = session.shape
        names = "generated scene"
        if inputs.image_name is not None:
            names = f"{inputs.image_name}, {inputs.unary_name}"
        self.files.text = f"{names} · {width}×{height} pixels, {session.n_labels} labels"
        keep = self.studio.pictures
        photo = keep.put(self, "photo", photo_jpeg(session.channels), "image/jpeg")
        for stack, base, _ in self.images.values():
            stack.style(f"aspect-ratio: {width} / {height}")
            base.props["src"] = photo
        self._overlay("unary", label_png(session.labels, session.n_labels))
        known = session.confidence
        hard = "" if known is None else f"labels, right with probability {known:g} (--confidence)"
        self._note("unary", session.iou, hard)
        for name in ("result", "difference"):
            self.images[name][2].props.pop("src", None)
            self.notes[name].text = ""
        self.brush = None
        self._show_legend()
        self._show_strokes()
        self._show_settings()
        self._request()

    def replace(self, inputs: StudioInputs) -> None:
        """Work on other inputs."""
        session = StudioSession(inputs, self.session.settings, self.session.rule)
        self.worker.close()
        self.session = session
        self.worker = self._new_worker()
        self._load()

    # ---- settings ----

    def _set(self, name: str, value: float) -> None:
        changed: Record = {name: int(value) if name == "max_iters" else float(value)}
        settings = replace(self.session.settings, **changed)
        if settings == self.session.settings:  # a slider repeats its last move
            return
        self.session.settings = settings
        self._show_settings(moved=name)
        self._request()

    def _set_preset(self, name: str) -> None:
        if name in PRESETS:
            self.session.settings = PRESETS[name]
            self._show_settings()
            self._request()

    def _set_rule(self, name: str) -> None:
        self.session.rule = name
        self._request()

    def _show_settings(self, moved: str | None = None) -> None:
        settings = self.session.settings
        for control in CONTROLS:
            value = control.value(settings)
            self.values[control.name].text = f"{value:g}"
            if control.name != moved:
                slider = self.sliders[control.name]
                slider.props.update(control.range(settings))
                slider.value = value
        named = [name for name, preset in PRESETS.items() if preset == settings]
        self.preset_box.value = named[0] if named else CUSTOM
        self.rule_box.value = self.session.rule

    # ---- scribbles ----

    def _show_legend(self) -> None:
        names = self.session.inputs.names
        self.legend.clear()
        drawable = min(self.session.n_labels, NO_STROKE)  # this label stands for none
        chips = [(k, names[k] if k < len(names) else f"label {k}") for k in range(drawable)]
        with self.legend:
            for label, text in [*chips, (ERASER, "eraser")]:
                chip = ui.element("button").classes("pf-chip").props('type="button"')
                chip.props["aria-pressed"] = "true" if label == self.brush else "false"
                chip.on("click", lambda label=label: self._choose(label))
                with chip:
                    if label != ERASER:
                        square = ui.element("span").classes("pf-square")
                        square.style(f"background: {css_color(label)}")
                    ui.label(text)
        stack = self.images["image"][0]
        stack.classes(**{"remove" if self.brush is None else "add": "pf-paint"})
        if self.brush is not None:
            erase = self.brush == ERASER
            stack.props["data-color"] = "#8888" if erase else css_color(self.brush)
            stack.props["data-radius"] = f"{self.radius / self.session.shape[1]:.6f}"
            stack.update()
        hint = (
            "Choose a label, then draw on the image: its pixels have that label for certain."
            if self.brush is None
            else "Draw on the image. Choose the label again to stop drawing."
        )
        self.hint.content = f'<p class="pf-hint">{hint}</p>'

    def _choose(self, label: int) -> None:
        self.brush = None if label == self.brush else label
        self._show_legend()

    def _set_radius(self, radius: float, value: Any) -> None:
        self.radius = min(max(1.0, float(radius)), float(MAX_RADIUS))
        value.text = f"{self.radius:g}"
        self._show_legend()

    def _stroke(self, points: Any) -> None:
        if self.brush is None or not isinstance(points, list) or not points:
            return
        if len(self.session.strokes) >= MAX_STROKES:
            self.notify(f"{MAX_STROKES} strokes are the most; undo or clear some")
            return
        pairs = [p for p in points if isinstance(p, list) and len(p) == 2]
        if pairs and all(isinstance(x, int | float) for p in pairs for x in p):
            self.session.strokes.append(Stroke(self.brush, pairs, self.radius))
            self._show_strokes()
            self._request()

    def _keep_strokes(self, count: int) -> None:
        """Take back all strokes but the first ones."""
        if self.session.strokes:
            del self.session.strokes[count:]
            self._show_strokes()
            self._request()

    def _show_strokes(self) -> None:
        drawn = self.session.scribbles
        known = 0 if drawn is None else int((drawn != NO_STROKE).sum())
        self.notes["image"].text = f"{known} known pixels" if known else ""
        if drawn is None:
            self.images["image"][2].props.pop("src", None)
            self.images["image"][2].update()
        else:
            self._overlay("image", label_png(drawn, min(NO_STROKE, self.session.n_labels)))

    # ---- results ----

    def _request(self) -> None:
        self.live = []
        self.status.props["data-done"] = ""
        self.status.update()

        async def start() -> None:
            if not self.studio.ready.is_set():
                self.status.text = "Compiling kernels; only a first start takes long…"
                while not self.studio.ready.is_set():
                    await asyncio.sleep(0.1)
            self.worker.request()

        background_tasks.create(start())

    def show(self, outcome: StudioOutcome, version: int) -> None:
        """Show what a job gave.

        Args:
            outcome: Labels, F, mean IoU.
            version: Number of the request.
        """
        session, step = self.session, outcome.job.step
        n_labels, before = session.n_labels, session.labels[::step, ::step]
        self._overlay("result", label_png(outcome.labels, n_labels))
        changed = outcome.labels != before
        self._overlay("difference", label_png(outcome.labels, n_labels, changed))
        self._note("result", outcome.iou)
        self.notes["difference"].text = f"{100 * outcome.changed:.1f} % changed"
        f = outcome.free_energy
        self.curve.content = curve_svg(range(len(f)), f.tolist(), len(f) - 1)
        self.numbers.text = f"F = {f[-1]:.8g}" if len(f) and np.isfinite(f[-1]) else ""
        self.numbers.text += f" after {outcome.iterations} iterations of {outcome.job.rule}"
        size = "Full resolution"
        if step > 1:
            size = f"Preview at 1/{step} of the resolution; the full one follows"
        self.status.text = f"{size} · {outcome.seconds:.2f} s"
        done = step == 1 and version == self.worker.version
        self.status.props["data-done"] = str(version) if done else ""
        self.status.update()

    def _tick(self) -> None:
        """While something is computed, show how F falls."""
        if self.worker.busy and len(self.live) > 1:
            seen = list(self.live)
            last = self.session.settings.max_iters
            self.curve.content = curve_svg([t for t, _ in seen], [f for _, f in seen], last)

    def _overlay(self, name: str, png: bytes) -> None:
        over = self.images[name][2]
        over.props["src"] = self.studio.pictures.put(self, name, png, "image/png")
        over.update()

    def _note(self, name: str, iou: float | None, more: str = "") -> None:
        score = "" if iou is None else f"mean IoU {iou:.4f}"
        self.notes[name].text = " · ".join(text for text in (more, score) if text)

    # ---- what the studio hands out ----

    def _save(self) -> None:
        ui.download.content(as_toml(self.session.job()).encode(), "crf.toml", "application/toml")

    def _copy(self) -> None:
        code = as_python(self.session, self.session.job())
        ui.clipboard.write(code)
        with ui.dialog(value=True) as dialog, ui.card().classes("pf-dialog"):
            ui.label("Copied. This program makes the labels of the result:")
            block = ui.element("pre").classes("pf-code").props("tabindex=0")
            with block:
                ui.element("code").props["innerText"] = code
            ui.button("Close", on_click=dialog.close).props("flat no-caps")
        dialog.on("hide", dialog.delete)
