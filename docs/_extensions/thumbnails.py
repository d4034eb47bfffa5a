"""The directive ``{thumbnail} page``: a small picture that an executed page made of itself.

The page has a cell with the tag ``thumbnail`` whose output is a picture; with the tag
``remove-cell`` beside it, the page itself doesn't show that cell.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.docutils import SphinxDirective

TAG = "thumbnail"


class PendingThumbnail(nodes.General, nodes.Element):
    """A thumbnail of a page that may not have been executed yet."""


class Thumbnail(SphinxDirective):
    """``{thumbnail} page``, the page's name relative to this one, without its extension."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        page, path = self.env.relfn2path(self.arguments[0])
        self.env.note_dependency(f"{path}.md")  # a page that changed has another thumbnail
        node = PendingThumbnail(page=page)
        self.set_source_info(node)
        return [node]


class InsertThumbnails(SphinxPostTransform):
    """Put pictures in place once all pages have been read, hence executed."""

    default_priority = 5  # before Sphinx collects what a page shows

    def run(self, **kwargs: Any) -> None:
        for node in list(self.document.findall(PendingThumbnail)):
            path = write_thumbnail(Path(self.env.mystnb_config.output_folder), node["page"])
            uri = Path(os.path.relpath(path, self.env.srcdir)).as_posix()
            self.env.images.add_file(self.env.docname, uri)
            node.replace_self(nodes.image(uri=uri, candidates={"*": uri}, alt="", classes=[TAG]))


def write_thumbnail(folder: Path, page: str) -> Path:
    """Extract a page's thumbnail from its executed notebook; return the picture's path."""
    notebook = json.loads((folder / f"{page}.ipynb").read_text(encoding="utf-8"))
    tagged = [c for c in notebook["cells"] if TAG in c.get("metadata", {}).get("tags", ())]
    found = [o["data"]["image/png"] for c in tagged for o in c["outputs"] if "data" in o]
    if len(found) != 1:
        raise ExtensionError(f"{page}: {len(found)} pictures in cells tagged {TAG}, expected one")
    content = base64.b64decode("".join(found[0]))
    path = folder / f"thumbnail-{hashlib.sha256(content).hexdigest()[:16]}.png"
    path.write_bytes(content)
    return path


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_node(PendingThumbnail)
    app.add_directive("thumbnail", Thumbnail)
    app.add_post_transform(InsertThumbnails)
    return {"parallel_read_safe": True, "parallel_write_safe": False}
