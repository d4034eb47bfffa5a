"""Images, maps and masks as the layers read them: shapes, devices, ranges and values."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np

from proxfield.core.common.arrays import Array
from proxfield.core.common.checks import is_real
from proxfield.core.devices.cuda import torch
from proxfield.core.devices.tensors import Tensor
from proxfield.core.filters.torch.ops import require_device, require_tensor, transforming
from proxfield.errors import InputError, InputWarning, shown
from proxfield.images.pixels import widths

ROUNDING = 1e-3
"""How far values may be outside their range, relative to it, before a warning."""


class Colors:
    """How values of images are read: as numbers within 0 and 1.

    Args:
        image_range: The values of black and white: two numbers; "auto": 0 and 255 for integers, 0
            and 1 for floats; None: values are taken as they are, in units of their own.
        mean: What was subtracted from the image, per channel, before it was divided by ``std``;
            both are undone first.
        std: See ``mean``.

    Example:
        >>> Colors((0, 255), None, None).scale(False)
        (0.0, 255.0)
    """

    def __init__(
        self,
        image_range: str | Sequence[float] | None = "auto",
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
    ) -> None:
        self.range: tuple[float, float] | None = None
        self.auto = isinstance(image_range, str) and image_range == "auto"
        if not (self.auto or image_range is None):
            given: Array = image_range
            try:
                low, high = given
                right = is_real(low) and is_real(high) and -math.inf < low < high < math.inf
            except (TypeError, ValueError):
                right = False
            if not right:
                raise InputError(
                    f'image_range={shown(given)}, expected two numbers (low, high), "auto" or None'
                )
            self.range = float(low), float(high)
        self.mean = None if mean is None else _numbers(mean, "mean")
        self.std = None if std is None else _numbers(std, "std")
        if self.std is not None:
            widths(self.std, len(self.std), "std", "channel")
        self.looked = False
        """Whether a warning was given, or need not be looked for again."""

    def scale(self, floats: bool) -> tuple[float, float]:
        """What becomes 0, and how much 1 is above it."""
        if self.range is None and not self.auto:
            return 0.0, 1.0
        low, high = self.range or (0.0, 1.0 if floats else 255.0)
        return low, high - low

    def read(self, image: Tensor, pixels: Sequence[int], like: Tensor, check: bool) -> Tensor:
        """The image's pixels within 0 and 1, in the type of ``like``.

        With ``check``, warn if values are outside their range.  # (B, c, *pixels) -> (B, n, c)
        """
        seen = channels_of(image, pixels, like, "image")
        floats = image.is_floating_point()
        if not floats and (self.mean is not None or self.std is not None):
            raise InputError(
                f"mean= and std= are for normalized images of floats, not {image.dtype}; omit them"
            )
        for name, values in (("std", self.std), ("mean", self.mean)):
            if values is None:
                continue
            if len(values) not in (1, seen.shape[-1]):
                raise InputError(
                    f"{name} has {len(values)} numbers, expected 1 or {seen.shape[-1]}, one per "
                    "channel"
                )
            given = seen.new_tensor(values)
            seen = seen * given if name == "std" else seen + given
        low, width = self.scale(floats)
        if (low, width) != (0.0, 1.0):
            seen = (seen - low) / width
        if check and (self.auto or self.range is not None) and image.dtype != torch.uint8:
            self.look(seen, low, width)
        return seen

    def look(self, seen: Tensor, low: float, width: float) -> None:
        """Warn, once, if values aren't within 0 and 1.

        On the CPU every image is looked at. Elsewhere looking waits for the device, so only the
        first image of a layer is. Compiled graphs and transforms have no values to look at.
        """
        plain = type(seen) is torch.Tensor and seen.device.type != "meta" and seen.numel() > 0
        if self.looked or torch.compiler.is_compiling() or not plain or transforming():
            return
        least, most = torch.stack(torch.aminmax(seen.detach())).tolist()
        outside = least < -ROUNDING or most > 1 + ROUNDING
        self.looked = outside or seen.device.type != "cpu"
        if outside:
            warnings.warn(
                f"image values are within {low + width * least:.4g} and {low + width * most:.4g}, "
                f"expected {low:g} to {low + width:g}: pass image_range=(low, high), or mean= and "
                "std= if it was normalized; image_range=None takes values as they are",
                InputWarning,
                stacklevel=2,
            )


def _numbers(given: Array, name: str) -> list[float]:
    """One number, or one per channel, from numbers, lists, arrays or tensors."""
    values: Array = given.tolist() if hasattr(given, "tolist") else given
    out = list(values) if isinstance(values, (list, tuple)) else [values]
    if not out or not all(is_real(v) and abs(v) < float("inf") for v in out):
        raise InputError(f"{name}={shown(given)}, expected a number, or one per channel")
    return [float(v) for v in out]


# ---- shapes ----


def check_maps(maps: Tensor, name: str, n_labels: int | None, dimensions: int | None) -> None:
    """Raise, with the remedy, unless these are maps of labels; None: any number of these."""
    require_tensor(maps, name)
    shape = tuple(maps.shape)
    if maps.is_complex():
        raise InputError(f"{name} must be real numbers, not {maps.dtype}")
    right = len(shape) >= 3 if dimensions is None else len(shape) == dimensions + 2
    if right and (n_labels is None or shape[1] == n_labels):
        return
    axes = "*pixels" if dimensions not in (1, 2, 3) else ", ".join("DHW"[-dimensions:])
    labels = "labels" if n_labels is None else n_labels
    hint = ""
    if right and shape[-1] == n_labels:
        hint = f"; the labels are last: {name}.movedim(-1, 1)"
    elif dimensions is not None and len(shape) == dimensions + 1 and shape[0] == n_labels:
        hint = f"; without an axis of images: {name}[None]"
    raise InputError(f"{name} of shape {shape}, expected (images, {labels}, {axes}){hint}")


def channels_of(channels: Tensor, pixels: Sequence[int], like: Tensor, name: str) -> Tensor:
    """Channels of images with one row per pixel, in the type of ``like``.

    # (B, c, *pixels) -> (B, n, c)
    """
    require_tensor(channels, name)
    require_device(channels, name, like, "unaries")
    shape, sizes = tuple(channels.shape), tuple(pixels)
    if shape[2:] != sizes or shape[0] != like.shape[0]:
        hint = ""
        if shape[1:-1] == sizes and shape[0] == like.shape[0]:
            hint = f"; the channels are last: {name}.movedim(-1, 1)"
        elif shape[1:] == sizes:
            hint = f"; an axis is missing: {name}[None] or {name}[:, None]"
        raise InputError(
            f"{name} of shape {shape} for unaries of {like.shape[0]} images of "
            f"{'×'.join(map(str, sizes))} pixels, expected "
            f"({', '.join(map(str, (like.shape[0], 'channels', *sizes)))}){hint}"
        )
    return rows(channels.to(like.dtype))


def places_of(pixels: Sequence[int], like: Tensor) -> Tensor:
    """Positions of pixels along each axis.  # (1, n, dimensions)"""
    axes = [torch.arange(size, dtype=like.dtype, device=like.device) for size in pixels]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).flatten(0, -2)[None]


