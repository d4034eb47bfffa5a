"""Which of a layer's inputs isn't a number, once a result isn't."""

from __future__ import annotations

from collections.abc import Sequence

from proxfield.core.devices.cuda import torch
from proxfield.core.devices.tensors import Tensor
from proxfield.errors import InputError

DIVERGED = (
    "weights or compatibilities hold NaN or infinite values; if they are learned, use a smaller "
    "learning rate or clip gradients"
)


def require_marginals(
    q: Tensor, unary: Tensor, features: list[Tensor], tables: Tensor, pixels: Sequence[int]
) -> None:
    """Raise unless every pixel has marginals; the message names the first input that is wrong.

    One look at the marginals, which waits for the device; inputs are looked at only if that fails.

    Args:
        q: Marginals; NaN, or all 0 where no label is possible.  # (B, n, c)
        unary: U.  # (B, n, c)
        features: Features of each term.  # (B or 1, n, d) each
        tables: Weight times compatibility of each term.  # (terms, c, c)
        pixels: Shape of an image, for the message; may be empty: n.
    """
    if not q.numel() or bool((q.amax(dim=-1) > 0).all()):  # NaN isn't above 0
        return
    raise InputError(_reason(unary, features, tables, pixels))


def require_finite(s: Tensor, features: list[Tensor], pixels: Sequence[int]) -> None:
    """Raise if probabilities or features hold NaN or infinite values, and name the first.

    Args:
        s: Probabilities.  # (B, n, c)
        features: As for `require_marginals`.
        pixels: As for `require_marginals`.
    """
    wrong = ~torch.isfinite(s).all(dim=-1)  # a softmax spreads NaN over the labels
    if bool(wrong.any()):
        image, pixel = _first(wrong)
        raise InputError(
            f"logits or probabilities hold NaN or +inf, first at image {image}, pixel "
            f"{_place(pixel, pixels)} (counted from 0); expected finite numbers"
        )
    require_features(features, pixels)


def require_features(features: list[Tensor], pixels: Sequence[int]) -> None:
    """Raise if features hold NaN or infinite values, and name the first; see `require_finite`."""
    found = _wrong_features(features, pixels)
    if found:
        raise InputError(found)


def _reason(unary: Tensor, features: list[Tensor], tables: Tensor, pixels: Sequence[int]) -> str:
    found = (
        _wrong_maps(torch.isnan(unary), "logits, probabilities or energies hold NaN", pixels)
        or _wrong_maps(torch.isneginf(unary), "logits hold +inf or energies -inf", pixels)
        or _wrong_features(features, pixels)
    )
    if found:
        return found
    if not bool(torch.isfinite(tables).all()):
        return DIVERGED
    excluded = torch.isposinf(unary).all(dim=-1)
    if bool(excluded.any()):
        image, pixel = _first(excluded)
        return (
            f"all labels of image {image}, pixel {_place(pixel, pixels)} have the energy +inf; "
            "expected a finite one for at least one label"
        )
    return "the updates overflowed; expected smaller weights, energies or steps"


def _wrong_maps(wrong: Tensor, what: str, pixels: Sequence[int]) -> str:
    if not bool(wrong.any()):
        return ""
    image, pixel, label = _first(wrong)
    at = f"image {image}, label {label}, pixel {_place(pixel, pixels)}"
    return f"{what}, first at {at} (counted from 0); expected finite numbers"


def _wrong_features(features: list[Tensor], pixels: Sequence[int]) -> str:
    for k, points in enumerate(features):
        wrong = ~torch.isfinite(points)
        if bool(wrong.any()):
            image, pixel, feature = _first(wrong)
            at = f"image {image}, pixel {_place(pixel, pixels)}, feature {feature}"
            return (
                f"features of term {k} hold NaN or infinite values, first at {at}; check the "
                "image, the embeddings and the bandwidths"
            )
    return ""


def _first(wrong: Tensor) -> tuple[int, ...]:
    """Indices of the first entry that is true."""
    return tuple(int(i) for i in wrong.nonzero()[0])


def _place(pixel: int, pixels: Sequence[int]) -> str:
    out: list[int] = []
    for size in reversed(pixels):
        pixel, at = divmod(pixel, int(size))
        out.insert(0, at)
    return f"({', '.join(map(str, out))})" if out else str(pixel)
