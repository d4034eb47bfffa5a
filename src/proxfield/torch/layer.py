"""`DenseCRF`: a dense CRF as the last layer of a network for images or volumes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from proxfield.common.records import Record
from proxfield.devices.cuda import torch
from proxfield.devices.pytorch import Module, need_torch
from proxfield.devices.tensors import Tensor
from proxfield.errors import InputError, refuse_keywords
from proxfield.filters import FILTERS
from proxfield.filters.torch.filter import working_dtype
from proxfield.images.pixels import COLOR_SIGMA, widths
from proxfield.images.presets import FULL_RANGE, MODEL_SETTINGS, settings_of
from proxfield.terms.gaussian import NORMALIZATIONS
from proxfield.torch.dense import dense_energies, unrolled_energies

if TYPE_CHECKING:
    from typing_extensions import Never

LEARN = ("weights", "bandwidths", "compatibility")
GRADIENTS = ("exact", "implicit", "unrolled")
OUTPUTS = ("marginals", "log-marginals", "energies")
RENAMED = {
    "labels": "n_labels",
    "iterations": "max_iters",
    "adjoint_iterations": "adjoint_max_iters",
}
"""Present names of arguments by their former names."""


class DenseCRF(Module):  # type: ignore[misc]
    """Marginals of a dense CRF, differentiable in everything it is made of.

    The model is that of `proxfield.DenseCRF`: unaries, and Gaussian terms over all pairs of
    pixels (spatial, bilateral, and one over embeddings if there are any). The layer iterates
    q ← softmax(−g(q)) with the certified step, so that F never rises whatever the weights become
    in training, and gives the exact gradient of the updates it made (see `dense_energies`).
    Training needs memory for the inputs and for one map of energies per update. Sums over all pairs
    are exact or filtered with a permutohedral lattice, which also a CPU does for full images.

    Parameters (train them with any optimizer): ``weights`` (one per term), ``log_spatial_sigma``,
    ``log_bilateral_sigma``, ``log_bilateral_color``, ``log_embedding_sigma``, ``compatibility``.

    Args:
        n_labels: Number of labels.
        dimensions: 2 for images, 3 for volumes.
        spatial_sigma: Standard deviation of the spatial term in pixels: one number, or one per
            axis, and as many parameters.
        spatial_weight: Its weight; 0 omits the term, and there is nothing to learn (a weight that
            is to be learned starts at another number).
        bilateral_sigma: Standard deviation of the bilateral term's positions; likewise.
        bilateral_color: Standard deviation of its colors, in the image's units; one number, or one
            per channel. Integer images are divided by 255 first, so the default means 13 of 255
            levels for them and for floats within 0 and 1.
        bilateral_weight: Its weight; 0 omits the term.
        embedding_sigma: Standard deviation of the positions in the term over embeddings; None: the
            term uses embeddings alone.
        embedding_weight: Its weight; 0 omits the term. Embeddings are in units of standard
            deviations: the network that makes them learns their scale.
        compatibility: "potts" (nothing to learn), "diagonal" (one energy per label, for pairs that
            share it), "full" (a table, symmetrized: only then is there an F), or the start of a
            diagonal or of a table. # (labels,) or (labels, labels)
        normalization: See `proxfield.Gaussian`.
        self_message: See `proxfield.Gaussian`.
        filter: "exact" (all pairs), "lattice" (permutohedral, for many pixels) or "auto": as for
            `proxfield.Gaussian`, exact up to 2000 pixels on the CPU, and on a GPU up to what takes
            0.25 s. With the lattice the gradients for bandwidths, image and embeddings are those of
            the Gaussian that it approximates; all others are exact.
        learn: Which groups of parameters need gradients: "weights", "bandwidths" and
            "compatibility".
        step: Step of the updates, in (0, 2]; None: the certified one.
        max_iters: Maximum number of iterations.
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
        output: "marginals", "log-marginals" (for losses: softmax of these gives the marginals, so
            they also serve as logits) or "energies" (θ; logits are −θ).
        clip: Probabilities below it count as this much.

    Example:
        >>> crf = DenseCRF(21, output="log-marginals")  # doctest: +SKIP
        >>> loss = F.nll_loss(crf(images, network(images)), truth)  # doctest: +SKIP
    """

    def __init__(
        self,
        n_labels: int,
        *,
        dimensions: int = 2,
        spatial_sigma: float | Sequence[float] = 3.0,
        spatial_weight: float = 3.0,
        bilateral_sigma: float | Sequence[float] = 80.0,
        bilateral_color: float | Sequence[float] = COLOR_SIGMA / 255,
        bilateral_weight: float = 10.0,
        embedding_sigma: float | Sequence[float] | None = None,
        embedding_weight: float = 0.0,
        compatibility: Any = "potts",
        normalization: str = "symmetric",
        self_message: bool = True,
        filter: str = "auto",
        learn: Sequence[str] = LEARN,
        step: float | None = None,
        max_iters: int = 10,
        tol: float = 1e-6,
        gradient: str = "exact",
        keep_every: int = 1,
        adjoint_tol: float | None = None,
        adjoint_max_iters: int = 50,
        output: str = "marginals",
        clip: float = 1e-5,
        **unknown: Never,
    ) -> None:
        refuse_keywords("torch.DenseCRF", unknown, RENAMED)
        need_torch()
        super().__init__()
        _one_of("normalization", normalization, NORMALIZATIONS)
        _one_of("filter", filter, ("auto", *FILTERS))
        _one_of("gradient", gradient, GRADIENTS)
        _one_of("output", output, OUTPUTS)
        for group in learn:
            _one_of("learn", group, LEARN)
        if n_labels < 1 or dimensions < 1 or max_iters < 0 or not tol >= 0:
            raise InputError(
                f"n_labels={n_labels}, dimensions={dimensions}, max_iters={max_iters}, tol={tol}: "
                "expected 1 or more, 1 or more, 0 or more, 0 or more"
            )
        if keep_every < 1:
            raise InputError(f"keep_every={keep_every}, expected 1 or more")
        if step is not None and not 0 < step <= 2:
            raise InputError(f"step={step!r}, expected above 0 and at most 2, or None: certified")
        self.n_labels, self.dimensions = n_labels, dimensions
        self.normalization, self.self_message, self.filter = normalization, self_message, filter
        self.step, self.max_iters, self.tol = step, max_iters, tol
        self.gradient, self.keep_every = gradient, keep_every
        self.output, self.clip = output, clip
        self.adjoint_tol, self.adjoint_max_iters = adjoint_tol, adjoint_max_iters
        terms = {
            "spatial": spatial_weight,
            "bilateral": bilateral_weight,
            "embedding": embedding_weight,
        }
        for name, weight in terms.items():
            if weight is None:
                raise InputError(f"{name}_weight=None, expected a number; 0 omits the term")
        self.terms = [name for name, weight in terms.items() if weight != 0]
        """The terms there are, in the order of ``weights``."""
        given = [float(weight) for weight in terms.values() if weight != 0]
        self.weights = self._parameter(given, "weights" in learn)
        bandwidths = "bandwidths" in learn
        for name, sigma in (("spatial", spatial_sigma), ("bilateral", bilateral_sigma)):
            logs = self._logs(f"{name}_sigma", sigma, dimensions, bandwidths)
            setattr(self, f"log_{name}_sigma", logs if name in self.terms else None)
        several = len(bilateral_color) if isinstance(bilateral_color, Sequence) else 1
        logs = self._logs("bilateral_color", bilateral_color, several, bandwidths)
        self.log_bilateral_color: Tensor = logs if "bilateral" in self.terms else None
        self.log_embedding_sigma: Tensor | None = None
        if "embedding" in self.terms and embedding_sigma is not None:
            self.log_embedding_sigma = self._logs(
                "embedding_sigma", embedding_sigma, dimensions, bandwidths
            )
        self.compatibility = self._compatibility(compatibility, "compatibility" in learn)

    # ---- settings ----

    @classmethod
    def from_config(
        cls, config: str | PathLike[str] | Mapping[str, Any], n_labels: int, **options: Any
    ) -> DenseCRF:
        """A layer with the settings of `proxfield.DenseCRF`, as ``proxfield tune`` writes them.

        Args:
            config: The name of a TOML file, or settings by name, as `to_config` returns them.
            n_labels: Number of labels.
            **options: Options of the layer; they override the settings.

        Example:
            >>> crf = DenseCRF.from_config("crf.toml", 21, learn=("weights",))  # doctest: +SKIP
        """
        from proxfield.images.config import read_config

        settings = settings_of(read_config(config))
        of = settings.pop("color_range", None)
        if of is not None:
            color = settings["bilateral_color"]
            several = isinstance(color, Sequence)
            settings["bilateral_color"] = [c / of for c in color] if several else color / of
        return cls(n_labels, **{**settings, **options})

    def to_config(self) -> Record:
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
        weights = dict(zip(self.terms, self.weights.detach().double().tolist(), strict=True))
        out: Record = {}
        for name in ("spatial", "bilateral"):
            sigma = getattr(self, f"log_{name}_sigma")
            if sigma is not None:
                out[f"{name}_sigma"] = _lengths(sigma)
            if name == "bilateral" and sigma is not None:
                out["bilateral_color"] = _lengths(self.log_bilateral_color, FULL_RANGE)
                out["color_range"] = FULL_RANGE
            out[f"{name}_weight"] = weights.get(name, 0.0)
        out.update(max_iters=self.max_iters, filter=self.filter)
        if self.compatibility is not None:
            out["compatibility"] = self.compatibility.detach().double().tolist()
        if self.normalization != MODEL_SETTINGS["normalization"]:
            out["normalization"] = self.normalization
        if self.self_message != MODEL_SETTINGS["self_message"]:
            out["self_message"] = self.self_message
        return out

    # ---- parameters ----

    @staticmethod
    def _parameter(values: Any, learn: bool) -> Tensor:
        start = torch.as_tensor(values, dtype=torch.get_default_dtype()).detach().clone()
        return torch.nn.Parameter(start, requires_grad=learn)

    def _logs(self, what: str, values: float | Sequence[float], count: int, learn: bool) -> Tensor:
        """Logarithms of lengths, as many as were given: a step can't make one negative."""
        widths(values, count, what, "axis or channel")
        given = values if isinstance(values, Sequence) else [values]
        return self._parameter([math.log(v) for v in given], learn)

    def _compatibility(self, given: Any, learn: bool) -> Tensor | None:
        if given is None:
            return None
        if isinstance(given, str):
            _one_of("compatibility", given, ("potts", "diagonal", "full"))
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

    def tables(self) -> Tensor:
        """Weight times compatibility of each term, symmetrized.  # (terms, labels, labels)"""
        if self.compatibility is None:  # Potts, up to what is the same for all labels
            table = -torch.eye(self.n_labels, dtype=self.weights.dtype, device=self.weights.device)
        elif self.compatibility.ndim == 1:
            table = torch.diag(self.compatibility)
        else:
            table = 0.5 * (self.compatibility + self.compatibility.T)
        return self.weights[:, None, None] * table

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
            seen = channels_of(channels, pixels, like, name)
            if name == "bilateral":
                seen = seen / self.log_bilateral_color.exp().to(like)
            logs = self.log_bilateral_sigma if name == "bilateral" else self.log_embedding_sigma
            if logs is not None:
                where = places / logs.exp().to(like)
                seen = torch.cat([where.expand(len(seen), -1, -1), seen], dim=-1)
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
        """Marginals (or what ``output`` says) of each pixel.

        Args:
            image: None without a bilateral term.  # (B, channels, *pixels)
            logits: Scores of a network, before a softmax.  # (B, labels, *pixels)
            probabilities: Probabilities instead of logits; they sum to 1.
            energies: Unary energies instead of logits; +inf excludes a label.
            embeddings: Embeddings of the pixels, for the term over them.  # (B, any, *pixels)

        Returns:
            # (B, labels, *pixels)
        """
        unary = self._unary(logits, probabilities, energies)
        pixels = unary.shape[2:]
        table = rows(unary.to(working_dtype(unary.dtype)))  # (B, n, labels)
        features = [f.contiguous() for f in self.features(image, embeddings, pixels, table)]
        options: dict[str, Any] = {
            "normalization": self.normalization,
            "self_message": self.self_message,
            "filter": self.filter,
            "step": self.step,
            "max_iters": self.max_iters,
        }
        tables = self.tables().to(table)
        if not self.terms:  # independent pixels: θ = U is the fixed point
            theta = table
        elif self.gradient == "unrolled":
            theta = unrolled_energies(table, features, tables, **options)
        else:
            theta, _ = dense_energies(
                table, features, tables, **options, tol=self.tol,
                gradient=self.gradient, keep_every=self.keep_every,
                adjoint_tol=self.adjoint_tol, adjoint_max_iters=self.adjoint_max_iters,
            )  # fmt: skip
        if self.output == "marginals":
            theta = torch.softmax(-theta, dim=-1)
        elif self.output == "log-marginals":
            theta = torch.log_softmax(-theta, dim=-1)
        # contiguous: PyTorch's losses for maps insist on it
        return theta.transpose(1, 2).reshape(unary.shape).contiguous()

    def _unary(
        self, logits: Tensor | None, probabilities: Tensor | None, energies: Tensor | None
    ) -> Tensor:
        given = [x for x in (logits, probabilities, energies) if x is not None]
        if len(given) != 1:
            raise InputError("expected logits, probabilities or energies, one of them")
        if given[0].ndim != self.dimensions + 2 or given[0].shape[1] != self.n_labels:
            sizes = ", ".join("DHW"[-self.dimensions :]) if self.dimensions < 4 else "…"
            raise InputError(
                f"unaries of shape {tuple(given[0].shape)}, expected (images, {self.n_labels}, "
                f"{sizes})"
            )
        if logits is not None:
            return -logits
        return energies if probabilities is None else -probabilities.clamp(min=self.clip).log()


