"""`DenseCRF` and `DenseCRF2D` as pydensecrf has them, on proxfield's kernels."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from enum import IntEnum
from numbers import Number
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.compat import pydensecrf as settings
from proxfield.compat.pydensecrf import eigen
from proxfield.compat.pydensecrf.eigen import MatrixXf, as_matrix, check_float32
from proxfield.core.engines.base import softmax_rows
from proxfield.core.terms import unary
from proxfield.core.terms.gaussian import Gaussian
from proxfield.field import Field
from proxfield.images.trials import FieldUpdates

__all__ = [
    "CONST_KERNEL",
    "DIAG_KERNEL",
    "FULL_KERNEL",
    "NORMALIZE_AFTER",
    "NORMALIZE_BEFORE",
    "NORMALIZE_SYMMETRIC",
    "NO_NORMALIZATION",
    "ConstUnary",
    "DenseCRF",
    "DenseCRF2D",
    "KernelType",
    "LogisticUnary",
    "NormalizationType",
    "Unary",
    "eigen",
]

Self = TypeVar("Self", bound="DenseCRF")
FILTER = "lattice"
"""The filter of every pairwise term; the original knows this one only."""
MAX_SERIAL_ENERGIES = 50_000
"""Entries up to which one thread does: waking others costs more than they save."""
TINY = 1e-20
"""What a probability of 0 counts as in a logarithm."""


class KernelType(IntEnum):
    """What the original could learn about a kernel; inference is the same with all three."""

    CONST_KERNEL = 0
    DIAG_KERNEL = 1
    FULL_KERNEL = 2


class NormalizationType(IntEnum):
    """How a kernel is normalized. BEFORE and AFTER stand for their symmetric part."""

    NO_NORMALIZATION = 0
    NORMALIZE_BEFORE = 1
    NORMALIZE_AFTER = 2
    NORMALIZE_SYMMETRIC = 3


CONST_KERNEL, DIAG_KERNEL, FULL_KERNEL = KernelType
NO_NORMALIZATION, NORMALIZE_BEFORE, NORMALIZE_AFTER, NORMALIZE_SYMMETRIC = NormalizationType

NORMALIZATIONS = ("none", "before", "after", "symmetric")
"""proxfield's words for `NormalizationType`."""


class Unary:
    """Unary energies; make a `ConstUnary` or a `LogisticUnary`."""

    energies: NDArray[np.float32]  # (L, N)


class ConstUnary(Unary):
    """Energies as they are.

    Args:
        u: One energy per label and variable.  # (L, N)
    """

    def __init__(self, u: ArrayLike) -> None:
        self.energies = as_float32(u, "u")


class LogisticUnary(Unary):
    """Energies that are linear in some features of each variable: L @ f.

    Args:
        L: Weights.  # (L, k)
        f: Features.  # (k, N)
    """

    def __init__(self, L: ArrayLike, f: ArrayLike) -> None:
        weights, features = as_float32(L, "L"), as_float32(f, "f")
        if weights.ndim != 2 or features.ndim != 2 or weights.shape[1] != features.shape[0]:
            raise ValueError(
                "Bad shape for logistic unary (Need (L, k) and (k, N), "
                f"got {weights.shape} and {features.shape})"
            )
        self.energies = weights @ features


