"""Dense CRFs over tensors: an image and probabilities in, refined ones on their device out."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from proxfield.core.common.arrays import Array
from proxfield.core.common.records import Record
from proxfield.core.devices.cuda import torch, triton
from proxfield.core.devices.tensors import Tensor, TorchDtype
from proxfield.core.engines.triton.dense_call import KEPT, CallKey
from proxfield.core.filters.torch.ops import require_tensor
from proxfield.core.solve.whole import (
    MAX_LABELS,
    MAX_UPDATES,
    image_terms,
    needs_diagonal,
    term_key,
)
from proxfield.errors import InputError
from proxfield.images.densecrf import DenseCRF, divided
from proxfield.images.inputs import NEGLIGIBLE
from proxfield.images.pixels import TOLERANCE
from proxfield.images.settings import DenseSettings


@dataclass
class RefinedTensors:
    """What `refine` gives back.

    Attributes:
        probabilities: Marginals, in the shape, type and order of axes of those given, on their
            device.
        labels: The most probable label of each pixel, there too.  # (*pixels) int64
        free_energy: F of the last state.
        iterations: Updates made.
        change: Change of the marginals by the last update.
    """

    probabilities: Tensor
    labels: Tensor
    free_energy: float
    iterations: int
    change: float


def refine(image: Tensor | None, probabilities: Tensor, **options: Any) -> RefinedTensors:
    """Refine the probabilities of an image's pixels by a dense CRF, on their device.

    What `proxfield.DenseCRF` does, without a copy to the host: for tensors on a GPU with the
    default rule and start. With other options, and on other devices, it computes on the host. There
    are no gradients; for these there is `proxfield.torch.DenseCRF`.

    Args:
        image: Pixels, as for `proxfield.DenseCRF`; None for the spatial term alone.
            # (*pixels), (*pixels, channels) or (channels, *pixels)
        probabilities: As for `proxfield.DenseCRF`.  # (*pixels, labels) or (labels, *pixels)
        **options: Of `proxfield.DenseCRF` and of its `infer`.

    Example:
        >>> p = torch.softmax(network(image), 0)  # doctest: +SKIP
        >>> refine(image, p, bilateral_color=5.0).labels  # doctest: +SKIP
    """
    require_tensor(probabilities, "probabilities")
    if image is not None:
        require_tensor(image, "image")
    build, run = divided(options)
    found = _on_device(image, probabilities, build, run)
    if found is not None:
        return found
    device = probabilities.device
    p = probabilities.detach()
    p = (p if p.dtype in (torch.float32, torch.float64) else p.float()).cpu().numpy()
    seen = None if image is None else image.detach().cpu().numpy()
    result = DenseCRF(seen, p, **build).infer(**{"device": str(device), **run})
    back = torch.from_numpy(np.ascontiguousarray(result.probabilities))
    changes = result.trace.change
    return RefinedTensors(
        back.to(device, probabilities.dtype),
        torch.from_numpy(np.ascontiguousarray(result.labels)).to(device),
        result.free_energy,
        result.iterations,
        float(changes[-1]) if len(changes) else 0.0,
    )


# ---- on the device ----


Skeleton = tuple[CallKey, tuple[Array, ...], tuple[int, ...], int, int | None]
"""What all images of one shape and kind have in common: the call, points of each term, pixels, and
the axes of labels and of channels."""


def _on_device(
    image: Tensor | None, probabilities: Tensor, build: Record, run: Record
) -> RefinedTensors | None:
    """What `refine` gives back, computed without the host; None where that is needed."""
    there = probabilities.is_cuda and (image is None or image.device == probabilities.device)
    if triton is None or not there or not set(run) <= {"max_iters", "tol"}:
        return None
    updates, tol = run.get("max_iters", "preset"), run.get("tol", 1e-6)
    if updates == "preset":
        updates = DenseSettings.chosen(build).max_iters
    if not isinstance(updates, int) or not 1 <= updates <= MAX_UPDATES:
        return None
    seen = None
    if image is not None:  # with bounds on the values that decide how colors are read
        within = (0.0, 255.0)
        if image.dtype != torch.uint8:
            low, high = torch.stack(torch.aminmax(image)).tolist()
            top = next((bound for bound in (1.0, 255.0) if high <= bound), high)
            within = (0.0 if low >= 0 else low, top)
        seen = tuple(image.shape), image.dtype, within
    where, options = str(probabilities.device), tuple(sorted(build.items()))
    try:
        frame = skeleton(seen, tuple(probabilities.shape), where, updates, options)
    except TypeError:  # an option that is an array
        return None
    if frame is None:
        return None
    key, points, pixels, axis, channel_axis = frame
    p = probabilities.detach().movedim(axis, -1).reshape(key.n, -1)
    p = p.to(torch.float32)
    sums = p.sum(1, keepdim=True)
    low, off = torch.stack([p.amin(), (sums - 1).abs().amax()]).tolist()
    divide = bool(build.get("normalize", False))
    if not (low >= 0 and (off <= TOLERANCE / 2 or (divide and off < np.inf))):
        return None  # the host says what is wrong, if anything
    clip = float(build.get("clip", 1e-5))
    if not 0 < clip < 1:
        return None
    p = p / sums if divide else p
    if build.get("confidence") != 1 and int((p > NEGLIGIBLE).sum()) == len(p):
        return None  # labels, as it seems: the host takes them for that
    unary = p.clamp(min=clip).log().neg()
    channels = None
    if image is not None:
        seen_at = image.detach()
        channels = seen_at[..., None] if channel_axis is None else seen_at.movedim(channel_axis, -1)
    call = KEPT.get(key, points)
    if any(needs_diagonal(made.kind, made.key) for made in call.terms):
        return None
    found = call.run(unary, [None if x.channels is None else channels for x in points])
    if not (found.finite and bool((found.change > tol).all())):
        return None
    maps = found.q.view(*pixels, -1).movedim(-1, axis)
    return RefinedTensors(
        maps.to(probabilities.dtype),
        found.best.view(pixels),
        float(found.free_energy[-1]),
        len(found.change),
        float(found.change[-1]),
    )


@lru_cache(maxsize=32)
def skeleton(
    seen: tuple[tuple[int, ...], TorchDtype, tuple[float, float]] | None, shape: tuple[int, ...],
    where: str, updates: int, options: tuple[tuple[str, Hashable], ...],
) -> Skeleton | None:  # fmt: skip
    """The shape of the work, from a field of the same shape on the host.

    Args:
        seen: Shape and type of the image, and what its values are within.
        shape: Of the probabilities.
        where: Their device.
        updates: Number of updates.
        options: Of `DenseCRF`.

    Returns:
        None if the host has to look at it.
    """
    build: Record = dict(options)
    blank = None
    if seen is not None:
        size, dtype, (low, high) = seen
        blank = np.full(size, low, dtype=torch.empty(0, dtype=dtype).numpy().dtype)
        blank.flat[-1] = high
    level = np.ones(shape, dtype=np.float32)
    try:
        crf = DenseCRF(blank, level, **{**build, "normalize": True})
    except InputError:
        return None  # what is given says more: which axis sums to 1, or what is wrong with it
    terms = image_terms(crf)
    axis, pixels = crf.labels_axis, tuple(crf.pixels)
    if terms is None or axis is None or not 2 <= crf.n_labels <= MAX_LABELS:
        return None
    if np.moveaxis(level, axis, -1).shape != (*pixels, crf.n_labels):
        return None
    channel_axis: int | None = None
    if blank is not None and blank.ndim > len(pixels):
        given = build.get("channel_axis", "auto")
        channel_axis = given if isinstance(given, int) else -1 if blank.shape[:-1] == pixels else 0
        if np.moveaxis(blank, channel_axis, -1).shape[:-1] != pixels:
            return None
    key = CallKey(crf.n_vars, crf.n_labels, updates, tuple(map(term_key, terms[1])), where)
    return key, tuple(term.points for term in terms[1]), pixels, axis, channel_axis
