"""What inference in a dense CRF gives: marginals and labels as maps, and what they say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.arrays import Array
from proxfield.core.solve.rounding import round_marginals
from proxfield.core.terms.base import Ints
from proxfield.core.terms.gaussian import Gaussian
from proxfield.core.terms.unary import Unary
from proxfield.images.inputs import ODDS, flags_of
from proxfield.images.metrics import share_of
from proxfield.result import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from proxfield.images.densecrf import DenseCRF

SAMPLE = 4096
"""Pixels that are looked at first for a changed label."""
MOSTLY = 0.99
"""Share of certain pixels from which on a result without changes is told."""


@dataclass(repr=False, eq=False)
class DenseResult(Result):
    """A `Result` whose labellings have the shape of the image."""

    field: DenseCRF

    @property
    def probabilities(self) -> Array:
        """Marginals in the shape, the order of axes and the kind of array that was given.

        An array of numpy, unless what was given was of torch, cupy or xarray.
        """
        crf, axis = self.field, self.field.labels_axis
        maps = self.q.reshape(*crf.pixels, crf.n_labels)
        given = maps[..., 1] if axis is None else np.moveaxis(maps, -1, axis)
        return crf.original.restore(given.reshape(crf.shape))

    @cached_property
    def labels(self) -> Array:
        """The most probable label of each pixel; ignored pixels keep their value.  # (*pixels)

        An array of numpy, unless what was given was of torch, cupy or xarray.
        """
        best = self.field._as_map(self._most_probable())
        return self.field.original.restore(best, self.field.labels_axis)

    @cached_property
    def changed(self) -> NDArray[np.bool_]:
        """Where the most probable label isn't the one before inference.  # (*pixels)

        Pixels that were unsure (see `DenseCRF.from_labels`) had none, and don't count.

        Example:
            >>> import proxfield as pf
            >>> p = np.full((4, 5), 0.8)
            >>> p[2, 2] = 0.4
            >>> result = pf.DenseCRF(None, p, labels_axis=None, preset="krahenbuehl").infer()
            >>> int(result.changed.sum()), np.argwhere(result.changed).tolist()
            (1, [[2, 2]])
        """
        after = self.field._as_map(self._most_probable())
        changed = np.asarray(after != self.field.input_labels)
        return changed & ~flags_of(self.field.unsure, changed.size).reshape(changed.shape)

    def __repr__(self) -> str:
        text = f"Dense{super().__repr__()}"
        if not self.field.has_terms and "changed" not in self.__dict__:
            return text  # what it was before isn't here
        return f"{text[:-1]}, {share_of(int(self.changed.sum()), self.changed.size)} changed)"

    @cached_property
    def map_labels(self) -> Ints:
        """Coordinate-wise rounding, where all terms allow it; else `labels`.  # (*pixels)"""
        return round_marginals(self).reshape(self.field.pixels)

    def show(
        self,
        image: ArrayLike | None = None,
        path: str | PathLike[str] | None = None,
        *,
        names: Sequence[str] | None = None,
        title: str | None = None,
    ) -> Figure:
        """The image, the labels before and after, and the pixels that changed. Needs matplotlib.

        `proxfield.viz.convergence_figure` draws how F fell.

        Args:
            image: The image; by default as the field has it, and without one the labels alone.
                # (*pixels), (*pixels, channels) or (channels, *pixels)
            path: Also save the figure, as .png, .svg or .pdf.
            names: Names of the labels, for the legend.
            title: A title.

        Returns:
            A matplotlib figure of four panels, three without an image.

        Raises:
            MissingDependencyError: If matplotlib isn't installed.
            UnsupportedError: If the result came from another process without its field's terms.
        """
        from proxfield.viz.segmentation import segmentation_figure

        return segmentation_figure(self, image, path, names=names, title=title)

    def plot(self, path: str | PathLike[str] | None = None, title: str | None = None) -> Figure:
        """What `show` draws, with the image that the field has."""
        return self.show(path=path, title=title)

    def sample(self, count: int = 1, seed: int = 0) -> Ints:
        """Independent label maps drawn from Q.  # (count, *pixels)"""
        return super().sample(count, seed).reshape(count, *self.field.pixels)


def unchanged_note(result: DenseResult) -> str:
    """What to say where updates changed no pixel and its labels are why; else nothing."""
    crf = result.field
    if crf.n_labels < 2 or not result.iterations:
        return ""
    unary = crf.terms[0]
    assert isinstance(unary, Unary)
    table = np.asarray(unary.energies).reshape(crf.n_vars, -1)
    # some thousand pixels first: that costs nothing, and usually one has changed
    some = slice(None, None, max(1, crf.n_vars // SAMPLE))
    if (result.q.reshape(table.shape)[some].argmax(axis=1) != table[some].argmin(axis=1)).any():
        return ""
    if result.changed.any():
        return ""
    if np.ptp(result._most_probable()) == 0:  # one label only: nothing to refine
        return ""
    # whether log odds of a right label are no less than about what Potts terms cost: then hardly
    # any of them can change. Of other terms nothing is claimed
    weights = [abs(t.weight) for t in crf.terms if isinstance(t, Gaussian) and t.potts]
    p = crf.confidence
    if p is not None and p != 1 and len(weights) == len(crf.terms) - 1:
        odds = p / ((1 - p) / (crf.n_labels - 1))
        if 0 < 0.8 * sum(weights) <= np.log(odds):
            return (
                f"no pixel changed: {crf.n_labels} labels of confidence {p:g} outweigh the terms; "
                "lower confidence=, or pass larger weights (preset='krahenbuehl')"
            )
    if crf._certain_meant:
        return ""
    low, second = np.partition(table, 1, axis=1)[:, :2].T
    certain = (second - low >= 0.999 * ODDS) & np.isfinite(second)  # without those of scribbles
    share = float(certain.mean())
    if share <= MOSTLY:
        return ""
    return (
        f"no pixel changed: {share:.4g} of the pixels are certain (a label of probability 1); "
        "DenseCRF.from_labels(image, labels, confidence=0.7) takes labels that may be wrong"
    )
