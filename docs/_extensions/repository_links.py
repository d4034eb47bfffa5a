"""Links that leave docs/: to files of the repository, and inside the root files that pages include.

Pages link to other files by relative paths, which work where the repository is browsed. On the
site, a path outside docs/ becomes a link to the repository, unless a page includes that file: then
it is a link to the page. A path that doesn't exist stays as it is, and Sphinx reports it.
"""

from __future__ import annotations

import os
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

INCLUDED = {"project/changelog": "CHANGELOG.md", "project/contributing": "CONTRIBUTING.md"}
"""Pages that consist of a file in the root of the repository."""


class RepositoryLinks(SphinxTransform):
    """Resolves relative paths outside docs/, and all of those in included files."""

    default_priority = 100

    def apply(self) -> None:
        for node in list(self.document.findall(addnodes.pending_xref)):
            if node.get("reftype") == "myst":
                path, _, anchor = node["reftarget"].partition("#")
                if node.get("refdomain") == "doc":  # a path that has lost its suffix
                    path = str(Path(self.env.srcdir) / f"{path}.md")
                    anchor = node.get("reftargetid") or ""
                self.resolve(node, path, anchor)
        for download in list(self.document.findall(addnodes.download_reference)):
            self.resolve(download, download["reftarget"], "")

    def resolve(self, node: nodes.Element, path: str, anchor: str) -> None:
        """Replace a link to an existing file outside docs/, or in an included file."""
        docs = Path(self.env.srcdir)
        root = docs.parent
        included = self.env.docname in INCLUDED
        here = root if included else (docs / self.env.docname).parent
        target = Path(os.path.normpath(here / path))  # an absolute path stays as it is
        if not path or not target.exists() or (docs in target.parents and not included):
            return
        if root not in target.parents:  # an executed notebook, where the site is built elsewhere
            return
        name = target.relative_to(root).as_posix()
        pages = {file: page for page, file in INCLUDED.items()}
        if docs in target.parents or name in pages:
            page = pages.get(name) or target.relative_to(docs).with_suffix("").as_posix()
            node.replace_self(
                addnodes.pending_xref(
                    "",
                    *node.children,
                    refdomain="doc",
                    reftype="myst",
                    refdoc=self.env.docname,
                    reftarget=page,
                    reftargetid=anchor or None,
                    refexplicit=True,
                )
            )
            return
        kind = "tree" if target.is_dir() else "blob"
        config = self.config
        url = f"{config.repository_url}/{kind}/{config.repository_ref}/{name}"
        node.replace_self(
            nodes.reference("", "", *node.children, refuri=url + (f"#{anchor}" if anchor else ""))
        )


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_config_value("repository_url", "", "env", [str])
    app.add_config_value("repository_ref", "main", "env", [str])
    app.add_transform(RepositoryLinks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
