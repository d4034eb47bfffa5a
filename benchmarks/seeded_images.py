"""The cases of `seeded_results.py` about images: dense CRFs, the drop-in, ``proxfield refine``."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import proxfield as pf
from seeded_fields import counts, picture
from seeded_records import THREADS, Case, Record, record_of

CRF: Record = {
    "spatial_sigma": 3.0,
    "spatial_weight": 3.0,
    "bilateral_sigma": 20.0,
    "bilateral_color": 13.0,
    "bilateral_weight": 5.0,
    "normalization": "symmetric",
    "self_message": True,
    "filter": "lattice",
}
RUN: Record = {"init": "unary", "max_iters": 10, "tol": 1e-6, "seed": 0, "threads": THREADS}


def image_cases() -> Iterator[Case]:
    """All of them."""
    yield from pictures()
    yield from drop_in()


def pictures() -> Iterator[Case]:
    """Dense CRFs on generated pictures."""
    ways: dict[str, Record] = {
        "plain": {},
        "exact": {"filter": "exact"},
        "others": {"self_message": False, "normalization": "none", "spatial_weight": 0.05},
        "vector": {"compatibility": np.array([-1.0, -0.5, -2.0])},
        "matrix": {"compatibility": np.array([[0, 1, 2.0], [1, 0, 3], [2, 3, 0]])},
        "spatial": {"bilateral_weight": 0},
        "repulsive": {"spatial_weight": -1.0, "bilateral_weight": -2.0},
        "cooccurrence": {"cooccurrence": counts(), "labels": 4},
    }
    for way, options in ways.items():
        for rule in ("fixed", "full-parallel", "momentum", "auto"):
            for dtype in ("float32", "float64"):
                case = partial(dense, (24, 32), rule, dtype, **options)
                yield f"dense/{way}/{rule}/{dtype}", case
        case = partial(dense, (24, 32), "fixed", "float64", kernels="reference", **options)
        yield f"dense/{way}/reference", case
    for dtype in ("float32", "float64"):
        for rule in ("fixed", "adam"):
            yield f"dense/large/{rule}/{dtype}", partial(dense, (150, 200), rule, dtype)
    yield "dense/many-labels", partial(dense, (60, 80), "fixed", "float32", labels=21)
    yield "dense/from-labels", from_labels
    yield "dense/from-features", from_features
    yield "dense/volume", volume
    yield "dense/batch", refined_batch


def dense(
    size: tuple[int, int],
    rule: str,
    dtype: str,
    *,
    labels: int = 3,
    kernels: str = "cpu",
    **options: Any,
) -> Record:
    """A dense CRF over a picture."""
    image, p = picture(*size, labels, 6)
    crf = pf.DenseCRF(image, p, **{**CRF, **options})
    result = crf.infer(rule, dtype=dtype, kernels=kernels, **RUN)
    return {**record_of(result), "probabilities": result.probabilities}


def from_labels() -> Record:
    """A dense CRF from a map of labels, some of them unknown."""
    image, p = picture(20, 30, 3, 8)
    guess = p.argmax(axis=-1)
    guess[::7, ::5] = 255
    crf = pf.DenseCRF.from_labels(image, guess, 3, confidence=0.7, unsure=255, **CRF)
    return record_of(crf.infer("fixed", dtype="float32", **RUN))


def from_features() -> Record:
    """A dense CRF over points, with two terms."""
    rng = np.random.default_rng(9)
    features = [rng.normal(size=(200, 3)), 3 * rng.normal(size=(200, 2))]
    p = rng.dirichlet(np.ones(3), 200)
    options = {k: CRF[k] for k in ("normalization", "self_message", "filter")}
    crf = pf.DenseCRF.from_features(features, p, weights=[2.0, 1.0], **options)
    return record_of(crf.infer("adaptive", dtype="float64", **RUN))


def volume() -> Record:
    """Three dimensions, voxels that aren't cubes, a seed for the start."""
    rng = np.random.default_rng(10)
    p = rng.dirichlet(np.ones(4), (6, 9, 10))
    options = {**CRF, "bilateral_color": 0.2, "spacing": (3, 1, 1)}
    crf = pf.DenseCRF(rng.random((6, 9, 10)), p, **options)
    return record_of(crf.infer("fixed", dtype="float32", **{**RUN, "init": "random"}))


