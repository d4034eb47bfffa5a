"""`DenseCRFLoss`: the energy of a dense CRF as a loss on a network's probabilities."""

from __future__ import annotations

from collections.abc import Sequence

from proxfield.core.common.checks import is_real, one_of
from proxfield.core.devices.cuda import Module, need_torch, torch
from proxfield.core.devices.tensors import AutogradContext, Tensor
from proxfield.core.filters import FILTERS
from proxfield.core.filters.torch.filter import working_dtype
from proxfield.core.filters.torch.operator import PlannedOperator
from proxfield.core.filters.torch.ops import (
    Op,
    nothing_saved,
    plain_precision,
    refuse,
    require_device,
    require_tensor,
)
from proxfield.core.terms.gaussian import NORMALIZATIONS
from proxfield.errors import InputError, shown
from proxfield.images.pixels import COLOR_SIGMA, widths
from proxfield.torch.inputs import (
    Colors,
    check_maps,
    places_of,
    refuse_where,
    require_features,
    rows,
)


class DenseCRFLoss(Module):  # type: ignore[misc]
    """Σ_k S_kᵀ W (1 − S_k): the cost of similar pixels with different labels.

    The regularized loss of weakly supervised segmentation (Tang et al., *On Regularized Losses for
    Weakly-supervised CNN Segmentation*, ECCV 2018): S_k are the probabilities of label k that a
    network gives to all pixels, W is the sum of the Gaussian operators of `DenseCRF` over all pairs
    of pixels. Used beside a cross-entropy on the pixels whose labels are known. Nothing is
    iterated, and nothing here is learned: the gradient for the probabilities is exact with both
    filters (W is symmetric), W 1 − 2 W S_k, and is found in the forward pass. The image and
    the bandwidths are constants.

    Args:
        bilateral_sigma: Standard deviation of the bilateral term's positions in pixels: one
            number, or one per axis.
        bilateral_color: Standard deviation of its colors, where black is 0 and white is 1; one
            number, or one per channel.
        bilateral_weight: Its weight; 0 omits the term.
        spatial_sigma: Standard deviation of the spatial term in pixels; as for the bilateral one.
        spatial_weight: Its weight; 0 omits the term.
        normalization: Of the operators, see `proxfield.Gaussian`: "symmetric" makes the loss of a
            pixel at most the sum of the weights; the published loss has "none".
        self_message: Keep the pairs (i, i): 1 − S_i·S_i of each pixel, times its weight.
        filter: "exact", "lattice" or "auto", as for `DenseCRF`.
        reduction: "mean": divided by the number of pixels that count, over all images; "sum"; or
            "none": the sum of each image.  # (B,)
        image_range: Values of black and white in the image, as for `DenseCRF`.
        mean: Undo the normalization of the image, as for `DenseCRF`.
        std: See ``mean``.
        check: Raise an error that names the first input with NaN or infinite values if the loss is
            not a number, and look at the range of images; the former waits for the device.

    Example:
        >>> regularize = DenseCRFLoss(bilateral_color=15 / 255)  # doctest: +SKIP
        >>> logits = network(images)  # doctest: +SKIP
        >>> loss = cross_entropy(logits, scribbles, ignore_index=255)  # doctest: +SKIP
        >>> loss = loss + 0.1 * regularize(images, logits=logits)  # doctest: +SKIP
    """

    def __init__(
        self,
        *,
        bilateral_sigma: float | Sequence[float] = 80.0,
        bilateral_color: float | Sequence[float] = COLOR_SIGMA / 255,
        bilateral_weight: float = 1.0,
        spatial_sigma: float | Sequence[float] = 3.0,
        spatial_weight: float = 0.0,
        normalization: str = "symmetric",
        self_message: bool = True,
        filter: str = "auto",
        reduction: str = "mean",
        image_range: str | Sequence[float] | None = "auto",
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
        check: bool = True,
    ) -> None:
        need_torch()
        super().__init__()
        one_of("normalization", normalization, NORMALIZATIONS)
        one_of("filter", filter, ("auto", *FILTERS))
        one_of("reduction", reduction, ("mean", "sum", "none"))
        self.bilateral_sigma, self.bilateral_color = bilateral_sigma, bilateral_color
        self.spatial_sigma = spatial_sigma
        for name in ("bilateral_sigma", "bilateral_color", "spatial_sigma"):
            values = getattr(self, name)
            widths(values, _count(values), name, "axis or channel")
        weights = {"bilateral_weight": bilateral_weight, "spatial_weight": spatial_weight}
        for name, weight in weights.items():
            if not (is_real(weight) and abs(weight) < float("inf")):
                raise InputError(f"{name}={shown(weight)}, expected a number")
            setattr(self, name, float(weight))
        self.normalization, self.self_message = normalization, self_message
        self.filter, self.reduction = filter, reduction
        self.colors, self.check = Colors(image_range, mean, std), check

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        return (
            f"bilateral_sigma={self.bilateral_sigma}, bilateral_color={self.bilateral_color}, "
            f"normalization={self.normalization!r}, filter={self.filter!r}, "
            f"reduction={self.reduction!r}"
        )

    def forward(
        self,
        image: Tensor | None,
        probabilities: Tensor | None = None,
        *,
        logits: Tensor | None = None,
        confident: Tensor | None = None,
        ignore: Tensor | None = None,
    ) -> Tensor:
        """The loss.

        Args:
            image: None without a bilateral term.  # (B, channels, *pixels)
            probabilities: S, which sum to 1 over labels.  # (B, labels, *pixels)
            logits: Scores in their place, of which the softmax is taken.
            confident: Pixels whose probabilities are taken for granted: they pull others towards
                them and get no gradient. (Put known labels into ``probabilities`` there.)
                # (B, *pixels), truth values
            ignore: Pixels that don't count at all, padding for example; they are in the
                normalization of W, since that belongs to the image.  # (B, *pixels), truth values

        Returns:
            A number, or one per image.
        """
        given = [x for x in (probabilities, logits) if x is not None]
        if len(given) != 1:
            raise InputError("expected probabilities or logits, one of them")
        maps = given[0]
        check_maps(maps, "probabilities" if logits is None else "logits", None, None)
        pixels = tuple(maps.shape[2:])
        with plain_precision(maps):
            s = rows(maps.to(working_dtype(maps.dtype)))  # (B, n, labels)
            if logits is not None:
                s = torch.softmax(s, dim=-1)
            counts = 1 - _flags(ignore, "ignore", s, pixels)  # (B, n, 1)
            moves = counts * (1 - _flags(confident, "confident", s, pixels))
            features, weights = self._terms(image, pixels, s)
            sums, _ = LOSS(
                s, counts, moves, features, weights, self.normalization, self.self_message,
                self.filter, torch.is_grad_enabled() and s.requires_grad, self.check, list(pixels),
            )  # fmt: skip
            if self.reduction == "none":
                return sums
            if self.reduction == "sum":
                return sums.sum()
            return sums.sum() / counts.sum().clamp(min=1)

    def _terms(
        self, image: Tensor | None, pixels: tuple[int, ...], like: Tensor
    ) -> tuple[list[Tensor], list[float]]:
        """Features in units of standard deviations, and the weight of each term."""
        features, weights = [], []
        places = places_of(pixels, like)

        def scaled(values: Tensor, name: str, of: str) -> Tensor:
            sigma, count = getattr(self, name), values.shape[-1]
            if _count(sigma) not in (1, count):
                raise InputError(f"{name} has {len(sigma)} numbers, expected {count}, one per {of}")
            return values / like.new_tensor(sigma)

        if self.spatial_weight != 0:
            features.append(scaled(places, "spatial_sigma", "axis"))
            weights.append(self.spatial_weight)
        if self.bilateral_weight != 0:
            if image is None:
                raise InputError("the bilateral term needs an image; bilateral_weight=0 omits it")
            require_tensor(image, "image")
            seen = self.colors.read(image.detach(), pixels, like, self.check)
            where = scaled(places, "bilateral_sigma", "axis").expand(seen.shape[0], -1, -1)
            colors = scaled(seen, "bilateral_color", "channel")
            features.append(torch.cat([where, colors], dim=-1))
            weights.append(self.bilateral_weight)
        return [f.contiguous() for f in features], weights


