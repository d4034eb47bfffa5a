"""Decision tree fields: images with holes, completed by a field that trees look up.

Nowozin, Rother, Bagon, Sharp, Yao and Kohli: *Decision Tree Fields* (ICCV 2011).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from proxfield.core.common.arrays import Array, Arrays, Ints
from proxfield.core.common.checks import one_of, whole_number
from proxfield.core.common.records import Record
from proxfield.core.solve.infer import infer
from proxfield.core.solve.rules.base import Rule
from proxfield.core.solve.rules.registry import make_rule
from proxfield.errors import InputError, shown
from proxfield.field import Field
from proxfield.learn.estimator import Estimator, whole
from proxfield.learn.methods import fit_marginals, fit_pseudo
from proxfield.learn.optimize import Callback, check_limits, fit_chains, stages
from proxfield.learn.structure import prepare
from proxfield.learn.tied import Parameters
from proxfield.learn.trees import (
    PAIRS,
    UNARY,
    Forest,
    HoledImage,
    Tree,
    feature_offsets,
    grow_forest,
    pair_offsets,
)

if TYPE_CHECKING:
    from proxfield.result import Result

Images = Any
"""Label images: one array (n, height, width), or a sequence of (height, width)."""
Masks = Any
"""What is hidden: one mask for all images, or one for each; None: see each method."""
ITERATIONS = {"marginals": 30, "chains": 200, "pseudo": 60}
"""Methods, and iterations of each by default."""
MAX_LABELS = 254
"""A value of a feature is a byte; one more is for hidden pixels."""


@dataclass(eq=False, repr=False)
class DecisionTreeField(Estimator):
    """A field over the pixels of label images, whose tables are chosen by decision trees.

    E = Σ_i U[leaf(i)][y_i] + Σ_o Σ_i V_o[leaf_o(i)][y_i, y_{i+o}]: a tree looks at what is observed
    around pixel i and gives it a table of unary energies, and for each offset o another tree gives
    the pair of pixels i and i + o a table. Trees are grown first, to predict labels and pairs of
    labels; then the tables are learned together, by ``method``. Observed pixels stay as they are.

    Args:
        offsets: Offsets (rows, columns) of pixels that interact, one of each two opposite ones; 32
            by default, see `proxfield.learn.trees.pair_offsets`. With ``[]``, pixels are
            independent and have the frequencies of labels in their leaf.  # (m, 2)
        features: Number of pixels around each that trees look at.
        reach: Maximum distance of these, along an axis.
        unary_leaves: Maximum number of leaves of the tree of single pixels.
        pair_leaves: Maximum number of leaves of each offset's tree.
        max_samples: Maximum number of pixels or pairs that a tree is grown from.
        n_labels: Number of labels; one more than the largest in training by default.
        method: "marginals" (log-likelihood of the marginals that mean field computes: most pixels
            are right), "chains" (maximum likelihood with persistent chains: cleaner strokes) or
            "pseudo" (pseudo-likelihood).
        l2: Weight of the squared norm of the tables; by default 1000 for "marginals", else 1.
        max_iters: Iterations of the method; by default 30, 200 and 60.
        rule: The rule of inference in ``predict`` and others.
        infer_iters: Maximum number of iterations of the rule.
        seed: Random seed.

    Attributes:
        forest_: The trees.
        parameters_: The tables: "unary" (leaves, K) and "pairs" (leaves of all offsets, K, K).
        n_labels_: Number of labels, K.

    Example:
        >>> rows, columns = np.mgrid[0:12, 0:12]
        >>> stripes = np.array([(columns + k) // 3 % 2 for k in range(6)])
        >>> hole = (abs(rows - 6) < 3) & (abs(columns - 6) < 3)
        >>> model = DecisionTreeField(unary_leaves=4, pair_leaves=2, features=64, reach=6)
        >>> model.set_params(max_iters=5).fit(stripes, hole).score(stripes, hole)
        1.0
    """

    offsets: ArrayLike | None = None
    _: KW_ONLY
    features: int = 256
    reach: int = 18
    unary_leaves: int = 128
    pair_leaves: int = 32
    max_samples: int = 200_000
    n_labels: int | None = None
    method: str = "marginals"
    l2: float | None = None
    max_iters: int | None = None
    rule: str | Rule | type[Rule] = "adam"
    infer_iters: int = 1000
    seed: int = 0

    # ---- fitting ----

    def fit(
        self, images: Images, masks: Masks = None, *, callback: Callback | None = None
    ) -> DecisionTreeField:
        """Grow trees and learn tables.

        Args:
            images: Complete label images, also inside the holes.  # (n, height, width), or a list
            masks: True where pixels are to be hidden; one mask serves all images.
            callback: Called with a `FitProgress` after each iteration; true ends the method.

        Returns:
            The estimator itself. Ctrl-C keeps the best parameters so far.

        Raises:
            InputError: If images, masks or parameters of the estimator can't be used.
        """
        self._check()
        if masks is None:
            raise InputError("no masks, expected True where pixels are to be hidden")
        labels, hidden = check_images(images, masks, self.n_labels, known=True)
        if not any(h.any() for h in hidden):
            raise InputError("no pixel is hidden in any image, expected holes")
        count = self.n_labels or max(2, 1 + max(int(x.max()) for x in labels))
        features = feature_offsets(self.features, self.reach)
        reach = int(np.abs(features).max())
        holed = [HoledImage(x, h, count, reach) for x, h in zip(labels, hidden, strict=True)]
        forest = grow_forest(
            holed,
            features,
            self._pair_offsets(),
            unary_leaves=self.unary_leaves,
            pair_leaves=self.pair_leaves,
            max_samples=self.max_samples,
            seed=self.seed,
        )
        parameters = self._learn(forest, holed, callback)
        self.forest_, self.n_labels_, self.parameters_ = forest, count, parameters
        facts = {
            "images": len(holed),
            "hidden pixels": sum(int(h.sum()) for h in hidden),
            "labels": count,
            "trees": 1 + len(forest.pairs),
        }
        return self.tell_about(facts, [*labels, *hidden])

    def _learn(
        self, forest: Forest, images: Sequence[HoledImage], callback: Callback | None
    ) -> Parameters:
        start = forest.frequencies(images)
        if not forest.pairs:
            return start  # frequencies are all there is to learn
        instances = prepare(forest.instance(image) for image in images)
        most = ITERATIONS[self.method] if self.max_iters is None else self.max_iters
        usual = 1000.0 if self.method == "marginals" else 1.0
        given: Record = {"l2": usual if self.l2 is None else self.l2, "callback": callback}
        if self.method == "marginals":  # the start has no interactions
            return fit_marginals(instances, start, max_iters=most, weaken=False, **given)
        first = ITERATIONS["pseudo"] if self.method == "chains" else most
        with stages() as interrupted:
            found = fit_pseudo(instances, start, max_iters=first, **given)
            if self.method == "pseudo" or interrupted():
                return found
            return fit_chains(instances, found, max_iters=most, seed=self.seed, **given)

    def _check(self) -> None:
        """Refuse parameters that can't be used, before anything is computed."""
        one_of("method", self.method, ITERATIONS)
        for name in ("features", "reach", "unary_leaves", "pair_leaves", "max_samples"):
            whole_number(getattr(self, name), name, 1)
        if self.n_labels is not None and whole_number(self.n_labels, "n_labels", 2) > MAX_LABELS:
            raise InputError(f"n_labels={shown(self.n_labels)}, expected 2 to {MAX_LABELS}")
        check_limits(
            0.0 if self.l2 is None else self.l2, 0 if self.max_iters is None else self.max_iters
        )
        make_rule(self.rule)
        whole_number(self.infer_iters, "infer_iters", 0)
        whole_number(self.seed, "seed", 0)

    def _pair_offsets(self) -> Ints:
        if self.offsets is None:
            return pair_offsets()
        given = np.asarray(self.offsets)
        if given.size == 0:
            return np.zeros((0, 2), dtype=np.int64)
        if given.ndim != 2 or given.shape[1] != 2 or given.dtype.kind not in "iu":
            raise InputError(f"offsets={shown(self.offsets)}, expected pairs of whole numbers")
        pairs = [tuple(o) for o in given.tolist()]
        opposite = {(-r, -c) for r, c in pairs}
        if len(set(pairs)) < len(pairs) or opposite & set(pairs):
            raise InputError("offsets hold (0, 0), or one twice or with its opposite")
        return given.astype(np.int64)

    # ---- using ----

    def field(self, image: ArrayLike, mask: Masks = None) -> Field:
        """The field of an image: one variable per pixel, row by row, observed outside the hole.

        Args:
            image: A label image; what it holds in the hole doesn't matter.  # (height, width)
            mask: True where pixels are hidden; by default where the image is negative.
        """
        holed = self._holed([image], None if mask is None else [mask])[0]
        return self.forest_.instance(holed).field(self.parameters_)

    def infer(self, image: ArrayLike, mask: Masks = None, **options: Any) -> Result:
        """The `Result` of inference in the field of an image.

        Args:
            image: As in `field`.
            mask: As in `field`.
            options: Of `proxfield.infer`, for example ``budget``.
        """
        given = {"max_iters": self.infer_iters, "seed": self.seed, "trace": False, **options}
        rule = given.pop("rule", self.rule)
        return infer(self.field(image, mask), rule, **given)

    def predict_proba(self, images: Images, masks: Masks = None) -> Array:
        """Marginals of all pixels; those of observed ones are 0 and 1.

        Args:
            images: Label images.  # (n, height, width), or a list
            masks: True where pixels are hidden; by default where images are negative.

        Returns:
            Probabilities.  # (n, height, width, K), or a list of (height, width, K)
        """
        out = []
        for holed in self._holed(images, masks):
            result = whole(self.infer(holed.labels, holed.hidden))
            out.append(result.q.reshape(*holed.labels.shape, self.n_labels_))
        return _as_given(out, images)

    def predict(self, images: Images, masks: Masks = None) -> Array:
        """Images whose hidden pixels have their most probable label.

        Args:
            images: As in `predict_proba`.
            masks: As in `predict_proba`.

        Returns:
            Label images.  # (n, height, width), or a list
        """
        every = self.predict_proba(images, masks)
        return _as_given([q.argmax(axis=2) for q in every], images)

    inpaint = predict

    def score(self, images: Images, masks: Masks = None) -> float:
        """The share of hidden pixels whose most probable label is true.

        Args:
            images: Complete label images.
            masks: True where pixels are to be hidden.
        """
        return self.evaluate(images, masks)["accuracy"]

    def evaluate(self, images: Images, masks: Masks = None) -> dict[str, float]:
        """The accuracy in holes, and the mean log q of the true labels there.

        Args:
            images: As in `score`.
            masks: As in `score`.

        Returns:
            ``accuracy`` and ``log_likelihood``.
        """
        self.check_fitted()
        if masks is None:
            raise InputError("no masks, expected True where pixels are to be hidden")
        labels, hidden = check_images(images, masks, self.n_labels_, known=True)
        parts = list(zip(labels, hidden, self.predict_proba(labels, hidden), strict=True))
        truth = np.concatenate([x[h] for x, h, _ in parts])
        q = np.concatenate([own[h] for _, h, own in parts])
        if not len(truth):
            raise InputError("no pixel is hidden in any image, expected holes")
        log = np.log(np.maximum(q[np.arange(len(truth)), truth], 1e-12))
        right = q.argmax(axis=1) == truth
        return {"accuracy": float(right.mean()), "log_likelihood": float(log.mean())}

    # ---- files ----

    def to_arrays(self) -> Arrays:
        """Parameters and trees, for files."""
        forest = self.forest_
        trees = (forest.unary, *forest.pairs)
        return {
            **super().to_arrays(),
            "features": forest.features,
            "offsets": forest.offsets,
            "tests": np.concatenate([tree.tests for tree in trees]),
            "children": np.concatenate([tree.children for tree in trees]),
            "nodes": np.array([len(tree.tests) for tree in trees]),
        }

    def from_arrays(self, arrays: Arrays) -> None:
        """Take parameters and trees from a file."""
        super().from_arrays(arrays)
        tests, children = arrays["tests"], arrays["children"]
        features, offsets, nodes = arrays["features"], arrays["offsets"], arrays["nodes"]
        pairs = (features, offsets, tests, children)
        fits = all(x.dtype.kind == "i" and x.ndim == 2 and x.shape[1] == 2 for x in pairs)
        fits = fits and int(np.abs(features).max(initial=0)) <= self.reach
        fits = fits and nodes.shape == (len(offsets) + 1,) and len(tests) == nodes.sum()
        if not fits or len(children) != len(tests):
            raise InputError("the file is damaged: its trees don't fit together")
        ends = np.cumsum(nodes)
        trees = tuple(
            Tree(tests[e - n : e], children[e - n : e]) for e, n in zip(ends, nodes, strict=True)
        )
        for tree in trees:  # every node is reached once, and asks for what there is
            inner = tree.tests[:, 0] >= 0
            feature, value = tree.tests[inner].T
            reached = np.sort(tree.children[inner].ravel())
            if (
                not len(inner)
                or (feature >= len(features)).any()
                or not ((value >= 0) & (value <= self.n_labels_)).all()
                or not np.array_equal(reached, np.arange(1, len(inner)))
                or (tree.children[inner] <= np.flatnonzero(inner)[:, None]).any()  # no cycles
            ):
                raise InputError("the file is damaged: a tree isn't one")
        self.forest_ = Forest(self.n_labels_, features, offsets, trees[0], trees[1:])
        k, own = self.n_labels_, self.parameters_
        shapes = {UNARY: (trees[0].n_leaves, k), PAIRS: (int(self.forest_.starts[-1]), k, k)}
        if {name: value.shape for name, value in own.items()} != shapes:
            raise InputError("the file is damaged: its parameters don't fit its trees")

    def _holed(self, images: Images, masks: Masks) -> list[HoledImage]:
        self.check_fitted()
        count = self.n_labels_
        if masks is None:
            masks = [image < 0 for image in as_arrays(images, "images")]
        labels, hidden = check_images(images, masks, count, known=False)
        return [
            HoledImage(np.where(h, 0, x), h, count, self.forest_.reach)
            for x, h in zip(labels, hidden, strict=True)
        ]


def _as_given(parts: list[Array], images: Images) -> Array:
    """An array where the images came as one, else a list."""
    return np.stack(parts) if isinstance(images, np.ndarray) else parts


def check_images(
    images: ArrayLike, masks: ArrayLike, n_labels: int | None, *, known: bool
) -> tuple[list[Ints], list[NDArray[np.bool_]]]:
    """Images and masks as lists of arrays, checked; errors say what is wrong with which image.

    One mask serves all images of its shape; with ``known`` hidden pixels have labels, too.
    """
    pictures = as_arrays(images, "images")
    if not pictures:
        raise InputError("no images, expected at least one")
    given = np.asarray(masks) if not isinstance(masks, (list, tuple)) else None
    one = given is not None and given.ndim == 2
    covers = [given] * len(pictures) if one else as_arrays(masks, "masks")
    if len(covers) != len(pictures):
        raise InputError(f"{len(covers)} masks for {len(pictures)} images, expected one each")
    labels, hidden = [], []
    for k, (image, mask) in enumerate(zip(pictures, covers, strict=True)):
        where = f"image {k}"
        cover = np.asarray(mask)
        if image.ndim != 2 or not image.size:
            raise InputError(f"{where} has shape {image.shape}, expected height and width")
        if cover.shape != image.shape:
            raise InputError(f"{where} is {image.shape}, its mask {cover.shape}, expected equal")
        if cover.dtype.kind not in "bui" or image.dtype.kind not in "bui":
            kind = cover.dtype if cover.dtype.kind not in "bui" else image.dtype
            raise InputError(f"{where} has {kind}, expected whole numbers (masks: bool)")
        cover = cover.astype(bool)
        values = image.astype(np.int64)
        seen = values if known else values[~cover]
        top = MAX_LABELS if n_labels is None else n_labels
        low, high = (int(seen.min(initial=0)), int(seen.max(initial=0)))
        if low < 0 or high >= top:
            bad = low if low < 0 else high
            raise InputError(f"{where} has the label {bad}, expected 0 to {top - 1}")
        labels.append(values)
        hidden.append(cover)
    return labels, hidden


def as_arrays(values: Images, what: str) -> list[Array]:
    """A sequence of arrays, one for each image."""
    if isinstance(values, (str, bytes)) or not np.iterable(values):
        kind = type(values).__name__
        raise InputError(f"{what} are a {kind}, expected an array (n, height, width) or a list")
    out: list[Array] = []
    try:
        out.extend(np.asarray(value) for value in values)
    except ValueError:
        raise InputError(
            f"{what}: number {len(out)} has rows of different lengths, expected equal ones"
        ) from None
    return out
