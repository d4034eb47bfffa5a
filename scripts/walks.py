"""Which modules three calls pass, in order: what the pages `docs/project/walk-*.md` show.

    python scripts/walks.py            write the tables of the pages again
    python scripts/walks.py --check    exit with 1 if a page is stale

Each call runs in a process of its own under `sys.setprofile`, after a first call that imports and
compiles. A table has one row per module in the order in which it is entered, with the function that
is called first, the module that calls it, and the layer. What a lower layer calls in a higher one,
which can only be what it was handed, is listed; values that are handed around (`VALUES`) have no
layer.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "project"
BEGIN, END = "<!-- modules -->", "<!-- end of modules -->"
LAYERS = (
    ("command line", ("cli", "__main__")),
    ("applications", ("images", "people", "torch", "learn", "distributed", "inpainting")),
    ("files", ("io",)),
    ("solve", ("core.solve",)),
    ("engines", ("core.engines",)),
    ("lowering", ("core.lowering",)),
    ("terms", ("core.terms",)),
    ("filters", ("core.filters",)),
    ("helpers", ("core.compiled", "core.devices", "core.jobs", "core.common", "errors", "")),
)
"""From top to bottom, as in the contracts of import-linter; the last one takes all others."""
VALUES = ("field", "result", "mixture", "core.lowering.builder")
"""A field, results, and the builder that terms add their energies to."""


def solve(folder: Path) -> Callable[[], object]:
    """`proxfield solve grid.uai`."""
    from click.testing import CliRunner

    from proxfield.cli.main import cli

    def call(*arguments: str) -> None:
        CliRunner().invoke(cli, arguments, catch_exceptions=False)

    grid = str(folder / "grid.uai")
    call("make", "grid", "--rows", "40", "--cols", "40", "--seed", "1", "-o", grid)
    return lambda: call("solve", grid, "--rule", "fixed", "--max-iters", "50")


def dense(folder: Path) -> Callable[[], object]:
    """`DenseCRF(...).infer()`."""
    import numpy as np

    from proxfield import DenseCRF

    random = np.random.default_rng(0)
    image = random.integers(0, 256, (60, 80, 3), dtype=np.uint8)
    probabilities = random.dirichlet(np.ones(3), size=(60, 80))
    return lambda: DenseCRF(image, probabilities=probabilities).infer()


def layer(folder: Path) -> Callable[[], object]:
    """Forward and backward of the layer."""
    import torch

    from proxfield.torch import DenseCRF

    torch.manual_seed(0)
    images, logits = torch.rand(1, 3, 24, 32), torch.randn(1, 4, 24, 32)
    module = DenseCRF(n_labels=4)

    def call() -> None:
        module(images, logits.requires_grad_()).exp().square().sum().backward()

    return call


WALKS = {"solve": solve, "dense": dense, "layer": layer}


def name_of(frame: FrameType) -> str:
    """The module of a frame without the package's name; empty outside the package."""
    module = str(frame.f_globals.get("__name__", ""))
    return module.removeprefix("proxfield.") if module.startswith("proxfield.") else ""


def record(call: Callable[[], object]) -> list[tuple[str, str, str]]:
    """(module, function, caller) for each first entry, then each step back as ("", ...)."""
    entered: dict[str, tuple[str, str]] = {}
    back: dict[tuple[str, str], str] = {}

    def look(frame: FrameType, event: str, _: Any) -> None:
        module = name_of(frame) if event == "call" else ""
        if not module or frame.f_code.co_name.startswith("<"):
            return
        above = frame.f_back
        while above is not None and not name_of(above):
            above = above.f_back
        caller = "" if above is None else name_of(above)
        entered.setdefault(module, (frame.f_code.co_name, caller))
        if caller and not {caller, module} & set(VALUES) and level(module) < level(caller):
            back.setdefault((caller, module), frame.f_code.co_name)

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    rows = [(module, *found) for module, found in entered.items()]
    return rows + [("", f"{c} → {m}.{name}", c) for (c, m), name in back.items()]


def level(module: str) -> int:
    """Which layer a module is in, from 0 at the top."""
    for k, (_, parts) in enumerate(LAYERS):
        if any(module == part or module.startswith(part + ".") for part in parts):
            return k
    return len(LAYERS) - 1


def title(module: str) -> str:
    """The layer's name."""
    return "values" if module in VALUES else LAYERS[level(module)][0]


def table(rows: list[tuple[str, str, str]]) -> str:
    """The rows as Markdown."""
    modules = [row for row in rows if row[0]]
    back = [row for row in rows if not row[0]]
    out = [
        f"{len(modules)} modules. Imports go downwards only (`make lint`); a lower layer calls "
        "what a higher one has handed to it (a callback, a program, a function) in "
        f"{len(back)} places" + (", listed below." if back else "."),
        "",
        "| module | called first | from | layer |",
        "|---|---|---|---|",
    ]
    for module, name, caller in modules:
        shown = f"`{caller}`" if caller else ""
        out.append(f"| `{module}` | `{name}` | {shown} | {title(module)} |")
    out += ["", *(f"- `{text}`" for _, text, _ in back)] if back else []
    return "\n".join(out)


def walk(name: str) -> str:
    """The table of a walk, made in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--run", name], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr)
    return table([tuple(row) for row in json.loads(done.stdout.splitlines()[-1])])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(WALKS))
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--run", choices=WALKS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        with tempfile.TemporaryDirectory() as folder:
            call = WALKS[options.run](Path(folder))
            call()
            rows = record(call)
        print(json.dumps(rows))
        return
    stale = []
    for name in options.names or WALKS:
        page = PAGES / f"walk-{name}.md"
        text = page.read_text(encoding="utf-8")
        found = re.sub(
            f"{BEGIN}.*{END}",
            lambda _, name=name: f"{BEGIN}\n\n{walk(name)}\n\n{END}",
            text,
            flags=re.DOTALL,
        )
        if found != text:
            stale.append(page.name)
            if not options.check:
                page.write_text(found, encoding="utf-8")
    if options.check and stale:
        sys.exit(f"stale: {', '.join(stale)}; python scripts/walks.py writes them again")


if __name__ == "__main__":
    main()