def _count(values: float | Sequence[float]) -> int:
    return len(values) if isinstance(values, Sequence) else 1


def _flags(mask: Tensor | None, name: str, like: Tensor, pixels: tuple[int, ...]) -> Tensor:
    """A mask as 0 and 1, one row per pixel.  # (B, *pixels) -> (B, n, 1)"""
    if mask is None:
        return like.new_zeros((*like.shape[:2], 1))
    require_tensor(mask, name)
    require_device(mask, name, like, "probabilities")
    if tuple(mask.shape) != (like.shape[0], *pixels):
        raise InputError(
            f"{name} of shape {tuple(mask.shape)}, expected {(like.shape[0], *pixels)}: one truth "
            "value per pixel"
        )
    return (mask != 0).to(like.dtype).flatten(1)[..., None]


# ---- the operators ----


def _loss(
    s: Tensor, counts: Tensor, moves: Tensor, features: list[Tensor], weights: list[float],
    normalization: str, self_message: bool, filter: str, learns: bool, check: bool,
    pixels: list[int],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The sum of each image, and its derivative for S where it is asked for.

    With T = S where pixels count and m = 1 there: Σ_k T_kᵀ W (m − T_k), from one product per term,
    W (T, m); the derivative is W m − 2 W T_k.
    """
    with plain_precision(s):
        held = s * counts
        given = torch.cat([held, counts], dim=-1)
        seen = torch.zeros_like(given)
        if s.numel():
            for points, weight in zip(features, weights, strict=True):
                operator = PlannedOperator(points, normalization, self_message, filter)
                seen += weight * operator.apply(given)
        mine, all_of = seen[..., :-1], seen[..., -1:]
        sums = (held * (all_of - mine)).sum(dim=(1, 2))
        if check and not bool(torch.isfinite(sums).all()):
            text = (
                "logits or probabilities hold NaN or +inf, first at image {0}, pixel {1} (counted "
                "from 0); expected finite numbers"
            )
            refuse_where(~torch.isfinite(s).all(-1), text, pixels)  # a softmax spreads NaN
            require_features(features, pixels)
        if not learns:
            return sums, s.new_empty(0)
        return sums, moves * (all_of - 2 * mine)


def _loss_shape(
    s: Tensor, counts: Tensor, moves: Tensor, features: list[Tensor], weights: list[float],
    normalization: str, self_message: bool, filter: str, learns: bool, *others: object,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return s.new_empty(s.shape[0]), s.new_empty(s.shape if learns else 0)


def _context(
    ctx: AutogradContext, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]
) -> None:
    s, counts, moves, features, *options, learns, _, _ = inputs
    ctx.terms, ctx.learns, ctx.options = len(features), learns, options
    ctx.mark_non_differentiable(output[1])
    # transforms of torch.func may hide that S needs a gradient
    rest = (output[1],) if learns else (counts, moves, *features)
    ctx.save_for_backward(s, *rest)
    ctx.save_for_forward(s, *rest)


def _derivative(ctx: AutogradContext) -> tuple[Tensor, Tensor]:
    """S, and the derivative for it.  # (B, n, labels) each"""
    s, *rest = ctx.saved_tensors
    if ctx.learns:
        return s, rest[0]
    counts, moves, *features = rest
    return s, LOSS(s.detach(), counts, moves, features, *ctx.options, True, False, [])[1]


def _backward(ctx: AutogradContext, grad: Tensor, _: Tensor) -> tuple[object, ...]:
    s, derivative = _derivative(ctx)
    return (PULL(grad, derivative, s), None, None, [None] * ctx.terms, *[None] * 7)


def _jvp(ctx: AutogradContext, change: Tensor | None, *_: object) -> tuple[Tensor, None]:
    s, derivative = _derivative(ctx)
    along = torch.zeros_like(s) if change is None else change
    return (derivative * along).sum(dim=(1, 2)), None


LOSS = Op(
    "dense_crf_loss",
    "(Tensor s, Tensor counts, Tensor moves, Tensor[] features, float[] weights, "
    "str normalization, bool self_message, str filter, bool learns, bool check, SymInt[] pixels) "
    "-> (Tensor, Tensor)",
    _loss, _loss_shape, _context, _backward, images=((0, 1, 2), (3,), (True, True)), jvp=_jvp,
)  # fmt: skip
PULL = Op(
    "dense_crf_loss_pull", "(Tensor grad, Tensor derivative, Tensor s) -> Tensor",
    lambda grad, derivative, _: grad[:, None, None] * derivative,
    lambda _, derivative, s: derivative.new_empty(derivative.shape),
    nothing_saved, refuse, images=((0, 1, 2), (), (True,)),
)  # fmt: skip
"""The gradient for S, which is there itself so that second derivatives are refused."""
