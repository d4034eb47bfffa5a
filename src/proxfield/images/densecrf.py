"""Dense CRFs: every pixel is coupled to every other one, weighted by position and color.

A dense CRF is a `Field` whose couplings are `Gaussian` terms, so every rule, trace and result
of the engine serves it; this module knows images: axes, channels, probabilities, label maps.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from inspect import signature
from os import PathLike
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike

from proxfield.core.common.arrays import Array, Floats
from proxfield.core.common.checks import whole_count
from proxfield.core.common.records import Record
from proxfield.core.filters.points import PixelPoints
from proxfield.core.solve.infer import infer
from proxfield.core.solve.rules.base import Rule
from proxfield.core.terms.base import Ints
from proxfield.core.terms.cooccurrence import Cooccurrence
from proxfield.core.terms.unary import Unary
from proxfield.errors import InputError, InputWarning, cut_middle, refuse_keywords, shown
from proxfield.field import LONGEST_KINDS, Field
from proxfield.images.cooccurrence import CooccurrenceStatistics
from proxfield.images.dense_result import DenseResult, unchanged_note
from proxfield.images.inputs import (
    CONFIDENCE,
    READING,
    ArrayKind,
    Reading,
    check_confidence,
    confidence_note,
    find_ignored,
    fix_labels,
    flags_of,
    read_inputs,
    runs_of,
    to_host,
)
from proxfield.images.pixels import (
    channels_last,
    check_size,
    color_bandwidth,
    color_range,
    each,
    first_pixel,
    mask_rows,
    place,
    rows,
    widths,
)
from proxfield.images.settings import (
    DEFAULT_PRESET,
    PUBLISHED_UPDATES,
    DenseSettings,
    GivenSettings,
    read_config,
)
from proxfield.result import Result, Status

if TYPE_CHECKING:
    from typing_extensions import Unpack


class DenseOptions(GivenSettings, Reading, total=False):
    """Options of `DenseCRF`: settings in place of the preset's, and how arrays are read."""

    confidence: float | None


