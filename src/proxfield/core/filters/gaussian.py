"""`gaussian_filter`: sums and means over all points, weighted by a Gaussian of their distance."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.arrays import Array, Floats, Pixels
from proxfield.core.filters import plan as plans
from proxfield.errors import InputError, shown

Shape = tuple[int, ...]
RECTANGULAR = "in one rectangular array"


def gaussian_filter(
    values: ArrayLike,
    features: ArrayLike,
    *,
    sigma: float | Sequence[float] | Floats = 1.0,
    at: ArrayLike | None = None,
    normalize: bool = True,
    filter: str = "auto",
    dtype: str | None = None,
    threads: int | None = None,
) -> Array:
    """Means of values over all points, weighted by a Gaussian of the distance of their features.

    out_i = Σ_j k_ij v_j / Σ_j k_ij with k_ij = exp(−½ ‖(f_i − f_j) / σ‖²). With positions as
    features this is a Gaussian blur, with positions and colors the bilateral filter; features may
    be anything that has a distance (depths, normals, times, embeddings), of pixels or of points
    that lie anywhere. The lattice takes time linear in the number of points.

    Args:
        values: One number per point, or several channels.  # (*points) or (*points, channels)
        features: Where each point lies; up to 20 features.  # (*points, features)
        sigma: Standard deviation in units of the features: one number, or one per feature.
        at: Where to evaluate the means: features of other points. By default at the points
            themselves.  # (*others, features)
        normalize: Divide by Σ_j k_ij; otherwise the sums Σ_j k_ij v_j are returned. A mean far
            from all points, where that is below 1e-20, tends to 0.
        filter: "exact" (all pairs), "lattice" (permutohedral: approximate, for many points) or
            "auto" (exact up to 2000 points).
        dtype: "float32" or "float64"; None: that of the values, and float64 for integers.
        threads: Maximum number of threads; None: as many as numba uses.

    Returns:
        As many channels as the values, for each point (of ``at``).  # (*points[, channels])
        For tensors of torch, what `proxfield.torch.gaussian_filter` returns.

    Example:
        >>> steps = np.array([0.0, 0.1, 0.0, 5.1, 5.0])
        >>> place = np.arange(5.0)
        >>> near_and_alike = np.stack([place / 2.0, steps / 0.5], axis=-1)
        >>> gaussian_filter(steps, near_and_alike).round(2)  # noise goes, the edge stays
        array([0.03, 0.04, 0.03, 5.05, 5.05])
        >>> gaussian_filter(steps, place[:, None], at=[[2.5]], sigma=0.5).round(2)  # a blur
        array([2.55])
    """
    if type(values).__module__.partition(".")[0] == "torch":
        from proxfield.core.filters.torch.filter import gaussian_filter as filter_tensors

        if dtype is not None or threads is not None:
            raise InputError(
                "tensors have their own type, and torch its threads: don't pass dtype or threads"
            )
        return filter_tensors(
            values, features, sigma=sigma, at=at, normalize=normalize, filter=filter
        )
    given = read_values(values, dtype)
    where = plans.real_numbers(features, "features", RECTANGULAR)
    others = None if at is None else plans.real_numbers(at, "at", RECTANGULAR)
    plans.choose(filter, 0)
    shape = check_shapes(given.shape, where.shape, None if others is None else others.shape)
    width = read_sigma(sigma, where.shape[-1])
    points = _points(where, width)
    n = len(points)
    rows = given.reshape(n, -1 if given.size else given.shape[-1])
    if others is not None:
        points = np.concatenate([points, _points(others, width)])
    if len(points) == 0 or rows.shape[1] == 0:
        return np.zeros(shape, dtype=given.dtype)
    source = np.zeros((len(points), rows.shape[1]), dtype=given.dtype)
    source[:n] = rows
    here = slice(0, n) if others is None else slice(n, None)
    limit: AbstractContextManager[object] = nullcontext()
    if threads is not None:
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
            raise InputError(f"threads={shown(threads)}, expected 1 or more")
        from proxfield.core.compiled.jit import thread_count

        limit = thread_count(threads)
    with limit:
        plan = plans.make_filter(plans.choose(filter, len(points)), points)
        out: Floats = plan.apply(source)[here]
        if normalize:
            weight = np.zeros((len(points), 1))
            weight[:n] = 1.0
            out /= plan.apply(weight)[here] + plans.SMALLEST_MASS
    return out.reshape(shape)


def read_values(values: ArrayLike, dtype: str | None) -> Floats:
    """Finite numbers in float32 or float64."""
    out = plans.real_numbers(values, "values", RECTANGULAR)
    if dtype is None:
        single = out.dtype in (np.dtype(np.float32), np.dtype(np.float16))
        dtype = "float32" if single else "float64"
    elif dtype not in ("float32", "float64"):
        raise InputError(f'dtype={shown(dtype)}, expected "float32" or "float64"')
    found: Floats = out.astype(dtype, copy=False)
    if not np.isfinite(found).all():
        raise InputError(
            "values hold NaN or infinite numbers; leave these points out, and evaluate there by at="
        )
    return found


def check_shapes(values: Shape, features: Shape, at: Shape | None) -> Shape:
    """The shape of the result."""
    if len(features) < 2 or features[-1] < 1:
        raise InputError(
            f"features of shape {features}, expected (*points, features); a single feature per "
            "point needs an axis too: features[:, None]"
        )
    points = features[:-1]
    if values[: len(points)] != points or len(values) > len(points) + 1:
        sizes = ", ".join(map(str, points))
        raise InputError(
            f"values of shape {values} for features of shape {features}, expected ({sizes}) or "
            f"({sizes}, channels)"
        )
    if at is None:
        return values
    if len(at) < 2 or at[-1] != features[-1]:
        raise InputError(f"at of shape {at}, expected (*points, {features[-1]}) as the features")
    return (*at[:-1], *values[len(points) :])


def read_sigma(sigma: ArrayLike, count: int) -> NDArray[np.float64]:
    """Standard deviations above 0: one, or one per feature."""
    try:
        out = np.asarray(sigma, dtype=np.float64)
        if out.ndim > 1 or (out.ndim == 1 and len(out) != count):
            raise ValueError
    except (TypeError, ValueError):
        raise InputError(
            f"sigma={shown(sigma)}, expected a number or {count}, one per feature"
        ) from None
    if not (np.isfinite(out).all() and (out > 0).all()):
        raise InputError(f"sigma={shown(sigma)}, expected finite numbers above 0")
    return out


def _points(features: Pixels, sigma: NDArray[np.float64]) -> Floats:
    """One row per point, in units of standard deviations.  # (n, d)"""
    kind = np.float32 if features.dtype == np.float32 else np.float64
    with np.errstate(over="ignore"):
        scaled = features.astype(kind) / sigma.astype(kind)
    count = int(np.prod(features.shape[:-1]))
    return plans.check_features(scaled.reshape(count, features.shape[-1]))
