"""NIfTI volumes, which say where they are in the body. Needs the extra ``medical``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from proxfield.core.common.arrays import Pixels
from proxfield.core.common.extras import import_extra
from proxfield.errors import InputError
from proxfield.io.files import Target, atomic_write, read_bytes
from proxfield.io.npy import compact
from proxfield.io.tiff import PlacedImage

NIFTI = (".nii", ".nii.gz")
MILLIMETERS = {"meter": 1000.0, "mm": 1.0, "micron": 0.001}
"""Units of a NIfTI header; one that isn't known counts as mm."""


def import_nibabel() -> Any:
    """The package nibabel, or how to install it."""
    return import_extra("nibabel", "NIfTI files need nibabel", "medical")


@dataclass(frozen=True)
class NiftiReference:
    """The position of a volume in the body, as its header has it.

    Attributes:
        affine: From voxels to mm.  # (4, 4)
        header: The header of the image.
    """

    affine: Any
    header: Any

    def same_place(self, other: object) -> bool:
        """Whether another file lies in the same place."""
        return isinstance(other, NiftiReference) and np.allclose(
            self.affine, other.affine, atol=1e-3
        )

    def write(self, path: Target, values: Pixels, ignored: int | None = None) -> None:
        """Write labels, or probabilities with labels last, as ``.nii`` or ``.nii.gz``."""
        nibabel = import_nibabel()
        stored = compact(values)
        header = self.header.copy()
        header.set_data_dtype(stored.dtype)
        header.set_slope_inter(1, 0)
        volume = nibabel.Nifti1Image(stored, self.affine, header)
        atomic_write(path, volume.to_bytes())


def read_nifti(path: Target) -> PlacedImage:
    """A volume, its place, and the size of a voxel along each axis in mm.

    Raises:
        InputError: If the file can't be read or is no NIfTI volume.
    """
    nibabel = import_nibabel()
    data, name = read_bytes(path)  # decompressed
    try:
        volume = nibabel.Nifti1Image.from_bytes(data)
        values = np.asanyarray(volume.dataobj)
        spatial = volume.header.get_xyzt_units()[0]
        zooms = tuple(float(z) for z in volume.header.get_zooms()[:3])
    except MemoryError:
        raise InputError(
            "volume doesn't fit in memory, expected a smaller one", path=name
        ) from None
    except Exception as error:  # of a dozen kinds, for a damaged file
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"is no whole NIfTI volume ({reason}), expected .nii or .nii.gz", path=name
        ) from None
    while values.ndim > 3 and (values.shape[-1] == 1 or values.shape[3] == 1):
        values = values[..., 0] if values.shape[-1] == 1 else values[:, :, :, 0]
    if values.dtype.kind not in "biuf":
        raise InputError(f"holds {values.dtype}, expected real numbers", path=name)
    spacing = tuple(z * MILLIMETERS.get(spatial, 1.0) for z in zooms)
    if not all(0 < z < float("inf") for z in spacing):
        raise InputError(
            f"its header has the spacing {spacing}, expected numbers above 0", path=name
        )
    return PlacedImage(values, NiftiReference(volume.affine, volume.header), spacing)