def places_of(pixels: Sequence[int], like: Tensor) -> Tensor:
    """Positions of pixels along each axis.  # (1, n, dimensions)"""
    axes = [torch.arange(size, dtype=like.dtype, device=like.device) for size in pixels]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(1, -1, len(pixels))


def channels_of(channels: Tensor, pixels: Sequence[int], like: Tensor, name: str) -> Tensor:
    """Channels of images with one row per pixel, integers divided by 255.  # (B, n, c)

    Args:
        channels: # (B, c, *pixels)
        pixels: The expected size.
        like: Of as many images, in the type and on the device wanted.
        name: What the channels are for, for messages.
    """
    if tuple(channels.shape[2:]) != tuple(pixels) or len(channels) != len(like):
        raise InputError(
            f"{name} channels of shape {tuple(channels.shape)} for unaries of "
            f"{len(like)} images of {'×'.join(map(str, pixels))} pixels"
        )
    whole = not channels.is_floating_point()
    return rows(channels.to(like) / 255 if whole else channels.to(like))


def rows(maps: Tensor) -> Tensor:
    """Maps with one row per pixel.  # (B, c, *pixels) -> (B, n, c)"""
    return maps.flatten(2).transpose(1, 2).contiguous()


def _lengths(logs: Tensor, unit: float = 1.0) -> float | list[float]:
    """Lengths from their logarithms: one number, or several."""
    found: list[float] = [unit * x for x in logs.detach().double().exp().tolist()]
    return found[0] if len(found) == 1 else found


def _one_of(what: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        raise InputError(f"{what}={value!r}, expected one of: {', '.join(known)}")
