"""Configuration of the documentation site; `make docs` builds it into docs/_build/html."""

from __future__ import annotations

import os
import sys
from importlib.metadata import metadata
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "_extensions"))

# Project -----------------------------------------------------------------------------------------

_metadata = metadata("proxfield")
_urls = dict(line.split(", ", 1) for line in _metadata.get_all("Project-URL") or [])

project = "proxfield"
author = "The proxfield developers"
copyright = author
release = _metadata["Version"]
version = ".".join(release.split(".")[:2])
repository_url = _urls["Repository"]  # pyproject.toml, [project.urls]: the one place that decides
published_version = os.environ.get("DOCS_VERSION")  # the folder of a published site
repository_ref = os.environ.get("DOCS_REF", "main")  # the branch or tag that pages link to

# Sphinx ------------------------------------------------------------------------------------------

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "myst_nb",
    "command_line",
    "enum_tables",
    "offline_mathjax",
    "public_names",
    "repository_links",
    "shape_comments",
    "thumbnails",
    "written_signatures",
]
exclude_patterns = ["_build", "jupyter_execute"]
templates_path = ["_templates"]
default_role = "py:obj"  # `name` in docstrings links to what it names, where there is such a page
smartquotes = False  # --option and 'value' stay what they are
nitpicky = True
nitpick_ignore_regex = [
    ("py:obj", r".*"),  # `name` of something that isn't public, such as an argument
    ("py:.*", r"(?!proxfield\b).*"),  # types of numpy, of torch, of the standard library
    ("py:class", r"proxfield\..*\.(_\w+|[MT])"),  # private base classes, type variables
]
nitpick_ignore = [  # internal types of public attributes, and internal bases
    ("py:class", "proxfield.core.engines.base.Program"),
    ("py:class", "proxfield.core.filters.operator.Operator"),
    ("py:class", "proxfield.core.filters.plan.Plan"),
    ("py:class", "proxfield.core.filters.points.PixelPoints"),
    ("py:class", "proxfield.core.engines.recorded.Factors"),
    ("py:class", "proxfield.core.engines.torch.program.TiedEnergy"),
    ("py:class", "proxfield.core.solve.rules.portfolio.RunsOthers"),
    ("py:class", "proxfield.core.terms.grid.Shift"),
    ("py:class", "proxfield.core.terms.unary.Linear"),
    ("py:class", "proxfield.core.lowering.lowered.Lowered"),
    ("py:class", "proxfield.distributed.cut.Cut"),
    ("py:class", "proxfield.distributed.partition.Whole"),
    ("py:class", "proxfield.learn.structure.Examples"),
]

# Pages: MyST Markdown, executed where they say so ------------------------------------------------

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath", "fieldlist"]
myst_heading_anchors = 4  # the anchors that GitHub makes, so that links work there and here
nb_execution_mode = "cache"
nb_execution_in_temp = True
nb_execution_cache_path = str(DOCS / "_build" / "jupyter_cache")
nb_execution_timeout = 300
nb_execution_show_tb = True
nb_merge_streams = True

# Cells see neither the user's settings nor notices that depend on the machine; %%bash finds the
# command of this environment.
_profile = DOCS / "_build" / "ipython" / "profile_default"
_profile.mkdir(parents=True, exist_ok=True)
_profile.joinpath("ipython_kernel_config.py").write_text(
    "c.IPKernelApp.log_level = 'ERROR'  # no warning that the kernel's sockets aren't encrypted\n"
    "c.HistoryManager.enabled = False\n"
)
os.environ["IPYTHONDIR"] = str(_profile.parent)
os.environ["MATPLOTLIBRC"] = str(DOCS / "matplotlibrc")  # how pictures of cells look
os.environ["PROXFIELD_QUIET"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # threads cost more than they save on small matrices
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

# Reference ---------------------------------------------------------------------------------------

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 70
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

# HTML --------------------------------------------------------------------------------------------

html_theme = "pydata_sphinx_theme"
html_title = f"proxfield {release}"
html_static_path = ["_static"]
html_extra_path = ["../benchmarks/results/paper/report.html"]  # benchmarks/index.md links to it
html_css_files = ["proxfield.css"]
html_favicon = "_static/logo.svg"
html_show_sourcelink = False
html_copy_source = False
html_baseurl = f"{_urls['Documentation']}/{published_version}/" if published_version else ""

# External links (`make docs-links`) are checked by a weekly workflow.
linkcheck_anchors_ignore_for_url = [r"https://github\.com/.*"]  # anchors made by scripts
linkcheck_timeout = 20
linkcheck_retries = 2
html_theme_options = {
    "logo": {
        "text": "proxfield",
        "image_light": "_static/logo.svg",
        "image_dark": "_static/logo-dark.svg",
    },
    "header_links_before_dropdown": 8,
    "navbar_align": "left",
    "navbar_persistent": ["search-button"],
    "navbar_end": ["version-switcher", "theme-switcher", "navbar-icon-links"],
    "icon_links": [
        {"name": "Repository", "url": repository_url, "icon": "fa-brands fa-github"},
    ],
    # A published site has a folder per version (docs/publish.py), named by DOCS_VERSION, and a list
    # of them above. Other builds have a list of their own, so that no page asks the network for it.
    "switcher": {
        "json_url": "../switcher.json" if published_version else "_static/switcher.json",
        "version_match": published_version or "dev",
    },
    "check_switcher": False,
    "show_prev_next": True,
    "footer_start": ["copyright"],
    "footer_end": [],
}