def rows(maps: Tensor) -> Tensor:
    """Maps with one row per pixel.  # (B, c, *pixels) -> (B, n, c)"""
    return maps.flatten(2).transpose(1, 2).contiguous()


# ---- values, once a result isn't a number ----

DIVERGED = (
    "weights or compatibilities hold NaN or infinite values; if they are learned, use a smaller "
    "learning rate or clip gradients"
)


def require_marginals(
    q: Tensor, unary: Tensor, features: list[Tensor], tables: Tensor, pixels: Sequence[int]
) -> None:
    """Raise unless every pixel has marginals; the message names the first input that is wrong.

    One look at the marginals (NaN, or all 0 where no label is possible), which waits for the
    device; inputs are looked at only if that fails. Without ``pixels`` these are numbered.
    """
    if not q.numel() or bool((q.amax(dim=-1) > 0).all()):  # NaN isn't above 0
        return
    for wrong, what in (
        (torch.isnan(unary), "logits, probabilities or energies hold NaN"),
        (torch.isneginf(unary), "logits hold +inf or energies -inf"),
    ):
        at = "first at image {0}, label {2}, pixel {1} (counted from 0)"
        refuse_where(wrong, f"{what}, {at}; expected finite numbers", pixels)
    require_features(features, pixels)
    if not bool(torch.isfinite(tables).all()):
        raise InputError(DIVERGED)
    text = (
        "all labels of image {0}, pixel {1} have the energy +inf; expected a finite one for at "
        "least one label"
    )
    refuse_where(torch.isposinf(unary).all(dim=-1), text, pixels)
    raise InputError("the updates overflowed; expected smaller weights, energies or steps")


def require_features(features: list[Tensor], pixels: Sequence[int]) -> None:
    """Raise if features hold NaN or infinite values, and name the first."""
    for k, points in enumerate(features):
        text = (
            f"features of term {k} hold NaN or infinite values, first at image {{0}}, pixel {{1}}, "
            "feature {2}; check the image, the embeddings and the bandwidths"
        )
        refuse_where(~torch.isfinite(points), text, pixels)


def refuse_where(wrong: Tensor, text: str, pixels: Sequence[int]) -> None:
    """Raise where something is true; the text takes image, pixel and label of the first place."""
    if bool(wrong.any()):
        image, pixel, *label = (int(i) for i in wrong.nonzero()[0])
        place = str(pixel)
        if pixels:
            axes = np.unravel_index(pixel, [int(size) for size in pixels])
            place = f"({', '.join(map(str, axes))})"
        raise InputError(text.format(image, place, *label))
