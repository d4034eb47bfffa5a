"""MathJax from a package instead of a content delivery network, so that pages work without one.

The package sphinx-mathjax-offline holds the whole of MathJax (24 MB); the site gets the one script
and the fonts that its pages use (2 MB).
"""

from __future__ import annotations

from importlib.metadata import files
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.util.fileutil import copy_asset

SCRIPT = "tex-chtml-full.js"
FONTS = "output/chtml/fonts/woff-v2"


def find_mathjax() -> Path:
    """The folder of MathJax in the installed package."""
    for file in files("sphinx-mathjax-offline") or []:
        if file.name == SCRIPT:
            return Path(str(file.locate())).parent
    raise FileNotFoundError(f"sphinx-mathjax-offline holds no {SCRIPT}: reinstall it")


def copy_mathjax(app: Sphinx, error: Exception | None) -> None:
    """Copy what pages load into the site."""
    if error is None and app.builder.format == "html":
        mathjax, target = find_mathjax(), Path(app.outdir) / "_static" / "mathjax"
        copy_asset(mathjax / SCRIPT, target)
        copy_asset(mathjax / FONTS, target / FONTS)


def setup(app: Sphinx) -> dict[str, bool]:
    app.setup_extension("sphinx.ext.mathjax")
    app.config.mathjax_path = f"mathjax/{SCRIPT}"
    app.connect("build-finished", copy_mathjax)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