def refined_batch() -> Record:
    """Several pictures in one call."""
    both = [picture(16, 20, 3, seed) for seed in (1, 2, 3)]
    images, unaries = [image for image, _ in both], [p for _, p in both]
    options: Record = {**CRF, **RUN, "dtype": "float32"}
    maps = pf.refine_batch(images, unaries, output="probabilities", **options)
    labels = pf.refine_batch(images, unaries, output="labels", **options)
    return {"marginals": np.asarray(maps), "labels": np.asarray(labels)}


def drop_in() -> Iterator[Case]:
    """The stand-in for pydensecrf, and the command ``refine``."""
    for size in ((30, 40), (150, 200)):
        for normalization in range(4):
            name = f"drop-in/{size[0]}x{size[1]}/normalization-{normalization}"
            yield name, partial(stand_in, size, normalization)
    yield "drop-in/steps", partial(stand_in, (24, 30), 3, steps=True)
    yield "drop-in/utils", stand_in_tools
    yield "refine/labels", partial(refined, "--labels")
    yield "refine/probabilities", partial(refined, "--probs")


def stand_in(size: tuple[int, int], normalization: int, *, steps: bool = False) -> Record:
    """What a script written for pydensecrf gets."""
    from proxfield.compat import pydensecrf as settings
    from proxfield.compat.pydensecrf import densecrf, utils

    settings.THREADS = THREADS
    image, p = picture(*size, 4, 12)
    crf = densecrf.DenseCRF2D(size[1], size[0], 4)
    crf.setUnaryEnergy(utils.unary_from_softmax(np.moveaxis(p, -1, 0)))
    crf.addPairwiseGaussian(
        sxy=3, compat=0.5 if normalization == 0 else 3, normalization=normalization
    )
    table = np.array([[0, 1, 2, 1], [1, 0, 1, 2], [2, 1, 0, 1], [1, 2, 1, 0]], dtype=np.float32)
    weight = table * np.float32(0.01 if normalization == 0 else 2.0)
    crf.addPairwiseBilateral(
        20, 13, np.ascontiguousarray(image), weight, normalization=normalization
    )
    if not steps:
        return {"marginals": np.array(crf.inference(5))}
    q, first, second = crf.startInference()
    out: Record = {"start": np.array(q)}
    for k in range(3):
        crf.stepInference(q, first, second)
        out[f"divergence {k}"] = float(crf.klDivergence(q))
    return {**out, "marginals": np.array(q)}


def stand_in_tools() -> Record:
    """Energies and features as pydensecrf's utilities make them."""
    from proxfield.compat.pydensecrf import utils

    image, p = picture(10, 12, 3, 13)
    labels = p.argmax(axis=-1)
    return {
        "labels": utils.unary_from_labels(labels, 3, 0.7, zero_unsure=False),
        "unsure": utils.unary_from_labels(labels, 2, 0.7, zero_unsure=True),
        "bilateral": utils.create_pairwise_bilateral((10, 10), (13, 13, 13), image, chdim=2),
        "gaussian": utils.create_pairwise_gaussian((3, 3), (10, 12)),
    }


def refined(kind: str) -> Record:
    """Files that ``proxfield refine`` writes, in a process of its own."""
    image, p = picture(40, 50, 3, 14)
    given = p.argmax(axis=-1).astype(np.uint8) if kind == "--labels" else p.astype(np.float32)
    with tempfile.TemporaryDirectory() as place:
        names = [str(Path(place) / name) for name in ("image.npy", "unary.npy", "out")]
        np.save(names[0], image)
        np.save(names[1], given)
        command = [sys.executable, "-m", "proxfield", "refine", names[0], kind, names[1]]
        output = ["-o", f"{names[2]}.npz", "--output-kind", "probabilities"]
        subprocess.run([*command, *output], check=True, capture_output=True)
        with np.load(f"{names[2]}.npz") as found:
            return {f"file {key}": found[key] for key in sorted(found.files)}