class DenseCRF:
    """A fully connected field over variables that all have the same labels.

    Args:
        nvar: Number of variables, N.
        nlabels: Number of labels, L.
        *ignored: More arguments are for subclasses.

    Example:
        >>> crf = DenseCRF(3, 2)
        >>> crf.setUnaryEnergy(np.array([[0, 1, 0], [1, 0.9, 1]], dtype=np.float32))
        >>> crf.addPairwiseEnergy(np.zeros((1, 3), dtype=np.float32), compat=3)
        >>> np.argmax(crf.inference(5), axis=0)
        array([0, 0, 0])
    """

    # Set up in __new__, as the original is: a subclass needn't call __init__.
    def __new__(cls: type[Self], nvar: int, nlabels: int, *ignored: object) -> Self:
        self = super().__new__(cls)
        self._n, self._labels = int(nvar), int(nlabels)
        if self._n < 0 or self._labels < 1:
            raise ValueError(f"{nvar} variables with {nlabels} labels: expected 0 and 1 or more")
        self._energies = np.zeros((self._n, self._labels), dtype=np.float32)
        self._checked = True
        self._pairwise = []
        self._compiled = None
        return self

    _n: int
    _labels: int
    _energies: NDArray[np.float32]  # (N, L)
    _checked: bool
    _pairwise: list[Gaussian]
    _compiled: FieldUpdates | None

    # ---- the model ----

    def setUnary(self, u: Unary) -> None:
        """Take the energies of a `ConstUnary` or a `LogisticUnary`."""
        if not isinstance(u, Unary):
            raise TypeError(
                f"Argument 'u' has incorrect type (expected {Unary.__name__}, "
                f"got {type(u).__name__}); for an array there is setUnaryEnergy"
            )
        if not hasattr(u, "energies"):
            raise TypeError("an empty Unary: make a ConstUnary or a LogisticUnary")
        self.setUnaryEnergy(u.energies)

    def setUnaryEnergy(self, u: ArrayLike, f: ArrayLike | None = None) -> None:
        """Set the unary energies, −log of the probabilities.

        Args:
            u: One energy per label and variable; (L, h, w) does as well.  # (L, N)
            f: With it, the energies are u @ f.  # (k, N), and u is (L, k)
        """
        energies = as_float32(u, "u") if f is None else LogisticUnary(u, f).energies
        if not self._fits(energies.shape):
            raise ValueError(
                f"Bad shape for unary energy (Need ({self._labels}, {self._n}), "
                f"got {energies.shape})"
            )
        from proxfield.core.compiled.jit import threads_for
        from proxfield.core.engines.numba.dense import transpose

        self._energies = np.empty((self._n, self._labels), dtype=np.float32)
        with _threads(), threads_for(energies.size):
            flat = energies.reshape(self._labels, self._n)
            self._checked = bool(transpose(flat, self._energies))  # whether all are finite
        self._compiled = None

    def _fits(self, shape: tuple[int, ...]) -> bool:
        """Whether unary energies of a shape are welcome."""
        return len(shape) > 1 and (shape[0], math.prod(shape[1:])) == (self._labels, self._n)

    def addPairwiseEnergy(
        self,
        features: ArrayLike,
        compat: ArrayLike,
        kernel: int = DIAG_KERNEL,
        normalization: int = NORMALIZE_SYMMETRIC,
    ) -> None:
        """Join every pair of variables, weighted by a Gaussian of the distance of their features.

        Args:
            features: In units of standard deviations.  # (d, N)
            compat: A number w: Potts, different labels cost w. A vector: what two variables of
                the same label pay. A matrix: what each pair of labels pays, symmetrized.
                # a number, float32 (L,) or float32 (L, L)
            kernel: A `KernelType`; makes no difference here.
            normalization: A `NormalizationType`.
        """
        rows = as_float32(features, "features")
        if rows.ndim < 2 or int(np.prod(rows.shape[1:])) != self._n:
            raise ValueError(
                f"Bad shape for pairwise energy (Need (?, {self._n}), got {rows.shape})"
            )
        self._add(rows.reshape(len(rows), self._n).T, compat, kernel, normalization)

    def _add(
        self, features: NDArray[np.float32], compat: ArrayLike, kernel: int, normalization: int
    ) -> None:
        KernelType(int(kernel))  # ValueError for any other number
        how = NORMALIZATIONS[NormalizationType(int(normalization))]
        weight, table = read_compatibility(compat, self._labels)
        term = Gaussian(
            features,
            weight,
            table,
            normalization=how,
            self_message=True,
            filter=FILTER,
        )
        with _threads():
            self._pairwise.append(term.build(drop_features=True))
        self._compiled = None

    # ---- inference ----

    def _check(self) -> None:
        """Every variable needs a possible label, and energies that are numbers."""
        if self._checked:
            return
        bad = np.flatnonzero(~np.isfinite(self._energies.min(axis=1, initial=np.inf)))
        if len(bad):
            raise ValueError(
                f"variable {bad[0]} has a unary energy of NaN or -inf, or +inf throughout"
            )
        self._checked = True

    def _advance(self, q: NDArray[np.float32], n: int) -> NDArray[np.float32]:
        """Marginals after some updates, perhaps in the array given.  # (N · L,) -> (N · L,)

        The step is the full one, the original's, wherever that can't oscillate (attractive
        compatibilities); otherwise it is damped as much as the curvature asks for. Without
        pairwise terms, one update gives what the unary energies alone do.
        """
        self._check()
        if not self._pairwise:
            return self._unary_only()
        if self._compiled is None:
            serial = self._energies.size <= MAX_SERIAL_ENERGIES
            terms = [unary.Unary(self._energies), *self._pairwise]
            field = Field(self._n, self._labels, terms)
            self._compiled = FieldUpdates(field, settings.THREADS or (1 if serial else None))
        return self._compiled.make(self._compiled.program.take(q[None]), n)

    def _unary_only(self) -> NDArray[np.float32]:
        """Marginals that the unary energies alone give.  # (N · L,)"""
        self._check()
        return softmax_rows(self._energies.reshape(-1), self._labels)

    def inference(self, niter: int) -> MatrixXf:
        """Marginals after some parallel updates, from softmax(−U); ``np.array`` reads them.

        Args:
            niter: Number of updates; 0 or less gives softmax(−U).

        Returns:
            Q, one column a variable.  # (L, N)
        """
        q, n = self._unary_only(), int(niter)
        return as_matrix(self._advance(q, n) if n > 0 else q, self._labels)

    def startInference(self) -> tuple[MatrixXf, MatrixXf, MatrixXf]:
        """softmax(−U), and two matrices that `stepInference` takes and doesn't need."""
        return self.inference(0), MatrixXf(), MatrixXf()

    def stepInference(self, Q: MatrixXf, tmp1: object = None, tmp2: object = None) -> None:
        """One update of Q, in place."""
        flat = self._flat(Q)
        flat[:] = self._advance(flat, 1)

    def klDivergence(self, Q: MatrixXf) -> float:
        """What the original returns: Σ Q log Q + ⟨U, Q⟩ + Σ_k ⟨Q, μ_k K_k Q⟩.

        This isn't a divergence, and can be negative: it counts every pair twice and lacks
        log Z. Nor is it what the updates decrease. That is F, with half the last sum:
        ``proxfield.infer(field).free_energy``, and −F is a lower bound on log Z.
        """
        self._check()
        rows = np.asarray(self._flat(Q), dtype=np.float64).reshape(self._n, self._labels)
        positive = rows > 0
        total = float((rows * np.log(np.maximum(rows, TINY))).sum())
        total += float((rows[positive] * self._energies[positive]).sum())
        for term in self._pairwise:
            compatibility = term.compatibility(self._labels)
            total += float((rows * (term.operate(rows) @ compatibility)).sum())
        return total

    def _flat(self, Q: MatrixXf) -> NDArray[np.float32]:
        """The memory of Q, variable by variable.  # (N · L,)"""
        if not isinstance(Q, MatrixXf):
            raise TypeError(
                f"Argument 'Q' has incorrect type (expected MatrixXf, got {type(Q).__name__}); "
                "make one with eigen.matrixXf"
            )
        plain = Q.plain()
        if plain.shape != (self._labels, self._n):
            raise ValueError(
                f"Bad shape for Q (Need ({self._labels}, {self._n}), got {plain.shape})"
            )
        if plain.dtype != np.float32 or not plain.flags.f_contiguous:
            raise ValueError("Q must be float32 and column-major, as eigen.matrixXf makes it")
        return np.reshape(plain.T, -1)  # a view, since Q is column-major


