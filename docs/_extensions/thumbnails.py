"""The directive ``{thumbnail} page``: a small picture that an executed page made of itself.

The page has a cell with the tag ``thumbnail`` whose output is a picture. The page itself doesn't
show that cell.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.transforms import SphinxTransform
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
        return [PendingThumbnail(page=page)]


class TakeThumbnail(SphinxTransform):
    """Remove the tagged cell of a page, and note the picture that it made."""

    default_priority = 100

    def apply(self, **kwargs: Any) -> None:
        for cell in list(self.document.findall(nodes.container)):
            if f"tag_{TAG}" not in cell["classes"]:
                continue
            for image in cell.findall(nodes.image):
                path, _ = self.env.relfn2path(image["uri"], self.env.docname)
                known_thumbnails(self.env)[self.env.docname] = path
            cell.parent.remove(cell)


class InsertThumbnails(SphinxPostTransform):
    """Put pictures in place once all pages have been read, hence executed."""

    default_priority = 5  # before Sphinx collects what a page shows

    def run(self, **kwargs: Any) -> None:
        for node in list(self.document.findall(PendingThumbnail)):
            path = known_thumbnails(self.env).get(node["page"])
            if path is None:
                raise ExtensionError(f"{node['page']}: no cell with the tag {TAG} made a picture")
            self.env.images.add_file(self.env.docname, path)
            image = nodes.image(uri=path, candidates={"*": path}, alt="", classes=[TAG])
            node.replace_self(image)


def known_thumbnails(env: BuildEnvironment) -> dict[str, str]:
    """The picture of each page that has one, kept from build to build."""
    if not hasattr(env, "proxfield_thumbnails"):
        env.proxfield_thumbnails = {}
    thumbnails: dict[str, str] = env.proxfield_thumbnails
    return thumbnails


def purge(app: Sphinx, env: BuildEnvironment, page: str) -> None:
    """Forget a page that is read again."""
    known_thumbnails(env).pop(page, None)


def merge(
    app: Sphinx, env: BuildEnvironment, pages: Iterable[str], other: BuildEnvironment
) -> None:
    """Take over what another process has read."""
    known_thumbnails(env).update(known_thumbnails(other))


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_node(PendingThumbnail)
    app.add_directive("thumbnail", Thumbnail)
    app.add_transform(TakeThumbnail)
    app.add_post_transform(InsertThumbnails)
    app.connect("env-purge-doc", purge)
    app.connect("env-merge-info", merge)
    return {"parallel_read_safe": True, "parallel_write_safe": False}