class DenseCRF(Field):
    """A field over the pixels of an image: unaries, a spatial and a bilateral Gaussian term.

    E(x) = Σ_i −log p_i(x_i) + Σ_{i<j} (w_s k_s(i, j) + w_b k_b(i, j)) μ(x_i, x_j), where
    k_s = exp(−½‖s_i − s_j‖² / spatial_sigma²) compares positions and
    k_b = exp(−½‖s_i − s_j‖² / bilateral_sigma² − ½‖c_i − c_j‖² / bilateral_color²) also colors,
    both normalized. Images may have any number of dimensions. `add` takes further terms, and
    ``proxfield.infer(crf, …)`` works as for any field, with one row per pixel.

    Args:
        image: Pixels, with or without channels; None for the spatial term alone.
            # (*pixels), (*pixels, channels) or (channels, *pixels)
        probabilities: What a classifier says; for each pixel they sum to 1. One number per
            pixel is the probability of foreground, label 1 of two. Maps that are smaller than the
            image, by the same factor along all axes, are enlarged by linear interpolation. If
            all are 0 or 1 (masks, one-hot maps) they are labels, see ``confidence``.
            # (*pixels, labels), (labels, *pixels), (*pixels), or with a first axis of 1
        logits: Scores of a network in their place, of which it would take the softmax (the
            sigmoid, if there is one number per pixel).
        energies: Unary energies in their place, of the same shape; float32 with labels last is
            not copied.
        scribbles: Labels of pixels that are known: no other label is possible there. 255 and
            numbers below 0 stand for pixels without a stroke.  # (*pixels)
        preset: What the settings are that aren't given, and how many updates `infer` makes:
            "gentle", "krahenbuehl", "deeplab", "wsss" (see `PRESETS`), `DenseSettings` (as
            `to_config` and `read_config` return them), or some settings by name.
        cooccurrence: Counts of classes that occur together, or the name of a file of them: adds
            a `Cooccurrence` term. Its own parameters: ``crf.add(Cooccurrence(…))``.
        **options: Settings in place of the preset's: ``spatial_sigma``, ``spatial_weight``,
            ``bilateral_sigma``, ``bilateral_color`` (in the image's own units),
            ``bilateral_weight``, ``compatibility`` (None: Potts), ``normalization``,
            ``self_message`` and ``filter``, see `DenseSettings`; and how arrays are read:
        labels_axis: Where the labels are: 0, -1, None (no such axis: one number per pixel), or
            "auto" (the default): by comparing the shapes and, where these leave it open, by looking
            along which axis probabilities sum to 1.
        channel_axis: Where the channels are: 0, -1, None (no channels) or "auto" (the default).
        batch: Whether the first axis counts images. True takes a batch of one (`refine_batch`
            takes more), False reads a volume. None (the default) reads (1, labels, height, width)
            as one image and refuses shapes that may be a batch of several images or a volume,
            unless an option with three numbers, one per axis, says that it is a volume.
        spacing: Size of a pixel along each axis (1 by default), for voxels that aren't cubes;
            sigmas are then in the same unit.
        origin: Where the first pixel lies in a larger image of which this one is a part, in
            pixels; one number or one per axis. The lattice is then that of the larger image:
            `refine_tiles` needs it.
        clip: Probabilities below it (1e-5 by default) count as this much, so that no label is
            ruled out.
        normalize: Divide the probabilities of each pixel by their sum instead of refusing them.
        confidence: Probability that labels are right, where probabilities or logits leave no pixel
            in doubt (all are 0 or 1, up to 1e-5); above 1/labels, the other labels share the rest.
            None: what a configuration says, else 0.7, and a warning says so. 1: they are taken as
            they are, and hardly anything can change. A map of one label only stays as it is,
            whatever the confidence.

    Example:
        >>> import numpy as np, proxfield as pf
        >>> image = np.zeros((6, 8, 3), dtype=np.uint8)
        >>> image[:, 4:] = 200
        >>> p = np.full((6, 8, 2), 0.5)
        >>> p[:, :3], p[:, 5:] = (0.8, 0.2), (0.2, 0.8)
        >>> p[2, 1] = 0.3, 0.7  # a mistake
        >>> pf.DenseCRF(image, p).infer().labels[2]
        array([0, 0, 0, 0, 1, 1, 1, 1])
    """

    saved_attributes = ("pixels", "labels_axis", "shape", "ignored")
    saved_notes = ("max_iters", "confidence", "unsure")
    original = ArrayKind()
    """The kind of array that was given; fields that are loaded from files give numpy's."""
    ignored: tuple[int, tuple[int, ...]] | None = None
    """A label that results carry, and the runs of pixels that have it; see `from_labels`."""
    unsure: tuple[int, ...] = ()
    """The runs of pixels without a label before inference; see `from_labels`."""
    settings: DenseSettings | None = None
    confidence: float | None = None
    _certain_meant: bool = False
    """Whether labels were given as certain, by a confidence of 1."""
    max_iters: int | None = None
    tells: bool = True
    """Whether `infer` warns where no pixel changed; callers that report that don't want it."""

    def __init__(
        self,
        image: ArrayLike | None,
        probabilities: ArrayLike | None = None,
        *,
        logits: ArrayLike | None = None,
        energies: ArrayLike | None = None,
        scribbles: ArrayLike | None = None,
        preset: str | DenseSettings | Mapping[str, object] = DEFAULT_PRESET,
        cooccurrence: CooccurrenceStatistics | str | PathLike[str] | None = None,
        **options: Unpack[DenseOptions],
    ) -> None:
        unknown = {k: v for k, v in options.items() if k not in DenseOptions.__optional_keys__}
        refuse_keywords("DenseCRF", unknown)
        settings = DenseSettings.chosen({"preset": preset, **options})
        reading = cast("Reading", {k: options.get(k, usual) for k, usual in READING.items()})
        given = {"probabilities": probabilities, "logits": logits, "energies": energies}
        read = read_inputs(image, given, reading, settings)
        self._certain_meant = settings.confidence == 1
        self.confidence = read.confidence
        """The probability that labels are right, if labels were given; None for probabilities."""
        if settings.confidence is None and read.confidence is not None:
            what = "probabilities" if logits is None else "logits"
            warnings.warn(confidence_note(what, read.confidence), InputWarning, stacklevel=2)
        self.pixels = read.axes.pixels
        """Shape of the image without channels: that of a label map."""
        self.labels_axis = read.labels_axis
        """The axis of labels in what was given; None for a mask."""
        self.shape = read.shape
        """Shape of what was given, at the size of the image."""
        self.original = read.original
        table = read.table
        if scribbles is not None:
            table = fix_labels(table, scribbles, self.pixels)
        super().__init__(len(table), n_labels=table.shape[1])
        self.add(Unary(table))
        if read.image is not None and options.get("bilateral_color") is not None:
            settings = replace(settings, color_range=color_range(read.image))
        self.settings = settings
        """The settings in use, see `to_config`; None for points, and if loaded from a file."""
        self.max_iters = settings.max_iters
        """Number of updates that `infer` makes if it isn't told; None: as published ones do."""
        scale = widths(reading["spacing"], len(self.pixels), "spacing", "axis")
        first = first_pixel(reading["origin"], len(self.pixels))
        for kind in settings.kinds(read.image is not None):
            sigma = settings.sigmas(kind, len(self.pixels))
            channels = color = None
            if kind == "bilateral" and read.image is not None:
                channels = channels_last(read.image, read.axes.channels)
                colors = color_bandwidth(read.image, settings.bilateral_color, settings.color_range)
                color = widths(colors, channels.shape[-1], "bilateral_color", "channel")
            points = PixelPoints(self.pixels, scale / sigma, channels, color, first)
            self.add(settings.term(points, getattr(settings, f"{kind}_weight")))
        if cooccurrence is not None:
            if isinstance(cooccurrence, str | PathLike):
                cooccurrence = CooccurrenceStatistics.load(cooccurrence)
            self.add(Cooccurrence(cooccurrence, pixels=self.n_vars, n_labels=self.n_labels))

    @classmethod
    def from_labels(
        cls,
        image: ArrayLike | None,
        labels: ArrayLike,
        n_labels: int | None = None,
        *,
        confidence: float | None = None,
        unsure: int | None = None,
        ignore: int | str | None = "auto",
        clip: float = 1e-5,
        **options: Any,
    ) -> DenseCRF:
        """A dense CRF from a label map that is right with some probability.

        Args:
            image: As for `DenseCRF`.
            labels: A label for each pixel, 0 to n_labels − 1.  # (*pixels)
            n_labels: Number of labels; by default one more than the largest in the map.
            confidence: Probability that a label is right, above 1/n_labels; the others share the
                rest. None: what a configuration says, else 0.7.
            unsure: A value that stands for "not known" (0, say): all labels as probable, and the
                result has one of them. These pixels don't count as changed.
            ignore: A value of pixels that are left out of consideration: all labels as probable,
                and the result has this value there again. "auto": 255, unless it is the value
                of ``unsure``, or there are more than 255 labels. None: no such value.
            clip: As for `DenseCRF`.
            **options: The other options of `DenseCRF`.

        Example:
            >>> options = {"confidence": 0.9, "preset": "krahenbuehl"}
            >>> crf = DenseCRF.from_labels(None, [[0, 1, 0, 0]], **options)
            >>> crf.infer().labels
            array([[0, 0, 0, 0]])
        """
        given = np.asarray(to_host(labels))
        if given.dtype.kind not in "iub":
            raise InputError(f"labels must be whole numbers, not {given.dtype}")
        check_size(given.shape, "labels")
        void = find_ignored(given, ignore, unsure, n_labels)
        skipped = np.zeros(given.shape, dtype=bool) if void is None else given == void
        known = ~skipped if unsure is None else ~skipped & (given != unsure)
        top = int(given.max(where=known, initial=0))
        count = top + 1 if n_labels is None else whole_count(n_labels, "n_labels", 1)
        said = DenseSettings.chosen({**options, "confidence": confidence}).confidence
        confidence = CONFIDENCE if said is None else said
        check_confidence(confidence, count)
        low = int(given.min(where=known, initial=0))
        if low < 0 or top >= count:
            value = low if low < 0 else top
            at = place(given.shape, np.flatnonzero((given == value) & known)[0])
            hint = "" if unsure is not None else "; unsure= names a value that stands for unknown"
            raise InputError(f"pixel {at} has label {value}, expected 0 to {count - 1}{hint}")
        others = (1.0 - confidence) / max(1, count - 1)
        right, wrong = (-np.log(max(p, clip, 1e-300)) for p in (confidence, others))
        table = np.full((given.size, count), wrong, dtype=np.float32)
        flat = given.ravel().astype(np.int64)
        sure = known.ravel()
        table[np.flatnonzero(sure), flat[sure]] = right
        table[~sure] = np.log(count)
        energies = table.reshape(*given.shape, count)
        crf = cls(image, energies=energies, labels_axis=-1, confidence=said, **options)
        crf.original = ArrayKind.of(labels)
        crf.confidence, crf._certain_meant = confidence, confidence == 1
        crf.unsure = runs_of(~known & ~skipped)
        if void is not None and skipped.any():
            crf.ignored = (void, runs_of(skipped))
        return crf

    @classmethod
    def from_features(
        cls,
        features: ArrayLike | Sequence[Floats],
        probabilities: ArrayLike | None = None,
        *,
        weights: float | Sequence[float] = 1.0,
        energies: ArrayLike | None = None,
        **options: Any,
    ) -> DenseCRF:
        """A dense CRF over points of any kind, one Gaussian term for each array of features.

        Args:
            features: In units of standard deviations; an array, or a list of arrays.  # (n, d)
            probabilities: Probabilities of each point; they sum to 1.  # (n, labels)
            weights: The weight of each term; 0 omits it.
            energies: Unary energies in place of probabilities.
            **options: As for `DenseCRF`.

        Example:
            >>> import numpy as np
            >>> points = np.array([[0.0, 0, 0], [0.1, 0, 0], [5, 5, 5]])
            >>> p = [[0.9, 0.1], [0.4, 0.6], [0.4, 0.6]]
            >>> DenseCRF.from_features(points, p, weights=2.0).infer().labels
            array([0, 0, 1])
        """
        options = {"labels_axis": -1, **options}
        crf = cls(None, probabilities, energies=energies, spatial_weight=0, **options)
        settings = crf.to_config()
        if "preset" not in options:
            crf.settings, crf.max_iters = None, PUBLISHED_UPDATES
        several = isinstance(features, list | tuple) and all(np.ndim(f) == 2 for f in features)
        arrays: Sequence[Array] = features if several else [features]  # type: ignore[assignment]
        for array, weight in zip(
            arrays, each(weights, len(arrays), "weights", "array of features"), strict=True
        ):
            if len(np.atleast_1d(array)) != crf.n_vars:
                raise InputError(f"{len(array)} rows of features for {crf.n_vars} points")
            if weight == 0:
                continue
            crf.add(settings.term(array, float(weight)))
        return crf

    @classmethod
    def from_config(
        cls,
        image: ArrayLike | None,
        probabilities: ArrayLike | None = None,
        config: str | PathLike[str] | DenseSettings | Mapping[str, object] = DEFAULT_PRESET,
        **options: Any,
    ) -> DenseCRF:
        """A dense CRF with the settings of a file, as ``proxfield tune`` writes it.

        Args:
            image: As for `DenseCRF`.
            probabilities: As for `DenseCRF`.
            config: The name of a TOML file, or settings by name.
            **options: The other options of `DenseCRF`; they override the settings.

        Example:
            >>> import numpy as np
            >>> p = np.full((4, 5, 2), 0.5)
            >>> crf = DenseCRF.from_config(None, p, {"spatial_weight": 2.0, "max_iters": 5})
            >>> crf.max_iters, crf.terms[1].weight
            (5, 2.0)
        """
        return cls(image, probabilities, preset=read_config(config), **options)

    def to_config(self) -> DenseSettings:
        """The settings in use, for `from_config`, ``preset=`` or `proxfield.write_config`.

        Example:
            >>> import numpy as np
            >>> crf = DenseCRF(None, np.full((4, 5, 2), 0.5), preset="deeplab")
            >>> crf.to_config().bilateral_sigma
            67.0
        """
        if self.settings is None:
            raise InputError(
                "this field was made from features or loaded from a file, and has no settings"
            )
        return self.settings

    @property
    def n_labels(self) -> int:
        """Labels of every pixel."""
        return int(self.cardinalities[0])

    @property
    def input_labels(self) -> Ints:
        """The most probable label of each pixel before inference.  # (*pixels)

        Ignored pixels have their value.
        """
        unary = self.terms[0]
        assert isinstance(unary, Unary)
        return self._as_map(np.asarray(unary.energies).reshape(self.n_vars, -1).argmin(axis=1))

    def _as_map(self, labels: Ints) -> Ints:
        """Labels in a row as a map, with the value of ignored pixels; changes what is given."""
        if self.ignored is not None:
            value, runs = self.ignored
            labels[flags_of(runs, len(labels))] = value
        return labels.reshape(self.pixels)

    def __repr__(self) -> str:
        size = "×".join(map(str, self.pixels))
        counted = (name if n == 1 else f"{n} {name}" for name, n in self.kinds.items())
        kinds = cut_middle(", ".join(counted), LONGEST_KINDS)
        seen = int((self.evidence >= 0).sum())
        observed = f", {seen} observed" if seen else ""
        return f"DenseCRF({size} pixels, {self.n_labels} labels{observed}, terms: {kinds})"

    def energy(self, labels: ArrayLike | Mapping[int | str, int | str]) -> float:
        """Energy of a label map, or of labels in a row."""
        return super().energy(labels if isinstance(labels, Mapping) else np.ravel(labels))

    def infer(
        self,
        rule: str | Rule | type[Rule] = "fixed",
        *,
        init: str | ArrayLike | Result = "unary",
        max_iters: int | str | None = "preset",
        dtype: str = "float32",
        **options: Any,
    ) -> DenseResult:
        """`proxfield.infer` with what suits images, and the result as maps.

        Args:
            rule: As for `proxfield.infer`. With weights above 0 and Potts, the certified step of
                "fixed" is the whole step: the update of the published dense CRFs, and F
                provably never rises.
            init: As for `proxfield.infer`, or probabilities in the shape of those given.
            max_iters: Maximum number of iterations; "preset": what the preset or the configuration
                says (10 for the published ones), None: the rule's default.
            dtype: "float32" or "float64".
            **options: All other options of `proxfield.infer` and parameters of the rule.
        """
        if not isinstance(init, str | Result) and np.shape(init) == self.shape:
            values, axis = np.asarray(to_host(init)), self.labels_axis
            init = (
                mask_rows(values, self.pixels)
                if axis is None
                else rows(values.reshape(self.shape[-len(self.pixels) - 1 :]), axis)
            )
        known = False
        if isinstance(max_iters, str):
            if max_iters != "preset":
                raise InputError(f"max_iters={shown(max_iters)}, expected a number or 'preset'")
            known = self.max_iters is not None  # files of older versions don't say
            max_iters = self.max_iters if known else PUBLISHED_UPDATES
        found = infer(self, rule, init=init, max_iters=max_iters, dtype=dtype, **options)
        if known and found.status is Status.MAX_ITERS:
            found.asked = "as the preset asks"
        result = DenseResult(**{f.name: getattr(found, f.name) for f in fields(found)})
        if self.tells and (note := unchanged_note(result)):
            warnings.warn(note, InputWarning, stacklevel=2)
        return result


def divided(options: Mapping[str, object], *, of_labels: bool = False) -> tuple[Record, Record]:
    """Options of `DenseCRF` (or of `DenseCRF.from_labels`), and the others: of its `infer`."""
    own = signature(DenseCRF).parameters.keys() | DenseOptions.__optional_keys__
    own |= signature(DenseCRF.from_labels).parameters.keys() if of_labels else set()
    build = {k: v for k, v in options.items() if k in own}
    return build, {k: v for k, v in options.items() if k not in own}