class DenseCRF2D(DenseCRF):
    """A fully connected field over the pixels of an image, row by row.

    Args:
        w: Width of the image.
        h: Height of the image.
        nlabels: Number of labels.
        *ignored: More arguments are for subclasses.
    """

    def __new__(cls: type[Self], w: int, h: int, nlabels: int, *ignored: object) -> Self:
        self = super().__new__(cls, int(w) * int(h), nlabels)  # type: ignore[misc]
        self._w, self._h = int(w), int(h)
        return self  # type: ignore[no-any-return]

    _w: int
    _h: int

    def _fits(self, shape: tuple[int, ...]) -> bool:
        return shape in ((self._labels, self._n), (self._labels, self._h, self._w))

    def addPairwiseGaussian(
        self,
        sxy: ArrayLike,
        compat: ArrayLike,
        kernel: int = DIAG_KERNEL,
        normalization: int = NORMALIZE_SYMMETRIC,
    ) -> None:
        """Pixels that are close by should have the same label.

        Args:
            sxy: Standard deviation in pixels: a number, or one for x and one for y.
            compat: As in `addPairwiseEnergy`.
            kernel: As in `addPairwiseEnergy`.
            normalization: As in `addPairwiseEnergy`.
        """
        features = np.empty((self._h, self._w, 2), dtype=np.float32)
        self._positions(sxy, features)
        self._add(features.reshape(self._n, 2), compat, kernel, normalization)

    def addPairwiseBilateral(
        self,
        sxy: ArrayLike,
        srgb: float | Sequence[float],
        rgbim: ArrayLike,
        compat: ArrayLike,
        kernel: int = DIAG_KERNEL,
        normalization: int = NORMALIZE_SYMMETRIC,
    ) -> None:
        """Pixels that are close by and look alike should have the same label.

        Args:
            sxy: Standard deviation in pixels: a number, or one for x and one for y.
            srgb: Standard deviation in the image's units: a number, or one for each channel.
            rgbim: The image, of any real type.  # (h, w, 3), (h, w, channels) or (h, w)
            compat: As in `addPairwiseEnergy`.
            kernel: As in `addPairwiseEnergy`.
            normalization: As in `addPairwiseEnergy`.
        """
        image = as_float32(rgbim, "rgbim")
        if image.ndim not in (2, 3) or image.shape[:2] != (self._h, self._w):
            turned = image.ndim > 1 and image.shape[:2] == (self._w, self._h)
            raise ValueError(
                f"Bad shape for pairwise bilateral (Need ({self._h}, {self._w}, 3), "
                f"got {image.shape})"
                + ("; DenseCRF2D takes the width before the height" if turned else "")
            )
        image = image.reshape(self._h, self._w, -1)
        spread = deviations(srgb, image.shape[2], "srgb")
        real = np.asarray(rgbim).dtype.kind == "f"
        if real and image.size and 0 <= image.min() < image.max() <= 1 <= abs(spread).min():
            warnings.warn(
                f"the image's values are within 0 and 1, srgb={srgb} is in the same units: "
                "colors make no difference",
                stacklevel=2,
            )
        features = np.empty((self._h, self._w, 2 + image.shape[2]), dtype=np.float32)
        self._positions(sxy, features)
        np.divide(image, spread, out=features[..., 2:])
        self._add(features.reshape(self._n, -1), compat, kernel, normalization)

    def _positions(self, sxy: ArrayLike, out: NDArray[np.float32]) -> None:
        """Write where each pixel is, x first.  # (h, w, 2 or more)"""
        sx, sy = deviations(sxy, 2, "sxy")
        out[..., 0] = np.arange(self._w, dtype=np.float32) / sx
        out[..., 1] = np.arange(self._h, dtype=np.float32)[:, None] / sy


