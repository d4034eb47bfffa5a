"""The dialog that opens files of the browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nicegui import run, ui

from proxfield.studio.inputs import Inputs, demo_inputs
from proxfield.studio.uploads import Upload, read_uploads

if TYPE_CHECKING:
    from proxfield.studio.page import Page

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
                ui.button("Generated scene", on_click=self._demo).props("no-caps flat")
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

        def reject() -> None:
            self.page.notify(f"{label}: expected one file of at most {limit} bytes (--max-upload)")

        upload = ui.upload(
            label=label,
            auto_upload=True,
            max_files=1,
            max_file_size=limit,
            on_upload=take,
            on_rejected=reject,
        )
        return upload.props(f"flat bordered data-upload={name}")

    async def _open(self) -> None:
        from proxfield.studio.page import explain

        for name, what in (("image", "an image"), ("unary", "probabilities, logits or labels")):
            if name not in self.given:
                self.page.notify(f"no file given for {what}, expected one")
                return
        studio = self.page.studio
        try:
            inputs = await run.io_bound(
                read_uploads,
                self.given["image"],
                self.given["unary"],
                self.kind.value,
                studio.folder,
                studio.max_bytes,
                truth=self.given.get("truth"),
            )
            if inputs is not None:  # None: the server is closing
                self._replace(inputs)
        except Exception as error:  # bad files are the user's to mend
            self.page.notify(explain(error))

    def _demo(self) -> None:
        self._replace(demo_inputs())

    def _replace(self, inputs: Inputs) -> None:
        self.page.replace(inputs)
        self.given.clear()
        self.dialog.close()
