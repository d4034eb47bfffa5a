"""Arrays of zarr in folders, here or on other machines. Needs the extra ``tiles``."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from proxfield.core.common.arrays import Dtype, Pixels
from proxfield.core.common.extras import import_extra
from proxfield.errors import InputError
from proxfield.io.files import display_name
from proxfield.io.remote import AnyPath, RemotePath
from proxfield.io.windows import NewFile, Output, Sliced, Window, damaged, is_zarr


def import_zarr() -> Any:
    """The package zarr, or how to install it."""
    return import_extra("zarr", "zarr arrays need zarr", "tiles")


@dataclass(frozen=True, eq=False)
class Zarr(Sliced):
    """A zarr array in a folder; of a group, its only array or the one called 0 (full size)."""

    path: AnyPath

    @cached_property
    def _found(self) -> tuple[tuple[int, ...], Dtype]:
        array = self._open()
        return tuple(int(n) for n in array.shape), np.dtype(array.dtype)

    def _open(self) -> Any:
        zarr = import_zarr()
        try:
            there = zarr.open(str(self.path), mode="r")
        except Exception as error:  # of many kinds, and other ones in each version
            raise damaged(error, self.name) from None
        if hasattr(there, "shape"):
            return there
        inside = sorted(there.array_keys())
        if "0" in inside or len(inside) == 1:
            return there["0" if "0" in inside else inside[0]]
        raise InputError(
            f"is a group of {len(inside)} zarr arrays, expected the path of one of them "
            f"({', '.join(inside[:5])})",
            path=self.name,
        )

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """The array's."""
        return self._found[0]

    @property
    def dtype(self) -> Dtype:  # type: ignore[override]
        """The array's."""
        return self._found[1]

    @property
    def name(self) -> str:  # type: ignore[override]
        """The folder's."""
        return display_name(self.path)

    def read(self, window: Window) -> Pixels:
        return np.asarray(self._open()[window])

    def identity(self) -> str:
        place = self.path if isinstance(self.path, RemotePath) else self.path.resolve()
        return f"{place} {self.shape} {self.dtype}"


class ZarrOutput(Output):
    """A zarr array, in chunks of the tiles' size."""

    def __init__(self, new: NewFile) -> None:
        super().__init__(new.shape, new.dtype)
        self.target, self.path = new.target, new.folder / "output.zarr"
        if is_zarr(self.path):
            self.array = import_zarr().open(str(self.path), mode="r+")
            return
        size = tuple(min(c, n) for c, n in zip(new.chunks, new.shape, strict=True))
        self.array = import_zarr().open(
            str(self.path), mode="w", shape=new.shape, chunks=size, dtype=new.dtype
        )

    def write(self, window: Window, values: Pixels) -> None:
        self.array[window] = values

    def finish(self) -> None:
        if self.target.exists():  # checked to be one of zarr
            shutil.rmtree(self.target)
        self.path.replace(self.target)


open_file = Zarr
make_file = ZarrOutput