def _threads() -> AbstractContextManager[None]:
    """Lets kernels use as many threads as the setting says, or all cores."""
    from proxfield.core.compiled.jit import max_threads, thread_count

    return thread_count(settings.THREADS or max_threads())


def as_float32(value: ArrayLike, name: str) -> NDArray[np.float32]:
    """Anything that numpy can read as real numbers, as float32."""
    out = None if value is None else np.asarray(value)
    if out is None or out.dtype.kind not in "fiub":
        raise TypeError(f"Argument {name!r} must be an array of real numbers, not {value!r:.60}")
    return out.astype(np.float32, copy=False)


def deviations(value: ArrayLike, count: int, name: str) -> NDArray[np.float32]:
    """Standard deviations from a number or (at least) as many as needed.  # (count,)"""
    given = as_float32(value, name).ravel()
    if np.ndim(value) == 0:
        given = np.repeat(given, count)
    if len(given) < count:
        raise ValueError(f"{name} has {len(given)} values, expected a number or {count} of them")
    out = given[:count]
    if not np.isfinite(out).all() or not out.all():
        raise ValueError(f"{name}={value!r}: standard deviations must be finite and not 0")
    return out


def read_compatibility(compat: Any, labels: int) -> tuple[float, NDArray[np.float32] | None]:
    """A compatibility as proxfield's weight (for Potts) and table (otherwise)."""
    if isinstance(compat, Number) or (isinstance(compat, np.ndarray) and compat.ndim == 0):
        return float(compat), None  # type: ignore[arg-type]
    try:
        table = np.asarray(memoryview(compat))
    except TypeError:
        raise TypeError(
            f"a compat is a number or a float32 array, not {type(compat).__name__}"
        ) from None
    check_float32(table)
    if table.ndim > 2:
        raise ValueError("LabelCompatibility of dimension >2 not meaningful.")
    if table.shape != (labels,) * table.ndim:
        raise ValueError(
            f"Bad shape for compat (Need ({labels},) or ({labels}, {labels}), got {table.shape})"
        )
    return 1.0, table
