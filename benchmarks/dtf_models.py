"""Decision tree fields that inpaint characters, read from MATLAB files (a module for others).

`proxfield.bench.inpainting` reads them.

Example::

    field = dtf_models.load("TST_test_0009_64_80.mat")

Run ``python benchmarks/dtf_models.py FILE.mat ...`` to see what is in files.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import proxfield as pf
from proxfield.bench.inpainting import best_known as best_known
from proxfield.bench.inpainting import read_model


def load(path: str | Path, *, distinct: bool = True, grid: bool = False) -> pf.Field:
    """Read one model.

    Args:
        path: A ``.mat`` file.
        distinct: Store equal tables once, with an index (what a decision tree gives); else one
            table per edge, as in the file.
        grid: One `proxfield.GridPairwise` term per offset instead of a list of edges.

    Returns:
        A binary field, its variables numbered by columns of the image.
    """
    field = read_model(path, distinct=distinct)
    if not grid:
        return field
    unary, factor = field.terms
    assert isinstance(factor, pf.Factor)
    shape = tuple(int(x) for x in reversed(Path(path).stem.split("_")[-2:]))  # (width, height)
    index = np.arange(len(factor.scopes)) if factor.index is None else factor.index
    out = pf.Field(field.n_vars, n_labels=2).add(unary)
    for term in grid_terms(shape, factor.scopes, factor.tables, index):
        out.add(term)
    return out


def grid_terms(
    shape: tuple[int, int], scopes: np.ndarray, tables: np.ndarray, index: np.ndarray
) -> list[pf.GridPairwise]:
    """The same energies, one term per offset; every offset must have all of its edges."""
    ends = np.stack(np.unravel_index(scopes, shape), axis=-1)  # (m, 2 ends, 2 axes)
    offsets, kind = np.unique(ends[:, 1] - ends[:, 0], axis=0, return_inverse=True)
    out = []
    for k, offset in enumerate(offsets):
        mine = np.flatnonzero(kind.ravel() == k)
        mine = mine[np.argsort(scopes[mine, 0])]
        used, where = np.unique(index[mine], return_inverse=True)
        term = pf.GridPairwise(shape, offset, tables[used], where.ravel())
        assert (term.shift.edges() == scopes[mine]).all()
        out.append(term)
    return out


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
