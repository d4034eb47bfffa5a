"""What peers are asked about: small generated fields with exact answers, and noisy images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from proxfield.bench.peers.graph import Elimination, factor_graph
from proxfield.bench.suites import Instance, Reference
from proxfield.core.common.records import Record
from proxfield.core.terms.base import Ints
from proxfield.core.terms.factor import Factor
from proxfield.core.terms.pairwise import Ising, Pairwise, Potts
from proxfield.core.terms.unary import Unary
from proxfield.errors import InputError, UnsupportedError
from proxfield.field import Field
from proxfield.generate import grid_edges
from proxfield.images.densecrf import DenseCRF
from proxfield.io.files import display_name, naming_damage

SIGNS = ("attractive", "repulsive", "mixed")
STRENGTHS = (0.3, 1.0, 3.0)
FIELDS = (0.1, 1.0)
RECIPE = "peers-1"
"""Changes whenever generated fields do."""


def spins(n: int, edges: Ints, strength: float, unary: float, sign: str, seed: int) -> Field:
    """Spins with E = Σ h_i s_i + Σ J_ij s_i s_j, |h| up to ``unary`` and |J| up to ``strength``."""
    rng = np.random.default_rng(seed)
    h = rng.uniform(-unary, unary, n)
    couplings = rng.uniform(-strength, strength, len(edges))
    if sign != "mixed":
        couplings = np.abs(couplings) * (1 if sign == "repulsive" else -1)
    field = Field(n, n_labels=2).add(Unary(np.stack([-h, h], axis=1)))
    return field.add(Ising(edges, couplings))


def colored_grid(side: int, strength: float, seed: int) -> Field:
    """A grid of three labels whose neighbors repel."""
    rng = np.random.default_rng(seed)
    field = Field(side * side, n_labels=3).add(Unary(rng.uniform(-1, 1, (side * side, 3))))
    edges = grid_edges(side, side)
    return field.add(Potts(edges, -strength * rng.random(len(edges))))


def random_graph(n: int, n_edges: int, strength: float, seed: int) -> Field:
    """Spins with mixed couplings on randomly chosen pairs."""
    rng = np.random.default_rng([seed, 1])
    pairs = np.stack(np.triu_indices(n, 1), axis=1)
    edges = pairs[np.sort(rng.choice(len(pairs), n_edges, replace=False))]
    return spins(n, edges, strength, 0.5, "mixed", seed)


def tree(n: int, strength: float, seed: int) -> Field:
    """A random tree of three labels with random tables."""
    rng = np.random.default_rng(seed)
    field = Field(n, n_labels=3).add(Unary(rng.normal(size=(n, 3))))
    edges = np.array([(rng.integers(v), v) for v in range(1, n)])
    return field.add(Pairwise(edges, strength * rng.normal(size=(n - 1, 3, 3))))


def larger_factors(n: int, strength: float, seed: int) -> Field:
    """Random tables over three or four neighbors of a ring, two or three labels."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 4, n)
    field = Field(sizes)
    for first in range(0, n, 2):
        scope = (first + np.arange(3 + first // 2 % 2)) % n
        table = strength * rng.normal(size=tuple(sizes[scope]))
        field.add(Factor([scope.tolist()], table))
    return field


def with_zeros(side: int, share: float, seed: int) -> Field:
    """A grid of three labels; a share of all pairs of labels is impossible, but not all are.

    One labelling is drawn first and kept possible.
    """
    rng = np.random.default_rng(seed)
    n, edges = side * side, grid_edges(side, side)
    field = Field(n, n_labels=3).add(Unary(rng.normal(size=(n, 3))))
    tables = 0.5 * rng.normal(size=(len(edges), 3, 3))
    tables[rng.random(tables.shape) < share] = np.inf
    x = rng.integers(3, size=n)
    tables[np.arange(len(edges)), x[edges[:, 0]], x[edges[:, 1]]] = 0.0
    return field.add(Pairwise(edges, tables))


def _recipes(quick: bool) -> Iterator[tuple[str, str, Callable[[int], Field]]]:
    side = 5 if quick else 8
    edges, pairs = grid_edges(side, side), np.stack(np.triu_indices(14, 1), axis=1)
    strengths = STRENGTHS[1:2] if quick else STRENGTHS
    for sign in SIGNS:
        for strength in strengths:
            for unary in FIELDS[1:] if quick else FIELDS:
                make = partial(spins, side * side, edges, strength, unary, sign)
                yield f"grid {sign}", f"J {strength:g}, h {unary:g}", make
    for strength in strengths:
        yield "grid 3 labels, repulsive", f"J {strength:g}", partial(colored_grid, side, strength)
        yield "random graph", f"J {strength:g}", partial(random_graph, 20, 30, strength)
        coupled = partial(spins, 14, pairs, strength / np.sqrt(14), 0.5, "mixed")
        yield "complete graph", f"J {strength:g}", coupled
        yield "tree", f"J {strength:g}", partial(tree, 40, strength)
        yield "factors of 3 and 4", f"J {strength:g}", partial(larger_factors, 20, strength)
    for share in (0.2,) if quick else (0.1, 0.2, 0.3):
        yield "zeros", f"share {share:g}", partial(with_zeros, min(side, 6), share)


def generated_models(quick: bool, seeds: int) -> list[Instance[Field]]:
    """The generated models, with their exact answers.

    Args:
        quick: Fewer and smaller ones.
        seeds: Number of fields of each kind.
    """
    return [
        Instance(
            family, f"{name}, seed {seed}", RECIPE, make := partial(recipe, seed),
            partial(_exact_reference, make),
        )
        for family, name, recipe in _recipes(quick)
        for seed in range(seeds)
    ]  # fmt: skip


def _exact_reference(make: Callable[[], Field]) -> Reference:
    exact = Elimination(factor_graph(make()))
    return Reference(exact.log_z, exact.marginals())


def best_energy(field: Field) -> float | None:
    """The lowest energy of a labelling; None where elimination would take too much memory."""
    try:
        return field.energy(Elimination(factor_graph(field)).best_labels())
    except UnsupportedError:
        return None


# ---- images ----


UPDATES = 10
"""Updates of mean field, as published dense CRFs make."""
SETTINGS: Record = {
    "spatial_sigma": 3,
    "spatial_weight": 3,
    "bilateral_sigma": 40,
    "bilateral_color": 5,
    "bilateral_weight": 5,
    "clip": 1e-5,
}
"""The same model for all tools, in the words of `DenseCRF`."""
EXACT_PIXELS = 4000
"""Maximum number of pixels for which the kernels are also summed over all pairs."""
VOID = 255
"""True label of pixels that don't count."""


class NoisyScene(NamedTuple):
    """An image of a set, what a classifier says about it, and the truth (`VOID`: unknown)."""

    suite: str
    name: str
    image: NDArray[np.uint8]  # (height, width, 3)
    probabilities: NDArray[np.float32]  # (height, width, labels)
    truth: NDArray[np.int64]  # (height, width)


def make_scene(width: int, height: int, n_labels: int = 5, seed: int = 0) -> NoisyScene:
    """Colored regions with shading and noise; a classifier that is unsure and blurred at borders.

    Example:
        >>> make_scene(40, 30).probabilities.shape
        (30, 40, 5)
    """
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    centers = rng.random((3 * n_labels, 2)) * (height, width)
    away = (y[..., None] - centers[:, 0]) ** 2 + (x[..., None] - centers[:, 1]) ** 2
    truth = away.argmin(axis=-1) % n_labels
    colors = rng.integers(30, 226, (n_labels, 3))
    shade = 1 + 0.15 * np.sin(4 * x / width + 3 * y / height)
    image = colors[truth] * shade[..., None] + rng.normal(scale=5.0, size=(height, width, 3))
    block = 6  # pixels that a network's coarse map has in common
    coarse = truth[block // 2 :: block, block // 2 :: block]
    seen = np.repeat(np.repeat(coarse, block, axis=0), block, axis=1)
    seen = np.pad(seen, ((0, block), (0, block)), mode="edge")[:height, :width]
    scores = 1.5 * np.eye(n_labels)[seen] + rng.normal(scale=1.0, size=(height, width, n_labels))
    p = np.exp(scores)
    p /= p.sum(axis=-1, keepdims=True)
    pixels = np.clip(image, 0, 255).astype(np.uint8)
    name = f"{width}x{height}, seed {seed}"
    return NoisyScene("generated", name, pixels, p.astype(np.float32), truth)


def generated_scenes(quick: bool) -> list[NoisyScene]:
    """The images of the benchmark: small ones, and unless it must be quick some of 480 × 360."""
    if quick:
        return [make_scene(40, 30)]
    small = [make_scene(60, 45, seed=seed) for seed in range(3)]
    return [*small, *(make_scene(480, 360, seed=seed) for seed in range(3))]


def read_scenes(folder: str) -> list[NoisyScene]:
    """Scenes from a folder of ``.npz`` files with the arrays image, probabilities and truth.

    Raises:
        InputError: If there are none, or an array is missing or doesn't fit.
    """
    root = Path(folder)
    paths = sorted(root.glob("*.npz"))
    if not paths:
        none = "no .npz files, expected one per image"
        what = none if root.is_dir() else "no such folder, expected one with .npz files"
        raise InputError(what, path=display_name(root))
    return [_read_scene(path) for path in paths]


def _read_scene(path: Path) -> NoisyScene:
    name, keys = display_name(path), ("image", "probabilities", "truth")
    with naming_damage(name), np.load(path, allow_pickle=False) as data:
        if missing := sorted({*keys} - {*data.files}):
            what = f"no {', '.join(missing)}, expected image, probabilities and truth"
            raise InputError(what, path=name)
        image, p, truth = (np.asarray(data[key]) for key in keys)
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
        raise InputError(f"image {image.dtype}{image.shape}, expected 8-bit colors", path=name)
    if p.ndim != 3 or p.shape[:2] != image.shape[:2] or truth.shape != image.shape[:2]:
        raise InputError(
            f"shapes {image.shape}, {p.shape}, {truth.shape} of image, probabilities and truth, "
            "expected the same height and width",
            path=name,
        )
    labels = truth.astype(np.int64)
    return NoisyScene(path.parent.name, path.stem, image, p.astype(np.float32), labels)


def exact_labels(scene: NoisyScene) -> NDArray[np.int64] | None:
    """The labels that the same updates give with sums over all pairs; None for large images."""
    if scene.truth.size > EXACT_PIXELS:
        return None
    crf = DenseCRF(scene.image, scene.probabilities, filter="exact", **SETTINGS)
    return np.asarray(crf.infer(max_iters=UPDATES, tol=None).labels, dtype=np.int64)
