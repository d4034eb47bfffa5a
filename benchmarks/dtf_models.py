"""Decision tree fields that inpaint characters, read from MATLAB files (a module for others).

A file ``TST_test_<number>_<height>_<width>.mat`` holds one binary field: ``D`` are the unary
energies (variables, 2), ``E`` is a sparse matrix with an entry per edge, and ``W`` (edges, 2, 2)
the tables of the edges in the column-major order of ``E``; rows of a table are the labels of
the edge's row in ``E``. Pixels are numbered by columns.

``DTF-OPT.mat`` beside it has the best-known MAP energies, in the order of ``DTF-names.mat``.

Example::

    field = dtf_models.load("TST_test_0009_64_80.mat")

Run ``python benchmarks/dtf_models.py FILE.mat ...`` to see what is in files.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import scipy.io

import proxfield as pf


def load(path: str | Path, *, distinct: bool = True, grid: bool = False) -> pf.Field:
    """Read one model.

    Args:
        path: A ``.mat`` file as described above.
        distinct: Store equal tables once, with an index (what a decision tree gives); else one
            table per edge, as in the file.
        grid: One `proxfield.GridPairwise` term per offset instead of a list of edges.

    Returns:
        A binary field, its variables numbered by columns of the image.
    """
    data = scipy.io.loadmat(path)
    edges = data["E"].tocsc()
    edges.sort_indices()
    columns = np.repeat(np.arange(edges.shape[1]), np.diff(edges.indptr))
    scopes = np.stack([edges.indices.astype(np.int64), columns], axis=1)
    tables, index = np.ascontiguousarray(data["W"], dtype=np.float64), None
    if distinct:
        flat, index = np.unique(tables.reshape(-1, 4), axis=0, return_inverse=True)
        tables, index = flat.reshape(-1, 2, 2), index.ravel()
    field = pf.Field(len(data["D"]), n_labels=2)
    field.add(pf.Unary(np.ascontiguousarray(data["D"], dtype=np.float64)))
    if not grid:
        return field.add(pf.Factor(scopes, tables, index))
    shape = tuple(int(x) for x in reversed(Path(path).stem.split("_")[-2:]))  # (width, height)
    index = np.arange(len(scopes)) if index is None else index
    for term in grid_terms(shape, scopes, tables, index):
        field.add(term)
    return field


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


def best_known(path: str | Path) -> float | None:
    """The best-known MAP energy of a model, by the tables beside it; None without these."""
    path = Path(path)
    try:
        names = scipy.io.loadmat(path.with_name("DTF-names.mat"))["lP"].ravel()
        energies = scipy.io.loadmat(path.with_name("DTF-OPT.mat"))["eng"].ravel()
    except FileNotFoundError:
        return None
    stems = [Path(str(name["filename"].item())).stem for name in names]
    return float(energies[stems.index(path.stem)]) if path.stem in stems else None


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
