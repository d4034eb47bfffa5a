"""The cases of `seeded_results.py` that need torch, a GPU, or Triton's interpreter."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

import proxfield as pf
import proxfield.torch as pt
from seeded_cases import FEW, INITS, RULES, by_name
from seeded_fields import SMALL, TINY, make_field, picture, random_field
from seeded_images import CRF, RUN
from seeded_records import THREADS, Case, Record, record_of, records_of

GRADIENTS = ("exact", "implicit", "unrolled")
DTYPES = {"float64": torch.float64, "float32": torch.float32}
MOVING = ("sweep", "colored", "full-parallel", "adhoc", "fixed", "adaptive", "momentum", "adam")
"""Rules that `proxfield.torch.infer` differentiates."""
PROXIMAL = ("full-parallel", "fixed")
"""Those that it unrolls."""
FORBIDDEN_RULES = ("sweep", "fixed", "adam", "auto")
"""Rules around forbidden configurations in the interpreter, where each takes many seconds."""


def torch_cases() -> Iterator[Case]:
    """Plain torch kernels, the layer and the functions with their gradients."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for number, name in enumerate(SMALL):
        for k, (rule, dtype) in enumerate(product(RULES, DTYPES)):
            options = {"dtype": dtype, "init": INITS[(number + k) % 3], "max_iters": FEW}
            yield (
                f"torch/{name}/{rule}/{dtype}",
                partial(by_name, name, rule, kernels="torch", **options),
            )
    yield from layers()
    yield from functions()


def limit_name(function: Callable[..., Any]) -> str:
    """What a function calls its maximum number of iterations; those of options, ``max_iters``."""
    return "iterations" if "iterations" in inspect.signature(function).parameters else "max_iters"


def tensor(values: Any, dtype: Any) -> Any:
    """A leaf that gradients are asked for."""
    return torch.as_tensor(values).to(dtype).requires_grad_()


def backward(out: Any, **inputs: Any) -> Record:
    """An output, and the gradients of a weighted sum of it."""
    weights = np.random.default_rng(1).normal(size=tuple(out.shape))
    (out * torch.as_tensor(weights).to(out)).sum().backward()
    found: Record = {"output": out.detach().numpy()}
    for name, x in inputs.items():
        found[f"gradient of {name}"] = np.zeros(0) if x.grad is None else x.grad.numpy()
    return found


# ---- the layer ----


def layers() -> Iterator[Case]:
    """The layer in every way of differentiating, with every kind of compatibility."""
    for dtype in DTYPES:
        for gradient in GRADIENTS:
            for compatibility in ("potts", "diagonal", "full"):
                case = partial(layer, dtype, gradient=gradient, compatibility=compatibility)
                yield f"layer/{gradient}/{compatibility}/{dtype}", case
        for normalization in ("none", "before", "after"):
            case = partial(layer, dtype, normalization=normalization, self_message=False)
            yield f"layer/{normalization}/{dtype}", case
        yield f"layer/kept/{dtype}", partial(layer, dtype, keep_every=3)
        yield f"layer/energies/{dtype}", partial(layer, dtype, output="energies", step=0.5)


def layer(dtype: str, **options: Any) -> Record:
    """Forward and backward over two small pictures."""
    both = [picture(7, 9, 3, seed) for seed in (1, 2)]
    image = tensor(np.stack([np.moveaxis(i, -1, 0) for i, _ in both]) / 255.0, DTYPES[dtype])
    logits = tensor(np.log([np.moveaxis(p, -1, 0) for _, p in both]), DTYPES[dtype])
    settings: Record = {
        "spatial_sigma": 2.0,
        "spatial_weight": 0.7,
        "bilateral_sigma": 6.0,
        "bilateral_color": 0.2,
        "bilateral_weight": 0.8,
        "self_message": True,
        "tol": 1e-6,
        "output": "log-marginals",
        limit_name(pt.DenseCRF): 40 if options.get("gradient") == "implicit" else 6,
        **options,
    }
    pt.clear_plans()
    crf = pt.DenseCRF(3, **settings).to(DTYPES[dtype])
    found = backward(crf(image, logits), image=image, logits=logits)
    for k, parameter in enumerate(crf.parameters()):
        value = np.zeros(0) if parameter.grad is None else parameter.grad.numpy()
        found[f"gradient of parameter {k}"] = value
    return found


# ---- functions ----


