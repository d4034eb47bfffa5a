"""`DenseCRF`: a dense CRF as the last layer of a network for images or volumes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from proxfield.core.common.arrays import Array
from proxfield.core.common.checks import is_real, is_whole, one_of, whole_count
from proxfield.core.common.records import Record
from proxfield.core.devices.cuda import Module, need_torch, torch
from proxfield.core.devices.tensors import Tensor
from proxfield.core.filters import FILTERS
from proxfield.core.filters.torch.filter import working_dtype
from proxfield.core.filters.torch.ops import exporting_onnx, refuse_onnx, transforming
from proxfield.core.terms.gaussian import NORMALIZATIONS
from proxfield.errors import InputError, refuse_keywords, shown
from proxfield.images.pixels import widths
from proxfield.images.settings import (
    DEFAULT_PRESET,
    FULL_RANGE,
    DenseSettings,
    GivenSettings,
    read_config,
)
from proxfield.torch.dense import dense_energies
from proxfield.torch.inputs import (
    Colors,
    channels_of,
    check_maps,
    places_of,
    require_marginals,
    rows,
)
from proxfield.torch.solve import GRADIENTS

if TYPE_CHECKING:
    from typing_extensions import Unpack

LEARN = ("weights", "bandwidths", "compatibility")
OUTPUTS = ("log-marginals", "marginals", "energies")
LOG_ZERO = -1e4
"""Log-marginal of an excluded label: its exponential is 0 in every type, and 0 times it is 0."""
DENSE_OPTIONS = (
    *("normalization", "self_message", "filter", "step", "max_iters", "tol", "keep_every"),
    *("adjoint_tol", "adjoint_max_iters", "check"),
)
"""Attributes of the layer that `dense_energies` takes."""


class DenseCRF(Module):  # type: ignore[misc]
    """A dense CRF as the last layer of a network: images and logits in, refined logits out.

    The output is log-marginals, which serve as logits again: ``cross_entropy`` and ``nll_loss``
    take them, ``softmax(dim=1)`` (or ``exp()``) gives the marginals, ``argmax(1)`` the labels. For
    the marginals themselves set ``output="marginals"``; ``cross_entropy`` must not get these.

    The model and its default settings are those of `proxfield.DenseCRF`: unaries, and Gaussian
    terms over all pairs of pixels (spatial, bilateral, and one over embeddings if there are any).
    The layer iterates q ← softmax(−g(q)) with the certified step, so that F never rises whatever
    the parameters become in training, and gives the exact gradient of the updates it made (see
    `dense_energies`). Training needs memory for the inputs and for one map of energies per update.
    Sums over all pairs are exact or filtered with a permutohedral lattice, which also a CPU does
    for full images.

    Parameters (train them with any optimizer): ``log_weights`` (one per term),
    ``log_spatial_sigma``, ``log_bilateral_sigma``, ``log_bilateral_color``,
    ``log_embedding_sigma``, ``compatibility``. Weights and bandwidths are learned as logarithms: no
    step changes a sign, and a step of 0.01 changes them by 1 %.

    Args:
        n_labels: Number of labels.
        dimensions: 2 for images, 3 for volumes.
        preset: What the settings and ``max_iters`` are where they aren't given: "gentle",
            "krahenbuehl", "deeplab", "wsss" (see `proxfield.PRESETS`), `proxfield.DenseSettings`
            (as `to_config` and `proxfield.read_config` return them), or some settings by name.
        embedding_sigma: Standard deviation of the positions in the term over embeddings; None: the
            term uses embeddings alone.
        embedding_weight: Its weight; 0 omits the term. Embeddings are in units of standard
            deviations: the network that makes them learns their scale.
        learn: Which groups of parameters need gradients: "weights", "bandwidths" and
            "compatibility".
        output: "log-marginals", "marginals" (their exponential: probabilities) or "energies" (θ;
            log-marginals are log softmax(−θ)).
        clip: Probabilities below it count as this much.
        check: Raise an error that names the first input with NaN or infinite values if a pixel has
            no marginals, and look at the range of images. On a GPU the former waits for the updates
            to end; with ``tol`` above 0 they wait anyway.
        **options: Settings in place of the preset's, see `proxfield.DenseSettings`:
            ``spatial_sigma``, ``bilateral_sigma`` (one number, or one per axis, and as many
            parameters), ``spatial_weight``, ``bilateral_weight`` (below 0 a term repels, and
            learning doesn't change that; with 0 there is nothing to learn), ``normalization``,
            ``self_message`` and those that follow:
        bilateral_color: Standard deviation of colors, where black is 0 and white is 1 (see
            ``image_range``); one number, or one per channel.
        compatibility: "potts" (nothing to learn), "diagonal" (one energy per label, for pairs that
            share it), "full" (a table, symmetrized: only then is there an F), or the start of a
            diagonal or of a table.  # (labels,) or (labels, labels)
        filter: "exact" (all pairs), "lattice" (permutohedral, for many pixels) or "auto": as for
            `proxfield.Gaussian`, exact up to 2000 pixels on the CPU, and on a GPU up to what takes
            0.25 s. With the lattice the gradients for bandwidths, image and embeddings are those of
            the Gaussian that it approximates; all others are exact.
        step: Step of the updates, in (0, 2]; None: the certified one.
        max_iters: Maximum number of iterations; "preset": what the preset or the configuration
            says.
        tol: Stop when no marginal changes by more, divided by the step; 0: never.
        gradient: "exact": of the updates made, with θ kept before each. "implicit": of the fixed
            point, without memory that grows with the updates; where they haven't reached one (a
            relative residual above `proxfield.torch.solve.IMPLICIT_TOL`) the exact one is taken
            instead, with a `proxfield.errors.GradientWarning`, once. "unrolled": the exact one as
            recorded by autograd, through all ``max_iters`` iterations (``tol`` is ignored):
            more memory and time, for comparison.
        keep_every: With "exact", keep θ before every ``keep_every``-th update only, and repeat the
            updates between in the backward pass: less memory for one more forward pass.
        adjoint_tol: Relative tolerance of the implicit backward pass; None: 1e-5, on a GPU 1e-4
            (float64: 1e-10).
        adjoint_max_iters: Maximum number of iterations of the implicit backward pass.
        image_range: Values of black and white in the image, for example (0, 255) or (-1, 1): they
            are scaled to 0 and 1, and ``bilateral_color`` is in these units. "auto": 0 to 255 for
            integers, 0 to 1 for floats. Values outside it give a
            `proxfield.errors.InputWarning`, once per layer. None: values are taken as they are.
        mean: Undo the normalization of the image: x·std + mean within ``image_range``; one number,
            or one per channel.
        std: See ``mean``.

    Example:
        >>> crf = DenseCRF(21)  # doctest: +SKIP
        >>> loss = F.cross_entropy(crf(images, network(images)), truth)  # doctest: +SKIP
    """

    def __init__(
        self,
        n_labels: int,
        *,
        dimensions: int = 2,
        preset: str | DenseSettings | Mapping[str, Any] = DEFAULT_PRESET,
        embedding_sigma: float | Sequence[float] | None = None,
        embedding_weight: float = 0.0,
        learn: Sequence[str] = LEARN,
        output: str = "log-marginals",
        clip: float = 1e-5,
        check: bool = True,
        step: float | None = None,
        max_iters: int | str = "preset",
        tol: float = 1e-6,
        gradient: str = "exact",
        keep_every: int = 1,
        adjoint_tol: float | None = None,
        adjoint_max_iters: int = 50,
        image_range: str | Sequence[float] | None = "auto",
        mean: float | Sequence[float] | None = None,
        std: float | Sequence[float] | None = None,
        **options: Unpack[GivenSettings],
    ) -> None:
        unknown = {k: v for k, v in options.items() if k not in GivenSettings.__optional_keys__}
        former = {f"{x}iterations": f"{x}max_iters" for x in ("", "adjoint_")}
        refuse_keywords("torch.DenseCRF", unknown, {"labels": "n_labels", **former})
        need_torch()
        super().__init__()
        chosen = DenseSettings.chosen({"preset": preset, **options}, color_range=1.0)
        one_of("normalization", chosen.normalization, NORMALIZATIONS)
        one_of("filter", chosen.filter, ("auto", *FILTERS))
        one_of("output", output, OUTPUTS)
        for group in learn:
            one_of("learn", group, LEARN)
        n_labels = whole_count(n_labels, "n_labels", 1)
        dimensions = whole_count(dimensions, "dimensions", 1)
        self.n_labels, self.dimensions = n_labels, dimensions
        self.normalization, self.self_message = chosen.normalization, chosen.self_message
        self.filter = chosen.filter
        self.step, self.tol, self.keep_every, self.gradient = step, tol, keep_every, gradient
        self.adjoint_tol, self.adjoint_max_iters = adjoint_tol, adjoint_max_iters
        self._check_updates(chosen.max_iters if max_iters == "preset" else max_iters)
        self.output, self.clip = output, clip
        self.colors, self.check = Colors(image_range, mean, std), check
        terms = {
            "spatial": chosen.spatial_weight,
            "bilateral": chosen.bilateral_weight,
            "embedding": embedding_weight,
        }
        for name, weight in terms.items():
            if not (is_real(weight) and abs(weight) < math.inf):
                raise InputError(
                    f"{name}_weight={shown(weight)}, expected a number; 0 omits the term"
                )
        self.terms = [name for name, weight in terms.items() if weight != 0]
        """The terms there are, in the order of ``weights``."""
        weights = [float(weight) for weight in terms.values() if weight != 0]
        self.log_weights = self._parameter([math.log(abs(w)) for w in weights], "weights" in learn)
        signs = torch.as_tensor([math.copysign(1.0, w) for w in weights])
        self.register_buffer("weight_signs", signs.to(self.log_weights.dtype))
        lengths: Record = {
            "spatial_sigma": chosen.spatial_sigma,
            "bilateral_sigma": chosen.bilateral_sigma,
            "bilateral_color": chosen.bilateral_color,
            "embedding_sigma": embedding_sigma if "embedding" in self.terms else None,
        }
        for name, given in lengths.items():  # as logarithms: a step can't make one negative
            several = given if isinstance(given, Sequence) else [given]
            color, logs = name == "bilateral_color", None
            if given is not None:
                widths(given, len(several) if color else dimensions, name, "axis or channel")
                unit = (chosen.color_range or 1.0) if color else 1.0
                logs = self._parameter([math.log(v / unit) for v in several], "bandwidths" in learn)
            setattr(self, f"log_{name}", logs if name.split("_")[0] in self.terms else None)
        self.compatibility = self._compatibility(chosen.compatibility, "compatibility" in learn)

    def _check_updates(self, count: int | str) -> None:
        """Refuse attributes that say how to update, and take the number of updates."""
        one_of("gradient", self.gradient, GRADIENTS)
        if not is_whole(count):
            raise InputError(f"max_iters={shown(count)}, expected a whole number or 'preset'")
        self.max_iters, step = int(count), self.step
        if self.max_iters < 0 or not self.tol >= 0:
            raise InputError(f"max_iters={count}, tol={self.tol}: expected 0 or more, 0 or more")
        if self.keep_every < 1:
            raise InputError(f"keep_every={self.keep_every}, expected 1 or more")
        if step is not None and not 0 < step <= 2:
            raise InputError(f"step={step!r}, expected above 0 and at most 2, or None: certified")

    # ---- settings ----

    @classmethod
    def from_config(
        cls,
        config: str | PathLike[str] | DenseSettings | Mapping[str, Any],
        n_labels: int,
        **options: Any,
    ) -> DenseCRF:
        """A layer with the settings of a file, as ``proxfield tune`` writes it.

        Args:
            config: The name of a TOML file, or settings by name, as `to_config` returns them.
            n_labels: Number of labels.
            **options: Options of the layer; they override the settings.

        Example:
            >>> crf = DenseCRF.from_config("crf.toml", 21, learn=("weights",))  # doctest: +SKIP
        """
        return cls(n_labels, preset=read_config(config), **options)

    def to_config(self) -> DenseSettings:
        """The settings of `proxfield.DenseCRF` with the present parameters of the layer.

        Also for `proxfield.write_config`. Colors are in units of a range of 255, for integer
        images and for floats within 0 and 1. A step, a tolerance and how gradients are computed
        are no settings.

        Raises:
            InputError: If there is a term over embeddings.

        Example:
            >>> p = torch.softmax(logits, dim=1)  # doctest: +SKIP
            >>> numpy_crf = proxfield.DenseCRF(image, p, preset=crf.to_config())  # doctest: +SKIP
        """
        if "embedding" in self.terms:
            raise InputError("settings of a dense CRF have no term over embeddings")
        found: Record = {f"{name}_weight": 0.0 for name in ("spatial", "bilateral")}
        weights = self.weights.detach().double().tolist()
        found.update({f"{k}_weight": w for k, w in zip(self.terms, weights, strict=True)})
        for name in self.terms:
            found[f"{name}_sigma"] = _lengths(getattr(self, f"log_{name}_sigma"))
        if "bilateral" in self.terms:
            found["bilateral_color"] = _lengths(self.log_bilateral_color, FULL_RANGE)
        table = "potts" if self.compatibility is None else self.compatibility.detach().double()
        same = ("max_iters", "filter", "normalization", "self_message")
        found.update({name: getattr(self, name) for name in same})
        return DenseSettings(**found, compatibility=table)

    # ---- parameters ----

    @staticmethod
    def _parameter(values: Array, learn: bool) -> Tensor:
        start = torch.as_tensor(values, dtype=torch.get_default_dtype()).detach().clone()
        return torch.nn.Parameter(start, requires_grad=learn)

    def _compatibility(self, given: Array, learn: bool) -> Tensor | None:
        if isinstance(given, str):
            one_of("compatibility", given, ("potts", "diagonal", "full"))
            if given == "potts":
                return None
            same = torch.eye(self.n_labels)  # both start as Potts
            return self._parameter(1 - same if given == "full" else -same.diagonal(), learn)
        out = self._parameter(given, learn)
        if tuple(out.shape) not in ((self.n_labels,), (self.n_labels, self.n_labels)):
            raise InputError(
                f"a compatibility of shape {tuple(out.shape)}, expected ({self.n_labels},) or "
                f"({self.n_labels}, {self.n_labels})"
            )
        return out

    @property
    def weights(self) -> Tensor:
        """Weight of each of ``terms``, made from ``log_weights``.  # (terms,)"""
        return self.weight_signs * self.log_weights.exp()

    def tables(self) -> Tensor:
        """Weight times compatibility of each term, symmetrized.  # (terms, labels, labels)"""
        weights = self.weights
        if self.compatibility is None:  # Potts, up to what is the same for all labels
            table = -torch.eye(self.n_labels, dtype=weights.dtype, device=weights.device)
        elif self.compatibility.ndim == 1:
            table = torch.diag(self.compatibility)
        else:
            table = 0.5 * (self.compatibility + self.compatibility.T)
        return weights[:, None, None] * table

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        return (
            f"{self.n_labels} labels, terms: {', '.join(self.terms)}, max_iters={self.max_iters}, "
            f"filter={self.filter!r}, gradient={self.gradient!r}, output={self.output!r}"
        )

    # ---- forward ----

    def features(
        self, image: Tensor | None, embeddings: Tensor | None, pixels: Sequence[int], like: Tensor
    ) -> list[Tensor]:
        """Features of each term, in units of standard deviations.  # (B or 1, n, d) each

        Override to make other terms; there must be one entry for each of ``terms``.
        """
        places = places_of(pixels, like)
        out = []
        for name in self.terms:
            if name == "spatial":
                out.append(places / self.log_spatial_sigma.exp().to(like))
                continue
            channels = image if name == "bilateral" else embeddings
            if channels is None:
                what = "an image" if name == "bilateral" else "embeddings="
                raise InputError(f"the {name} term needs {what}; {name}_weight=0 omits it")
            if name == "bilateral":
                seen = self.colors.read(channels, pixels, like, self.check)
                seen = seen / self.log_bilateral_color.exp().to(like)
            else:
                seen = channels_of(channels, pixels, like, "embeddings")
            logs = self.log_bilateral_sigma if name == "bilateral" else self.log_embedding_sigma
            if logs is not None:
                where = places / logs.exp().to(like)
                seen = torch.cat([where.expand(seen.shape[0], -1, -1), seen], dim=-1)
            out.append(seen)
        return out

    def forward(
        self,
        image: Tensor | None,
        logits: Tensor | None = None,
        *,
        probabilities: Tensor | None = None,
        energies: Tensor | None = None,
        embeddings: Tensor | None = None,
    ) -> Tensor:
        """Log-marginals (or what ``output`` says) of each pixel: logits, refined.

        Args:
            image: None without a bilateral term.  # (B, channels, *pixels)
            logits: Scores of a network, before a softmax.  # (B, labels, *pixels)
            probabilities: Probabilities instead of logits; they sum to 1.
            energies: Unary energies instead of logits; +inf excludes a label, as logits of -inf do:
                its marginal is 0, its log-marginal −10⁴.
            embeddings: Embeddings of the pixels, for the term over them.  # (B, any, *pixels)

        Returns:
            # (B, labels, *pixels)
        """
        named = {"logits": logits, "probabilities": probabilities, "energies": energies}
        given = {name: x for name, x in named.items() if x is not None}
        if len(given) != 1:
            raise InputError("expected logits, probabilities or energies, one of them")
        for name, x in given.items():
            check_maps(x, name, self.n_labels, self.dimensions)
            if name == "logits":
                unary = -x
            else:
                unary = x if name == "energies" else -x.clamp(min=self.clip).log()
        pixels = unary.shape[2:]
        table = rows(unary.to(working_dtype(unary.dtype)))  # (B, n, labels)
        features = [f.contiguous() for f in self.features(image, embeddings, pixels, table)]
        tables = self.tables().to(table)
        onnx = exporting_onnx()
        if onnx and self.terms and self.step is None and self.compatibility is not None:
            refuse_onnx(
                "ONNX has no eigenvalues for the certified step; with compatibilities other than "
                '"potts" pass a step=, 1.0 if they attract'
            )
        recorded = not self.terms or self.gradient == "unrolled" or onnx
        theta = table  # without terms pixels are independent: θ = U is the fixed point
        if self.terms:
            options = {name: getattr(self, name) for name in DENSE_OPTIONS}
            gradient = "unrolled" if recorded else self.gradient
            theta, _ = dense_energies(
                table, features, tables, gradient=gradient, pixels=pixels, **options
            )
        if recorded and self.check and not (torch.compiler.is_compiling() or transforming()):
            require_marginals(torch.softmax(-theta, -1), table, features, tables, pixels)
        if self.output == "marginals":
            theta = torch.softmax(-theta, dim=-1)
        elif self.output == "log-marginals":
            theta = torch.log_softmax(-theta, dim=-1)
            theta = theta.masked_fill(theta == -math.inf, LOG_ZERO)
        # contiguous: PyTorch's losses for maps insist on it
        return theta.transpose(1, 2).unflatten(2, pixels).contiguous()


def _lengths(logs: Tensor, unit: float = 1.0) -> float | list[float]:
    """Lengths from their logarithms: one number, or several."""
    found: list[float] = [unit * x for x in logs.detach().double().exp().tolist()]
    return found[0] if len(found) == 1 else found
