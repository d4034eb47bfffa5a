"""Decision tree fields that inpaint characters, read from MATLAB files (a module for others).

`proxfield.bench.inpainting_models` reads them.

Example::

    field = dtf_models.load("TST_test_0009_64_80.mat")

Run ``python benchmarks/dtf_models.py FILE.mat ...`` to see what is in files.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import proxfield as pf
from proxfield.bench.inpainting_models import best_known as best_known
from proxfield.bench.inpainting_models import read_model as load


def main() -> None:
    """Describe files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    for path in parser.parse_args().files:
        field = load(path)
        tables = next(t for t in field.terms if isinstance(t, pf.Factor))
        print(
            f"{path.name}: {field.n_vars:,} variables, {len(tables.scopes):,} edges, "
            f"{len(tables.tables):,} distinct tables, best-known energy {best_known(path)}"
        )


if __name__ == "__main__":
    main()