def functions() -> Iterator[Case]:
    """Differentiable marginals of small fields, and the filter."""
    for name in SMALL:
        for rule in MOVING:
            for gradient in GRADIENTS if rule in PROXIMAL else GRADIENTS[:2]:
                case = partial(marginals, name, rule, gradient)
                yield f"torch-infer/{name}/{rule}/{gradient}", case
    for name in ("ising-grid", "potts", "segmentation"):
        for gradient in GRADIENTS:
            case = partial(marginals, name, "fixed", gradient, weighted=True)
            yield f"torch-infer-weights/{name}/{gradient}", case
    for dtype in DTYPES:
        yield f"gaussian-filter/{dtype}", partial(filtered, dtype)


def marginals(name: str, rule: str, gradient: str, *, weighted: bool = False) -> Record:
    """Marginals and gradients in the unary energies, and perhaps in the weights of edges."""
    field = make_field(name)
    rng = np.random.default_rng(2)
    inputs = {"unary": tensor(0.5 * rng.normal(size=field.layout.size), torch.float64)}
    if weighted:
        edges = sum(len(t.edges) for t in field.terms if isinstance(t, pf.Ising | pf.Potts))
        inputs["weights"] = tensor(0.3 * rng.normal(size=edges), torch.float64)
    chosen, params = RULES[rule]
    limit = 100 if gradient == "implicit" else FEW
    out = pt.infer(
        field, rule=chosen, init="uniform", max_iters=limit, tol=1e-8, gradient=gradient, seed=3,
        **inputs, **params,
    )  # fmt: skip
    return backward(out, **inputs)


def filtered(dtype: str) -> Record:
    """The sum over all pairs, for two images."""
    rng = np.random.default_rng(3)
    features = tensor(rng.normal(size=(2, 40, 3)), DTYPES[dtype])
    values = tensor(rng.normal(size=(2, 40, 4)), DTYPES[dtype])
    pt.clear_plans()
    out = pt.gaussian_filter(values, features, normalize=False, filter="exact", batch=True)
    return backward(out, features=features, values=values)


# ---- Triton's interpreter ----


def interpreted_cases() -> Iterator[Case]:
    """The kernel set "cuda" on tiny fields; TRITON_INTERPRET=1 has to be set already."""
    sys.path.append(str(Path(__file__).parents[1] / "tests" / "gpu"))
    from gpu_cases import mend_interpreter

    torch.set_num_threads(1)
    mend_interpreter()
    for number, name in enumerate(TINY):
        for k, rule in enumerate(FORBIDDEN_RULES if "forbidden" in name else RULES):
            for dtype in ("float64", "float32") if k % 3 == number % 3 else ("float32",):
                options: Record = {"init": INITS[(number + k) % 3], "dtype": dtype, "max_iters": 3}
                case = partial(by_name, name, rule, kernels="cuda", **options)
                yield f"interpreter/{name}/{rule}/{dtype}", case
    for rule in ("fixed", "adaptive", "momentum", "adam"):
        yield f"interpreter-many/{rule}", partial(together, rule)
    for filter in ("exact", "lattice"):
        yield f"interpreter-dense/{filter}", partial(tiny_picture, filter)


def gpu_cases() -> Iterator[Case]:
    """The kernels of "cuda" on a GPU: fields, batches and dense CRFs."""
    if not torch.cuda.is_available():
        sys.exit("the part 'gpu' needs an NVIDIA GPU")
    for number, name in enumerate(SMALL):
        for k, rule in enumerate(RULES):
            for dtype in ("float64", "float32") if k % 3 == number % 3 else ("float32",):
                options: Record = {"init": INITS[(number + k) % 3], "dtype": dtype}
                case = partial(by_name, name, rule, kernels="cuda", max_iters=FEW, **options)
                yield f"gpu/{name}/{rule}/{dtype}", case
    for rule in ("fixed", "adaptive", "momentum", "adam"):
        yield f"gpu-many/{rule}", partial(together, rule)
    for filter in ("exact", "lattice"):
        yield f"gpu-dense/{filter}", partial(tiny_picture, filter)


def together(rule: str) -> Record:
    """Fields that iterate together."""
    kinds = ("unary", "pairwise", "potts", "ising", "factor")
    fields = [random_field(seed, scale=1.0, kinds=kinds).field for seed in range(60, 66)]
    fields.append(pf.generate.grid(3, 4, strength=2.0, seed=1))
    options: Record = {
        "init": "uniform",
        "max_iters": 4,
        "tol": 1e-6,
        "seed": 3,
        "threads": THREADS,
    }
    found = pf.infer_many(fields, rule, kernels="cuda", dtype="float32", **options)
    return records_of(found)


def tiny_picture(filter: str) -> Record:
    """A dense CRF over a few pixels."""
    image, p = picture(6, 8, 3, 6)
    crf = pf.DenseCRF(image, p, **{**CRF, "filter": filter})
    return record_of(crf.infer("fixed", dtype="float32", kernels="cuda", **{**RUN, "max_iters": 3}))
